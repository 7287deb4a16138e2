"""Calls of functions in Python: what goes there, and what comes back."""

import concurrent.futures
import logging
import os
import pickle
import signal
import struct
import sys
import threading
import time

import numpy
import pytest

import sublet
from sublet import _modules, _package
from sublet._calls import CALL
from waiting import PATIENCE, held, interrupt_when_executing, until


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


def test_rejects_a_caller_of_another_version(lease, monkeypatch):
    from sublet import _lease

    assert lease.call(double, 1) == 2
    monkeypatch.setattr(_lease, "CALL", 9 << 8)
    with pytest.raises(RuntimeError, match="version 9 of calls.*this node 4"):
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


def test_what_a_function_refers_to_may_come_later(lease):
    space = {"__name__": "__main__", "__builtins__": __builtins__}
    exec("def late():\n    return comes", space)
    with pytest.raises(NameError, match="comes"):
        lease.call(space["late"])
    space["comes"] = 5
    assert lease.call(space["late"]) == 5


def test_defaults_and_attributes_of_a_function_may_change(lease):
    def with_default(found=[1]):  # noqa: B006
        return found[0]

    assert lease.call(with_default) == 1
    with_default.__defaults__[0][0] = 2
    assert lease.call(with_default) == 2

    def marked():
        return marked.limits[0]

    marked.limits = [1]
    assert lease.call(marked) == 1
    marked.limits[0] = 2
    assert lease.call(marked) == 2


def test_a_function_that_stays_what_it_is_is_not_pickled_for_each_call(lease, monkeypatch):
    from sublet import _calls

    factor = 3
    steady = lambda n: n * factor + len("ab")  # noqa: E731
    assert [lease.call(steady, 2) for _ in range(2)] == [8, 8]
    pickled = []
    pickle_function = _calls.pickle_function
    monkeypatch.setattr(_calls, "pickle_function", lambda *args: pickled.append(args) or pickle_function(*args))
    assert [lease.call(steady, n) for n in range(10)] == [3 * n + 2 for n in range(10)]
    assert not pickled


def test_futures(lease):
    futures = [lease.submit(double, n) for n in range(100)]
    assert [future.result() for future in futures] == [2 * n for n in range(100)]
    assert futures[0].done() and not futures[0].running()


def test_calls_of_new_function_run_on_all_workers_at_once(platform):
    def meets(ran, n):
        ran[n] = 1
        deadline = time.monotonic() + 180
        while not ran[1 - n] and time.monotonic() < deadline:
            time.sleep(0.001)
        return bool(ran[1 - n])

    with platform.lease(2, wait=60) as lease:
        # The lease's first function, another one, and one that the workers know.
        for function in (meets, lambda ran, n: meets(ran, n), meets):
            ran = sublet.zeros(2)
            futures = [lease.submit(function, ran, n) for n in range(2)]
            assert [future.result() for future in futures] == [True, True]
        # The caller collects the results of a function that all workers have executed.
        future = lease.submit(meets, ran, 0)
        assert future._sent is not None and future._sent.number is None
        assert future.result()
        ran = sublet.zeros(2)
        assert list(lease.starmap(lambda ran, n: meets(ran, n), [(ran, n) for n in range(2)], chunksize=1)) == [True, True]


def test_results_that_are_larger_than_was_expected_come_from_their_workers(platform):
    with platform.lease(2, wait=60) as lease:
        futures = [lease.submit(lambda n=n: bytes([n]) * (1 << 20)) for n in range(20)]
        assert [future.result() for future in futures] == [bytes([n]) * (1 << 20) for n in range(20)]


def test_results_that_are_larger_than_was_expected_may_be_collected_in_any_order(lease):
    first, second = [lease.submit(lambda n=n: bytes([n]) * (1 << 20)) for n in (1, 2)]
    assert second.result() == bytes([2]) * (1 << 20) and first.result() == bytes([1]) * (1 << 20)


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


def test_a_traceback_begins_with_the_function(lease):
    def fails():
        raise KeyError("here")

    with pytest.raises(KeyError) as raised:
        lease.call(fails)
    assert "in serve" not in str(raised.value.__cause__) and "in fails" in str(raised.value.__cause__)


