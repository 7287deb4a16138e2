"""Modules that functions of a program's own platform find where the program finds them."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sublet import _visible

BEGIN = """
import sys
import sublet

def path():
    return sys.path

def call(function, *arguments, **options):
    with sublet.local(cores=1, memory="2GiB", **options) as client, client.lease(wait=60) as lease:
        return lease.call(function, *arguments)
"""


@pytest.fixture(autouse=True)
def readable(tmp_path):
    """Other users can read the folder, as those that execute functions where the tests run as root."""
    tmp_path.chmod(0o755)


@pytest.fixture
def run(tmp_path):
    """Runs a script that prints one line, and returns that."""

    def run(text, folder=tmp_path, **environment):
        (folder / "script.py").write_text(BEGIN + text)
        variables = {**os.environ, **environment}
        ended = subprocess.run([sys.executable, folder / "script.py"], capture_output=True, text=True, env=variables, timeout=300)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    return run


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_modules_are_found_wherever_the_program_finds_them(run, tmp_path):
    write(tmp_path, "sibling.py", "value = 'beside the script'\n")
    write(tmp_path, "variable/of_variable.py", "value = 'PYTHONPATH'\n")
    write(tmp_path, "user/of_user.py", "value = 'user'\n")
    write(tmp_path, "user/more.pth", f"{tmp_path / 'named'}\n")
    write(tmp_path, "named/of_pth.py", "value = 'pth'\n")
    write(tmp_path, "user/__editable___project_finder.py", f"import sys\nMAPPING = {{'project': {str(tmp_path / 'src/project')!r}}}\nclass Finder:\n    find_spec = classmethod(lambda *_: None)\nsys.meta_path.append(Finder)\n")
    write(tmp_path, "src/project/__init__.py", "value = 'editable'\n")
    write(tmp_path, "src/project/data.txt", "data")
    said = run(
        """
import site, os
site.addsitedir(os.path.join(os.path.dirname(__file__), "user"))
import __editable___project_finder

def values():
    # Nothing of this was imported by the program.
    import of_pth, of_user, of_variable, project, sibling
    with open(os.path.join(os.path.dirname(project.__file__), "data.txt")) as data:
        return [module.value for module in (sibling, of_variable, of_user, of_pth, project)] + [data.read()]

print(call(values))
""",
        PYTHONPATH=str(tmp_path / "variable"),
    )
    assert said == "['beside the script', 'PYTHONPATH', 'user', 'pth', 'editable', 'data']"


def test_the_search_path_is_that_of_the_program(run, tmp_path):
    said = run(
        """
found = call(path)
own = [path for path in sys.path if path]
print([path for path in found if path in own] == own, [path for path in found if path not in own])
""",
        PYTHONPATH=str(tmp_path / "empty"),
    )
    # The package of the lease comes first, and what workers need of Sublet last.
    assert said.startswith("True "), said


def test_files_are_read_as_they_are_and_cannot_be_written(run, tmp_path):
    large = tmp_path / "large"
    write(large, "__init__.py", "value = 1\n")
    (large / "__init__.py").chmod(0o666)
    with open(large / "weights.bin", "wb") as weights:
        # More than is ever sent.
        weights.truncate(100 << 20)
    said = run(
        """
import large, os
with open(large.__file__, "w") as file:
    file.write("value = 1\\nadded = 'later'\\n")

def look():
    import large
    try:
        open(large.__file__, "a")
    except OSError as error:
        return large.added, os.path.getsize(os.path.join(os.path.dirname(large.__file__), "weights.bin")), error.strerror

print(call(look))
"""
    )
    assert said == f"('later', {100 << 20}, 'Read-only file system')"


def test_a_platform_that_others_may_use_shows_no_folders(run, tmp_path):
    write(tmp_path, "sibling.py", "value = 1\n")
    text = """
def find():
    import importlib.util
    return importlib.util.find_spec("sibling") is not None

print(call(find, listen="127.0.0.1:0"), call(find))
"""
    assert run(text) == "False True"


def test_modules_in_a_home_folder_are_sent(run, tmp_path):
    write(tmp_path, "sibling.py", "def f():\n    return __file__\n")
    text = "import sibling\nprint(call(sibling.f))\n"
    assert run(text) == str(tmp_path / "sibling.py")
    assert run(text, HOME=str(tmp_path)) != str(tmp_path / "sibling.py")


def test_folders_with_files_of_root_alone_are_sent(run, tmp_path):
    write(tmp_path, "sibling.py", "def f():\n    return __file__\n")
    write(tmp_path, "secret", "x").chmod(0o600)
    is_shown = run("import sibling\nprint(call(sibling.f))\n") == str(tmp_path / "sibling.py")
    # Without root, functions are executed as this user, who can read the files.
    assert is_shown == (os.geteuid() != 0)


def test_folders_that_hold_more_than_modules_are_left_out(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    # This module imports another one by the search path.
    sysconfig.get_config_vars()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "path", ["/", "/usr", str(tmp_path), str(home), str(home / "project"), "/a:b"])
    assert [Path(path).name for path in _visible.search_path() if path.startswith(str(tmp_path))] == ["project"]


def test_folders_with_too_many_files_count_as_closed(tmp_path, monkeypatch):
    for number in range(5):
        write(tmp_path, f"{number}.py", "")
    assert _visible._is_open(str(tmp_path))
    monkeypatch.setattr(_visible, "MOST_ENTRIES", 4)
    assert not _visible._is_open(str(tmp_path))
