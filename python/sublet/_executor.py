"""`concurrent.futures.Executor` on leased cores."""

import concurrent.futures
import logging
import os
import threading
import weakref

from . import _errors, _process
from ._client import default_client
from ._map import Source

# Every executor that is not shut down, and the calls of every executor, which may have been dropped: for the interpreter's end.
_open = weakref.WeakSet()
_begun = weakref.WeakSet()


class Executor(concurrent.futures.Executor):
    """Executes calls on leased cores; for programs that know `concurrent.futures`.

    It differs from `ProcessPoolExecutor` in where its workers are, and in that `map` chooses the size of its chunks by itself.

    Args:
        max_workers: How many cores are leased; without it, as many as this machine has.
        initializer: What each worker calls before its first call. If it raises, the executor is broken.
        initargs: The arguments of that.
        client: Whose lease it is; without it, the default one.
        **lease: As for `Client.lease`.

    Examples:
        >>> with sublet.Executor(8) as executor:
        ...     print(list(executor.map(math.factorial, range(100))))
    """

    def __init__(self, max_workers=None, *, initializer=None, initargs=(), client=None, **lease):
        if max_workers is None:
            max_workers = len(os.sched_getaffinity(0))
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        client = default_client() if client is None else client
        self._max_workers = max_workers
        self._lease = client.lease(max_workers, initializer=initializer, initargs=initargs, **lease)
        self._breakage = _Breakage()
        self._lease._dispatch.translate = self._breakage.translate
        self._is_shut = False
        self._lock = threading.Lock()
        _open.add(self)
        _begun.add(self._lease._dispatch)

    @property
    def lease(self):
        """The lease on whose workers the calls are executed."""
        return self._lease

    def submit(self, fn, /, *args, **kwargs):
        self._check()
        return self._lease.submit(fn, *args, **kwargs)

    submit.__doc__ = concurrent.futures.Executor.submit.__doc__

    def map(self, fn, *iterables, timeout=None, chunksize=None, buffersize=None):
        """Returns an iterator equivalent to map(fn, *iterables).

        Args:
            fn: What is called with the items.
            *iterables: As for the builtin `map`.
            timeout: Seconds from now on after which the iterator raises `TimeoutError`; without it there is no limit.
            chunksize: How many items a worker is given at a time; without it, as many as take about 2 ms.
            buffersize: How many items, or chunks if `chunksize` says their size, are taken at most whose results were not read yet.
                Without it all items are taken now, but for asynchronous iterables.
        """
        self._check()
        lease = self._lease
        return lease._map(lease._plain, fn, Source(iterables), timeout, chunksize, buffersize, is_eager=True)

    def shutdown(self, wait=True, *, cancel_futures=False):
        with self._lock:
            self._is_shut = True
        dispatch = self._lease._dispatch
        dispatch.refuse(_shut)
        if cancel_futures:
            dispatch.cancel()
        _open.discard(self)
        if wait:
            self._lease.close()
        else:
            threading.Thread(target=self._lease.close, name="sublet shutdown").start()

    shutdown.__doc__ = concurrent.futures.Executor.shutdown.__doc__

    @property
    def _broken(self):
        # The name that other executors have for it.
        return self._breakage.text

    def _check(self):
        if self._broken is not None:
            raise _errors.BrokenExecutor(self._broken)
        if self._is_shut:
            raise _shut()

    __reduce__ = _process.stays_here("an executor", "submit calls from there")

    def __repr__(self):
        state = "broken" if self._broken else "shut down" if self._is_shut else f"{self._max_workers} workers"
        return f"<sublet executor: {state}>"


class _Breakage:
    """Why an executor is broken, for it and for its calls, which do not refer to it."""

    def __init__(self):
        #: What was wrong; None as long as it is whole.
        self.text = None

    def translate(self, dispatch, error):
        """A worker's end is the executor's: it may have had what cannot be had again."""
        if not isinstance(error, (_errors.WorkerDied, _errors.LeaseEnded, _errors.AgentUnreachable, _errors.BrokenExecutor)):
            return error
        broken = error
        if not isinstance(error, _errors.BrokenExecutor):
            broken = _errors.BrokenExecutor(f"a worker of the executor ended: {error}")
            broken.__cause__ = error
        if self.text is None:
            if broken is error:
                # Programs look for it there, as other executors log what an initializer raises.
                logging.getLogger("concurrent.futures").critical("Exception in initializer:", exc_info=broken.__cause__)
            self.text = text = str(broken)
            dispatch.break_all(lambda: _errors.BrokenExecutor(text))
        return broken


def _shut():
    return RuntimeError("cannot schedule new futures after shutdown")


def _at_exit():
    """The interpreter ends: what was submitted is executed first, as by other executors."""
    if _process.is_forked():
        return
    for executor in list(_open):
        try:
            executor.shutdown(wait=True)
        except Exception:
            # Its lease ends with this process.
            pass
    for dispatch in list(_begun):
        dispatch.drain()


# Before daemon threads are stopped, which collect what others wait for.
threading._register_atexit(_at_exit)
