"""`numpy.pad`: copies the array into the middle of a larger one, then fills the borders of each axis, piece by piece."""

import numpy

from . import blocks
from .functions import implements
from .indexing import take
from .reductions import sample_of

# A border is filled in pieces. The number of positions in one is at most this share of the bytes of the working set.
BORDER_SHARE = 128
_STATISTICS = {"maximum": numpy.max, "minimum": numpy.min, "mean": numpy.mean, "median": numpy.median}
_OPTIONS = {
    **dict.fromkeys(("empty", "edge", "wrap"), ()),
    "constant": ("constant_values",),
    "linear_ramp": ("end_values",),
    **dict.fromkeys(_STATISTICS, ("stat_length",)),
    **dict.fromkeys(("reflect", "symmetric"), ("reflect_type",)),
}


@implements(numpy.pad)
def pad(array, pad_width, mode="constant", **options):
    widths = numpy.asarray(pad_width)
    if widths.dtype.kind != "i":
        raise TypeError("`pad_width` must be of integral type.")
    widths = _pairs(widths, array.ndim, is_positive=True)
    if callable(mode):
        raise TypeError("numpy.pad of a remote array takes the name of a mode, no function: numpy.asarray(array) makes a local copy")
    if mode not in _OPTIONS:
        raise ValueError(f"mode {mode!r} is not supported: there are {', '.join(sorted(_OPTIONS))}")
    wrong = set(options) - set(_OPTIONS[mode])
    if wrong:
        raise ValueError(f"unsupported keyword arguments for mode {mode!r}: {wrong}")
    shape = [before + length + after for length, (before, after) in zip(array.shape, widths)]
    made = array.place.empty(shape, array.dtype)
    middle = [slice(before, before + length) for length, (before, _) in zip(array.shape, widths)]
    made[tuple(middle)] = array
    _check_empty(array, widths, mode)
    if mode in _STATISTICS and array.size and array.ndim:
        # Refused, if it is, even where no border has a width.
        _rounded(sample_of(_STATISTICS[mode], array), array.dtype)
    given = _given(mode, options, array.ndim)
    for axis, (before, after) in enumerate(widths):
        # The borders of earlier axes are filled, those of later axes are not.
        area = made[(*(slice(None),) * (axis + 1), *middle[axis + 1 :])]
        lanes, length = numpy.moveaxis(area, axis, 0), array.shape[axis]
        if before or after:
            _BORDERS[mode](lanes, before, before + length, mode, given if given is None else given[axis])
    return made


def _pairs(values, ndim, is_positive=False):
    """Returns two values for each axis, from any values that can be broadcast to that shape."""
    if is_positive and (values < 0).any():
        raise ValueError("index can't contain negative values")
    return numpy.broadcast_to(values, (ndim, 2)).tolist() if ndim else []


def _check_empty(array, widths, mode):
    if array.size or mode in ("constant", "empty"):
        return
    for axis, (length, width) in enumerate(zip(array.shape, widths)):
        if length == 0 and any(width):
            raise ValueError(f"can't extend empty axis {axis} using modes other than 'constant' or 'empty'")


def _given(mode, options, ndim):
    """For each axis the values of the mode's option, one for either side."""
    if mode in ("constant", "linear_ramp"):
        values = numpy.asarray(options.get(_OPTIONS[mode][0], 0))
        return [list(pair) for pair in numpy.broadcast_to(values, (ndim, 2))] if ndim else []
    if mode in _STATISTICS and options.get("stat_length") is not None:
        lengths = numpy.asarray(options["stat_length"])
        return _pairs(numpy.round(lengths).astype(numpy.intp), ndim, is_positive=True)
    if mode in _STATISTICS:
        return [(None, None)] * ndim
    if mode in ("reflect", "symmetric"):
        return [options.get("reflect_type", "even")] * ndim
    return None


def _sides(lanes, begin, end):
    """Each border, and the index of the element beside it."""
    return ((slice(0, begin), begin), (slice(end, len(lanes)), end - 1))


def _empty(lanes, begin, end, mode, given):
    pass


def _constant(lanes, begin, end, mode, values):
    for (border, _), value in zip(_sides(lanes, begin, end), values):
        lanes[border] = value


