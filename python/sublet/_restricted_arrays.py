"""Arrays, scalars and dtypes of NumPy, from pickles that other tenants' programs have written: see `_restricted`.

NumPy's own functions for that trust the pickle: a dtype's state sets the flags that say whether an array's memory has references to
objects. So dtypes are made of their descriptions, and arrays of their bytes, by NumPy's public constructors.
"""

import math
import re
import sys

from ._shapes import _numpy

# Placeholder for the class `numpy.ndarray`.
ARRAY = "ndarray"
# Codes of plain dtypes, without an order of bytes: `f8`, `U10`, `M8`.
_CODE = re.compile(r"(?:[biufcmMO]\d{1,2}|[SUV]\d{1,9}|[?bBhHiIlLqQefdgFDGO])")
_UNITS = ("generic", "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
_MOST_FIELDS, _MOST_DIMENSIONS = 1 << 12, 64
# The order of bytes that is not this machine's.
_SWAPPED = ">" if sys.byteorder == "little" else "<"
# Bit of a dtype's flags: its fields are aligned.
_ALIGNED = 0x80


def _check(is_right, what):
    if not is_right:
        raise ValueError(what)


def _shape(shape):
    _check(type(shape) is tuple and len(shape) <= _MOST_DIMENSIONS, "dimensions")
    _check(all(type(length) is int and 0 <= length < 1 << 63 for length in shape), "shape")
    return shape


def _plain_dtype(kind, may_have_objects=False):
    """A dtype whose arrays have no references, but for the one of objects where it may be."""
    _check(isinstance(kind, _numpy().dtype), "dtype")
    _check(not kind.hasobject or (may_have_objects and kind == _numpy().dtype("O")), "dtype with objects")
    return kind


def dtype(code, is_aligned, is_copy):
    """Makes a dtype of its state."""
    _check(type(code) is str and _CODE.fullmatch(code) is not None, "code")

    def finish(state):
        _check(type(state) is tuple and 8 <= len(state) <= 9, "state")
        _, order, within, names, fields, size, _, flags, *more = state
        if within is not None:
            kind, shape = within
            # A dtype's size is an int of C.
            _check(math.prod(_shape(shape)) * _plain_dtype(kind).itemsize < 1 << 31, "size")
            return _numpy().dtype((kind, shape))
        if names is not None:
            return _structured(names, fields, size, flags)
        made = _with_unit(code, more) if code[0] in "mM" else _numpy().dtype(code)
        _check(order in ("<", ">", "|", "="), "order")
        return made.newbyteorder(order) if order == _SWAPPED else made

    return finish


def _with_unit(code, more):
    """A dtype of times."""
    _, unit = more[0] if more else (None, (b"generic", 1, 1, 1))
    name, count, divisor, _ = unit
    name = name.decode() if type(name) is bytes else name
    _check(name in _UNITS and type(count) is int and 0 < count < 1 << 31 and divisor == 1, "unit")
    return _numpy().dtype(code if name == "generic" else f"{code}[{count}{name}]")


def _structured(names, fields, size, flags):
    _check(type(names) is tuple and len(names) <= _MOST_FIELDS and all(type(name) is str for name in names), "names")
    described = [fields[name] for name in names]
    kinds = [_plain_dtype(one[0]) for one in described]
    offsets = [one[1] for one in described]
    _check(all(type(offset) is int for offset in offsets) and type(size) is int and type(flags) is int, "offsets")
    _check(all(0 <= offset and offset + kind.itemsize <= size < 1 << 31 for offset, kind in zip(offsets, kinds)), "offsets")
    titles = [one[2] if len(one) > 2 else None for one in described]
    _check(all(type(title) in (str, type(None)) for title in titles), "titles")
    whole = {"names": list(names), "formats": kinds, "offsets": offsets, "itemsize": size}
    if any(title is not None for title in titles):
        whole["titles"] = titles
    return _numpy().dtype(whole, align=bool(flags & _ALIGNED))


def array(state):
    """Makes an array of its state."""
    version, shape, kind, is_fortran, data = state
    _check(version == 1 and type(is_fortran) is bool, "version")
    order, count = "F" if is_fortran else "C", math.prod(_shape(shape))
    if _plain_dtype(kind, may_have_objects=True).hasobject:
        _check(type(data) is list and len(data) == count, "items")
        made = _numpy().empty(count, kind)
        for index, item in enumerate(data):
            # One by one: NumPy would take sequences apart.
            made[index] = item
        return made.reshape(shape).copy(order)
    _check(type(data) is bytes and len(data) == count * kind.itemsize, "length")
    return _numpy().ndarray(shape, kind, bytearray(data), order=order)


def scalar(kind, data):
    """Makes a scalar. Refuses dtypes with objects, for which NumPy would load the data as a pickle."""
    kind = _plain_dtype(kind)
    _check(type(data) is bytes and len(data) == kind.itemsize, "length")
    return _numpy().ndarray((), kind, bytearray(data))[()]


def from_buffer(buffer, kind, shape, order, axes=None):
    """Makes an array of memory that was left out of the pickle."""
    numpy = _numpy()
    _check(order in ("C", "F", "A", "K"), "order")
    made = numpy.frombuffer(buffer, dtype=_plain_dtype(kind))
    _check(math.prod(_shape(shape)) == made.size, "length")
    if order == "K" and axes is not None:
        return made.reshape(shape, order="C").transpose(_shape(axes))
    return made.reshape(shape, order=order)
