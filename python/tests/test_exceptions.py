"""Exceptions of functions: what the caller catches, and what their tracebacks show."""

import builtins
import inspect
import linecache
import pickle
import subprocess
import sys
import threading

import pytest

import sublet
from sublet import _pickling

# As a program has it: none of this is a module that workers could import.
PROGRAM = {"__name__": "__main__", "__builtins__": builtins}
SOURCE = '''
import threading

class Retry(ValueError):
    """As exceptions of programs are: `__init__` takes something else than what the base class has as `args`."""

    def __init__(self, who, why, *, after):
        super().__init__(f"{who}: {why}")
        self.after = after

    def wait(self):
        return self.after + 1

class Repeated(Exception):
    """Called with its own `args` it would have another message."""

    def __init__(self, who, why="late"):
        super().__init__(f"{who}: {why}")

class NoFile(OSError):
    __slots__ = ("attempts",)

class Locked(Retry):
    def __init__(self, who):
        super().__init__(who, "locked", after=1)
        self.lock = threading.Lock()

class LockedFile(OSError):
    pass

class Reduced(Exception):
    def __init__(self, who):
        super().__init__(f"{who} is locked")
        self.who, self.lock = who, threading.Lock()

    def __reduce__(self):
        return type(self), (self.who,)

class WronglyReduced(Exception):
    """Its own reduction leads to another message."""

    def __init__(self, who):
        super().__init__(f"{who} is late")

    def __reduce__(self):
        return type(self), self.args

def fails(kind, *args, **kwargs):
    raise kind(*args, **kwargs)

def fails_without_file():
    error = NoFile(2, "not there", "a.txt")
    error.attempts = 3
    raise error

def fails_because():
    try:
        fails(Retry, "node", "busy", after=5)
    except Retry as error:
        raise KeyError("x") from error

def fails_meanwhile():
    try:
        fails(Retry, "node", "busy", after=5)
    except Retry:
        raise KeyError("x")

def fails_alone():
    try:
        fails(Retry, "node", "busy", after=5)
    except Retry:
        raise KeyError("x") from None

def fails_after_many():
    error = None
    for number in range(10_000):
        try:
            raise ValueError(number) from error
        except ValueError as one:
            error = one
    raise error

def fails_in_a_ring():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first
'''
exec(SOURCE, PROGRAM)
Retry, Repeated, NoFile, Locked, fails = (PROGRAM[name] for name in ("Retry", "Repeated", "NoFile", "Locked", "fails"))
LockedFile = PROGRAM["LockedFile"]


def caught(lease, function, *args, **kwargs):
    with pytest.raises(BaseException) as raised:
        lease.call(function, *args, **kwargs)
    return raised.value


def test_raises_exceptions_of_the_program_as_themselves(lease):
    error = caught(lease, fails, Retry, "node", "busy", after=5)
    assert type(error) is Retry
    assert (str(error), error.args, error.after, error.wait()) == ("node: busy", ("node: busy",), 5, 6)


def test_keeps_the_message_of_an_exception(lease):
    error = caught(lease, fails, Repeated, "node")
    assert type(error) is Repeated and str(error) == "node: late"


def test_keeps_what_the_builtin_base_has(lease):
    error = caught(lease, PROGRAM["fails_without_file"])
    assert type(error) is NoFile
    assert (error.errno, error.strerror, error.filename, error.attempts) == (2, "not there", "a.txt", 3)


def test_keeps_slots(lease):
    def fails_with_slot():
        # Classes that are sent to workers have no slots there.
        class NoFile(OSError):
            __slots__ = ("attempts",)

        error = NoFile(2, "not there")
        error.attempts = 3
        raise error

    assert caught(lease, fails_with_slot).attempts == 3


def test_exceptions_with_their_own_reduction_come_whole(lease):
    error = caught(lease, fails, PROGRAM["Reduced"], "node")
    assert type(error) is PROGRAM["Reduced"] and str(error) == "node is locked" and error.lock.acquire(False)


def test_a_reduction_that_changes_the_message_is_not_used(lease):
    error = caught(lease, fails, PROGRAM["WronglyReduced"], "node")
    assert type(error) is PROGRAM["WronglyReduced"] and str(error) == "node is late"


def test_raises_exceptions_of_a_map_as_themselves(lease):
    with pytest.raises(Retry, match="node: busy") as raised:
        list(lease.map(lambda n: fails(Retry, "node", "busy", after=n), range(3)))
    assert type(raised.value) is Retry


def test_raises_exceptions_of_a_future_as_themselves(lease):
    assert type(lease.submit(fails, Retry, "node", "busy", after=5).exception(60)) is Retry


