"""The executor, as programs use it that know `concurrent.futures`."""

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import sublet
from waiting import PATIENCE, held, until, with_growing_time


def double(x):
    return 2 * x


def test_submit_map_and_the_context(platform):
    with sublet.Executor(2, client=platform, wait=60) as executor:
        assert executor.submit(double, 4).result() == 8
        assert list(executor.map(double, range(100))) == list(range(0, 200, 2))
        last = executor.submit(double, 5)
    assert last.done() and last.result() == 10
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(double, 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.map(double, [1])


def test_as_completed_and_wait(executor):
    futures = [executor.submit(double, n) for n in range(50)]
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures, timeout=60)) == list(range(0, 100, 2))
    slow = [executor.submit(time.sleep, 0.2), executor.submit(double, 1)]
    done, _ = concurrent.futures.wait(slow, timeout=60, return_when=concurrent.futures.FIRST_COMPLETED)
    assert done
    done, pending = concurrent.futures.wait(slow, timeout=60)
    assert len(done) == 2 and not pending


def test_callbacks_are_called_once_with_the_future(executor):
    called = []
    future = executor.submit(double, 3)
    future.add_done_callback(called.append)
    assert future.result() == 6
    until(lambda: called, "the callback is called")
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_a_callback_is_called_though_nobody_waits(executor):
    told = threading.Event()
    executor.submit(double, 3).add_done_callback(lambda future: told.set())
    assert told.wait(PATIENCE)


def test_what_waits_can_be_cancelled(executor):
    flags = sublet.zeros(2)
    busy = [executor.submit(held, flags) for _ in range(4)]
    waiting = [executor.submit(double, n) for n in range(10)]
    assert waiting[5].cancel() and waiting[5].cancelled()
    assert not busy[0].cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        waiting[5].result()
    flags[1] = 1
    assert concurrent.futures.wait(waiting, timeout=60).not_done == set()
    assert [f.result() for f in waiting[:5]] == [0, 2, 4, 6, 8]


def test_what_was_cancelled_is_not_executed_and_told_to_those_who_wait(executor):
    ran = sublet.zeros(2)

    def runs(ran, number):
        ran[number] = 1

    flags = sublet.zeros(2)
    busy = [executor.submit(held, flags) for _ in range(4)]
    one, other = executor.submit(runs, ran, 0), executor.submit(runs, ran, 1)
    threading.Timer(0.1, one.cancel).start()
    assert concurrent.futures.wait([one], timeout=PATIENCE).done == {one} and one.cancelled()
    flags[1] = 1
    assert other.result(PATIENCE) is None and all(f.result(PATIENCE) is None for f in busy)
    assert executor.submit(double, 1).result(PATIENCE) == 2
    assert ran.tolist() == [0, 1]


class Cancels:
    """Is pickled when its call is being sent, and cancels that."""

    def __reduce__(self):
        self.future.cancel()
        return int, (3,)


def test_what_is_cancelled_while_it_is_sent_stays_cancelled(executor, caplog):
    flags = sublet.zeros(2)
    busy = [executor.submit(held, flags) for _ in range(4)]
    cancels = Cancels()
    cancels.future = executor.submit(double, cancels)
    after = [executor.submit(double, n) for n in range(10)]
    flags[1] = 1
    assert [f.result(PATIENCE) for f in busy + after] == [None] * 4 + [2 * n for n in range(10)]
    executor.shutdown()
    assert cancels.future.cancelled() and not caplog.records


def test_shutdown_may_cancel_what_waits(platform):
    executor = sublet.Executor(1, client=platform, wait=60)
    flags = sublet.zeros(2)
    busy = executor.submit(held, flags)
    waiting = [executor.submit(double, n) for n in range(20)]

    def end():
        until(waiting[-1].cancelled, "the last call is cancelled")
        flags[1] = 1

    threading.Thread(target=end, daemon=True).start()
    executor.shutdown(cancel_futures=True)
    assert busy.result() is None
    assert all(f.done() for f in waiting) and waiting[-1].cancelled()


def test_shutdown_may_cancel_what_waits_for_others(platform):
    executor = sublet.Executor(1, client=platform, wait=60)
    elsewhere = concurrent.futures.Future()
    waits = executor.submit(double, elsewhere)
    executor.shutdown(wait=False, cancel_futures=True)
    try:
        assert waits.cancelled()
    finally:
        elsewhere.set_result(1)


