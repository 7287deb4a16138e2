"""Executes what Python callers ask for.

A request is two pickles and the memory that was left out of the second (protocol 5, PEP 574). The first names the
function and the session, the second has the arguments.
The worker keeps each function that was sent, by its digest. The worker answers UNKNOWN if it does not have the
function, and the caller then sends it. So a caller does not track which worker has which function, and a replacement
worker receives all functions that it needs.

A session is the state that the caller sends once for all of its calls: see `begin_session`.
"""

import functools
import importlib
import importlib.util
import io
import linecache
import logging
import os
import pickle
import resource
import runpy
import sys
import time
import traceback
import types

import sublet_classes
import sublet_constants
import sublet_exceptions
import sublet_failures
import sublet_left_out
import sublet_template

# Version of the messages between the caller and the worker: changed with any of the constants below.
VERSION = 4
# The operations of requests.
CALL, MAP = VERSION << 8, VERSION << 8 | 1
# The kinds of answers; PRINTED is added if the last part is the output that was printed and logged.
DONE, RAISED, UNKNOWN, BROKEN = 0, 1, 2, 3
PRINTED = 16

# Most functions that are kept: the oldest is asked for again.
MOST_FUNCTIONS = 4096
# Most files of the caller of which lines are kept.
MOST_FILES = 4096
# Most characters of one call's output that are sent back.
MOST_PRINTED = 1 << 20
# Most pieces of memory that are left out of one pickle: a message takes 1 << 20, with the pickle and what goes along.
MOST_APART = (1 << 20) - 16
# Values of these types hold no memory to leave out, and pickle themselves.
PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])
# Beside a package's own modules: those that are used if the interpreter has none of the name.
FALLBACK = "fallback"

# The module whose functions call those of an application's components.
COMPONENTS = "sublet.components"
# How an exception's note begins that says where it was raised.
IN_FUNCTION = "in function "

functions = {}
# Those that the package names: they stay.
packaged = {}
# The same by the headers of requests, as long as the session is the same.
called = {}
# The globals of the caller's modules, and the versions of those that came from the caller, by module and name.
spaces = {}
versions = {}
session = None
# Lines of the caller's files, of functions that were sent.
sources = {}


class Printed:
    """The printed output and log records of the current call, in order."""

    def __init__(self):
        self.entries = []
        self.left = MOST_PRINTED
        # The printed output of the preceding components of the application. A failure's report includes it.
        self.earlier = []

    def add(self, kind, what, size):
        if self.left <= 0:
            return
        if size > self.left:
            what = dict(what, msg=what["msg"][: self.left]) if kind == "log" else what[: self.left]
        self.left -= size
        self.entries.append((kind, what))
        if self.left <= 0:
            self.entries.append(("stderr", f"\n[sublet: the rest of this call's output, after {MOST_PRINTED} characters, is dropped]\n"))

    def take(self):
        entries, self.entries, self.left = self.entries, [], MOST_PRINTED
        return entries


printed = Printed()


class Stream(io.TextIOBase):
    """Standard output or error, as the caller will see it."""

    encoding = "utf-8"

    def __init__(self, kind):
        self.kind = kind

    def writable(self):
        return True

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            printed.add(self.kind, text, len(text))
        return len(text)


class Forward(logging.Handler):
    """Log records, as the caller's own loggers will handle them."""

    def emit(self, record):
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
            fields = {"name": record.name, "levelno": record.levelno, "levelname": record.levelname, "msg": message}
            fields.update(pathname=record.pathname, lineno=record.lineno, funcName=record.funcName, created=record.created)
            printed.add("log", fields, len(message))
        except Exception:
            self.handleError(record)


def prepare(folder, library, offered, imports, variables):
    """The functions that the package offers, each with its name and what it is in the package's module."""
    # The process has set them since the interpreter started, and modules may look at them when they are imported.
    set_environment(variables)
    folder, library = os.fspath(folder), os.fspath(library)
    for path in (folder, os.path.dirname(library)):
        if path not in sys.path:
            sys.path.insert(0, path)
    fallback = os.path.join(folder, FALLBACK)
    if os.path.isdir(fallback):
        sys.path.append(fallback)
    sublet_left_out.read(folder)
    for name in imports:
        if name not in sys.modules:
            sublet_template.step(f"importing {name}")
        try:
            importlib.import_module(name)
        except BaseException as error:
            explain(error)
            raise
    found = []
    if offered:
        name = os.path.basename(library)[: -len(".py")]
        sublet_template.step(f"importing {name}")
        module = importlib.import_module(name)
        found = [attribute(module, symbol) for _, symbol in offered]
        packaged.update((name, function) for (name, _), function in zip(offered, found))
        found = [with_bytes(function) for function in found]
    sys.stdout, sys.stderr = Stream("stdout"), Stream("stderr")
    logging.getLogger().addHandler(Forward())
    return found


