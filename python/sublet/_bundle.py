"""Variables of an application on their way from component to component: a pickle, and memory that it leaves out."""

import io
import pickle
import sys
import types
from typing import Any, NamedTuple

import cloudpickle

from . import _errors
from ._regions import Stretch, address_of

# Types that cannot change or are pickled by name, and so may be in several pickles.
_FIXED = frozenset(
    (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, slice, type)
    + (types.ModuleType, types.BuiltinFunctionType, types.FunctionType, types.CodeType)
)


class Bundle(NamedTuple):
    """Variables that share one pickle."""

    names: tuple
    #: The pickle, or its location.
    body: Any
    #: Locations of the memory that was left out, as `Stretch`.
    memory: tuple
    #: Arrays: index of the memory, offset, and description.
    arrays: tuple
    #: Other memory: index, offset, size in bytes.
    buffers: tuple
    #: Names of variables that have another value by now, in another bundle.
    gone: frozenset = frozenset()

    def wanted(self, parameters):
        """The variables among these parameters whose values are here."""
        return [name for name in self.names if name in parameters and name not in self.gone]

    def without(self, names):
        """The bundle without these variables; None if no other one is in it."""
        gone = self.gone.union(name for name in names if name in self.names)
        return self._replace(gone=gone) if len(gone) < len(self.names) else None

    def stretches(self):
        """All bytes of memory components that the bundle refers to."""
        return [*self.memory, *([self.body] if isinstance(self.body, Stretch) else [])]

    def local(self):
        """The memory that is more than that of arrays."""
        return [self.memory[number] for number, *_ in self.buffers if number is not None]


class Elsewhere(NamedTuple):
    """An array of a variable that this component does not get, in a pickle with one that it gets."""

    stretch: Stretch
    array: tuple


def load(bundle, memory, wanted):
    """Loads the values of a bundle, of which the `wanted` ones are needed. Their memory is attached."""
    there = needed(bundle, memory, wanted)
    buffers = []
    for number, offset, nbytes, is_readonly in bundle.buffers:
        if number is None:
            buffers.append(b"" if is_readonly else bytearray())
        elif there[number] is None:
            listed, component = " and ".join(bundle.names), bundle.memory[number].component
            raise _errors.InvalidArgument(f"{listed} share values, and there is no access edge to memory component {component}")
        else:
            view = memoryview(memory.bytes_of(there[number])[offset : offset + nbytes])
            buffers.append(view.toreadonly() if is_readonly else view)
    arrays = [_array(array, there, bundle, memory) for array in bundle.arrays]
    body = bundle.body
    if isinstance(body, Stretch):
        body = memory.channel(body.component).read(body.offset, body.nbytes)
    found = _Unpickler(body, arrays, buffers).load()
    return {name: value for name, value in found.items() if name not in bundle.gone}


def needed(bundle, memory, wanted):
    """Returns the memory of a bundle; None for that of other variables to which this component has no access edge."""
    is_whole = len(wanted) == len(bundle.names)
    return [stretch if is_whole or memory.has(stretch.component) else None for stretch in bundle.memory]


def _array(array, there, bundle, memory):
    import numpy

    number, offset, dtype, shape, strides, is_writable = array
    if number is None:
        return numpy.empty(shape, dtype)
    if there[number] is None:
        return Elsewhere(bundle.memory[number], array)
    found = memory.bytes_of(there[number])
    if found is None:
        return memory.remote(there[number], array[1:])
    made = numpy.ndarray(shape, dtype, found, offset, strides)
    if not is_writable:
        made.flags.writeable = False
    return made


def bounds(array):
    """Returns the address range of an array's elements."""
    if array.size == 0:
        return 0, 0
    low = high = address_of(array)
    for length, stride in zip(array.shape, array.strides):
        low, high = low + min(0, (length - 1) * stride), high + max(0, (length - 1) * stride)
    return low, high + array.itemsize


def view_bounds(view):
    """Returns the address range of a memoryview's bytes."""
    if view.nbytes == 0:
        return 0, 0
    import numpy

    low = address_of(numpy.frombuffer(view, "u1"))
    return low, low + view.nbytes


def pickled(value):
    """Pickles a value, whose classes may be those of the caller's program."""
    file = io.BytesIO()
    cloudpickle.Pickler(file, 5).dump(value)
    return file.getvalue()


