"""Functions of NumPy's that reduce arrays to few numbers."""

import warnings

import numpy

from . import scans, stream
from .array import RemoteArray, is_array, place_among
from .functions import implements
from .reductions import UNSET, computing_dtype, fold, is_said, normal_axes, reduced_axes, sample_of
from .ufuncs import pointwise


def _folding(ufunc):
    def reduce(array, axis=None, dtype=None, out=None, keepdims=False, initial=UNSET, where=UNSET):
        return folded(ufunc, array, axis, dtype, out, keepdims, initial, where)

    return reduce


def _choosing(ufunc):
    def reduce(array, axis=None, out=None, keepdims=False, initial=UNSET, where=UNSET):
        return folded(ufunc, array, axis, None, out, keepdims, initial, where)

    return reduce


def _judging(ufunc):
    def reduce(array, axis=None, out=None, keepdims=False, *, where=UNSET):
        return folded(ufunc, array, axis, bool, out, keepdims, UNSET, where)

    return reduce


def folded(ufunc, array, axis, dtype, out, keepdims, initial, where):
    initial = UNSET if initial is None else initial
    return fold(ufunc, [array], axis, dtype=dtype, out=out, keepdims=is_said(keepdims), initial=initial, where=mask_of(where))


def mask_of(where):
    return True if where is UNSET or where is True else where if is_array(where) else numpy.asarray(where)


implements(numpy.sum)(_folding(numpy.add))
implements(numpy.prod)(_folding(numpy.multiply))
implements(numpy.min, numpy.amin)(_choosing(numpy.minimum))
implements(numpy.max, numpy.amax)(_choosing(numpy.maximum))
implements(numpy.any)(_judging(numpy.logical_or))
implements(numpy.all)(_judging(numpy.logical_and))


def _accumulating(ufunc):
    def accumulate(array, axis=None, dtype=None, out=None):
        return scans.running(ufunc, array, axis, dtype, out)

    return accumulate


implements(numpy.cumsum)(_accumulating(numpy.add))
implements(numpy.cumprod)(_accumulating(numpy.multiply))


@implements(numpy.argmin)
def argmin(array, axis=None, out=None, *, keepdims=UNSET):
    return scans.argument(numpy.argmin, array, axis, out, is_said(keepdims))


@implements(numpy.argmax)
def argmax(array, axis=None, out=None, *, keepdims=UNSET):
    return scans.argument(numpy.argmax, array, axis, out, is_said(keepdims))


@implements(numpy.count_nonzero)
def count_nonzero(array, axis=None, *, keepdims=False):
    if axis is not None:
        # NumPy counts records only without an axis.
        sample_of(numpy.count_nonzero, array, axis)
    counted = fold(numpy.add, [array], axis, prepare=_are_true, dtype=numpy.intp, keepdims=keepdims)
    # An int before NumPy 2.3.
    return type(numpy.count_nonzero(()))(counted) if axis is None and not keepdims else counted


def _are_true(values):
    """A mask of the elements that `numpy.nonzero` finds."""
    if values.dtype.kind in "biufcmM":
        return values.astype(bool, copy=False)
    found = numpy.zeros(values.shape, bool)
    found[numpy.nonzero(values) if values.ndim else ()] = True if values.ndim else bool(values)
    return found


@implements(numpy.ptp)
def ptp(array, axis=None, out=None, keepdims=UNSET):
    return numpy.subtract(numpy.max(array, axis, keepdims=is_said(keepdims)), numpy.min(array, axis, keepdims=is_said(keepdims)), out=out)


def _count(array, axis, keepdims, where):
    """Returns the number of elements for each result."""
    if where is True:
        axes = reduced_axes(axis, array.ndim)
        return numpy.intp(numpy.prod([array.shape[one] for one in axes], dtype=numpy.intp))
    return numpy.sum(numpy.broadcast_to(where, array.shape), axis, numpy.intp, keepdims=keepdims)


def _sample(function, array, axis, dtype, where):
    """Returns what a function makes of one element.

    With a mask, NumPy accepts an axis also for an array without dimensions.
    """
    options = {} if where is True else {"where": numpy.ones((1,) * array.ndim, bool)}
    return sample_of(function, array, axis, dtype, **options)


def _sum_dtype(array, dtype):
    """Returns the dtype in which NumPy sums for a mean."""
    if dtype is not None:
        return numpy.dtype(dtype)
    if array.dtype.kind in "biu":
        return numpy.dtype(float)
    return numpy.dtype("f4") if array.dtype == numpy.float16 else computing_dtype(array.dtype)


def _cast(result, dtype, out):
    """A result in the dtype that it has in NumPy."""
    if out is not None:
        numpy.copyto(out, result, casting="unsafe")
        return out
    if isinstance(result, numpy.generic):
        return numpy.asarray(result).astype(dtype)[()]
    return result if result.dtype == dtype else result.astype(dtype)


