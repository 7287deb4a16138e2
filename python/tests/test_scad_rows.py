"""The rows of the evaluation in examples/scad, small: each runs beside its peers, and measures something."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "examples" / "scad" / "run"


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


def test_unknown_rows_are_named(platform):
    pytest.importorskip("numpy")
    ended = run(platform, "sorting")
    assert ended.returncode == 2 and "there is no row 'sorting': there are regression, reduce" in ended.stderr
