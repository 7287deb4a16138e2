"""The meaning of an index: a view that its slices make, and arrays of indices that select from that view.

The rules are NumPy's. An integer beside an array of indices is an index, too. A mask means the indices of its true elements, one array
for each of its dimensions. All arrays are broadcast to the shape of the selection. Its dimensions replace those of the indices if
the indices are adjacent, and come first otherwise.
"""

import operator

import numpy

from . import blocks, stream
from .array import is_array


class Selector:
    """Integers that select along one or more axes: they count the elements of these axes in the order of C."""

    def __init__(self, indices, lengths):
        self.indices, self.lengths = indices, lengths

    def columns(self, indices):
        """Some of the indices, as one array for each axis; none is negative.

        Raises:
            IndexError: One is out of bounds.
        """
        length = blocks.product(self.lengths)
        wrong = indices[(indices < -length) | (indices >= length)]
        if wrong.size:
            raise IndexError(f"index {wrong[0]} is out of bounds for {_axes_of(self.lengths)}")
        indices = numpy.where(indices < 0, indices + length, indices).astype(numpy.intp, copy=False)
        return [indices] if len(self.lengths) == 1 else list(numpy.unravel_index(indices, self.lengths)) if self.lengths else []


def _axes_of(lengths):
    return f"axis with size {lengths[0]}" if len(lengths) == 1 else f"axes with sizes {lengths}"


class Selection:
    """The elements of `rows` that `selectors` pick along its first axes.

    `shape` is the shape to which the indices are broadcast; its dimensions are inserted before the axis `position` of the others.
    """

    def __init__(self, rows, selectors, position):
        self.rows, self.selectors, self.position = rows, selectors, position
        try:
            self.shape = numpy.broadcast_shapes(*(selector.indices.shape for selector in selectors))
        except ValueError:
            shapes = [selector.indices.shape for selector in selectors]
            raise IndexError(f"shape mismatch: indexing arrays of shapes {shapes} could not be broadcast together") from None
        self.depth = max(1, sum(len(selector.lengths) for selector in selectors))
        if not any(selector.lengths for selector in selectors):
            self.rows = rows[None]

    @property
    def result_shape(self):
        rest = self.rows.shape[self.depth :]
        return (*rest[: self.position], *self.shape, *rest[self.position :])

    def with_selection_first(self, result):
        """An array of the result's shape, with the dimensions of the indices as the first ones."""
        return numpy.moveaxis(result, range(self.position, self.position + len(self.shape)), range(len(self.shape)))

    def columns(self, values):
        """A tile of all selectors' indices, as one array for each axis."""
        columns = [column for selector, indices in zip(self.selectors, values) for column in selector.columns(indices)]
        return columns or [numpy.zeros(values[0].shape, numpy.intp)]


def view_of(array, key):
    """Returns the view that slices, integers and names of fields select; never an element, because a shadow has no
    elements.
    """
    if isinstance(key, tuple) and not any(part is Ellipsis for part in key):
        key = (*key, ...)
    return array._viewed(array._shadow[key])


def is_of_fields(key):
    """Whether a key names fields of records."""
    return isinstance(key, str) or (isinstance(key, list) and len(key) > 0 and all(isinstance(name, str) for name in key))


def parts_of(key):
    """A key as a tuple whose lists are arrays, and whose numbers are Python's."""
    return tuple(_part(part) for part in (key if isinstance(key, tuple) else (key,)))


def _part(part):
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if not is_array(part) and isinstance(part, (bool, numpy.bool_)):
        return numpy.asarray(part)
    if not is_array(part) and not isinstance(part, (list, tuple)):
        try:
            return operator.index(part)
        except TypeError:
            raise IndexError(
                "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are valid indices"
            ) from None
    if not is_array(part):
        part = numpy.asarray(part)
        part = part.astype(numpy.intp) if part.size == 0 else part
    if part.dtype.kind not in "iub":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return int(part) if part.ndim == 0 and part.dtype.kind != "b" else part


def selection_of(array, parts, flat_nonzero):
    """The selection of a key in which arrays are; `flat_nonzero(mask)` is where a mask is true."""
    parts = _spread(array, parts)
    basic, axes, selectors, found = [], [], [], []
    axis = view_axis = result_axis = 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            continue
        if part is None or isinstance(part, slice):
            basic.append(part)
            axis += part is not None
            view_axis, result_axis = view_axis + 1, result_axis + 1
            continue
        found.append((place, result_axis))
        if isinstance(part, int):
            basic.append(part)
            axis += 1
            continue
        depth = part.ndim if part.dtype == bool else 1
        lengths = array.shape[axis : axis + depth]
        if part.dtype == bool and part.shape != lengths:
            raise IndexError(f"boolean index did not match indexed array: a mask of shape {part.shape} for dimensions {lengths}")
        selectors.append(Selector(flat_nonzero(part) if part.dtype == bool else part, lengths))
        axes.extend(range(view_axis, view_axis + depth))
        basic.extend([slice(None)] * depth)
        axis, view_axis = axis + depth, view_axis + depth
    places = [place for place, _ in found]
    is_adjacent = places == list(range(places[0], places[0] + len(places)))
    rows = numpy.moveaxis(view_of(array, tuple(basic)), axes, range(len(axes)))
    return Selection(rows, selectors, found[0][1] if is_adjacent else 0)


def _spread(array, parts):
    """Returns the parts of a key with the slices that its ellipsis stands for."""
    used = sum(0 if part is None or part is Ellipsis else part.ndim if is_array(part) and part.dtype == bool else 1 for part in parts)
    ellipses = [place for place, part in enumerate(parts) if part is Ellipsis]
    if used > array.ndim:
        raise IndexError(f"too many indices for array: array is {array.ndim}-dimensional, but {used} were indexed")
    if len(ellipses) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    missing = [slice(None)] * (array.ndim - used)
    at = ellipses[0] + 1 if ellipses else len(parts)
    return (*parts[:at], *missing, *parts[at:])


def tiles_of(selection, elements):
    """Each tile of a selection, of at most some elements: its index in the selection's dimensions, and a column for each axis."""
    operands = [selector.indices for selector in selection.selectors]
    for index, values in stream.slabs(operands, selection.shape, elements):
        yield index, selection.columns(values)