def test_a_broken_executor_has_the_exception_of_its_initializer(platform):
    executor = sublet.Executor(1, client=platform, wait=60, initializer=lambda: fails(Retry, "node", "busy", after=5))
    with executor, pytest.raises(sublet.BrokenExecutor) as raised:
        executor.submit(abs, 1).result(60)
    assert type(raised.value.__cause__) is Retry


def test_keeps_causes(lease):
    error = caught(lease, PROGRAM["fails_because"])
    assert type(error) is KeyError and type(error.__cause__) is Retry and error.__cause__.after == 5
    innermost = error.__cause__.__cause__
    assert isinstance(innermost, sublet.RemoteTraceback)
    assert "direct cause" in str(innermost) and "in fails_because" in str(innermost)


def test_keeps_contexts(lease):
    error = caught(lease, PROGRAM["fails_meanwhile"])
    assert type(error) is KeyError and isinstance(error.__cause__, sublet.RemoteTraceback)
    assert type(error.__context__) is Retry


def test_a_suppressed_context_does_not_come_along(lease):
    error = caught(lease, PROGRAM["fails_alone"])
    assert type(error) is KeyError and isinstance(error.__cause__, sublet.RemoteTraceback)
    assert error.__context__ is None and error.__suppress_context__


def test_long_chains_and_rings_of_causes_end(lease):
    error = caught(lease, PROGRAM["fails_after_many"])
    assert error.args == (9999,) and error.__cause__.args == (9998,)
    length = 0
    while error is not None:
        error, length = error.__cause__, length + 1
    assert length == 4096 + 1, "the last cause is the traceback"
    error = caught(lease, PROGRAM["fails_in_a_ring"])
    assert (str(error), str(error.__cause__)) == ("first", "second")
    assert isinstance(error.__cause__.__cause__, sublet.RemoteTraceback)


def test_keeps_members_of_groups(lease):
    class Failures(ExceptionGroup):
        def __new__(cls, errors, code):
            made = super().__new__(cls, f"code {code}", errors)
            made.code = code
            return made

    def fails_together():
        errors = []
        for one in (PROGRAM["fails_because"], lambda: fails(Retry, "a", "b", after=1), lambda: fails(Locked, "c")):
            try:
                one()
            except Exception as error:
                errors.append(error)
        raise Failures([*errors, ExceptionGroup("inner", [Repeated("d")])], 7)

    error = caught(lease, fails_together)
    assert type(error) is Failures and error.code == 7 and error.message == "code 7"
    first, second, third, inner = error.exceptions
    assert type(first) is KeyError and type(first.__cause__) is Retry
    assert type(second) is Retry and second.after == 1
    assert isinstance(third, sublet.RemoteError) and isinstance(third, Retry)
    assert [str(one) for one in inner.exceptions] == ["d: late"]
    assert isinstance(error.__cause__, sublet.RemoteTraceback)


def test_notes_come_along(lease):
    def noted(kind, *args):
        error = kind(*args)
        error.__notes__ = ["seen on a Monday"]
        raise error

    assert caught(lease, noted, KeyError, 1).__notes__ == ["seen on a Monday"]
    assert caught(lease, noted, Locked, "me").__notes__ == ["seen on a Monday"]


def test_an_exception_that_cannot_be_pickled_is_of_its_class_still(lease):
    error = caught(lease, fails, Locked, "me")
    assert isinstance(error, sublet.RemoteError) and isinstance(error, Locked)
    assert (error.kind, error.message, str(error)) == ("__main__.Locked", "me: locked", "__main__.Locked: me: locked")
    assert error.code == "function_failed"


def test_an_exception_that_cannot_be_pickled_has_the_arguments_of_its_base(lease):
    def fails_with_lock():
        error = LockedFile(2, "not there", "a.txt")
        error.lock = threading.Lock()
        raise error

    error = caught(lease, fails_with_lock)
    assert isinstance(error, sublet.RemoteError) and (error.errno, error.filename) == (2, "a.txt")
    error = caught(lease, lambda: fails(LockedFile, 2, threading.Lock()))
    assert isinstance(error, sublet.RemoteError) and isinstance(error, LockedFile)


def test_an_exception_keeps_attributes_when_its_arguments_cannot_be_pickled(lease):
    def fails_with_lock():
        error = LockedFile(2, threading.Lock())
        error.after = 5
        raise error

    error = caught(lease, fails_with_lock)
    assert isinstance(error, sublet.RemoteError) and error.after == 5


