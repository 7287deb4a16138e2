"""Remote arrays: they do what NumPy's do, with a working set of few KiB, so that each operation takes many tiles."""

import contextlib
import copy
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
import tracemalloc

import numpy
import pytest

import sublet

KIB = 1 << 10
MIB = 1 << 20
WORKING_BYTES = 8 * KIB


@pytest.fixture(scope="module", params=["shm", "tcp"])
def far(platform, request):
    """A place whose segments are so small that arrays lie in several."""
    with sublet.remote(client=platform, working_set=WORKING_BYTES, fabric=request.param, initial="16KiB", increment="64KiB") as far:
        yield far


@pytest.fixture
def elsewhere(platform):
    with sublet.remote(client=platform, working_set=WORKING_BYTES, fabric="tcp", initial="64KiB", increment="64KiB") as far:
        yield far


RNG = numpy.random.default_rng(11)
TABLE = RNG.normal(size=(31, 43))
OTHER = RNG.normal(size=(31, 43))
MASK = RNG.random((31, 43)) > 0.6
CUBE = RNG.normal(size=(7, 24, 11))
WHOLE = RNG.integers(-100, 100, (40, 30))
SMALL = RNG.integers(0, 255, 1500).astype("u1")
HALF = RNG.normal(size=1500).astype("f2")
SINGLE = RNG.normal(size=1500).astype("f4")
COMPLEX = RNG.normal(size=(30, 20)) + 1j * RNG.normal(size=(30, 20))
GAPS = RNG.normal(size=1500)
GAPS[RNG.integers(0, 1500, 7)] = numpy.nan
COUNTS = RNG.integers(0, 50, 1500)
DATES = numpy.datetime64("2020-01-01") + RNG.integers(0, 999, 1500)
WORDS = RNG.integers(0, 999, 1500).astype("U4")
FOREIGN = RNG.integers(0, 999, 1500).astype(">i4")
RECORDS = numpy.zeros(500, [("x", "i4"), ("y", "f8")])
RECORDS["x"] = RNG.integers(0, 99, 500)
NUMBERS = (TABLE, WHOLE, SMALL, HALF, SINGLE, COMPLEX, GAPS, CUBE, MASK)
# How much two orders of additions may differ.
TOLERANCE = {"f2": 1e-2, "f4": 1e-5, "c8": 1e-5}


def found(function, arrays):
    try:
        with numpy.errstate(all="ignore"):
            return function(*arrays)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        return error


def agree(far, function, *arrays, is_exact=True):
    """A function of remote arrays comes to what it comes to of NumPy's own, the error's class included."""
    expected = found(function, [array.copy() for array in arrays])
    result = found(function, [far.asarray(array) for array in arrays])
    if isinstance(expected, Exception) or isinstance(result, Exception):
        assert type(result) is type(expected), (result, expected)
        return
    both = zip(result, expected) if isinstance(expected, tuple) else [(result, expected)]
    for one, other in both:
        assert type(one) is type(other) or sublet.RemoteArray in (type(one), type(other))
        one, other = numpy.asarray(one), numpy.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if is_exact or one.dtype.kind not in "fc":
            numpy.testing.assert_array_equal(one, other)
        else:
            tolerance = TOLERANCE.get(one.dtype.str[1:], 1e-12)
            numpy.testing.assert_allclose(one, other, tolerance, tolerance)


@pytest.mark.parametrize("name", "add subtract multiply divide maximum fmin power floor_divide remainder less equal hypot".split())
def test_ufuncs_of_two(far, name):
    ufunc = getattr(numpy, name)
    # The last bit of NumPy's powers depends on how arrays lie.
    is_exact = name != "power"
    agree(far, ufunc, TABLE, OTHER, is_exact=is_exact)
    agree(far, lambda a, b: ufunc(a, b[0]), TABLE, OTHER, is_exact=is_exact)
    agree(far, lambda a, b: ufunc(a[:, ::-1], b[:, :1]), TABLE, OTHER, is_exact=is_exact)
    agree(far, lambda a, b: ufunc(a.T[::2], b[:15, :40]), WHOLE, WHOLE)
    agree(far, lambda a: ufunc(a, 3), SMALL)
    agree(far, lambda a: ufunc(2.5, a), SMALL)
    agree(far, lambda a: ufunc(a, OTHER), TABLE, is_exact=is_exact)
    agree(far, lambda a: ufunc(a, [1, 2, 3]), WHOLE[:, :3])


