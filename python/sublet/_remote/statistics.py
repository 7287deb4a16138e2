"""Functions of NumPy's that reduce arrays to few numbers."""

import numpy

from . import scans, stream
from .array import RemoteArray
from .functions import implements, place_among
from .reductions import UNSET, fold, normal_axes
from .ufuncs import is_array, pointwise


def _folding(ufunc):
    def reduce(array, axis=None, dtype=None, out=None, keepdims=False, initial=UNSET, where=UNSET):
        return _fold(ufunc, array, axis, dtype, out, keepdims, initial, where)

    return reduce


def _choosing(ufunc):
    def reduce(array, axis=None, out=None, keepdims=False, initial=UNSET, where=UNSET):
        return _fold(ufunc, array, axis, None, out, keepdims, initial, where)

    return reduce


def _judging(ufunc):
    def reduce(array, axis=None, out=None, keepdims=False, *, where=UNSET):
        return _fold(ufunc, array, axis, bool, out, keepdims, UNSET, where)

    return reduce


def _fold(ufunc, array, axis, dtype, out, keepdims, initial, where):
    initial = UNSET if initial is None else initial
    return fold(ufunc, [array], axis, dtype=dtype, out=out, keepdims=_said(keepdims), initial=initial, where=_mask(where))


def _said(keepdims):
    return keepdims is not UNSET and bool(keepdims)


def _mask(where):
    return True if where is UNSET or where is True else where if is_array(where) else numpy.asarray(where)


implements(numpy.sum)(_folding(numpy.add))
implements(numpy.prod)(_folding(numpy.multiply))
implements(numpy.min, numpy.amin)(_choosing(numpy.minimum))
implements(numpy.max, numpy.amax)(_choosing(numpy.maximum))
implements(numpy.any)(_judging(numpy.logical_or))
implements(numpy.all)(_judging(numpy.logical_and))


def _accumulating(ufunc):
    def accumulate(array, axis=None, dtype=None, out=None):
        array, axis = (numpy.ravel(array), 0) if axis is None else (array, axis)
        return scans.accumulate(ufunc, array, axis, dtype, out)

    return accumulate


implements(numpy.cumsum)(_accumulating(numpy.add))
implements(numpy.cumprod)(_accumulating(numpy.multiply))


@implements(numpy.argmin)
def argmin(array, axis=None, out=None, *, keepdims=UNSET):
    return scans.argument(numpy.argmin, array, axis, out, _said(keepdims))


@implements(numpy.argmax)
def argmax(array, axis=None, out=None, *, keepdims=UNSET):
    return scans.argument(numpy.argmax, array, axis, out, _said(keepdims))


@implements(numpy.count_nonzero)
def count_nonzero(array, axis=None, *, keepdims=False):
    counted = fold(numpy.add, [array], axis, prepare=lambda values: values != 0, dtype=numpy.intp, keepdims=keepdims)
    return int(counted) if axis is None and not keepdims else counted


@implements(numpy.ptp)
def ptp(array, axis=None, out=None, keepdims=UNSET):
    return numpy.subtract(numpy.max(array, axis, keepdims=_said(keepdims)), numpy.min(array, axis, keepdims=_said(keepdims)), out=out)


def _count(array, axis, keepdims, where):
    """How many elements each result is made of."""
    if where is True:
        axes = normal_axes(axis, array.ndim)
        return numpy.intp(numpy.prod([array.shape[one] for one in axes], dtype=numpy.intp))
    return numpy.sum(numpy.broadcast_to(where, array.shape), axis, numpy.intp, keepdims=keepdims)


def _sum_dtype(array, dtype):
    """In which dtype NumPy sums for a mean, and of which the mean is."""
    if dtype is not None:
        return numpy.dtype(dtype), numpy.dtype(dtype)
    if array.dtype.kind in "biu":
        return numpy.dtype(float), numpy.dtype(float)
    if array.dtype == numpy.float16:
        return numpy.dtype("f4"), array.dtype
    return array.dtype, array.dtype


def _cast(result, dtype, out):
    """A result in the dtype that it has in NumPy."""
    if out is not None:
        numpy.copyto(out, result, casting="unsafe")
        return out
    return result if result.dtype == dtype else result.astype(dtype)


@implements(numpy.mean)
def mean(array, axis=None, dtype=None, out=None, keepdims=UNSET, *, where=UNSET):
    where, keepdims = _mask(where), _said(keepdims)
    summed, dtype = _sum_dtype(array, dtype)
    total = fold(numpy.add, [array], axis, dtype=summed, keepdims=keepdims, where=where)
    return _cast(numpy.true_divide(total, _count(array, axis, keepdims, where)), dtype, out)