def set_environment(variables):
    """Adds variables to the environment, and has the C library read the time zone again."""
    os.environ.update(variables)
    time.tzset()


def execute(folder, path, arguments, environment):
    """Runs a file of the package as the main module; answers with which status it ends."""
    folder, path = os.fspath(folder), os.fspath(path)
    sys.path.insert(0, os.path.dirname(path))
    fallback = os.path.join(folder, FALLBACK)
    if os.path.isdir(fallback):
        sys.path.append(fallback)
    set_environment(environment)
    os.chdir(folder)
    sys.argv = list(arguments)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 255
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def call(name, /, *positional, **named_ones):
    """Calls another function of the package here. A note on an exception names the function that raised it first."""
    function = packaged.get(name)
    if function is None:
        raise LookupError(f"the package has no function {name}")
    try:
        return function(*positional, **named_ones)
    except BaseException as error:
        note(error, name)
        raise


def note(error, name):
    """Adds to an exception which function raised it, once."""
    notes = getattr(error, "__notes__", None)
    if not notes:
        notes = error.__notes__ = []
    if not any(note.startswith(IN_FUNCTION) for note in notes):
        notes.append(IN_FUNCTION + name)


def with_bytes(function):
    """A function for callers that only exchange bytes: what it prints goes where the worker prints."""

    def call(data):
        printed.earlier = []
        returned = function(data)
        write(printed.take())
        return returned

    return call


def write(entries):
    """Writes what was printed and logged to the lease's log."""
    for kind, what in entries:
        stream = sys.__stdout__ if kind == "stdout" else sys.__stderr__
        stream.write(f"{what['levelname']}:{what['name']}:{what['msg']}\n" if kind == "log" else what)
        stream.flush()


def report(error, capacity):
    """Writes the printed output and the traceback of a failed function that exchanges bytes to the lease's log.

    Returns a report of the failure, of at most `capacity` bytes: see `failures.py`.
    """
    entries = printed.take()
    write(entries)
    description = described(error)
    write([("stderr", description["text"])])
    return sublet_failures.report(description, [*printed.earlier, *entries], capacity) if capacity else b""


def attribute(module, path):
    found = module
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{path} of {module.__name__} cannot be called: it is of type {type(found).__name__}")
    return found


def named(name):
    """A function by its name, `module:path`, as the package or the interpreter has it."""
    module, separator, path = name.partition(":")
    if not separator:
        raise LookupError(f"the package offers no function {name}; others are called as module:name")
    return attribute(importlib.import_module(module), path)


def space(module, package=None):
    """The globals of functions that are sent by their value, of a module that is the caller's: one for all of them. Its package is what
    relative imports begin at."""
    if module not in spaces:
        spaces[module] = {"__name__": module, "__builtins__": __builtins__}
        if package is not None:
            spaces[module]["__package__"] = package
    return spaces[module]


def code(compiled, path, first, lines):
    """A function's code, with its file, which cloudpickle leaves out, and with its lines of that file for tracebacks."""
    if lines and (path in sources or not os.path.exists(path)):
        if path not in sources and len(sources) >= MOST_FILES:
            oldest = next(iter(sources))
            linecache.cache.pop(oldest, None)
            del sources[oldest]
        known = sources.setdefault(path, [])
        known += ["\n"] * (first - 1 + len(lines) - len(known))
        known[first - 1 : first - 1 + len(lines)] = lines
        # Without a time of change the lines stay.
        linecache.cache[path] = (sum(map(len, known)), None, known, path)
    return _from_file(compiled, path)


def cached(function, maxsize, typed):
    """A function with a cache, which begins empty, as those of other processes do."""
    return functools.lru_cache(maxsize, typed)(function)


def _from_file(compiled, path):
    constants = tuple(_from_file(value, path) if isinstance(value, types.CodeType) else value for value in compiled.co_consts)
    return compiled.replace(co_filename=path, co_consts=constants)


def load(definition):
    """Loads a function that was sent, with its globals. A global that is here in the same version keeps its value."""
    sent, (_, constants), body = pickle.loads(definition)
    # Before modules are imported.
    sublet_constants.take(constants)
    kept = [
        (module, name, spaces[module][name])
        for (module, name), version in sent.items()
        if version is not None and versions.get((module, name)) == version and name in spaces.get(module, ())
    ]
    try:
        loaded = pickle.loads(body)
    finally:
        for module, name, value in kept:
            spaces[module][name] = value
    versions.update(sent)
    return loaded


def begin_session(wanted, definition):
    """Takes over what the caller said for all of its calls; says why that cannot be."""
    global session
    said = load(definition)
    logging.getLogger().setLevel(said["log_level"])
    if "initializer" in said:
        checked(said["initializer"])(*said["initargs"])
    called.clear()
    session = wanted


