"""Operations agree with NumPy's on arrays of many tiles."""

import io
import operator

import numpy
import pytest

import sublet

from .arrays import COMPLEX, COUNTS, CUBE, DATES, FOREIGN, GAPS, HALF, MASK, NUMBERS, OTHER, RECORDS, RNG, SINGLE, SMALL, TABLE, WHOLE
from .arrays import WORDS, agree


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


@pytest.mark.parametrize("name", "mean std var nanmean nanstd nanvar".split())
def test_moments_of_big_endian_numbers_and_of_times(far, name):
    function = getattr(numpy, name)
    for array in (TABLE.astype(">f8"), TABLE.astype(">f4"), WHOLE.astype(">i4"), COMPLEX.astype(">c16"), CUBE.astype(">f8")):
        agree(far, function, array, is_exact=False)
        agree(far, lambda a: function(a, axis=0), array, is_exact=False)
    times = DATES - DATES[0]
    agree(far, function, times)
    agree(far, lambda a: function(a.reshape(30, 50), axis=1, keepdims=True), times.astype(">m8[D]"))


def test_comparisons_of_elements_that_are_never_equal(far):
    kinds = (WORDS, WORDS.astype("S"), DATES, DATES - DATES[0], COUNTS, TABLE.reshape(-1)[: WORDS.size])
    for one in kinds:
        for other in (*kinds, 3, 2.5, "3", b"3", None, numpy.datetime64("2020-05-05"), numpy.timedelta64(3, "D")):
            for compare in (operator.eq, operator.ne):
                agree(far, lambda a, other=other, compare=compare: compare(a, other[: a.size] if numpy.ndim(other) else other), one)
            if not numpy.ndim(other):
                agree(far, lambda a, other=other: other in a, one)


def test_quantiles_have_the_dtype_of_numpys(far):
    for q in (0.3, numpy.float32(0.3), numpy.float64(0.3), [0.3, 0.7], numpy.array([0.3, 0.7], "f4")):
        for name, scale in (("quantile", 1), ("percentile", 100), ("nanquantile", 1)):
            for array in (SINGLE, SINGLE.astype(">f4"), HALF, TABLE, SMALL):
                scaled = numpy.multiply(q, scale) if numpy.ndim(q) else q
                agree(far, lambda a: getattr(numpy, name)(a, scaled, axis=0), array, is_exact=False)


def test_several_arrays_of_indices(far):
    rows, columns = RNG.integers(-31, 31, (7, 1)), RNG.integers(-43, 43, 5)
    for get in (
        lambda a: a[rows, columns],
        lambda a: a[[1, 2], [3, 4]],
        lambda a: a[3, [1, 2]],
        lambda a: a[numpy.ix_([1, 5, 1], [2, -1])],
        lambda a: a[[1, 2], ..., None, [3, 4]],
        lambda a: a[MASK[:, 0], 3],
        lambda a: a[[1, 2], [3, 43]],
        lambda a: a[[1, 2], [3, 4, 5]],
    ):
        agree(far, get, TABLE)
    agree(far, lambda a: a[[1, 2], :, [3, 4]], CUBE)
    agree(far, lambda a: a[:, [1, 2], [3, 4]], CUBE)
    agree(far, lambda a: a[:, [1, 2], None, [3, 4]], CUBE)
    agree(far, lambda a, b, c: a[b, c], TABLE, rows, columns)

    def put(a):
        a[rows, columns] = OTHER[:7, :5]
        a[[3, 3], [4, 4]] = [8, 9]
        numpy.add.at(a, (rows, columns), 1)
        return a

    agree(far, put, TABLE)


def test_sums_of_products(far):
    for text in ("ij,ij->", "ij,kj->ik", "ij,kj", "ii->i", "ij->ji", "...j,j", "ij,kj,lj->ikl"):
        operands = [TABLE[:12, :12], OTHER[:12, :12], TABLE[12:17, 5:17]][: text.count(",") + 1]
        for optimize in (False, True):
            operands[1:] = [one[0] if text == "...j,j" else one for one in operands[1:]]
            agree(far, lambda *arrays: numpy.einsum(text, *arrays, optimize=optimize)[()], *operands, is_exact=False)
    agree(far, lambda a, b: numpy.einsum("ij,jk->ik", a, b), TABLE, OTHER[:1, :5], is_exact=False)
    agree(far, lambda a, b: numpy.einsum("ij,jk->ik", a, b), OTHER[:5, :1], TABLE, is_exact=False)
    agree(far, lambda a: numpy.einsum("ij,kj->ik", a, a), HALF.reshape(50, 30), is_exact=False)
    agree(far, lambda a: numpy.tensordot(a, a, ([0, 2], [0, 2])), CUBE, is_exact=False)
    agree(far, lambda a, b: numpy.inner(a, b), TABLE, OTHER, is_exact=False)


