"""Futures of calls: `concurrent.futures.Future`, completed by the first thread that needs the result.

A thread that waits for a future collects the result itself, directly from the worker. The background thread watches only futures with
other observers (a callback, `as_completed`, `await`). These observers use the future's condition; so the condition is created at its
first use, and the watching starts there.
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
    """Result of a submitted call, which can also be awaited."""

    def __init__(self):
        # The attributes of the base class, except the condition.
        self._made = None
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks = []
        # After sending, the collector of the result; before, the job that will send the call.
        self._sent = None
        self._queued_at = None
        # Whether a lease is sending the call.
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
        """Notes that the call was sent; `sent` collects its result."""
        with _making:
            made = self._made
            if made is None:
                self._sent, self._state = sent, RUNNING
                return
        with made:
            if self._state != PENDING:
                # Cancelled while it was being sent: the call executes, and its result is dropped.
                return
            self._sent, self._state = sent, RUNNING
        sent.watch()

    def _end(self, result, exception):
        """Sets the outcome. The first one counts: a worker may end while its calls are given up."""
        self._sent = None
        if self._made is None:
            with _making:
                if self._made is None:
                    if self._state != FINISHED:
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
        """Waits until the call has ended; returns whether it has."""
        until = None if timeout is None else time.monotonic() + timeout
        while self._state not in _ENDED:
            left = None if until is None else max(0.0, until - time.monotonic())
            sent, queued = self._sent, self._queued_at
            if sent is not None:
                if not sent.collect(left):
                    return False
            elif queued is not None:
                # Earlier calls have to end first: the thread that collects one of them sends the next.
                if not queued.advance(left):
                    return False
            else:
                condition = self._condition
                with condition:
                    if self._state not in _ENDED and not condition.wait(left):
                        return False
        return True

    def result(self, timeout=None):
        """Returns the function's result. Raises its exception, or `TimeoutError` after `timeout` seconds, when the call continues."""
        try:
            if self._state != FINISHED and not self._await(timeout):
                raise concurrent.futures.TimeoutError()
            if self._state != FINISHED:
                raise CancelledError()
            if self._exception is not None:
                raise self._exception
            return self._result
        finally:
            # As in the base class: avoids a cycle through the traceback.
            self = None

    def exception(self, timeout=None):
        """Returns the exception of the function, or None."""
        if self._state != FINISHED and not self._await(timeout):
            raise concurrent.futures.TimeoutError()
        if self._state != FINISHED:
            raise CancelledError()
        return self._exception

    def done(self):
        """Returns whether the call has ended, in success or failure."""
        sent = self._sent
        if sent is not None and self._state not in _ENDED:
            sent.collect(0)
        return self._state in _ENDED

    def running(self):
        """Returns whether a worker has the call."""
        return not self.done() and self._state == RUNNING

    def cancel(self):
        """Cancels the call if no worker has it yet; returns whether it is cancelled."""
        queued = self._queued_at
        if queued is not None:
            queued.take_out(self)
            self._queued_at = None
        if not super().cancel():
            return False
        with self._condition:
            if self._state == CANCELLED and self._is_owned:
                # No executor notifies threads that wait for several futures.
                self._state = CANCELLED_AND_NOTIFIED
                for waiter in self._waiters:
                    waiter.add_cancelled(self)
        return True

    __reduce__ = _process.stays_here(
        "a future", "pass its result(), or pass the future itself to submit, and not within another object"
    )

    def __await__(self):
        return asyncio.wrap_future(self).__await__()
