"""Reductions: what ufuncs make of many elements, folded tile by tile.

Sums are at least as exact as NumPy's: within a tile they are NumPy's own, and where NumPy would add pairwise, so are those of the
tiles. Sums of float16 are made in float32 and rounded once.
"""

import itertools
import operator

import numpy

from . import blocks, stream
from .array import place_among
from .functions import implements
from .ufuncs import check_remote

# Functions by which the results of parts can be combined in any order.
ASSOCIATIVE = frozenset(
    (
        *(numpy.add, numpy.multiply, numpy.minimum, numpy.maximum, numpy.fmin, numpy.fmax, numpy.hypot, numpy.gcd, numpy.lcm),
        *(numpy.logical_and, numpy.logical_or, numpy.logical_xor, numpy.logaddexp, numpy.logaddexp2),
        *(numpy.bitwise_and, numpy.bitwise_or, numpy.bitwise_xor),
    )
)
# Pairwise sums keep at most this number of tiles' results, and are used only where a tile is larger than a result by
# this factor.
PAIRWISE_DEPTH = 64
# NumPy's value for an argument that was not passed.
UNSET = numpy._NoValue

AxisError = getattr(numpy, "exceptions", numpy).AxisError


def fold(ufunc, operands, axis=None, *, prepare=None, dtype=None, out=None, keepdims=False, initial=UNSET, where=True, place=None):
    """`ufunc.reduce` over axes of what `prepare` makes of the operands' tiles, which have, broadcast, one shape."""
    if ufunc not in ASSOCIATIVE:
        raise TypeError(f"{ufunc.__name__}.reduce is not there for remote arrays: the results of their parts cannot be combined")
    place = place or place_among(operands)
    shape = numpy.broadcast_shapes(*(operand.shape for operand in operands))
    axes = reduced_axes(axis, len(shape))
    prepare = prepare or (lambda values: values)
    given = len(operands)
    if where is not True:
        operands = [*operands, where]

    def reduced(*values, axes=axes):
        options = {} if where is True else {"where": values[given]}
        if initial is not UNSET and ufunc.identity is None:
            options["initial"] = initial
        return ufunc.reduce(prepare(*values[:given]), axes, dtype, keepdims=True, **options)

    kept = tuple(1 if index in axes else length for index, length in enumerate(shape))
    if 0 in shape:
        result = reduced(*(numpy.empty(shape, array.dtype) for array in operands))
    else:
        sample = reduced(*(numpy.ones((1,) * len(shape), array.dtype) for array in operands))
        made_dtype, dtype = sample.dtype, _wide(ufunc, sample.dtype, dtype)
        result = room_for(place, kept, made_dtype)
        _fold_tiles(ufunc, operands, result, axes, reduced, place.working_bytes)
    if initial is not UNSET:
        result = ufunc(result, initial, out=result, casting="unsafe") if ufunc.identity is not None else result
    return finished(result, axes, out, keepdims)


@implements(numpy.ufunc.reduce)
def reduce(ufunc, array, axis=0, dtype=None, out=None, **options):
    check_remote(array)
    return fold(ufunc, [array], axis, dtype=dtype, out=out[0] if out else None, **options)


def _wide(ufunc, made_dtype, dtype):
    return numpy.float32 if ufunc is numpy.add and made_dtype == numpy.float16 else dtype


