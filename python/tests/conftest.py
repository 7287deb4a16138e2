"""One platform for all tests, as `pip install sublet` brings it: on this machine's cores, with this interpreter."""

import pytest

import sublet


@pytest.fixture(scope="session")
def platform():
    with sublet.local(memory="8GiB", listen="127.0.0.1:0") as client:
        yield client


@pytest.fixture
def lease(platform):
    with platform.lease(wait=60) as lease:
        yield lease


@pytest.fixture
def executor(platform):
    with sublet.Executor(2, client=platform, wait=60) as executor:
        yield executor
