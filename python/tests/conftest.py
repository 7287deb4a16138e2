"""One platform for all tests, as `pip install sublet` brings it: on this machine's cores, with this interpreter."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sublet

ROOT = Path(__file__).resolve().parent.parent.parent
# Tests import what is beside them.
sys.path.insert(0, str(Path(__file__).resolve().parent))

# A shell that runs the tests in the background lets them ignore this signal, and their programs would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Patterns of the reasons for which tests skip, and whether this machine lacks what they need.
_LACKS = [
    (r"could not import '(\w+)", lambda name: importlib.util.find_spec(name) is None),
    (r"no patch", lambda: shutil.which("patch") is None),
    (r"no C compiler", lambda: shutil.which("cc") is None),
    (r"no redis-server", lambda: not any(map(shutil.which, ("redis-server", "redis-check-rdb")))),
    (r"no network namespaces", lambda: not _makes_network_namespaces()),
    (r"(/dev/fuse)", lambda path: not os.access(path, os.R_OK | os.W_OK)),
    (r"(/dev/userfaultfd)", lambda path: not os.access(path, os.R_OK | os.W_OK)),
    (r"needs root", lambda: os.getuid() != 0),
    (r"it forks", lambda: sys.platform != "linux"),
    (r"this pyarrow is built without (\w+)", lambda name: not _has_allocator(name)),
]


def _has_allocator(name):
    return importlib.util.find_spec("pyarrow") is not None and name in importlib.import_module("pyarrow").supported_memory_backends()


def _makes_network_namespaces():
    rights = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    made = subprocess.run(["unshare", *rights, "--net", "--mount", "true"], check=False, capture_output=True)
    return made.returncode == 0


def _is_excused(reason):
    """Whether a test was skipped for want of something that this machine lacks."""
    matches = ((re.search(pattern, reason), lacks) for pattern, lacks in _LACKS)
    return any(found and lacks(*found.groups()) for found, lacks in matches)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Fails a test that skips with `CI=true` on a machine that has what it needs."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not _is_excused(reason):
            report.outcome, report.longrepr = "failed", f"skipped with CI=true, on a machine that has the means: {reason}"
    return report


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Sublet's command, library and headers, as `make install` puts them."""
    prefix = tmp_path_factory.mktemp("installed") / "prefix"
    subprocess.run([ROOT / "scripts/install.sh", prefix], check=True)
    return prefix


@pytest.fixture(scope="session")
def platform():
    with sublet.local(memory="8GiB", listen="127.0.0.1:0") as client:
        yield client


@pytest.fixture
def default(platform):
    """The platform's client is the default one."""
    before = sublet.set_default(platform)
    yield
    sublet.set_default(before)


@pytest.fixture
def lease(platform):
    with platform.lease(wait=60) as lease:
        yield lease


@pytest.fixture
def executor(platform):
    with sublet.Executor(2, client=platform, wait=60) as executor:
        yield executor
