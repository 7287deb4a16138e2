"""Futures of calls: `concurrent.futures.Future`, completed by whoever asks first.

A future that somebody waits for looks for its result itself: nothing stands between it and the worker. Only one that is to tell
somebody else (a callback, `as_completed`, `await`) is watched by the background thread. Whoever does the latter takes the future's
condition; so the condition is made when it is first asked for, and the watching begins there.
"""

import asyncio
import concurrent.futures
import threading
import time
from concurrent.futures import CancelledError, InvalidStateError
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING

from . import _process

_ENDED = (CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED)
_making = threading.Lock()


class Future(concurrent.futures.Future):
    """The result of a call that was submitted. It can be awaited, too."""

    def __init__(self):
        # What the base class would make, but for the condition.
        self._made = None
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks = []
        # Of one that was sent: what collects its result; of one that waits to be: who will send it.
        self._sent = None
        self._queued_at = None
        # Whether a lease sends it.
        self._is_owned = False

    @property
    def _condition(self):
        made = self._made
        if made is None:
            with _making:
                made = self._made
                if made is None:
                    made = self._made = threading.Condition()
            sent = self._sent
            if sent is not None:
                sent.watch()
        return made

    def _begin(self, sent):
        """It was sent; `sent` collects its result."""
        with _making:
            made = self._made
            if made is None:
                self._sent, self._state = sent, RUNNING
                return
        with made:
            if self._state != PENDING:
                # Cancelled, just when it was taken. The call is made, and nobody hears of it.
                return
            self._sent, self._state = sent, RUNNING
        sent.watch()

    def _end(self, result, exception):
        """Its result is there."""
        self._sent = None
        if self._made is None:
            with _making:
                if self._made is None:
                    self._result, self._exception, self._state = result, exception, FINISHED
                    return
        try:
            if exception is not None:
                self.set_exception(exception)
            else:
                self.set_result(result)
        except InvalidStateError:
            pass

    def _await(self, timeout):
        """Waits until it has ended; says whether it has."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._state not in _ENDED:
            left = None if until is None else max(0.0, until - time.monotonic())
            sent, queued = self._sent, self._queued_at
            if sent is not None:
                if not sent.collect(left):
                    return False
            elif queued is not None:
                # Calls before it have to end first; whoever collects one of them sends the next.
                if not queued.advance(left):
                    return False
            else:
                condition = self._condition
                with condition:
                    if self._state not in _ENDED and not condition.wait(left):
                        return False
        return True

    def result(self, timeout=None):
        """What the function returned. Raises what it raised, `TimeoutError` after so many seconds (the call goes on then)."""
        try:
            if self._state != FINISHED and not self._await(timeout):
                raise concurrent.futures.TimeoutError()
            if self._state != FINISHED:
                raise CancelledError()
            if self._exception is not None:
                raise self._exception
            return self._result
        finally:
            # As the base class: no cycle by way of the traceback.
            self = None

    def exception(self, timeout=None):
        """What the function raised, or None."""
        if self._state != FINISHED and not self._await(timeout):
            raise concurrent.futures.TimeoutError()
        if self._state != FINISHED:
            raise CancelledError()
        return self._exception

    def done(self):
        """Whether it has ended, one way or another."""
        sent = self._sent
        if sent is not None and self._state not in _ENDED:
            sent.collect(0)
        return self._state in _ENDED

    def running(self):
        """Whether a worker has it."""
        return not self.done() and self._state == RUNNING

    def cancel(self):
        """Cancels a call that no worker has yet; says whether that is so."""
        queued = self._queued_at
        if queued is not None:
            queued.take_out(self)
            self._queued_at = None
        if not super().cancel():
            return False
        with self._condition:
            if self._state == CANCELLED and self._is_owned:
                # No executor comes by to say so to those who wait for several.
                self._state = CANCELLED_AND_NOTIFIED
                for waiter in self._waiters:
                    waiter.add_cancelled(self)
        return True

    __reduce__ = _process.stays_here(
        "a future", "pass its result(), or pass the future itself to submit, and not within another object"
    )

    def __await__(self):
        return asyncio.wrap_future(self).__await__()