def _fold_tiles(ufunc, operands, result, axes, reduced, room_bytes):
    """Combines, for each tile of the kept axes, the tiles of the reduced axes one after the other."""
    shape = numpy.broadcast_shapes(*(operand.shape for operand in operands))
    parts, order, tile = stream.arranged(operands, shape, room_bytes)
    target = stream.part_of(result)
    target = target.like(target.array.transpose(order))
    is_folded = [axis in axes for axis in order]
    folded = tuple(index for index, is_here in enumerate(is_folded) if is_here)
    steps = [blocks.pieces(shape[axis], length) for axis, length in zip(order, tile)]
    kept_size = blocks.product(length for length, is_here in zip(tile, is_folded) if not is_here)
    combined = _Pairwise if kept_size * PAIRWISE_DEPTH <= blocks.product(tile) else _InOrder

    def indexes():
        for kept in itertools.product(*([None] if here else pieces for pieces, here in zip(steps, is_folded))):
            yield from itertools.product(*(pieces if one is None else [one] for pieces, one in zip(steps, kept)))

    def kept_index(index):
        return tuple(slice(0, 1) if here else piece for piece, here in zip(index, is_folded))

    for index, tiles in itertools.groupby(stream.streamed(parts, indexes()), key=lambda tile: kept_index(tile[0])):
        total = combined(ufunc)
        for _, values in tiles:
            total.take(reduced(*values, axes=folded))
        target.put(index, total.value())


class _InOrder:
    """Combines results with what there is already."""

    def __init__(self, ufunc):
        self._ufunc, self._total = ufunc, None

    def take(self, value):
        self._total = value if self._total is None else self._ufunc(self._total, value)

    def value(self):
        return self._total


class _Pairwise:
    """Combines results as a tree: those of two tiles, then those of two such twos."""

    def __init__(self, ufunc):
        self._ufunc, self._waiting, self._count = ufunc, [], 0

    def take(self, value):
        self._count += 1
        count = self._count
        while count % 2 == 0:
            value = self._ufunc(self._waiting.pop(), value)
            count //= 2
        self._waiting.append(value)

    def value(self):
        total = self._waiting.pop()
        while self._waiting:
            total = self._ufunc(self._waiting.pop(), total)
        return total


def is_said(keepdims):
    """Whether `keepdims` was given, and true."""
    return keepdims is not UNSET and bool(keepdims)


def sample_of(function, array, *args, **options):
    """Returns what a function of NumPy's makes of one element in equally many dimensions: the array's dtype, or the
    same error.
    """
    with numpy.errstate(all="ignore"):
        return function(numpy.ones((1,) * array.ndim, array.dtype), *args, **options)


def normal_axes(axis, ndim):
    """Returns axes as numbers from 0 on."""
    if axis is None:
        return tuple(range(ndim))
    axes = []
    for one in axis if isinstance(axis, (tuple, list)) else (axis,):
        one = operator.index(one)
        if not -ndim <= one < ndim:
            raise AxisError(one, ndim)
        axes.append(one % ndim)
    if len(set(axes)) < len(axes):
        raise ValueError("duplicate value in 'axis'")
    return tuple(axes)


def with_axis(array, axis):
    """Returns an array and one of its axes, counted from 0.

    Flattens arrays without dimensions, and all for axis None, as NumPy does.
    """
    if axis is None or array.ndim == 0:
        array = numpy.ravel(array)
    (axis,) = normal_axes(0 if axis is None else axis, array.ndim)
    return array, axis


def reduced_axes(axis, ndim):
    """The axes that a reduction is over; NumPy lets one be named of an array that has no dimensions."""
    return () if ndim == 0 and axis in (0, -1, (0,), (-1,)) else normal_axes(axis, ndim)


def computing_dtype(dtype):
    """A dtype in the machine's byte order, as ufuncs take it; None for times, whose unit they find by themselves."""
    return None if dtype.kind in "mM" else numpy.dtype(dtype.type) if dtype.kind in "biufc" else dtype


def finished(result, axes, out, keepdims):
    """Returns the result of a reduction: without the axes of length 1 that it left, and in `out` if that is given."""
    if not keepdims and axes:
        result = numpy.squeeze(result, axes)
    if out is not None:
        numpy.copyto(out, result, casting="same_kind")
        return out
    return result[()] if isinstance(result, numpy.ndarray) and result.ndim == 0 else result


def room_for(place, shape, dtype):
    """Makes a new array for the result of a reduction."""
    if place.is_small(blocks.product(shape) * dtype.itemsize):
        return numpy.empty(shape, dtype)
    return place.empty(shape, dtype)
