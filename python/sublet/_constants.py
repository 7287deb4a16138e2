"""Constants of the program's own modules that were set to other values since the modules were imported, as by `config.limit = 5`.

Workers import these modules anew, from their files, and get the values from here. A constant is a name that a module's source assigns
once, a literal. Nothing is known of other names: what a module computes when it is imported may have to be another value on a worker.
"""

import dis
import functools
import os
import site
import sys
import types

from . import _modules
from ._warning import warn

# Values that are sent. They cannot change by themselves.
PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])
_STORES = frozenset(dis.opmap[name] for name in ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL"))
_LOAD, _LOAD_INT = dis.opmap["LOAD_CONST"], dis.opmap.get("LOAD_SMALL_INT")
_ABSENT = object()


def own_modules():
    """The modules of this program that workers import from files."""
    return [module for name, module in list(sys.modules.items()) if name != "__main__" and is_own(module)]


def is_own(module):
    """Whether workers import the module from a file of this program."""
    file = getattr(module, "__file__", None)
    return type(module) is types.ModuleType and isinstance(file, str) and not _is_of_environment(file)


@functools.lru_cache(maxsize=None)
def _environment():
    return (*_modules._environment_folders(), os.path.realpath(site.getusersitepackages()) + os.sep)


@functools.lru_cache(maxsize=None)
def _is_of_environment(file):
    return _modules._is_within(file, _environment())


def changed(modules, sent=()):
    """The constants of modules that have other values than their sources say, by module and name.

    `sent` has a pair of module and name for each constant that workers have from here already: it is sent even if it is as in the source.
    """
    found = {}
    for module in modules:
        name, values = module.__name__, {}
        for constant, literal in _constants_of(module).items():
            value = vars(module).get(constant, _ABSENT)
            if value is _ABSENT or (_is_same(value, literal) and (name, constant) not in sent):
                continue
            if _is_set_within(module, constant):
                # By the module's own functions, which workers have, too.
                continue
            if type(value) in PLAIN:
                values[constant] = value
            else:
                _warn(name, constant, type(value).__name__)
        if values:
            found[name] = values
    return found


def used(module, names):
    """The constants among the names, which may be attributes of anything: modules, names, and values."""
    if not is_own(module):
        return
    for name in names:
        value = vars(module).get(name, _ABSENT)
        if type(value) in PLAIN:
            yield module, name, value
        elif type(value) is types.ModuleType and value.__name__.startswith(f"{module.__name__}."):
            yield from used(value, names)


def names_in(code):
    """The globals and attributes that code uses, and functions in it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= names_in(constant)
    return names


def _is_same(value, literal):
    return value is literal or (type(value) is type(literal) and value == literal)


@functools.lru_cache(maxsize=None)
def _warn(module, constant, kind):
    """Warns once of a constant that workers do not get."""
    warn(
        f"{module}.{constant} was set to an object of type {kind}, and workers have what the module's source says: set it in an initializer, "
        "or pass it as an argument"
    )


def _constants_of(module):
    """The names that a module's source assigns once, a literal, and what they are assigned."""
    code = _code_of(module)
    return {} if code is None else _constants_in(code)


def _code_of(module):
    """The code of a module as its file is now; None if there is none."""
    try:
        changed_at = os.stat(module.__file__).st_mtime_ns
    except OSError:
        # It is in an archive, or was deleted.
        changed_at = None
    return _load(module.__name__, getattr(module.__spec__, "loader", None), changed_at)


@functools.lru_cache(maxsize=4096)
def _load(name, loader, _changed_at):
    try:
        return loader.get_code(name)
    except Exception:
        # A loader may have no code to show, and the file may be gone or no Python.
        return None


@functools.lru_cache(maxsize=4096)
def _constants_in(code):
    if ("*",) in code.co_consts:
        # Another module's names may take the place of its own.
        return {}
    counts, literals, before = {}, {}, _ABSENT
    for operation, argument in _instructions(code):
        if operation in _STORES:
            name = code.co_names[argument]
            counts[name] = counts.get(name, 0) + 1
            if type(before) in PLAIN:
                literals[name] = before
        before = code.co_consts[argument] if operation == _LOAD else argument if operation == _LOAD_INT else _ABSENT
    return {name: value for name, value in literals.items() if counts[name] == 1 and not name.startswith("__")}


def _instructions(code):
    """Each operation of code and its argument, as `dis` has them, which takes many times as long."""
    compiled, extended = code.co_code, 0
    for at in range(0, len(compiled), 2):
        operation, argument = compiled[at], compiled[at + 1] | extended
        if operation == dis.EXTENDED_ARG:
            extended = argument << 8
        else:
            extended = 0
            yield operation, argument


def _is_set_within(module, name):
    """Whether a function of the module sets the name."""
    waiting = [constant for constant in _code_of(module).co_consts if isinstance(constant, types.CodeType)]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        stored = {argument for operation, argument in _instructions(code) if operation in _STORES} if name in code.co_names else ()
        if any(code.co_names[argument] == name for argument in stored):
            return True
    return False