def _edge(lanes, begin, end, mode, given):
    for border, edge in _sides(lanes, begin, end):
        lanes[border] = lanes[edge : edge + 1]


def _ramp(lanes, begin, end, mode, values):
    for (border, edge), value, is_reversed in zip(_sides(lanes, begin, end), values, (False, True)):
        width, row = border.stop - border.start, lanes[edge : edge + 1]
        # Positions are counted from the outer end.
        for piece in _pieces(lanes, width):
            at = numpy.arange(piece.start, piece.stop)[(..., *(None,) * (lanes.ndim - 1))]
            if is_reversed:
                lanes[border.stop - piece.stop : border.stop - piece.start] = _between(at[::-1], row, value, width, lanes.dtype)
            else:
                lanes[piece] = _between(at, row, value, width, lanes.dtype)


def _between(at, row, value, width, dtype):
    """Evenly spaced numbers from a value to a row, without that, as `numpy.linspace` makes them."""
    number = numpy.asarray(value)
    begin = number * 1.0
    difference = numpy.subtract(row, begin)
    step = difference / width
    made = at / width * difference if not numpy.all(step) else at * step
    made = made + begin
    return numpy.floor(made).astype(dtype) if dtype.kind in "iu" else made.astype(dtype)


def _statistic(lanes, begin, end, mode, lengths):
    function, length = _STATISTICS[mode], end - begin
    counts = [length if count is None or count > length else count for count in lengths]
    if 0 in counts and mode in ("maximum", "minimum"):
        raise ValueError("stat_length of 0 yields no value for padding")
    cuts = (slice(begin, begin + counts[0]), slice(end - counts[1], end))
    found = [function(lanes[cut], axis=0, keepdims=True) for cut in cuts]
    for (border, _), value in zip(_sides(lanes, begin, end), found):
        lanes[border] = _rounded(value, lanes.dtype)


def _rounded(value, dtype):
    """A statistic as an element. As in NumPy time differences count as integers here, which cannot be rounded."""
    return numpy.round(value) if numpy.issubdtype(dtype, numpy.integer) else value


def _indexed(lanes, begin, end, mode, kind):
    """Fills borders with elements of the middle."""
    length = end - begin
    if kind == "odd" and (mode == "symmetric" or length > 1):
        return _odd(lanes, begin, end, 1 if mode == "reflect" else 0)
    for border, _ in _sides(lanes, begin, end):
        for piece in _pieces(lanes, border.stop - border.start):
            positions = numpy.arange(border.start + piece.start, border.start + piece.stop) - begin
            lanes[border.start + piece.start : border.start + piece.stop] = take(lanes[begin:end], _folded(positions, length, mode))


def _folded(positions, length, mode):
    """The indices of the elements for positions, both counted from the beginning of the middle."""
    if mode == "wrap" or length == 1:
        return positions % length
    period = 2 * length if mode == "symmetric" else 2 * (length - 1)
    positions = positions % period
    return numpy.where(positions < length, positions, period - positions - (mode == "symmetric"))


def _odd(lanes, begin, end, skip):
    """Fills borders with the point reflection of what is inside of them, which is that much longer in the next step.

    Args:
        skip: 1 if the element at the edge is not repeated, otherwise 0.
    """
    at = begin
    while at > 0:
        count = min(end - at - skip, at)
        lanes[at - count : at] = 2 * lanes[at : at + 1] - lanes[at + skip : at + skip + count][::-1]
        at -= count
    at = end
    while at < len(lanes):
        count = min(at - begin - skip, len(lanes) - at)
        lanes[at : at + count] = 2 * lanes[at - 1 : at] - lanes[at - skip - count : at - skip][::-1]
        at += count


def _pieces(lanes, width):
    return blocks.pieces(width, max(1, lanes.place.working_bytes // BORDER_SHARE))


_BORDERS = {
    "empty": _empty,
    "constant": _constant,
    "edge": _edge,
    "linear_ramp": _ramp,
    **dict.fromkeys(_STATISTICS, _statistic),
    **dict.fromkeys(("reflect", "symmetric", "wrap"), _indexed),
}
