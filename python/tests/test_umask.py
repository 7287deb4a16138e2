"""Programs started under any umask serve, and make files that other users can neither write nor, where they are secret, read.

Each program of the command line that serves or makes files is started: `up`, `manager`, `agent` (with its spawner, workers and
templates), `token`, `deploy`, `call`, `sandbox`, `image`, `store`, `doctor` and `bench`.
"""

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile

import pytest

from sublet._command import program
from waiting import until

MASKS = [0o000, 0o077]
LOCAL = """
import sublet
with sublet.local(cores=1, memory="1GiB") as client:
    with client.lease(imports=["json"]) as lease:
        assert lease.call(abs, -3) == 3
"""


@pytest.fixture
def start():
    """Starts programs, and ends them with the test."""
    started = []

    def start(mask, *words):
        started.append(subprocess.Popen([program(), *words], umask=mask, stdin=subprocess.DEVNULL, start_new_session=True))
        return started[-1]

    yield start
    for process in reversed(started):
        process.terminate()
    for process in started:
        process.wait(60)


def run(mask, *words, manager=None, **options):
    environment = dict(os.environ, **({"SUBLET_MANAGER": manager} if manager else {}))
    done = subprocess.run([program(), *words], umask=mask, env=environment, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, f"{words} under {mask:03o}: {done.stderr}"
    return done.stdout


def writable_by_others(folder):
    for above, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(above, name)
            mode = os.lstat(path).st_mode
            if not stat.S_ISLNK(mode) and not stat.S_ISSOCK(mode) and mode & 0o022:
                yield f"{path} {mode:o}"


def wait_for_node(manager):
    until(lambda: json.loads(run(0o022, "--json", "ps", manager=manager))["nodes"] != [], "a node is registered")


def wait_for_socket(manager):
    until((manager / "manager.sock").exists, "the manager listens")


@pytest.mark.parametrize("mask", MASKS, ids="{:03o}".format)
def test_a_platform_of_a_program_serves_under_any_umask(mask):
    subprocess.run([sys.executable, "-c", LOCAL], umask=mask, check=True, timeout=120)


@pytest.mark.parametrize("mask", MASKS, ids="{:03o}".format)
def test_manager_and_agent_serve_under_any_umask(mask, start, tmp_path):
    tmp_path.chmod(0o755)
    manager, agent, socket = tmp_path / "m", tmp_path / "a", "unix:" + str(tmp_path / "m" / "manager.sock")
    start(mask, "manager", "--state", str(manager), "--listen", "127.0.0.1:0")
    wait_for_socket(manager)
    run(mask, "token", "create", "--role", "agent", "--node", "a", manager=socket)
    words = ["--state", str(agent), "--name", "a", "--cores", "1", "--memory", "1GiB", "--listen", "", "--manager", socket]
    start(mask, "agent", *words, "--python", sys.executable)
    package = tmp_path / "own"
    package.mkdir()
    (package / "sublet.toml").write_text("name = 'own'\nkind = 'python'\nlibrary = 'own.py'\n[[function]]\nname = 'shout'\n")
    (package / "own.py").write_text("def shout(input):\n    return bytes(input).upper()\n")
    run(mask, "deploy", str(package), manager=socket)
    wait_for_node(socket)
    (tmp_path / "input").write_text("loud")
    called = run(mask, "call", "own/shout", "--input", str(tmp_path / "input"), "--output", "-", manager=socket)
    assert called == "LOUD"
    run(mask, "bench", "cold", "--n", "3", manager=socket)
    assert list(writable_by_others(manager)) == [] and list(writable_by_others(agent)) == []
    for folder in (manager, agent):
        assert folder.stat().st_mode & 0o077 == 0, "other users enter the state folder"


@pytest.mark.parametrize("mask", MASKS, ids="{:03o}".format)
def test_up_makes_no_file_that_others_may_write(mask, start, tmp_path):
    state = tmp_path / "up"
    start(mask, "up", "--state", str(state), "--cores", "1", "--memory", "1GiB", "--python", sys.executable)
    wait_for_socket(state)
    socket = f"unix:{state}/manager.sock"
    wait_for_node(socket)
    run(mask, "bench", "cold", "--n", "3", manager=socket)
    assert list(writable_by_others(state)) == []


def write_image(path):
    """Writes an image of one layer, as `docker save` does."""
    def add(archive, name, content):
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        add(archive, "greeting", b"hello")
    layer = layer.getvalue()
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}
    with tarfile.open(path, "w") as archive:
        add(archive, "layer.tar", layer)
        add(archive, "config.json", json.dumps(config).encode())
        add(archive, "manifest.json", json.dumps([{"Config": "config.json", "RepoTags": ["own:1"], "Layers": ["layer.tar"]}]).encode())


@pytest.mark.parametrize("mask", MASKS, ids="{:03o}".format)
def test_images_doctor_and_bench_work_under_any_umask(mask, tmp_path):
    assert "namespace" in run(mask, "doctor")
    write_image(tmp_path / "image.tar")
    (tmp_path / "image.tar").chmod(0o600)
    run(mask, "image", "--state", str(tmp_path / "state"), "import", str(tmp_path / "image.tar"))
    assert "own:1" in run(mask, "image", "--state", str(tmp_path / "state"), "list")
    assert list(writable_by_others(tmp_path)) == []
    run(mask, "bench", "cold", "--sandbox", "template", "--python", sys.executable, "--n", "3")


@pytest.mark.parametrize("mask", MASKS, ids="{:03o}".format)
def test_store_commands_work_under_any_umask(mask, start, tmp_path):
    manager, backup = tmp_path / "m", str(tmp_path / "backup")
    serving = start(mask, "manager", "--state", str(manager), "--listen", "127.0.0.1:0")
    wait_for_socket(manager)
    serving.terminate()
    serving.wait(60)
    for words in (["backup", backup], ["restore", backup, "--overwrite"], ["repair"], ["check"]):
        run(mask, "store", *words, "--state", str(manager))
    kept = {path.name.partition("-")[0] for path in manager.iterdir() if path.is_dir()}
    assert {"replaced", "damaged"} <= kept, "the folders with earlier files"
    assert list(writable_by_others(tmp_path)) == []
