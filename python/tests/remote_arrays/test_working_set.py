"""Tests how much of an array is in this process at a time."""

import os
import tracemalloc

import numpy
import pytest

import sublet

from .arrays import KIB


class Probe:
    """Counts the bytes that are asked for, and how many of them are on their way at once."""

    def __init__(self, monkeypatch):
        self.largest = self.most = self.total = self._now = 0
        begin, probe = sublet.Memory.read_async, self

        class Reading:
            def __init__(self, reading, nbytes):
                self._reading, self._nbytes = reading, nbytes

            def result(self):
                probe._now -= self._nbytes
                return self._reading.result()

        def read_async(memory, offset, nbytes):
            probe._now += nbytes
            probe.total += nbytes
            probe.largest, probe.most = max(probe.largest, nbytes), max(probe.most, probe._now)
            return Reading(begin(memory, offset, nbytes), nbytes)

        monkeypatch.setattr(sublet.Memory, "read_async", read_async)


def peak_bytes(use, *arrays):
    """The largest amount of memory that Python has for what it allocates in a call."""
    tracemalloc.start()
    try:
        use(*arrays)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def saved(array):
    with open(os.devnull, "wb") as file:
        numpy.save(file, array)


@pytest.mark.parametrize(
    "use",
    [
        lambda a, b: a + b,
        lambda a, b: a.sum(),
        lambda a, b: numpy.add(a, b, out=b),
        lambda a, b: a.reshape(256, 256) + b.reshape(256, 256).T,
        lambda a, b: a.reshape(256, 256)[:, 3].max(),
        lambda a, b: a.reshape(256, 256).std(axis=0),
        lambda a, b: a.reshape(256, 256)[:128] @ b.reshape(256, 256),
        lambda a, b: numpy.sort(a),
        lambda a, b: numpy.argsort(a[:30_000]),
        lambda a, b: a[a > 0.5],
        lambda a, b: numpy.cumsum(a),
        # Its results are eight times as large.
        lambda a, b: numpy.cumsum(a.view("u1")),
        lambda a, b: a[(b[:20_000] * 1000).astype(int)],
        lambda a, b: numpy.histogram(a, 50),
        lambda a, b: a.reshape(256, 256)[(b[:6000] * 256).astype(int), (b[6000:12000] * 256).astype(int)],
        lambda a, b: numpy.take_along_axis(a[:20_000].reshape(80, 250), (b[:20_000] * 250).astype(int).reshape(80, 250), 1),
        lambda a, b: numpy.unique((a[:20_000] * 99).astype(int), return_inverse=True),
        lambda a, b: numpy.quantile(a.reshape(256, 256), [0.3], axis=0),
        lambda a, b: numpy.einsum("ij,kj->ik", a.reshape(256, 256)[:64], b.reshape(256, 256)[:64]),
        lambda a, b: numpy.tensordot(a.reshape(64, 32, 32), b.reshape(32, 32, 64), 2),
        lambda a, b: numpy.cov(a.reshape(64, 1024)),
        lambda a, b: numpy.gradient(a.reshape(256, 256), axis=0, edge_order=2),
        lambda a, b: numpy.pad(a.reshape(256, 256), 9, "reflect"),
        lambda a, b: numpy.triu(a.reshape(256, 256)),
        lambda a, b: numpy.nanstd(a.reshape(256, 256), axis=1),
        lambda a, b: saved(a),
    ],
    ids=(
        *"add sum in-place transposed column std matmul sort argsort mask cumsum cumsum-of-bytes take histogram".split(),
        *"indices take_along_axis unique quantile einsum tensordot cov gradient pad triu nanstd save".split(),
    ),
)
def test_a_working_set_bounds_what_is_here(platform, monkeypatch, use):
    working_bytes = 128 * KIB
    with sublet.remote(client=platform, working_set=working_bytes, fabric="tcp") as far:
        rng = numpy.random.default_rng(5)
        a, b = far.asarray(rng.random(1 << 16)), far.asarray(rng.random(1 << 16))
        use(a, b)
        probe = Probe(monkeypatch)
        # Tables of the interpreter itself grow now and then, during one of two calls at most.
        bound = 1.25 * working_bytes + 64 * KIB
        peaks = [peak_bytes(use, a, b)]
        if peaks[0] > bound:
            peaks.append(peak_bytes(use, a, b))
        assert probe.total > 0, "it reads what it works on"
        assert probe.most <= working_bytes
        assert min(peaks) <= bound, "Python's own objects included"


def test_the_next_tile_is_asked_for_before_one_is_used(elsewhere, monkeypatch):
    a = elsewhere.ones(4000)
    probe = Probe(monkeypatch)
    numpy.add.reduce(a)
    assert probe.most > probe.largest


def test_arrays_on_this_machine_are_used_in_their_place(platform, monkeypatch):
    with sublet.remote(client=platform, fabric="shm") as far:
        a = far.arange(100_000.0)
        probe = Probe(monkeypatch)
        assert (a * 2 + 1).sum() == 2 * numpy.arange(100_000.0).sum() + 100_000
        assert probe.total == 0