@pytest.mark.parametrize("name", "sqrt exp negative isnan floor conjugate absolute sign logical_not invert".split())
def test_ufuncs_of_one(far, name):
    for array in NUMBERS:
        agree(far, getattr(numpy, name), array)


def test_ufuncs_with_options_and_several_results(far):
    agree(far, lambda a: numpy.divmod(a, 7), WHOLE)
    agree(far, numpy.modf, TABLE)
    agree(far, numpy.frexp, CUBE)
    agree(far, lambda a, b, c: numpy.add(a, b, out=b, where=c), TABLE, OTHER, MASK)
    agree(far, lambda a, b: numpy.add(a, b, out=b, casting="unsafe"), TABLE[:, :30][:30], WHOLE[:30])
    agree(far, lambda a, b: numpy.add(a, b, out=b), TABLE[:, :30][:30], WHOLE[:30])
    agree(far, lambda a: numpy.add(a, 1, dtype="f4"), TABLE)
    agree(far, lambda a: a + 300, SMALL)
    agree(far, lambda a: a + numpy.float64(1), SINGLE)
    agree(far, lambda a: a + 1.0, SINGLE)
    agree(far, lambda a, b: numpy.add(a, b, out=a), TABLE[:1], OTHER)
    agree(far, lambda a: a @ a, TABLE)
    agree(far, lambda a: numpy.multiply.outer(a[0], a[:, 0]), TABLE)
    agree(far, lambda a: numpy.maximum.accumulate(a, 1), TABLE)
    agree(far, lambda a: numpy.subtract.accumulate(a), GAPS[:900])
    agree(far, lambda a: (numpy.add.at(a, [3, 5, 3, -1], [1, 2, 3, 4]), a)[1], WHOLE[:, 0])
    agree(far, lambda a: (numpy.negative.at(a, numpy.array([3, 5, 3])), a)[1], TABLE)
    local = numpy.zeros(TABLE.shape)
    assert numpy.add(far.asarray(TABLE), 1, out=local) is local and (local == TABLE + 1).all()
    local += far.asarray(OTHER)
    assert (local == TABLE + 1 + OTHER).all()


def test_broadcasting_and_layouts(far):
    square = TABLE[:, :31]
    agree(far, lambda a: a + a.T, square)
    agree(far, lambda a: a[::-2, ::-3] * 2, TABLE)
    agree(far, lambda a: a[5:1] + 1, TABLE)
    agree(far, lambda a, b: a[:, None] * b[None, :3, 2:7:2, None], TABLE[:, 0], CUBE)
    agree(far, lambda a, b: a[:3] + b[:4], TABLE, OTHER)
    agree(far, lambda a: a["x"] * 2, RECORDS)
    agree(far, lambda a: a + 1, FOREIGN)
    agree(far, lambda a: a == "55", WORDS)
    agree(far, lambda a: a + numpy.timedelta64(3, "D"), DATES)
    assert (far.asarray(TABLE).T + 1).strides == (TABLE.T + 1).strides


@pytest.mark.parametrize("name", "sum prod min max mean std var any all ptp median average".split())
def test_reductions(far, name):
    function = getattr(numpy, name)
    for array in (CUBE, WHOLE) if name == "median" else NUMBERS:
        agree(far, lambda a: function(a), array, is_exact=False)
        for axis in range(array.ndim):
            agree(far, lambda a: function(a[::2].T, axis=axis), array, is_exact=False)
        agree(far, lambda a: function(a, axis=0, keepdims=True), array, is_exact=False)