def test_reports_an_exception_of_an_unknown_class_by_its_text(platform, tmp_path):
    (tmp_path / "theirs.py").write_text("class Theirs(Exception):\n    pass\n\ndef fails():\n    raise Theirs('far away')\n")
    with platform.lease(path=[tmp_path / "theirs.py"], wait=60) as lease:
        with pytest.raises(sublet.RemoteError, match="far away") as raised:
            lease.call("theirs:fails")
    assert raised.value.kind == "theirs.Theirs"


class Leaves(Exception):
    def __reduce__(self):
        return sys.exit, (3,)


class Number(Exception):
    def __reduce__(self):
        return int, (3,)


class Silent(Exception):
    def __str__(self):
        raise ValueError("no words")


def test_exceptions_that_are_not_what_they_seem_are_exceptions_still(lease):
    def fails(kind):
        raise kind("here")

    for kind in (Leaves, Number):
        with pytest.raises(kind, match="here"):
            lease.call(fails, kind)
    with pytest.raises(Silent) as raised:
        lease.call(fails, Silent)
    assert "in fails" in str(raised.value.__cause__)
    assert lease.call(double, 1) == 2


def test_errors_may_be_pickled():
    for error in (sublet.InvalidArgument("what"), sublet.Error("what", "no_capacity", 20), sublet.RemoteError("a.B", "what")):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert (str(back), back.code, back.number) == (str(error), error.code, error.number)


def test_what_cannot_be_pickled_is_named(lease):
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot be sent.*lock"):
        lease.call(double, lock)
    with pytest.raises(TypeError, match="cannot be sent.*lock"):
        lease.call(lambda: lock)
    with pytest.raises(TypeError, match="lock"):
        lease.call(threading.Lock)
    assert isinstance(lease.submit(double, lock).exception(), TypeError)
    assert lease.call(double, 1) == 2


class LoadsToNone:
    """A callable that unpickles to None."""

    def __call__(self, *arguments):
        return arguments

    def __reduce__(self):
        return type(None), ()


def test_rejects_what_cannot_be_called(lease):
    for wrong in (None, 5, [len]):
        for use in (lease.call, lease.submit, lease.map, lease.options(timeout=60).call):
            with pytest.raises(TypeError, match="cannot be called"):
                use(wrong, [1])
    assert lease.call(double, 1) == 2


def test_function_that_is_none_on_the_worker_fails_its_calls(platform):
    with platform.lease(wait=60) as lease:
        for _ in range(2):
            with pytest.raises(TypeError, match="None where it was loaded"):
                lease.call(LoadsToNone(), 1)
            with pytest.raises(TypeError, match="None where it was loaded"):
                lease.options(timeout=60).submit(LoadsToNone(), 1).result(60)
            with pytest.raises(TypeError, match="None where it was loaded"):
                list(lease.map(LoadsToNone(), [1, 2]))
        assert lease.call(double, 1) == 2


def test_initializer_that_cannot_be_called(platform):
    with pytest.raises(TypeError, match="initializer 5 cannot be called"):
        platform.lease(initializer=5)


def test_initializer_that_is_none_on_the_worker_breaks_its_lease(platform):
    with platform.lease(initializer=LoadsToNone(), wait=60) as lease:
        with pytest.raises(sublet.BrokenExecutor) as raised:
            lease.call(double, 1)
    assert "None where it was loaded" in str(raised.value.__cause__)


def forget_functions(delay=0.0, is_for_ever=False):
    """Makes this worker forget every function, for ever or until it is sent again, and take so long to look for one."""
    worker = sys.modules["sublet_worker"]
    worker.functions.clear()
    worker.called.clear()
    known = worker.function_of

    def function_of(key, definition):
        time.sleep(delay)
        return None if is_for_ever else known(key, definition)

    worker.function_of = function_of


