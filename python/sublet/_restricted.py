"""Unpickler for bytes that other tenants' programs have written: plain values only.

A pickle is a program: it names functions of the process that loads it, and calls them. This unpickler executes the few opcodes that
plain values need, and knows a fixed table of names. A name is an exact pair of module and name. Nothing is imported by it, and no
attribute is looked up.

The objects that a name stands for never reach the pickle. It gets an `Allowed` in place of a class or function, and an `_Unfinished` in
place of an object whose state is still to come: neither has attributes that the pickle could set, and neither may be in a result.
This module or `_restricted_arrays` makes each object from a name's arguments, after it has checked their types and
sizes.

Memory is bounded by the length of the pickle and its buffers, times a constant. The time for building a dict or set whose keys were
chosen to collide is not.
"""

import collections
import datetime
import decimal
import fractions
import io
import pickle
import uuid

from . import _restricted_arrays as _arrays

# A dict's key or a set's member is nested no deeper: hashing recurses in C without a check.
MOST_KEY_DEPTH = 16
# Maximum number of parts of keys that may be hashed for each byte of a pickle: tuples that refer to others many times
# would take for ever.
KEY_PARTS_PER_BYTE = 16
# Fractions whose numerator or denominator has more bits are refused: reducing them takes quadratic time.
MOST_FRACTION_BITS = 1 << 15
# Most characters of a name or value in an error.
MOST_SHOWN = 200


class Refused(Exception):
    """The pickle has something that is not allowed: `what` names it, `is_object` if it is an object of a class that is not plain."""

    def __init__(self, what, is_object=False):
        super().__init__(what)
        self.what = what[:MOST_SHOWN]
        self.is_object = is_object


def loads(body, buffers=()):
    """The plain value of a pickle. Raises `Refused`."""
    unpickler = _Unpickler(io.BytesIO(body), buffers=buffers)
    unpickler.left = KEY_PARTS_PER_BYTE * len(body)
    try:
        return _whole(unpickler.load())
    except Refused:
        raise
    except RecursionError:
        raise Refused("values that are nested too deeply") from None
    except Exception as error:
        raise Refused(f"a pickle that is not valid ({type(error).__name__})") from None


class Allowed:
    """A class or function that a pickle may name. Has no attribute that can be set."""

    __slots__ = ("_make", "_value")

    def __init__(self, make, value=None):
        object.__setattr__(self, "_make", make)
        object.__setattr__(self, "_value", value)

    def __setattr__(self, name, value):
        raise Refused("a change of a class or function")


class _Unfinished:
    """An object whose state is still to come."""

    __slots__ = ("finish", "keys")

    def __init__(self, finish):
        self.finish = finish
        # Where the memo has it.
        self.keys = []


class _Arguments(tuple):
    """A tuple with an `Allowed` or `_Unfinished` in it: for a call only."""

    __slots__ = ()


_INTERNAL = frozenset([Allowed, _Unfinished, _Arguments])


def _whole(value):
    """A value that may be in a result."""
    return _all_whole((value,))[0]


def _all_whole(values):
    if not _INTERNAL.isdisjoint(map(type, values)):
        raise Refused("a class or function as a value, or an object that is not complete")
    return values


def _exact(value, *kinds):
    """A value of one of these classes, and not of one derived from it."""
    if type(value) not in kinds:
        raise Refused(f"an argument of type {type(value).__name__}")
    return value


# Constructors for the names in the table. Each checks its arguments: their number by its parameters, their types
# itself.


def _complex(real, imaginary):
    return complex(_exact(real, float), _exact(imaginary, float))


def _range(start, stop, step):
    return range(*(_exact(each, int) for each in (start, stop, step)))


def _slice(start, stop, step):
    return slice(*(_exact(each, int, type(None), float, str) for each in (start, stop, step)))


def _fields(packed, length):
    if len(_exact(packed, bytes)) != length:
        raise Refused(f"a date or time of {len(packed)} bytes")
    return list(packed)


def _zone(zone):
    return _exact(zone, datetime.timezone, type(None))


def _date(packed):
    high, low, *rest = _fields(packed, 4)
    return datetime.date(high << 8 | low, *rest)


def _time(packed, zone=None):
    hour, minute, second, *micro = _fields(packed, 6)
    return datetime.time(hour & 127, minute, second, int.from_bytes(micro, "big"), _zone(zone), fold=hour >> 7)


def _datetime(packed, zone=None):
    high, low, month, day, hour, minute, second, *micro = _fields(packed, 10)
    date = (high << 8 | low, month & 127, day)
    return datetime.datetime(*date, hour, minute, second, int.from_bytes(micro, "big"), _zone(zone), fold=month >> 7)


def _timedelta(days, seconds, microseconds):
    return datetime.timedelta(*(_exact(each, int) for each in (days, seconds, microseconds)))


def _timezone(offset, name=None):
    offset = _exact(offset, datetime.timedelta)
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, _exact(name, str))