def test_shutdown_that_does_not_wait_loses_nothing(platform):
    executor = sublet.Executor(1, client=platform, wait=60)
    results = executor.map(abs, range(-5, 5))
    last = executor.submit(double, 21)
    executor.shutdown(wait=False)
    assert list(results) == [abs(n) for n in range(-5, 5)]
    assert last.result(PATIENCE) == 42
    # The cores are free although the executor is still referred to.
    with platform.lease(len(os.sched_getaffinity(0)), wait=60):
        assert executor is not None


@pytest.mark.parametrize("name", ["terminate_workers", "kill_workers"])
def test_workers_may_be_terminated(platform, name):
    executor = sublet.Executor(1, client=platform, wait=60)
    begun = sublet.zeros(1)
    running = executor.submit(begin_and_sleep, begun)
    waiting = [executor.submit(double, n) for n in range(20)]
    until(lambda: begun[0], "the call executes")
    getattr(executor, name)()
    with pytest.raises(concurrent.futures.process.BrokenProcessPool, match="terminated"):
        running.result(60)
    assert waiting[-1].cancelled() and all(isinstance(f.exception(60), concurrent.futures.BrokenExecutor) for f in waiting if not f.cancelled())
    with pytest.raises(concurrent.futures.process.BrokenProcessPool, match="terminated"):
        executor.submit(double, 1)
    executor.shutdown()
    getattr(executor, name)()


def test_outcome_of_a_future_does_not_change():
    for is_waited_for in (False, True):
        future = sublet.Future()
        if is_waited_for:
            future.add_done_callback(lambda future: None)
        future._end(None, ValueError("first"))
        future._end(1, None)
        with pytest.raises(ValueError, match="first"):
            future.result()


def begin_and_sleep(begun):
    begun[0] = 1
    time.sleep(3600)


def test_timeouts_leave_the_call_alone(executor):
    flags, ended = sublet.zeros(2), sublet.ones(2)
    future = executor.submit(held, flags)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(timeout=0.05)
    with pytest.raises(concurrent.futures.TimeoutError):
        list(executor.map(held, [ended, ended, flags], timeout=0.3, chunksize=1))
    flags[1] = 1
    assert future.result() is None


def exit_when_told(flag):
    while not flag[0]:
        time.sleep(0.001)
    os._exit(1)


def test_a_worker_that_dies_breaks_the_executor(platform):
    executor = sublet.Executor(1, client=platform, wait=60)
    flag = sublet.zeros(1)
    dead = executor.submit(exit_when_told, flag)
    after = [executor.submit(double, n) for n in range(5)]
    flag[0] = 1
    with pytest.raises(concurrent.futures.BrokenExecutor):
        dead.result()
    with pytest.raises(concurrent.futures.process.BrokenProcessPool):
        executor.submit(double, 1)
    assert all(isinstance(f.exception(), (concurrent.futures.BrokenExecutor, type(None))) for f in after)
    executor.shutdown()


def test_a_worker_that_dies_ends_what_waits(platform):
    executor = sublet.Executor(1, client=platform, wait=60)
    flag = sublet.zeros(1)
    dead = executor.submit(exit_when_told, flag)
    after = [executor.submit(time.sleep, 0.01) for _ in range(20)]
    flag[0] = 1
    with pytest.raises(concurrent.futures.BrokenExecutor):
        dead.result(60)
    assert isinstance(after[-1].exception(60), concurrent.futures.BrokenExecutor)
    executor.shutdown()


def test_the_end_of_its_lease_breaks_the_executor(platform):
    def leased(seconds):
        try:
            executor = sublet.Executor(1, client=platform, timeout=seconds, wait=60)
            return executor if executor.submit(double, 1).result(PATIENCE) == 2 else None
        except (sublet.Error, concurrent.futures.BrokenExecutor):
            return None

    executor = with_growing_time(1, leased)
    with pytest.raises(concurrent.futures.BrokenExecutor):
        while True:
            executor.submit(time.sleep, 0.1).result(PATIENCE)
    executor.shutdown()


