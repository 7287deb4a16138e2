"""Elements by their indices: slices are views, arrays of integers and masks select.

Of several arrays of indices at once there is no selection here: one array of integers or one mask, with slices beside it.
"""

import numpy

from . import blocks, stream
from .array import RemoteArray
from .ufuncs import apart, is_array, overlap

# Rows that are wanted are read together if at most so many bytes are between them.
ROW_GAP_BYTES = 1 << 16


def get(array, key):
    """`array[key]`."""
    key, selector = _understood(array, key)
    if selector is None:
        view = _viewed(array, key)
        is_element = view.ndim == 0 and array.ndim and not any(part is Ellipsis for part in key)
        return stream.local(view)[()] if is_element else view
    view, axis = _beside(array, key)
    if not _is_mask(selector):
        return take(view, selector, axis)
    if selector.ndim == array.ndim == view.ndim and len(key) == 1:
        return select(array, selector)
    return take(_rows(view, axis, selector), flat_nonzero(selector), axis)


def put(array, key, value):
    """`array[key] = value`."""
    array.check_writeable()
    key, selector = _understood(array, key)
    if selector is None:
        return assign(_viewed(array, key), value)
    view, axis = _beside(array, key)
    value = value if is_array(value) else numpy.asarray(value, array.dtype)
    if _is_mask(selector) and value.ndim == 0 and len(key) == 1:
        condition = selector[(..., *(None,) * (array.ndim - selector.ndim))]
        numpy.copyto(array, value, casting="unsafe", where=condition)
        return None
    if _is_mask(selector):
        view, selector = _rows(view, axis, selector, is_written=True), flat_nonzero(selector)
    return _put_rows(view, selector, value, axis, _set)


def put_at(ufunc, array, key, *values):
    """`ufunc.at`: applies it to elements, again for those that are named more often."""
    if not isinstance(array, RemoteArray):
        raise TypeError("only the indices or the values are remote: numpy.asarray makes local copies")
    array.check_writeable()
    key, selector = _understood(array, key)
    if selector is None or _is_mask(selector):
        raise TypeError(f"{ufunc.__name__}.at takes an array of integers for a remote array")
    view, axis = _beside(array, key)
    value = numpy.zeros((), bool) if not values else values[0] if is_array(values[0]) else numpy.asarray(values[0])
    apply = (lambda rows, at, _: ufunc.at(rows, at)) if not values else ufunc.at
    return _put_rows(view, selector, value, axis, apply)


def assign(target, value, casting="unsafe", where=True):
    """Copies values, which are broadcast, into all of an array, with what an assignment in NumPy allows."""
    if not is_array(value):
        value = numpy.asarray(value, target.dtype)
    while value.ndim > target.ndim and value.shape[0] == 1:
        value = value[0]
    if numpy.broadcast_shapes(value.shape, target.shape) != target.shape:
        raise ValueError(f"could not broadcast input array from shape {value.shape} into shape {target.shape}")
    (value,) = apart([value], [target])
    stream.pointwise(stream.copy_tile, [value], [target], target.place.working_bytes)


def take(array, indices, axis=0):
    """The elements at indices along an axis, in their order: an array in whose shape that axis is replaced by theirs."""
    indices = _integers(indices)
    flat = numpy.ravel(indices)
    shape = array.shape
    made = array.place.empty((*shape[:axis], flat.size, *shape[axis + 1 :]), array.dtype)
    rows, target = numpy.moveaxis(array, axis, 0), numpy.moveaxis(made, axis, 0)
    for piece, at in _index_tiles(rows, flat):
        if at is None:
            numpy.copyto(target[piece], rows[_within(numpy.asarray(flat[piece]), len(rows))[0]][None])
        else:
            stream.part_of(target).put((piece,), _gathered(rows, at))
    return made.reshape((*shape[:axis], *indices.shape, *shape[axis + 1 :]))


def select(array, mask):
    """The elements where a mask of the same shape is true, in the order of C."""
    if mask.shape != array.shape:
        raise IndexError(f"a mask of shape {mask.shape} for an array of shape {array.shape}")
    made = array.place.empty(int(numpy.count_nonzero(mask)), array.dtype)
    target, at = stream.part_of(made), 0
    for _, (values, chosen) in stream.in_order([array, mask], array.shape, array.place.working_bytes):
        values = values[chosen]
        target.put((slice(at, at + len(values)),), values)
        at += len(values)
    return made


def flat_nonzero(array):
    """The indices of the elements that are not zero, in the order of C, as if there were one dimension."""
    if isinstance(array, numpy.ndarray):
        return numpy.flatnonzero(array)
    made = array.place.empty(int(numpy.count_nonzero(array)), numpy.intp)
    target, at = stream.part_of(made), 0
    for index, (values,) in stream.in_order([array], array.shape, array.place.working_bytes):
        found = [where + piece.start for where, piece in zip(values.nonzero(), index)]
        if found and len(found[0]):
            target.put((slice(at, at + len(found[0])),), numpy.ravel_multi_index(found, array.shape))
            at += len(found[0])
    return made


