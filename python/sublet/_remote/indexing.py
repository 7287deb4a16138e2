"""Elements by their indices: slices are views, arrays of integers and masks select."""

import collections
import operator

import numpy

from . import blocks, stream
from .array import RemoteArray, is_array
from .functions import implements
from .keys import Selection, Selector, is_of_fields, parts_of, selection_of, tiles_of, view_of
from .ufuncs import apart, overlap

# Selected rows are read together if the gap between them is at most this size.
ROW_GAP_BYTES = 1 << 16
# The bytes that an index takes in each axis: itself, and what finding its row needs.
INDEX_BYTES = 24
# The selected rows of one tile have at most this share of the working set.
ROWS_SHARE = 8


@implements(operator.getitem)
def get(array, key):
    """`array[key]`."""
    if is_of_fields(key):
        return view_of(array, key)
    parts = parts_of(key)
    arrays = [part for part in parts if is_array(part)]
    if arrays:
        is_whole_mask = len(parts) == 1 and arrays[0].dtype == bool and arrays[0].ndim == array.ndim > 0
        return select(array, arrays[0]) if is_whole_mask else gather(selection_of(array, parts, flat_nonzero))
    view = view_of(array, parts)
    if view.ndim == 0 and not any(part is Ellipsis for part in parts):
        return stream.local(view)[()]
    # As in NumPy, an array of no dimensions makes a copy.
    return view.copy() if any(is_array(part) for part in (key if isinstance(key, tuple) else (key,))) else view


@implements(operator.setitem)
def put(array, key, value):
    """`array[key] = value`."""
    array.check_writeable()
    if is_of_fields(key):
        return assign(view_of(array, key), value)
    parts = parts_of(key)
    arrays = [part for part in parts if is_array(part)]
    if not arrays:
        return assign(view_of(array, parts), value)
    value = value if is_array(value) else numpy.asarray(value, array.dtype)
    if len(parts) == 1 and arrays[0].dtype == bool and value.ndim == 0 and arrays[0].shape == array.shape[: arrays[0].ndim]:
        condition = arrays[0][(..., *(None,) * (array.ndim - arrays[0].ndim))]
        return numpy.copyto(array, value, casting="unsafe", where=condition)
    return scatter(selection_of(array, parts, flat_nonzero), value, _set)


@implements(numpy.ufunc.at)
def put_at(ufunc, array, key, *values):
    """`ufunc.at`: applies it to elements, again for those that are named more often."""
    if not isinstance(array, RemoteArray):
        raise TypeError("only the indices or the values are remote: numpy.asarray makes local copies")
    array.check_writeable()
    parts = parts_of(key)
    if not any(is_array(part) for part in parts):
        view = view_of(array, parts)
        ufunc(view, *values, out=view)
        return
    value = numpy.zeros((), bool) if not values else values[0] if is_array(values[0]) else numpy.asarray(values[0])

    def apply(rows, at, values):
        ufunc.at(rows, at, *([values] if ufunc.nin > 1 else []))

    def apply_to_row(row, values):
        ufunc(row, *([values] if ufunc.nin > 1 else []), out=row)

    scatter(selection_of(array, parts, flat_nonzero), value, apply, apply_to_row)


def assign(target, value):
    """Copies values, which are broadcast, into all of an array, with what an assignment in NumPy allows."""
    if not is_array(value):
        value = numpy.asarray(value, target.dtype)
    (value,) = apart([fitting(value, target.shape)], [target])
    stream.pointwise(stream.copy_tile, [value], [target], target.place.working_bytes)


def fitting(value, shape):
    """Values that can be broadcast to a shape, without what is too many dimensions of one element."""
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0, ...]
    fits = value.ndim <= len(shape) and all(
        one in (1, other) for one, other in zip(value.shape, shape[len(shape) - value.ndim :])
    )
    if not fits:
        raise ValueError(f"could not broadcast input array from shape {value.shape} into shape {tuple(shape)}")
    return value


def take(array, indices, axis=0):
    """The elements at indices along an axis, in their order: an array in whose shape that axis is replaced by theirs."""
    return gather(along(array, indices, axis))


