"""Sorting: runs that fit the working set are sorted by NumPy, and merged block by block.

A sort of n elements of which r fit takes one pass of n for the runs and log_16(n / r) for merging them, each of which reads and
writes all once. What it needs of remote memory beside the array and its result is as much again.
"""

import numpy

from . import blocks, indexing, stream
from .array import RemoteArray
from .functions import implements, place_among
from .reductions import normal_axes
from .ufuncs import is_array, pointwise, with_out

# A run has at most this share of the working set: it is there with the next one, its copy, its order, and what sorting itself needs.
RUN_SHARE = 8
# So many runs are merged at a time, each with a block of at most this share of the working set, and the next one.
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


def sort_in_place(array, axis=-1, kind=None, stable=None):
    """Sorts along an axis. Elements that are equal keep their order if the kind is `"stable"`, which with these cannot be seen."""
    array.check_writeable()
    part, (axis,) = stream.part_of(array), normal_axes(axis, array.ndim)
    if not part.is_far and part.array.strides[axis] == array.itemsize and array.dtype.isnative and kind in _UNSTABLE and not stable:
        # NumPy needs no room for these.
        part.array.sort(axis)
        part.check()
        return
    _sort_lanes(array, [array], axis, kind, stable)


@implements(numpy.argsort)
def argsort(array, axis=-1, kind=None, order=None, *, stable=None):
    """The indices that would sort it. It is always stable."""
    _check_order(order)
    if axis is None:
        array, axis = numpy.ravel(array), 0
    made = array.place.empty(array.shape, numpy.intp)
    _sort_lanes(array, [None, made], axis, kind, stable)
    return made


def _check_order(order):
    if order is not None:
        raise TypeError("order= is not there for remote arrays: sort by array[field]")


def _sort_lanes(array, outs, axis, kind, stable):
    """Sorts each lane along an axis; `outs` are where the elements and their indices are to be, None if nowhere."""
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
    """Sorts one lane that does not fit: runs first, that are merged until there is one.

    Its columns, the elements and maybe their indices, go from one room to another and back with each pass, and end in `outs`.
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

    In each round those elements are taken of all runs that come before whatever is not yet here: up to the first of the blocks' last
    ones. Of elements that are equal to that, those of later runs wait, so that all keep their order.
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
    """How many elements of each run's block are taken now."""
    lasts = [(index, run.columns[0][-1:]) for index, run in enumerate(runs) if run.has_more]
    if not lasts:
        return [len(run.columns[0]) for run in runs]
    bounding, last = lasts[int(numpy.argsort(numpy.concatenate([last for _, last in lasts]), kind="stable")[0])]
    sides = ["right" if index <= bounding else "left" for index in range(len(runs))]
    return [int(numpy.searchsorted(run.columns[0], last, side)[0]) for run, side in zip(runs, sides)]


@implements(numpy.unique)
def unique(array, return_index=False, return_inverse=False, return_counts=False, axis=None, *, equal_nan=True, sorted=True):
    """The elements, each once and sorted, and how often they are there."""
    if return_index or return_inverse or axis is not None:
        raise TypeError("numpy.unique of a remote array takes no return_index, return_inverse or axis")
    ordered = sort(array, None)
    is_first = array.place.ones(ordered.shape, bool)
    numpy.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    if equal_nan and ordered.dtype.kind in "fcmM":
        nans = numpy.count_nonzero(ordered != ordered)
        if nans:
            is_first[ordered.size - nans + 1 :] = False
    made = ordered[is_first]
    if not return_counts:
        return made
    begins = indexing.flat_nonzero(is_first)
    return made, numpy.diff(numpy.append(begins, ordered.size))


@implements(numpy.median)
def median(array, axis=None, out=None, overwrite_input=False, keepdims=False):
    def middle(ordered):
        last = len(ordered) - 1
        return _of_rows(lambda rows: numpy.median(rows, axis=0), ordered, sorted({last // 2, -(-last // 2)}))

    return _of_sorted(middle, array, axis, out, keepdims)


@implements(numpy.quantile)
def quantile(array, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    if method != "linear" or weights is not None:
        raise TypeError("quantiles of remote arrays are linear and have no weights: numpy.asarray(array) makes a local copy")
    q = numpy.asarray(q, float)
    if not ((q >= 0) & (q <= 1)).all():
        raise ValueError("Quantiles must be in the range [0, 1]")

    def between(ordered, one):
        exact = one * (len(ordered) - 1)
        rows = [int(exact), min(int(exact) + 1, len(ordered) - 1)]
        return _of_rows(lambda both: numpy.quantile(both, exact - rows[0], axis=0), ordered, rows)

    def each(ordered):
        if q.ndim == 0:
            return between(ordered, float(q))
        made = [between(ordered, one) for one in q.ravel().tolist()]
        return numpy.reshape(numpy.stack(made), (*q.shape, *numpy.shape(made[0])))

    return _of_sorted(each, array, axis, out, keepdims, q.ndim)


@implements(numpy.percentile)
def percentile(array, q, axis=None, out=None, overwrite_input=False, method="linear", keepdims=False, *, weights=None):
    return quantile(array, numpy.asarray(q, float) / 100, axis, out, overwrite_input, method, keepdims, weights=weights)


def _of_sorted(choose, array, axis, out, keepdims, more=0):
    """What is chosen of the sorted elements, along the first axis of what `choose` gets; `more` dimensions come first in it."""
    if isinstance(axis, (tuple, list)) and len(axis) != 1:
        raise TypeError("quantiles of a remote array are along one axis, or of all elements")
    axes = normal_axes(axis, array.ndim)
    ordered = sort(array, None) if axis is None else numpy.moveaxis(sort(array, *axes), axes[0], 0)
    if len(ordered) == 0:
        raise ValueError("there are no quantiles of no elements")
    made = choose(ordered)
    if isinstance(made, RemoteArray) and array.place.is_small(made.nbytes):
        made = numpy.asarray(made)
    if keepdims:
        made = numpy.expand_dims(made, tuple(more + one for one in axes))
    if out is not None:
        numpy.copyto(out, made)
        return out
    return made[()] if isinstance(made, numpy.ndarray) else made


def _of_rows(function, ordered, rows):
    """A function of few rows, stacked. What is no number is sorted to the end, and makes the result none."""

    def each(*tiles):
        found = function(numpy.stack(tiles[:-1]))
        return numpy.where(tiles[-1] != tiles[-1], tiles[-1], found)[()] if tiles[-1].dtype.kind in "fc" else found

    return pointwise(with_out(each), [ordered[row] for row in (*rows, len(ordered) - 1)])


@implements(numpy.searchsorted)
def searchsorted(array, values, side="left", sorter=None):
    """Where values would be among sorted elements. Of remote elements every so-many-th is looked at first, then what is between two."""
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