@implements(numpy.mean)
def mean(array, axis=None, dtype=None, out=None, keepdims=UNSET, *, where=UNSET):
    where, keepdims = mask_of(where), is_said(keepdims)
    made_dtype = _sample(numpy.mean, array, axis, dtype, where).dtype
    total = fold(numpy.add, [array], axis, dtype=_sum_dtype(array, dtype), keepdims=keepdims, where=where)
    return _cast(numpy.true_divide(total, _count(array, axis, keepdims, where)), made_dtype, out)


@implements(numpy.var)
def var(array, axis=None, dtype=None, out=None, ddof=0, keepdims=UNSET, *, where=UNSET, mean=UNSET, correction=UNSET):
    where, keepdims = mask_of(where), is_said(keepdims)
    ddof = ddof if correction is UNSET else correction
    made_dtype = _sample(numpy.var, array, axis, dtype, where).dtype
    summed = _sum_dtype(array, dtype)
    count = _count(array, axis, True, where)
    if mean is UNSET:
        mean = numpy.true_divide(fold(numpy.add, [array], axis, dtype=summed, keepdims=True, where=where), count)
    mean = mean if is_array(mean) else numpy.asarray(mean)

    def squares(values, middle):
        values = numpy.subtract(values, middle)
        return values.real**2 + values.imag**2 if values.dtype.kind == "c" else values * values

    real = numpy.empty((), summed).real.dtype
    total = fold(numpy.add, [array, mean], axis, prepare=squares, dtype=real, keepdims=keepdims, where=where)
    left = numpy.maximum(_count(array, axis, keepdims, where) - ddof, 0)
    return _cast(numpy.true_divide(total, left), made_dtype, out)


@implements(numpy.std)
def std(array, axis=None, dtype=None, out=None, ddof=0, keepdims=UNSET, **more):
    made = var(array, axis, dtype, None, ddof, keepdims, **more)
    return numpy.sqrt(made) if out is None else numpy.sqrt(made, out=out)


@implements(numpy.average)
def average(array, axis=None, weights=None, returned=False, *, keepdims=UNSET):
    keepdims = is_said(keepdims)
    if weights is None:
        made = mean(array, axis, keepdims=keepdims)
        total = made.dtype.type(_count(array, axis, keepdims, True))
        return (made, numpy.broadcast_to(total, made.shape)[()]) if returned else made
    weights = weights if is_array(weights) else numpy.asarray(weights)
    if weights.shape != array.shape:
        (one,) = normal_axes(axis, array.ndim)
        if weights.shape != (array.shape[one],):
            raise TypeError(f"weights of shape {weights.shape} for an array of shape {array.shape} along axis {axis}")
        weights = numpy.broadcast_to(weights[(slice(None), *(None,) * (array.ndim - one - 1))], array.shape)
    dtype = numpy.result_type(array.dtype, weights.dtype, *((float,) if array.dtype.kind in "biu" else ()))
    total = fold(numpy.add, [weights], axis, dtype=dtype, keepdims=keepdims, place=place_among([array, weights]))
    if not numpy.all(total):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")

    def weighted(values, weights):
        return numpy.multiply(values, weights, dtype=computing_dtype(dtype))

    product = fold(numpy.add, [array, weights], axis, prepare=weighted, dtype=dtype, keepdims=keepdims)
    return (product / total, total) if returned else product / total


def _agree(one, other, judge):
    if one.shape != other.shape:
        return False
    return bool(fold(numpy.logical_and, [one, other], prepare=judge, dtype=bool))


@implements(numpy.array_equal)
def array_equal(one, other, equal_nan=False):
    one, other = (array if is_array(array) else numpy.asarray(array) for array in (one, other))
    if one.shape == other.shape:
        # With `equal_nan` it refuses what has no `isnan`.
        numpy.array_equal(numpy.ones(1, one.dtype), numpy.ones(1, other.dtype), equal_nan)

    def judge(values, others):
        both_nan = (values != values) & (others != others) if equal_nan else False
        return (values == others) | both_nan

    return _agree(one, other, judge)


@implements(numpy.array_equiv)
def array_equiv(one, other):
    one, other = (array if is_array(array) else numpy.asarray(array) for array in (one, other))
    try:
        numpy.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        return False
    return bool(numpy.all(one == other))


