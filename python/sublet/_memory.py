"""Arrays in registered memory: workers on the same machine use them where they are."""

import ctypes
import sys

from . import _native
from ._shapes import _numpy, nbytes_of

__all__ = ["array", "empty", "empty_like", "full", "ones", "zeros"]


def _output_space(nbytes):
    """In a function on a worker: memory of its caller's, where what is returned need not be copied."""
    worker = sys.modules.get("sublet_template")
    return None if worker is None else worker.output_space(nbytes)


def empty(shape, dtype=float, order="C"):
    """A new array of unspecified values, as `numpy.empty`, in memory that workers reach without copying.

    It is an ordinary `numpy.ndarray`, and so is each part of it. A call that gets it, or a contiguous part, gets the memory itself
    on the same machine: what the function writes there is seen here. Between machines the bytes are sent. The largest array has
    4 GiB less one byte. Its memory is given up with the last array that is made of it.

    In a function that a worker executes, the array is in its caller's memory if there is enough space there, and is not
    copied when it is returned. From then on it is the caller's, so a function that keeps an array for its next call
    makes that with NumPy.

    Examples:
        >>> a = sublet.empty((1000, 1000), dtype="f4")
        >>> lease.call(numpy.sum, a)
    """
    numpy = _numpy()
    shape, dtype, nbytes = nbytes_of(shape, dtype)
    memory = _output_space(nbytes)
    if memory is None:
        memory = numpy.asarray(_native.allocate(nbytes))
    return numpy.ndarray(shape, dtype, buffer=memory, order=order)


def zeros(shape, dtype=float, order="C"):
    """Makes an array as `empty`, filled with zeros."""
    return full(shape, 0, dtype, order)


def ones(shape, dtype=float, order="C"):
    """Makes an array as `empty`, filled with ones."""
    return full(shape, 1, dtype, order)


def full(shape, fill_value, dtype=None, order="C"):
    """Makes an array as `empty`, filled with a value."""
    numpy = _numpy()
    made = empty(shape, numpy.asarray(fill_value).dtype if dtype is None else dtype, order)
    made[...] = fill_value
    return made


def empty_like(prototype, dtype=None, shape=None):
    """Makes an array as `empty`, with the shape and dtype of another array."""
    return empty(prototype.shape if shape is None else shape, prototype.dtype if dtype is None else dtype)


def array(values, dtype=None):
    """A copy of values, as `numpy.array`, in memory that workers reach without copying."""
    values = _numpy().asarray(values, dtype)
    made = empty_like(values)
    made[...] = values
    return made


def as_bytes_like(part):
    """A part of a reply as an object with the buffer protocol."""
    if type(part) is not _native.Buffer:
        return part
    try:
        return _numpy().asarray(part)
    except ImportError:
        made = (ctypes.c_ubyte * part.nbytes).from_address(part.address)
        made.keeps = part
        return memoryview(made).toreadonly() if part.readonly else made
