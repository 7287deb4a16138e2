"""Tests how much memory calls reserve for their replies."""

import numpy
import pytest

from sublet._calls import ROOM, SMALL_REPLIES

LARGE = 24_000_000


def made(size):
    return numpy.full(size // 8, 2.0)


def text(size):
    return b"x" * size


def capacity(lease, function):
    return lease._functions.known(function).room


@pytest.mark.parametrize("function", [made, text])
def test_capacity_grows_with_a_large_reply_and_shrinks_after_small_ones(lease, function):
    lease.call(function, 8192)
    assert capacity(lease, function) == ROOM
    large = lease.call(function, LARGE)
    assert capacity(lease, function) > LARGE
    small = [lease.call(function, 8192) for _ in range(SMALL_REPLIES)]
    assert capacity(lease, function) == ROOM
    # A reply that exceeds the capacity again comes back whole, and disturbs none before it.
    assert lease.call(function, LARGE)[-1] == large[0] and len(large) * (LARGE // len(large)) == LARGE
    assert all(len(reply) == len(function(8192)) and reply[-1] == large[0] for reply in small)


def test_capacity_stays_while_replies_need_it(lease):
    lease.call(text, LARGE)
    for _ in range(SMALL_REPLIES):
        for size in (8192, LARGE, LARGE // 2):
            assert len(lease.call(text, size)) == size
            assert capacity(lease, text) > LARGE
    # It shrinks to what the latest replies needed.
    for size in (1_000_000, *[100_000] * SMALL_REPLIES):
        lease.call(text, size)
    assert 1_000_000 < capacity(lease, text) < 2_000_000


def test_capacity_shrinks_in_maps(lease):
    assert sum(map(len, lease.map(text, [LARGE, *[100] * 1000], chunksize=10))) == LARGE + 100_000
    assert capacity(lease, text) == ROOM