@implements(numpy.allclose)
def allclose(one, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    one, other = (array if is_array(array) else numpy.asarray(array) for array in (one, other))
    return bool(fold(numpy.logical_and, [one, other], prepare=lambda *both: numpy.isclose(*both, rtol, atol, equal_nan), dtype=bool))


@implements(numpy.histogram_bin_edges)
def histogram_bin_edges(array, bins=10, range=None, weights=None):
    array, _ = _counted(array, weights)
    range = _range(array, bins, range)
    # The edges follow from the range and the dtype alone.
    return numpy.histogram_bin_edges(numpy.empty(0, array.dtype), bins, range)


def _counted(array, weights):
    """The operands of a histogram: booleans count as `uint8`, with the warning that NumPy gives."""
    if array.dtype == bool:
        warnings.warn(f"Converting input from {array.dtype} to uint8 for compatibility.", RuntimeWarning, stacklevel=4)
        array = array.view(numpy.uint8)
    weights = weights if weights is None or is_array(weights) else numpy.asarray(weights)
    if weights is not None and weights.shape != array.shape:
        raise ValueError("weights should have the same shape as a.")
    return array, weights


def _range(array, bins, range):
    """The range of a histogram: that of the elements where neither the range nor the edges are given."""
    if isinstance(bins, str):
        raise TypeError(f"bins={bins!r} is not supported for remote arrays: give the number of bins, or their edges")
    if range is None and numpy.ndim(bins) == 0 and array.size:
        return numpy.min(array), numpy.max(array)
    return range


@implements(numpy.histogram)
def histogram(array, bins=10, range=None, density=None, weights=None):
    array, weights = _counted(array, weights)
    range = _range(array, bins, range)
    operands = [array] if weights is None else [array, weights]

    def counted(values, weights=None):
        return numpy.histogram(values, bins, range, weights=weights)

    counts, edges = counted(*(numpy.empty(0, operand.dtype) for operand in operands))
    total = 0
    parts, order, tile = stream.arranged(operands, array.shape, array.place.working_bytes // 2)
    for _, values in stream.streamed(parts, stream.blocks.tiles([array.shape[axis] for axis in order], tile)):
        total = total + counted(*values)[0]
    if array.size:
        counts = total.astype(counts.dtype)
    if density:
        return counts / numpy.array(numpy.diff(edges), float) / counts.sum(), edges
    return counts, edges


@implements(numpy.bincount)
def bincount(array, /, weights=None, minlength=0):
    operands = [operand if is_array(operand) else numpy.asarray(operand) for operand in (array, weights) if operand is not None]
    # NumPy refuses wrong dtypes, dimensions and lengths.
    counts = numpy.bincount(*(numpy.zeros((0,) * operand.ndim, operand.dtype) for operand in operands), minlength=minlength)
    array = operands[0]
    if weights is not None and len(operands[1]) != len(array):
        raise ValueError("The weights and list don't have the same length.")
    if array.size and numpy.min(array) < 0:
        raise ValueError("'list' argument must have no negative elements")
    length = max(minlength, int(numpy.max(array)) + 1 if array.size else 0)
    counts = numpy.zeros(length, float if array.size and weights is not None else counts.dtype)
    for _, values in stream.in_order(operands, array.shape, place_among(operands).working_bytes // 2):
        counts += numpy.bincount(*values, minlength=len(counts))
    return counts


@implements(numpy.linalg.norm)
def norm(x, ord=None, axis=None, keepdims=False):
    whole = axis is None and ord is None
    axes = normal_axes(axis, x.ndim)
    if not (whole or len(axes) == 1 or (len(axes) == 2 and ord in (None, "fro"))):
        raise TypeError(
            f"numpy.linalg.norm of a remote array with ord={ord!r} over {len(axes)} axes: numpy.asarray(x) makes a local copy"
        )
    wide = {"dtype": float} if x.dtype.kind in "biu" else {}
    size = pointwise(numpy.absolute, (x,), **wide) if ord not in (None, 2, "fro") else None
    if ord in (numpy.inf, -numpy.inf):
        return (numpy.max if ord > 0 else numpy.min)(size, axes, keepdims=keepdims)
    if ord == 0:
        return numpy.sum(size != 0, axes, size.dtype, keepdims=keepdims)
    if ord == 1:
        return numpy.sum(size, axes, keepdims=keepdims)
    if size is not None:
        return numpy.sum(size**ord, axes, keepdims=keepdims) ** (1 / ord)

    def squares(values):
        values = values.astype(float) if values.dtype.kind in "biu" else values
        return values.real**2 + values.imag**2 if values.dtype.kind == "c" else values * values

    return numpy.sqrt(fold(numpy.add, [x], axes, prepare=squares, keepdims=keepdims))


@implements(numpy.vdot)
def vdot(one, other):
    one, other = (numpy.ravel(array if isinstance(array, RemoteArray) else numpy.asarray(array)) for array in (one, other))
    return fold(
        numpy.add,
        [one, other],
        prepare=lambda values, others: numpy.conjugate(values) * others,
        dtype=numpy.result_type(one.dtype, other.dtype),
    )
