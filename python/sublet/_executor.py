"""`concurrent.futures.Executor` on leased cores."""

import concurrent.futures
import os
import threading
import weakref

from . import _errors, _process
from ._client import default_client

_open = weakref.WeakSet()


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
        self._lease._dispatch.translate = self._translate
        self._broken = None
        self._is_shut = False
        self._lock = threading.Lock()
        _open.add(self)

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
            buffersize: Is there for programs that say it; what is with the workers is bounded always.
        """
        self._check()
        return self._lease.map(fn, *iterables, timeout=timeout, chunksize=chunksize)

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

    def _check(self):
        if self._broken is not None:
            raise _errors.BrokenExecutor(self._broken)
        if self._is_shut:
            raise _shut()

    def _translate(self, error):
        """A worker's end is the executor's: it may have had what cannot be had again."""
        if not isinstance(error, (_errors.WorkerDied, _errors.LeaseEnded, _errors.AgentUnreachable, _errors.BrokenExecutor)):
            return error
        broken = error
        if not isinstance(error, _errors.BrokenExecutor):
            broken = _errors.BrokenExecutor(f"a worker of the executor ended: {error}")
            broken.__cause__ = error
        if self._broken is None:
            self._broken = str(broken)
            text = self._broken
            self._lease._dispatch.break_all(lambda: _errors.BrokenExecutor(text))
        return broken

    __reduce__ = _process.stays_here("an executor", "submit calls from there")

    def __repr__(self):
        state = "broken" if self._broken else "shut down" if self._is_shut else f"{self._max_workers} workers"
        return f"<sublet executor: {state}>"


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


# Before daemon threads are stopped, which collect what others wait for.
threading._register_atexit(_at_exit)
