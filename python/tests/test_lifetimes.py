"""Tests the lifetimes of leases: as long as something needs them, without help of the garbage collector."""

import asyncio
import concurrent.futures
import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

import sublet
from waiting import held, interrupt_when_executing, until

CORES = len(os.sched_getaffinity(0))


def double(x):
    return 2 * x


def fails(x):
    raise ValueError(x)


@pytest.fixture(autouse=True)
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def raises(error, function, *arguments):
    """Whether a function raises an error. Does not keep the exception, whose traceback refers to the lease."""
    try:
        function(*arguments)
    except error:
        return True
    return False


def reads_results(lease):
    assert [future.result(60) for future in [lease.submit(double, n) for n in range(20)]] == list(range(0, 40, 2))
    assert list(lease.map(double, range(20))) == list(range(0, 40, 2))


def reads_half_a_map(lease):
    assert next(lease.map(double, range(100))) == 0
    results = lease.map(double, itertools.count(), buffersize=4)
    assert next(results) == 0


def reads_no_map(lease):
    lease.map(double, range(10))
    lease.map(double, itertools.count(), buffersize=3)


def raises_errors(lease):
    assert raises(ValueError, lease.call, fails, 1)
    assert isinstance(lease.submit(fails, 1).exception(60), ValueError)
    assert raises(ValueError, list, lease.map(fails, [1, 2]))
    lock = threading.Lock()
    assert raises(TypeError, lease.call, double, lock)
    assert isinstance(lease.submit(double, lock).exception(60), TypeError)


def loses_workers(lease):
    future = lease.submit(os._exit, 1)
    assert isinstance(future.exception(60), (sublet.WorkerDied, sublet.BrokenExecutor))


def waits_for_futures(lease):
    elsewhere = concurrent.futures.Future()
    waiting = [lease.submit(double, lease.submit(double, 1)), lease.submit(double, elsewhere)]
    elsewhere.set_result(4)
    assert [future.result(60) for future in waiting] == [4, 8]
    failed = lease.submit(double, lease.submit(fails, 1))
    assert isinstance(failed.exception(60), ValueError)


def waits_for_a_future_that_never_ends(lease):
    lease.submit(double, concurrent.futures.Future())


def waits_in_an_event_loop(lease):
    async def main():
        assert await lease.submit(double, 1) == 2
        assert [n async for n in lease.map(double, range(10))] == list(range(0, 20, 2))
        async for n in lease.map(double, itertools.count(), buffersize=2):
            if n == 8:
                break

    asyncio.run(main())


def leaves_calls_behind(lease):
    lease.submit(time.sleep, 0.1)
    lease.submit(double, 1).add_done_callback(lambda future: None)


def cancels(lease):
    flags = sublet.zeros(2)
    futures = [lease.submit(held, flags) for _ in range(10)]
    assert futures[-1].cancel()
    flags[1] = 1


USES = [
    reads_results,
    reads_half_a_map,
    reads_no_map,
    raises_errors,
    loses_workers,
    waits_for_futures,
    waits_for_a_future_that_never_ends,
    waits_in_an_event_loop,
    leaves_calls_behind,
    cancels,
]


def ends(reference):
    until(lambda: reference() is None, "its calls end")
    return True


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_dropped_lease_gives_its_cores_back(platform, use):
    lease = platform.lease(CORES, wait=60)
    use(lease)
    references = [weakref.ref(each) for each in (lease, lease._dispatch, lease._functions)]
    del lease
    assert references[0]() is None, "something refers to the lease"
    assert all(map(ends, references)), "something refers to its calls"
    with platform.lease(CORES, wait=60):
        pass


@pytest.mark.parametrize("use", [use for use in USES if use is not waits_in_an_event_loop], ids=lambda use: use.__name__)
def test_dropped_executor_gives_its_cores_back(platform, use):
    executor = sublet.Executor(CORES, client=platform, wait=60)
    if use is raises_errors:
        assert isinstance(executor.submit(fails, 1).exception(60), ValueError)
    else:
        use(executor)
    references = [weakref.ref(each) for each in (executor, executor.lease, executor.lease._dispatch)]
    del executor
    assert references[0]() is None and references[1]() is None, "something refers to the executor"
    assert ends(references[2]), "something refers to its calls"
    with platform.lease(CORES, wait=60):
        pass