class Pickling(cloudpickle.Pickler):
    """Pickler of variables, which collects left-out memory and mutable values."""

    def __init__(self, values):
        self.names = tuple(values)
        #: Arrays of NumPy's, remote arrays, and `Elsewhere`.
        self.arrays = []
        #: Mutable values by identity, which are kept alive here.
        self.seen = {}
        #: Arrays of NumPy's whose elements are in the pickle: of subclasses, and variables that are arrays of objects. Arrays of objects
        #: within other values are not among them: those of tables are not meant to be shared.
        self.copied = []
        self._numbers = {}
        self._values = values
        buffers, file = [], io.BytesIO()
        super().__init__(file, 5, buffer_callback=buffers.append)
        try:
            self.dump(values)
            self.views = [buffer.raw() for buffer in buffers]
        except (TypeError, pickle.PicklingError, AttributeError, RecursionError, BufferError) as error:
            what = " and ".join(values)
            raise type(error)(f"{what} cannot be passed to the next component: {error}") from error
        self.body = file.getvalue()

    def persistent_id(self, value):
        kind = type(value)
        if kind in _FIXED:
            return None
        if kind is Elsewhere or _is_plain_array(value) or is_remote(value):
            number = self._numbers.setdefault(id(value), len(self.arrays))
            if number == len(self.arrays):
                self.arrays.append(value)
                self.seen[id(value)] = value
            return number
        if not isinstance(value, type):
            self.seen[id(value)] = value
        if _is_array(value) and (not value.dtype.hasobject or any(value is each for each in self._values.values())):
            self.copied.append(value)
        return None

    def overlap(self):
        """Whether arrays share memory. A pickle with their elements would have these twice."""
        ranges = sorted(bounds(array) for array in self.arrays if _is_array(array) and array.size)
        return any(after[0] < before[1] for before, after in zip(ranges, ranges[1:]))

    def shares(self, other):
        """Whether a value that may change, other than an array, is in both."""
        arrays = {id(array) for array in self.arrays}
        return bool(self.seen.keys() & other.seen.keys() - arrays)

    def nbytes(self):
        """Number of bytes of the values, roughly: arrays that share memory count each."""
        arrays = sum(0 if type(array) is Elsewhere else array.nbytes for array in self.arrays)
        return len(self.body) + arrays + sum(view.nbytes for view in self.views)


def _is_array(value):
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def owner(array):
    """Returns the value whose memory an array uses, if it is not an array: a `bytearray`, or what another library has."""
    found = array
    while _is_array(found) or isinstance(found, memoryview):
        found = found.base if _is_array(found) else found.obj
    return found


def copies_that_share(picklings):
    """Returns the names of variables that share memory, of which one is copied, and the type of the copy; None without any.

    Memory that none of them may write is not shared in this sense.
    """
    ranges = []
    for made in picklings:
        found = {id(array): (array, False) for array in made.arrays if _is_array(array)}
        found.update({id(array): (array, True) for array in made.copied})
        ranges += [(*bounds(array), made.names, array, is_copied) for array, is_copied in found.values()]
        for array, _ in found.values():
            other = owner(array) if array.flags.writeable else None
            if other is not None and any(id(other) in one.seen for one in picklings):
                names = {*made.names, *(name for one in picklings if id(other) in one.seen for name in one.names)}
                return sorted(names), type(other).__name__
    # The arrays that overlap, one after the other.
    end, those, copies, names, may_change = 0, set(), [], set(), False
    for low, high, named, array, is_copied in sorted((found for found in ranges if found[0] < found[1]), key=lambda found: found[:2]):
        if low >= end:
            those, copies, names, may_change = set(), [], set(), False
        end = max(end, high)
        those.add(id(array))
        names.update(named)
        copies += [array] if is_copied else []
        may_change = may_change or array.flags.writeable
        if copies and may_change and len(those) > 1:
            return sorted(names), type(copies[0]).__name__
    return None


def _is_plain_array(value):
    """Returns whether the value is an array whose memory is left out of pickles."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def is_remote(value):
    """Returns whether the value is a remote array."""
    module = sys.modules.get("sublet._remote.array")
    return module is not None and type(value) is module.RemoteArray


def is_writable(array):
    """Returns whether an array's elements may be written."""
    return not array._is_readonly if is_remote(array) else array.flags.writeable


def located(array):
    """Returns where the elements of an array are, as `sublet._remote.channels.located`."""
    if not is_remote(array):
        return None, 0, array
    from ._remote.channels import located

    return located(array)


class _Unpickler(pickle.Unpickler):
    """Unpickler of variables."""

    def __init__(self, body, arrays, buffers):
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._arrays = arrays

    def persistent_load(self, number):
        return self._arrays[number]


def fingerprints(values):
    """Fingerprints of variables, without the elements of arrays."""
    found = {}
    for name, value in values.items():
        made = Pickling({name: value})
        arrays = [array if type(array) is Elsewhere else _described(located(array)[2]) for array in made.arrays]
        found[name] = made.body, arrays, [view_bounds(view) for view in made.views]
    return found


def _described(array):
    return *bounds(array), array.dtype, array.shape, array.strides, array.flags.writeable