def along(array, indices, axis):
    """The selection of indices along one axis."""
    indices = indices if is_array(indices) else numpy.asarray(indices)
    if indices.dtype.kind not in "iub":
        raise TypeError(f"cannot cast indices from {indices.dtype!r} to {numpy.dtype(numpy.intp)!r} according to the rule 'safe'")
    indices = indices.astype(numpy.intp) if indices.dtype.kind == "b" else indices
    return Selection(numpy.moveaxis(array, axis, 0), [Selector(indices, array.shape[axis : axis + 1])], axis)


def take_along(array, indices, axis):
    """The elements at indices along an axis, which are others in each lane."""
    return gather(_along_lanes(array, indices, axis))


def put_along(array, indices, values, axis):
    """Sets the elements at indices along an axis, which are others in each lane; without an axis those of the flattened array."""
    array.check_writeable()
    values = values if is_array(values) else numpy.asarray(values, array.dtype)
    if axis is not None:
        return scatter(_along_lanes(array, indices, axis), values, _set)
    _check_lanes(indices, 1)
    array = array if array.ndim else array[None]
    return scatter(Selection(array, [Selector(indices, array.shape)], 0), values, _set)


def _along_lanes(array, indices, axis):
    _check_lanes(indices, array.ndim)
    selectors = []
    for one, length in enumerate(array.shape):
        here = indices if one == axis else counted(array.place, length)[(..., *(None,) * (array.ndim - one - 1))]
        selectors.append(Selector(here, (length,)))
    return Selection(array, selectors, 0)


def _check_lanes(indices, ndim):
    if indices.dtype.kind not in "iu":
        raise IndexError("`indices` must be an integer array")
    if indices.ndim != ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")


def counted(place, length):
    """The numbers up to a length: remote ones, if they are many."""
    return numpy.arange(length) if place.is_small(length * 8) else place.arange(length)


def select(array, mask):
    """The elements where a mask of the same shape is true, in the order of C."""
    if mask.shape != array.shape:
        raise IndexError(f"boolean index did not match indexed array: a mask of shape {mask.shape} for an array of shape {array.shape}")
    made = array.place.empty(int(numpy.count_nonzero(mask)), array.dtype)
    target, at = stream.part_of(made), 0
    for _, (values, chosen) in stream.in_order([array, mask], array.shape, array.place.working_bytes):
        values = values[chosen]
        target.put((slice(at, at + len(values)),), values)
        at += len(values)
    return made


def viewed_as(array, shape):
    """A view of an array in another shape; raises an `AttributeError` or `ValueError` if there is none."""
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
        return numpy.reshape(array, shape, copy=False)
    # Deprecated since NumPy 2.5.
    view = array.view()
    view.shape = shape
    return view


def flat_nonzero(array):
    """The indices of the elements that are not zero, in the order of C, as if there were one dimension."""
    if isinstance(array, numpy.ndarray):
        return numpy.flatnonzero(array)
    array = array if array.ndim else array[None]
    made = array.place.empty(int(numpy.count_nonzero(array)), numpy.intp)
    target, at = stream.part_of(made), 0
    for index, (values,) in stream.in_order([array], array.shape, array.place.working_bytes):
        found = [where + piece.start for where, piece in zip(values.nonzero(), index)]
        if len(found[0]):
            target.put((slice(at, at + len(found[0])),), numpy.ravel_multi_index(found, array.shape))
            at += len(found[0])
    return made


