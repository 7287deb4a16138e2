"""The caller's modules: which are sent to workers, and what happens to those that cannot be."""

import os
import subprocess
import sys
import sysconfig
import warnings
import zipfile
from pathlib import Path

import pytest

import sublet
from sublet import _modules, _warning

EXTENSION = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def run(platform, tmp_path):
    """Runs a program of its own interpreter, in a folder of its own, with a lease; what it prints."""

    def run(text, *arguments, name="script.py", is_right=True, **environment):
        script = tmp_path / name
        if text is not None:
            script.parent.mkdir(parents=True, exist_ok=True)
            begin = f"import sublet, sys\nclient = sublet.Client({platform.managers!r})\n"
            script.write_text(begin + text)
        environment = {**os.environ, **environment}
        command = [sys.executable, *(arguments or [str(script)])]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert (ran.returncode == 0) == is_right, ran.stderr
        return ran.stdout, ran.stderr

    return run


def test_a_module_that_is_too_large_ends_only_what_needs_it(run, tmp_path):
    (tmp_path / "large.py").write_text("def f():\n    return 1\n")
    (tmp_path / "small.py").write_text("def f():\n    return 2\n")
    printed, _ = run(
        "from sublet import _modules\n"
        "_modules.MOST_BYTES = 4000\n"
        "open('large.py', 'a').write('#' * 5000)\n"
        "import large, small\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(small.f))\n"
        "    try:\n"
        "        lease.call(large.f)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error.name, error)\n"
    )
    two, why = printed.splitlines()
    assert two == "2"
    assert why.startswith("large No module named 'large': it was not sent to workers: it has more than 4000 bytes")


def test_modules_of_too_many_files_end_only_what_needs_them(run, tmp_path):
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "__init__.py").write_text("def f():\n    return 1\n")
    for number in range(4200):
        (tmp_path / "many" / f"m{number}.txt").touch()
    printed, _ = run(
        "import many\n"
        "with client.lease(wait=30, imports=['json']) as lease:\n"
        "    print(lease.call(abs, -2))\n"
        "    try:\n"
        "        lease.call(many.f)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
        "try:\n"
        "    client.lease(wait=30, imports=['many'])\n"
        "except sublet.Error as error:\n"
        "    print(error)\n"
    )
    two, of_call, of_lease = printed.splitlines()
    assert two == "2" and "it has more than 4032 files" in of_call and "it has more than 4032 files" in of_lease