def test_function_is_sent_again_once(platform):
    with platform.lease(wait=60) as lease:
        assert lease.call(double, 1) == 2
        lease.call(forget_functions)
        assert lease.call(double, 2) == 4
        lease.call(forget_functions, is_for_ever=True)
        for use in (lambda: lease.call(double, 1), lambda: lease.submit(double, 1).result(60), lambda: list(lease.map(double, [1]))):
            with pytest.raises(sublet.Error, match="does not accept the definition of function double") as raised:
                use()
            assert raised.value.code == "protocol"


def test_deadline_covers_sending_again(lease):
    assert lease.call(double, 1) == 2
    lease.call(forget_functions, delay=0.6)
    with pytest.raises(sublet.DeadlineExceeded):
        lease.options(timeout=1).call(double, 1)
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


def test_a_map_ends_with_the_item_that_ends_the_process(lease):
    results = lease.map(lambda n: sys.exit(n) if n == 3 else n, range(5), chunksize=5)
    got = []
    with pytest.raises(SystemExit) as raised:
        for result in results:
            got.append(result)
    assert got == [0, 1, 2] and raised.value.code == 3


def test_a_recursion_without_end_is_an_exception(lease):
    def f(n):
        return f(n + 1)

    with pytest.raises(RecursionError):
        lease.call(f, 0)
    assert lease.call(double, 4) == 8


@pytest.mark.parametrize("is_known", [False, True])
def test_an_interrupt_does_not_wait_for_the_call(lease, is_known):
    # A process that a shell has started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    flags = sublet.zeros(2)
    if is_known:
        flags[1] = 1
        lease.call(held, flags)
        flags[:] = 0
    try:
        interrupt_when_executing(flags)
        # The call returns only after the second flag is set.
        with pytest.raises(KeyboardInterrupt):
            lease.call(held, flags)
    finally:
        signal.signal(signal.SIGINT, before)
    flags[1] = 1
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


def test_a_call_is_repeated_as_often_as_was_said(lease):
    tries = sublet.zeros(1)

    def dies(tries, times):
        tries[0] += 1
        if tries[0] <= times:
            os._exit(1)
        return "alive"

    assert lease.options(retries=1).call(dies, tries, 1) == "alive" and tries[0] == 2
    tries[0] = 0
    with pytest.raises(sublet.WorkerDied):
        lease.call(dies, tries, 1)
    assert tries[0] == 1


def test_a_maps_timeout_counts_what_is_before_it(lease):
    flags = sublet.zeros(2)
    busy = [lease.submit(held, flags) for _ in range(2)]
    with pytest.raises(concurrent.futures.TimeoutError):
        next(lease.map(double, [1], timeout=0.2))
    assert not any(future.done() for future in busy)
    flags[1] = 1
    assert all(future.result(PATIENCE) is None for future in busy)


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


def test_much_that_is_printed_comes_to_the_caller(lease, capsys, caplog):
    def speaks(size):
        print("x" * size)
        logging.getLogger("far.away").warning("y" * size)
        return size

    for size in (4000, 5000, 100_000):
        assert lease.call(speaks, size) == size and list(lease.map(speaks, [size])) == [size]
        assert capsys.readouterr().out == ("x" * size + "\n") * 2
        assert [r.getMessage() for r in caplog.records] == ["y" * size] * 2
        caplog.clear()


def test_a_calls_output_is_bounded(lease, capsys):
    def speaks():
        for _ in range(40):
            print("x" * 99_999)

    lease.call(speaks)
    printed = capsys.readouterr()
    assert 1 << 20 <= len(printed.out) < (1 << 20) + 100_000 and "is dropped" in printed.err
    lease.call(print, "again")
    assert capsys.readouterr().out == "again\n"


def test_a_log_is_as_loud_as_its_caller_wants(lease, caplog):
    def speaks():
        logging.getLogger("far.away").error("loud")

    logging.getLogger("far.away").setLevel(logging.CRITICAL)
    try:
        lease.call(speaks)
    finally:
        logging.getLogger("far.away").setLevel(logging.NOTSET)
    assert not caplog.records


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


def test_one_print_is_bounded(lease, capsys):
    lease.call(print, "x" * (3 << 20))
    printed = capsys.readouterr()
    assert len(printed.out) == 1 << 20 and "is dropped" in printed.err