def _tiles(selection):
    """The tiles of a selection, and whether the rows of one fit the working set; if not, each tile is one row."""
    rows = selection.rows
    room = rows.place.working_bytes // ROWS_SHARE
    row_bytes = rows.dtype.itemsize * blocks.product(rows.shape[selection.depth :])
    step = min(max(1, room // (row_bytes + INDEX_BYTES * selection.depth)), blocks.TILE_BYTES // 8)
    tiles = tiles_of(selection, 1 if row_bytes > room else step)
    if row_bytes == 0:
        # Nothing is selected, but the indices are checked, as in NumPy.
        collections.deque(tiles, 0)
    return tiles, row_bytes <= room


def _one_row(index, columns):
    """A tile of one row: where it is in the selection, and in the rows."""
    return tuple(piece.start for piece in index), tuple(int(column.ravel()[0]) for column in columns)


def gather(selection):
    """The selected elements: a new array."""
    rows = selection.rows
    made = rows.place.empty(selection.result_shape, rows.dtype)
    target = selection.with_selection_first(made)
    tiles, is_fitting = _tiles(selection)
    for index, columns in tiles:
        if is_fitting:
            stream.part_of(target).put(index, _gathered(rows, columns))
            continue
        there, here = _one_row(index, columns)
        numpy.copyto(target[(*there, ...)], rows[(*here, ...)])
    return made


def scatter(selection, value, apply, apply_to_row=assign):
    """Changes what is selected, with values that are broadcast to it.

    Args:
        apply: `apply(rows, columns, values)` changes the rows of a tile, which are local.
        apply_to_row: `apply_to_row(row, values)` changes one row that does not fit the working set.
    """
    value = fitting(value, selection.result_shape)
    rows, values = selection.rows, selection.with_selection_first(numpy.broadcast_to(value, selection.result_shape))
    if overlap(values, rows):
        values = values.copy()
    for selector in selection.selectors:
        if overlap(selector.indices, rows):
            selector.indices = selector.indices.copy()
    tiles, is_fitting = _tiles(selection)
    for index, columns in tiles:
        if is_fitting:
            _put_tile(rows, columns, numpy.asarray(values[(*index, ...)]), apply)
            continue
        there, here = _one_row(index, columns)
        apply_to_row(rows[(*here, ...)], values[(*there, ...)])


def _set(rows, at, values):
    rows[at] = values


def _gathered(rows, columns):
    part, shape, rest = stream.part_of(rows), columns[0].shape, rows.shape[len(columns) :]
    if not part.is_far:
        gathered = part.array[tuple(columns)]
        part.check()
        return gathered
    made = numpy.empty((columns[0].size, *rest), rows.dtype)
    for lines, here, at in _lines(rows, columns):
        for (piece,), (values,) in stream.streamed([stream.part_of(lines)], _runs(lines, at)):
            inside = (at >= piece.start) & (at < piece.stop)
            made[here[inside]] = values[at[inside] - piece.start]
    return made.reshape((*shape, *rest))


def _put_tile(rows, columns, values, apply):
    part = stream.part_of(rows)
    if not part.is_far:
        apply(part.array, tuple(columns), values)
        part.check()
        return
    values = values.reshape(columns[0].size, *rows.shape[len(columns) :])
    for lines, here, at in _lines(rows, columns):
        part = stream.part_of(lines)
        for (piece,) in _runs(lines, at):
            inside = (at >= piece.start) & (at < piece.stop)
            changed = part.begin((piece,))().copy()
            apply(changed, at[inside] - piece.start, values[here[inside]])
            part.put((piece,), changed)


def _lines(rows, columns):
    """Rows along several axes as rows along one: an array, and which of the rows are in it, and where.

    That is all of them at once if the axes lie one behind the other, and otherwise those with the same index in all but one.
    """
    columns = [column.ravel() for column in columns]
    depth = len(columns)
    order = sorted(range(depth), key=lambda axis: -abs(rows.strides[axis]))
    rows = numpy.moveaxis(rows, order, range(depth))
    columns = [columns[axis] for axis in order]
    try:
        shadow = viewed_as(rows._shadow, (-1, *rows.shape[depth:]))
    except (AttributeError, ValueError):
        pass
    else:
        yield rows._viewed(shadow), numpy.arange(columns[0].size), numpy.ravel_multi_index(columns, rows.shape[:depth])
        return
    prefixes, which = numpy.unique(numpy.stack(columns[:-1]), axis=1, return_inverse=True)
    which = which.ravel()
    for number, prefix in enumerate(prefixes.T.tolist()):
        here = numpy.flatnonzero(which == number)
        yield rows[(*prefix, ...)], here, columns[-1][here]


def _runs(rows, at):
    """Stretches of rows that hold all that are wanted, each read at once."""
    wanted = numpy.unique(at)
    row_bytes = max(1, rows.dtype.itemsize * blocks.product(rows.shape[1:]))
    most = max(1, rows.place.working_bytes // (4 * row_bytes))
    breaks = set((numpy.flatnonzero(numpy.diff(wanted) * row_bytes > ROW_GAP_BYTES) + 1).tolist())
    begin = last = None
    for index, row in enumerate(wanted.tolist()):
        if begin is None:
            begin = row
        elif index in breaks or row - begin >= most:
            yield (slice(begin, last + 1),)
            begin = row
        last = row
    if begin is not None:
        yield (slice(begin, last + 1),)
