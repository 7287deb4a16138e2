"""Maps whose items are taken as they are needed: of iterables that are endless, slow or asynchronous."""

import asyncio
import itertools
import threading
import time

import pytest

import sublet
from sublet import _map
from waiting import PATIENCE, held, with_growing_time


def double(x):
    return 2 * x


class Counted:
    """An endless iterator that knows how many items were taken."""

    def __init__(self, most=None):
        self.taken = 0
        self._most = most

    def __iter__(self):
        return self

    def __next__(self):
        if self.taken == self._most:
            raise StopIteration
        self.taken += 1
        return self.taken - 1


def run_and_stay(ran, flags, n):
    """Notes that it was executed. The first returns, and the others after their flag is set."""
    ran[n] = 1
    if n > 0:
        held(flags)


async def numbers(count):
    for n in range(count):
        await asyncio.sleep(0)
        yield n


@pytest.fixture(params=["lease", "executor"])
def mapping(request, platform):
    """The method `map` of a lease, and of an executor."""
    made = platform.lease(2, wait=60) if request.param == "lease" else sublet.Executor(2, client=platform, wait=60)
    with made:
        yield made.map


@pytest.mark.parametrize("buffersize", [1, 4, 1000])
def test_buffersize_bounds_items_without_results(mapping, buffersize):
    items = Counted()
    results = mapping(double, items, buffersize=buffersize)
    assert items.taken == buffersize
    for n in range(2 * buffersize + 3):
        assert next(results) == 2 * n
        assert items.taken - n <= buffersize + 1
    results.close()


def test_buffersize_counts_chunks_where_their_size_is_said(mapping):
    items = Counted()
    results = mapping(double, items, buffersize=2, chunksize=3)
    assert items.taken == 6
    assert list(itertools.islice(results, 20)) == list(range(0, 40, 2))


def test_buffersize_covers_several_iterables_and_shorter_ones(mapping):
    assert list(mapping(pow, [2, 3], itertools.count(1), buffersize=5)) == [2, 9]
    assert list(mapping(double, range(3), buffersize=10)) == [0, 2, 4]
    assert list(mapping(double, buffersize=2)) == []


