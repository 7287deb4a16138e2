"""Divides arrays into tiles that fit a working set, and views of remote memory into runs of bytes: arithmetic alone."""

import itertools

# Maximum size of one array's part in a tile of whole rows: larger tiles are no faster, and exceed the processor's
# caches.
TILE_BYTES = 1 << 20
# Number of tiles in memory per array: the one in use and the next one, parts of which are in transfer or being
# assembled.
TILES_HELD = 4
# Maximum size of one request, which is also at most this share of the working set: the system allocates larger buffers
# anew each time.
READ_BYTES = 1 << 18
READ_SHARE = 16
# Maximum gap between two requested ranges that is read along, or read before and written again: that costs less than
# one more request.
GAP_BYTES = 1024
# Memory that one request takes in addition to its bytes.
REQUEST_BYTES = 512


def axes_order(arrays):
    """The axes, from the one with the longest strides to the one with the shortest, of the largest of arrays of one shape."""
    axes = range(arrays[0].ndim if arrays else 0)
    largest = max(arrays, key=_own_bytes, default=None)
    if largest is None or any(stride == 0 and length > 1 for stride, length in zip(largest.strides, largest.shape)):
        return tuple(axes)
    return tuple(sorted(axes, key=lambda axis: -abs(largest.strides[axis]) if largest.shape[axis] > 1 else 0))


def tile_of(arrays, room_bytes, in_order=False):
    """The shape of tiles of arrays of one shape, whose axes are ordered already.

    A tile is a stretch of whole rows if the arrays lie alike, or if the elements
    are to come `in_order`; otherwise it is about as long in all directions, so that none of them is read by single elements.
    """
    shape = arrays[0].shape
    items = [array.dtype.itemsize for array in arrays]
    elements = max(1, room_bytes // max(1, TILES_HELD * sum(items)))
    if in_order or all(_is_ordered(array) for array in arrays):
        return slab(shape, max(1, min(elements, TILE_BYTES // max(1, *items))))
    return cube(shape, elements)


def tiles(shape, tile):
    """The tiles in the order of their elements: each as a tuple of slices."""
    return itertools.product(*(pieces(length, step) for length, step in zip(shape, tile)))


def pieces(length, step):
    """Returns consecutive slices of `step` elements each."""
    return [slice(begin, min(begin + step, length)) for begin in range(0, length, step)]


def straight(shadow):
    """The view with each of its elements once, upwards and the longest strides first; and what makes any array like it so: an index
    and an order of axes."""
    once = tuple(
        slice(1) if stride == 0 or length == 1 else slice(None, None, -1 if stride < 0 else 1)
        for length, stride in zip(shadow.shape, shadow.strides)
    )
    picked = shadow[(*once, ...)]
    order = tuple(sorted(range(picked.ndim), key=lambda axis: (picked.shape[axis] > 1, -picked.strides[axis])))
    return picked.transpose(order), once, order


def runs(core, most_bytes):
    """The parts of a straight view that are each read at once, with gaps, as an index and the bytes from first to last."""
    span, split, step = core.dtype.itemsize, core.ndim, 1
    for axis in reversed(range(core.ndim)):
        length, stride = core.shape[axis], core.strides[axis]
        step = 1 if stride - span > GAP_BYTES else max(1, (most_bytes - span) // max(1, stride) + 1)
        if length > step:
            break
        span += (length - 1) * stride
        split = axis
    if split == 0:
        return [((), span)]
    stride, length = core.strides[split - 1], core.shape[split - 1]
    parts = [(piece, span + (piece.stop - piece.start - 1) * stride) for piece in pieces(length, step)]
    outer = itertools.product(*(range(length) for length in core.shape[: split - 1]))
    return (((*index, piece), nbytes) for index in outer for piece, nbytes in parts)


def _own_bytes(array):
    """Returns the size of the distinct elements, which excludes broadcast axes."""
    return array.dtype.itemsize * product(length for length, stride in zip(array.shape, array.strides) if stride)


def _is_ordered(array):
    strides = [abs(stride) for stride, length in zip(array.strides, array.shape) if stride and length > 1]
    return all(one >= next_one for one, next_one in zip(strides, strides[1:]))


def slab(shape, elements):
    """Returns the shape of a tile of whole rows with at most `elements` elements, which are contiguous in C order."""
    tile = []
    for length in reversed(shape):
        tile.append(max(1, min(length, elements)))
        elements //= max(1, length)
    return tuple(reversed(tile))


def cube(shape, elements):
    """A tile about as long in all directions."""
    tile = [max(1, length) for length in shape]
    while product(tile) > elements:
        longest = max(range(len(tile)), key=tile.__getitem__)
        tile[longest] = -(-tile[longest] // 2)
    return tuple(tile)


def product(lengths):
    product = 1
    for length in lengths:
        product *= length
    return product
