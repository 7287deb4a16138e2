"""Pickles of functions and arguments for workers: cloudpickle's, but for what Sublet's workers know better. The other end is the worker's
`worker.py`.
"""

import dis
import io
import linecache
import types

import cloudpickle

from . import _classes, _constants
from ._contents import Cached, is_imported, version_of

# The longest source of a function that goes along with it, in characters, and the last line of a file that it may be from.
MOST_SOURCE = 64 << 10
MOST_LINES = 1 << 20


class _Space:
    """In place of a module's globals: on a worker there is one namespace for each module whose functions are sent by their value."""

    def __init__(self, globals):
        self._names = str(globals.get("__name__")), globals.get("__package__") or None

    def __reduce__(self):
        return eval, (f"__import__('sublet_worker').space{self._names!r}",)


class _OfWorker:
    """A function of one of the worker's own modules."""

    def __init__(self, name, module="sublet_worker"):
        self._name, self._module = name, module

    def __call__(self, *arguments):
        raise NotImplementedError("only a worker has it")

    def __reduce__(self):
        return eval, (f"__import__({self._module!r}).{self._name}",)


# Functions under `functools.lru_cache` would pickle themselves by their names.
_CACHED = _OfWorker("cached")


class _Code:
    """A function's code, with its file and its lines of that, which cloudpickle leaves out."""

    _on_worker = _OfWorker("code")

    def __init__(self, code):
        self._code = code

    def __reduce__(self):
        return self._on_worker, (self._code, self._code.co_filename, self._code.co_firstlineno, _lines(self._code))


def _lines(code):
    """The source of code, as far as it is known here; lines of a file of another time are as good as a traceback's here."""
    first, last = code.co_firstlineno, _last_line(code)
    lines = linecache.getlines(code.co_filename)[first - 1 : last] if 0 < first <= last <= MOST_LINES else []
    return lines if sum(map(len, lines)) <= MOST_SOURCE else []


def _last_line(code):
    within = [_last_line(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return max([code.co_firstlineno, *(line for _, line in dis.findlinestarts(code) if line is not None), *within])


# Makes a class that is sent by value, and has the worker know it as the caller's; fills it, if the worker has another version.
_MAKE_CLASS, _FILL_CLASS = _OfWorker("make", "sublet_classes"), _OfWorker("fill", "sublet_classes")


class _ArgumentPickler(cloudpickle.Pickler):
    """Pickles as cloudpickle does, except that the code of functions keeps its file and lines, and classes come back as
    they are here.

    `classes` are those that were sent by value.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.classes = []

    def _function_getnewargs(self, func):
        code, *rest = super()._function_getnewargs(func)
        return _Code(code), *rest

    def reducer_override(self, obj):
        if type(obj) is Cached and not is_imported(obj):
            parameters = obj.cache_parameters()
            return _CACHED, (obj.__wrapped__, parameters["maxsize"], parameters["typed"])
        if type(obj) is types.MethodType and getattr(obj.__self__, obj.__name__, None) == obj:
            # The method that the instance has there, rather than a copy of its function.
            return getattr, (obj.__self__, obj.__name__)
        reduced = super().reducer_override(obj)
        if _classes.is_by_value(reduced):
            self.classes.append(obj)
            maker, arguments, state = reduced[:3]
            return _MAKE_CLASS, (maker, arguments), (_classes.version(obj), state), None, None, _FILL_CLASS
        return reduced


class _Pickler(_ArgumentPickler):
    """Pickles functions with their globals: functions that are sent separately share these.

    `versions` are those of the globals that come along, by module and name. `known` is a mapping that remembers their contents. `modules`
    are modules of the program whose constants the functions use.
    """

    def __init__(self, file, known):
        super().__init__(file, 5)
        self.versions, self.modules = {}, set()
        self._known = known

    def _function_getnewargs(self, func):
        code, _, *rest = super()._function_getnewargs(func)
        return code, _Space(func.__globals__), *rest

    def _dynamic_function_reduce(self, func):
        reduced = super()._dynamic_function_reduce(func)
        module, (_, parts) = str(func.__globals__.get("__name__")), reduced[2]
        for name, value in parts["__globals__"].items():
            if type(value) is types.ModuleType:
                self.modules.update(each for each, _, _ in _constants.used(value, _constants.names_in(func.__code__)))
            if (module, name) not in self.versions:
                self.versions[module, name] = version_of(value, self._known, (module, name))
        return reduced


def pickle_function(function, known):
    """A function's pickle, the versions of its globals, the modules whose constants it uses, and the classes that it has by value.

    `known` is a mapping that remembers the contents of the globals that were sent.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, known)
    pickler.dump(function)
    return file.getvalue(), pickler.versions, pickler.modules, pickler.classes


def pickle_arguments(arguments, protocol, buffer_callback):
    file = io.BytesIO()
    _ArgumentPickler(file, protocol, buffer_callback=buffer_callback).dump(arguments)
    return file.getvalue()