def test_one_record_is_bounded(lease, caplog):
    lease.call(lambda: logging.getLogger("far.away").warning("y" * (3 << 20)))
    assert len(caplog.records[0].getMessage()) == 1 << 20


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


def test_links_among_modules_are_not_followed(platform, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "__init__.py").write_text("import os\n\ndef names():\n    return sorted(os.listdir(os.path.dirname(__file__)))\n")
    (tmp_path / "secret").write_text("not for the lease")
    (mine / "linked").symlink_to(tmp_path / "secret")
    (mine / "loop").symlink_to(mine)
    with platform.lease(path=[mine], wait=60) as lease:
        assert {"linked", "loop"}.isdisjoint(lease.call("mine:names"))


def test_modules_that_are_too_large_are_named(platform, tmp_path, monkeypatch):
    (tmp_path / "large.py").write_text("#" * 5000)
    monkeypatch.setattr(_modules, "MOST_BYTES", 4000)
    with pytest.raises(sublet.InvalidArgument, match="more than 4000 bytes.*large.py"):
        platform.lease(path=[tmp_path / "large.py"])


def test_modules_that_are_missing_on_the_worker_are_named(platform):
    with pytest.raises(sublet.Error, match="no_such_module"):
        platform.lease(imports=["no_such_module"], wait=60)
    with platform.lease(imports=["numpy"], wait=60) as lease:
        assert lease.call(lambda: "numpy" in sys.modules)


def test_a_packages_functions_stay_however_many_others_come(platform, tmp_path):
    (tmp_path / "m.py").write_text("def shout(text):\n    return bytes(text).upper()\n")
    manifest = 'name = "words"\nkind = "python"\nlibrary = "m.py"\n[[function]]\nname = "shout"\n'
    (tmp_path / "sublet.toml").write_text(manifest)
    with platform.lease(package=tmp_path, wait=60) as lease:
        lease.call(lambda: setattr(sys.modules["sublet_worker"], "MOST_FUNCTIONS", 2))
        for n in range(5):
            assert lease.call(lambda n=n: n) == n
        assert lease.call("shout", b"loud") == b"LOUD"
        assert lease.call(lambda: len(sys.modules["sublet_worker"].functions)) <= 2


def test_each_core_has_a_worker_of_its_own(platform):
    with platform.lease(2, wait=60) as lease:
        assert lease.workers == 2
        lease.options(worker=0).call(os.mkdir, "/tmp/mine")
        assert [lease.options(worker=n).call(os.path.exists, "/tmp/mine") for n in (0, 1)] == [True, False]
        assert len(lease.leases) == 2
    assert lease.usage["calls"] >= 2


def test_each_worker_knows_each_function(platform):
    with platform.lease(2, wait=60) as lease:
        for number, function in enumerate([lambda: 0, lambda: 1, lambda: 2]):
            assert [lease.options(worker=worker).call(function) for worker in (0, 1)] == [number] * 2


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


def test_a_lease_that_is_being_closed_takes_nothing(platform):
    lease = platform.lease(wait=60)
    flags = sublet.zeros(2)
    slow = lease.submit(held, flags)

    def is_closing():
        try:
            lease.submit(double, 1)
        except sublet.LeaseEnded:
            return True
        return False

    closing = threading.Thread(target=lease.close)
    closing.start()
    until(is_closing, "the lease takes no calls")
    assert not slow.done()
    flags[1] = 1
    closing.join()
    assert slow.result(0) is None
    lease.close()
    assert lease.usage["calls"] >= 1, "what was used is known still when it is closed again"


def test_values_that_make_no_sense_are_named(platform):
    for wrong, named in [
        ({"cores": 0}, "cores"),
        ({"memory": "many"}, "many"),
        ({"policy": "lukewarm"}, "lukewarm"),
        ({"timeout": -1}, "timeout"),
        ({"colour": "red"}, "colour"),
        ({"cores": -1}, "cores -1 is out of range"),
        ({"memory": -5}, "memory_bytes -5"),
        ({"slots": 1 << 40}, "slots 1099511627776"),
        ({"imports": ["numpy", 'a"b']}, "imports"),
        ({"imports": "os..path"}, "os..path"),
    ]:
        with pytest.raises((sublet.Error, ValueError), match=named):
            platform.lease(**wrong)


