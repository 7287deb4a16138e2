"""Detects whether a function still equals what was sent of it.

A function that is sent by value brings along the values that it refers to: globals, what it closes over, defaults, attributes of
classes. These may change, and pickling the function anew for each call would cost more than most calls. So a `Watch` notes what the
function refers to, and compares before each call:

- a global, a closure's variable or an attribute of a class refers to the same object. That is all there is to compare for values that
  cannot change, for modules, and for whatever workers import by name;
- the contents of other values are the same: their pickles, and the checksums of memory as that of arrays. That takes time in
  proportion to their size, but for arrays that are read-only and own their memory, which are taken as constant.
"""

import builtins
import enum
import logging
import re
import time
import types

from ._constants import PLAIN, names_in, used
from ._contents import NOT_COMPARED, Cached, Contents, is_by_name
from ._warning import warn

_PLAIN = PLAIN | {type(Ellipsis), range}
# Values of these types are the same as long as they are the same object.
_STEADY = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ModuleType,
    re.Pattern,
    logging.Logger,
)
# Attributes of enums which refer to their members.
_OF_ENUMS = frozenset(["_member_map_", "_member_names_", "_value2member_map_"])
# A comparison that takes longer than this is worth a warning, in seconds.
_LONG_SECONDS = 0.005

_ABSENT = object()
# Placeholder for the watched function, which its watch must not keep alive.
_ITSELF = object()


class Unwatchable(Exception):
    """The function refers to something that cannot be compared."""


class Watch:
    """The objects that a function refers to, as they were when the watch was made."""

    __slots__ = ("_names", "_counts", "_parts", "_contents", "_known", "_function", "_seen")

    def __init__(self, function):
        # (mapping or cell, name, value); (mapping, how many names it has); (function, its code, its defaults, its keyword defaults)
        self._names, self._counts, self._parts = [], [], []
        # (name, value) of what is compared by contents.
        self._contents = []
        self._function, self._seen = function, {}
        try:
            self._look(function, "its state")
            self._known = self._look_at_contents()
        except Exception as error:
            # Pickling a value may raise any exception, and values may be nested too deeply.
            raise Unwatchable from error
        finally:
            self._function = self._seen = None

    def is_same(self, function):
        """Whether the function, which is the one that is watched, still refers to the same."""
        for where, name, value in self._names:
            found = where.get(name, _ABSENT) if name is not None else _value_of(where)
            if found is not value and not (value is _ITSELF and found is function):
                return False
        for where, count in self._counts:
            if len(where) != count:
                return False
        for one, code, defaults, keywords in self._parts:
            one = function if one is _ITSELF else one
            if one.__code__ is not code or one.__defaults__ is not defaults or one.__kwdefaults__ is not keywords:
                return False
        return not self._contents or self._contents_now(function).is_same_as(self._known)

    def warn_if_slow(self, function, name):
        """Warns of a function that is slow to call because of what it refers to."""
        begun = time.perf_counter()
        if not self._contents or not self.is_same(function):
            return
        seconds = time.perf_counter() - begun
        if seconds > _LONG_SECONDS:
            names = ", ".join(sorted({name for name, _ in self._contents}))
            warn(
                f"each call of {name} takes {seconds * 1000:.0f} ms to compare {names} with what was sent: pass large values as arguments, "
                "or make arrays read-only (array.flags.writeable = False)"
            )

    def _contents_now(self, function):
        return Contents([function if value is _ITSELF else value for _, value in self._contents])

    def _look_at_contents(self):
        """The contents, after a look at the functions and classes that are found in them: these are compared as all others are."""
        while True:
            contents, before = self._contents_now(self._function), len(self._contents)
            for value in contents.found:
                self._look(value, getattr(value, "__name__", "a function"))
            if len(self._contents) == before:
                return contents

    def _look(self, value, name):
        kind = type(value)
        if kind in _PLAIN or isinstance(value, _STEADY) or is_by_name(value) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if kind in (tuple, frozenset):
            self._look_at_each(value, name)
        elif kind is types.FunctionType:
            self._look_into(value, name)
        elif kind in (staticmethod, classmethod):
            self._look(value.__func__, name)
        elif kind is property:
            self._look_at_each((value.fget, value.fset, value.fdel), name)
        elif kind is Cached:
            self._look(value.__wrapped__, name)
        elif isinstance(value, enum.Enum):
            self._look(kind, name)
        elif isinstance(value, type):
            self._look_at_mapping(vars(value), f"{name}.")
            self._look_at_each((type(value), *value.__bases__), name)
        else:
            self._contents.append((name, self._noted(value)))

    def _look_at_each(self, values, name):
        for value in values:
            self._look(value, name)

    def _look_at_mapping(self, where, prefix):
        self._counts.append((where, len(where)))
        for name, value in list(where.items()):
            if name not in NOT_COMPARED and name not in _OF_ENUMS:
                self._note(where, name, value, prefix + name)

    def _look_into(self, function, name):
        self._parts.append((self._noted(function), function.__code__, function.__defaults__, function.__kwdefaults__))
        self._look_at_each((function.__defaults__, function.__kwdefaults__), name)
        self._look_at_mapping(function.__dict__, f"{name}.")
        for called, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            self._note(cell, None, _value_of(cell), called)
        space, names = function.__globals__, names_in(function.__code__)
        for called in names:
            value = space.get(called, _ABSENT)
            # A name without a value is an attribute, or a global that may still come.
            if value is not _ABSENT or not hasattr(builtins, called):
                self._note(space, called, value, called)
            if type(value) is types.ModuleType:
                self._names += [(vars(module), each, constant) for module, each, constant in used(value, names)]

    def _note(self, where, key, value, name):
        self._names.append((where, key, self._noted(value)))
        if value is not _ABSENT:
            self._look(value, name)

    def _noted(self, value):
        return _ITSELF if value is self._function else value


def _value_of(cell):
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT
