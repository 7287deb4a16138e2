"""Functions of NumPy's by which arrays get other shapes, are joined and divided: views where NumPy's are, otherwise copies."""

import operator

import numpy

from . import stream
from .array import RemoteArray, is_array, place_among
from .functions import implements
from .indexing import counted, fitting, flat_nonzero, put_along, take, take_along, viewed_as
from .reductions import normal_axes, with_axis
from .ufuncs import apart, overlap


def _viewing(function):
    """A function that makes a view: of the shadow, which NumPy knows how to."""

    def view(array, *args, **kwargs):
        made = function(array._shadow, *args, **kwargs)
        # Some functions make a scalar of an array without dimensions.
        return array._viewed(made) if isinstance(made, numpy.ndarray) else array[()]

    return view


for _function in (
    *(numpy.transpose, numpy.swapaxes, numpy.moveaxis, numpy.rollaxis, numpy.squeeze, numpy.expand_dims, numpy.broadcast_to),
    *(numpy.diagonal, numpy.flip, numpy.flipud, numpy.fliplr, numpy.rot90),
):
    implements(_function)(_viewing(_function))


def _viewing_each(function):
    """A function that makes several views."""

    def views(array, *args, **kwargs):
        made = function(array._shadow, *args, **kwargs)
        return type(made)(array._viewed(shadow) for shadow in made)

    return views


for _function in (numpy.split, numpy.array_split, numpy.hsplit, numpy.vsplit, numpy.dsplit):
    implements(_function)(_viewing_each(_function))


def _at_least(function):
    def view(*arrays):
        made = [array._viewed(function(array._shadow)) if isinstance(array, RemoteArray) else function(array) for array in arrays]
        return made[0] if len(made) == 1 else tuple(made)

    return view


for _function in (numpy.atleast_1d, numpy.atleast_2d, numpy.atleast_3d):
    implements(_function)(_at_least(_function))


@implements(numpy.shape)
def shape_of(array):
    return array.shape


@implements(numpy.ndim)
def ndim_of(array):
    return array.ndim


@implements(numpy.size)
def size_of(array, axis=None):
    # NumPy's version decides which axes may be named, and how, so NumPy computes the size of an array of that shape
    # without memory.
    return array.size if axis is None else numpy.size(numpy.broadcast_to(0, array.shape), axis)


@implements(numpy.shares_memory, numpy.may_share_memory)
def may_share_memory(one, other, max_work=None):
    """Whether the bounds of two arrays overlap, which is what NumPy's `may_share_memory` says."""
    return overlap(one, other)


@implements(numpy.reshape)
def reshape(array, /, shape=None, order="C", *, newshape=None, copy=None):
    shape = newshape if shape is None else shape
    if copy:
        array = array.copy()
    shadow = array._shadow.view()
    order = ("F" if shadow.flags.fnc else "C") if order == "A" else order
    shape = _whole_shape(array.size, shape)
    turned = shadow.T if order == "F" else shadow
    try:
        turned = viewed_as(turned, shape[::-1] if order == "F" else shape)
    except (AttributeError, ValueError):
        if copy is False:
            raise ValueError("Unable to avoid creating a copy while reshaping.") from None
        made = array.place.empty(array.shape, array.dtype, order)
        stream.pointwise(stream.copy_tile, [array], [made], array.place.working_bytes)
        return reshape(made, shape, order)
    return array._viewed(turned.T if order == "F" else turned)


def _whole_shape(size, shape):
    """A shape with its one unknown length."""
    shape = [operator.index(length) for length in (shape if isinstance(shape, (tuple, list)) else (shape,))]
    known = int(numpy.prod([length for length in shape if length != -1], dtype=object))
    if shape.count(-1) == 1 and known and size % known == 0:
        shape[shape.index(-1)] = size // known
        known = size
    if known != size or -1 in shape:
        raise ValueError(f"cannot reshape array of size {size} into shape {tuple(shape)}")
    return tuple(shape)


@implements(numpy.ravel)
def ravel(array, order="C"):
    if order == "K":
        order = "F" if array._shadow.flags.fnc else "C"
    return reshape(array, (-1,), order)


@implements(numpy.copy)
def copy(array, order="K", subok=False):
    return array.copy(order)


@implements(numpy.copyto)
def copyto(target, source, casting="same_kind", where=True):
    if not is_array(source):
        source = numpy.asarray(source, target.dtype if isinstance(source, (bool, int, float, complex)) else None)
    if not numpy.can_cast(source.dtype, target.dtype, casting):
        raise TypeError(f"cannot cast array data from {source.dtype!r} to {target.dtype!r} according to the rule {casting!r}")
    source = fitting(source, target.shape)
    operands = [source] if where is True else [source, where if is_array(where) else numpy.asarray(where, bool), target]
    if any(numpy.broadcast_shapes(operand.shape, target.shape) != target.shape for operand in operands):
        raise ValueError(f"arrays of shapes {[operand.shape for operand in operands]} do not fit one of shape {target.shape}")
    if isinstance(target, RemoteArray):
        target.check_writeable()

    def fill(targets, values):
        if len(values) == 1:
            return stream.copy_tile(targets, values)
        numpy.copyto(targets[0], values[2])
        return numpy.copyto(targets[0], values[0], casting="unsafe", where=values[1])

    stream.pointwise(fill, apart(operands, [target]), [target], place_among([target, *operands]).working_bytes)


