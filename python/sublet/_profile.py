"""Measures the statements of applications while a program runs, in this process: their time, their memory, and what a split would hand on."""

import __future__

import ast
import contextlib
import copy
import inspect
import io
import linecache
import os
import pickle
import sys
import time
import tokenize
import traceback
import tracemalloc
import types
from pathlib import Path

from . import _app, _application, _errors
from ._bundle import Pickling
from ._compile import Compiled, Function
from ._flow import Flow
from ._profile_plan import Sample

# Raised where a variable cannot be pickled.
_UNPICKLABLE = (TypeError, ValueError, pickle.PicklingError, AttributeError, RecursionError, BufferError)
# Flags of `from __future__ import`, as a code object has them.
_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)


class Text:
    """The text of a file of Python, as it is when the program starts."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        try:
            self.content = Path(path).read_bytes()
        except OSError as error:
            raise _errors.InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
        self.encoding, self.lines = self.decoded(self.content)

    def decoded(self, content):
        """The encoding and the lines of a file, with the ends that these have."""
        lines = iter(content.splitlines(keepends=True))
        try:
            encoding = tokenize.detect_encoding(lambda: next(lines, b""))[0].removesuffix("-sig")
            return encoding, io.StringIO(content.decode(encoding), newline="").readlines()
        except (SyntaxError, UnicodeDecodeError) as error:
            raise _errors.InvalidArgument(f"{self.path} is not text of Python: {error}") from None

    def is_changed(self):
        """Whether the file has another content by now."""
        try:
            return Path(self.path).read_bytes() != self.content
        except OSError:
            return True


def execute(path, lines, arguments):
    """Executes a program as `python PATH ARGUMENTS` does. Its text are these lines, also if the file has others by now.

    If the program fails, its traceback is printed, and `FunctionFailed` raised.
    """
    full, main = os.path.abspath(path), types.ModuleType("__main__")
    before = sys.argv, sys.path[:], sys.modules["__main__"], os.getcwd()
    main.__file__ = full
    sys.argv, sys.path[0:0] = [path, *arguments], [os.path.dirname(os.path.realpath(full))]
    sys.modules["__main__"] = main
    # Sources are read from here. Without a time, the entry is not compared with the file.
    linecache.cache[full] = len("".join(lines)), None, [line.replace("\r\n", "\n") for line in lines], full
    try:
        exec(compile("".join(lines).removeprefix("\ufeff"), full, "exec", dont_inherit=True), vars(main))
    except SystemExit as error:
        if error.code not in (None, 0):
            raise _failed(f"{path} has ended with the status {error.code!r}") from None
    except Exception as error:
        traceback.print_exception(error)
        raise _failed(f"{path} has failed") from None
    finally:
        sys.argv, sys.path[:], sys.modules["__main__"], folder = before
        os.chdir(folder)
        linecache.cache.pop(full, None)


def _failed(why):
    return _errors.FunctionFailed(why, "function_failed", 40)


@contextlib.contextmanager
def replaced_run(run):
    """Makes applications call `run(application, args, kwargs)` when they are run."""
    original = _app.App.run
    _app.App.run = lambda application, *args, **kwargs: run(application, args, kwargs)
    try:
        yield original
    finally:
        _app.App.run = original


class Profile:
    """The measurements of an application's function, of all its calls."""

    def __init__(self, application, texts):
        self.name, self.function = application.graph["name"], application._function
        self.source = Function(self.function)
        self.compiled = Compiled(self.function, self.name, self.source)
        node = self.source.node
        self.statements = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        self.calls = 0
        self._records = []
        self._texts = texts
        if self.source.file not in texts:
            texts[self.source.file] = Text(self.source.file)
        own = {id(statement) for part in self.compiled.parts for statement in part.statements}
        # Splits, and blocks of which the parts are components.
        self._others = [id(statement) not in own for statement in self.statements]
        parameters = set(inspect.signature(self.function).parameters)
        set_before, self._handed = parameters, []
        for number, statement in enumerate(self.statements):
            self._handed.append(sorted(Flow(self.statements[number:]).read & set_before))
            set_before = set_before | Flow([statement]).changed

    @property
    def text(self):
        return self._texts[self.source.file]

    def line(self, number):
        """Line of the file at which a statement begins."""
        statement = self.statements[number]
        first = min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])
        return self.source.first + first - 1

    def end_line(self, number):
        """Line of the file at which a statement ends."""
        return self.source.first + self.statements[number].end_lineno - 1

    def call(self, args, kwargs):
        """Calls the function, and measures each statement."""
        recorder = _Recorder(self._handed)
        function = _probed(self.source, self.statements, recorder.probe)
        recorder.begin()
        try:
            return function(*args, **kwargs)
        finally:
            self._records.append(recorder.end())
            self.calls += 1

    def samples(self, refusals):
        """The measurements as the planner takes them: memory of the call that needed most, time of all."""
        most = max(self._records, key=lambda record: max((one.peak for one in record.values()), default=0))
        samples = []
        for number, one in sorted(most.items()):
            seconds = sum(record[number].seconds for record in self._records if number in record)
            found = {"line": self.line(number), "seconds": seconds, "refused": one.refused or refusals.get(number), "is_split": self.is_begin(number)}
            samples.append((number, one._replace(**found)))
        return [number for number, _ in samples], [sample for _, sample in samples]

    def is_begin(self, number):
        """Whether a component behind the first one begins with a statement already."""
        return number > 0 and (self._others[number] or self._is_block(number - 1))

    def _is_block(self, number):
        return self._others[number] and isinstance(self.statements[number], (ast.With, ast.If))


