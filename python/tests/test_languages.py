"""Functions and clients in every language: `hello` prints the same in each, and errors have the same codes and messages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sublet
from waiting import until

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES, TESTS = ROOT / "examples", ROOT / "tests"
# Output of hello in each language.
EXPECTED = (TESTS / "capi/hello.expected").read_text()
# Programs that cargo has built.
BUILT = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / os.environ.get("SUBLET_PROFILE", "release")
FORTRAN = ["gfortran", "-std=f2018", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unused-dummy-argument", "-Wno-compare-reals"]
SHARED = ["-shared", "-fPIC", "-frecursive"]
# Memory of a lease for functions in Go, whose runtime maps 64 MiB before it has allocated anything.
GO_MEMORY = "256MiB"


def build(command, folder, **environment):
    """Compiles something in a folder of its own, where gfortran puts compiled modules."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [str(part) for part in command]
    built = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr


class Compilers:
    """Compiles programs and functions as the guides say, each once, against an installed Sublet."""

    def __init__(self, prefix, folder):
        self._folder, self._include = folder, prefix / "include"
        self._packages = {"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        flags = ["pkg-config", "--libs", "sublet"]
        libraries = subprocess.run(flags, env={**os.environ, **self._packages}, capture_output=True, text=True, check=True)
        self._libraries = libraries.stdout.split()
        self._built = {}

    def program(self, name, language):
        """The client `hello`, or another program, in a language: its command."""
        return self._once(f"{name}-{language}", getattr(self, f"_{language}_program"), name)

    def functions(self, name, language):
        """The functions of a name in a language: the path of a shared object."""
        return self._once(f"{name}-functions-{language}", getattr(self, f"_{language}_functions"), name)

    def _once(self, name, make, what):
        if name not in self._built:
            self._built[name] = make(what, self._folder / name)
        return self._built[name]

    def _c_program(self, name, folder):
        build(["cc", f"-I{self._include}", EXAMPLES / f"c/{name}.c", *self._libraries, "-o", name], folder)
        return [folder / name]

    def _cpp_program(self, name, folder):
        build(["c++", "-std=c++17", f"-I{self._include}", EXAMPLES / f"cpp/{name}.cpp", *self._libraries, "-o", name], folder)
        return [folder / name]

    def _rust_program(self, name, _folder):
        return [BUILT / name]

    def _python_program(self, name, _folder):
        return [sys.executable, EXAMPLES / f"python/{name}.py"]

    def _fortran_program(self, name, folder):
        sources = {
            "hello": [EXAMPLES / "fortran/hello.f90"],
            "jacobi": [
                self._include / "sublet_function.f90",
                EXAMPLES / "fortran/jacobi_functions.f90",
                EXAMPLES / "fortran/jacobi.f90",
            ],
            "client": [TESTS / "fortran/client.f90"],
        }
        build([*FORTRAN, self._include / "sublet.f90", *sources[name], *self._libraries, "-o", name], folder)
        return [folder / name]

    def _go_program(self, name, folder):
        # Go's build cache remembers what pkg-config has answered; the flags tell this installation from others.
        flags = {"CGO_CFLAGS": f"-I{self._include}", **self._packages}
        build(["go", "build", "-o", folder / name, "."], EXAMPLES / "go", **flags)
        return [folder / name]

    def _c_functions(self, name, folder):
        library = folder / f"lib{name}.so"
        build(["cc", "-O2", "-shared", "-fPIC", f"-I{self._include}", EXAMPLES / f"functions/{name}.c", "-o", library], folder)
        return library

    def _rust_functions(self, name, _folder):
        return BUILT / f"lib{name}.so"

    def _fortran_functions(self, name, folder):
        sources = {
            "hello": EXAMPLES / "functions/hello.f90",
            "jacobi": EXAMPLES / "fortran/jacobi_functions.f90",
            "functions": TESTS / "fortran/functions.f90",
        }
        library = folder / f"lib{name}.so"
        checks = ["-fcheck=bounds"] if name == "functions" else []
        build([*FORTRAN, *SHARED, *checks, self._include / "sublet_function.f90", sources[name], "-o", library], folder)
        return library

    def _go_functions(self, name, folder):
        source = {"hello": EXAMPLES / "functions/go", "functions": TESTS / "go"}[name]
        library = folder / f"lib{name}.so"
        exported = f"-ldflags=-extldflags=-Wl,--version-script={source}/functions.map"
        build(
            ["go", "build", "-buildmode=c-shared", exported, "-o", library, "."], source, CGO_CFLAGS=f"-I{self._include}"
        )
        library.with_suffix(".h").unlink()
        return library


@pytest.fixture(scope="module")
def compilers(installed, tmp_path_factory):
    for program in ("cc", "gfortran", "go"):
        assert shutil.which(program), f"{program} is missing: scripts/setup.sh test installs it"
    return Compilers(installed, tmp_path_factory.mktemp("languages"))


def run(platform, command, *options):
    environment = {**os.environ, "SUBLET_MANAGER": platform.managers}
    command = [str(part) for part in (*command, *options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


@pytest.mark.parametrize("language", ["c", "cpp", "rust", "python", "fortran", "go"])
def test_hello_prints_the_same_in_every_language(platform, compilers, language):
    ended = run(platform, compilers.program("hello", language), compilers.functions("hello", "c"))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, EXPECTED, "")


@pytest.mark.parametrize("language", ["rust", "fortran", "go"])
def test_functions_of_hello_are_the_same_in_every_language(platform, compilers, language):
    ended = run(platform, compilers.program("hello", "c"), compilers.functions("hello", language))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, EXPECTED, "")


def test_functions_of_hello_are_the_same_in_nodejs(compilers, tmp_path):
    with sublet.local(1, node=shutil.which("node")) as platform:
        for language in ("c", "python"):
            ended = run(platform, compilers.program("hello", language), EXAMPLES / "functions/nodejs")
            assert (ended.returncode, ended.stdout, ended.stderr) == (0, EXPECTED, "")


@pytest.mark.parametrize("language", ["c", "cpp", "rust", "python", "fortran", "go"])
def test_hello_exits_with_the_number_of_an_error(platform, compilers, language, tmp_path):
    missing = tmp_path / "libmissing.so"
    ended = run(platform, compilers.program("hello", language), missing)
    assert ended.returncode == 10, ended.stderr
    assert ended.stdout == "" and ended.stderr.startswith("invalid_argument: ") and "libmissing.so" in ended.stderr


def test_jacobi_in_fortran_agrees_with_its_serial_form(platform, compilers):
    command, library = compilers.program("jacobi", "fortran"), compilers.functions("jacobi", "fortran")
    ended = run(platform, command, library, "2", "200", "50")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("50 iterations of 200 unknowns; residual ")
    refused = run(platform, command, library, "2", "none")
    assert (refused.returncode, refused.stderr) == (2, "jacobi: not a positive number: none\n")


def test_functions_of_jacobi_refuse_input_of_another_form(platform, compilers):
    with platform.lease(package=compilers.functions("jacobi", "fortran"), wait=60) as lease:
        with pytest.raises(sublet.FunctionFailed, match="the input has no header"):
            lease.call("improve", bytes(16), out=64)
        with pytest.raises(sublet.FunctionFailed, match="rows 0 to -1 of 0 do not fit the call"):
            lease.call("improve", bytes(64), out=64)


def test_client_in_fortran(platform, compilers):
    ended = run(platform, compilers.program("client", "fortran"), compilers.functions("functions", "fortran"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" ... ok\n") == 8


@pytest.mark.parametrize(
    ("mode", "status", "said"),
    [
        ("unhandled", 11, "unknown_function: "),
        ("parts", 1, "sublet_bytes: the array is not contiguous; pass a copy of it"),
        ("copied_invoker", 1, "a sublet_invoker cannot be copied"),
        ("copied_call", 1, "a sublet_invocation cannot be copied"),
    ],
)
def test_errors_in_fortran_end_the_program(platform, compilers, mode, status, said):
    ended = run(platform, compilers.program("client", "fortran"), compilers.functions("functions", "fortran"), mode)
    assert ended.returncode == status and said in ended.stderr, ended.stderr


@pytest.fixture
def go(platform, compilers):
    library = compilers.functions("functions", "go")
    with platform.lease(2, package=library, memory=GO_MEMORY, wait=60) as lease:
        yield lease


def number(value):
    return value.to_bytes(8, "little")


def test_functions_in_go_use_goroutines_and_collect_memory(go):
    assert set(go.functions) == {
        "echo", "fails", "panics", "nil_pointer", "gone", "elsewhere", "sums", "memory", "processors"
    }  # fmt: skip
    assert go.call("echo", b"hello", out=64) == b"hello"
    sums = [go.options(worker=worker).submit("sums", number(1000), out=8) for worker in (0, 1) for _ in range(20)]
    assert {future.result() for future in sums} == {number(500_500)}
    for _ in range(8):
        assert go.call("memory", number(32), out=8) == number(32)


def test_errors_and_panics_in_go_end_only_their_call(go):
    for function, given, said in [
        ("fails", b"not today", "libfunctions/fails failed: not today"),
        ("panics", b"", "libfunctions/panics failed: panicked: runtime error: index out of range [8] with length 8"),
        ("nil_pointer", b"", "nil_pointer failed: panicked: runtime error: invalid memory address or nil pointer dereference"),
    ]:
        with pytest.raises(sublet.FunctionFailed) as failed:
            go.call(function, given, out=8)
        assert said in str(failed.value)
    assert go.call("echo", b"still here", out=64) == b"still here"


@pytest.mark.parametrize(
    ("function", "said"), [("gone", "panic: no further"), ("elsewhere", "panic: nothing recovers here")]
)
def test_panics_in_go_that_are_not_recovered_end_the_worker(platform, go, function, said):
    with pytest.raises(sublet.WorkerDied):
        go.call(function, b"", out=8)
    assert_logs(platform, go, said)
    assert go.call("echo", b"again", out=64) == b"again"


def test_functions_in_go_need_memory_for_their_runtime(platform, compilers):
    library = compilers.functions("functions", "go")
    with pytest.raises(sublet.Error), platform.lease(package=library, memory="16MiB", wait=60) as lease:
        lease.call("echo", b"x", out=8)


def test_error_stop_in_fortran_ends_the_worker_with_its_text_in_the_log(platform, compilers):
    with platform.lease(package=compilers.functions("functions", "fortran"), wait=60) as lease:
        with pytest.raises(sublet.WorkerDied, match="status 1"):
            lease.call("give_up", b"", out=8)
        assert_logs(platform, lease, "ERROR STOP no further")


def assert_logs(platform, lease, text):
    """The output of a lease's functions has a text, or has it soon."""
    state = Path(platform.managers.removeprefix("unix:")).parent
    command = [Path(sys.executable).parent / "sublet", "logs", lease.leases[0]["id"], "--state", state]
    until(lambda: text in run(platform, command).stdout, f"{text!r} is in the log")
