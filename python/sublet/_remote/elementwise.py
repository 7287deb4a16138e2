"""Functions of NumPy's whose results are elementwise, and are no ufuncs."""

import numpy

from .array import RemoteArray
from .functions import implements
from .ufuncs import is_array, pointwise, with_out


def _streamed(function, arrays):
    """A function of so many arrays, whose other arguments are the same for each tile, and local."""
    inner = with_out(function)

    def call(*args, out=None, **kwargs):
        operands, more = args[:arrays], args[arrays:]
        if any(isinstance(argument, RemoteArray) for argument in (*more, *kwargs.values())):
            raise TypeError(f"numpy.{function.__name__} takes remote arrays as its first {arrays} arguments only")

        def each(*values, out=None):
            return inner(*values, *more, out=out, **kwargs)

        return pointwise(each, operands, None if out is None else (out,))

    return call


for _function, _arrays in {
    **dict.fromkeys(
        (numpy.round, numpy.around, numpy.nan_to_num, numpy.angle, numpy.i0, numpy.sinc, numpy.isneginf, numpy.isposinf), 1
    ),
    **dict.fromkeys((numpy.digitize, numpy.isin, numpy.interp, numpy.fix, numpy.isreal, numpy.iscomplex), 1),
    **dict.fromkeys((numpy.isclose,), 2),
}.items():
    implements(_function)(_streamed(_function, _arrays))


@implements(numpy.where)
def where(condition, *choices):
    if not choices:
        return numpy.nonzero(condition)
    return pointwise(with_out(numpy.where), (condition, *choices))


@implements(numpy.clip)
def clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, **options):
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is None and high is None:
        return numpy.positive(a, out=out)
    if low is None:
        return numpy.minimum(a, high, out=out, **options)
    if high is None:
        return numpy.maximum(a, low, out=out, **options)
    return pointwise(with_out(numpy.clip), (a, low, high), None if out is None else (out,), **options)


@implements(numpy.real)
def real(array):
    return array.real


@implements(numpy.imag)
def imag(array):
    return array.imag


@implements(numpy.putmask)
def putmask(array, mask, values):
    if is_array(values) and values.ndim and values.shape != array.shape:
        raise TypeError("numpy.putmask of a remote array takes one value, or as many as the array has")
    numpy.copyto(array, values, casting="unsafe", where=mask)


@implements(numpy.result_type)
def result_type(*operands):
    return numpy.result_type(*(operand.dtype if isinstance(operand, RemoteArray) else operand for operand in operands))


@implements(numpy.can_cast)
def can_cast(array, to, casting="safe"):
    return numpy.can_cast(array.dtype, to, casting)


@implements(numpy.iscomplexobj)
def iscomplexobj(array):
    return array.dtype.kind == "c"


@implements(numpy.isrealobj)
def isrealobj(array):
    return array.dtype.kind != "c"


@implements(numpy.astype) if hasattr(numpy, "astype") else (lambda function: function)
def astype(array, dtype, /, *, copy=True, device=None):
    return array.astype(dtype, copy)
