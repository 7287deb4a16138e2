"""Maps: a call for each item, whose results are read in the items' order.

Three parts. The source gives items. The job holds those that were taken from it until workers get them, a chunk at a time. The
results are what the caller iterates over, and the only one that takes items: in the caller's own thread, because what a source does
is the caller's affair. How many are taken before their results are read is bounded, unless they are in memory already.
"""

import asyncio
import collections
import time
from collections.abc import Sized
from concurrent.futures import CancelledError, TimeoutError

from . import _errors
from ._calls import MAP, Order
from ._future import Future

# Number of calls that each worker has: one that it executes, and the next one.
EACH = 2
# Intended duration of a chunk of a map, in seconds: long compared with a call, and too short for a caller to notice.
CHUNK_SECONDS = 0.002
# A source that takes longer for an item, in seconds, is not asked for more while there are results to be read.
SLOW_SECONDS = 0.01
# Maximum wait for a call that another thread collects, in seconds, before a map on an event loop checks again.
TICK = 0.1


class Chunk(Future):
    """Some results of a map."""

    def __init__(self, job, count):
        super().__init__()
        self._job, self._count = job, count

    def _end(self, result, exception):
        job, self._job = self._job, None
        if exception is None and job is not None:
            if self._is_answer(result):
                results, _, seconds = result
                job.took(len(results), seconds)
            else:
                result, exception = None, _errors.Error("a worker answered a map with something else than its results", "protocol", 52)
        super()._end(result, exception)

    def _is_answer(self, result):
        """Whether it has a result for each item, or an exception after fewer. A worker that is not trusted may answer anything."""
        if type(result) is not tuple or len(result) != 3 or type(result[0]) is not list:
            return False
        results, raised, seconds = result
        is_time = seconds is None or (type(seconds) is float and 0 <= seconds < float("inf"))
        return is_time and (len(results) == self._count if raised is None else len(results) < self._count)