def test_idle_lease_that_is_dropped_gives_its_cores_back_at_once(platform):
    for _ in range(5):
        lease = platform.lease(CORES, wait=60)
        assert lease.submit(double, 2).result() == 4
        del lease
        # Without waiting for them.
        platform.lease(CORES).close()


def test_futures_and_results_outlive_a_dropped_lease(platform):
    lease = platform.lease(wait=60)
    futures, results = [lease.submit(double, n) for n in range(10)], lease.map(double, range(100))
    elsewhere = concurrent.futures.Future()
    late = lease.submit(double, elsewhere)
    lazy = lease.map(double, itertools.count(), buffersize=3)
    del lease
    assert [future.result(60) for future in futures] == list(range(0, 20, 2))
    assert list(results) == list(range(0, 200, 2))
    assert [next(lazy) for _ in range(20)] == list(range(0, 40, 2))
    elsewhere.set_result(21)
    assert late.result(60) == 42


def test_lazy_map_keeps_a_dropped_lease_while_it_has_items(platform):
    lease = platform.lease(wait=60)
    reference, results = weakref.ref(lease), lease.map(double, itertools.count(), buffersize=3)
    ended = lease.map(double, iter(range(3)), buffersize=10)
    del lease
    assert reference() is not None and [next(results) for _ in range(20)] == list(range(0, 40, 2))
    results.close()
    assert reference() is None, "a map whose items were all taken keeps the lease"
    assert list(ended) == [0, 2, 4]


def test_closed_map_keeps_no_results(platform):
    with platform.lease(wait=60) as lease:
        results = lease.map(double, range(4), chunksize=1)
        assert next(results) == 0
        chunks = [weakref.ref(chunk) for chunk in results._reading.job.chunks]
        results.close()
        # The first one must end before this call is sent.
        assert lease.submit(double, 1).result(60) == 2
        assert chunks[0]() is None


def test_lazy_map_whose_items_failed_keeps_no_lease(platform):
    def items():
        yield from range(2)
        raise KeyError("no more")

    lease = platform.lease(wait=60)
    reference, results = weakref.ref(lease), lease.map(double, items(), buffersize=2)
    del lease
    assert [next(results) for _ in range(2)] == [0, 2]
    assert reference() is None
    with pytest.raises(KeyError, match="no more"):
        next(results)


def test_calls_of_a_dropped_lease_are_executed(platform):
    ran = sublet.zeros(20)

    def runs(ran, n):
        ran[n] = 1

    lease = platform.lease(wait=60)
    for n in range(20):
        lease.submit(runs, ran, n)
    reference = weakref.ref(lease._dispatch)
    del lease
    assert ends(reference) and ran.sum() == 20


def test_interrupted_call_does_not_keep_a_dropped_lease(platform):
    lease = platform.lease(CORES, wait=60)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        flags = sublet.zeros(2)
        interrupt_when_executing(flags)
        assert raises(KeyboardInterrupt, lease.call, held, flags)
    finally:
        signal.signal(signal.SIGINT, before)
    del lease
    with platform.lease(CORES, wait=60):
        pass


def test_closed_leases_whose_workers_died_hold_no_descriptors(platform):
    def lose():
        with platform.lease(wait=60) as lease:
            loses_workers(lease)
            assert raises(sublet.WorkerDied, lease.call, os._exit, 1)

    lose()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        lose()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_end_of_the_interpreter_waits_for_calls_of_a_dropped_executor(platform):
    program = """
        import time, sublet
        def submit():
            executor = sublet.Executor(1, wait=60)
            executor.submit(time.sleep, 0.3)
            executor.submit(sum, [1, 2, 3]).add_done_callback(lambda future: print("done", future.result(), flush=True))
        submit()
    """
    environment = dict(os.environ, SUBLET_MANAGER=platform.managers)
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done 6\n", "")
