"""Images: functions of a program are executed by the Python of an image, and see what the image has."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import sublet
from sublet import _command

sys.path.insert(0, str(Path(__file__).parent))
import image_functions as functions  # noqa: E402: it is beside this file
import images  # noqa: E402: it is beside this file


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry = images.Registry(tmp_path_factory.mktemp("registry"))
    yield registry
    registry.close()


@pytest.fixture(scope="module")
def packed():
    """This interpreter as a layer, with numpy, and the variables of an image of it."""
    pytest.importorskip("numpy")
    tar, folder = images.python(["numpy"], {"only_here.py": "value = 'of the image'\n"})
    return tar, [f"PATH={folder}", "HUE=red"]


@pytest.fixture(scope="module")
def image(registry, packed):
    tar, variables = packed
    return registry.push("science", [tar], variables)


@pytest.fixture(scope="module")
def near(registry):
    """A platform that pulls from the registry."""
    with sublet.local(memory="8GiB", registries=f"localhost:{registry.port}") as client:
        yield client


def test_functions_see_what_the_image_has(near, image):
    import numpy

    with near.lease(image=image, env={"HUE": "blue"}, imports=["numpy"], wait=60) as lease:
        value, hue, file, has_package = lease.call(functions.of_image, "HUE")
        assert (value, hue, has_package) == ("of the image", "blue", True)
        assert file != numpy.__file__ and file.endswith("numpy/__init__.py")
        assert lease.call(functions.mean, numpy.arange(1001.0)) == 500.0
        assert list(lease.map(abs, range(-5, 5))) == [abs(number) for number in range(-5, 5)]
        with pytest.raises(KeyError, match="told"):
            lease.call(functions.fails)
    with near.lease(image=image, wait=60) as lease:
        assert lease.call(functions.of_image, "HUE")[1] == "red"


def test_an_executor_has_an_image(near, image):
    with sublet.Executor(1, client=near, image=image, wait=60) as executor:
        assert executor.submit(functions.of_image, "HUE").result()[0] == "of the image"


def test_a_lease_has_one_place(near, image):
    with pytest.raises(sublet.InvalidArgument, match="an image or an environment"):
        near.lease(image=image, requirements=["numpy"])
    with pytest.raises(sublet.InvalidArgument, match="its own image"):
        near.lease(package="words", image=image)
    with pytest.raises(sublet.InvalidArgument, match="not the name of an image"):
        near.lease(image=["debian:12"])


def test_an_unknown_image_is_named(near, registry):
    with pytest.raises(sublet.Error, match="has no nothing/manifests/1") as caught:
        near.lease(image=f"localhost:{registry.port}/nothing:1")
    assert caught.value.code == "unknown_image"


def script(printed):
    """A layer with a script in place of a Python."""
    return images.tar_of({"bin/python3": f"#!/bin/sh\nprintf '{printed}'\n"})


def report(version, implementation="cpython", lock="lock", libc="glibc 2.36", fault=""):
    return script("\\t".join(["sublet-python", version, implementation, lock, libc, "/bin/python3", fault]) + "\\n")


def foreign():
    """A layer with this interpreter as if it were for another processor: the header of the program says so."""
    program = bytearray(Path(os.path.realpath(sys.executable)).read_bytes())
    program[18] ^= 0xFF
    return images.tar_of({"bin/python3": bytes(program)})


BAD = {
    "none": (lambda: [images.tar_of({"etc/issue": "x"})], r"no python3 in the folders of its PATH \(/bin\)"),
    "foreign": (lambda: [foreign()], f"its python3 is not a program for {os.uname().machine}"),
    "alone": (lambda: [images.tar_of({"bin/python3": Path("/bin/sh").read_bytes()})], "names a loader that it does not have"),
    "silent": (lambda: [images.program("/bin/sh"), script("")], "does not work: it exited with status 0, it printed nothing"),
    "old": (lambda: [images.program("/bin/sh"), report("3.10")], "its Python is 3.10, and 3.11 or later is needed"),
    "other": (lambda: [images.program("/bin/sh"), report("3.11", "pypy")], "its Python is pypy, and CPython is needed"),
    "free": (lambda: [images.program("/bin/sh"), report("3.14", lock="free")], "is free-threaded"),
    "libc": (lambda: [images.program("/bin/sh"), report("3.12", libc="")], "linked with another C library than glibc and musl"),
    # The wheel has no library of workers for musl.
    "musl": (lambda: [images.program("/bin/sh"), report("3.12", libc="musl")], "linked with musl, and this node lacks libsublet_template_python_musl.so"),
    "unloadable": (lambda: [images.program("/bin/sh"), report("3.12", fault="GLIBC_2.34 not found")], "cannot load Sublet.s worker: GLIBC_2.34 not found"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_image_without_a_usable_python_is_refused(near, registry, name):
    layers, reason = BAD[name]
    bad = registry.push(name, layers(), ["PATH=/bin"])
    for _ in range(2):
        # The image is asked once, and the answer is the same.
        with pytest.raises(sublet.Error, match=rf"the image localhost:\d+/{name}:1@sha256:\w+ cannot execute Python: .*{reason}") as caught:
            near.lease(image=bad, wait=60)
        assert caught.value.code == "invalid_package"


def test_a_python_without_its_modules_is_refused(near, registry, packed):
    tar, variables = packed
    gone = str(Path(sysconfig.get_path("stdlib")) / ".wh.encodings")
    broken = registry.push("broken", [tar, images.tar_of({gone: ""})], variables)
    with pytest.raises(sublet.Error, match="its python3 does not work: it exited with status 1, .*encodings") as caught:
        near.lease(image=broken, wait=60)
    assert caught.value.code == "invalid_package"


def test_an_image_for_other_machines_is_refused(near, registry):
    other = registry.push("machines", [images.tar_of({"etc/issue": "x"})], architecture="s390x")
    with pytest.raises(sublet.Error, match="linux/s390x") as caught:
        near.lease(image=other, wait=60)
    assert caught.value.code == "wrong_architecture"


def test_another_version_than_the_programs_is_refused(near, image, monkeypatch):
    monkeypatch.setattr(sublet._package, "version", lambda: "3.99")
    has = "%d.%d" % sys.version_info[:2]
    with pytest.raises(sublet.Error, match=rf"science:1@sha256:\w+ has Python {has}, and sublet_main.py is for Python 3.99") as caught:
        near.lease(image=image, wait=60)
    assert caught.value.code == "wrong_architecture"


PACKAGE = """
import os
import sys

