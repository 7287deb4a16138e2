"""The contents of values, for comparison with what they were before, and the versions by which workers know what has changed."""

import functools
import hashlib
import io
import itertools
import pickle
import sys
import types
import weakref
import zlib

from cloudpickle import cloudpickle

# Functions under `functools.lru_cache`.
Cached = type(functools.lru_cache()(len))
# Attributes of classes that are not sent, or that change by themselves.
NOT_COMPARED = frozenset(
    ["__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__annotations_cache__", "__slotnames__", "_abc_impl"]
)
# Pickles up to this size are kept as they are, and of larger ones digests.
_MOST_KEPT = 4096
# Set in the flags of each class that is made at run time.
_HEAP_TYPE = 1 << 9
# The memo with which pickles begin: the function that stands for all others in them.
_MEMO = {id(id): (0, id)}
# Reducers of cloudpickle, for objects that pickle cannot pickle.
_REDUCERS = cloudpickle.Pickler._dispatch_table

_numbers = itertools.count(1)


class Contents:
    """The contents of a value: its pickle, or a digest of that, and checksums of memory.

    For functions and classes that are sent by value, the contents are their identity. With `expands`, the contents also
    include what the value itself contains, if it is a class, and what functions contain, except their globals. Nothing
    is kept alive then.
    """

    __slots__ = ("found", "_pickled", "_sums", "_references", "_kept")

    def __init__(self, value, expands=False):
        file = io.BytesIO()
        pickler = _Pickler(file, value if expands else None, expands)
        pickler.dump(value)
        pickled = file.getbuffer()
        self._pickled = bytes(pickled) if len(pickled) <= _MOST_KEPT else hashlib.blake2b(pickled, digest_size=16).digest()
        self._sums = pickler.sums
        #: Functions and classes that are compared by identity.
        self.found = () if expands else pickler.found
        # Keeps memory that is compared by identity.
        self._kept = pickler.kept
        # An identity says nothing once its object is deleted, and another may have it.
        self._references = [weakref.ref(each) for each in pickler.found] if expands else ()

    def is_same_as(self, earlier):
        """Whether the value contains what it did earlier."""
        is_equal = self._pickled == earlier._pickled and self._sums == earlier._sums
        return is_equal and all(reference() is not None for reference in earlier._references)


class _Pickler(pickle.Pickler):
    """Makes pickles that are compared, and never loaded."""

    def __init__(self, file, root, expands):
        self.found, self.sums, self.kept = [], [], []
        # The callback must not refer to this pickler: a cycle would keep the pickler until the next garbage collection.
        super().__init__(file, 5, buffer_callback=functools.partial(_leave_out, self.sums, self.kept if not expands else None))
        self.memo = _MEMO
        self._root, self._expands = root, expands

    def reducer_override(self, obj):
        kind = type(obj)
        if kind is types.FunctionType or kind is Cached or isinstance(obj, type):
            if is_by_name(obj):
                return NotImplemented
            self.found.append(obj)
            return id, (id(obj),), self._parts(obj) if self._expands else None
        if is_plain_array(obj) and obj.flags.c_contiguous and obj.dtype.kind not in "mM":
            # As fast as it can be: pickle would describe the array's class and type, too.
            return id, (_sum(memoryview(obj), self.kept if not self._expands else None), obj.shape, obj.dtype.str)
        reducer = _REDUCERS.get(kind)
        return NotImplemented if reducer is None else reducer(obj)

    def _parts(self, obj):
        if type(obj) is Cached:
            return obj.__wrapped__, obj.cache_parameters()
        if isinstance(obj, type):
            if obj is not self._root:
                # Classes are sent with versions of their own.
                return None
            own = {name: value for name, value in vars(obj).items() if name not in NOT_COMPARED}
            return own, obj.__bases__, type(obj)
        self.found.append(obj.__code__)
        cells = [_contents_of(cell) for cell in obj.__closure__ or ()]
        return id(obj.__code__), obj.__defaults__, obj.__kwdefaults__, cells, obj.__dict__


def _leave_out(sums, kept, buffer):
    sums.append(_sum(buffer.raw(), kept))
    return False


def _sum(memory, kept):
    """Returns a value that changes when the memory does.

    With a list `kept`, constant memory is identified by its owner.
    """
    if kept is not None and _is_constant(memory):
        kept.append(memory)
        return memory.nbytes, id(memory.obj)
    return memory.nbytes, zlib.crc32(memory)


def is_plain_array(value):
    """Whether it is an array of NumPy of one of its own types, without objects."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and value.dtype.isbuiltin == 1 and not value.dtype.hasobject


def _contents_of(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_constant(memory):
    """Whether nothing can write the memory: its owner is read-only."""
    if not memory.readonly:
        return False
    base = getattr(memory.obj, "base", None)
    return base is None or type(base) is bytes


def is_by_name(value):
    """Whether a function or class is sent as the name that it has in a module, or is part of the interpreter."""
    if isinstance(value, type) and not value.__flags__ & _HEAP_TYPE:
        return True
    if cloudpickle._PICKLE_BY_VALUE_MODULES and _is_of_module_by_value(value):
        return False
    return is_imported(value)


def _is_of_module_by_value(value):
    """Whether the program has said to cloudpickle that the value's module is sent by value."""
    module = getattr(value, "__module__", None)
    names = module.split(".") if isinstance(module, str) else ()
    return any(".".join(names[: count + 1]) in cloudpickle._PICKLE_BY_VALUE_MODULES for count in range(len(names)))


def is_imported(value):
    """Whether it is known by its name in a module, as the worker's interpreter has it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value and found is not None


def version_of(value, known, key):
    """The number of the value's contents, by which workers know whether they have these already; None if they cannot be compared.

    `known` is a mapping, in which the contents are kept under the key.
    """
    try:
        contents = Contents(value, expands=True)
    except Exception:
        return None
    earlier = known.get(key)
    if earlier is not None and contents.is_same_as(earlier[0]):
        return earlier[1]
    number = next(_numbers)
    known[key] = contents, number
    return number
