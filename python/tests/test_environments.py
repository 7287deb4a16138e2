"""Environments: functions import the distributions of a lease's requirements, and none of the node's."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sublet
from sublet import _environment
from waiting import with_growing_time

sys.path.insert(0, str(Path(__file__).parent))
import environment_functions as functions  # noqa: E402: it is beside this file
import wheels  # noqa: E402: it is beside this file

TAG = "cp%d%d" % sys.version_info[:2]
ARCHITECTURE = os.uname().machine


@pytest.fixture(scope="module")
def links(tmp_path_factory):
    """A folder of wheels: `alpha` needs `beta`, of which there are two."""
    folder = tmp_path_factory.mktemp("links")
    source = "import beta\nvalue = beta.value + 1\n"
    wheels.make(folder, "alpha", "1.0", {"alpha/__init__.py": source, "alpha/data.txt": "text"}, requires=["beta>=1"])
    wheels.make(folder, "beta", "1.0", {"beta.py": "value = 10\n"})
    wheels.make(folder, "beta", "1.2", {"beta.py": "value = 12\n"})
    wheels.make(folder, "gamma", "1.0", {"gamma.py": ""}, requires=["beta<1.1"])
    wheels.make(folder, "paths", "1.0", {"paths.pth": "paths_more\nimport paths_started\n", "paths_started.py": "", "paths_more/deep.py": "value = 3\n"})
    wheels.make(folder, "other", "1.0", {"other.py": ""}, tag=f"{TAG}-{TAG}-manylinux_2_17_{'aarch64' if ARCHITECTURE == 'x86_64' else 'x86_64'}")
    wheels.make(folder, "newer", "1.0", {"newer.py": ""}, tag=f"{TAG}-{TAG}-manylinux_2_99_{ARCHITECTURE}")
    wheels.make(folder, "binary", "1.0", {"binary.py": "value = 5\n"}, tag=f"{TAG}-{TAG}-manylinux_2_17_{ARCHITECTURE}")
    sdist = folder / "source-1.0"
    sdist.mkdir()
    (sdist / "setup.py").write_text(f"open({str(folder / 'EXECUTED')!r}, 'w')\nfrom setuptools import setup\nsetup(name='source', version='1.0')\n")
    subprocess.run(["tar", "-C", folder, "-czf", folder / "source-1.0.tar.gz", "source-1.0"], check=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A cache of the tests' own, and the resolver that every Python has."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("SUBLET_RESOLVER", "pip")
    yield
    patch.undo()


@pytest.fixture(scope="module")
def environment(links):
    return sublet.Environment(["alpha"], index=False, find_links=links)


@pytest.fixture
def leased(platform, environment):
    with platform.lease(environment=environment, wait=60) as lease:
        yield lease


def of_links(links, *requirements, **more):
    return sublet.Environment(list(requirements), index=False, find_links=links, **more)


def test_function_imports_distributions_of_environment(leased):
    value, file, text, version, prefix = leased.call(functions.look)
    assert (value, text, version) == (13, "text", "1.0")
    assert file == "/environment/lib/python%d.%d/site-packages/beta.py" % sys.version_info[:2]
    assert prefix == "/environment"


def test_modules_of_the_node_are_not_visible(platform, leased):
    assert leased.call(functions.find, "json") and leased.call(functions.find, "sqlite3")
    # The node is this interpreter, which has these.
    assert functions.find("pytest") and functions.find("pip")
    with platform.lease(wait=60) as bare:
        assert bare.call(functions.find, "pytest") and not bare.call(functions.find, "alpha")
    assert not leased.call(functions.find, "pytest") and not leased.call(functions.find, "pip")


def test_functions_cannot_change_an_environment(leased):
    assert leased.call(functions.write) == 2


def test_second_lease_resolves_and_installs_nothing(platform, links):
    steps = []
    first = of_links(links, "binary")
    with platform.lease(environment=first, progress=steps.append, wait=60) as lease:
        assert lease.call(functions.binary) == 5
    assert any(step.startswith("resolving for Python") for step in steps) and "uploading binary, 1 of 1" in steps
    again = []
    with platform.lease(environment=first, progress=again.append, wait=60):
        assert again == []
    # Another program with the same requirements finds the resolution in the cache.
    with platform.lease(environment=of_links(links, "binary"), progress=again.append, wait=60):
        assert again == []


def test_list_of_requirements_is_made_once(platform, monkeypatch, links):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with platform.lease(requirements=["beta==1.0"], wait=60) as lease:
        assert lease.call(functions.beta) == 10
    assert _environment.of(["beta==1.0"]) is _environment.of(["beta==1.0"])
    with sublet.Executor(1, client=platform, requirements=["beta==1.0"], wait=60) as executor:
        assert executor.submit(functions.beta).result() == 10


def test_path_files_of_distributions_are_processed(platform, links):
    with platform.lease(environment=of_links(links, "paths"), wait=60) as lease:
        assert lease.call(functions.started) == (3, True)


def test_requirements_file_has_options_of_its_own(platform, links, tmp_path):
    (tmp_path / "more.txt").write_text("beta==1.0  # an old one\n")
    file = tmp_path / "requirements.txt"
    file.write_text(f"--no-index\n--find-links {links}\n-r more.txt\n")
    with platform.lease(requirements=file, wait=60) as lease:
        assert lease.call(functions.beta) == 10


def test_variables_and_environment_go_together(platform, environment):
    with platform.lease(environment=environment, env={"NAME": "x"}, wait=60) as lease:
        assert lease.call(functions.alpha_and_name) == (13, "x")
    with platform.lease(environment={"NAME": "y"}, wait=60) as lease:
        assert lease.call(functions.name) == "y"


def test_imports_are_those_of_the_environment(platform, environment):
    with platform.lease(environment=environment, imports=["alpha"], wait=60) as lease:
        assert lease.call(functions.is_imported, "alpha")


# Lock files.


def test_lock_file_is_used_as_it_is(platform, links, tmp_path):
    old = links / "beta-1.0-py3-none-any.whl"
    other = wheels.make(tmp_path, "never", "1.0", {"never.py": ""})
    text = wheels.locked(old) + wheels.locked(other).partition("\n\n")[2].replace(
        'version = "1.0"', 'version = "1.0"\nmarker = "sys_platform == \'win32\' or python_version < \'3\'"'
    )
    lock = tmp_path / "pylock.toml"
    lock.write_text(text)
    with platform.lease(requirements=lock, wait=60) as lease:
        assert lease.call(functions.beta) == 10
        assert not lease.call(functions.find, "never")


def test_lock_file_chooses_wheel_for_platform_of_the_node(platform, links, tmp_path):
    tags = [f"{TAG}-{TAG}-manylinux_2_17_{ARCHITECTURE}", f"{TAG}-{TAG}-manylinux_2_98_{ARCHITECTURE}", "cp30-cp30-win_amd64", "py3-none-any"]
    made = [wheels.make(tmp_path, "many", "1.0", {"many.py": f"tag = {tag!r}\n"}, tag=tag) for tag in tags]
    digests = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in made]
    listed = ", ".join(f'{{ url = "{wheel.as_uri()}", hashes = {{ sha256 = "{digest}" }} }}' for wheel, digest in zip(made, digests))
    lock = tmp_path / "pylock.many.toml"
    lock.write_text(f'lock-version = "1.0"\n[[packages]]\nname = "many"\nversion = "1.0"\nwheels = [{listed}]\n')
    with platform.lease(requirements=lock, wait=60) as lease:
        assert lease.call(functions.tag) == tags[0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('lock-version = "1.0"\nrequires-python = ">=3.99"\n', r"is for Python >=3\.99, and the environment for Python 3"),
        ('lock-version = "9.0"\n', "lock-version '9.0'"),
        ("lock = \n", "not valid TOML"),
        ('lock-version = "1.0"\n', "has no packages"),
        ('lock-version = "1.0"\n[[packages]]\nname = "a"\nmarker = "os_name = 1"\n', "marker"),
        ('lock-version = "1.0"\n[[packages]]\nname = "a"\nversion = "1"\nsdist = { url = "https://host/a-1.tar.gz" }\n', "a 1 has no wheel, only sources"),
        ('lock-version = "1.0"\n[[packages]]\nname = "a"\nvcs = { type = "git" }\n', "has no wheel, only sources"),
        ('lock-version = "1.0"\n[[packages]]\nname = "a"\nwheels = [{ url = "https://host/a-1-cp30-cp30-win32.whl" }]\n', "has no wheel for Python"),
        ('lock-version = "1.0"\n[[packages]]\nname = "a"\nwheels = [{ url = "https://host/a-1-py3-none-any.whl" }]\n', "has no SHA-256"),
        (
            f'lock-version = "1.0"\n[[packages]]\nname = "a"\nwheels = [{{ url = "file:///none/a-1-py3-none-any.whl", hashes = {{ sha256 = "{"0" * 64}" }} }}]\n',
            "cannot get file:///none/a-1-py3-none-any.whl",
        ),
    ],
)
def test_lock_file_that_cannot_be_used_is_refused(platform, tmp_path, text, named):
    lock = tmp_path / "pylock.toml"
    lock.write_text(text)
    with pytest.raises(sublet.InvalidArgument, match=named):
        platform.lease(requirements=lock)


def test_wheel_with_another_hash_than_locked_is_refused(platform, links, tmp_path):
    lock = tmp_path / "pylock.toml"
    text = wheels.locked(links / "beta-1.0-py3-none-any.whl")
    digest = hashlib.sha256((links / "beta-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    lock.write_text(text.replace(digest, "0" * 64))
    with pytest.raises(sublet.InvalidArgument, match="has the SHA-256 .* and 0{64} was expected"):
        platform.lease(requirements=lock)


@pytest.mark.parametrize("path", ["../../escaped.py", "/tmp/escaped.py", "evil-1.0.data/scripts/../../escaped"])
def test_wheel_whose_paths_escape_is_refused(platform, tmp_path, path):
    lock = tmp_path / "pylock.toml"
    lock.write_text(wheels.locked(wheels.make(tmp_path, "evil", "1.0", {path: "x"})))
    with pytest.raises(sublet.Error, match="the wheel evil-1.0 is refused: the path") as raised:
        platform.lease(requirements=lock)
    assert raised.value.code == "invalid_package"


# Requirements that cannot be met.


@pytest.mark.parametrize(
    ("requirements", "named"),
    [
        (["absent"], "absent"),
        (["alpha", "gamma", "beta==1.2"], "conflict|cannot install"),
        (["other"], "other"),
        (["newer"], "newer"),
        (["source"], "source"),
    ],
)
def test_requirements_that_cannot_be_met_are_named(platform, links, requirements, named):
    with pytest.raises(sublet.InvalidArgument, match=rf"(?is)the requirements cannot be met for Python .* on {ARCHITECTURE}.*({named})"):
        of_links(links, *requirements).deploy(platform)
    assert not (links / "EXECUTED").exists()


@pytest.mark.parametrize("requirement", ["-e .", "./source", "source @ file:///tmp/source-1.0.tar.gz", "git+https://host/x", "--index-url=https://host"])
def test_requirement_that_would_be_built_is_refused(platform, links, requirement):
    with pytest.raises(sublet.InvalidArgument, match="editable|not a wheel|is an option"):
        of_links(links, requirement).deploy(platform)


def test_distribution_that_requires_sources_executes_nothing(platform, links, tmp_path):
    wheels.make(tmp_path, "wants", "1.0", {"wants.py": ""}, requires=[f"source @ {(links / 'source-1.0.tar.gz').as_uri()}"])
    with pytest.raises(sublet.InvalidArgument, match="would have to be built"):
        of_links(tmp_path, "wants").deploy(platform)
    assert not (links / "EXECUTED").exists()


@pytest.mark.parametrize(
    ("requirements", "named"), [([], "no requirements"), ([""], "is empty"), ("numpy", "no file 'numpy'"), ("/none/requirements.txt", "no file")]
)
def test_requirements_that_are_none_are_refused(requirements, named):
    with pytest.raises(sublet.InvalidArgument, match=named):
        sublet.Environment(requirements)


@pytest.mark.parametrize("text", ["", "# numpy\n\n   # pandas\n", "--no-index\n# numpy\n", "-r other.txt\n"])
def test_file_without_requirements_is_refused(platform, tmp_path, text):
    file = tmp_path / "requirements.txt"
    file.write_text(text)
    (tmp_path / "other.txt").write_text("# none\n")
    with pytest.raises(sublet.InvalidArgument, match=r"requirements\.txt has no requirements, only comments or options"):
        sublet.Environment(file).deploy(platform)


def test_list_of_comments_is_refused(platform):
    with pytest.raises(sublet.InvalidArgument, match="the list of requirements has no requirements"):
        sublet.Environment(["# numpy"]).deploy(platform)


def test_python_that_no_node_has_is_named(platform, links):
    with pytest.raises(sublet.Error, match=r"no node has Python 3\.99 .*; nodes have python3") as raised:
        of_links(links, "beta", python="3.99").deploy(platform)
    assert raised.value.code == "wrong_architecture"
    with pytest.raises(sublet.Error, match="no node has Python .* on riscv64"):
        of_links(links, "beta", architecture="riscv64").deploy(platform)


def test_arguments_that_contradict_are_refused(platform, environment):
    with pytest.raises(sublet.InvalidArgument, match="requirements or an environment, not both"):
        platform.lease(environment=environment, requirements=["beta"])
    with pytest.raises(sublet.InvalidArgument, match="package names its own environment"):
        platform.lease(package="./p", environment=environment)
    with pytest.raises(sublet.InvalidArgument, match="is not an Environment"):
        platform.lease(environment=5)


# Names.


def test_named_environment_is_used_by_its_name(platform, links):
    digest = of_links(links, "beta", name="named").deploy(platform)
    assert sublet.Environment.named("named").deploy(platform) == digest
    with platform.lease(environment="named", wait=60) as lease:
        assert lease.call(functions.beta) == 12
    with pytest.raises(sublet.Error, match="no environment \"absent\"") as raised:
        platform.lease(environment="absent")
    assert raised.value.code == "unknown_package"


def test_later_environment_of_a_name_replaces_the_earlier_one(platform, links):
    first = of_links(links, "beta==1.0", name="replaced")
    before = first.deploy(platform)
    with platform.lease(environment=first, wait=60) as lease:
        after = of_links(links, "beta==1.2", name="replaced").deploy(platform)
        assert before != after and sublet.Environment.named("replaced").deploy(platform) == after
        # The leased environment, and the one that is named by its digest, stay.
        assert lease.call(functions.beta) == 10
    with platform.lease(environment=before, wait=60) as lease:
        assert lease.call(functions.beta) == 10


def test_environment_that_was_removed_is_made_again(platform, links):
    from sublet._command import program

    environment = of_links(links, "beta==1.0", "paths", name="removed")
    environment.deploy(platform)
    command = [program(), "environment", "remove", "removed", "--manager", platform.managers]
    with platform.lease(environment=environment, wait=60) as lease:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        assert lease.call(functions.beta) == 10, "a lease keeps its environment"
    with platform.lease(environment=environment, imports=["json"], wait=60) as lease:
        assert lease.call(functions.beta) == 10


def test_uv_resolves_like_pip(platform, links, monkeypatch):
    folder = Path(sys.executable).parent
    assert (folder / "uv").exists(), "the tests install uv beside their interpreter"
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SUBLET_RESOLVER", "uv")
    with platform.lease(environment=of_links(links, "alpha", "beta<1.1", name="by-uv"), wait=60) as lease:
        assert lease.call(functions.beta) == 10
    with pytest.raises(sublet.InvalidArgument, match=r"(?s)cannot be met.*source.*make a wheel of it"):
        of_links(links, "source").deploy(platform)
    assert not (links / "EXECUTED").exists()


# Starts that take long.


@pytest.fixture
def slow(tmp_path):
    """A folder with a module whose import takes longer than a worker may be silent."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(11)\n")
    return tmp_path / "slow.py"


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_import_that_takes_long_does_not_fail_a_lease(platform, slow, fabric):
    steps = []
    with platform.lease(imports=["slow"], path=slow, progress=steps.append, fabric=fabric, wait=60) as lease:
        assert lease.call(abs, -1) == 1
    assert "importing slow" in steps and len(steps) == len(set(steps))


def test_caller_limits_the_time_of_a_start(platform, tmp_path):
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(3600)\n")

    def is_importing(seconds):
        with pytest.raises(sublet.DeadlineExceeded, match=rf"did not start within {seconds} s \(start_timeout\)") as raised:
            platform.lease(imports=["endless"], path=tmp_path / "endless.py", start_timeout=seconds, wait=60)
        # A machine that stands still may not have come so far.
        return True if "importing endless" in str(raised.value) else None

    assert with_growing_time(1, is_importing)
    with platform.lease(wait=60) as lease:
        assert lease.call(abs, -2) == 2
