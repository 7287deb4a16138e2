"""Assigns calls to workers, and queues calls that wait to be sent.

Workers hold only a few more calls than they have cores, so that the other calls can still be cancelled, or go to an
idle worker. The thread that collects a result sends the next call. While calls wait, the background thread also
collects results.
"""

import collections
import concurrent.futures
import functools
import itertools
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures._base import PENDING

from . import _errors
from ._calls import CALL, Order, SentObjects
from ._future import Future
from ._map import EACH, Job

# Maximum number of calls that wait to be sent. A thread that submits more waits until there are fewer.
MOST_WAITING = 100_000


class Dispatch:
    """The calls of one lease.

    Futures and maps refer to it while their calls are under way, and it refers to them; afterwards neither does. It never refers to
    the lease: one that is dropped goes at once, and its cores with it when the last call has ended.
    """

    def __init__(self, calls, workers):
        self._calls = calls
        #: Sends a call.
        self.send = calls.send
        #: The background thread, which collects calls that no other thread waits for.
        self.completer = calls.completer
        #: Number of workers.
        self.workers = workers
        self._flying = {}
        # Number of calls that are being sent now.
        self._sending = 0
        self._kept = []
        # Futures whose calls wait for other futures.
        self._after = set()
        self._waiting = collections.deque()
        # Reentrant: pickling a value may call any function, also one that submits a call.
        self._lock = threading.RLock()
        self.refusal = None
        #: Converts a call's error to the one that its caller sees; called with this dispatch and the error. None: no
        #: conversion.
        self.translate = None
        # Whether the lease was dropped with calls under way: then the background thread completes them.
        self._is_left = False
        self._is_released = False

    def resize(self, workers):
        """Sets the number of workers."""
        self.workers = workers
        self.pump()

    def submit(self, known, arguments, options):
        """Submits one call and returns its future."""
        future = Future()
        self.add(_Single(known, arguments, options, future))
        return future

    def submit_after(self, known, arguments, options):
        """Submits one call when the futures among its arguments have ended, with their results.

        If one has failed, so has this call.
        """
        future = Future()
        future._is_owned = True
        with self._lock:
            if self.refusal is not None:
                raise self.refusal()
            self._after.add(future)
        _Awaiting(self, known, options, future).begin(*arguments)
        return future

    def submit_late(self, known, arguments, options, future):
        """Sends a call whose arguments were waited for."""
        if future._state == PENDING:
            self.add(_Single(known, arguments, options, future), is_late=True)
        self.forget(future)

    def forget(self, future):
        """A future waits for others no longer."""
        self._after.discard(future)
        if self._is_left:
            self._release_if_idle()

    def map(self, known, chunksize, options):
        """A job that sends the items of a map."""
        return Job(known, chunksize, options, self)

    def add(self, job, is_late=False):
        """Accepts a job, whose calls are then sent."""
        while len(self._waiting) >= MOST_WAITING and not is_late:
            self.advance(None)
        with self._lock:
            if self.refusal is not None and not is_late:
                raise self.refusal()
            if job.wait_in(self):
                self._waiting.append(job)
        self.pump()

    def pump(self):
        """Sends what can be sent. Nothing of the caller's is called under the lock: what is pickled, and callbacks, may wait for others."""
        while True:
            with self._lock:
                if not self._waiting or len(self._flying) + self._sending >= EACH * self.workers:
                    watched = list(self._flying) if self._waiting or self._is_left else ()
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
            sent = SentObjects(self, order)
        except Exception as error:
            future._end(None, _errors.from_outside(error))
            return
        may_be_sent_again = sent.may_be_sent_again()
        future._begin(sent)
        with self._lock:
            self._flying[sent] = None
            if sent.is_ended:
                # Another thread waited for the future and has ended the call.
                self._flying.pop(sent, None)
                return
        if may_be_sent_again:
            # The caller may wait for an earlier call meanwhile.
            sent.watch()

    def ended(self, sent):
        """Removes a call that has ended, and sends the next one."""
        with self._lock:
            self._flying.pop(sent, None)
        if self._waiting:
            self.pump()
        if self._is_left:
            self._release_if_idle()

    def is_idle(self):
        """Whether no call is under way. Takes no lock: a garbage collection may ask wherever it interrupts a thread."""
        if self._flying or self._waiting or self._sending:
            return False
        return all(future._state != PENDING for future in list(self._after))

    def has_kept(self):
        """Whether an interrupted call is still running."""
        return any(not kept.done() for kept in list(self._kept))

    def leave(self):
        """Marks the lease as dropped: calls that were submitted are still executed, and then the cores are released."""
        self._is_left = True
        self.pump()
        self._release_if_idle()

    def _release_if_idle(self):
        with self._lock:
            if self._is_released or not self.is_idle():
                return
            self._is_released = True
        try:
            # The agent is asked, which may take a while, and the thread that ended the last call has others to end.
            threading.Thread(target=self._calls.release, name="sublet release", daemon=True).start()
        except RuntimeError:
            # The interpreter ends, and starts no more threads.
            self._calls.release()

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
        """Keeps a call that no thread waits for after an interrupt.

        Freeing it before it has ended would wait for its end.
        """
        with self._lock:
            self._kept = [kept for kept in self._kept if not kept.done()]
            self._kept.append(call)

    def take_out(self, future):
        """Removes the job of a future that is about to be cancelled."""
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
                # The future waits for another future, which may belong to another lease.
                concurrent.futures.wait([after])
                self._after.discard(after)
            elif flying is None:
                self.pump()
            else:
                flying.collect(None)

    def refuse(self, refusal):
        """Refuses all further calls with this error."""
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
            target = sent.target
            if target is not None:
                target._end(None, make_error())
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
        # Workers still execute some calls. Their errors are found when the calls end, so the background thread collects
        # them.
        for sent in flying:
            sent.watch()

    def counts(self):
        """Returns the number of calls that workers have, and of jobs that wait."""
        return len(self._flying), len(self._waiting)


