"""Which calls are with the workers, and which wait to be sent.

There are few more with the workers than they have cores, so that others can still be cancelled, and go to whoever is idle. Nobody
need look for the next one to be sent: whoever collects a result sends it; and while any wait, the background thread collects.
"""

import collections
import concurrent.futures
import itertools
import threading
import time
from concurrent.futures import CancelledError, TimeoutError
from concurrent.futures._base import PENDING
from typing import NamedTuple

from . import _rebuild
from ._calls import CALL, MAP, Known, SentObjects
from ._future import Future

# How many calls a worker is given: one that it executes, and one that it finds when that has ended.
EACH = 2
# Most calls that wait to be sent. Who submits more waits until there are fewer.
MOST_WAITING = 100_000
# What a chunk of a map is to take, in seconds: long beside a call, and short beside what one waits for.
CHUNK_SECONDS = 0.002


class Dispatch:
    """The calls of one lease."""

    def __init__(self, calls, workers):
        self._calls = calls
        self._window = EACH * workers
        self._workers = workers
        self._flying = {}
        # How many are just being sent.
        self._sending = 0
        self._kept = []
        # Futures that wait for others.
        self._after = set()
        self._waiting = collections.deque()
        # Of one thread, which may come again: what pickles a value may call anything.
        self._lock = threading.RLock()
        self.refusal = None
        # What an error of a call is to its caller.
        self.translate = None

    def resize(self, workers):
        """There are so many workers now."""
        self._workers = workers
        self._window = EACH * workers
        self.pump()

    def submit(self, known, arguments, options):
        """A future of one call."""
        future = Future()
        self._add(_Single(known, arguments, options, future))
        return future

    def submit_after(self, known, arguments, options, awaited):
        """The same, when the futures among its arguments have ended: with their results. If one has failed, so has this."""
        future = Future()
        future._owner = self
        left = itertools.count(len(awaited) - 1, -1)
        with self._lock:
            if self.refusal is not None:
                raise self.refusal()
            self._after.add(future)

        def ended(_):
            if next(left) > 0:
                return
            try:
                positional, named = arguments
                resolved = tuple(map(_result, positional)), {name: _result(value) for name, value in named.items()}
                if future._state == PENDING:
                    self._add(_Single(known, resolved, options, future), is_late=True)
            except BaseException as error:
                future._end(None, error)
            finally:
                self._after.discard(future)

        for other in awaited:
            other.add_done_callback(ended)
        return future

    def map(self, known, items, chunksize, options):
        """The results of a call with each of these arguments, a chunk at a time."""
        job = _Map(known, items, chunksize, options, self._workers)
        if items:
            self._add(job)
        return job

    def _add(self, job, is_late=False):
        while len(self._waiting) >= MOST_WAITING and not is_late:
            self.advance(None)
        with self._lock:
            if self.refusal is not None and not is_late:
                raise self.refusal()
            job.wait_in(self)
            self._waiting.append(job)
        self.pump()

    def pump(self):
        """Sends what can be sent. Nothing of the caller's is called under the lock: what is pickled, and callbacks, may wait for others."""
        while True:
            with self._lock:
                if not self._waiting or len(self._flying) + self._sending >= self._window:
                    watched = list(self._flying) if self._waiting else ()
                    break
                order = self._waiting[0].take(self._waiting)
                if order is None:
                    continue
                self._sending += 1
            try:
                self._send(order)
            finally:
                with self._lock:
                    self._sending -= 1
        for sent in watched:
            sent.watch()

    def _send(self, order):
        """Sends one call; an error is its future's."""
        future = order.target
        try:
            sent = SentObjects(self._calls, *order)
        except Exception as error:
            future._end(None, error)
            return
        future._begin(sent)
        with self._lock:
            self._flying[sent] = None
            if sent.is_ended:
                # By somebody who waited for the future.
                self._flying.pop(sent, None)

    def ended(self, sent):
        """A call has ended: there is room for another."""
        with self._lock:
            self._flying.pop(sent, None)
        if self._waiting:
            self.pump()

    def advance(self, timeout):
        """Waits until a call has ended, for the sake of one that waits to be sent. False if there is no time left."""
        if timeout is not None and timeout <= 0:
            return False
        with self._lock:
            flying = next(iter(self._flying), None)
        if flying is None:
            self.pump()
            if self._waiting:
                time.sleep(0.001)
        else:
            flying.collect(0.1 if timeout is None else min(timeout, 0.1))
        return True

    def keep(self, call):
        """Nobody waits for it any more, because of an interrupt. It is given up when it has ended: giving it up waits for that."""
        with self._lock:
            self._kept = [kept for kept in self._kept if not kept.done()]
            self._kept.append(call)

    def take_out(self, future):
        """It is to be cancelled."""
        with self._lock:
            for job in self._waiting:
                if job.is_of(future):
                    self._waiting.remove(job)
                    return

    def cancel(self):
        """Cancels whatever waits to be sent."""
        with self._lock:
            jobs, after = list(self._waiting), list(self._after)
            self._waiting.clear()
        for job in jobs:
            job.cancel()
        for future in after:
            future.cancel()

    def drain(self):
        """Waits until all calls have ended."""
        while True:
            with self._lock:
                flying, after = next(iter(self._flying), None), next(iter(self._after), None)
                if flying is None and not self._waiting and after is None and not self._sending:
                    return
            if flying is None and self._sending:
                time.sleep(0.001)
            elif flying is None and not self._waiting:
                # What it waits for may be another lease's.
                concurrent.futures.wait([after])
                self._after.discard(after)
            elif flying is None:
                self.pump()
            else:
                flying.collect(None)

    def refuse(self, refusal):
        """From now on nothing is taken."""
        with self._lock:
            if self.refusal is None:
                self.refusal = refusal

    def abandon(self, make_error):
        """Ends whatever has not ended, with an error."""
        with self._lock:
            jobs, flying, after = list(self._waiting), list(self._flying), list(self._after)
            self._waiting.clear()
            self._flying.clear()
        for sent in flying:
            sent.target._end(None, make_error())
        for job in jobs:
            job.fail(make_error)
        for future in after:
            future._end(None, make_error())

    def break_all(self, make_error):
        """Whatever is not with a worker ends with an error, and nothing is taken any more."""
        with self._lock:
            jobs = list(self._waiting)
            self._waiting.clear()
            flying = list(self._flying)
        self.refuse(make_error)
        for job in jobs:
            job.fail(make_error)
        # Those that are with workers learn it when they end: somebody has to look.
        for sent in flying:
            sent.watch()

    def counts(self):
        """How many calls are with workers, and how many jobs wait."""
        return len(self._flying), len(self._waiting)


