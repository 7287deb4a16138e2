"""The rows of the evaluation in examples/scad, small: each runs beside its peers, and measures something."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "examples" / "scad" / "run"
MB = 1_000_000
# Prints what a process that the rows compare with needs, by the size of what it allocates.
MEMORY_OF_PEERS = f"""
import measuring

if __name__ == "__main__":
    for size in (0, {64 * MB}):
        print(measuring.alone(bytearray, size)["data_bytes"])
"""


def run(platform, *words):
    environment = {**os.environ, "SUBLET_MANAGER": platform.managers}
    return subprocess.run([sys.executable, RUN, "--small", *words], check=False, capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.parametrize(
    ("row", "peers"),
    [
        ("regression", {"one process"}),
        ("reduce", {"Redis", "Redis with memory by core"}),
        ("growth", {"its peak for the whole time"}),
        ("techniques", set()),
        ("warm", {"a process each"}),
        ("pairs", {"memory on one other node", "Redis"}),
    ],
)
def test_row_is_measured_beside_its_peers(platform, row, peers):
    pytest.importorskip("numpy")
    # Debian's redis-tools have the server under the second name.
    if "Redis" in peers and not any(map(shutil.which, ("redis-server", "redis-check-rdb"))):
        pytest.skip("no redis-server")
    ended = run(platform, row, "--json")
    assert ended.returncode == 0, ended.stderr
    records = json.loads(ended.stdout)
    assert {record["row"] for record in records} == {row}
    assert {peer for record in records for peer in record.get("peers", {})} == peers
    for record in records:
        assert record["bench"] == "scad" and record["measure"] and record["case"]
        assert isinstance(record["sublet"], float), record
        if "used" in record["measure"]:
            assert 0 < record["sublet"] <= 1, record


def test_data_of_a_peer_are_what_it_allocates(tmp_path):
    program = tmp_path / "peers.py"
    program.write_text(MEMORY_OF_PEERS)
    environment = {**os.environ, "PYTHONPATH": str(RUN.parent)}
    ended = subprocess.run([sys.executable, program], check=False, capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 0, ended.stderr
    nothing, data = map(int, ended.stdout.split())
    # The interpreter and its libraries, which the process shares with this one, have more.
    assert nothing < 4 * MB
    assert 60 * MB < data < 72 * MB


def test_unknown_rows_are_named(platform):
    pytest.importorskip("numpy")
    ended = run(platform, "sorting")
    assert ended.returncode == 2 and "there is no row 'sorting': there are regression, reduce" in ended.stderr
