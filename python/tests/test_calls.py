"""Calls of functions in Python: what goes there, and what comes back."""

import logging
import os
import sys

import numpy
import pytest

import sublet


def double(x):
    return 2 * x


def test_a_function_is_sent_and_called(lease):
    assert lease.call(double, 21) == 42
    assert lease.call(lambda a, b=1: a - b, 3, b=5) == -2
    assert lease.call(pow, 2, 100) == 2**100


def test_a_function_runs_in_another_process_without_the_callers_rights(lease):
    assert lease.call(os.getpid) != os.getpid()
    assert lease.call(os.getuid) != 0
    with pytest.raises(OSError):
        lease.call(open, "/etc/shadow")


def test_a_caller_of_another_version_is_told(lease, monkeypatch):
    from sublet import _lease

    assert lease.call(double, 1) == 2
    monkeypatch.setattr(_lease, "CALL", 9 << 8)
    with pytest.raises(RuntimeError, match="version 9 of calls.*this node 1"):
        lease.call(double, 1)


def test_functions_are_called_by_their_names(lease):
    assert lease.call("math:factorial", 10) == 3628800
    with pytest.raises(ModuleNotFoundError):
        lease.call("no_such_module:f")
    with pytest.raises(AttributeError):
        lease.call("math:no_such_function")
    with pytest.raises(TypeError, match="cannot be called"):
        lease.call("math:pi")


def test_closures_and_classes_of_the_program_go_along(lease):
    factor = [3]

    class Scaled:
        def __init__(self, value):
            self.value = value

        def times(self):
            return Scaled(self.value * factor[0])

    assert lease.call(lambda s: s.times().value, Scaled(7)) == 21
    assert lease.call(Scaled.times, Scaled(2)).value == 6


def test_a_function_that_is_changed_is_another(lease):
    made = [lambda: 1, lambda: 2]
    assert [lease.call(f) for f in made * 2] == [1, 2, 1, 2]


def test_what_a_function_refers_to_may_change_between_calls(lease):
    space = {"threshold": 5, "__name__": "__main__", "__builtins__": __builtins__}
    exec("def above(n):\n    return n > threshold\ndef twice(n):\n    return above(n) * 2", space)
    above, twice = space["above"], space["twice"]
    assert lease.call(above, 7) and lease.call(twice, 7) == 2
    space["threshold"] = 10
    assert not lease.call(above, 7) and lease.call(twice, 7) == 0
    limits = [1]
    first = lambda: limits[0]  # noqa: E731
    assert lease.call(first) == 1
    limits[0] = 2
    assert lease.call(first) == 2
    count = 3

    def counted():
        return count

    assert lease.call(counted) == 3
    count = 4
    assert lease.call(counted) == 4


def test_a_function_that_stays_what_it_is_is_pickled_once(lease, monkeypatch):
    from sublet import _calls

    factor = 3
    steady = lambda n: n * factor + len("ab")  # noqa: E731
    assert lease.call(steady, 2) == 8
    pickled = []
    dumps = _calls.cloudpickle.dumps
    monkeypatch.setattr(_calls.cloudpickle, "dumps", lambda *args, **more: pickled.append(args) or dumps(*args, **more))
    assert [lease.call(steady, n) for n in range(10)] == [3 * n + 2 for n in range(10)]
    assert not pickled


def test_futures(lease):
    futures = [lease.submit(double, n) for n in range(100)]
    assert [future.result() for future in futures] == [2 * n for n in range(100)]
    assert futures[0].done() and not futures[0].running()


def test_map_gives_results_in_order(lease):
    assert list(lease.map(double, range(1000))) == [2 * n for n in range(1000)]
    assert list(lease.map(pow, [2, 3], [5, 2])) == [32, 9]
    assert list(lease.starmap(pow, [(2, 5), (3, 2)])) == [32, 9]
    assert list(lease.map(double, [])) == []


