"""Runs the cases of CPython's own test_concurrent_futures against `sublet.Executor`, and says which do not apply.

    python cpython_executor.py [--testsuite FOLDER] [CLASS.CASE ...]

FOLDER holds the package `test` of this Python, where the interpreter comes without it: on Debian that of libpython3.11-testsuite,
unpacked, as usr/lib/python3.11. The cases are those of Python 3.11 to 3.14: one module until 3.11, and a package from 3.12 on.
"""

import argparse
import contextlib
import functools
import importlib
import os
import pickle
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
import unittest
import unittest.mock
from concurrent import futures
from pathlib import Path

import sublet

MODULE = "test_concurrent_futures"
# Modules that the cases import from another package of cases since Python 3.14.
HELPERS = "test_importlib/metadata"
# The modules of the package that it is from Python 3.12 on.
PARTS = [
    "util",
    "executor",
    "test_as_completed",
    "test_deadlock",
    "test_future",
    "test_init",
    "test_process_pool",
    "test_shutdown",
    "test_thread_pool",
    "test_wait",
]

PROCESSES = "looks at the processes, queues or threads of ProcessPoolExecutor, which are private"
TASKS = "asks for max_tasks_per_child, which this executor does not have: its workers are the lease's"
CHILDREN = "shares a lock, queue or event of multiprocessing with the workers, which are no children of this process"
THREADS = "looks at the threads of ThreadPoolExecutor, which are private"
SHARED = "shares objects with the workers, which only threads can"
UNPICKLING = "asks that the executor breaks; here the call fails by what unpickling raised, and the executor continues: see Unpickling"
FORCED = "replaces ProcessPoolExecutor's private _force_shutdown"
DEFAULT = "asks for ThreadPoolExecutor's own number of workers by default"

NOT_APPLICABLE = {
    "ProcessPoolShutdown.test_processes_terminate": PROCESSES,
    "ProcessPoolShutdown.test_context_manager_shutdown": PROCESSES,
    "ProcessPoolShutdown.test_del_shutdown": f"{PROCESSES}: see Shutdown",
    "ProcessPoolShutdown.test_shutdown_no_wait": f"{PROCESSES}: see Shutdown",
    "ProcessPoolShutdown.test_shutdown_gh_132969_case_1": TASKS,
    "ProcessPoolShutdown.test_shutdown_gh_132969_case_2": TASKS,
    "ThreadPoolShutdown.test_threads_terminate": THREADS,
    "ThreadPoolShutdown.test_context_manager_shutdown": THREADS,
    "ThreadPoolShutdown.test_del_shutdown": f"{THREADS}: see Shutdown",
    "ThreadPoolShutdown.test_shutdown_no_wait": f"{THREADS}: see Shutdown",
    "ThreadPoolShutdown.test_thread_names_assigned": THREADS,
    "ThreadPoolShutdown.test_thread_names_default": THREADS,
    "ThreadPoolWait.test_pending_calls_race": SHARED,
    "ProcessPoolExecutor.test_max_workers_too_large": "is for Windows",
    "ProcessPoolExecutor.test_killed_child": f"{PROCESSES}: see Killed",
    "ProcessPoolExecutor.test_traceback": "looks for ProcessPoolExecutor's private _RemoteTraceback: see Traceback",
    "ProcessPoolExecutor.test_ressources_gced_in_workers": CHILDREN,
    "ProcessPoolExecutor.test_saturation": CHILDREN,
    "ProcessPoolExecutor.test_idle_process_reuse_one": PROCESSES,
    "ProcessPoolExecutor.test_idle_process_reuse_multiple": PROCESSES,
    "ProcessPoolExecutor.test_max_tasks_per_child": TASKS,
    "ProcessPoolExecutor.test_max_tasks_per_child_defaults_to_spawn_context": TASKS,
    "ProcessPoolExecutor.test_max_tasks_early_shutdown": TASKS,
    "ProcessPoolExecutor.test_max_tasks_per_child_pending_tasks_gh115634": TASKS,
    "ProcessPoolExecutor.test_shutdown_no_wait_max_tasks_gh119592": TASKS,
    "ProcessPoolExecutor.test_gc_during_max_tasks_worker_exit_gh152967": TASKS,
    "ProcessPoolExecutor.test_failed_worker_replacement_breaks_pool": TASKS,
    "ProcessPoolExecutor.test_force_shutdown_during_max_tasks_worker_exit": TASKS,
    "ProcessPoolExecutor.test_broken_process_pool_traceback": f"{PROCESSES}: see Killed",
    "ProcessPoolExecutor.test_force_shutdown_workers": f"{PROCESSES}: see Terminated",
    "ProcessPoolExecutor.test_force_shutdown_workers_stops_pool": f"{PROCESSES}: see Terminated",
    "ProcessPoolExecutor.test_force_shutdown_workers_not_started_yet": PROCESSES,
    "ProcessPoolExecutor.test_force_shutdown_workers_invalid_op": FORCED,
    "ProcessPoolExecutor.test_terminate_workers": FORCED,
    "ProcessPoolExecutor.test_kill_workers": FORCED,
    "ThreadPoolExecutor.test_map_submits_without_iteration": SHARED,
    "ProcessPoolExecutor.test_python_finalization_error": "has the start of ProcessPoolExecutor's second thread fail, which is private",
    "ThreadPoolExecutor.test_default_workers": DEFAULT,
    "ThreadPoolExecutor.test_saturation": THREADS,
    "ThreadPoolExecutor.test_idle_thread_reuse": THREADS,
    "ThreadPoolExecutor.test_hang_global_shutdown_lock": "is about ThreadPoolExecutor and ProcessPoolExecutor together",
    "ThreadPoolExecutor.test_executor_map_current_future_cancel": SHARED,
    "ExecutorDeadlock.test_shutdown_deadlock_pickle": PROCESSES,
    "ExecutorDeadlock.test_error_at_task_unpickle": UNPICKLING,
    "ExecutorDeadlock.test_exit_at_task_unpickle": UNPICKLING,
    "ExecutorDeadlock.test_error_during_result_unpickle_in_result_handler": UNPICKLING,
    "ExecutorDeadlock.test_exit_during_result_unpickle_in_result_handler": UNPICKLING,
}

