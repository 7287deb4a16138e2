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
_LOADS = frozenset(["LOAD_CONST", "LOAD_SMALL_INT"])
_STORES = frozenset(["STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL"])
_ABSENT = object()


def own_modules():
    """The modules of this program that workers import from files."""
    return [module for name, module in list(sys.modules.items()) if name != "__main__" and is_own(module)]


def is_own(module):
    """Whether workers import the module from a file of this program."""
    file = getattr(module, "__file__", None)
    return type(module) is types.ModuleType and isinstance(file, str) and not _is_of_environment(file)


@functools.lru_cache(maxsize=None)
def _is_of_environment(file):
    folders = (*_modules._environment_folders(), os.path.realpath(site.getusersitepackages()) + os.sep)
    return _modules._is_within(file, folders)


def changed(modules, sent=()):
    """The constants of modules that have other values than their sources say, by module and name.

    `sent` are pairs of module and name whose values workers have from here already, and which are sent even if they are as in the source.
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


def _is_same(value, literal):
    return type(value) is type(literal) and value == literal


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
    counts, literals, before = {}, {}, None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "EXTENDED_ARG":
            continue
        if instruction.opname in _STORES:
            name = instruction.argval
            counts[name] = counts.get(name, 0) + 1
            if before.opname in _LOADS and type(before.argval) in PLAIN:
                literals[name] = before.argval
        before = instruction
    return {name: value for name, value in literals.items() if counts[name] == 1 and not name.startswith("__")}


def _is_set_within(module, name):
    """Whether a function of the module sets the name."""
    waiting = [constant for constant in _code_of(module).co_consts if isinstance(constant, types.CodeType)]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        if name in code.co_names and any(each.opname in _STORES and each.argval == name for each in dis.get_instructions(code)):
            return True
    return False
