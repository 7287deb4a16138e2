"""Sorting: runs that fit the working set are sorted by NumPy, and merged block by block.

A sort of n elements of which r fit takes one pass of n for the runs and log_16(n / r) for merging them. Each pass reads
and writes all elements once. Beside the array and its result, sorting needs as much remote memory again.
"""

import numpy

from . import blocks, indexing, stream
from .array import RemoteArray, is_array, place_among
from .functions import implements
from .reductions import normal_axes, with_axis

# Maximum share of a run in the working set, which also has the next run, its copy, its order, and memory for sorting
# itself.
RUN_SHARE = 8
# Number of runs that are merged at a time, each with a block of at most this share of the working set, and the next
# block.
MERGED_RUNS = 16
BLOCK_SHARE = 128
_UNSTABLE = (None, "quicksort", "heapsort")


@implements(numpy.sort)
def sort(array, axis=-1, kind=None, order=None, *, stable=None):
    _check_order(order)
    if axis is None:
        array, axis = numpy.ravel(array), 0
    made = array.copy("C")
    sort_in_place(made, axis, kind, stable)
    return made


@implements(numpy.ndarray.sort)
def sort_in_place(array, axis=-1, kind=None, stable=None):
    """Sorts along an axis. Elements that are equal keep their order if the kind is `"stable"`, which with these cannot be seen."""
    array.check_writeable()
    part, (axis,) = stream.part_of(array), normal_axes(axis, array.ndim)
    if not part.is_far and part.array.strides[axis] == array.itemsize and array.dtype.isnative and kind in _UNSTABLE and not stable:
        # NumPy sorts these in place, without further memory.
        part.array.sort(axis)
        part.check()
        return
    _sort_lanes(array, [array], axis, kind, stable)


@implements(numpy.argsort)
def argsort(array, axis=-1, kind=None, order=None, *, stable=None):
    """The indices that would sort it. It is always stable."""
    _check_order(order)
    array, axis = with_axis(array, axis)
    made = array.place.empty(array.shape, numpy.intp)
    _sort_lanes(array, [None, made], axis, kind, stable)
    return made


def _check_order(order):
    if order is not None:
        raise TypeError("order= is not there for remote arrays: sort by array[field]")