def test_an_initializer_that_fails_breaks_the_executor(platform, caplog):
    def fails():
        raise ValueError("not today")

    with sublet.Executor(1, client=platform, initializer=fails, wait=60) as executor:
        with pytest.raises(concurrent.futures.BrokenExecutor, match="not today"):
            executor.submit(double, 1).result()
        with pytest.raises(concurrent.futures.BrokenExecutor):
            executor.submit(double, 1)
    assert "Exception in initializer:" in caplog.text and "not today" in caplog.text


def test_what_makes_no_sense_is_refused(platform):
    with pytest.raises(ValueError):
        sublet.Executor(0, client=platform)
    with pytest.raises(TypeError):
        sublet.Executor(1, client=platform, initializer=5)


def test_fewer_workers_than_none_are_refused(platform):
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="max_workers"):
            sublet.Executor(wrong, client=platform)


def test_asyncio(executor):
    async def main():
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(executor, double, 4) == 8
        assert await executor.submit(double, 5) == 10
        assert await asyncio.gather(*(executor.submit(double, n) for n in range(20))) == list(range(0, 40, 2))
        with pytest.raises(ZeroDivisionError):
            await executor.submit(lambda: 1 / 0)

    asyncio.run(main())


def test_threads_share_an_executor(executor):
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        sums = list(threads.map(lambda n: sum(executor.map(double, range(n))), range(50)))
    assert sums == [n * (n - 1) for n in range(50)]


def test_very_many_futures_are_bounded_and_all_come(executor, monkeypatch):
    from sublet import _dispatch

    monkeypatch.setattr(_dispatch, "MOST_WAITING", 1000)
    futures, most = [], (0, 0)
    for n in range(20_000):
        futures.append(executor.submit(double, n))
        most = tuple(map(max, most, executor.lease._dispatch.counts()))
    assert most[0] <= 4 and most[1] <= 1000, "calls with workers, and calls that wait"
    assert sum(f.result() for f in futures) == 20_000 * 19_999


