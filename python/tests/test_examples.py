"""The examples, small: each finds the same as its local form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
# By default, Open MPI refuses to run as root.
OPEN_MPI = {name: "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")}


def run(name, *options, launcher=(sys.executable,), **environment):
    command = [*launcher, str(EXAMPLES / name), *options]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env={**os.environ, **environment}
    )


def figures(platform, name, *options, **more):
    """Returns what an example prints with `--json`, on the platform of all tests."""
    ended = run(name, *options, "--json", SUBLET_MANAGER=platform.managers, **more)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["equal"] is True
    return found


def test_calls_on_a_platform_of_its_own(monkeypatch):
    monkeypatch.delenv("SUBLET_MANAGER", raising=False)
    ended = run("calls.py", "--cores", "1", "--items", "100")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Hello, world!\nHELLO, WORLD!\nValueError: the name is empty\n")


def test_calls(platform):
    found = figures(platform, "calls.py", "--items", "1000")
    assert found["local_s"] > 0 and found["leased_s"] > 0 and found["call_s"] > 0


def test_monte_carlo(platform):
    pytest.importorskip("numpy")
    found = figures(platform, "monte_carlo.py", "--chunks", "10", "--points", "10000")
    assert abs(found["pi"] - 3.14159) < 0.05


def test_thumbnailer(platform):
    found = figures(platform, "thumbnailer.py", "--images", "3")
    for size, expected in (("97 kB", 97_000), ("3.6 MB", 3_600_000)):
        assert found["sizes"][size]["bytes"] == pytest.approx(expected, rel=0.1)


def test_density_on_a_platform_of_its_own(monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.delenv("SUBLET_MANAGER", raising=False)
    ended = run("density.py", "--first", "2", "--most", "4", "--rate", "4", "--seconds", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["first"]["instances"] == 2 and found["most"]["instances"] in (2, 3, 4)
    for of in found["first"], found["most"]:
        assert of["equal"] and of["p95_s"] > 0 and of["own_bytes"] > 1 << 20


def test_density_without_shared_cores(platform):
    pytest.importorskip("PIL")
    ended = run("density.py", "--first", "2", SUBLET_MANAGER=platform.managers)
    assert ended.returncode == 1 and "2 shared places of cpu" in ended.stderr, ended.stderr


def test_jacobi(platform):
    pytest.importorskip("numpy")
    found = figures(platform, "jacobi.py", "--unknowns", "300", "--iterations", "50")
    assert found["residual"] < 1e-12


def test_remote_array(platform):
    pytest.importorskip("numpy")
    found = figures(platform, "remote_array.py", "--rows", "200000", "--working-set", "1MiB")
    assert found["remote_bytes"] < 2 << 20 < found["local_bytes"]


def test_split_app(platform):
    pytest.importorskip("numpy")
    found = figures(platform, "split_app.py", "--rows", "5000", "--columns", "5", "--steps", "10")
    assert found["accuracy"] > 0.7
    memory = {used["component"]: used["used_bytes"] for used in found["components"] if not used["instances"]}
    assert memory["samples"] == 5000 * 5 * 8 and memory["weights"] == 5 * 8


def test_frames(platform):
    pytest.importorskip("polars")
    found = figures(platform, "frames.py", "--rows", "100000", "--partitions", "2")
    assert found["equal"] and {name: query["rows"] for name, query in found["queries"].items()}.items() >= {"by city": 11, "best items": 10}.items()


def test_resnet(platform):
    found = figures(platform, "resnet.py", "--cores", "1", "--images", "2", "--pixels", "64", "--repeat", "1")
    # All parameters of ResNet-50: the weights of the convolutions, of their normalizations, and of the last layer.
    assert found["parameters"] == 25_557_032


def test_resnet_says_how_to_install_what_it_needs(tmp_path):
    (tmp_path / "onnxruntime.py").write_text("raise ImportError\n")
    ended = run("resnet.py", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    assert "this example needs onnx and onnxruntime: pip install" in ended.stderr


@pytest.mark.parametrize("options", [["multiply", "--size", "200"], ["jacobi", "--size", "201", "--iterations", "20"]])
def test_mpi_offload(platform, options):
    launcher = ["mpiexec", "-n", "2", "--bind-to", "none", sys.executable, "-m", "mpi4py"]
    found = figures(platform, "mpi_offload.py", *options, "--repeat", "3", launcher=launcher, **OPEN_MPI)
    assert found["ranks"] == 2