def _sort_lanes(array, outs, axis, kind, stable):
    """Sorts each lane along an axis.

    `outs` are the arrays for the elements and their indices; None for one that is not needed.
    """
    if kind not in (None, "quicksort", "heapsort", "mergesort", "stable"):
        raise ValueError(f"kind must be one of 'quicksort', 'heapsort', 'mergesort' and 'stable', not {kind!r}")
    (axis,) = normal_axes(axis, array.ndim)
    lanes, outs = numpy.moveaxis(array, axis, -1), [None if out is None else numpy.moveaxis(out, axis, -1) for out in outs]
    lane_bytes = lanes.shape[-1] * lanes.dtype.itemsize
    room = array.place.working_bytes // RUN_SHARE
    if array.size == 0:
        return
    if lane_bytes > room:
        for lane in numpy.ndindex(lanes.shape[:-1]):
            _sort_lane(lanes[(*lane, ...)], [None if out is None else out[(*lane, ...)] for out in outs])
        return
    parts, targets = [stream.part_of(lanes)], [None if out is None else stream.part_of(out) for out in outs]
    for index, (values,) in stream.streamed(parts, blocks.tiles(lanes.shape[:-1], blocks.slab(lanes.shape[:-1], room // lane_bytes))):
        for target, made in zip(targets, _sorted(values, targets)):
            if target is not None:
                target.put(index, made)


def _sorted(values, targets):
    if len(targets) == 1:
        return [numpy.sort(values, axis=-1)]
    return [None, numpy.argsort(values, axis=-1, kind="stable")]


def _sort_lane(lane, outs):
    """Sorts one lane that does not fit: makes sorted runs, and merges them until one is left.

    Each pass copies its columns, the elements and maybe their indices, from one buffer to another; the last pass ends
    in `outs`.
    """
    place, length = lane.place, len(lane)
    spare = [place.empty(length, column) for column in (lane.dtype, numpy.intp)[: len(outs)]]
    outs = [place.empty(length, lane.dtype) if out is None else out for out in outs]
    step = max(1, place.working_bytes // RUN_SHARE // (lane.dtype.itemsize + 8 * (len(outs) - 1)))
    passes, runs = 0, -(-length // step)
    while runs > 1:
        passes, runs = passes + 1, -(-runs // MERGED_RUNS)
    source, target = (outs, spare) if passes % 2 == 0 else (spare, outs)
    bounds = _make_runs(lane, source, step)
    while len(bounds) > 1:
        bounds = [_merge(source, target, bounds[at : at + MERGED_RUNS]) for at in range(0, len(bounds), MERGED_RUNS)]
        source, target = target, source


def _make_runs(lane, columns, step):
    """Sorts stretches of a lane; returns where each begins and ends."""
    targets = [stream.part_of(column) for column in columns]
    for (piece,), (values,) in stream.streamed([stream.part_of(lane)], ((piece,) for piece in blocks.pieces(len(lane), step))):
        if len(targets) == 1:
            made = [numpy.sort(values)]
        else:
            order = numpy.argsort(values, kind="stable")
            made = [values[order], order + piece.start]
        for target, column in zip(targets, made):
            target.put((piece,), column)
    return [(piece.start, piece.stop) for piece in blocks.pieces(len(lane), step)]


class _Run:
    """A sorted run that is read block by block, and its next block, which is on its way."""

    def __init__(self, columns, bounds, block):
        self._columns, self._block = columns, block
        self._at, self._end = bounds
        self._ahead = self._begin()
        self.fill()

    def _begin(self):
        piece = slice(self._at, min(self._at + self._block, self._end))
        self._at = piece.stop
        return [column.begin((piece,)) for column in self._columns] if piece.start < piece.stop else None

    def fill(self):
        """Takes the next block, when all of this one is taken."""
        self.columns = [finish() for finish in self._ahead]
        self._ahead = self._begin()

    @property
    def has_more(self):
        return self._ahead is not None

    def take(self, count):
        taken = [column[:count] for column in self.columns]
        self.columns = [column[count:] for column in self.columns]
        if len(self.columns[0]) == 0 and self.has_more:
            self.fill()
        return taken


def _merge(source, target, bounds):
    """Merges runs that are one behind the other into one; returns where that begins and ends.

    Each round takes from all runs the elements that come before any element not yet read, up to the smallest of the
    blocks' last elements. Elements equal to that one wait if they are of later runs, so that equal elements keep their
    order.
    """
    parts, targets = [stream.part_of(column) for column in source], [stream.part_of(column) for column in target]
    row_bytes = sum(column.dtype.itemsize for column in source)
    block = max(1, source[0].place.working_bytes // BLOCK_SHARE // row_bytes)
    runs = [_Run(parts, run, block) for run in bounds]
    at = bounds[0][0]
    while runs:
        counts = _counts(runs)
        taken = [run.take(count) for run, count in zip(runs, counts) if count]
        columns = [numpy.concatenate(column) for column in zip(*taken)]
        if len(columns) == 1:
            columns[0].sort(kind="stable")
        else:
            order = numpy.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        for part, column in zip(targets, columns):
            part.put((slice(at, at + len(column)),), column)
        at += len(columns[0])
        runs = [run for run in runs if len(run.columns[0])]
    return bounds[0][0], at


def _counts(runs):
    """Returns how many elements of each run's block are merged now."""
    lasts = [(index, run.columns[0][-1:]) for index, run in enumerate(runs) if run.has_more]
    if not lasts:
        return [len(run.columns[0]) for run in runs]
    bounding, last = lasts[int(numpy.argsort(numpy.concatenate([last for _, last in lasts]), kind="stable")[0])]
    sides = ["right" if index <= bounding else "left" for index in range(len(runs))]
    return [int(numpy.searchsorted(run.columns[0], last, side)[0]) for run, side in zip(runs, sides)]


@implements(numpy.unique)
def unique(ar, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True, sorted=True):
    """The elements, each once and sorted; where each is first, which of them each element is, and how often they are there."""
    if axis is not None:
        return _unique_rows(ar, axis, return_index=return_index, return_inverse=return_inverse, return_counts=return_counts)
    place, shape, flat = ar.place, ar.shape, numpy.ravel(ar)
    ordered = sort(flat)
    is_first = place.ones(ordered.shape, bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    nans = numpy.count_nonzero(ordered != ordered) if equal_nan and ordered.dtype.kind in "fcmM" else 0
    if nans:
        is_first[ordered.size - nans + 1 :] = False
    made = [ordered[is_first]]
    if return_index or return_inverse:
        order = argsort(flat, kind="stable")
    if return_index:
        made.append(order[is_first])
    if return_inverse:
        inverse = place.empty(flat.shape, numpy.intp)
        inverse[order] = numpy.cumsum(is_first) - 1
        made.append(numpy.reshape(inverse, shape))
    if return_counts:
        made.append(numpy.diff(numpy.append(indexing.flat_nonzero(is_first), ordered.size)))
    return tuple(made) if len(made) > 1 else made[0]


def _unique_rows(array, axis, **options):
    """`unique` of what there is along an axis: each as one record, whose fields are its elements."""
    (axis,) = normal_axes(axis, array.ndim)
    moved = numpy.moveaxis(array, axis, 0)
    rest = moved.shape[1:]
    width = blocks.product(rest)
    if width:
        record = numpy.dtype([(f"f{field}", array.dtype) for field in range(width)])
        rows = numpy.reshape(moved.copy("C"), (len(moved), width)).view(record)[:, 0]
    else:
        rows = array.place.zeros(len(moved), bool)
    found = unique(rows, **options)
    made, more = (found[0], found[1:]) if isinstance(found, tuple) else (found, None)
    elements = made[:, None].view(array.dtype) if width else array.place.empty((len(made), 0), array.dtype)
    made = numpy.moveaxis(numpy.reshape(elements, (len(made), *rest)), 0, axis)
    return made if more is None else (made, *more)


def _by_name(name, **options):
    """One of the functions of the array API, which name what they return. Each `nan` is an element of its own."""

    def call(x, /, **more):
        made = unique(x, equal_nan=False, **options, **more)
        return kind(*made) if options else made

    if hasattr(numpy, name):
        kind = type(getattr(numpy, name)(numpy.zeros(1))) if options else None
        implements(getattr(numpy, name))(call)


_by_name("unique_values")
_by_name("unique_counts", return_counts=True)
_by_name("unique_inverse", return_inverse=True)
_by_name("unique_all", return_index=True, return_inverse=True, return_counts=True)


@implements(numpy.searchsorted)
def searchsorted(array, values, side="left", sorter=None):
    """Finds where values would be among sorted elements. If these are remote, compares samples first."""
    if sorter is not None:
        raise TypeError("sorter= is not there for remote arrays: array[sorter] is sorted")
    place, is_scalar = place_among([array, values]), not is_array(values)
    values = values if is_array(values) else numpy.asarray(values)
    if isinstance(array, RemoteArray) and array.ndim != 1:
        raise ValueError("object of too small depth for desired array")
    search = _searching(array, side, place)
    if isinstance(values, numpy.ndarray):
        found = search(values)
        return found[()] if is_scalar and not values.ndim else found
    if not values.ndim:
        return search(numpy.asarray(values))[()]
    found = place.empty(values.shape, numpy.intp)
    stream.pointwise(lambda targets, tiles: numpy.copyto(targets[0], search(*tiles)), [values], [found], place.working_bytes // 2)
    return found


def _searching(array, side, place):
    """A function that finds where local values would be."""
    if isinstance(array, numpy.ndarray):
        return lambda values: numpy.searchsorted(array, values, side)
    part = stream.part_of(array)
    step = max(1, place.working_bytes // RUN_SHARE // array.dtype.itemsize)
    samples = numpy.asarray(array[::step])

    def search(values):
        # Behind how many samples: it is in the block of the last of them, or before all.
        behind = numpy.searchsorted(samples, values.ravel(), side)
        order = numpy.argsort(behind, kind="stable")
        numbers, begins = numpy.unique(behind[order], return_index=True)
        found = numpy.zeros(behind.shape, numpy.intp)
        groups = [(number, group) for number, group in zip(numbers.tolist(), numpy.split(order, begins[1:])) if number > 0]
        pieces = ((slice((number - 1) * step, min(number * step, len(array))),) for number, _ in groups)
        for ((piece,), (elements,)), (_, group) in zip(stream.streamed([part], pieces), groups):
            found[group] = piece.start + numpy.searchsorted(elements, values.ravel()[group], side)
        return found.reshape(values.shape)

    return search