def test_operands_without_dimensions_or_elements(far):
    scalar, text, nothing = numpy.array(7), numpy.array("ab"), numpy.zeros((4, 0, 3))
    for function in (
        lambda a: numpy.take(a, [0, 0], axis=0),
        lambda a: numpy.take(a, 0, axis=-1),
        lambda a: numpy.repeat(a, 3, axis=0),
        lambda a: numpy.argsort(a, axis=0),
        lambda a: numpy.cumsum(a, axis=-1),
        lambda a: numpy.var(a, axis=0),
        lambda a: numpy.var(a, axis=0, where=a > 3),
        lambda a: 1.5 in a,
        numpy.isreal,
    ):
        agree(far, function, scalar)
        agree(far, function, text)

    def put(a, value):
        a[:, :, [1, 2]] = value
        a[[1, 2], :, [1, 2]] = value
        numpy.add.at(a, ([3, 0], slice(None), [1, 1]), value)
        return a

    agree(far, put, nothing, numpy.zeros((1, 1)))
    agree(far, lambda a, b: numpy.copyto(a, b), scalar, numpy.array([[3]]))
    agree(far, lambda a: numpy.cov(a, a, rowvar=False), numpy.zeros((0, 1)))
    agree(far, lambda a: numpy.corrcoef(a, a, rowvar=False), numpy.zeros((0, 1)))


def test_rare_dtypes_and_options(far):
    agree(far, lambda a: numpy.histogram(a, 1), MASK)
    agree(far, lambda a: numpy.histogram(a, 3, density=True, weights=a), numpy.round(SINGLE))
    agree(far, lambda a: numpy.histogram(a, 3, weights=a[:1]), SINGLE)
    agree(far, lambda a: numpy.var(a, dtype=float), COMPLEX.astype(">c16"), is_exact=False)
    agree(far, lambda a: numpy.quantile(a, 0), numpy.array(["ab"], ">U2"))
    agree(far, lambda a: numpy.count_nonzero(a, axis=0), RECORDS)
    agree(far, lambda a: numpy.clip(a, -1, 300), SMALL)
    agree(far, lambda a: numpy.clip(a, -1, None), SMALL)
    for mode in ("mean", "median", "minimum"):
        agree(far, lambda a: numpy.pad(a, 3, mode), DATES - DATES[0])
    for sides in ((4, 4), (0, 9), (9, 0)):
        for kind in ("reflect", "symmetric"):
            agree(far, lambda a: numpy.pad(a, [sides, sides], kind, reflect_type="odd"), TABLE[:3, :4], is_exact=False)
        agree(far, lambda a: numpy.pad(a, [sides, sides], "linear_ramp"), FOREIGN[:5, None])

    def put(a):
        numpy.put_along_axis(a, numpy.array([3, -1, 1300, 3]), numpy.array([7, 8, 9, 7]), None)
        return a

    agree(far, put, TABLE)
    if numpy.lib.NumpyVersion(numpy.__version__) < "2.5.0":
        # Later versions refuse an array that is not contiguous.
        agree(far, lambda a: put(a.T), TABLE)


def test_saves_files_that_numpy_loads(far, tmp_path):
    for array in (TABLE, TABLE.T, TABLE[::2, ::-1], CUBE.transpose(1, 0, 2), RECORDS, FOREIGN, DATES, numpy.array(7), numpy.zeros((0, 3))):
        numpy.save(tmp_path / "remote", far.asarray(array))
        numpy.save(tmp_path / "local.npy", array)
        assert (tmp_path / "remote.npy").read_bytes() == (tmp_path / "local.npy").read_bytes()
        opened = io.BytesIO()
        numpy.save(opened, far.asarray(array))
        numpy.testing.assert_array_equal(numpy.load(io.BytesIO(opened.getvalue())), array)
    numpy.testing.assert_array_equal(numpy.asarray(far.asarray(numpy.load(tmp_path / "remote.npy", mmap_mode="r"))), numpy.zeros((0, 3)))