@pytest.mark.parametrize("name", "argmin argmax cumsum cumprod nansum nanmin nanmax nanmean nanprod count_nonzero".split())
def test_reductions_of_other_kinds(far, name):
    function = getattr(numpy, name)
    # Numbers that are added one after the other are the same.
    is_exact = not name.startswith("nan")
    for array in (WHOLE, GAPS, CUBE, COMPLEX):
        agree(far, lambda a: function(a), array, is_exact=is_exact)
        for axis in range(array.ndim):
            agree(far, lambda a: function(a.T[::2], axis), array, is_exact=is_exact)


def test_reductions_with_options(far):
    agree(far, lambda a: a.sum((0, 2)), CUBE, is_exact=False)
    agree(far, lambda a, c: numpy.sum(a, axis=1, where=c), TABLE, MASK, is_exact=False)
    agree(far, lambda a, c: numpy.min(a, axis=1, where=c, initial=3), TABLE, MASK)
    agree(far, lambda a, c: numpy.min(a, where=c), TABLE, MASK)
    agree(far, lambda a: numpy.sum(a, initial=5), WHOLE)
    agree(far, lambda a, c: numpy.var(a, axis=0, where=c, ddof=1), TABLE, MASK, is_exact=False)
    agree(far, lambda a, c: numpy.mean(a, where=c), TABLE, MASK, is_exact=False)
    agree(far, lambda a: a[:0].max(), TABLE)
    agree(far, lambda a: a[:0].sum(0), TABLE)
    agree(far, lambda a: a.sum(5), TABLE)
    agree(far, lambda a: a.sum(dtype="f4"), TABLE, is_exact=False)
    agree(far, lambda a: numpy.sum(a, 0, out=numpy.zeros(43)), TABLE, is_exact=False)
    agree(far, lambda a: numpy.average(a, axis=0, weights=numpy.arange(31)), TABLE, is_exact=False)
    agree(far, lambda a, b: numpy.average(a, weights=b**2, returned=True), TABLE, OTHER, is_exact=False)
    agree(far, lambda a: a.trace(), TABLE, is_exact=False)
    agree(far, lambda a: numpy.logical_xor.reduce(a, 1), MASK)
    agree(far, lambda a: numpy.bitwise_or.reduce(a), SMALL)
    for order in (None, 1, 2, 3, 0, numpy.inf, -numpy.inf):
        agree(far, lambda a: numpy.linalg.norm(a, order, axis=1), TABLE, is_exact=False)
        agree(far, lambda a: numpy.linalg.norm(a, order, axis=0), WHOLE, is_exact=False)
    agree(far, numpy.linalg.norm, COMPLEX, is_exact=False)


def test_sums_are_at_least_as_exact_as_numpys(far):
    ones = numpy.full(200_000, 0.1, "f4")
    exact = 200_000 * float(numpy.float32(0.1))
    assert abs(float(far.asarray(ones).sum()) - exact) <= 2 * abs(float(ones.sum()) - exact) + 1e-3
    assert far.ones(30_000, "f2").sum() == 30_000
    # Added one after the other, nothing but the first would be left.
    tiny = numpy.full(50_000, 1e-16)
    tiny[0] = 1
    assert far.asarray(tiny).sum() == pytest.approx(tiny.sum(), abs=1e-14)


def test_what_a_large_reduction_leaves_is_remote(far):
    tall = far.ones((600, 3))
    assert type(tall.sum(1)) is sublet.RemoteArray and type(tall.sum(0)) is numpy.ndarray
    assert type(tall.sum()) is numpy.float64
    assert (numpy.asarray(tall.sum(1)) == 3).all()


@pytest.mark.parametrize("array", [GAPS, WHOLE, SMALL, COMPLEX, WORDS, DATES, FOREIGN, CUBE], ids=lambda a: str(a.dtype))
def test_sorting(far, array):
    for axis in (None, *range(array.ndim)):
        agree(far, lambda a: numpy.sort(a, axis), array)
        agree(far, lambda a: numpy.sort(a, axis, kind="stable"), array)
        agree(far, lambda a: numpy.argsort(a, axis, kind="stable"), array)

    def in_place(a):
        a[::2].sort(0)
        return a

    agree(far, in_place, array)
    agree(far, numpy.unique, array)


