"""Universal functions: `__array_ufunc__` of remote arrays."""

import operator

import numpy

from . import stream
from .arena import address_of
from .array import RemoteArray, is_array, place_among
from .functions import TABLE, implements, unsupported


@implements(numpy.ufunc)
def called(ufunc, method, inputs, options):
    """Calls a ufunc, or one of its methods.

    Raises:
        TypeError: Remote arrays do not have it.
    """
    if not all(is_known(operand) for operand in (*inputs, *options.get("out", ()))):
        return NotImplemented
    if method == "__call__":
        return _call(ufunc, inputs, **options)
    here = TABLE.get(getattr(numpy.ufunc, method))
    if here is None:
        raise unsupported(f"{ufunc.__name__}.{method}")
    return here(ufunc, *inputs, **options)


def is_known(operand):
    """Whether an operand's ufuncs are these, and not those of another library."""
    override = getattr(type(operand), "__array_ufunc__", None)
    return override in (None, RemoteArray.__array_ufunc__, numpy.ndarray.__array_ufunc__) and not isinstance(
        operand, numpy.ma.MaskedArray
    )


def check_remote(operand):
    """Refuses a local array whose output alone is remote."""
    if not isinstance(operand, RemoteArray):
        raise TypeError("only the output is remote: numpy.copyto(output, result) copies a local result there")


@implements(numpy.ufunc.outer)
def outer(ufunc, one, other, **options):
    one, other = (operand if is_array(operand) else numpy.asarray(operand) for operand in (one, other))
    return _call(ufunc, (one[(..., *(None,) * other.ndim)], other), **options)


@implements(operator.eq)
def equal(one, other):
    return _compared(numpy.equal, operator.eq, one, other)


@implements(operator.ne)
def not_equal(one, other):
    return _compared(numpy.not_equal, operator.ne, one, other)


def _compared(ufunc, compare, one, other):
    """`==` or `!=`. NumPy's operators compare more than its ufuncs: records, and elements that are never equal, as text and numbers."""
    if getattr(other, "__array_ufunc__", False) is None:
        return NotImplemented
    if is_known(other):
        operands = [one, other if _is_scalar(other) else _as_array(other)]
        if all(_is_scalar(operand) or operand.ndim == 0 for operand in operands):
            return compare(*(operand if _is_scalar(operand) else numpy.asarray(operand) for operand in operands))
        try:
            _samples(ufunc, operands, (None,), {})
        except TypeError:
            return pointwise(with_out(compare), operands)
    return ufunc(one, other)


def _call(ufunc, inputs, out=None, where=True, **options):
    if ufunc in TABLE:
        return TABLE[ufunc](*inputs, out=None if out is None else out[0], **options)
    if ufunc.signature is not None:
        raise unsupported(ufunc.__name__)
    return pointwise(ufunc, inputs, out, where, ufunc.nout, **options)


def pointwise(function, inputs, out=None, where=True, results=1, **options):
    """Applies a function whose results are elementwise, `function(*tiles, out=targets)`, as a ufunc is.

    Args:
        inputs: Remote arrays, ndarrays and scalars; the first two are broadcast.
        out: None, or for each result None or where it is to be.
        where: True, or an array: where it is False the out stays as it was.
        results: How many there are.
    """
    inputs = [operand if _is_scalar(operand) else _as_array(operand) for operand in inputs]
    arrays = [operand for operand in inputs if is_array(operand)]
    out = tuple(out) if out is not None else (None,) * results
    where = where if isinstance(where, bool) else _as_array(where)
    conditions = [] if where is True else [numpy.asarray(where) if where is False else where]
    dtypes = [numpy.asarray(sample).dtype for sample in _samples(function, inputs, out, options)]
    shape = _shape([*arrays, *conditions], out)
    if shape == () and all(target is None for target in out) and not conditions:
        return function(*(operand if _is_scalar(operand) else numpy.asarray(operand)[()] for operand in inputs), **options)
    outs = _outs(place_among([*arrays, *(target for target in out if target is not None), *conditions]), out, shape, dtypes, arrays)
    # The tile must have the old elements where the condition leaves them unchanged.
    before = outs if conditions else []
    tiles = apart([*arrays, *conditions, *before], outs)
    fill = _filling(function, inputs, len(conditions), options)
    stream.pointwise(fill, tiles, outs, place_among(outs + arrays + conditions).working_bytes)
    return outs[0] if results == 1 else tuple(outs)


