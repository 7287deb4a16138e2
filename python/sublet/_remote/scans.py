"""Implements operations along one axis from its beginning to its end: accumulations, and the places of the least and the greatest
element."""

import itertools

import numpy

from . import blocks, stream
from .functions import implements
from .reductions import computing_dtype, finished, normal_axes, room_for, sample_of, with_axis
from .ufuncs import apart, check_remote


def running(ufunc, array, axis=None, dtype=None, out=None, prepare=None):
    """`numpy.cumsum` and those like it: along all elements without an axis, and with a dtype of any byte order, unlike `accumulate`."""
    array, axis = with_axis(array, axis)
    return accumulate(ufunc, array, axis, None if dtype is None else computing_dtype(numpy.dtype(dtype)), out, prepare)


@implements(numpy.ufunc.accumulate)
def accumulated(ufunc, array, axis=0, dtype=None, out=None):
    check_remote(array)
    return accumulate(ufunc, array, axis, dtype, out[0] if out else None)


def accumulate(ufunc, array, axis=0, dtype=None, out=None, prepare=None):
    """`ufunc.accumulate` of what `prepare` makes of tiles: each begins with the last result of the one before, so that all are NumPy's."""
    sample = sample_of(ufunc.accumulate, array, axis, dtype)
    computed = computing_dtype(sample.dtype)
    (axis,) = normal_axes(axis, array.ndim)
    made = array.place.empty(array.shape, sample.dtype) if out is None else out
    if made.shape != array.shape:
        raise ValueError(f"an output of shape {made.shape} for results of shape {array.shape}")
    (array,) = apart([array], [made])
    before, carry = (slice(None),) * axis, None
    for (index, is_first), values in along(array, axis, made):
        values = values if prepare is None else prepare(values)
        begun = values if is_first else numpy.concatenate([carry, values.astype(sample.dtype, copy=False)], axis)
        results = ufunc.accumulate(begun.astype(sample.dtype) if computed is None else begun, axis, computed)
        results = results if is_first else results[(*before, slice(1, None))]
        carry = results[(*before, slice(-1, None))].copy()
        stream.part_of(made).put(index, results)
    return made


def along(array, axis, *results):
    """The tiles of an array, those along an axis one after the other: an index, whether it begins there, and the elements.

    The tiles of results of the same shape fit the working set, too.
    """
    parts, order, tile = stream.arranged([array, *results], array.shape, array.place.working_bytes)
    back = [order.index(index) for index in range(array.ndim)]
    tile = [tile[index] for index in back]
    part = parts[0].like(parts[0].array.transpose(back))
    steps = [blocks.pieces(length, step) for length, step in zip(array.shape, tile)]
    others = [[None] if index == axis else pieces for index, pieces in enumerate(steps)]
    indexes = (tuple(piece if one is None else one for one in other) for other in itertools.product(*others) for piece in steps[axis])
    for index, (values,) in stream.streamed([part], indexes):
        yield (index, index[axis].start == 0), values


def argument(choose, array, axis=None, out=None, keepdims=False, prepare=None):
    """`numpy.argmin` or `argmax`: where the first of the least, or of the greatest, or of those that are no number, is."""
    prepared = prepare or (lambda values: values)
    ndim = array.ndim
    if ndim == 0:
        return finished(choose(prepared(stream.local(array)), axis), (), out, keepdims)
    if axis is None:
        array, axes, axis = numpy.ravel(array), tuple(range(ndim)), 0
    else:
        sample_of(choose, array, axis)
        axes = normal_axes(axis, ndim)
        (axis,) = axes
    if array.shape[axis] == 0:
        raise ValueError(f"attempt to get {choose.__name__} of an empty sequence")
    kept = tuple(1 if index == axis else length for index, length in enumerate(array.shape))
    result = room_for(array.place, kept, numpy.dtype(numpy.intp))
    best_before = before = None
    for (index, is_first), values in along(array, axis):
        values = prepared(values)
        here = numpy.expand_dims(choose(values, axis), axis)
        best = numpy.take_along_axis(values, here, axis)
        here = here + index[axis].start
        if not is_first:
            is_later = numpy.expand_dims(choose(numpy.concatenate([best_before, best], axis), axis), axis)
            best = numpy.where(is_later, best, best_before)
            here = numpy.where(is_later, here, before)
        best_before, before = best, here
        stream.part_of(result).put((*index[:axis], slice(0, 1), *index[axis + 1 :]), here)
    if ndim != array.ndim:
        result = result.reshape((1,) * ndim)
    return finished(result, axes, out, keepdims)
