"""Medians and quantiles, which are computed from a few rows of sorted lanes."""

import math

import numpy

from .functions import implements
from .indexing import take_along
from .reductions import fold, is_said, normal_axes, room_for, sample_of
from .shapes import reshape
from .sorting import sort
from .ufuncs import pointwise, with_out

# Whether NumPy takes a quantile that is a Python number as such, without a dtype.
_IS_WEAK = numpy.lib.NumpyVersion(numpy.__version__) >= "2.5.0"


@implements(numpy.median)
def median(a, axis=None, out=None, overwrite_input=False, keepdims=False):
    if not _length(a, axis):
        return numpy.mean(a, axis, out=out, keepdims=keepdims)
    return _of_lanes(numpy.median, _median, a, axis, out, keepdims, leaves_out=False)


@implements(numpy.nanmedian)
def nanmedian(a, axis=None, out=None, overwrite_input=False, keepdims=numpy._NoValue):
    if not a.size:
        return numpy.nanmean(a, axis, out=out, keepdims=keepdims)
    return _of_lanes(numpy.nanmedian, _median, a, axis, out, is_said(keepdims), leaves_out=True)


def _quantile_function(name, fractions, leaves_out):
    function = getattr(numpy, name)

    def of(
        a, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=numpy._NoValue, *, weights=None, interpolation=None
    ):
        if method != "linear" or weights is not None or interpolation not in (None, "linear"):
            raise TypeError(f"numpy.{name} of remote arrays is linear and has no weights: numpy.asarray(array) makes a local copy")
        return _quantiles(function, a, q, fractions(a, q), axis, out, keepdims, leaves_out)

    implements(function)(of)


def _fractions(array, q):
    """Quantiles in the dtype in which NumPy computes: before 2.5 that of the array for a single Python number."""
    has_array_dtype = not _IS_WEAK and isinstance(q, (int, float)) and array.dtype.kind == "f"
    return numpy.asarray(q, array.dtype if has_array_dtype else None)


def _hundredths(array, q):
    has_array_dtype = not _IS_WEAK and array.dtype.kind == "f"
    return numpy.asarray(numpy.true_divide(numpy.asarray(q), array.dtype.type(100) if has_array_dtype else 100))


_quantile_function("quantile", _fractions, leaves_out=False)
_quantile_function("percentile", _hundredths, leaves_out=False)
_quantile_function("nanquantile", _fractions, leaves_out=True)
_quantile_function("nanpercentile", _hundredths, leaves_out=True)


def _length(array, axis):
    return math.prod(array.shape[one] for one in normal_axes(axis, array.ndim))


def _quantiles(function, array, q, fractions, axis, out, keepdims, leaves_out):
    if array.dtype.kind == "c":
        raise TypeError("a must be an array of real numbers")
    if not ((fractions >= 0) & (fractions <= 1)).all():
        raise ValueError("Quantiles must be in the range [0, 1]")
    if leaves_out and not array.size:
        return numpy.nanmean(array, axis, out=out, keepdims=keepdims)
    if fractions.size and not _length(array, axis):
        raise IndexError("there are no quantiles of no elements")

    def choose(lanes, counts, made):
        for at in numpy.ndindex(fractions.shape):
            made[at] = _quantile(lanes, counts, fractions[at], _IS_WEAK and type(q) in (int, float))

    return _of_lanes(
        lambda one, axis: function(one, q, axis), choose, array, axis, out, is_said(keepdims), leaves_out=leaves_out, more=fractions.shape
    )