def test_sorting_merges_many_runs_and_keeps_the_order_of_equals(far):
    # 20 and 32 KB in runs of 1 KiB, of which 16 are merged at a time.
    many = RNG.integers(0, 5, 2500)
    agree(far, lambda a: numpy.argsort(a, kind="stable"), many)
    agree(far, numpy.sort, RNG.normal(size=4000))
    agree(far, numpy.sort, numpy.arange(2500)[::-1].copy())
    agree(far, numpy.sort, numpy.zeros(1000))
    agree(far, lambda a: numpy.unique(a, return_counts=True), many)


def test_quantiles_searches_and_histograms(far):
    for array in (TABLE, WHOLE, GAPS):
        agree(far, lambda a: numpy.percentile(a, [5, 50, 99.9]), array, is_exact=False)
        agree(far, lambda a: numpy.quantile(a, 0.3, axis=0, keepdims=True), array, is_exact=False)
        agree(far, lambda a: numpy.median(a, axis=-1, keepdims=True), array, is_exact=False)
    agree(far, lambda a: numpy.quantile(a, 2), TABLE)
    agree(far, lambda a, b: numpy.searchsorted(numpy.sort(a), b), GAPS, GAPS)
    agree(far, lambda a, b: numpy.sort(a).searchsorted(b[:99], side="right"), COUNTS, COUNTS)
    agree(far, lambda a: numpy.searchsorted(numpy.sort(a), 3), COUNTS)
    agree(far, lambda a: numpy.searchsorted(numpy.arange(50), a), COUNTS)
    agree(far, lambda a: numpy.histogram(a, 20), TABLE)
    agree(far, lambda a: numpy.histogram(a, [-1, 0, 0.5, 2], density=True), TABLE)
    agree(far, lambda a, b: numpy.histogram(a, 7, weights=b), TABLE, OTHER, is_exact=False)
    agree(far, lambda a: numpy.bincount(a, minlength=60), COUNTS)


def test_products(far):
    left, right = RNG.normal(size=(61, 33)), RNG.normal(size=(33, 47))
    for product in (
        lambda a, b: a @ b,
        lambda a, b: b.T @ a.T,
        lambda a, b: a @ b[:, 0],
        lambda a, b: a[:, 0] @ a,
        lambda a, b: a[0] @ b[:, 3],
        lambda a, b: a.dot(b),
        lambda a, b: numpy.matmul(a, b, out=numpy.zeros((61, 47))),
        lambda a, b: a[::2, ::-1] @ b,
        lambda a, b: a @ a,
        lambda a, b: numpy.dot(a[0], 3),
        lambda a, b: numpy.outer(a[0], b[:, 0]),
        lambda a, b: numpy.vdot(a, a),
        lambda a, b: a[:, :0] @ b[:0],
    ):
        agree(far, product, left, right, is_exact=False)
    agree(far, lambda a: a @ a.T, WHOLE)
    agree(far, lambda a: a @ a.T, MASK)
    agree(far, lambda a: a @ a.transpose(0, 2, 1), CUBE, is_exact=False)
    agree(far, lambda a: a @ a[0].T, CUBE, is_exact=False)
    agree(far, lambda a: a[:, :2, :3] @ a[:, :3, :2], CUBE, is_exact=False)
    agree(far, lambda a: numpy.matmul(a, a, out=a), TABLE[:, :31], is_exact=False)
    agree(far, lambda a: a.reshape(30, 50) @ a.reshape(50, 30), HALF, is_exact=False)