def _decimal(text):
    return decimal.Decimal(_exact(text, str))


def _fraction(numerator, denominator=1):
    if type(numerator) is str and denominator == 1:
        # Exponents would make a short text a large number, and int limits the digits of each part.
        numerator, _, denominator = numerator.partition("/")
        numerator, denominator = int(numerator), int(denominator or 1)
    if max(_exact(numerator, int).bit_length(), _exact(denominator, int).bit_length()) > MOST_FRACTION_BITS:
        raise Refused(f"a fraction of more than {MOST_FRACTION_BITS} bits")
    return fractions.Fraction(numerator, denominator)


def _uuid():
    def finish(state):
        _exact(state, dict)
        safe = uuid.SafeUUID(_exact(state.get("is_safe"), int, type(None)))
        return uuid.UUID(int=_exact(state["int"], int), is_safe=safe)

    return _Unfinished(finish)


def _ordered_dict():
    return collections.OrderedDict()


def _deque(items=(), most=None):
    if items != ():
        raise Refused("a deque with items among its arguments")
    return collections.deque((), _exact(most, int, type(None)))


def _counter(items):
    return collections.Counter(_exact(items, dict))


def _defaultdict(factory=None):
    if factory is None:
        return collections.defaultdict(None)
    if type(factory) is not Allowed or factory._value not in _FACTORIES:
        raise Refused("a defaultdict whose factory is no builtin class of plain values")
    return collections.defaultdict(factory._value)


_FACTORIES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)

# By the names under which pickles of protocol 5 have them.
_TABLE = {
    **{("builtins", kind.__name__): Allowed(None, kind) for kind in _FACTORIES},
    ("builtins", "complex"): Allowed(_complex, complex),
    ("builtins", "range"): Allowed(_range),
    ("builtins", "slice"): Allowed(_slice),
    ("datetime", "date"): Allowed(_date),
    ("datetime", "time"): Allowed(_time),
    ("datetime", "datetime"): Allowed(_datetime),
    ("datetime", "timedelta"): Allowed(_timedelta),
    ("datetime", "timezone"): Allowed(_timezone),
    ("decimal", "Decimal"): Allowed(_decimal),
    ("fractions", "Fraction"): Allowed(_fraction),
    ("uuid", "UUID"): Allowed(_uuid),
    ("collections", "OrderedDict"): Allowed(_ordered_dict),
    ("collections", "deque"): Allowed(_deque),
    ("collections", "Counter"): Allowed(_counter),
    ("collections", "defaultdict"): Allowed(_defaultdict),
    ("numpy", "ndarray"): Allowed(None, _arrays.ARRAY),
    ("numpy", "dtype"): Allowed(lambda *arguments: _Unfinished(_arrays.dtype(*arguments))),
}
# Modules of NumPy 1 and of NumPy 2.
for _core in ("numpy.core", "numpy._core"):
    _TABLE[f"{_core}.multiarray", "_reconstruct"] = Allowed(lambda *arguments: _Unfinished(_reconstructed(*arguments)))
    _TABLE[f"{_core}.multiarray", "scalar"] = Allowed(_arrays.scalar)
    _TABLE[f"{_core}.numeric", "_frombuffer"] = Allowed(_arrays.from_buffer)
# Values that pickles name.
_CONSTANTS = {("builtins", "Ellipsis"): Ellipsis, ("builtins", "NotImplemented"): NotImplemented}


def _reconstructed(kind, shape, code):
    if type(kind) is not Allowed or kind._value is not _arrays.ARRAY or shape != (0,) or code != b"b":
        raise Refused("an array of a class that is not numpy.ndarray")
    return _arrays.array


