"""Functions of NumPy's whose results are elementwise, and are no ufuncs."""

import numpy

from .array import RemoteArray, is_array
from .functions import implements
from .ufuncs import pointwise, with_out


def _streamed(function, arrays):
    """Returns a function whose first `arrays` arguments are arrays; its other arguments are local, and the same for
    each tile.
    """
    inner = with_out(function)

    def call(*args, out=None, **kwargs):
        operands, more = args[:arrays], args[arrays:]
        if any(isinstance(argument, RemoteArray) for argument in (*more, *kwargs.values())):
            raise TypeError(f"numpy.{function.__name__} takes remote arrays as its first {arrays} arguments only")

        def each(*values, out=None):
            # Some say something else of scalars than of arrays without dimensions.
            return inner(*map(numpy.asarray, values), *more, out=out, **kwargs)

        return pointwise(each, operands, None if out is None else (out,))

    return call


for _function, _arrays in {
    **dict.fromkeys(
        (numpy.round, numpy.around, numpy.nan_to_num, numpy.angle, numpy.i0, numpy.sinc, numpy.isneginf, numpy.isposinf), 1
    ),
    **dict.fromkeys((numpy.digitize, numpy.interp, numpy.fix, numpy.isreal, numpy.iscomplex), 1),
    **dict.fromkeys((numpy.isclose,), 2),
}.items():
    implements(_function)(_streamed(_function, _arrays))


@implements(numpy.where)
def where(condition, *choices):
    if not choices:
        return numpy.nonzero(condition)
    return pointwise(with_out(numpy.where), (condition, *choices))


@implements(numpy.isin)
def isin(element, test_elements, assume_unique=False, invert=False, *, kind=None):
    if isinstance(test_elements, RemoteArray):
        raise TypeError("numpy.isin takes a remote array as its first argument only")
    among = numpy.asarray(test_elements).ravel()
    # As NumPy decides: with few it compares each, which it does for dtypes that are never equal, too; otherwise it sorts.
    is_few = kind is None and len(among) < 10 * element.size**0.145

    def each(values):
        if not is_few:
            return numpy.isin(values, among, assume_unique, invert, kind=kind)
        found = numpy.full(values.shape, invert)
        for one in among:
            found = found & (values != one) if invert else found | (values == one)
        return found

    made = pointwise(with_out(each), [element])
    return made if is_array(made) else numpy.asarray(made)


@implements(numpy.clip)
def clip(a, a_min=None, a_max=None, out=None, *, min=None, max=None, **options):
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    given = [bound for bound in (low, high) if bound is not None]

    def clipped(values, *bounds, out=None, **options):
        bounds = iter(bounds)
        both = [None if bound is None else next(bounds) for bound in (low, high)]
        return numpy.clip(values, *both, out=None if out is None else out[0], **options)

    return pointwise(clipped, (a, *given), None if out is None else (out,), **options)


@implements(numpy.real)
def real(array):
    return array.real


@implements(numpy.imag)
def imag(array):
    return array.imag


@implements(numpy.putmask)
def putmask(array, mask, values):
    mask, values = _masked(array, mask, values, "putmask")
    if values.size == 0:
        return
    if values.size > 1:
        # One for each element, from the first again when they are used up.
        values = values[: array.size] if values.size >= array.size else values[numpy.arange(array.size, like=array) % values.size]
        values = numpy.reshape(values, array.shape)
    else:
        values = numpy.reshape(values, ())
    numpy.copyto(array, values, where=mask)


@implements(numpy.place)
def place(arr, mask, vals):
    mask, values = _masked(arr, mask, vals, "place")
    chosen = int(numpy.count_nonzero(mask))
    if chosen == 0:
        return
    if values.size == 0:
        raise ValueError("Cannot insert from an empty array!")
    if values.size != 1:
        values = values[numpy.arange(chosen, like=arr) % values.size]
    arr[mask] = values


def _masked(array, mask, values, name):
    """A mask in an array's shape, and the values for what it chooses in one dimension."""
    if not isinstance(array, RemoteArray):
        raise TypeError("only the mask or the values are remote: numpy.asarray makes local copies")
    array.check_writeable()
    if not is_array(values):
        values = numpy.asarray(values, array.dtype)
    if not numpy.can_cast(values.dtype, array.dtype, "safe"):
        raise TypeError(f"Cannot cast array data from {values.dtype!r} to {array.dtype!r} according to the rule 'safe'")
    mask = mask.astype(bool, copy=False) if is_array(mask) else numpy.asarray(mask, bool)
    if mask.size != array.size:
        raise ValueError(f"{name}: mask and data must be the same size")
    return numpy.reshape(mask, array.shape), numpy.ravel(values)


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