@implements(numpy.concatenate)
def concatenate(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    arrays = [array if is_array(array) else numpy.asarray(array) for array in arrays]
    if axis is None:
        arrays, axis = [numpy.ravel(array) for array in arrays], 0
    (axis,) = normal_axes(axis, arrays[0].ndim)
    rest = {(*array.shape[:axis], *array.shape[axis + 1 :]) for array in arrays}
    if len(rest) > 1 or len({array.ndim for array in arrays}) > 1:
        raise ValueError(f"arrays of shapes {[array.shape for array in arrays]} cannot be joined along axis {axis}")
    length = sum(array.shape[axis] for array in arrays)
    if out is None:
        dtype = numpy.result_type(*(array.dtype for array in arrays)) if dtype is None else dtype
        out = place_among(arrays).empty((*arrays[0].shape[:axis], length, *arrays[0].shape[axis + 1 :]), dtype)
    at = 0
    for array in arrays:
        part = out[(*(slice(None),) * axis, slice(at, at + array.shape[axis]))]
        numpy.copyto(part, array, casting=casting)
        at += array.shape[axis]
    return out


@implements(numpy.stack)
def stack(arrays, axis=0, out=None, *, dtype=None, casting="same_kind"):
    arrays = [array if is_array(array) else numpy.asarray(array) for array in arrays]
    (axis,) = normal_axes(axis, arrays[0].ndim + 1)
    return concatenate([numpy.expand_dims(array, axis) for array in arrays], axis, out, dtype=dtype, casting=casting)


@implements(numpy.vstack)
def vstack(arrays, *, dtype=None, casting="same_kind"):
    return concatenate([numpy.atleast_2d(array) for array in arrays], 0, dtype=dtype, casting=casting)


@implements(numpy.hstack)
def hstack(arrays, *, dtype=None, casting="same_kind"):
    arrays = [numpy.atleast_1d(array) for array in arrays]
    return concatenate(arrays, min(1, arrays[0].ndim - 1), dtype=dtype, casting=casting)


@implements(numpy.column_stack)
def column_stack(arrays):
    return concatenate([numpy.atleast_2d(array).T if array.ndim < 2 else array for array in arrays], 1)


@implements(numpy.dstack)
def dstack(arrays, *, dtype=None, casting="same_kind"):
    return concatenate([numpy.atleast_3d(array) for array in arrays], 2, dtype=dtype, casting=casting)


@implements(numpy.append)
def append(array, values, axis=None):
    values = values if is_array(values) else numpy.asarray(values)
    return concatenate([array, values], axis)


@implements(numpy.roll)
def roll(array, shift, axis=None):
    if axis is None:
        return reshape(roll(ravel(array), shift, 0), array.shape)
    axes = [normal_axes(one, array.ndim)[0] for one in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    pairs = numpy.broadcast(shift, axes)
    if pairs.ndim > 1:
        raise ValueError("'shift' and 'axis' should be scalars or 1D sequences")
    for shift, axis in pairs:
        length = array.shape[axis]
        at = -shift % max(1, length)
        before = (slice(None),) * axis
        array = concatenate([array[(*before, slice(at, None))], array[(*before, slice(at))]], axis, dtype=array.dtype)
    return array


@implements(numpy.tile)
def tile(array, reps):
    reps = tuple(reps) if isinstance(reps, (tuple, list)) else (reps,)
    array = reshape(array, (1,) * (len(reps) - array.ndim) + array.shape)
    reps = (1,) * (array.ndim - len(reps)) + reps
    made = array.place.empty([length * count for length, count in zip(array.shape, reps)], array.dtype)
    # Each dimension is one of the copies and one within them.
    split = [length for pair in zip(reps, array.shape) for length in pair]
    made.reshape(split)[...] = array[tuple(part for length in reps for part in (None, slice(None)))]
    return made


@implements(numpy.repeat)
def repeat(array, repeats, axis=None):
    array, axis = with_axis(array, axis)
    if numpy.ndim(repeats):
        repeats = numpy.broadcast_to(numpy.asarray(repeats), array.shape[axis])
        return take(array, numpy.repeat(numpy.arange(array.shape[axis]), repeats), axis)
    repeats = operator.index(repeats)
    spread = numpy.broadcast_to(numpy.expand_dims(array, axis + 1), (*array.shape[: axis + 1], repeats, *array.shape[axis + 1 :]))
    return reshape(spread, (*array.shape[:axis], array.shape[axis] * repeats, *array.shape[axis + 1 :]))


@implements(numpy.take)
def taken(array, indices, axis=None, out=None, mode="raise"):
    if mode not in ("raise", "wrap", "clip"):
        raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
    indices = indices if is_array(indices) else numpy.asarray(indices)
    array = array if isinstance(array, RemoteArray) else indices.place.asarray(array)
    array, axis = with_axis(array, axis)
    length = array.shape[axis]
    if mode != "raise" and length:
        indices = numpy.mod(indices, length) if mode == "wrap" else numpy.clip(indices, 0, length - 1)
    found = take(array, indices, axis)
    if out is None:
        return found if found.ndim else found[()]
    numpy.copyto(out, found)
    return out


@implements(numpy.compress)
def compress(condition, array, axis=None, out=None):
    made = taken(array, numpy.flatnonzero(condition), axis)
    if out is None:
        return made
    numpy.copyto(out, made)
    return out


@implements(numpy.flatnonzero)
def flatnonzero(array):
    return flat_nonzero(array)


@implements(numpy.nonzero)
def nonzero(array):
    if array.ndim == 0:
        raise ValueError("Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() instead.")
    found, made = flat_nonzero(array), []
    for length in reversed(array.shape):
        made.append(found % length)
        found = found // length
    return tuple(reversed(made))


@implements(numpy.argwhere)
def argwhere(array):
    return stack(nonzero(array), 1) if array.ndim else argwhere(numpy.atleast_1d(array))[:, :0]


@implements(numpy.diag)
def diag(array, k=0):
    if array.ndim == 2:
        return numpy.diagonal(array, k)
    if array.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    length = len(array) + abs(k)
    made = array.place.zeros((length, length), array.dtype)
    reshape(made, -1)[(k if k >= 0 else -k * length) :: length + 1][: len(array)] = array
    return made


@implements(numpy.trace)
def trace(array, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    return numpy.sum(numpy.diagonal(array, offset, axis1, axis2), -1, dtype, out)


def _triangle(keeps):
    """A function that leaves only what is on one side of a diagonal."""

    def part(m, k=0):
        m = numpy.broadcast_to(m, m.shape * 2) if m.ndim == 1 else m
        if m.ndim < 2:
            raise TypeError("tril and triu take an array of at least one dimension")
        rows, columns = (counted(m.place, length) for length in m.shape[-2:])
        return numpy.where(keeps(columns, rows[:, None] + k), m, numpy.zeros((), m.dtype))

    return part


implements(numpy.triu)(_triangle(numpy.greater_equal))
implements(numpy.tril)(_triangle(numpy.less_equal))


@implements(numpy.take_along_axis)
def take_along_axis(arr, indices, axis=-1):
    _check_remote(arr)
    arr, axis = (ravel(arr), 0) if axis is None else (arr, *normal_axes(axis, arr.ndim))
    return take_along(arr, indices if is_array(indices) else numpy.asarray(indices), axis)


@implements(numpy.put_along_axis)
def put_along_axis(arr, indices, values, axis):
    _check_remote(arr)
    axis = axis if axis is None else normal_axes(axis, arr.ndim)[0]
    put_along(arr, indices if is_array(indices) else numpy.asarray(indices), values, axis)


def _check_remote(array):
    if not isinstance(array, RemoteArray):
        raise TypeError("the first argument must be a remote array if another one is: numpy.asarray(array) is a local copy")


@implements(numpy.ix_)
def ix_(*args):
    made = []
    for axis, one in enumerate(args):
        one = one if is_array(one) else numpy.asarray(one)
        if one.ndim != 1:
            raise ValueError("Cross index must be 1 dimensional")
        if one.size == 0:
            one = one.astype(numpy.intp)
        if one.dtype == bool:
            one = flat_nonzero(one)
        made.append(numpy.reshape(one, [1] * axis + [one.size] + [1] * (len(args) - axis - 1)))
    return tuple(made)


def _like(name):
    def make(prototype, *args, **kwargs):
        """A new array in the place of another, with its shape and dtype where no other are said."""
        return _made_like(name, prototype, *args, **kwargs)

    return make


def _made_like(name, prototype, *args, dtype=None, order="K", subok=True, shape=None, device=None):
    values, dtypes = (args[:1], args[1:]) if name == "full" else ((), args)
    dtype = dtypes[0] if dtypes else dtype
    dtype = prototype.dtype if dtype is None else dtype
    if shape is None:
        made = prototype.place.laid_out(prototype.shape, dtype, [prototype])
    else:
        made = prototype.place.empty(shape, dtype)
    if name != "empty":
        made[...] = values[0] if values else {"zeros": numpy.zeros((), dtype), "ones": 1}[name]
    return made


for _function in (numpy.empty_like, numpy.zeros_like, numpy.ones_like, numpy.full_like):
    implements(_function)(_like(_function.__name__[:-5]))
