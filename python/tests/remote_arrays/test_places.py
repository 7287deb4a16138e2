"""Places: how arrays are made, and their memory."""

import contextlib
import copy
import gc
import os
import pickle
import random
import subprocess
import sys

import numpy
import pytest

import sublet

from .arrays import MASK, TABLE, WORDS, WORKING_BYTES


def test_places_make_arrays(far):
    for make in (
        lambda n: n.zeros((30, 40), "i4"),
        lambda n: n.ones(700, order="F"),
        lambda n: n.full((9, 99), 2.5),
        lambda n: n.full((9, 3), [1, 2, 3]),
        lambda n: n.arange(3000),
        lambda n: n.arange(3, 900, 7),
        lambda n: n.arange(900, 3, -0.7),
        lambda n: n.arange(5, dtype="f4"),
        lambda n: n.arange(5, 5),
        lambda n: n.linspace(0, 1, 1000),
        lambda n: n.linspace(5, -3, 33, endpoint=False),
        lambda n: n.array([[1, 2], [3, 4]]),
        lambda n: n.asarray(WORDS),
        lambda n: n.zeros(()),
        lambda n: n.zeros((0, 5)),
    ):
        made, expected = make(far), make(numpy)
        assert type(made) is sublet.RemoteArray and (made.dtype, made.shape) == (expected.dtype, expected.shape)
        numpy.testing.assert_array_equal(numpy.asarray(made), expected)
    a = far.asarray(TABLE)
    assert far.asarray(a) is a and far.array(a) is not a
    assert far.empty(5).shape == (5,) and type(numpy.zeros(9, like=a)) is type(numpy.full(9, 2, like=a)) is sublet.RemoteArray
    assert repr(a) == "<remote array of shape (31, 43), float64>"
    assert (a.nbytes, a.size, a.ndim, a.itemsize, a.strides) == (TABLE.nbytes, TABLE.size, 2, 8, TABLE.strides)
    assert a.tolist() == TABLE.tolist() and a.tobytes() == TABLE.tobytes() and float(a[:1, :1]) == TABLE[0, 0]
    assert TABLE[3, 3] in a and 99.0 not in a and (copy.deepcopy(a) == a).all()


def test_what_is_not_there_says_so(far):
    a = far.asarray(TABLE)
    for use, name in (
        (lambda: numpy.linalg.svd(a), "numpy.linalg.svd is not there for remote arrays: numpy.asarray"),
        (lambda: numpy.kron(a, a), "numpy.kron"),
        (lambda: numpy.subtract.reduce(a), "subtract.reduce"),
        (lambda: numpy.add.reduceat(a, [0, 5]), "add.reduceat"),
        (lambda: numpy.sort(a, order="x"), "order="),
        (lambda: numpy.quantile(a, 0.5, method="lower"), "linear"),
        (lambda: pickle.dumps(a), "of the process that made it"),
        (lambda: far.zeros(3, object), "objects cannot be remote"),
        (lambda: far.asarray([None]), "objects cannot be remote"),
        (lambda: a + None, "dtype object"),
        (lambda: a + numpy.ma.masked_array(TABLE, MASK), "NotImplemented"),
        (lambda: sublet.remote("text"), "not str"),
        (lambda: int(a), "one element"),
    ):
        with pytest.raises(TypeError, match=name):
            use()
    with pytest.raises(ValueError, match="ambiguous"):
        bool(a)
    with pytest.raises(ValueError, match="without a copy"):
        a.__array__(copy=False)
    with pytest.raises(sublet.InvalidArgument, match="working set"):
        sublet.remote(working_set=100)


def test_memory_is_given_back(far):
    gc.collect()
    before = far.nbytes
    a = far.zeros(20_000)
    assert far.nbytes >= a.nbytes
    for _ in range(3):
        # The temporaries' memory is used again.
        assert (a * 2 + 1).sum() == a.size
    used = far.nbytes
    for _ in range(9):
        assert (a * 2 + 1).sum() == a.size
    assert far.nbytes <= used <= before + 4 * a.nbytes
    view = a[10:20, None].T
    del a
    gc.collect()
    view[...] = 7
    assert view.sum() == 70
    del view
    gc.collect()
    assert far.nbytes <= before


def test_a_place_without_arrays_has_no_memory(platform):
    for fabric in ("shm", "tcp"):
        with sublet.remote(client=platform, fabric=fabric, initial="64KiB", increment="64KiB") as far:
            assert far.nbytes == 0 and far.leases == []
            arrays = [far.full(3000 * n, n) for n in range(1, 9)]
            random.Random(3).shuffle(arrays)
            far.renew(600)
            assert sum(lease["memory_bytes"] for lease in far.leases) == far.nbytes
            while arrays:
                arrays.pop()
                assert all((array == array[0]).all() for array in arrays)
            gc.collect()
            assert far.nbytes == 0


