"""Tests that skip: with `CI=true` they fail on a machine that has what they need."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

def test_skips_without_a_reason():
    pytest.skip("no time")

def test_skips_for_want_of_what_is_here():
    pytest.importorskip("pytest", minversion="99")

def test_skips_for_want_of_a_module():
    pytest.importorskip("no_such_module")

def test_skips_for_want_of_an_allocator():
    pytest.skip("this pyarrow is built without nosuchmalloc")
"""


def test_fail_in_ci_unless_the_machine_lacks_the_means(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    for ci, counts in [("true", "2 failed, 2 skipped"), ("", "4 skipped")]:
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "CI": ci}, capture_output=True, text=True)
        assert counts in done.stdout, done.stdout + done.stderr
