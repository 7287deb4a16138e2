"""Arrays whose elements are in memory components.

This module imports no operation: those are looked up in the table of `functions`.
"""

import operator

import numpy

from . import functions, stream
from .arena import Stretch


class RemoteArray(numpy.lib.mixins.NDArrayOperatorsMixin):
    """A NumPy array whose elements are in a memory component, here or on other machines, and not in this process.

    NumPy's functions and operators take it. They work through it tile by tile, with at most the working set of its
    place in this process. Their results are remote again, with two exceptions: a result without dimensions is a scalar
    of NumPy's, and the result of a reduction is an ndarray if it has at most a sixteenth of the working set. An
    operation that cannot be done tile by tile raises a TypeError that says so. `numpy.asarray` copies all of it into
    this process.

    Slices are views, as NumPy's, and have the same memory; it is given back with the last of them. Made by `sublet.remote` and other
    places, see `sublet.Remote`, and by operations.

    Examples:
        >>> a = sublet.remote.arange(1_000_000).reshape(1000, 1000)
        >>> (a * 2)[:, 3].sum()
        np.int64(999006000)
    """

    def __init__(self, place, stretch, shadow, is_readonly=False):
        self.place = place
        self._stretch: Stretch = stretch
        self._shadow = shadow
        self._is_readonly = is_readonly

    def _viewed(self, shadow):
        """Another view of the same memory."""
        return RemoteArray(self.place, self._stretch, shadow, self._is_readonly)

    def check_writeable(self):
        """Refuses to write to a read-only array, and to a view in which elements are the same, as of `numpy.broadcast_to`."""
        if self._is_readonly or any(stride == 0 and length > 1 for stride, length in zip(self._shadow.strides, self.shape)):
            raise ValueError("output array is read-only")

    @property
    def shape(self):
        """Length in each dimension."""
        return self._shadow.shape

    @property
    def dtype(self):
        """The dtype of its elements, none of which is an object."""
        return self._shadow.dtype

    @property
    def ndim(self):
        """Number of dimensions."""
        return self._shadow.ndim

    @property
    def size(self):
        """Number of elements."""
        return self._shadow.size

    @property
    def itemsize(self):
        """Size of an element in bytes."""
        return self._shadow.itemsize

    @property
    def nbytes(self):
        """Size of all elements in bytes."""
        return self._shadow.nbytes

    @property
    def strides(self):
        """Distance in bytes from one element to the next, in each dimension."""
        return self._shadow.strides

    @property
    def T(self):
        """A view with the dimensions in reverse order."""
        return self._viewed(self._shadow.T)

    @property
    def real(self):
        """A view of the real parts."""
        return self._viewed(self._shadow.real)

    @real.setter
    def real(self, value):
        self.real[...] = value

    @property
    def imag(self):
        """A view of the imaginary parts; of an array that is not complex, zeros."""
        if self.dtype.kind == "c":
            return self._viewed(self._shadow.imag)
        return self.place.zeros(self.shape, self.dtype)

    @imag.setter
    def imag(self, value):
        if self.dtype.kind != "c":
            raise TypeError("array does not have imaginary part to set")
        self.imag[...] = value

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return functions.TABLE[numpy.ufunc](ufunc, method, inputs, options)

    def __array_function__(self, function, types, args, kwargs):
        return functions.called(self, function, args, kwargs)

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ValueError("a remote array cannot be an ndarray without a copy")
        values = stream.local(self)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __getitem__(self, key):
        return functions.TABLE[operator.getitem](self, key)

    def __setitem__(self, key, value):
        functions.TABLE[operator.setitem](self, key, value)

    def __eq__(self, other):
        return functions.TABLE[operator.eq](self, other)

    def __ne__(self, other):
        return functions.TABLE[operator.ne](self, other)

    __hash__ = None

    def __len__(self):
        if self.ndim == 0:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self):
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        if self.ndim > 1:
            return (self[index] for index in range(len(self)))
        return self._scalars()

    def _scalars(self):
        parts, _, tile = stream.arranged([self], self.shape, self.place.working_bytes)
        for _, (values,) in stream.streamed(parts, stream.blocks.tiles(self.shape, tile)):
            yield from values.copy()

    def __contains__(self, value):
        return bool(numpy.any(self == value))

    def _scalar(self):
        if self.size != 1:
            raise TypeError("only an array of one element can be converted to a Python scalar")
        return stream.local(self).item()

    def __bool__(self):
        if self.size != 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous. Use a.any() or a.all()")
        return bool(self._scalar())

    def __int__(self):
        return int(self._scalar())

    def __float__(self):
        return float(self._scalar())

    def __complex__(self):
        return complex(self._scalar())

    def __index__(self):
        return self._scalar().__index__()

    def __reduce__(self):
        raise TypeError("a remote array is of the process that made it: numpy.asarray(array) is a copy that can be sent")

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    def __repr__(self):
        return f"<remote array of shape {self.shape}, {self.dtype}>"

    def item(self, *index):
        """Returns one element, as an object of Python's; without an index, the only one."""
        return self[index[0] if len(index) == 1 and isinstance(index[0], tuple) else index].item() if index else self._scalar()

    def tolist(self):
        """All elements, as lists of Python's objects."""
        return stream.local(self).tolist()

    def tobytes(self):
        """All elements' bytes, in the order of C."""
        return stream.local(self).tobytes()

    def astype(self, dtype, copy=True, casting="unsafe"):
        """A copy of another dtype; with `copy=False` the array itself if it has that."""
        dtype = numpy.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        if not numpy.can_cast(self.dtype, dtype, casting):
            raise TypeError(f"cannot cast array data from {self.dtype!r} to {dtype!r} according to the rule {casting!r}")
        made = self.place.laid_out(self.shape, dtype, [self])
        stream.pointwise(stream.copy_tile, [self], [made], self.place.working_bytes)
        return made

    def copy(self, order="K"):
        """A copy, in memory of its own."""
        return self.place.copied(self, order)

    def view(self, dtype):
        """A view of the same bytes as elements of another dtype."""
        self.place.checked(dtype)
        return self._viewed(self._shadow.view(dtype))

    def fill(self, value):
        """Sets all elements to one value."""
        self[...] = value

    def flatten(self, order="C"):
        """A copy in one dimension."""
        return numpy.ravel(self.copy(order), order)

    def sort(self, axis=-1, kind=None, *, stable=None):
        """Sorts it in its place."""
        functions.TABLE[numpy.ndarray.sort](self, axis, kind, stable)

    def reshape(self, *shape, order="C"):
        """A view of another shape, or a copy where NumPy would make one."""
        return numpy.reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def transpose(self, *axes):
        """A view with the dimensions in another order."""
        axes = axes[0] if len(axes) == 1 and not isinstance(axes[0], (int, numpy.integer)) else axes or None
        return numpy.transpose(self, axes)

    def clip(self, min=None, max=None, out=None):
        """Returns the elements limited to the range from `min` to `max`."""
        return numpy.clip(self, min, max, out=out)

    def conj(self):
        """The complex conjugates."""
        return numpy.conjugate(self)


def _method(function):
    def method(self, *args, **kwargs):
        return function(self, *args, **kwargs)

    method.__name__ = function.__name__
    method.__qualname__ = f"RemoteArray.{function.__name__}"
    method.__doc__ = f"As `numpy.{function.__name__}` of it."
    return method


for _function in (
    *(numpy.sum, numpy.prod, numpy.min, numpy.max, numpy.mean, numpy.std, numpy.var, numpy.any, numpy.all, numpy.trace),
    *(numpy.argmin, numpy.argmax, numpy.argsort, numpy.searchsorted, numpy.nonzero, numpy.cumsum, numpy.cumprod, numpy.dot),
    *(numpy.ravel, numpy.squeeze, numpy.swapaxes, numpy.diagonal, numpy.round, numpy.take, numpy.repeat),
):
    setattr(RemoteArray, _function.__name__, _method(_function))


def is_array(operand):
    """Whether an operand is a remote array or an ndarray."""
    return isinstance(operand, (RemoteArray, numpy.ndarray))


def place_among(operands):
    """The place of the first remote array among operands."""
    return next(operand.place for operand in operands if isinstance(operand, RemoteArray))