# Since which version of Python there are these of them in each of its releases.
SINCE = {
    "ProcessPoolShutdown.test_shutdown_gh_132969_case_1": (3, 15),
    "ProcessPoolShutdown.test_shutdown_gh_132969_case_2": (3, 15),
    "ProcessPoolExecutor.test_max_tasks_per_child_pending_tasks_gh115634": (3, 15),
    "ProcessPoolExecutor.test_shutdown_no_wait_max_tasks_gh119592": (3, 15),
    "ProcessPoolExecutor.test_gc_during_max_tasks_worker_exit_gh152967": (3, 15),
    "ProcessPoolExecutor.test_failed_worker_replacement_breaks_pool": (3, 15),
    "ProcessPoolExecutor.test_force_shutdown_during_max_tasks_worker_exit": (3, 15),
    "ProcessPoolExecutor.test_broken_process_pool_traceback": (3, 15),
    "ProcessPoolExecutor.test_force_shutdown_workers": (3, 14),
    "ProcessPoolExecutor.test_force_shutdown_workers_stops_pool": (3, 14),
    "ProcessPoolExecutor.test_force_shutdown_workers_not_started_yet": (3, 14),
    "ProcessPoolExecutor.test_force_shutdown_workers_invalid_op": (3, 14),
    "ProcessPoolExecutor.test_terminate_workers": (3, 14),
    "ProcessPoolExecutor.test_kill_workers": (3, 14),
    "ProcessPoolExecutor.test_python_finalization_error": (3, 12),
    "ProcessPoolExecutor.test_max_tasks_per_child": (3, 11),
    "ProcessPoolExecutor.test_max_tasks_per_child_defaults_to_spawn_context": (3, 11),
    "ProcessPoolExecutor.test_max_tasks_early_shutdown": (3, 11),
}

# Cases of this file, in place of some that do not apply.
OURS = {"Unpickling", "Traceback", "Shutdown", "Killed", "Terminated"}

# In a process that a case starts: the classes of concurrent.futures are this executor there.
PRELUDE = """
import concurrent.futures, sys, sublet
sys.path.insert(0, {folder!r})

class {name}(sublet.Executor):
    def __init__(self, max_workers=None, mp_context=None, **more):
        super().__init__(min(max_workers or 1, {workers}), client=sublet.Client({manager!r}), wait=180, path=[{folder!r} + "/test"], **more)
concurrent.futures.{name} = concurrent.futures.ThreadPoolExecutor = {name}
"""