def test_futures_as_arguments_make_a_workflow(executor):
    first = executor.submit(double, 3)
    second = executor.submit(pow, executor.submit(double, 1), first)
    third = executor.submit(lambda a, b=0: a + b, second, b=first)
    assert third.result(PATIENCE) == 2**6 + 6
    failed = executor.submit(double, executor.submit(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        failed.result(PATIENCE)
    elsewhere = concurrent.futures.Future()
    waits = executor.submit(double, elsewhere)
    assert not waits.done()
    elsewhere.set_result(21)
    assert waits.result(PATIENCE) == 42


def test_shutdown_waits_for_what_waits_for_others(platform):
    with sublet.Executor(1, client=platform, wait=60) as executor:
        slow = executor.submit(lambda: __import__("time").sleep(0.3) or 5)
        last = executor.submit(double, slow)
    assert last.done() and last.result() == 10


def test_shutdown_waits_for_what_waits_for_others_elsewhere(platform):
    elsewhere = concurrent.futures.Future()
    threading.Timer(0.5, elsewhere.set_result, (21,)).start()
    with sublet.Executor(1, client=platform, wait=60) as executor:
        waits = executor.submit(double, elsewhere)
    assert waits.result(0) == 42


def run(program, **more):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=600, **more)


def test_the_end_of_the_interpreter_waits_for_what_was_submitted(platform):
    program = """
        import sublet
        executor = sublet.Executor(1, wait=60)
        future = executor.submit(sum, [1, 2, 3])
        future.add_done_callback(lambda f: print("done", f.result(), flush=True))
    """
    environment = dict(os.environ, SUBLET_MANAGER=platform.managers)
    ended = run(program, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done 6\n", "")


def test_the_end_of_the_interpreter_waits_for_all_that_was_submitted(platform):
    program = """
        import time, sublet
        executor = sublet.Executor(1, wait=60)
        futures = [executor.submit(time.sleep, 0.05) for _ in range(10)]
        futures[-1].add_done_callback(lambda f: print("done", f.cancelled(), flush=True))
    """
    ended = run(program, env=dict(os.environ, SUBLET_MANAGER=platform.managers))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done False\n", "")


def test_an_interpreter_that_ends_without_closing_leaves_nothing(platform):
    program = """
        import sublet
        lease = sublet.lease(wait=60)
        futures = [lease.submit(sum, [1, 2]) for _ in range(100)]
        array = sublet.zeros(1 << 20)
    """
    ended = run(program, env=dict(os.environ, SUBLET_MANAGER=platform.managers))
    assert (ended.returncode, ended.stderr) == (0, "")
    with platform.lease(2, wait=60):
        pass


def test_a_platform_of_a_program_ends_however_that_ends():
    program = """
        import os, signal, sublet
        platform = sublet.local(memory="256MiB")
        platform.start()
        print(platform._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    pid = int(run(program).stdout)

    def is_there():
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return ") Z " not in stat.read()
        except FileNotFoundError:
            return False

    until(lambda: not is_there(), "the platform ends")


def test_a_child_that_was_forked_has_nothing_of_its_parents(lease):
    # So large that its pages would go back to the machine with it.
    array = sublet.full(64 << 20, 3, dtype="u1")
    assert lease.call(double, 1) == 2
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no error"
        try:
            lease.call(double, 1)
        except sublet.Error as error:
            said = str(error)
        del array, lease
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert "forked" in pipe.read()
    os.waitpid(child, 0)
    assert array.min() == 3
    assert lease.call(double, 2) == 4


def test_a_forked_child_that_ends_as_programs_do_leaves_its_parents_leases(platform):
    program = """
        import os, sys, sublet
        lease = sublet.lease(wait=60)
        print(lease.call(abs, -1), flush=True)
        child = os.fork()
        if child == 0:
            sys.exit()
        os.waitpid(child, 0)
        print(lease.call(abs, -5), flush=True)
        lease.close()
    """
    # From Python 3.12 on os.fork warns of threads, of which each process that leases has one.
    environment = dict(os.environ, SUBLET_MANAGER=platform.managers, PYTHONWARNINGS="ignore::DeprecationWarning")
    ended = run(program, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "1\n5\n", "")


def test_a_forked_child_cannot_lease_and_gets_the_reason(platform):
    program = """
        import os, sublet
        client = sublet.default_client()
        with client.lease(wait=60) as lease:
            lease.call(abs, -1)

        if os.fork() == 0:
            for use in (client.lease, sublet.lease, sublet.Client):
                try:
                    use()
                except sublet.Error as error:
                    print("forked" in str(error), flush=True)
            os._exit(0)
        os.wait()
    """
    ended = run(program, env=dict(os.environ, SUBLET_MANAGER=platform.managers))
    assert (ended.returncode, ended.stdout) == (0, "True\n" * 3)


def test_children_of_multiprocessing_leave_the_executor_alone(executor):
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.join()
    assert executor.submit(double, 4).result() == 8


def test_a_callback_may_wait_for_a_thread_that_submits(executor):
    lock, entered = threading.Lock(), threading.Event()
    busy = [executor.submit(time.sleep, 0.2) for _ in range(4)]
    failing = executor.submit(double, threading.Lock())

    def called(future):
        entered.set()
        with lock:
            pass

    def submits():
        with lock:
            entered.wait(10)
            return executor.submit(double, 5).result(PATIENCE)

    failing.add_done_callback(called)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert threads.submit(submits).result(60) == 10
    assert isinstance(failing.exception(PATIENCE), TypeError) and all(f.result() is None for f in busy)


class Ends:
    def __reduce__(self):
        return sys.exit, (3,)


def test_a_result_that_cannot_be_read_is_its_futures_error(executor):
    future = executor.submit(Ends)
    for _ in range(2):
        with pytest.raises(SystemExit):
            future.result()
    assert executor.submit(double, 1).result() == 2


def test_an_interrupt_ends_a_map(platform):
    program = """
        import os, signal, threading, time, sublet
        # A process that a shell has started in the background ignores it.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        ran = sublet.zeros(1)

        def nap(ran):
            ran[0] += 1
            time.sleep(0.2)

        def interrupt():
            while not ran[0]:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        with sublet.Executor(1, wait=60) as executor:
            try:
                list(executor.map(nap, [ran] * 1000))
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        print(ran[0] < 1000)
    """
    ended = run(program, env=dict(os.environ, SUBLET_MANAGER=platform.managers))
    assert ended.stdout == "interrupted\nTrue\n", ended.stderr
