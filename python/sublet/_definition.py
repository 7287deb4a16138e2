"""Whether a function is still what was sent of it.

A function that is sent by its value goes along with the values that it refers to: its globals, what it closes over, its defaults. Those
may change. Pickling it anew for every call would cost more than most calls; so the values are looked at. If all of them are such
that they cannot change by themselves, it is enough that they are the same objects as before. Otherwise it is pickled anew.
"""

import builtins
import sys
import types

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)
_BUILTIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ModuleType)
# How deep tuples and functions that refer to each other are looked into.
_DEPTH = 8


class Unsteady(Exception):
    """It refers to something that may change without becoming another object."""


def references(function):
    """What to look at before each call: `[(mapping or cell, name, value)]`, or None if the function is to be pickled each time."""
    try:
        found = []
        _look(function, found, set(), 0)
        return found
    except Unsteady:
        return None


def is_same(found):
    """Whether everything still refers to the same values."""
    for where, name, value in found:
        if name is None:
            try:
                if where.cell_contents is not value:
                    return False
            except ValueError:
                return False
        elif where.get(name, _ABSENT) is not value:
            return False
    return True


_ABSENT = object()


def _look(value, found, seen, depth):
    if isinstance(value, _PLAIN) and type(value) in _PLAIN or isinstance(value, _BUILTIN) or is_imported(value):
        return
    if depth > _DEPTH:
        raise Unsteady
    if type(value) in (tuple, frozenset):
        for item in value:
            _look(item, found, seen, depth + 1)
    elif type(value) is types.FunctionType:
        if id(value) not in seen:
            seen.add(id(value))
            _look_into(value, found, seen, depth)
    else:
        raise Unsteady


def _look_into(function, found, seen, depth):
    if function.__dict__:
        raise Unsteady
    # Its code and defaults may be exchanged as well; that is nobody's habit.
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        _look(value, found, seen, depth + 1)
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            raise Unsteady from None
        found.append((cell, None, value))
        _look(value, found, seen, depth + 1)
    space = function.__globals__
    for name in _names(function.__code__):
        value = space.get(name, _ABSENT)
        if value is _ABSENT and not hasattr(builtins, name):
            # An attribute, or a global that may still come.
            found.append((space, name, _ABSENT))
        elif value is not _ABSENT:
            found.append((space, name, value))
            _look(value, found, seen, depth + 1)


def _names(code):
    """The globals of code, and of the functions in it; attributes have names there, too."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


def is_imported(value):
    """Whether it is known by its name in a module, as the worker's interpreter has it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or "<" in name:
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is value and found is not None