class _Awaiting:
    """The arguments of a call, until the futures among them have ended.

    It keeps their results rather than them: they refer to it, and one that never ends is not to keep itself.
    """

    def __init__(self, dispatch, known, options, future):
        self._call = (dispatch, known, options, future)
        self._positional, self._named = [], {}
        self._left = None

    def begin(self, positional, named):
        """Waits for the futures among these."""
        self._positional, self._named = list(positional), dict(named)
        places = [*((self._positional, *each) for each in enumerate(positional)), *((self._named, *each) for each in named.items())]
        places = [place for place in places if isinstance(place[2], concurrent.futures.Future)]
        self._left = itertools.count(len(places) - 1, -1)
        for where, key, other in places:
            where[key] = None
            other.add_done_callback(functools.partial(self._ended, where, key))

    def _ended(self, where, key, other):
        """Is called by whatever ends one of them."""
        error = CancelledError() if other.cancelled() else other.exception()
        if error is None:
            where[key] = other.result()
            if next(self._left) > 0:
                return
        # Whichever comes first: the last of them, or one that failed.
        call, self._call = self._call, None
        if call is None:
            return
        dispatch, known, options, future = call
        try:
            if error is None:
                return dispatch.submit_late(known, (tuple(self._positional), self._named), options, future)
        except BaseException as raised:
            error = _errors.from_outside(raised)
        future._end(None, error)
        dispatch.forget(future)


class _Single:
    """One call that waits to be sent."""

    def __init__(self, known, arguments, options, future):
        self._order = Order(known, CALL, arguments, options, future)
        self._future = future

    def wait_in(self, dispatch):
        self._future._queued_at, self._future._is_owned = dispatch, True
        return True

    def take(self, waiting):
        waiting.popleft()
        self._future._queued_at = None
        # Not through the future's condition, which is made only when it is needed.
        return self._order if self._future._state == PENDING else None

    def is_of(self, future):
        return self._future is future

    def cancel(self):
        self._future._queued_at = None
        self._future.cancel()

    def fail(self, make_error):
        self._future._queued_at = None
        self._future._end(None, make_error())
