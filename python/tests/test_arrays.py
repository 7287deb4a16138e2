"""Arrays: where they lie, and what is copied."""

import sys

import numpy
import pytest

import sublet


def test_arrays_are_numpys(platform):
    a = sublet.zeros((3, 4), dtype="f4")
    assert type(a) is numpy.ndarray and a.shape == (3, 4) and not a.any()
    assert memoryview(a).nbytes == 48
    assert numpy.from_dlpack(a).ctypes.data == a.ctypes.data
    assert numpy.asarray(sublet.full(3, 7)).tolist() == [7, 7, 7]
    assert sublet.empty_like(a).shape == a.shape
    assert sublet.array([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert sublet.empty((2, 3), order="F").flags.f_contiguous
    assert sublet.empty(0).shape == (0,)
    for wrong in (lambda: sublet.empty(-1), lambda: sublet.empty(3, dtype=object), lambda: sublet.empty(1 << 40)):
        with pytest.raises(ValueError):
            wrong()


def test_a_registered_array_is_used_where_it_is(lease):
    a = sublet.zeros(1000)

    def fill(array):
        array[:] = numpy.arange(len(array))
        return array

    back = lease.call(fill, a)
    assert a[999] == 999, "the function wrote to the caller's own memory"
    assert back.ctypes.data == a.ctypes.data, "and what it returned is that"


def test_a_part_of_a_registered_array_is_used_where_it_is(lease):
    a = sublet.zeros((100, 100))
    lease.call(lambda row: row.fill(5), a[7])
    assert a.sum() == 500


def test_a_read_only_array_is_read_only_there(lease):
    a = sublet.zeros(1000)
    a.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        lease.call(lambda array: array.fill(1), a)
    assert not a.any()
    b = numpy.zeros(1000)
    b.flags.writeable = False
    assert lease.call(lambda array: float(array.sum()), b) == 0


def test_a_lease_may_be_kept_from_registered_arrays(platform):
    a = sublet.zeros(1000)

    def fill(array):
        array.fill(1)
        return array

    with platform.lease(share_arrays=False, wait=60) as lease:
        assert lease.call(fill, a).all() and not a.any()


def test_other_arrays_are_copied(lease):
    a = numpy.zeros(100_000)

    def fill(array):
        array[:] = 1
        return array

    back = lease.call(fill, a)
    assert not a.any() and back.all()
    back[0] = 5
    assert lease.call(numpy.sum, back) == 100_004


@pytest.mark.parametrize(
    "a",
    [
        numpy.arange(10000).reshape(100, 100)[::2, ::3],
        numpy.arange(10000, dtype=">i4"),
        numpy.asfortranarray(numpy.arange(10000.0).reshape(100, 100)),
        numpy.array([1, "two", None, {}], dtype=object),
        numpy.zeros((0, 5)),
        numpy.zeros((), dtype="c16"),
        numpy.array(["a", "bcd"]),
        numpy.zeros(500, dtype=[("x", "i4"), ("y", "f8")]),
        numpy.arange("2020-01", "2021-01", dtype="datetime64[D]"),
    ],
    ids=["strided", "big-endian", "fortran", "object", "empty", "scalar", "text", "record", "dates"],
)
def test_all_kinds_of_arrays_come_back_as_they_went(lease, a):
    back = lease.call(lambda array: array, a)
    assert back.dtype == a.dtype and back.shape == a.shape
    assert numpy.array_equal(back, a)


def test_results_of_the_programs_classes_have_their_arrays(lease):
    class Named:
        name = "ours"

    first, named, last = lease.call(lambda: (numpy.arange(1000), Named(), numpy.ones(500)))
    assert numpy.array_equal(first, numpy.arange(1000)) and named.name == "ours" and numpy.array_equal(last, numpy.ones(500))


def test_arrays_of_the_programs_objects_come_back(lease):
    class Named:
        name = "ours"

    back = lease.call(lambda array: array, numpy.array([Named(), None], dtype=object))
    assert back[0].name == "ours" and back[1] is None


def test_results_of_any_size_come_back(lease):
    for size in (0, 1, 1000, 1 << 16, 1 << 20, 10 << 20, 3):
        made = lease.call(lambda n: numpy.full(n, 7, dtype="u1"), size)
        assert made.shape == (size,) and (made == 7).all()
    text = lease.call(lambda n: "x" * n, 5 << 20)
    assert text == "x" * (5 << 20)


def test_what_a_function_makes_in_its_callers_memory_comes_back_from_there(lease):
    def make(size, value):
        made = sublet.full(size, value, dtype="f8")
        other = sublet.full(100, value + 1, dtype="u1")
        return made, other, b"x" * (size % 5000), sys.modules["sublet_template"].output_space(1) is not None

    for size in (10, 100, 50_000, 50_000, 1 << 20, 1 << 20, 10):
        made, other, text, _ = lease.call(make, size, 3)
        assert made.shape == (size,) and (made == 3).all() and (other == 4).all() and len(text) == size % 5000
    kept = [lease.call(make, 30_000, n)[0] for n in range(10)]
    assert [a.min() for a in kept] == list(range(10)) == [a.max() for a in kept]


def test_a_result_stays_when_others_come(lease):
    made = [lease.call(lambda n: numpy.full(100_000, n), n) for n in range(20)]
    assert [int(a[0]) for a in made] == list(range(20)) and [int(a[-1]) for a in made] == list(range(20))


def test_many_arrays_in_one_call(lease):
    arrays = [sublet.full(1000, n) for n in range(50)] + [numpy.full(1000, n) for n in range(50)]
    sums = lease.call(lambda arrays: [int(a.sum()) for a in arrays], arrays)
    assert sums == [1000 * n for n in range(50)] * 2