def assemble(folder, testsuite):
    """Puts together the package `test`, as far as the cases need it: this process, those it starts and the workers import it."""
    for source in (sysconfig.get_paths()["stdlib"], testsuite):
        for name in ("__init__.py", "support", HELPERS, f"{MODULE}.py", MODULE):
            path = Path(source or "", "test", name)
            if path.is_dir():
                shutil.copytree(path, folder / "test" / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.is_file():
                (folder / "test").mkdir(exist_ok=True)
                shutil.copy(path, folder / "test" / name)
    if not any((folder / "test" / name).exists() for name in (f"{MODULE}.py", MODULE)):
        raise SystemExit(f"this interpreter has no {MODULE}: say --testsuite")


class Cases:
    """The modules that hold the cases, as if they were one."""

    def __init__(self):
        whole = importlib.import_module(f"test.{MODULE}")
        is_package = hasattr(whole, "__path__")
        self.modules = [importlib.import_module(f"test.{MODULE}.{part}") for part in PARTS] if is_package else [whole]

    def __getattr__(self, name):
        for module in self.modules:
            if hasattr(module, name):
                return getattr(module, name)
        raise AttributeError(name)

    def patches(self, **replaced):
        """Patches that replace these names in each module that has them."""
        for module in self.modules:
            names = {name: value for name, value in replaced.items() if hasattr(module, name)}
            if names:
                yield unittest.mock.patch.multiple(module, **names)


class Event:
    """An event for this process and the workers: its flag is memory that all of them have."""

    def __init__(self):
        self.flag = sublet.zeros(1)

    def set(self):
        self.flag[0] = 1

    def wait(self):
        while not self.flag[0]:
            time.sleep(0.001)


def executor_type(client, workers, folder):
    """The executor as cases make it: leased from the client, and with no more workers than it has cores."""

    class LeasedExecutor(sublet.Executor):
        made = []

        def __init__(self, max_workers=None, mp_context=None, **more):
            if max_workers is not None and max_workers > 0:
                max_workers = min(max_workers, workers)
            # The cores are those of the executor that each case has.
            while self.made:
                self.made.pop().shutdown()
            super().__init__(max_workers, client=client, wait=180, path=[folder / "test"], **more)
            self.made.append(self)

        def submit(self, fn, /, *args, **kwargs):
            # Workers have a function's own memory copied, and share that of its arguments.
            event = getattr(fn, "__self__", None)
            if isinstance(event, Event):
                return super().submit(Event.wait, event)
            return super().submit(fn, *args, **kwargs)

    return LeasedExecutor


def mixin(module, executor):
    """In place of ThreadPoolMixin and the three for processes."""

    class LeasedMixin(module.ExecutorMixin):
        executor_type = executor
        worker_count = 2

        def get_context(self):
            return None

        def create_event(self):
            return Event()

        def tearDown(self):
            # A case that fails leaves its executors open, whose cores the next one needs.
            while executor.made:
                executor.made.pop().shutdown(cancel_futures=True)
            super().tearDown()

    return LeasedMixin


def suites(module, leased):
    """The cases, by the names that they have above."""
    base = module.BaseTestCase
    yield "Initializer", (module.InitializerMixin, leased, base)
    yield "FailingInitializer", (module.FailingInitializerMixin, leased, base)
    # Classes that are cases for threads already have ThreadPoolMixin, which the executor's mixin comes before.
    yield "ProcessPoolShutdown", (leased, module.ProcessPoolShutdownTest, base)
    yield "ThreadPoolShutdown", (leased, own_cases(module.ThreadPoolShutdownTest), base)
    yield "Wait", (leased, module.WaitTests, base)
    yield "ThreadPoolWait", (leased, own_cases(module.ThreadPoolWaitTests), base)
    yield "AsCompleted", (leased, module.AsCompletedTests, base)
    yield "ProcessPoolExecutor", (leased, module.ProcessPoolExecutorTest, base)
    yield "ThreadPoolExecutor", (leased, own_cases(module.ThreadPoolExecutorTest), base)
    yield "ExecutorDeadlock", (leased, module.ExecutorDeadlockTest, base)
    yield "Unpickling", (unpickling(module), leased, base)
    yield "Traceback", (tracebacks(module), leased, base)
    yield "Shutdown", (Shutdown, leased, base)
    yield "Killed", (Killed, leased, base)
    yield "Terminated", (Terminated, leased, base)
    yield "Future", (with_our_future(module), module.FutureTests)


def own_cases(case):
    """Returns a class with the cases that are not inherited.

    Inherited cases are executed with another class already.
    """
    return type(case.__name__, (), {name: value for name, value in vars(case).items() if name.startswith("test")})


class Shutdown:
    """In place of the cases that look at processes: from outside, a process that has ended is a core that can be leased."""

    def leave(self, leave, keeps=False):
        client, workers = self.executor.lease._client, self.executor.lease.workers
        executor = self.executor_type(workers)
        results = executor.map(abs, range(-5, 5))
        self.executor_type.made.remove(executor)
        leave(executor)
        if not keeps:
            del executor
        client.lease(workers, wait=60).close()
        self.assertEqual(list(results), [abs(n) for n in range(-5, 5)])

    def test_del_shutdown(self):
        self.leave(lambda executor: None)

    def test_shutdown_no_wait(self):
        self.leave(lambda executor: executor.shutdown(wait=False), keeps=True)


class Killed:
    """In place of the cases that kill a process of the executor."""

    def test_killed_child(self):
        busy = self.executor.submit(time.sleep, 3)
        killed = self.executor.submit(kill_worker)
        self.assertRaises(sublet.BrokenExecutor, killed.result)
        self.assertRaises(sublet.BrokenExecutor, self.executor.submit, pow, 2, 8)
        self.assertIsInstance(busy.exception(timeout=60), (sublet.BrokenExecutor, type(None)))

    def test_broken_process_pool_traceback(self):
        busy = [self.executor.submit(time.sleep, 0.5) for _ in range(self.worker_count)]
        killed = [self.executor.submit(kill_worker) for _ in range(3)]
        futures.wait(busy)
        for future in killed:
            # assertRaises would remove the traceback.
            try:
                future.result(timeout=60)
            except sublet.BrokenExecutor as error:
                here = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
                self.assertEqual(len(here), 1)
            else:
                self.fail("the executor is not broken")


class Terminated:
    """In place of the cases that look whether processes have ended."""

    def leave(self, end):
        client, workers = self.executor.lease._client, self.executor.lease.workers
        event = Event()
        running = self.executor.submit(event.wait)
        end(self.executor)
        self.assertRaises(sublet.BrokenExecutor, running.result, timeout=60)
        self.assertRaises(RuntimeError, self.executor.submit, time.sleep, 0)
        client.lease(workers, wait=60).close()

    def test_terminate_workers(self):
        self.leave(sublet.Executor.terminate_workers)

    def test_kill_workers(self):
        self.leave(sublet.Executor.kill_workers)


def kill_worker():
    os.kill(os.getpid(), signal.SIGKILL)


def unpickling(module):
    """In place of the cases that ask for a broken executor when something cannot be unpickled."""

    class Unpickling:
        def check(self, error, function, argument):
            with self.assertRaises(error):
                self.executor.submit(function, argument).result(timeout=60)
            self.assertEqual(self.executor.submit(pow, 2, 5).result(timeout=60), 32)

        def test_error_at_task_unpickle(self):
            self.check(pickle.UnpicklingError, id, module.ErrorAtUnpickle())

        def test_exit_at_task_unpickle(self):
            self.check(SystemExit, id, module.ExitAtUnpickle())

        def test_error_during_result_unpickle(self):
            with module.support.captured_stderr():
                self.check(pickle.UnpicklingError, module._return_instance, module.ErrorAtUnpickle)

        def test_exit_during_result_unpickle(self):
            self.check(SystemExit, module._return_instance, module.ExitAtUnpickle)

    return Unpickling


def tracebacks(module):
    """In place of the case that looks for a private class."""

    class Traceback:
        def test_traceback(self):
            error = self.executor.submit(module._raise_error, RuntimeError).exception()
            self.assertIs(type(error), RuntimeError)
            self.assertIs(type(error.__cause__), sublet.RemoteTraceback)
            self.assertIn("raise Err()", str(error.__cause__))

    return Traceback


def with_our_future(module):
    """Has the cases about futures, and the futures that are prepared for them, be of `sublet.Future`."""
    states = {
        "PENDING_FUTURE": (module.PENDING,),
        "RUNNING_FUTURE": (module.RUNNING,),
        "CANCELLED_FUTURE": (module.CANCELLED,),
        "CANCELLED_AND_NOTIFIED_FUTURE": (module.CANCELLED_AND_NOTIFIED,),
        "EXCEPTION_FUTURE": (module.FINISHED, OSError()),
        "SUCCESSFUL_FUTURE": (module.FINISHED, None, 42),
    }

    class OurFuture:
        def setUp(self):
            super().setUp()
            with contextlib.ExitStack() as patched:
                for patch in module.patches(Future=sublet.Future):
                    patched.enter_context(patch)
                prepared = {name: module.create_future(*state) for name, state in states.items()}
            for patch in module.patches(Future=sublet.Future, **prepared):
                patch.start()
                self.addCleanup(patch.stop)

    return OurFuture


def build(module, leased):
    """A class for each suite, whose cases that do not apply are skipped with their reason."""
    unused = set(NOT_APPLICABLE)
    for name, bases in suites(module, leased):
        skipped = {}
        for case in unittest.defaultTestLoader.getTestCaseNames(type(name, bases, {})):
            reason = NOT_APPLICABLE.get(f"{name}.{case}")
            if reason is not None:
                unused.discard(f"{name}.{case}")
                skipped[case] = unittest.skip(reason)(lambda self: None)
        yield type(name, bases, skipped)
    unused -= {case for case, version in SINCE.items() if sys.version_info < version}
    if unused:
        raise SystemExit(f"no such cases: {', '.join(sorted(unused))}")


def patch_children(module, client, workers, folder):
    """Cases that start an interpreter have it use this executor."""
    prelude = PRELUDE.format(folder=str(folder), name="LeasedExecutor", workers=workers, manager=client.managers)
    original = module.assert_python_ok

    @functools.wraps(original)
    def assert_python_ok(flag, program, **more):
        return original(flag, prelude + program, **more)

    for patch in module.patches(assert_python_ok=assert_python_ok):
        patch.start()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--testsuite", metavar="FOLDER")
    arguments.add_argument("cases", nargs="*", metavar="CLASS.CASE")
    said = arguments.parse_args()
    # Processes that cases start have cores of their own: the cases hold all that there are.
    with tempfile.TemporaryDirectory() as folder, sublet.local(memory="4GiB") as others, sublet.local(memory="4GiB") as client:
        cases, result = run(client, others, Path(folder), said.testsuite, said.cases)
    report(cases, result)


def run(client, others, folder, testsuite, wanted):
    """Runs the cases that are wanted, which are all if none are named; returns them and their result."""
    assemble(folder, testsuite)
    sys.path.insert(0, str(folder))
    module = Cases()
    workers = min(5, len(os.sched_getaffinity(0)))
    patch_children(module, others, workers, folder)
    cases = []
    for case in build(module, mixin(module, executor_type(client, workers, folder))):
        for method in unittest.defaultTestLoader.getTestCaseNames(case):
            if not wanted or {case.__name__, f"{case.__name__}.{method}"} & set(wanted):
                cases.append(case(method))
    return cases, unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(cases))


def report(cases, result):
    """Says how many cases passed, which failed, and which do not apply and why."""
    # A failure within `subTest` or `parameterize` counts as its case's.
    failed = dict.fromkeys(getattr(case, "test_case", case) for case, _ in result.failures + result.errors)
    passed = set(cases) - {*failed, *(case for case, _ in result.skipped)}
    ours = sum(type(case).__name__ in OURS for case in passed)
    print(f"\npassed: {len(passed) - ours} of CPython's, {ours} in place of others")
    print(f"failed: {len(failed)}")
    for case in failed:
        print(f"  {type(case).__name__}.{case._testMethodName}")
    print(f"not applicable: {len(result.skipped)}")
    for case, reason in result.skipped:
        print(f"  {type(case).__name__}.{case._testMethodName}: {reason}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
