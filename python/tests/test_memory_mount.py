"""Programs that spill to files in a folder of leased memory."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Rows of the table that is sorted: several times more bytes than the memory that the database has.
ROWS = 6_000_000
QUERY = """
SELECT count(*), sum(hash(place, key, text) % 1000003), min(key), max(key)
FROM (SELECT row_number() OVER (ORDER BY key, text) AS place, key, text FROM numbers)
"""
TABLE = f"""
CREATE TABLE numbers AS
SELECT hash(i) AS key, concat('text ', hash(i + 1), ' of row ', i) AS text FROM range({ROWS}) AS rows(i)
"""


@contextlib.contextmanager
def mounted(platform, folder, *options):
    """A mounted folder; its report when it has ended."""
    folder.mkdir()
    command = [Path(sys.executable).parent / "sublet", "memory", "mount", "--json", folder, *options]
    environment = dict(os.environ, SUBLET_MANAGER=platform.managers)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ready = process.stdout.readline()
    assert ready, process.communicate()[1]
    report = {}
    try:
        yield report
    finally:
        process.terminate()
        output, errors = process.communicate()
    assert process.returncode == 0, errors
    report.update(json.loads(output))


@pytest.fixture
def duckdb():
    module = pytest.importorskip("duckdb")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse")
    if os.getuid() != 0:
        pytest.skip("needs root")
    return module


def test_a_database_sorts_in_the_folder_as_in_memory(duckdb, platform, tmp_path):
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute(TABLE)
        expected = connection.execute(QUERY).fetchall()
    with mounted(platform, tmp_path / "spill", "--limit", "4GiB") as report:
        settings = {"threads": 2, "memory_limit": "300MB", "temp_directory": str(tmp_path / "spill")}
        with duckdb.connect(config=settings) as connection:
            connection.execute(TABLE)
            found = connection.execute(QUERY).fetchall()
            (spilled,) = connection.execute("SELECT coalesce(sum(size), 0) FROM duckdb_temporary_files()").fetchone()
    assert found == expected
    assert spilled > 0, "the database has written nothing to the folder"
    assert report["leases"] > 0 and report["total_nano"] > 0, report


def test_a_full_folder_is_an_error_of_the_query(duckdb, platform, tmp_path):
    with mounted(platform, tmp_path / "spill", "--limit", "64MiB"):
        settings = {"threads": 2, "memory_limit": "200MB", "temp_directory": str(tmp_path / "spill")}
        with duckdb.connect(config=settings) as connection, pytest.raises(duckdb.Error):
            connection.execute(TABLE)
            connection.execute(QUERY).fetchall()