def function_of(key, definition):
    """The function of a key, which may have come with it; None if the caller has to send it."""
    for known in (packaged, functions):
        if key in known:
            return known[key]
    if definition is not None:
        function = checked(load(definition))
    elif isinstance(key, str):
        function = named(key)
    else:
        return None
    if len(functions) >= MOST_FUNCTIONS:
        del functions[next(iter(functions))]
    functions[key] = function
    return function


def checked(function):
    """Returns the loaded function. Raises TypeError if it cannot be called: a pickle may load to any object."""
    if not callable(function):
        raise TypeError(f"the function or initializer that was sent is {function!r} where it was loaded, which cannot be called")
    return function


def serve(operation, parts):
    """Answers a request: the answer's kind, and its parts."""
    try:
        if operation >> 8 != VERSION:
            message = f"the caller's package sublet has version {operation >> 8} of calls in Python, this node {VERSION}: install the same"
            raise RuntimeError(message)
        header = parts[0]
        function = called.get(header)
        if function is None:
            wanted, key, definitions = pickle.loads(header)
            if wanted != session:
                if definitions is None or definitions[0] is None:
                    return UNKNOWN, [b""]
                try:
                    begin_session(wanted, definitions[0])
                except BaseException as error:
                    return answer(BROKEN, exception(error))
            function = function_of(key, definitions and definitions[1])
            if function is None:
                return UNKNOWN, [b""]
            if definitions is None:
                if len(called) >= MOST_FUNCTIONS:
                    called.clear()
                called[header] = function
        arguments = pickle.loads(parts[1], buffers=parts[2:])
        if operation == CALL:
            positional, named_ones = arguments
            return answer(DONE, dump_result(function(*positional, **named_ones)))
        return each(function, arguments)
    except BaseException as error:
        return answer(RAISED, exception(error))


def each(function, arguments):
    """Calls the function with each of the arguments until one call fails.

    Returns the results, the exception that was raised after them, and the seconds that the calls took.
    """
    results, raised, begun = [], None, time.perf_counter()
    try:
        for positional in arguments:
            results.append(function(*positional))
    except BaseException as error:
        raised = described(error)
    seconds = time.perf_counter() - begun
    try:
        return answer(DONE, dump((results, raised, seconds)))
    except Exception:
        sendable, raised = first_sendable(results)
        return answer(DONE, dump((sendable, raised, seconds)))


def first_sendable(results):
    """The results before the first one that cannot be pickled, and why that cannot be."""
    for number, result in enumerate(results):
        try:
            dump_result(result)
        except Exception as error:
            return results[:number], described(error)
    raise RuntimeError("the results of a map cannot be pickled together, though each can be by itself")


def dump_result(value):
    """Pickles a result with `dump`. An error says that the result cannot be sent."""
    try:
        return dump(value)
    except (TypeError, pickle.PicklingError, AttributeError, RecursionError) as error:
        raise type(error)(f"the result, of type {type(value).__name__}, cannot be sent to the caller: {error}") from None


def answer(kind, parts):
    entries = printed.take()
    if entries:
        return kind | PRINTED, [*parts, pickle.dumps(entries, 5)]
    return kind, parts


def dump(value):
    """A value's pickle, and the memory that was left out of it."""
    if type(value) in PLAIN:
        return [pickle.dumps(value, 5)]
    buffers = []
    body = pickled(value, buffers)
    return [body, *(buffer.raw() for buffer in buffers)]


def pickled(value, buffers=None):
    """A value's pickle. With a list for buffers, memory that can be left out is appended to it instead, up to `MOST_APART` pieces."""

    def leave_out(buffer):
        if len(buffers) >= MOST_APART:
            return True
        buffers.append(buffer)
        return False

    callback = None if buffers is None else leave_out
    try:
        return pickle.dumps(value, 5, buffer_callback=callback)
    except Exception as error:
        if buffers:
            buffers.clear()
        # Classes that were sent by value are in no module.
        try:
            pickler = sublet_classes.pickler()
        except ImportError:
            raise error from None
        file = io.BytesIO()
        pickler(file, 5, buffer_callback=callback).dump(value)
        return file.getvalue()


def exception(error):
    """The parts of an answer that is an exception."""
    return [pickle.dumps(described(error), 5)]


def described(error):
    """An exception, for the caller to raise: see `exceptions.py`."""
    within = error.__traceback__
    while within and within.tb_frame.f_globals is globals():
        within = within.tb_next
    # Skips the frames that call the function of an application's component.
    while within and within.tb_next and within.tb_frame.f_globals.get("__name__") == COMPONENTS:
        within = within.tb_next
    for one in sublet_exceptions.related(error):
        explain(one)
    return sublet_exceptions.described(error, within, pickled)


def explain(error):
    """Adds to an exception of the interpreter's what the interpreter cannot know."""
    sublet_left_out.explain(error)
    if type(error) is MemoryError and not error.args:
        limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
        error.args = (f"the function needs more memory than the {limit >> 20} MiB of its worker: raise lease(memory=...)",)