def test_indices_select(far):
    rows, wide = RNG.integers(-31, 31, (5, 9)), RNG.integers(0, 31, 800)
    for get in (
        lambda a: a[3],
        lambda a: a[3, 4],
        lambda a: a[-1, ..., 2],
        lambda a: a[None, 2:20:3, None, ::-1],
        lambda a: a[rows],
        lambda a: a[:, rows],
        lambda a: a[..., rows],
        lambda a: a[wide],
        lambda a: a[2:, [1, 2, -1]],
        lambda a: a[[]],
        lambda a: a[[99]],
        lambda a: a[31],
        lambda a: a[0.5],
        lambda a: a[1, 2, 3],
        lambda a: a.take(rows),
        lambda a: numpy.take(a, 5, axis=1),
        lambda a: a[a > 0],
        lambda a: a[a[:, 0] > 0],
        lambda a: a[:, a[0] > 0],
        lambda a: a[a > 9],
        lambda a: numpy.nonzero(a > 0),
        lambda a: numpy.argwhere(a > 0),
        lambda a: numpy.flatnonzero(a > 0),
        lambda a: numpy.array(list(a[0])),
        lambda a: numpy.array([row.sum() for row in a > 0]),
        lambda a: a.item(5, 3),
        lambda a: len(a),
    ):
        agree(far, get, TABLE)
    agree(far, lambda a: a[a[:, :, 0] > 0], CUBE)
    agree(far, lambda a: a[5], RECORDS)
    agree(far, lambda a: a[["y", "x"]]["x"], RECORDS)
    agree(far, lambda a, b: a[b], TABLE, rows)
    agree(far, lambda a: a[0], DATES)


def test_assignments(far):
    rows = RNG.integers(-31, 31, 9)
    for key, value in (
        (numpy.s_[3:20:2, ::-1], 7.5),
        (numpy.s_[..., 5], OTHER[:, 3]),
        (numpy.s_[::-1], OTHER),
        (numpy.s_[3, 4], 2),
        (numpy.s_[:], [[1]]),
        (numpy.s_[3:5], numpy.zeros(7)),
        (numpy.s_[2:4, 2:4], OTHER[None, :2, :2]),
        (MASK, 0),
        (MASK, numpy.arange(MASK.sum())),
        (MASK[:, 0], OTHER[0]),
        (numpy.s_[:, MASK[0]], 1),
        (rows, OTHER[:9]),
        (numpy.s_[:, rows], OTHER[:, :9]),
        ([3, 5, 3, -1], numpy.arange(4)[:, None]),
        ([3, 99], 1),
    ):

        def put(a, key=key, value=value):
            a[key] = value
            return a

        agree(far, put, TABLE)
    agree(far, lambda a: a.__setitem__(3, 300), SMALL)
    agree(far, lambda a: (numpy.copyto(a, 1, where=a > 0), numpy.putmask(a, a < 0, 5), a)[2], TABLE)

    def fields(a):
        a["y"] = a["x"] / 2
        a[3] = (5, 6)
        return a["y"] + a["x"]

    agree(far, fields, RECORDS)


def test_what_overlaps_is_as_in_numpy(far):
    def shifts(a):
        a[1:] = a[:-1]
        a[:-3] = a[3:]
        a[::-1] = a
        a[5:] += a[:-5]
        a[::2] = a[1::2][: len(a[::2])] if len(a) % 2 == 0 else a[::2][::-1]
        return a

    for array in (GAPS, TABLE, CUBE, WHOLE):
        agree(far, shifts, array)
    agree(far, lambda a: numpy.add(a, a.T, out=a), TABLE[:, :31])
    agree(far, lambda a: numpy.add(a[0], a, out=a), TABLE)
    agree(far, lambda a: numpy.cumsum(a, out=a), GAPS[:900])
    agree(far, lambda a: numpy.cumsum(a[:-1], out=a[1:]), WHOLE[:, 0])
    a, order = far.asarray(GAPS), GAPS.argsort()
    a[order] = a
    assert numpy.array_equal(numpy.asarray(a)[order], GAPS, equal_nan=True)
    with pytest.raises(ValueError, match="read-only"):
        numpy.broadcast_to(far.zeros(3), (4, 3))[...] = 1