def with_out(function):
    """A function that takes `out` as ufuncs do."""

    def call(*operands, out=None, **options):
        made = function(*operands, **options)
        if out is not None:
            numpy.copyto(out[0], made, casting="same_kind")
        return made

    return call


def apart(operands, outs):
    """The operands, and copies of those that have elements in common with an out that are not in the same place of it."""
    return [operand.copy() if any(_clash(operand, out) for out in outs) else operand for operand in operands]


def overlap(one, other):
    """Whether two arrays may have elements in common."""
    if isinstance(one, numpy.ndarray) and isinstance(other, numpy.ndarray):
        return numpy.may_share_memory(one, other)
    if isinstance(one, numpy.ndarray) or isinstance(other, numpy.ndarray):
        return False
    return one._stretch.component is other._stretch.component and numpy.may_share_memory(one._shadow, other._shadow)


def _clash(operand, out):
    if not overlap(operand, out):
        return False
    one, other = (getattr(array, "_shadow", array) for array in (operand, out))
    what = [(address_of(array), array.shape, array.strides, array.itemsize) for array in (one, other)]
    return what[0] != what[1]


def _is_scalar(operand):
    """Whether NumPy promotes an operand by its value or kind, so that it has no elements to be streamed."""
    return isinstance(operand, (bool, int, float, complex, numpy.generic))


def _as_array(operand):
    return operand if is_array(operand) else numpy.asarray(operand)


def _shape(arrays, out):
    shape = numpy.broadcast_shapes(*(array.shape for array in arrays))
    for target in out:
        if target is not None and numpy.broadcast_shapes(shape, target.shape) != target.shape:
            raise ValueError(f"operands of shape {shape} do not fit an output of shape {target.shape}")
        shape = shape if target is None else target.shape
    return shape


def _samples(function, inputs, out, options):
    """Returns what the function makes of empty arrays: the dtypes, or the error that NumPy raises for these."""
    ones = [operand if _is_scalar(operand) else numpy.ones((0,) * min(operand.ndim, 1), operand.dtype) for operand in inputs]
    if any(target is not None for target in out):
        ones = [numpy.empty(0, one.dtype) if isinstance(one, numpy.ndarray) else one for one in ones]
        options = dict(options, out=tuple(None if target is None else numpy.empty(0, target.dtype) for target in out))
    made = function(*ones, **options)
    return made if isinstance(made, tuple) else (made,)


def _outs(place, out, shape, dtypes, arrays):
    outs = []
    for target, dtype in zip(out, dtypes):
        if isinstance(target, RemoteArray):
            target.check_writeable()
        whole = [array for array in arrays if array.ndim == len(shape)]
        outs.append(place.laid_out(shape, dtype, whole) if target is None else target)
    return outs


def _filling(function, inputs, conditions, options):
    """Returns a function that computes a tile: the ufunc, with scalars where they were."""
    streamed = [index for index, operand in enumerate(inputs) if is_array(operand)]

    def fill(targets, values):
        arguments = list(inputs)
        for index, value in zip(streamed, values):
            arguments[index] = value
        if conditions:
            for target, before in zip(targets, values[len(streamed) + 1 :]):
                numpy.copyto(target, before)
            function(*arguments, out=targets, where=values[len(streamed)], **options)
        else:
            function(*arguments, out=targets, **options)

    return fill
