"""Places whose working set is a few KiB, so that each operation takes many tiles."""

import pytest

import sublet

from .arrays import WORKING_BYTES


@pytest.fixture(scope="module", params=["shm", "tcp"])
def far(platform, request):
    """A place whose segments are so small that arrays lie in several."""
    with sublet.remote(client=platform, working_set=WORKING_BYTES, fabric=request.param, initial="16KiB", increment="64KiB") as far:
        yield far


@pytest.fixture
def elsewhere(platform):
    with sublet.remote(client=platform, working_set=WORKING_BYTES, fabric="tcp", initial="64KiB", increment="64KiB") as far:
        yield far