class _Order(NamedTuple):
    """A call as it is to be sent."""

    known: Known
    operation: int
    arguments: object
    options: object
    target: Future


def _result(value):
    return value.result() if isinstance(value, concurrent.futures.Future) else value


class _Single:
    """One call that waits to be sent."""

    def __init__(self, known, arguments, options, future):
        self._order = _Order(known, CALL, arguments, options, future)
        self._future = future

    def wait_in(self, dispatch):
        self._future._queued_at = self._future._owner = dispatch

    def take(self, waiting):
        waiting.popleft()
        self._future._queued_at = None
        # Without its condition, which nobody may have asked for.
        return self._order if self._future._state == PENDING else None

    def is_of(self, future):
        return self._future is future

    def cancel(self):
        self._future._queued_at = None
        self._future.cancel()

    def fail(self, make_error):
        self._future._queued_at = None
        self._future._end(None, make_error())


class _Chunk(Future):
    """Some results of a map."""

    def __init__(self, job, count):
        super().__init__()
        self.job = job
        self.count = count

    def _end(self, result, exception):
        if exception is None:
            results, _, seconds = result
            self.job.took(len(results), seconds)
        super()._end(result, exception)


class _Map:
    """A call for each item, in chunks that are cut when there is a worker for them."""

    def __init__(self, known, items, chunksize, options, workers):
        self._known = known
        self._items = items
        self._options = options
        self._next = 0
        self._fixed = chunksize
        self._seconds_each = None
        self._workers = workers
        self._dispatch = None
        self._chunks = collections.deque()
        self._failure = None

    def wait_in(self, dispatch):
        self._dispatch = dispatch

    def took(self, count, seconds):
        """Items took so long: the next chunks are cut by that."""
        if count and seconds is not None:
            each = max(seconds / count, 1e-7)
            known = self._seconds_each
            self._seconds_each = each if known is None else 0.5 * (known + each)

    def _size(self):
        if self._fixed is not None:
            return self._fixed
        if self._seconds_each is None:
            return 1
        # Towards the end they are smaller, so that all workers end together.
        left = len(self._items) - self._next
        fair = max(1, left // (2 * EACH * self._workers))
        return max(1, min(int(CHUNK_SECONDS / self._seconds_each), fair))

    def take(self, waiting):
        items = self._items[self._next : self._next + self._size()]
        self._next += len(items)
        if self._next >= len(self._items):
            waiting.popleft()
        if not items:
            return None
        chunk = _Chunk(self, len(items))
        self._chunks.append(chunk)
        return _Order(self._known, MAP, items, self._options, chunk)

    def is_of(self, future):
        return False

    def cancel(self):
        self._failure = self._failure or CancelledError
        self._next = len(self._items)

    def fail(self, make_error):
        self._failure = make_error
        self._next = len(self._items)

    def stop(self):
        """Nobody wants the rest."""
        if self._dispatch is not None:
            with self._dispatch._lock:
                self._next = len(self._items)
                if self in self._dispatch._waiting:
                    self._dispatch._waiting.remove(self)

    def results(self, timeout=None):
        """One after the other, in the order of the items. The time is from here on."""
        return self._results(None if timeout is None else time.monotonic() + timeout)

    def _results(self, until):
        given = 0
        try:
            while given < len(self._items):
                while not self._chunks:
                    if self._failure is not None:
                        raise self._failure()
                    left = None if until is None else until - time.monotonic()
                    if not self._dispatch.advance(left):
                        raise TimeoutError()
                chunk = self._chunks.popleft()
                left = None if until is None else max(0.0, until - time.monotonic())
                results, raised, _ = chunk.result(left)
                given += chunk.count
                chunk = None
                results.reverse()
                while results:
                    yield results.pop()
                if raised is not None:
                    raise _rebuild.remote(raised)
        finally:
            self.stop()


def arguments_of(iterables):
    """The arguments of each call of a map."""
    if len(iterables) == 1:
        return [(item,) for item in iterables[0]]
    return list(zip(*iterables))


def starmap_arguments(iterable):
    return [tuple(arguments) for arguments in iterable]

