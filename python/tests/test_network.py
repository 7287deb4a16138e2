"""Calls that a network carries: they mean the same, but for what is shared."""

import numpy
import pytest

import sublet


@pytest.fixture(params=["tcp", "tcp+tls"])
def far(platform, request):
    with platform.lease(fabric=request.param, memory="256MiB", wait=60) as lease:
        assert lease.fabrics == [request.param]
        yield lease


def test_calls_and_maps(far):
    assert far.call(pow, 2, 10) == 1024
    assert list(far.map(lambda n: n + 1, range(1000))) == list(range(1, 1001))
    with pytest.raises(ZeroDivisionError):
        far.call(lambda: 1 / 0)


def test_arrays_are_sent_and_come_back(far):
    for size in (0, 1, 5000, 1 << 20, 8 << 20):
        back = far.call(lambda array: array, numpy.arange(size, dtype="u1"))
        assert numpy.array_equal(back, numpy.arange(size, dtype="u1"))


def test_a_registered_array_is_sent_too_and_stays_as_it_was(far):
    array = sublet.zeros(1000)

    def fill(array):
        array.fill(1)
        return array

    assert far.call(fill, array).all()
    assert not array.any(), "what the function changed was its copy"


def test_much_registered_memory_here_takes_none_of_the_lease_there(platform):
    array = sublet.zeros(512 << 20, dtype="u1")
    with platform.lease(fabric="tcp", memory="64MiB", wait=60) as lease:
        assert lease.call(len, array[:1000]) == 1000
