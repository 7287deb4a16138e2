"""The use cases in C, C++ and Fortran under MPI, and all use cases with leased cores on another node, in small sizes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sublet

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# By default, Open MPI refuses to run as root.
OPEN_MPI = {name: "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")}


@pytest.fixture(scope="module")
def programs(installed, tmp_path_factory):
    """The folder of the MPI programs and their functions, compiled as README.md says."""
    build = tmp_path_factory.mktemp("mpi")
    flags = [f"{name}={flags} -Werror" for name, flags in (("CFLAGS", "-O3"), ("CXXFLAGS", "-O2"), ("FFLAGS", "-O3"))]
    command = ["make", f"--directory={EXAMPLES / 'mpi'}", f"PREFIX={installed}", f"BUILD={build}", *flags]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    return build


def mpirun(platform, ranks, *command, **environment):
    command = ["mpirun", "-n", str(ranks), "--bind-to", "none", *map(str, command)]
    environment = {**os.environ, **OPEN_MPI, "SUBLET_MANAGER": platform.managers, **environment}
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("program", "library"),
    [
        ("multiply", "libkernels.so"),
        ("jacobi", "libkernels.so"),
        ("multiply_fortran", "libkernels_fortran.so"),
        ("jacobi_fortran", "libkernels_fortran.so"),
        # A program does not see in which language a function is.
        ("multiply_fortran", "libkernels.so"),
        ("jacobi_fortran", "libkernels.so"),
    ],
)
def test_ranks_that_offload_compute_what_one_process_does(platform, programs, program, library, fabric):
    # No number of rows here is a multiple of the ranks' cores.
    options = ["--size", "203", "--iterations", "20", "--repeat", "3", "--json"]
    ended = mpirun(platform, 2, programs / program, "--library", programs / library, *options, SUBLET_FABRIC=fabric)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert found["ranks"] == 2 and found["local_s"] > 0 and found["leased_s"] > 0
    # Fortran's compiler may add in another order than C's.
    assert found["largest_difference"] < 1e-12


@pytest.mark.parametrize("program", ["multiply", "jacobi", "multiply_fortran", "jacobi_fortran"])
def test_ranks_end_together_with_an_error(platform, programs, program):
    missing = mpirun(platform, 2, programs / program, "--library", "/nowhere/libkernels.so", "--size", "20")
    assert missing.returncode == 10, missing.stdout + missing.stderr
    assert "invalid_argument: " in missing.stderr and "/nowhere/libkernels.so" in missing.stderr
    refused = mpirun(platform, 2, programs / program, "--size", "-3")
    assert refused.returncode == 2 and "--size must be a number from 1 to 1000000, not -3" in refused.stderr, refused.stderr


@pytest.mark.parametrize("library", ["libkernels.so", "libkernels_fortran.so"])
def test_functions_of_ranks_refuse_wrong_input(platform, programs, library):
    def doubles(*values):
        return sublet.array([float(value) for value in values])

    with platform.lease(package=programs / library, wait=60) as lease:
        for function, given, out, said in [
            ("multiply", doubles(1), 8, "does not begin with the sizes"),
            ("multiply", doubles(-1, 2, 2, 0), 8, "sizes of the matrices"),
            ("multiply", doubles(1, 2, 2, 0), 8, "does not have the matrices whose sizes it states"),
            ("multiply", doubles(1, 1, 2, 0, 0, 0), 8, "the output is too small for the product"),
            ("improve", doubles(1), 8, "this worker keeps no matrix; call keep first"),
            ("keep", doubles(1), 8, "does not begin with the sizes"),
            ("keep", doubles(2, 1, 2, 0, 0, 0), 8, "does not have the rows whose number it states"),
        ]:
            with pytest.raises(sublet.FunctionFailed, match=said):
                lease.call(function, given, out=out)
        # One row of two unknowns: 4 x + y = 6, from (1, 1) on.
        lease.call("keep", doubles(2, 1, 0, 6, 4, 1), out=8)
        with pytest.raises(sublet.FunctionFailed, match="the vectors do not fit the matrix that this worker keeps"):
            lease.call("improve", doubles(1), out=8)
        assert bytes(lease.call("improve", doubles(1, 1), out=8)) == bytes(doubles(1.25))


def test_use_cases_with_leased_cores_on_another_node(installed, programs):
    command = [sys.executable, EXAMPLES / "use_cases.py", "--quick", "--json", "--prefix", installed, "--build", programs]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    if ended.stderr.startswith("no network namespaces can be made here"):
        pytest.skip(ended.stderr.strip())
    # The program itself compares each result with the one of a single process.
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert sorted(found) == sorted([
        "thumbnailer-small", "thumbnailer-large", "resnet", "blackscholes",
        "multiply-cpp", "multiply-fortran", "multiply-python", "jacobi-cpp", "jacobi-fortran", "jacobi-python",
    ])  # fmt: skip
    for name, figures in found.items():
        assert figures["one_s"] > 0 and figures["two_s"] > 0 and figures["both_s"] > 0, name


def test_table_has_every_use_case(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import use_cases

    written = (EXAMPLES / "README.md").read_text().split(use_cases.BEGIN)[1].split(use_cases.END)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines() if line.startswith("|")]
    cases = use_cases.use_cases("build")
    assert [row[0] for row in rows[2:]] == [f"{case.title}: {case.work}" for case in cases], "python examples/use_cases.py --write"
    for case, (_, one, two, leased, both, speedup) in zip(cases, rows[2:]):
        assert all(re.fullmatch(r"[0-9]+\.[0-9]{3} s", time) for time in (one, two, both)), case.name
        assert bool(leased) != case.ranks and float(speedup) > 0, case.name


def test_use_cases_refuse_an_unknown_name(installed):
    command = [sys.executable, EXAMPLES / "use_cases.py", "--case", "sorting", "--prefix", installed]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 2 and "there is no use case sorting; there are thumbnailer-small, " in ended.stderr