def test_what_is_released_or_beyond_the_limit_says_so(platform):
    for fabric in ("shm", "tcp"):
        with sublet.remote(client=platform, fabric=fabric, initial="64KiB", increment="64KiB", limit="256KiB") as far:
            a = far.ones(20_000)
            with pytest.raises(sublet.Error, match="262144") as raised:
                far.ones(20_000)
            assert raised.value.code == "memory_exceeded"
            with pytest.raises(sublet.Error):
                a + 1
            assert a.sum() == 20_000 and far.ones(10_000).sum() == 10_000
        for use in (a.sum, lambda: a + 1, lambda: a[3], lambda: a.fill(1), lambda: numpy.asarray(a)):
            with pytest.raises(sublet.Error, match="released") as raised:
                use()
            assert raised.value.code == "lease_ended"
        assert repr(far) == "<sublet place for remote arrays: 0 bytes leased>"
        with far:
            assert far.zeros(3).sum() == 0


def test_reports_an_error_of_an_operation_unchanged(platform):
    for fabric in ("shm", "tcp"):
        with pytest.raises(ValueError, match="negative integer powers"), sublet.remote(client=platform, fabric=fabric) as far:
            numpy.power(far.arange(3), -far.arange(3))


def test_reports_memory_that_ended_and_allocates_the_next_array_elsewhere(platform):
    far = sublet.remote(client=platform, timeout=0.3)
    a = far.ones(1000)
    with pytest.raises(sublet.LeaseEnded):
        while True:
            (a + a).sum()
    # The first request for more memory reports the lost lease: that may have been the one above.
    with contextlib.suppress(sublet.LeaseEnded):
        far.zeros(10_000_000)
    # On a busy machine such a short lease may have ended before its first use.
    found = None
    while found is None:
        with contextlib.suppress(sublet.LeaseEnded):
            found = far.zeros(10).sum()
    assert found == 0
    far.release()


def test_memory_of_ones_own(platform):
    far = sublet.remote(client=platform, working_set=WORKING_BYTES)
    for fabric in ("shm", "tcp"):
        with platform.memory(fabric=fabric) as memory:
            memory.write(0, numpy.arange(3000.0))
            whole, part = far.frombuffer(memory), far.frombuffer(memory, "f8", 100, 80)
            assert whole.sum() == numpy.arange(3000).sum() and part[0] == 10 and numpy.shares_memory(whole, part)
            part[1:] = whole[10:109]
            assert memory.read(88, 8) == numpy.float64(10).tobytes()
            with pytest.raises(ValueError, match="24000 bytes"):
                far.frombuffer(memory, count=3001)
            del whole, part
            gc.collect()
    far.release()


def test_a_function_with_remote_arrays(platform):
    far = sublet.remote(client=platform, working_set="1MiB", threshold="64KiB")

    @far
    def spread(table, more, factor=1):
        """Changes a table."""
        kinds = type(table), type(more["big"]), type(more["few"][0])
        table *= factor
        return kinds, (table.max() - table.min(), table), numpy.zeros(100_000)

    assert spread.__name__ == "spread" and spread.__doc__ == "Changes a table."
    big, few = numpy.arange(50_000.0), numpy.arange(5)
    kinds, (width, table), made = spread(big, {"big": big, "few": [few]}, factor=2)
    assert kinds == (sublet.RemoteArray, sublet.RemoteArray, numpy.ndarray)
    assert width == 99_998 and big[-1] == 49_999 and table[-1] == 99_998
    assert type(table) is type(made) is sublet.RemoteArray and table.place is made.place is far
    assert spread(few, {"big": few, "few": [few]})[0] == (numpy.ndarray,) * 3
    with far:
        assert type(far(big)) is sublet.RemoteArray

    def generator():
        yield

    async def coroutine():
        pass

    for function in (generator, coroutine):
        with pytest.raises(TypeError, match="cannot be remote"):
            sublet.remote(function)


def test_the_default_place_is_of_the_default_client(platform):
    a = sublet.remote.arange(10)
    assert type(a) is sublet.RemoteArray and a.sum() == 45
    assert type(sublet.remote(numpy.arange(3))) is sublet.RemoteArray
    with pytest.raises(AttributeError, match="no attribute 'romote'"):
        sublet.romote  # noqa: B018
    assert "remote" in dir(sublet)


@pytest.mark.skipif(sys.platform != "linux", reason="it forks")
def test_a_child_that_was_forked_leaves_its_parents_arrays_alone(elsewhere):
    a = elsewhere.ones(50_000)
    child = os.fork()
    if child == 0:
        try:
            a.sum()
        except sublet.Error as error:
            del a
            gc.collect()
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert a.sum() == 50_000


def test_without_numpy_all_else_is_there():
    program = "import sys; sys.modules['numpy'] = None\nfrom sublet import *\nassert memory and 'remote' not in globals()"
    subprocess.run([sys.executable, "-c", program], check=True)