import only_here


def told(data):
    return f"{only_here.value} {os.environ['LEVEL']} {bytes(data).decode()}".encode()


def changed(data):
    with open("/changed", "x") as file:
        file.write("once")
    return b"done"
"""


def test_a_package_runs_in_its_image(near, image, tmp_path):
    (tmp_path / "told.py").write_text(PACKAGE)
    functions = "".join(f"[[function]]\nname = '{name}'\n" for name in ("told", "changed"))
    manifest = f"name = 'told'\nkind = 'python'\nlibrary = 'told.py'\nimage = '{image}'\n{functions}[environment]\nLEVEL = '3'\n"
    (tmp_path / "sublet.toml").write_text(manifest)
    environment = dict(os.environ, SUBLET_MANAGER=near.managers)
    deployed = subprocess.run([_command.program(), "deploy", tmp_path], env=environment, capture_output=True, text=True, check=True).stdout
    assert "for python-image" in deployed and f"{image}@sha256:" in deployed
    for _ in range(2):
        # Changes of the image are those of one lease.
        with near.lease(package="told", wait=60) as lease:
            assert lease.call("told", b"x") == b"of the image 3 x" and lease.call("changed", b"") == b"done"
            with pytest.raises(FileExistsError, match="changed"):
                lease.call("changed", b"")


def test_an_oci_runtime_starts_the_python_of_an_image(registry, image):
    if os.getuid() != 0:
        pytest.skip("handing a container to an OCI runtime needs root")
    empty = registry.push("empty", [images.tar_of({"etc/issue": "x"})], ["PATH=/bin"])
    with sublet.local(memory="4GiB", registries=f"localhost:{registry.port}", container_runtime="crun") as client:
        with client.lease(image=image, wait=60) as lease:
            assert lease.call(functions.of_image, "HUE")[:2] == ("of the image", "red")
        with pytest.raises(sublet.Error, match=r"the Python of the image localhost:\d+/empty:1@sha256:\w+ cannot be started: .*python3"):
            client.lease(image=empty, wait=60)