@pytest.mark.parametrize("wrong, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError)])
def test_rejects_invalid_buffersize(mapping, wrong, error):
    with pytest.raises(error, match="buffersize"):
        mapping(double, [1], buffersize=wrong)


def test_items_of_a_full_buffer_are_executed_before_shutdown_returns(platform):
    items, ran = Counted(), sublet.zeros(10)

    def runs(ran, n):
        ran[n] = 1

    executor = sublet.Executor(2, client=platform, wait=60)
    results = executor.map(runs, itertools.repeat(ran), items, buffersize=4)
    executor.shutdown()
    assert items.taken == 4 and ran.sum() == 4
    assert [next(results) for _ in range(4)] == [None] * 4
    with pytest.raises(RuntimeError, match="after shutdown"):
        next(results)


def test_endless_iterable_of_a_lease_needs_no_buffersize(lease):
    items = Counted()
    results = lease.map(double, items)
    assert [next(results) for _ in range(5000)] == list(range(0, 10_000, 2))
    assert items.taken < 200_000
    results.close()
    taken = items.taken
    assert lease.call(double, 1) == 2 and items.taken == taken


def test_iterable_with_a_length_is_taken_at_once(platform):
    with platform.lease(2, wait=60) as lease:
        results = lease.map(double, range(1000))
    assert list(results) == list(range(0, 2000, 2))


def test_executor_without_buffersize_takes_all_items_at_once(platform):
    items = Counted(500)
    with sublet.Executor(2, client=platform, wait=60) as executor:
        results = executor.map(double, items)
        assert items.taken == 500
    assert list(results) == list(range(0, 1000, 2))


def test_results_come_before_a_slow_iterable_goes_on(lease):
    asked, goes_on = threading.Event(), threading.Event()

    def slow():
        for n in range(3):
            time.sleep(0.05)
            yield n
        asked.set()
        assert goes_on.wait(60)
        yield 3

    # The worker is there before the items are.
    assert lease.call(double, 1) == 2
    results = lease.map(double, slow())
    assert [next(results) for _ in range(2)] == [0, 2]
    threading.Timer(0.2, goes_on.set).start()
    assert list(results) == [4, 6]


def test_source_with_a_slow_item_gives_it_alone_and_lets_results_come_first():
    source = _map.Source([(n for n in range(3) if time.sleep(0.05) is None)])
    assert source.take(3) == [(0,)]
    assert source.is_slow and source.patience >= 0.05 / 4


def test_slow_iterable_is_asked_while_calls_run(platform):
    ran = sublet.zeros(2)

    def meets(ran, n):
        ran[n] = 1
        deadline = time.monotonic() + 180
        while not ran[1 - n] and time.monotonic() < deadline:
            time.sleep(0.001)
        return bool(ran[1 - n])

    def slow():
        for n in range(2):
            time.sleep(0.05)
            yield ran, n

    with platform.lease(2, wait=60) as lease:
        assert list(lease.starmap(meets, slow())) == [True, True]


def test_slow_iterable_is_asked_at_once_when_all_results_are_read(lease, monkeypatch):
    def slow():
        for n in range(3):
            time.sleep(0.05)
            yield n

    assert lease.call(double, 1) == 2
    waits, advance = [], lease._dispatch.advance
    monkeypatch.setattr(lease._dispatch, "advance", lambda timeout: waits.append(timeout) or advance(timeout))

    def reads_without_waiting():
        waits.clear()
        assert list(lease.map(double, slow())) == [0, 2, 4]
        return waits == []

    # On a machine that stands still, results may come later than items.
    assert any(reads_without_waiting() for _ in range(10))


def test_what_an_iterable_raises_comes_after_the_results_before_it(mapping):
    def fails():
        yield from range(5)
        raise KeyError("no more")

    results, got = mapping(double, fails(), buffersize=2), []
    with pytest.raises(KeyError, match="no more"):
        for result in results:
            got.append(result)
    assert got == [0, 2, 4, 6, 8]


def test_what_a_function_raises_ends_a_lazy_map_in_its_place(mapping):
    results, got = mapping(lambda n: 1 // (n - 20), Counted(), buffersize=8), []
    with pytest.raises(ZeroDivisionError):
        for result in results:
            got.append(result)
    assert got == [1 // (n - 20) for n in range(20)]
    assert list(results) == []


def test_iterables_are_read_in_the_thread_that_reads_results(mapping):
    threads = set()

    def items():
        for n in range(100):
            threads.add(threading.current_thread())
            yield n

    assert list(mapping(double, items(), buffersize=3)) == list(range(0, 200, 2))
    assert threads == {threading.current_thread()}


def test_lazy_starmap(lease):
    pairs = ((n, 2) for n in itertools.count())
    results = lease.options(timeout=60).starmap(pow, pairs, buffersize=4)
    assert list(itertools.islice(results, 50)) == [n**2 for n in range(50)]


def test_timeout_of_a_lazy_map(lease):
    results = lease.map(time.sleep, itertools.chain([0, 0], itertools.repeat(2)), timeout=0.5, buffersize=2, chunksize=1)
    with pytest.raises(TimeoutError):
        list(results)


def test_event_loop_reads_results(mapping):
    async def main(seconds):
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.create_task(beat())
        assert [n async for n in mapping(double, range(100))] == list(range(0, 200, 2))
        results = mapping(lambda n: __import__("time").sleep(seconds) or n, Counted(), buffersize=3)
        assert [await results.__anext__() for _ in range(5)] == list(range(5))
        beating.cancel()
        return True if beats >= 5 else None

    assert with_growing_time(0.1, lambda seconds: asyncio.run(main(seconds))), "the event loop did nothing else"


def test_event_loop_reads_results_of_asynchronous_iterables(mapping):
    async def main():
        assert [n async for n in mapping(double, numbers(50))] == list(range(0, 100, 2))
        assert [n async for n in mapping(pow, numbers(50), itertools.repeat(2), buffersize=4)] == [n**2 for n in range(50)]
        results = mapping(double, numbers(1 << 60), buffersize=2)
        got = []
        async for n in results:
            got.append(n)
            if n == 20:
                break
        assert got == list(range(0, 22, 2))

    asyncio.run(main())


def test_event_loop_reads_results_before_a_slow_asynchronous_iterable_goes_on(lease):
    async def main():
        goes_on = asyncio.Event()

        async def slow():
            for n in range(3):
                await asyncio.sleep(0.05)
                yield n
            await goes_on.wait()
            yield 3

        results = lease.map(double, slow())
        assert [await asyncio.wait_for(results.__anext__(), PATIENCE) for _ in range(2)] == [0, 2]
        goes_on.set()
        assert [n async for n in results] == [4, 6]

    assert lease.call(double, 1) == 2
    asyncio.run(main())


def test_cancelled_wait_of_an_event_loop_loses_no_item(lease):
    async def main():
        goes_on = asyncio.Event()

        class Items:
            def __init__(self):
                self.taken = 0

            def __aiter__(self):
                return self

            async def __anext__(self):
                if self.taken == 2:
                    await goes_on.wait()
                if self.taken == 4:
                    raise StopAsyncIteration
                self.taken += 1
                return self.taken - 1

        results = lease.map(double, Items())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(results.__anext__(), 0.05)
        goes_on.set()
        return [n async for n in results]

    assert asyncio.run(main()) == [0, 2, 4, 6]


def test_rejects_a_plain_loop_over_an_asynchronous_iterable(lease):
    results = lease.map(double, numbers(3))
    for read in (iter, next, list):
        with pytest.raises(TypeError, match="async for"):
            read(results)


def test_cancelled_wait_of_an_event_loop_loses_no_result(lease):
    async def main():
        flags = sublet.zeros(2)
        results = lease.starmap(held, [(flags, 1), (flags, 2)], chunksize=1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(results.__anext__(), 0.02)
        flags[1] = 1
        return [n async for n in results]

    assert asyncio.run(main()) == [1, 2]


def test_results_that_an_event_loop_drops_drop_waiting_calls(lease):
    ran, flags = sublet.zeros(500), sublet.zeros(2)

    async def main():
        results = lease.starmap(run_and_stay, [(ran, flags, n) for n in range(500)], chunksize=1)
        await results.__anext__()

    asyncio.run(main())
    flags[1] = 1
    # This call comes after the calls of the map that are still waiting.
    assert lease.submit(double, 1).result(60) == 2
    assert 1 <= ran.sum() < 250


def test_closed_map_takes_no_items_and_has_no_results(mapping):
    items = Counted()
    results = mapping(double, items, buffersize=4)
    results.close()
    assert items.taken == 4 and list(results) == []

    async def main():
        items = Counted()
        results = mapping(double, items, buffersize=4)
        assert await results.__anext__() == 0
        taken = items.taken
        results.close()
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(results.__anext__(), PATIENCE)
        assert items.taken == taken

    asyncio.run(main())


def test_failed_read_on_an_event_loop_drops_waiting_calls(lease):
    ran, flags = sublet.zeros(100), sublet.zeros(2)

    async def read(results):
        with pytest.raises(TimeoutError):
            async for _ in results:
                pass

    results = lease.starmap(run_and_stay, [(ran, flags, n) for n in range(100)], timeout=0.5, chunksize=1)
    asyncio.run(read(results))
    flags[1] = 1
    assert lease.submit(double, 1).result(60) == 2
    assert ran.sum() < 60
    results.close()


def test_results_that_are_dropped_drop_waiting_calls(lease):
    ran, flags = sublet.zeros(500), sublet.zeros(2)
    results = lease.starmap(run_and_stay, [(ran, flags, n) for n in range(500)], chunksize=1)
    next(results)
    del results
    flags[1] = 1
    # This call comes after the calls of the map that are still waiting.
    assert lease.submit(double, 1).result(60) == 2
    assert 1 <= ran.sum() < 250


def test_timeout_on_an_event_loop(lease):
    async def main():
        with pytest.raises(TimeoutError):
            async for _ in lease.map(held, [ended, flags], timeout=0.3, chunksize=1):
                pass

    flags, ended = sublet.zeros(2), sublet.ones(2)
    asyncio.run(main())
    flags[1] = 1