def test_shapes_and_joints(far):
    for change in (
        lambda a: a.reshape(43, 31),
        lambda a: a.T.reshape(-1),
        lambda a: a.reshape((43, 31), order="F"),
        lambda a: a.reshape(3, -1),
        lambda a: a[::2, 1:].ravel(),
        lambda a: a.T.flatten(),
        lambda a: numpy.moveaxis(a[None], 0, 2).squeeze(),
        lambda a: numpy.expand_dims(a, 1).swapaxes(0, 2),
        lambda a: numpy.rot90(numpy.flip(a)),
        lambda a: numpy.roll(a, 5),
        lambda a: numpy.roll(a, (3, -2), (0, 1)),
        lambda a: numpy.tile(a, (2, 1, 3)),
        lambda a: a.repeat(3, 1),
        lambda a: numpy.repeat(a[:3], [1, 0, 2], 0),
        lambda a: numpy.diff(a, 2, 0),
        lambda a: numpy.diag(a[0], 2),
        lambda a: numpy.diag(a[0], -1),
        lambda a: a[:, :32].diagonal(1) + a[0, :31],
        lambda a: numpy.concatenate([a, a[:5]]),
        lambda a: numpy.concatenate([a, a[:, :5].astype("f4"), OTHER], 1),
        lambda a: numpy.concatenate([a, a], None),
        lambda a: numpy.concatenate([a, a[:, :5]]),
        lambda a: numpy.stack([a, a * 2], -1),
        lambda a: numpy.vstack([a[0], a]),
        lambda a: numpy.hstack([a, a[:, :1]]),
        lambda a: numpy.column_stack([a[:, 0], a]),
        lambda a: numpy.append(a, [1.0, 2.0]),
        lambda a: tuple(numpy.split(a, [3, 9])),
        lambda a: numpy.atleast_3d(a),
        lambda a: a.astype("i2"),
        lambda a: a.astype("i2", casting="safe"),
        lambda a: a.view("u8"),
        lambda a: numpy.zeros_like(a) + numpy.full_like(a, 3, dtype="i4") + numpy.ones_like(a[0]),
        lambda a: a.copy("F"),
    ):
        agree(far, change, TABLE)
    agree(far, lambda a: a.real + a.imag, COMPLEX)
    agree(far, lambda a: a.imag, TABLE)
    a = far.asarray(CUBE)
    for view in (a.reshape(24, -1), a.T, a[1:, ::2], a.ravel(), a.swapaxes(0, 1)):
        assert numpy.shares_memory(view, a)
    assert not numpy.shares_memory(a.T.ravel(), a)


def test_functions_of_elements(far):
    agree(far, lambda a, b, c: numpy.where(c, a, b), TABLE, OTHER, MASK)
    agree(far, lambda a: numpy.where(a > 0, a, 0), WHOLE)
    agree(far, lambda a: numpy.clip(a, -0.5, 0.5), TABLE)
    agree(far, lambda a: a.clip(max=5), WHOLE)
    agree(far, lambda a: a.clip(3, 20, out=a), SMALL)
    agree(far, lambda a: a.round(2), TABLE)
    agree(far, lambda a, b: numpy.isclose(a, b, atol=0.5), TABLE, OTHER)
    agree(far, numpy.nan_to_num, GAPS)
    agree(far, lambda a: numpy.digitize(a, [-1, 0, 1]), TABLE)
    agree(far, lambda a: numpy.isin(a, [1, 5, 9]), COUNTS)
    agree(far, lambda a: numpy.interp(a, [-1, 0, 1], [0, 5, 6]), TABLE)
    agree(far, numpy.angle, COMPLEX)
    for one, other in ((TABLE, TABLE + 1e-12), (TABLE, TABLE), (GAPS, GAPS), (TABLE, TABLE[:3])):
        agree(far, numpy.array_equal, one, other)
        agree(far, lambda a, b: numpy.array_equal(a, b, equal_nan=True), one, other)
        agree(far, numpy.allclose, one, other)
        agree(far, lambda a, b: numpy.allclose(a, b, equal_nan=True), one, other)


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
        (lambda: numpy.einsum("ij->j", a), "numpy.einsum"),
        (lambda: numpy.subtract.reduce(a), "subtract.reduce"),
        (lambda: numpy.add.reduceat(a, [0, 5]), "add.reduceat"),
        (lambda: numpy.sort(a, order="x"), "order="),
        (lambda: numpy.unique(a, return_inverse=True), "return_inverse"),
        (lambda: numpy.quantile(a, 0.5, method="lower"), "linear"),
        (lambda: a[[1, 2], [3, 4]], "several arrays of indices"),
        (lambda: a[3, [1, 2]], "an integer beside"),
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