def test_map_raises_where_the_item_raised(lease):
    results = lease.map(lambda n: 1 // (n - 50), range(100))
    got = []
    with pytest.raises(ZeroDivisionError):
        for result in results:
            got.append(result)
    assert got == [1 // (n - 50) for n in range(50)]


def test_an_exception_comes_back_with_its_traceback(lease):
    def fails():
        raise KeyError("here")

    with pytest.raises(KeyError) as raised:
        lease.call(fails)
    assert "in fails" in str(raised.value.__cause__)
    assert isinstance(raised.value.__cause__, sublet.RemoteTraceback)


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_an_exception_that_cannot_be_pickled_is_told_in_words(lease):
    def fails():
        raise TwoArguments(1, 2)

    with pytest.raises(sublet.RemoteError, match="1 and 2") as raised:
        lease.call(fails)
    assert raised.value.kind.endswith("TwoArguments")
    assert "in fails" in str(raised.value.__cause__)


def test_what_cannot_be_pickled_is_named(lease):
    import threading

    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be sent.*lock"):
        lease.call(double, lock)
    with pytest.raises(TypeError, match="cannot be sent.*lock"):
        lease.call(lambda: lock)
    with pytest.raises(TypeError, match="lock"):
        lease.call(threading.Lock)
    assert isinstance(lease.submit(double, lock).exception(), TypeError)
    assert lease.call(double, 1) == 2


def test_ends_of_the_process_are_exceptions_or_the_workers_death(lease):
    with pytest.raises(SystemExit) as raised:
        lease.call(sys.exit, 3)
    assert raised.value.code == 3
    with pytest.raises(sublet.WorkerDied, match="status 7"):
        lease.call(os._exit, 7)
    import ctypes

    with pytest.raises(sublet.WorkerDied, match="SIGSEGV"):
        lease.call(lambda: ctypes.string_at(0))
    assert lease.call(double, 4) == 8


def test_a_recursion_without_end_is_an_exception(lease):
    def f(n):
        return f(n + 1)

    with pytest.raises(RecursionError):
        lease.call(f, 0)
    assert lease.call(double, 4) == 8


def test_a_function_that_does_not_end_is_ended(lease):
    def forever():
        while True:
            pass

    with pytest.raises(sublet.DeadlineExceeded):
        lease.options(timeout=0.3).call(forever)
    with pytest.raises(TimeoutError):
        lease.options(timeout=0.3).call(forever)
    assert lease.call(double, 4) == 8


def test_a_memory_bomb_costs_its_worker_alone(platform):
    with platform.lease(memory="128MiB", wait=60) as lease:
        with pytest.raises((MemoryError, sublet.WorkerDied)):
            lease.call(lambda: len(bytearray(1 << 34)))
        with pytest.raises((MemoryError, sublet.WorkerDied)):
            lease.call(lambda: [bytearray(1 << 20) for _ in range(1 << 14)] and None)
        assert lease.call(double, 4) == 8


def test_what_is_printed_and_logged_comes_to_the_caller(lease, capsys, caplog):
    def speaks():
        print("out")
        print("err", file=sys.stderr)
        logging.getLogger("far.away").warning("hot: %d", 7)

    lease.call(speaks)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("out\n", "err\n")
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [("far.away", "WARNING", "hot: 7")]


def test_environment_and_initializer_are_each_workers(platform):
    def begin(value):
        import builtins

        builtins.begun = value

    with platform.lease(environment={"COLOUR": "red"}, initializer=begin, initargs=(5,), wait=60) as lease:
        both = lambda: (os.environ["COLOUR"], begun)  # noqa: F821
        assert lease.call(both) == ("red", 5)
        with pytest.raises(sublet.WorkerDied):
            lease.call(os._exit, 1)
        assert lease.call(both) == ("red", 5)


def test_functions_of_a_program_share_their_globals_on_a_worker(platform):
    program = {"__name__": "__main__", "__builtins__": __builtins__}
    source = """
kept = None
limit = 1

def load(value):
    global kept
    kept = value

def use():
    return kept, limit

def count():
    global kept
    kept += 1
    return use()
"""
    exec(source, program)
    with platform.lease(initializer=program["load"], initargs=(5,), wait=60) as lease:
        assert lease.call(program["use"]) == (5, 1)
        assert [lease.call(program["count"]) for _ in range(2)] == [(6, 1), (7, 1)]
        program["limit"] = 2
        assert lease.call(program["use"]) == (7, 2)


def test_arguments_are_read_when_the_session_has_begun(platform, tmp_path, monkeypatch):
    (tmp_path / "looks.py").write_text("import os\ncolour = os.environ.get('COLOUR')\nclass C: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import looks

    with platform.lease(environment={"COLOUR": "red"}, wait=60) as lease:
        assert lease.call(lambda c: sys.modules["looks"].colour, looks.C()) == "red"


def test_the_callers_modules_are_sent_by_their_content(platform, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("from .deep import f\n")
    (tmp_path / "mine" / "deep.py").write_text("def f():\n    return __name__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine

    with platform.lease(wait=60) as lease:
        assert lease.call(mine.f) == "mine.deep"
    with platform.lease(path=[], wait=60) as lease:
        with pytest.raises(ModuleNotFoundError, match="mine"):
            lease.call(mine.f)
    with platform.lease(path=[tmp_path / "mine"], wait=60) as lease:
        assert lease.call("mine:f") == "mine.deep"
    with pytest.raises(sublet.InvalidArgument, match="no file or folder"):
        platform.lease(path=[tmp_path / "nothing"])


def test_modules_that_are_missing_on_the_worker_are_named(platform):
    with pytest.raises(sublet.Error, match="no_such_module"):
        platform.lease(imports=["no_such_module"], wait=60)
    with platform.lease(imports=["numpy"], wait=60) as lease:
        assert lease.call(lambda: "numpy" in sys.modules)


def test_each_core_has_a_worker_of_its_own(platform):
    with platform.lease(2, wait=60) as lease:
        assert lease.workers == 2
        lease.options(worker=0).call(os.mkdir, "/tmp/mine")
        assert [lease.options(worker=n).call(os.path.exists, "/tmp/mine") for n in (0, 1)] == [True, False]
        assert len(lease.leases) == 2
    assert lease.usage["calls"] >= 2


def test_a_lease_grows(platform):
    with platform.lease(wait=60) as lease:
        lease.grow(1)
        assert lease.workers == 2 and len(lease.leases) == 2
        assert [lease.options(worker=n).call(double, n) for n in range(2)] == [0, 2]


def test_a_lease_that_was_closed_says_so(platform):
    lease = platform.lease(wait=60)
    future = lease.submit(double, 1)
    lease.close()
    assert future.result() == 2
    for use in (lambda: lease.call(double, 1), lambda: lease.submit(double, 1), lambda: lease.map(double, [1])):
        with pytest.raises(sublet.LeaseEnded):
            use()
    lease.close()


def test_values_that_make_no_sense_are_named(platform):
    for wrong, named in [
        ({"cores": 0}, "cores"),
        ({"memory": "many"}, "many"),
        ({"policy": "lukewarm"}, "lukewarm"),
        ({"timeout": -1}, "timeout"),
        ({"colour": "red"}, "colour"),
    ]:
        with pytest.raises((sublet.Error, ValueError), match=named):
            platform.lease(**wrong)


def test_another_version_of_python_is_named(platform, tmp_path):
    (tmp_path / "m.py").write_text("")
    (tmp_path / "sublet.toml").write_text('name = "old"\nkind = "python"\nlibrary = "m.py"\n[python]\nversion = "3.5"\n')
    with pytest.raises(sublet.Error, match="python3.5") as raised:
        platform.lease(package=tmp_path)
    assert raised.value.code == "wrong_architecture"


def test_a_package_of_python_is_called_by_its_functions_names(platform, tmp_path):
    (tmp_path / "m.py").write_text("def shout(text):\n    return bytes(text).upper()\n\ndef add(a, b):\n    return a + b\n")
    manifest = 'name = "words"\nkind = "python"\nlibrary = "m.py"\n[[function]]\nname = "shout"\n'
    (tmp_path / "sublet.toml").write_text(manifest)
    with platform.lease(package=tmp_path, wait=60) as lease:
        assert lease.functions == ("shout",)
        assert lease.call("m:add", 1, 2) == 3
        assert lease.call("m:shout", b"loud") == b"LOUD"
        assert lease.call("shout", b"loud") == b"LOUD"
        with pytest.raises(LookupError, match="whisper"):
            lease.call("whisper")


def test_numpy_computes_on_the_leased_core(lease):
    a = numpy.arange(1000.0)
    assert lease.call(numpy.dot, a, a) == numpy.dot(a, a)
