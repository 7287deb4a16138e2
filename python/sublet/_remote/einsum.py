"""Sums of products by their subscripts: tile by tile of the operands and of the result."""

import itertools
import math
import operator

import numpy

from . import blocks, stream
from .array import RemoteArray, is_array, place_among
from .functions import implements
from .products import Factor, matmul
from .ufuncs import apart

# Tiles in memory at a time: for each operand the current and the next one; for the result its total, a product and
# their sum.
OPERAND_TILES = 2
RESULT_TILES = 3
# The share of the working set for these tiles: NumPy's own loops and the bytes in transfer need the rest.
TILES_SHARE = 2


@implements(numpy.einsum)
def einsum(*operands, out=None, optimize=False, **options):
    """`numpy.einsum`. With more than two operands and `optimize`, those are multiplied two by two, as `numpy.einsum_path` says."""
    arrays, terms, output = _parsed(operands)
    place = place_among([*arrays, out])
    # NumPy says of which dtype it is, and whether the subscripts are good.
    ones = [numpy.ones((1,) * array.ndim, array.dtype) for array in arrays]
    dtype = numpy.einsum(*_interleaved(ones, *_numbered(terms, output)), **options).dtype
    arrays, terms = zip(*(_once(array, term, dtype) for array, term in zip(arrays, terms)))
    lengths = _lengths(arrays, terms)
    if len(terms) == 1 and out is None and set(terms[0]) == set(output) and "dtype" not in options:
        return _element(arrays[0].transpose([terms[0].index(label) for label in output]))
    arrays, terms = list(arrays), list(terms)
    for pair in _pairs(arrays, terms, output, optimize):
        chosen = [(arrays[one], terms[one]) for one in sorted(pair)]
        for one in sorted(pair, reverse=True):
            del arrays[one], terms[one]
        needed = set(output).union(*terms)
        kept = [label for label in lengths if label in needed and any(label in term for _, term in chosen)]
        arrays.append(_contracted(chosen, kept, lengths, dtype, place, optimize))
        terms.append(kept)
    if out is None:
        return _element(_contracted(zip(arrays, terms), output, lengths, dtype, place, optimize))
    if out.shape != tuple(lengths[label] for label in output):
        raise ValueError(f"an output of shape {out.shape} for a sum of shape {tuple(lengths[label] for label in output)}")
    arrays = apart(arrays, [out])
    numpy.copyto(out, _contracted(zip(arrays, terms), output, lengths, dtype, place, optimize), casting=options.get("casting", "safe"))
    return out


def _element(made):
    """An array without dimensions as a scalar of NumPy's."""
    return made if made.ndim else numpy.asarray(made)[()]


def _parsed(operands):
    """The arrays, the labels of each one's axes, and those of the result's. Labels of an ellipsis are negative."""
    if isinstance(operands[0], str):
        text, arrays = operands[0].replace(" ", ""), list(operands[1:])
        inputs, arrow, output = text.partition("->")
        terms = [_labels(term) for term in inputs.split(",")]
        output = _labels(output) if arrow else None
    else:
        operands, output = list(operands), None
        if len(operands) % 2:
            output = list(operands.pop())
        arrays, terms = operands[::2], [list(term) for term in operands[1::2]]
    arrays = [array if is_array(array) else numpy.asarray(array) for array in arrays]
    if len(terms) != len(arrays):
        raise ValueError(f"einsum: {len(terms)} subscripts for {len(arrays)} operands")
    rests = [array.ndim - len(term) + term.count(Ellipsis) for array, term in zip(arrays, terms)]
    if any(rest < 0 or (rest and Ellipsis not in term) or term.count(Ellipsis) > 1 for rest, term in zip(rests, terms)):
        raise ValueError("einsum: subscripts that do not fit their operands' dimensions")
    terms = [_spread(term, rest) for term, rest in zip(terms, rests)]
    if output is None:
        used = [label for term in terms for label in term]
        output = sorted(label for label in set(used) if label < 0 or used.count(label) == 1)
    else:
        output = _spread(output, max(rests))
    unknown = set(output).difference(*terms)
    if unknown or len(set(output)) < len(output) or any(label < 0 for term in terms for label in set(term).difference(output)):
        raise ValueError("einsum: an output with subscripts that no operand has, that are there twice, or without the ellipsis")
    return arrays, terms, output


def _labels(term):
    """The labels of a term of letters."""
    labels, at = [], 0
    while at < len(term):
        if term.startswith("...", at):
            labels, at = [*labels, Ellipsis], at + 3
        elif term[at].isalpha():
            labels, at = [*labels, ord(term[at])], at + 1
        else:
            raise ValueError(f"invalid subscript {term[at]!r} in einstein sum subscripts string")
    return labels


def _spread(term, rest):
    """Returns a term with its ellipsis replaced by the same number of labels, counted from the last one."""
    at = term.index(Ellipsis) if Ellipsis in term else 0
    made = [*term[:at], *range(-rest, 0), *term[at + 1 :]] if Ellipsis in term else term
    return [operator.index(label) for label in made]


def _numbered(terms, output):
    """Returns terms with their labels replaced by numbers that NumPy accepts, in the same order."""
    known = sorted({label for term in terms for label in term})
    return [[known.index(label) for label in term] for term in terms], [known.index(label) for label in output]


def _interleaved(arrays, terms, output):
    return [*(part for pair in zip(arrays, terms) for part in pair), output]


