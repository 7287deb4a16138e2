"""Products of matrices, by tiles of both and of the result."""

import itertools
import math

import numpy

from . import blocks, stream
from .array import is_array, place_among
from .functions import implements
from .ufuncs import overlap

# The tiles of the factors come twice, one that is used and the next, and are put together of rows; the product's are added up.
TILES_HELD = 8


@implements(numpy.matmul)
def matmul(one, other, out=None, **options):
    """`numpy.matmul`, also of stacks of matrices: the sums are of NumPy's products of tiles, one after the other."""
    one, other = (array if is_array(array) else numpy.asarray(array) for array in (one, other))
    place = place_among([one, other, out])
    dropped = tuple(axis for axis, array in ((-2, one), (-1, other)) if array.ndim == 1)
    left = one[None] if one.ndim == 1 else one
    right = other[:, None] if other.ndim == 1 else other
    stacks, shape, dtype = _result(left, right, options)
    target = place.empty(shape, dtype) if out is None else numpy.expand_dims(out, dropped) if dropped else out
    if target.shape != shape or not numpy.can_cast(dtype, target.dtype, "same_kind"):
        raise ValueError(f"matmul: an output of shape {target.shape} and {target.dtype} for a product of shape {shape} and {dtype}")
    # Tiles of the factors are read again after the product's first are written.
    left, right = (array.copy() if overlap(array, target) else array for array in (left, right))
    left, right = (numpy.broadcast_to(array, (*stacks, *array.shape[-2:])) for array in (left, right))
    _multiply(left, right, target, dtype, place.working_bytes)
    if out is not None:
        return out
    made = numpy.squeeze(target, dropped) if dropped else target
    return made if made.ndim else stream.local(made)[()]


def _result(left, right, options):
    if left.ndim < 2 or right.ndim < 2:
        raise ValueError("matmul: an operand has no dimensions: use * instead")
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(f"matmul: matrices of shapes {left.shape[-2:]} and {right.shape[-2:]} have no product")
    stacks = numpy.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    # NumPy says of which dtype it is, whether there is one, and which options it has.
    dtype = numpy.matmul(numpy.empty((0, 0), left.dtype), numpy.empty((0, 0), right.dtype), **options).dtype
    return stacks, (*stacks, left.shape[-2], right.shape[-1]), dtype


def _multiply(left, right, target, dtype, room_bytes):
    if 0 in left.shape or 0 in right.shape:
        target[...] = 0
        return
    stacks = target.shape[:-2]
    matrices = left.shape[-2:], right.shape[-2:], target.shape[-2:]
    area = room_bytes // (TILES_HELD * max(array.dtype.itemsize for array in (left, right, target)))
    at_once = area // sum(blocks.product(shape) for shape in matrices)
    if stacks and at_once:
        _whole(left, right, target, dtype, blocks.slab(stacks, at_once))
        return
    for stack in numpy.ndindex(stacks):
        _tiled(left[(*stack, ...)], right[(*stack, ...)], target[(*stack, ...)], dtype, area)


def _whole(left, right, target, dtype, tile):
    """Several whole matrices at a time."""
    parts, result = [stream.part_of(left), stream.part_of(right)], stream.part_of(target)
    for index, values in stream.streamed(parts, blocks.tiles(target.shape[:-2], tile)):
        result.put(index, numpy.matmul(*values, dtype=dtype))


def _tiled(left, right, target, dtype, area):
    """One product, whose tiles have at most an area of elements."""
    (rows, inner), columns = left.shape, right.shape[1]
    steps = [blocks.pieces(length, step) for length, step in zip((rows, columns, inner), _sides(rows, columns, inner, area))]
    parts, result = [Factor(left, 0, 2), Factor(right, 2, 1)], stream.part_of(target)
    # NumPy adds products of float16 in float32, too.
    wide = numpy.dtype("f4") if dtype == numpy.float16 else dtype
    total = None
    for index, values in stream.streamed(parts, itertools.product(*steps)):
        product = numpy.matmul(*values, dtype=wide)
        total = product if index[2].start == 0 else numpy.add(total, product, out=total)
        if index[2].stop == inner:
            result.put(index[:2], total)


def _sides(rows, columns, inner, area):
    """The lengths of tiles: as squares, or longer where others are short."""
    side = max(1, math.isqrt(area))
    rows_step, columns_step, inner_step = (min(length, side) for length in (rows, columns, inner))
    inner_step = max(1, min(inner, area // max(rows_step, columns_step)))
    rows_step = max(1, min(rows, area // max(columns_step, inner_step)))
    columns_step = max(1, min(columns, area // max(rows_step, inner_step)))
    return rows_step, columns_step, inner_step


class Factor:
    """A matrix as a part of a product: its tile is that of two of the three indices, and stays while these do."""

    def __init__(self, matrix, *which):
        self._part, self._which = stream.part_of(matrix), which
        self.check = self._part.check
        self._last = self._tile = None

    def begin(self, index):
        here = tuple(index[which] for which in self._which)
        if here != self._last:
            self._last, self._tile = here, _Once(self._part.begin(here))
        return self._tile


class _Once:
    """An operation that was begun, and is finished when its values are first read."""

    def __init__(self, finish):
        self._finish, self._values = finish, None

    def __call__(self):
        if self._finish is not None:
            self._values, self._finish = self._finish(), None
        return self._values


@implements(numpy.dot)
def dot(one, other, out=None):
    one, other = (array if is_array(array) else numpy.asarray(array) for array in (one, other))
    if one.ndim == 0 or other.ndim == 0:
        return numpy.multiply(one, other, out=out)
    if other.ndim <= 2 and (one.ndim <= 2 or other.ndim == 1):
        return matmul(one, other, out)
    made = numpy.tensordot(one, other, (-1, -2))
    if out is None:
        return made
    if out.shape != made.shape or out.dtype != made.dtype:
        raise ValueError("output array is not acceptable (must have the right datatype, number of dimensions, and be a C-Array)")
    numpy.copyto(out, made)
    return out


@implements(numpy.outer)
def outer(one, other, out=None):
    one, other = (numpy.ravel(array if is_array(array) else numpy.asarray(array)) for array in (one, other))
    return numpy.multiply(one[:, None], other, out=out)