@pytest.mark.parametrize(("bound", "most", "unit"), [("MOST_BYTES", 4000, "bytes"), ("MOST_FILES", 3, "files")])
def test_modules_that_are_too_large_together_end_only_the_largest(run, tmp_path, bound, most, unit):
    for name, files, size in (("a_large", 2, 3000), ("z_small", 1, 2000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("def f():\n    return 1\n" + "#" * size)
        for number in range(files):
            (tmp_path / name / f"m{number}.txt").touch()
    printed, _ = run(
        "from sublet import _modules\n"
        f"_modules.{bound} = {most}\n"
        "import a_large, z_small\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(z_small.f))\n"
        "    try:\n"
        "        lease.call(a_large.f)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
    )
    one, why = printed.splitlines()
    assert one == "1"
    assert why.startswith("No module named 'a_large': it was not sent to workers: ")
    assert f"would have more than {most} {unit}" in why


def test_deleted_modules_end_only_what_needs_them(run, tmp_path):
    (tmp_path / "gone.py").write_text("def f():\n    return 1\n")
    printed, _ = run(
        "import gone, os\n"
        "os.remove('gone.py')\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(abs, -2))\n"
        "    try:\n"
        "        lease.call(gone.f)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
    )
    two, why = printed.splitlines()
    assert two == "2" and "gone.py" in why and "there is no" in why


def test_modules_that_a_program_has_made_end_only_what_needs_them(run):
    printed, _ = run(
        "import types\n"
        "made = sys.modules['made'] = types.ModuleType('made')\n"
        "exec('def f():\\n    return 1', made.__dict__)\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(abs, -2))\n"
        "    try:\n"
        "        lease.call('made:f')\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
    )
    two, why = printed.splitlines()
    assert two == "2" and "it is in no file" in why


def test_modules_of_archives_are_sent(run, tmp_path):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        archive.writestr("single.py", "def f():\n    return 1\n")
        archive.writestr("lib/deep/__init__.py", "from .below import f\n")
        archive.writestr("lib/deep/below.py", "def f():\n    return 2\n")
        archive.writestr("lib/deep/data.txt", "3")
    printed, _ = run(
        "sys.path[:0] = ['mine.zip', 'mine.zip/lib']\n"
        "import single, deep, pkgutil\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(single.f), lease.call(deep.f), lease.call(pkgutil.get_data, 'deep', 'data.txt'))\n"
    )
    assert printed == "1 2 b'3'\n"


def test_a_program_in_an_archive_has_its_modules_sent(run, tmp_path, platform):
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("helper.py", "def f():\n    return 5\n")
        archive.writestr(
            "__main__.py",
            f"import helper, sublet\ndef g():\n    return helper.f() + 1\n"
            f"with sublet.Client({platform.managers!r}).lease(wait=30) as lease:\n    print(lease.call(g))\n",
        )
    assert run(None, "app.pyz")[0] == "6\n"


def test_modules_of_the_python_path_are_sent_with_their_libraries(run, tmp_path):
    root = tmp_path / "prefix" / "lib"
    (root / "spack").mkdir(parents=True)
    (root / "spack" / "__init__.py").write_text(
        "import os\n\ndef libraries():\n    return os.listdir(os.path.dirname(os.path.dirname(__file__)) + '/spack.libs')\n"
    )
    (root / "spack.libs").mkdir()
    (root / "spack.libs" / "libblas.so.3").write_bytes(b"x")
    text = "import spack\nwith client.lease(wait=30) as lease:\n    print(lease.call(spack.libraries))\n"
    assert run(text, PYTHONPATH=str(root))[0] == "['libblas.so.3']\n"


def test_extension_modules_beside_the_script_are_sent(run, tmp_path):
    # The stable ABI, without Python's headers, which may not be installed.
    (tmp_path / "ext.c").write_text(
        "void *PyLong_FromLong(long), *PyModule_Create2(void *, int);\n"
        "static void *f(void *self, void *none) { return PyLong_FromLong(42); }\n"
        "static struct { const char *name; void *function; int flags; const char *doc; } methods[2] = {{\"f\", f, 4, 0}};\n"
        "static struct { long count; void *type, *init; long index; void *copy; const char *name, *doc; long size; void *methods, *rest[4]; }\n"
        "    module = {1, 0, 0, 0, 0, \"ext\", 0, 0, methods};\n"
        "void *PyInit_ext(void) { return PyModule_Create2(&module, 3); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "ext.c", "-o", f"ext{EXTENSION}"], cwd=tmp_path, check=True)
    text = "import ext\nwith client.lease(wait=30) as lease:\n    print(lease.call(ext.f))\n"
    assert run(text)[0] == "42\n"


def test_namespaces_of_two_folders_are_sent(run, tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder / "space" / folder).mkdir(parents=True)
        (tmp_path / folder / "space" / folder / "__init__.py").write_text(f"def f():\n    return {folder!r}\n")
    printed, _ = run(
        "sys.path[:0] = ['one', 'two']\n"
        "import space.one, space.two\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(space.one.f), lease.call(space.two.f))\n"
    )
    assert printed == "one two\n"


def test_links_within_a_module_are_followed(run, tmp_path):
    mine = tmp_path / "mine"
    (mine / "v2").mkdir(parents=True)
    (mine / "__init__.py").write_text(
        "import os\nfrom .now.code import f\nfrom . import linked\n"
        "def names():\n    return os.listdir(os.path.dirname(__file__) + '/latest')\n"
    )
    (mine / "v2" / "code.py").write_text("def f():\n    return 2\n")
    (mine / "now").symlink_to("v2")
    (mine / "latest").symlink_to("v2")
    (mine / "ring").symlink_to(".")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "abc").write_text("def f():\n    return 3\n")
    (mine / "linked.py").symlink_to(tmp_path / "store" / "abc")
    (tmp_path / "store" / "data").mkdir()
    (tmp_path / "store" / "data" / "__init__.py").write_text("def f():\n    return 4\n")
    (mine / "data").symlink_to(tmp_path / "store" / "data")
    printed, warned = run(
        "import mine, mine.data\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(mine.f), lease.call(mine.linked.f), lease.call(mine.data.f), lease.call(mine.names))\n"
    )
    assert printed == "2 3 4 ['code.py']\n" and "not sent" not in warned


def test_files_that_cannot_be_sent_are_named_in_a_warning(tmp_path, platform):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "__init__.py").write_text("import os\n\ndef names():\n    return sorted(os.listdir(os.path.dirname(__file__)))\n")
    (tmp_path / "secret").write_text("not a module's")
    (mine / "outside").symlink_to(tmp_path / "secret")
    Path(os.fsdecode(bytes(mine) + b"/latin-\xe9.txt")).write_text("x")
    (mine / "back\\slash\u202e").write_text("x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with platform.lease(path=mine, wait=60) as lease:
            assert lease.call("mine:names") == ["__init__.py"]
    said = str(next(warning.message for warning in caught if "not sent" in str(warning.message)))
    assert "outside: it is a link" in said and "latin-" in said and "not UTF-8" in said and "backslash" in said
    assert "\u202e" not in said and "slash\\u202e" in said


def test_files_of_imported_modules_are_named_in_a_warning(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("def f():\n    return 1\n")
    (tmp_path / "secret").write_text("not a module's")
    (tmp_path / "mine" / "outside").symlink_to(tmp_path / "secret")
    printed, warned = run("import mine\nwith client.lease(wait=30) as lease:\n    print(lease.call(mine.f))\n")
    assert printed == "1\n"
    assert "not sent to workers" in warned and "outside: it is a link" in warned


def test_deep_folders_and_irregular_files_are_left_out(tmp_path, monkeypatch):
    deep = tmp_path / "mine"
    for number in range(_modules.MOST_DEPTH + 2):
        deep = deep / f"d{number}"
    deep.mkdir(parents=True)
    (deep / "m.py").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret.py").touch()
    (tmp_path / "tool").touch(0o755)
    # Every file is readable for root.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, *mode: not str(path).endswith("secret.py") and access(path, *mode))
    with pytest.warns(UserWarning) as caught:
        selection = _modules.selected([tmp_path / name for name in ("mine", "pipe", "secret.py", "tool")])
    too_deep, irregular, unreadable = (str(each.message) for each in caught)
    assert f"it is more than {_modules.MOST_DEPTH} folders deep" in too_deep
    assert "pipe: it is not a regular file" in irregular and "secret.py: it cannot be read" in unreadable
    assert list(selection.files) == ["tool"]
    selection.write(tmp_path / "written")
    assert os.access(tmp_path / "written" / "tool", os.X_OK)


def test_no_path_in_a_package_is_too_long():
    half = "ü" * (_modules.MOST_PATH_BYTES // 2)
    assert _modules._bad_path(half) is None
    assert f"more than {_modules.MOST_PATH_BYTES} bytes" in _modules._bad_path(half + "b")


def test_no_path_in_a_package_has_controls():
    for letter in "\\\n\x7f\x9b\u061c\u200f\u2028\u202e\u2066":
        assert "direction" in _modules._bad_path(f"a{letter}b")
    assert _modules._bad_path("a/Grüße שלום.py") is None


def test_functions_of_a_module_that_is_run_import_their_siblings(run, tmp_path, platform):
    package = tmp_path / "app" / "inner"
    package.mkdir(parents=True)
    (tmp_path / "app" / "__init__.py").touch()
    (tmp_path / "app" / "top.py").write_text("VALUE = 2\n")
    (package / "__init__.py").touch()
    (package / "sibling.py").write_text("VALUE = 1\n")
    (package / "main.py").write_text(
        "import sublet\n"
        "from . import sibling\n"
        "from .. import top\n"
        "def f():\n"
        "    from . import sibling\n"
        "    from ..top import VALUE\n"
        "    return sibling.VALUE, VALUE\n"
        "def g():\n"
        "    return sibling.VALUE, top.VALUE\n"
        f"with sublet.Client({platform.managers!r}).lease(wait=30) as lease:\n"
        "    print(lease.call(f), lease.call(g), list(lease.map(lambda _: f(), range(2))))\n"
    )
    assert run(None, "-m", "app.inner.main")[0] == "(1, 2) (1, 2) [(1, 2), (1, 2)]\n"


def test_bytecode_without_source_is_sent(run, tmp_path):
    import py_compile

    (tmp_path / "folder").mkdir()
    for source in (tmp_path / "compiled.py", tmp_path / "folder" / "__init__.py"):
        source.write_text("def f():\n    return 7\n")
        py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
        source.unlink()
    printed, _ = run(
        "import compiled, folder\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(compiled.f), lease.call(folder.f))\n"
    )
    assert printed == "7 7\n"


def test_modules_of_one_user_are_named_where_they_are_missing(run, tmp_path):
    folder = subprocess.run(
        [sys.executable, "-c", "import site; print(site.getusersitepackages())"],
        env={**os.environ, "PYTHONUSERBASE": str(tmp_path / "base")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(folder).mkdir(parents=True)
    (Path(folder) / "of_user.py").write_text("def f():\n    return 1\n")
    (Path(folder) / "numpy_like.py").write_text("def f():\n    return 1\n")
    # In a virtual environment Python does not look there by itself.
    printed, _ = run(
        f"sys.path.append({folder!r})\n"
        "import of_user\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(abs, -2))\n"
        "    try:\n"
        "        lease.call(of_user.f)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n",
        PYTHONUSERBASE=str(tmp_path / "base"),
    )
    two, why = printed.splitlines()
    assert two == "2" and "it is of this user only" in why and "of_user.py" in why


def test_another_module_of_the_name_is_not_used_silently(run, tmp_path):
    # The worker's own Python has one, too; the caller's is too large.
    (tmp_path / "wave.py").write_text("def f():\n    return 1\n")
    printed, logged = run(
        "from sublet import _modules\n"
        "_modules.MOST_BYTES = 4000\n"
        "open('wave.py', 'a').write('#' * 5000)\n"
        "import wave\n"
        "with client.lease(wait=30) as lease:\n"
        "    print(lease.call(lambda: hasattr(__import__('wave'), 'f')))\n"
    )
    assert printed == "False\n"
    assert "workers use module wave of their own Python" in logged and "more than 4000 bytes" in logged


def test_paths_that_cannot_be_sent_are_refused(platform, tmp_path, monkeypatch):
    monkeypatch.setattr(_modules, "MOST_FILES", 3)
    for number in range(5):
        (tmp_path / f"m{number}.txt").touch()
    with pytest.raises(sublet.InvalidArgument, match=r"more than 3 files.*lease\(path="):
        platform.lease(path=tmp_path)


def test_warnings_are_escaped():
    with pytest.warns(UserWarning) as caught:
        _warning.warn("an import fails\x1b[2J\u202e")
    assert str(caught[0].message) == "an import fails\\x1b[2J\\u202e"