def _understood(array, key):
    """The key as a tuple, with a slice in the place of an array of indices, and that; fields' names as they are."""
    if isinstance(key, str) or (isinstance(key, list) and key and all(isinstance(name, str) for name in key)):
        return key, None
    key = key if isinstance(key, tuple) else (key,)
    selectors = [index for index, part in enumerate(key) if isinstance(part, (list, bool, numpy.bool_)) or is_array(part)]
    selectors = [index for index in selectors if not (is_array(key[index]) and key[index].ndim == 0 and key[index].dtype.kind in "iu")]
    if not selectors:
        return tuple(int(part) if is_array(part) else part for part in key), None
    if len(selectors) > 1:
        raise TypeError("several arrays of indices at once are not there for remote arrays: numpy.asarray(array) makes a local copy")
    (place,) = selectors
    selector = key[place] if is_array(key[place]) else numpy.asarray(key[place])
    if selector.size == 0 and isinstance(key[place], list):
        selector = selector.astype(numpy.intp)
    if selector.ndim == 0:
        raise TypeError("a mask without dimensions is not there for remote arrays")
    others = [part for index, part in enumerate(key) if index != place]
    if any(not isinstance(part, (slice, type(Ellipsis), type(None))) for part in others):
        raise TypeError("an integer beside an array of indices is not there for remote arrays: use array[integer] first")
    if _is_mask(selector) and selector.ndim > 1 and others:
        raise TypeError("a mask of several dimensions beside other indices is not there for remote arrays")
    return (*key[:place], selector, *key[place + 1 :]), selector


def _viewed(array, key):
    """What slices, integers and names of fields say; never an element, which a shadow has none of."""
    if isinstance(key, tuple) and not any(part is Ellipsis for part in key):
        key = (*key, ...)
    return array._viewed(array._shadow[key])


def _beside(array, key):
    """The view that all of a key but its array of indices makes, and the axis to which that belongs."""
    place = next(index for index, part in enumerate(key) if is_array(part))
    if len(key) == 1:
        return array, 0
    rest, axis = (*key[:place], slice(None), *key[place + 1 :]), place
    if any(part is Ellipsis for part in key[:place]):
        axis += array.ndim - sum(part is not None and part is not Ellipsis for part in rest) - 1
    return _viewed(array, rest), axis


def _is_mask(selector):
    return selector.dtype == bool


def _rows(view, axis, mask, is_written=False):
    """The view with the dimensions of a mask as one."""
    if mask.shape != view.shape[axis : axis + mask.ndim]:
        raise IndexError(f"a mask of shape {mask.shape} for dimensions {view.shape[axis : axis + mask.ndim]}")
    if mask.ndim == 1:
        return view
    rows = numpy.reshape(view, (*view.shape[:axis], mask.size, *view.shape[axis + mask.ndim :]))
    if is_written and rows._stretch is not view._stretch:
        raise TypeError("values for a mask of several dimensions cannot be put into a view whose elements are not one behind the other")
    return rows


def _integers(indices):
    indices = indices if is_array(indices) else numpy.asarray(indices)
    if indices.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return indices


def _index_tiles(rows, flat):
    """Pieces of indices whose rows fit the working set, and the indices themselves; None of a piece of one row that does not."""
    room = rows.place.working_bytes // 8
    row_bytes = rows.dtype.itemsize * blocks.product(rows.shape[1:])
    step = min(max(1, room // max(1, row_bytes + 24)), stream.blocks.TILE_BYTES // 8)
    for piece in blocks.pieces(flat.size, step):
        yield piece, None if row_bytes > room else _within(numpy.asarray(flat[piece]), len(rows))


def _within(at, length):
    wrong = at[(at < -length) | (at >= length)]
    if wrong.size:
        raise IndexError(f"index {wrong[0]} is out of bounds for axis with size {length}")
    return numpy.where(at < 0, at + length, at)


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


def _gathered(rows, at):
    part = stream.part_of(rows)
    if not part.is_far:
        gathered = part.array[at]
        part.check()
        return gathered
    made = numpy.empty((len(at), *rows.shape[1:]), rows.dtype)
    for (piece,), (values,) in stream.streamed([part], _runs(rows, at)):
        here = (at >= piece.start) & (at < piece.stop)
        made[here] = values[at[here] - piece.start]
    return made


def _set(rows, at, values):
    rows[at] = values


def _put_rows(view, indices, value, axis, apply):
    indices = _integers(indices)
    shape = (*view.shape[:axis], *indices.shape, *view.shape[axis + 1 :])
    value = numpy.broadcast_to(value, shape)
    value = numpy.reshape(value, (*shape[:axis], indices.size, *shape[axis + indices.ndim :]))
    flat = numpy.ravel(indices)
    value, flat = (array.copy() if overlap(array, view) else array for array in (value, flat))
    rows, values = numpy.moveaxis(view, axis, 0), numpy.moveaxis(value, axis, 0)
    for piece, at in _index_tiles(rows, flat):
        if at is None:
            if apply is not _set:
                raise TypeError("elements of several dimensions that exceed the working set cannot be changed by a ufunc's at")
            assign(rows[_within(numpy.asarray(flat[piece]), len(rows))[0]], values[piece][0])
            continue
        _put_tile(rows, at, numpy.asarray(values[piece]), apply)


def _put_tile(rows, at, values, apply):
    part = stream.part_of(rows)
    if not part.is_far:
        apply(part.array, at, values)
        part.check()
        return
    for (piece,) in _runs(rows, at):
        here = (at >= piece.start) & (at < piece.stop)
        changed = part.begin((piece,))().copy()
        apply(changed, at[here] - piece.start, values[here])
        part.put((piece,), changed)