def story(far, seed):
    """Random steps on random views of one array, here and there; after each the whole array is the same."""
    chance = random.Random(seed)
    local = numpy.random.default_rng(seed).integers(-50, 50, (12, 9, 14))
    there = far.asarray(local)
    for _ in range(12):
        order, cut = chance.sample(range(3), 3), []
        for length in (local.shape[axis] for axis in order):
            begin, end = sorted(chance.sample(range(length + 1), 2))
            part = slice(begin, end, chance.choice((1, 1, 2, 3)))
            cut.append(chance.choice((part, part, slice(None), slice(None, None, -1))))
        step = chance.randrange(7)
        for whole in (local, there):
            change(whole.transpose(order)[tuple(cut)], step)
        numpy.testing.assert_array_equal(numpy.asarray(there), local, f"seed {seed}")


def change(a, step):
    if step == 0:
        a += 3
    elif step == 1:
        a[1:] = a[:-1]
    elif step == 2:
        a[...] = a[::-1, :, ::-1]
    elif step == 3:
        a.sort(axis=1)
    elif step == 4:
        a[a > 20] = -7
    elif step == 5:
        a -= a.sum(axis=1, keepdims=True) % 11
    else:
        numpy.multiply(a[..., 1:], -1, out=a[..., :-1])


@pytest.mark.parametrize("seed", range(8))
def test_stories(far, seed):
    story(far, seed)


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
        lambda a, b: a[(b[:20_000] * 1000).astype(int)],
        lambda a, b: numpy.histogram(a, 50),
    ],
    ids="add sum in-place transposed column std matmul sort argsort mask cumsum take histogram".split(),
)
def test_a_working_set_bounds_what_is_here(platform, monkeypatch, use):
    working_bytes = 128 * KIB
    with sublet.remote(client=platform, working_set=working_bytes, fabric="tcp") as far:
        rng = numpy.random.default_rng(5)
        a, b = far.asarray(rng.random(1 << 16)), far.asarray(rng.random(1 << 16))
        use(a, b)
        probe = Probe(monkeypatch)
        tracemalloc.start()
        use(a, b)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert probe.total > 0, "it reads what it works on"
        assert probe.most <= working_bytes
        assert most <= 1.25 * working_bytes + 64 * KIB, "Python's own objects included"


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


def test_an_error_amid_an_operation_is_told_as_it_is(platform):
    for fabric in ("shm", "tcp"):
        with pytest.raises(ValueError, match="negative integer powers"), sublet.remote(client=platform, fabric=fabric) as far:
            numpy.power(far.arange(3), -far.arange(3))


def test_memory_that_ended_is_told_and_the_next_array_is_elsewhere(platform):
    far = sublet.remote(client=platform, timeout=0.3)
    a = far.ones(1000)
    with pytest.raises(sublet.LeaseEnded):
        while True:
            (a + a).sum()
    # Whoever first asks for more hears of it: that may have been above.
    with contextlib.suppress(sublet.LeaseEnded):
        far.zeros(10_000_000)
    # What is leased so shortly may be over on a busy machine before it is used.
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
        """Of a table."""
        kinds = type(table), type(more["big"]), type(more["few"][0])
        table *= factor
        return kinds, (table.max() - table.min(), table), numpy.zeros(100_000)

    assert spread.__name__ == "spread" and spread.__doc__ == "Of a table."
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


def test_threads_use_one_place(far):
    failed = []

    def work(seed):
        try:
            story(far, 100 + seed)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


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