def _once(array, term, dtype):
    """An operand with each of its labels once: repeated ones are a diagonal."""
    kept = list(dict.fromkeys(term))
    if len(kept) == len(term):
        return array, term
    for label in kept:
        sizes = {array.shape[axis] for axis, one in enumerate(term) if one == label}
        if len(sizes) > 1:
            raise ValueError(f"einsum: dimensions of sizes {sorted(sizes)} have the same subscript")
    shadow = getattr(array, "_shadow", array)
    ((numbers,), output) = _numbered([term], kept)
    view = numpy.einsum(shadow, numbers, output)
    return (array._viewed(view) if isinstance(array, RemoteArray) else view), kept


def _lengths(arrays, terms):
    """Returns the length of each label's axis: lengths of 1 are broadcast."""
    lengths = {}
    for array, term in zip(arrays, terms):
        for label, length in zip(term, array.shape):
            known = lengths.setdefault(label, length)
            if known != length and 1 not in (known, length):
                raise ValueError(f"einsum: operands could not be broadcast together: lengths {known} and {length} of one subscript")
            lengths[label] = length if known == 1 else known
    return lengths


def _pairs(arrays, terms, output, optimize):
    """Returns which operands are multiplied first: the positions of two at a time, all but the last two."""
    if len(terms) < 3 or optimize is False:
        return []
    shapes = [numpy.broadcast_to(numpy.zeros((), array.dtype), array.shape) for array in arrays]
    path, _ = numpy.einsum_path(*_interleaved(shapes, *_numbered(terms, output)), optimize=optimize)
    return path[1:-1]


def _contracted(operands, output, lengths, dtype, place, optimize):
    """The sum of products of operands whose labels are each there once: a new array."""
    operands = list(operands)
    made = place.empty([lengths[label] for label in output], dtype)
    labels = [*output, *(label for label in lengths if label not in output and any(label in term for _, term in operands))]
    if not all(lengths[label] for label in labels):
        made[...] = numpy.zeros((), dtype)
        return made
    # NumPy adds products of float16 in float32, too.
    wide = numpy.dtype("f4") if dtype == numpy.float16 else dtype
    broadcast = [numpy.broadcast_to(array, [lengths[label] for label in term]) for array, term in operands]
    terms = [term for _, term in operands]
    items = [(array.dtype.itemsize, term, OPERAND_TILES) for array, term in zip(broadcast, terms)]
    tile = _tile(labels, lengths, [*items, (wide.itemsize, output, RESULT_TILES)], place.working_bytes // TILES_SHARE)
    steps = [blocks.pieces(lengths[label], tile[label]) for label in labels]
    parts = [Factor(array, *(labels.index(label) for label in term)) for array, term in zip(broadcast, terms)]
    terms, numbers = _numbered([labels, *terms, output], [])[0][1:-1], _numbered([labels], output)[1]
    result, depth, total = stream.part_of(made), len(output), None
    for index, values in stream.streamed(parts, itertools.product(*steps)):
        more = {"optimize": True} if optimize is not False and len(values) > 1 else {}
        product = numpy.asarray(numpy.einsum(*_interleaved(values, terms, numbers), dtype=wide, casting="unsafe", **more))
        is_first = all(piece.start == 0 for piece in index[depth:])
        total = (product.copy() if len(values) == 1 else product) if is_first else numpy.add(total, product)
        if all(piece.stop == lengths[label] for piece, label in zip(index[depth:], labels[depth:])):
            result.put(index[:depth], numpy.asarray(total))
    return made


def _tile(labels, lengths, items, room_bytes):
    """Returns the lengths of tiles by label: about equal in all directions, and together at most `room_bytes`."""
    tile = {label: lengths[label] for label in labels}

    def needed():
        return sum(size * count * math.prod(tile[label] for label in term) for size, term, count in items)

    while needed() > room_bytes and max(tile.values(), default=1) > 1:
        longest = max(tile, key=tile.__getitem__)
        tile[longest] = -(-tile[longest] // 2)
    return tile


@implements(numpy.tensordot)
def tensordot(a, b, axes=2):
    a, b = (array if is_array(array) else numpy.asarray(array) for array in (a, b))
    ours, theirs = (range(-axes, 0), range(axes)) if numpy.ndim(axes) == 0 else axes
    ours, theirs = ([one] if numpy.ndim(one) == 0 else list(one) for one in (ours, theirs))
    if len(ours) != len(theirs) or any(a.shape[one] != b.shape[other] for one, other in zip(ours, theirs)):
        raise ValueError("shape-mismatch for sum")
    ours, theirs = [one % a.ndim for one in ours], [other % b.ndim for other in theirs]
    left = [axis for axis in range(a.ndim) if axis not in ours]
    right = [axis for axis in range(b.ndim) if axis not in theirs]
    shape = [*(a.shape[axis] for axis in left), *(b.shape[axis] for axis in right)]
    summed = math.prod(a.shape[axis] for axis in ours)
    one = numpy.reshape(numpy.transpose(a, [*left, *ours]), (math.prod(a.shape[axis] for axis in left), summed))
    other = numpy.reshape(numpy.transpose(b, [*theirs, *right]), (summed, math.prod(b.shape[axis] for axis in right)))
    return numpy.reshape(matmul(one, other), shape)


@implements(numpy.inner)
def inner(a, b, /):
    a, b = (array if is_array(array) else numpy.asarray(array) for array in (a, b))
    if a.ndim == 0 or b.ndim == 0:
        return numpy.multiply(a, b)
    return _element(tensordot(a, b, (-1, -1)))