def test_an_exception_of_a_class_that_is_not_here_is_of_its_nearest_base(platform, tmp_path):
    (tmp_path / "theirs.py").write_text(
        "class Theirs(ConnectionResetError):\n    pass\n\nclass Decoding(UnicodeDecodeError):\n    pass\n\n"
        "def fails():\n    raise Theirs(104, 'reset')\n\ndef decodes():\n    raise Decoding('utf-8', b'\\xff', 0, 1, 'bad')\n"
    )
    with platform.lease(path=[tmp_path / "theirs.py"], wait=60) as lease:
        error = caught(lease, "theirs:fails")
        assert isinstance(error, sublet.RemoteError) and isinstance(error, ConnectionResetError)
        assert (error.kind, error.errno) == ("theirs.Theirs", 104)
        error = caught(lease, "theirs:decodes")
        assert isinstance(error, sublet.RemoteError) and isinstance(error, UnicodeDecodeError) and error.reason == "bad"


def test_remote_errors_may_be_pickled(lease):
    def fails_with_lock():
        error = PermissionError(13, "no", "a.txt")
        error.lock = threading.Lock()
        raise error

    error = caught(lease, fails_with_lock)
    back = pickle.loads(pickle.dumps(error))
    assert isinstance(back, sublet.RemoteError) and isinstance(back, PermissionError)
    assert (back.kind, back.message, back.errno, back.filename) == (error.kind, error.message, 13, "a.txt")


SCRIPT = '''
import logging
import sublet

class Late(Exception):
    pass

def inner(n):
    # A comment.
    return 1 // n

def outer(n):
    try:
        return inner(
            n,
        )
    except ZeroDivisionError:
        logging.exception("seen")
        raise Late(n)

def apply(function, *args):
    return function(*args)

def text(function, *args):
    try:
        lease.call(function, *args)
    except Late as error:
        return str(error.__cause__)

logging.basicConfig(format="%(message)s")
client = sublet.Client({managers!r})
with client.lease(wait=60) as lease:
    print(text(outer, 0))
    print("AS ARGUMENT")
    print(text(apply, outer, 0))
'''


def test_tracebacks_show_file_line_and_source(platform, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{managers!r}", repr(platform.managers)))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    for shown in ran.stdout.split("AS ARGUMENT"):
        assert f'File "{script}", line 10, in inner\n    return 1 // n' in shown
        assert f'File "{script}", line 19, in outer\n    raise Late(n)' in shown
    # The log of the worker shows it, too.
    assert f'File "{script}", line 10, in inner\n    return 1 // n' in ran.stderr
    assert "dynamic-code" not in ran.stdout + ran.stderr


def names_of_cell(name, source):
    """Executes source that is in no file, as notebooks do; returns the names that it defines."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"__name__": "__main__", "__builtins__": builtins}
    exec(compile(source, name, "exec"), space)
    return space


def test_tracebacks_show_source_of_what_is_in_no_file(lease):
    fails = names_of_cell("<cell 7>", "def fails():\n    return {}['nothing']\n")["fails"]
    shown = str(caught(lease, fails).__cause__)
    assert 'File "<cell 7>", line 2, in fails\n    return {}[\'nothing\']' in shown


def test_tracebacks_show_source_of_nested_functions(lease):
    source = "def outer():\n    def inner():\n        return {}['nothing']\n\n    return inner()\n"
    shown = str(caught(lease, names_of_cell("<cell 8>", source)["outer"]).__cause__)
    assert 'File "<cell 8>", line 3, in inner\n    return {}[\'nothing\']' in shown


def test_functions_have_their_source_on_workers(lease):
    def steady(n):
        return n + 1

    assert "return n + 1" in lease.call(inspect.getsource, steady)


def test_functions_with_long_source_come_without_it(lease, monkeypatch):
    steady = names_of_cell("<cell 9>", "def steady(n):\n    return n + 1\n")["steady"]
    assert "return n + 1" in lease.call(inspect.getsource, steady)
    monkeypatch.setattr(_pickling, "MOST_SOURCE", 20)
    longer = names_of_cell("<cell 10>", "def longer(n):\n    return n + 2\n")["longer"]
    with pytest.raises(OSError, match="source"):
        lease.call(inspect.getsource, longer)
    assert lease.call(longer, 1) == 3


def test_workers_keep_lines_of_a_bounded_number_of_files(lease):
    def names_of_kept_files():
        worker = sys.modules["sublet_worker"]
        worker.MOST_FILES = 10
        for n in range(15):
            worker.code(compile("pass", "", "exec"), f"<cell {n}>", 1, ["pass\n"])
        return list(worker.sources), [name for name in linecache.cache if name.startswith("<cell")]

    newest = [f"<cell {n}>" for n in range(5, 15)]
    assert lease.call(names_of_kept_files) == (newest, newest)