def test_options_that_make_no_sense_are_named(lease):
    for wrong, named in [({"worker": -1}, "worker must be .* not -1"), ({"retries": -1}, "retries must be .* not -1"), ({"retries": 1 << 32}, "retries")]:
        with pytest.raises(sublet.InvalidArgument, match=named):
            lease.options(**wrong)


def test_one_path_and_one_module_stand_for_themselves(platform, tmp_path):
    (tmp_path / "only_one.py").write_text("VALUE = 7\n")

    def value_of():
        import only_one

        return only_one.VALUE

    for path in (tmp_path / "only_one.py", str(tmp_path / "only_one.py")):
        with platform.lease(path=path, imports="json", wait=60) as lease:
            assert lease.call(value_of) == 7


def test_a_leases_memory_is_what_was_asked(platform):
    with platform.lease(memory="96MiB", wait=60) as lease:
        assert [held["memory_bytes"] for held in lease.leases] == [96 << 20]


def test_a_map_takes_no_chunks_of_nothing(lease):
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="chunksize"):
            lease.map(double, [1, 2], chunksize=wrong)


def test_another_version_of_python_is_named(platform, tmp_path):
    (tmp_path / "m.py").write_text("")
    (tmp_path / "sublet.toml").write_text('name = "old"\nkind = "python"\nlibrary = "m.py"\n[python]\nversion = "3.5"\n')
    with pytest.raises(sublet.Error, match="python3.5") as raised:
        platform.lease(package=tmp_path)
    assert raised.value.code == "wrong_architecture"


def test_the_callers_version_of_python_is_said(platform, monkeypatch):
    monkeypatch.setattr(_package, "version", lambda: "3.5")
    with pytest.raises(sublet.Error, match="python3.5") as raised:
        platform.lease()
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


def test_what_a_function_returns_does_not_go_beyond_its_place(platform, tmp_path):
    (tmp_path / "m.py").write_text("def echo(text):\n    return bytes(text)\n")
    (tmp_path / "sublet.toml").write_text('name = "words"\nkind = "python"\nlibrary = "m.py"\n[[function]]\nname = "echo"\n')
    out = sublet.zeros(1000, dtype="u1")
    with platform.lease(package=tmp_path, wait=60) as lease:
        for size, place in [(8, out[:8]), (9, out[:8]), (900, out[8:16])]:
            sent = lease._invoker.call_bytes("echo", b"x" * size, place)
            sent.wait()
            if size == len(place):
                assert sent.bytes()[0] == size
            else:
                with pytest.raises(sublet.Error, match=f"{size} bytes"):
                    sent.bytes()
    assert not out[8:].any()


def ask(lease, message):
    sent = lease._invoker.call_bytes("sublet.call", message, 4096)
    sent.wait()
    return sent.bytes()


def test_a_message_that_says_what_is_not_so_is_refused(lease):
    head = lambda pieces: struct.pack("<IIQ", CALL, pieces, 7)  # noqa: E731
    array = sublet.zeros(1000)
    assert lease.call(len, array) == 1000
    for message in (b"short", head(1), head(5000), head(1) + struct.pack("<QQQ", 0, 0, 1000), head(1) + struct.pack("<QQQ", 1 << 40, 0, 8)):
        with pytest.raises(sublet.Error) as raised:
            ask(lease, message)
        assert raised.value.code == "protocol"
    for place in [(99, 0, 8), (1, 0, 1 << 40), (1, 1 << 40, 8), (1, (1 << 64) - 1, 8)]:
        with pytest.raises(sublet.Error) as raised:
            ask(lease, head(1) + struct.pack("<QQQ", *place))
        assert raised.value.code == "invalid_argument"
    assert lease.call(double, 4) == 8


def test_numpy_computes_on_the_leased_core(lease):
    a = numpy.arange(1000.0)
    assert lease.call(numpy.dot, a, a) == numpy.dot(a, a)