def _of_lanes(function, choose, array, axis, out, keepdims, *, leaves_out, more=()):
    """Elements of sorted lanes, or what is computed from them.

    Args:
        function: NumPy's: `function(array, axis)` of one element has the dtype of the result, or raises the error for arrays like that.
        choose: `choose(lanes, counts, made)` puts results into `made`. The lanes are along the first axis; `counts` says how many
            numbers each has, as one integer if that is the same for all.
        leaves_out: Whether NaNs are ignored.
        more: The dimensions that come first in the result.
    """
    axes = normal_axes(axis, array.ndim)
    sample = sample_of(function, array, axis)
    others = [one for one in range(array.ndim) if one not in axes]
    rest = [array.shape[one] for one in others]
    dtype = numpy.asarray(sample).dtype
    # A sample of text is shorter than the elements.
    made = room_for(array.place, (*more, *rest), array.dtype if dtype.kind in "US" else dtype)
    lanes = reshape(numpy.transpose(array, [*others, *axes]), (*rest, _length(array, axis)))
    lanes = numpy.moveaxis(sort(lanes, -1), -1, 0)
    counts = len(lanes)
    if leaves_out and lanes.dtype.kind in "fcmM":
        counts = fold(numpy.add, [lanes], 0, prepare=lambda values: ~numpy.isnan(values), dtype=numpy.intp)
    if made.size:
        choose(lanes, counts, made)
    if keepdims:
        made = numpy.expand_dims(made, tuple(len(more) + one for one in axes))
    if out is not None:
        numpy.copyto(out, made, casting="unsafe")
        return out
    return made[()] if isinstance(made, numpy.ndarray) else made


def _median(lanes, counts, made):
    low, high = (counts - 1) // 2, counts // 2
    if isinstance(counts, int):
        rows = [lanes[row] for row in sorted({low, high})]
        made[...] = _with_nans(lanes, lambda *values: numpy.mean(numpy.stack(values), axis=0), rows)
        return

    def middle(one, other, count):
        found = numpy.where(count % 2 == 1, numpy.mean(one[None], axis=0), numpy.mean(numpy.stack([one, other]), axis=0))
        return numpy.where(count == 0, _nan(found.dtype), found)

    made[...] = pointwise(with_out(middle), [_rows(lanes, low), _rows(lanes, high), counts])


def _quantile(lanes, counts, fraction, is_weak):
    """One quantile of each lane, as `numpy.quantile` computes it."""
    if isinstance(counts, int):
        virtual = numpy.asarray((counts - 1) * fraction)
        if virtual.dtype.kind in "iu":
            return _with_nans(lanes, lambda row: row, [lanes[int(virtual)]])
        low = min(int(virtual), counts - 1)
        gamma = numpy.asarray(virtual - (low if virtual < counts - 1 else -1), virtual.dtype)
        rows = [lanes[low], lanes[min(low + 1, counts - 1)]]
        return _with_nans(lanes, lambda one, other: _between(one, other, gamma, is_weak), rows)
    last = numpy.maximum(counts - 1, 0)
    if fraction.dtype.kind in "iu":
        found = _rows(lanes, last * fraction)
        return numpy.where(counts == 0, _nan(found.dtype), found)
    virtual = last.astype(fraction.dtype) * fraction
    low = numpy.minimum(numpy.floor(virtual).astype(numpy.intp), last)

    def between(one, other, gamma, count):
        found = numpy.asarray(_between(one, other, gamma, is_weak))
        return numpy.where(count == 0, _nan(found.dtype), found)

    return pointwise(with_out(between), [_rows(lanes, low), _rows(lanes, numpy.minimum(low + 1, last)), virtual - low, counts])


def _between(one, other, gamma, is_weak):
    difference, parts = numpy.subtract(other, one), (gamma, 1 - gamma)
    if is_weak and difference.dtype.kind == "f":
        parts = [numpy.asarray(part, difference.dtype) for part in parts]
    made = numpy.asarray(numpy.add(one, difference * parts[0]))
    numpy.subtract(other, difference * parts[1], out=made, where=gamma >= 0.5, casting="unsafe", dtype=type(made.dtype))
    return made


def _nan(dtype):
    return numpy.array("NaT" if dtype.kind in "mM" else numpy.nan, dtype)


def _rows(lanes, at):
    """In each lane the element at an index."""
    at = numpy.asarray(at) if isinstance(at, numpy.generic) else at
    found = take_along(lanes, numpy.maximum(at, 0)[None], 0)
    return found[0]


def _with_nans(lanes, function, rows):
    """A function of rows, or NaN where a lane has one. Sorting puts NaNs at the end."""

    def each(*values):
        found = numpy.asarray(function(*values[:-1]))
        last = values[-1]
        return numpy.where(numpy.isnan(last), last.astype(found.dtype), found) if lanes.dtype.kind in "fcmM" else found

    return pointwise(with_out(each), [*rows, lanes[len(lanes) - 1]])