class _Unpickler(pickle._Unpickler):
    """The standard library's unpickler in Python, of which only the opcodes in `dispatch` are left."""

    dispatch = {}
    #: Number of parts of keys that may still be hashed.
    left = 0

    def find_class(self, module, name):
        raise Refused("a name in an unexpected place")

    def persistent_load(self, pid):
        raise Refused("a persistent id")

    def get_extension(self, code):
        raise Refused("a code of the extension registry")

    def _push_named(self, module, name):
        if type(module) is not str or type(name) is not str:
            raise Refused("a name that is no text")
        found = _TABLE.get((module, name))
        if found is None:
            found = _CONSTANTS.get((module, name))
        if found is None:
            raise Refused(f"{module}.{name}", is_object=True)
        self.append(found)

    def load_global(self):
        module, name = self.readline()[:-1].decode(), self.readline()[:-1].decode()
        self._push_named(module, name)

    def load_stack_global(self):
        name, module = self.stack.pop(), self.stack.pop()
        self._push_named(module, name)

    def load_reduce(self):
        arguments, function = self.stack.pop(), self.stack[-1]
        if type(function) is not Allowed or function._make is None or type(arguments) not in (tuple, _Arguments):
            raise Refused("a call of something that is not allowed to be called")
        self.stack[-1] = function._make(*arguments)

    def load_newobj(self):
        arguments, kind = self.stack.pop(), self.stack[-1]
        if kind is not _TABLE["uuid", "UUID"] or arguments != ():
            raise Refused("a new object of a class that is not allowed")
        self.stack[-1] = kind._make()

    def load_build(self):
        state, unfinished = self.stack.pop(), self.stack[-1]
        if type(unfinished) is not _Unfinished:
            raise Refused(f"a state for an object of type {type(unfinished).__name__}")
        self.stack[-1] = made = unfinished.finish(state)
        for key in unfinished.keys:
            self.memo[key] = made

    def _remember(self, key):
        value = self.memo[key] = self.stack[-1]
        if type(value) is _Unfinished:
            value.keys.append(key)

    def load_memoize(self):
        self._remember(len(self.memo))

    def load_binput(self):
        self._remember(self.read(1)[0])

    def load_long_binput(self):
        self._remember(int.from_bytes(self.read(4), "little"))

    # Containers: what is internal to this module gets into tuples only, for calls.

    def _push_tuple(self, items):
        self.append(tuple(items) if _INTERNAL.isdisjoint(map(type, items)) else _Arguments(items))

    def load_tuple(self):
        self._push_tuple(self.pop_mark())

    def _load_short_tuple(self, length):
        items = self.stack[-length:]
        if len(items) < length:
            raise Refused("a pickle that is not valid")
        del self.stack[-length:]
        self._push_tuple(items)

    def load_tuple1(self):
        self._load_short_tuple(1)

    def load_tuple2(self):
        self._load_short_tuple(2)

    def load_tuple3(self):
        self._load_short_tuple(3)

    def _extend(self, items):
        into = self.stack[-1]
        if type(into) not in (list, collections.deque):
            raise Refused(f"items for an object of type {type(into).__name__}")
        into.extend(_all_whole(items))

    def load_append(self):
        item = self.stack.pop()
        self._extend([item])

    def load_appends(self):
        items = self.pop_mark()
        self._extend(items)

    def _set(self, items):
        into = self.stack[-1]
        if type(into) not in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter):
            raise Refused(f"keys for an object of type {type(into).__name__}")
        for key, value in zip(items[::2], _all_whole(items[1::2])):
            # Texts know their hash, and are the most frequent keys.
            into[key if type(key) is str else self._key(key)] = value

    def load_setitem(self):
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self):
        items = self.pop_mark()
        self._set(items)

    def load_additems(self):
        items, into = self.pop_mark(), self.stack[-1]
        if type(into) is not set:
            raise Refused(f"members for an object of type {type(into).__name__}")
        for item in items:
            into.add(self._key(item))

    def load_frozenset(self):
        members = self.pop_mark()
        self.append(frozenset(map(self._key, members)))

    def _key(self, key, depth=MOST_KEY_DEPTH):
        """A key, if hashing it takes no longer than it took to read it."""
        self.left -= 1
        if depth == 0 or self.left < 0:
            raise Refused("a key or a set's member that is nested too deeply")
        if type(_whole(key)) in (tuple, frozenset):
            for part in key:
                self._key(part, depth - 1)
        elif type(key) is slice:
            raise Refused("a slice as a key")
        return key

    def load_bytearray8(self):
        length = int.from_bytes(self.read(8), "little")
        data = self.read(min(length, self.size))
        if len(data) != length:
            raise Refused("a bytearray that is longer than the pickle")
        self.append(bytearray(data))

    def load_readonly_buffer(self):
        with memoryview(self.stack[-1]) as view:
            if not view.readonly:
                self.stack[-1] = view.toreadonly()

    def __init__(self, file, buffers):
        super().__init__(file, buffers=buffers)
        self.size = file.getbuffer().nbytes


# Those of protocols 2 to 5 that pickles of plain values have, and GLOBAL, so that an error names what it would have loaded.
_OPCODES = """
    PROTO FRAME STOP MARK POP POP_MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
    SHORT_BINBYTES BINBYTES BINBYTES8 SHORT_BINUNICODE BINUNICODE BINUNICODE8 BYTEARRAY8
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET
    MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE NEWOBJ BUILD NEXT_BUFFER READONLY_BUFFER
""".split()


def _refuse_opcode(name):
    def refuse(unpickler):
        raise Refused(f"the pickle opcode {name}")

    return refuse


for _name in dir(pickle):
    _code = getattr(pickle, _name)
    if _name.isupper() and type(_code) is bytes and len(_code) == 1 and _code[0] in pickle._Unpickler.dispatch:
        _inherited = pickle._Unpickler.dispatch[_code[0]]
        if _name in _OPCODES:
            _Unpickler.dispatch[_code[0]] = getattr(_Unpickler, _inherited.__name__)
        else:
            _Unpickler.dispatch[_code[0]] = _refuse_opcode(_name)