@implements(numpy.var)
def var(array, axis=None, dtype=None, out=None, ddof=0, keepdims=UNSET, *, where=UNSET, mean=UNSET, correction=UNSET):
    where, keepdims = _mask(where), _said(keepdims)
    ddof = ddof if correction is UNSET else correction
    summed, dtype = _sum_dtype(array, dtype)
    count = _count(array, axis, True, where)
    if mean is UNSET:
        mean = numpy.true_divide(fold(numpy.add, [array], axis, dtype=summed, keepdims=True, where=where), count)
    mean = mean if is_array(mean) else numpy.asarray(mean)

    def squares(values, middle):
        values = numpy.subtract(values, middle, dtype=numpy.result_type(summed, middle))
        return values.real**2 + values.imag**2 if values.dtype.kind == "c" else numpy.multiply(values, values, out=values)

    real = numpy.empty((), summed).real.dtype
    total = fold(numpy.add, [array, mean], axis, prepare=squares, dtype=real, keepdims=keepdims, where=where)
    left = numpy.maximum(_count(array, axis, keepdims, where) - ddof, 0)
    return _cast(numpy.true_divide(total, left), numpy.empty((), dtype).real.dtype, out)


@implements(numpy.std)
def std(array, axis=None, dtype=None, out=None, ddof=0, keepdims=UNSET, **more):
    made = var(array, axis, dtype, None, ddof, keepdims, **more)
    return numpy.sqrt(made) if out is None else numpy.sqrt(made, out=out)


@implements(numpy.average)
def average(array, axis=None, weights=None, returned=False, *, keepdims=UNSET):
    keepdims = _said(keepdims)
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
    product = fold(numpy.add, [array, weights], axis, prepare=numpy.multiply, dtype=dtype, keepdims=keepdims)
    return (product / total, total) if returned else product / total


def _without_nans(ufunc, instead):
    def reduce(array, axis=None, dtype=None, out=None, keepdims=UNSET):
        if array.dtype.kind not in "fc":
            return _fold(ufunc, array, axis, dtype, out, keepdims, UNSET, True)

        def prepare(values):
            return numpy.where(numpy.isnan(values), values.dtype.type(instead), values)

        return fold(ufunc, [array], axis, prepare=prepare, dtype=dtype, out=out, keepdims=_said(keepdims))

    return reduce


implements(numpy.nansum)(_without_nans(numpy.add, 0))
implements(numpy.nanprod)(_without_nans(numpy.multiply, 1))


@implements(numpy.nanmin)
def nanmin(array, axis=None, out=None, keepdims=UNSET):
    return fold(numpy.fmin, [array], axis, out=out, keepdims=_said(keepdims))


@implements(numpy.nanmax)
def nanmax(array, axis=None, out=None, keepdims=UNSET):
    return fold(numpy.fmax, [array], axis, out=out, keepdims=_said(keepdims))


@implements(numpy.nanmean)
def nanmean(array, axis=None, dtype=None, out=None, keepdims=UNSET):
    return mean(array, axis, dtype, out, keepdims, where=~numpy.isnan(array) if array.dtype.kind in "fc" else True)


def _agree(one, other, judge):
    if one.shape != other.shape:
        return False
    return bool(fold(numpy.logical_and, [one, other], prepare=judge, dtype=bool))


@implements(numpy.array_equal)
def array_equal(one, other, equal_nan=False):
    one, other = (array if is_array(array) else numpy.asarray(array) for array in (one, other))

    def judge(values, others):
        both_nan = (values != values) & (others != others) if equal_nan else False
        return (values == others) | both_nan

    return _agree(one, other, judge)


@implements(numpy.allclose)
def allclose(one, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    one, other = (array if is_array(array) else numpy.asarray(array) for array in (one, other))
    return bool(fold(numpy.logical_and, [one, other], prepare=lambda *both: numpy.isclose(*both, rtol, atol, equal_nan), dtype=bool))


@implements(numpy.histogram_bin_edges)
def histogram_bin_edges(array, bins=10, range=None, weights=None):
    if isinstance(bins, str):
        raise TypeError(f"bins={bins!r} is not there for remote arrays: say how many there are, or their edges")
    if range is None and numpy.ndim(bins) == 0 and array.size:
        range = numpy.min(array), numpy.max(array)
    # The edges follow from the range and the dtype alone.
    return numpy.histogram_bin_edges(numpy.empty(0, array.dtype), bins, range)


@implements(numpy.histogram)
def histogram(array, bins=10, range=None, density=None, weights=None):
    edges = histogram_bin_edges(array, bins, range)
    if range is None and numpy.ndim(bins) == 0 and array.size:
        range = numpy.min(array), numpy.max(array)
    operands = [array] if weights is None else [array, weights if is_array(weights) else numpy.asarray(weights)]
    counts = 0
    parts, order, tile = stream.arranged(operands, array.shape, array.place.working_bytes // 2)
    for _, values in stream.streamed(parts, stream.blocks.tiles([array.shape[axis] for axis in order], tile)):
        counts = counts + numpy.histogram(values[0], bins, range, weights=values[1] if weights is not None else None)[0]
    if not array.size:
        counts = numpy.zeros(len(edges) - 1, numpy.intp)
    if density:
        return counts / numpy.diff(edges) / counts.sum(), edges
    return counts, edges


@implements(numpy.bincount)
def bincount(array, /, weights=None, minlength=0):
    if array.ndim != 1 or weights is not None:
        raise TypeError("numpy.bincount of a remote array takes one dimension and no weights")
    length = max(minlength, int(numpy.max(array)) + 1 if array.size else 0)
    counts = numpy.zeros(length, numpy.intp)
    for _, (values,) in stream.in_order([array], array.shape, array.place.working_bytes // 2):
        counts += numpy.bincount(values, minlength=length)
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