class Job:
    """Items of a map that wait to be sent, in chunks that are cut when there is a worker for them; and the chunks that were sent."""

    def __init__(self, known, chunksize, options, dispatch):
        self._known = known
        self._options = options
        self._fixed = chunksize
        self._seconds_each = None
        self._dispatch = dispatch
        self._items = collections.deque()
        # Whether the dispatch has it among those that wait. Changed under the dispatch's lock.
        self.is_waiting = False
        self.chunks = collections.deque()
        self.failure = None
        # Whether no items come after those that are here.
        self.is_complete = False

    # Methods that the results call.

    def offer(self, items):
        """Takes further items to be sent."""
        self._items.extend(items)
        self._dispatch.add(self)

    def advance(self, timeout):
        """Waits until a chunk may have been sent."""
        self._dispatch.advance(timeout)

    def read(self, chunk):
        """The results of a chunk that has ended, and what was raised after them."""
        results, raised, _ = chunk.result()
        return results, None if raised is None else self._known.origin.rebuilt(raised)

    def ahead(self):
        """Returns how many items keep all workers busy."""
        return 2 * EACH * self._dispatch.workers * self._wanted()

    def stop(self):
        """Drops all that no worker has. Takes no lock: a garbage collection may call this wherever it interrupts a thread."""
        self._items.clear()
        self.chunks.clear()

    # Methods that the dispatch calls.

    def wait_in(self, dispatch):
        """The dispatch is to send it: says whether it must be put among those that wait."""
        is_new, self.is_waiting = not self.is_waiting, True
        return is_new

    def take(self, waiting):
        items = []
        try:
            for _ in range(self._size()):
                items.append(self._items.popleft())
        except IndexError:
            # They are all taken, or were dropped just now.
            pass
        if not self._items:
            waiting.popleft()
            self.is_waiting = False
        if not items:
            return None
        chunk = Chunk(self, len(items))
        self.chunks.append(chunk)
        return Order(self._known, MAP, items, self._options, chunk)

    def is_of(self, future):
        return False

    def cancel(self):
        self.fail(CancelledError)

    def fail(self, make_error):
        self.failure = self.failure or make_error
        self.is_waiting = False
        self._items.clear()

    def took(self, count, seconds):
        """Items took so long: the next chunks are cut by that."""
        if count and seconds is not None:
            each = max(seconds / count, 1e-7)
            known = self._seconds_each
            self._seconds_each = each if known is None else 0.5 * (known + each)

    def _wanted(self):
        if self._fixed is not None:
            return self._fixed
        return 1 if self._seconds_each is None else max(1, int(CHUNK_SECONDS / self._seconds_each))

    def _size(self):
        if self._fixed is not None:
            return self._fixed
        # Towards the end they are smaller, so that all workers end together.
        parts = 2 * EACH if self.is_complete else 1
        fair = max(1, len(self._items) // (parts * self._dispatch.workers))
        return min(self._wanted(), fair)


class BytesJob:
    """The same for functions that are not in Python: a call for each item, which is sent at once."""

    failure = None
    is_complete = False

    def __init__(self, submit, workers):
        self._submit = submit
        self._workers = workers
        self.chunks = collections.deque()

    def offer(self, items):
        for arguments in items:
            self.chunks.append(self._submit(arguments))

    def advance(self, timeout):
        pass

    def read(self, chunk):
        return [chunk.result()], None

    def ahead(self):
        return 2 * EACH * self._workers

    def stop(self):
        self.chunks.clear()


class Source:
    """The arguments of each call of a map, from iterables that are taken in step."""

    def __init__(self, iterables, is_star=False):
        #: Whether items can only be awaited.
        self.is_async = any(hasattr(iterable, "__aiter__") for iterable in iterables)
        #: Whether the items are in memory already, or are known to end at least.
        self.is_sized = not self.is_async and any(isinstance(iterable, Sized) for iterable in iterables)
        self.is_exhausted = False
        #: Whether the items that were taken last took long.
        self.is_slow = False
        #: Time to wait for a result before a slow source, which may block, is asked for more, in seconds.
        self.patience = 0.0
        if self.is_async:
            self._iterators = [each.__aiter__() if hasattr(each, "__aiter__") else iter(each) for each in iterables]
            self._is_star = is_star
            self._taken = []
        else:
            self._iterator = map(tuple, iterables[0]) if is_star else zip(*iterables)

    def take_all(self):
        """All items that are left."""
        self.is_exhausted = True
        return list(self._iterator)

    def take(self, count):
        """Items, at most this many; fewer if the source ends or is slow."""
        taken, begun, elapsed = [], time.monotonic(), 0.0
        while len(taken) < count and elapsed <= SLOW_SECONDS:
            try:
                taken.append(next(self._iterator))
            except StopIteration:
                self.is_exhausted = True
                break
            elapsed = time.monotonic() - begun
        self._judge(elapsed, len(taken))
        return taken

    def _judge(self, elapsed, count):
        self.is_slow = elapsed > SLOW_SECONDS * count
        self.patience = elapsed / 4

    async def take_async(self, count):
        """Takes items as `take`, also from asynchronous iterables. A caller that stops waiting loses no items."""
        begun, elapsed = time.monotonic(), 0.0
        while len(self._taken) < count and elapsed <= SLOW_SECONDS:
            arguments = await self._next_async()
            if arguments is None:
                self.is_exhausted = True
                break
            self._taken.append(arguments)
            elapsed = time.monotonic() - begun
        taken, self._taken = self._taken, []
        self._judge(elapsed, len(taken))
        return taken

    async def _next_async(self):
        arguments = []
        for iterator in self._iterators:
            try:
                arguments.append(await iterator.__anext__() if hasattr(iterator, "__anext__") else next(iterator))
            except (StopIteration, StopAsyncIteration):
                return None
        return tuple(arguments[0]) if self._is_star else tuple(arguments)


class _Reading:
    """Takes items from a source, offers them to a job, and reads its results."""

    def __init__(self, source, job, limit, until):
        self.source = source
        self.job = job
        # Maximum number of items that are taken and whose results were not read; None if the job decides.
        self._limit = limit
        # Latest time for results, by the monotonic clock; None if there is no limit.
        self._until = until
        self._taken = self._given = 0
        # Results of the chunk that is being read, in reverse order.
        self._results = []
        # Exception that is raised after the remaining results.
        self._error = None
        # Whether a result was waited for since items were taken last.
        self._has_waited = False
        self._is_closed = False
        #: The lease, which stays open until all items were taken.
        self.lease = None

    def begin(self, lease, is_eager):
        """Takes the first items."""
        if is_eager:
            self._offer(self.source.take_all())
            return
        self.lease = lease
        while not self.source.is_async and self._room() > 0 and not self.source.is_exhausted:
            self._offer(self.source.take(self._room()))
            if self._limit is None:
                break

    def _most(self):
        return self.job.ahead() if self._limit is None else self._limit

    def _room(self):
        return self._most() - (self._taken - self._given)

    def _offer(self, items):
        self._has_waited = False
        self.job.is_complete = self.source.is_exhausted
        if items:
            self.job.offer(items)
            self._taken += len(items)
        if self.source.is_exhausted:
            self.lease = None

    def _may_take(self):
        # If there may be many items, a chunk is cut of those that were taken, so they are not taken one by one.
        return not self.source.is_exhausted and self._room() >= max(1, self._most() // 4)

    def _wants_items(self):
        # A slow source would delay results that exist already, or soon.
        is_patient = self.source.is_slow and self._given < self._taken and not self._has_waited
        return self._may_take() and not is_patient

    def _has_chunk(self):
        chunks = self.job.chunks
        return bool(chunks) and chunks[0].done()

    def _fail(self, error):
        """The source, or the job, gives no more items: results of those before come first."""
        self._error = error
        self.source.is_exhausted = True
        self.lease = None

    def _check(self):
        """Whether there is a result to wait for. Raises what comes after the last one."""
        if self._is_closed:
            return False
        if self._given == self._taken:
            if self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    # Its traceback refers to this frame.
                    del error
            return not self.source.is_exhausted
        if self.job.failure is not None and not self.job.chunks:
            raise self.job.failure()
        return True

    def _receive(self):
        """Reads the first chunk, which has ended."""
        results, raised = self.job.read(self.job.chunks.popleft())
        results.reverse()
        self._results = results
        if raised is not None:
            self._taken = self._given + len(results)
            self._fail(raised)

    def _next(self):
        self._given += 1
        return self._results.pop()

    def _left(self):
        """Returns the time to wait for a result, in seconds; None if there is no limit.

        Raises `TimeoutError` if no time is left.
        """
        left = None if self._until is None else self._until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError()
        if self.source.is_slow and self._may_take():
            self._has_waited = True
            return self.source.patience if left is None else min(left, self.source.patience)
        return left

    def _wait(self):
        """Waits until a chunk has ended, or may have been sent, or there is another thing to do."""
        left, chunks = self._left(), self.job.chunks
        if chunks:
            chunks[0]._await(left)
        else:
            self.job.advance(left)

    async def _wait_async(self):
        """Waits as the blocking method does, while the event loop does its other work."""
        left, chunks = self._left(), self.job.chunks
        loop = asyncio.get_running_loop()
        if not chunks:
            # Workers have other calls first.
            await loop.run_in_executor(None, self.job.advance, TICK if left is None else min(left, TICK))
            return
        ended = loop.create_future()
        chunks[0].add_done_callback(lambda _: _wake(loop, ended))
        await asyncio.wait([ended], timeout=left)

    def results(self):
        """Iterator over the results, in the order of the items."""
        try:
            while True:
                if self._wants_items():
                    try:
                        self._offer(self.source.take(self._room()))
                    except Exception as error:
                        self._fail(error)
                if self._results:
                    yield self._next()
                elif not self._check():
                    return
                elif self._has_chunk():
                    self._receive()
                else:
                    self._wait()
        finally:
            self.close()

    async def next_async(self):
        """Returns the next result. A task that is cancelled while it waits may ask again."""
        try:
            while True:
                if self._wants_items():
                    try:
                        self._offer(await self._take_async())
                    except Exception as error:
                        self._fail(error)
                if self._results:
                    return self._next()
                if not self._check():
                    raise StopAsyncIteration
                if self._has_chunk():
                    self._receive()
                else:
                    await self._wait_async()
        except Exception:
            self.close()
            raise

    async def _take_async(self):
        if self.source.is_async:
            return await self.source.take_async(self._room())
        return self.source.take(self._room())

    def close(self):
        """Drops the rest."""
        self._is_closed = True
        self.lease = None
        self.source.is_exhausted = True
        self.job.stop()


class Results:
    """The results of a map, in the order of its items: an iterator, and an asynchronous one for event loops.

    If the caller drops or closes it after it has begun to read, calls are dropped that no worker has yet.
    """

    def __init__(self, reading):
        self._reading = reading
        # Made when the first result is asked for; closed when this is dropped.
        self._iterator = None
        self._is_async = False

    def __iter__(self):
        if self._reading.source.is_async:
            raise TypeError("an iterable of this map is asynchronous: read its results with async for")
        return self

    def __next__(self):
        if self._iterator is None:
            self._iterator = iter(self)._reading.results()
        return next(self._iterator)

    def __aiter__(self):
        return self

    def __anext__(self):
        self._is_async = True
        return self._reading.next_async()

    def close(self):
        """Drops the calls that no worker has yet."""
        if self._iterator is not None:
            self._iterator.close()
        self._reading.close()

    def __del__(self):
        if self._is_async:
            self._reading.close()


def results_of(source, job, limit=None, timeout=None, lease=None, is_eager=False):
    """Returns the results of a map, whose first items are taken at once.

    Args:
        source: Source of the items.
        job: Job that sends the items.
        limit: Maximum number of items that are taken and whose results were not read. With None the map takes enough
            items to keep the workers busy.
        timeout: Seconds from now after which reading raises `TimeoutError`.
        lease: Lease to keep open until all items were taken.
        is_eager: Whether all items are taken now.
    """
    reading = _Reading(source, job, limit, None if timeout is None else time.monotonic() + timeout)
    reading.begin(lease, is_eager)
    return Results(reading)


def _wake(loop, ended):
    def wake():
        if not ended.done():
            ended.set_result(None)

    try:
        loop.call_soon_threadsafe(wake)
    except RuntimeError:
        # The loop was closed, so no task waits any more.
        pass