class _Recorder:
    """Notes time and memory at the beginning of each statement."""

    def __init__(self, handed):
        self._handed = handed
        self._found = {}
        self._open = None

    def begin(self):
        self._was_tracing = tracemalloc.is_tracing()
        if not self._was_tracing:
            tracemalloc.start(1)

    def end(self):
        self._close()
        if not self._was_tracing:
            tracemalloc.stop()
        return self._found

    def _close(self):
        now, (_, peak) = time.perf_counter_ns(), tracemalloc.get_traced_memory()
        if self._open is not None:
            number, begun, base, handed, refused = self._open
            self._found[number] = Sample(0, (now - begun) / 1e9, base, peak, handed, refused)
        self._open = None

    def probe(self, number):
        """Called by the function before the statement of this number."""
        self._close()
        found = sys._getframe(1).f_locals
        values = {name: found[name] for name in self._handed[number] if name in found}
        if type(found) is dict:
            # Before Python 3.13 the frame keeps this dict, and with it values that the function no longer has.
            found.clear()
        del found
        handed, refused = {}, None
        for name in list(values):
            try:
                handed[name] = Pickling({name: values.pop(name)}).nbytes()
            except _UNPICKLABLE as error:
                refused = refused or str(error)
        base, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        self._open = number, time.perf_counter_ns(), base, handed, refused


def _probed(source, statements, probe):
    """The function with a call of `probe` before each statement of its body, with the same globals, closure, defaults and lines."""
    function, node = source.function, copy.copy(source.node)
    code = function.__code__
    named, name = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}, "sublet_probe"
    while name in named:
        name += "_"
    own = {id(statement): number for number, statement in enumerate(statements)}
    body = []
    for statement in source.node.body:
        if id(statement) in own:
            called = ast.parse(f"{name}({own[id(statement)]})").body[0]
            for inner in ast.walk(called):
                ast.copy_location(inner, statement)
            body.append(called)
        body.append(statement)
    node.body, node.decorator_list = body, []
    (factory,) = ast.parse(f"def factory({', '.join([*code.co_freevars, name])}):\n    pass").body
    factory.body = [node]
    module = copy.deepcopy(ast.Module([factory], []))
    ast.increment_lineno(module, source.first - 1)
    made = compile(module, code.co_filename, "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
    # The function is not defined again: only its code is taken, so that its defaults are not evaluated a second time.
    made = _code(_code(made, "factory"), node.name)
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    cells[name] = types.CellType(probe)
    probed = types.FunctionType(made, function.__globals__, function.__name__, function.__defaults__, tuple(cells[free] for free in made.co_freevars))
    probed.__kwdefaults__ = function.__kwdefaults__
    return probed


def _code(code, name):
    return next(one for one in code.co_consts if isinstance(one, types.CodeType) and one.co_name == name)


def profiled(path, arguments, name=None):
    """Runs a program, whose applications are executed in this process as the functions that they are; returns their `Profile`s.

    Args:
        path: File of the program.
        arguments: Its arguments.
        name: Name of the only application to measure.
    """
    main = Text(path)
    texts, profiles = {main.path: main}, {}

    def run(application, args, kwargs):
        function = application._function
        if function is None or (name is not None and application.graph["name"] != name):
            return original(application, *args, **kwargs)
        key = id(function)
        if key not in profiles:
            profiles[key] = Profile(application, texts)
        value = profiles[key].call(args, kwargs)
        return _application.Outcome(None, {}, [], value)

    with replaced_run(run) as original:
        execute(path, main.lines, arguments)
    if not profiles:
        what = "no application" if name is None else f"no application {name}"
        raise _errors.InvalidArgument(f"{path} has called {what}: decorate a function with @sublet.app, and call it in the program")
    return list(profiles.values())


def relative(path):
    """A path as it is shown: relative if the file is below the working folder."""
    shown = os.path.relpath(path)
    return os.path.abspath(path) if shown.startswith("..") else shown
