"""`concurrent.futures.Executor` on leased cores."""

import concurrent.futures
import logging
import os
import threading
import weakref

from . import _errors, _process
from ._client import default_client
from ._map import Source

# Executors that are not shut down, and the calls of all executors, even dropped ones, for the end of the interpreter.
_open = weakref.WeakSet()
_begun = weakref.WeakSet()


class Executor(concurrent.futures.Executor):
    """Executes calls on leased cores, with the interface of `concurrent.futures`.

    Unlike `ProcessPoolExecutor`, its workers are on leased cores, and `map` chooses the size of its chunks.

    Args:
        max_workers: Number of cores to lease; by default the number of this machine's cores.
        initializer: Function that each worker calls before its first call. If it raises, the executor is broken.
        initargs: Arguments of the initializer.
        client: Client that leases; by default the default client.
        **lease: Options of `Client.lease`.

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
        """Lease whose workers execute the calls."""
        return self._lease

    def submit(self, fn, /, *args, **kwargs):
        self._check()
        return self._lease.submit(fn, *args, **kwargs)

    submit.__doc__ = concurrent.futures.Executor.submit.__doc__

    def map(self, fn, *iterables, timeout=None, chunksize=None, buffersize=None):
        """Returns an iterator equivalent to map(fn, *iterables).

        Args:
            fn: Function that is called with the items.
            *iterables: Iterables, as for the builtin `map`.
            timeout: Seconds from now after which the iterator raises `TimeoutError`. The default is no limit.
            chunksize: Number of items per call. By default, a call gets items for about 2 ms.
            buffersize: Maximum number of items, or of chunks if `chunksize` is set, whose results were not read yet. By
                default all items are taken at once, except from asynchronous iterables.
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

    def terminate_workers(self):
        """Kills the workers and gives the cores back: calls that run fail with `BrokenExecutor`, and calls that wait are cancelled.

        `ProcessPoolExecutor` has this and `kill_workers` since Python 3.14. Here both do the same: workers have nothing to clean up.
        """
        dispatch, text = self._lease._dispatch, self._breakage.text or "the executor's workers were terminated"
        self._breakage.text = text
        dispatch.refuse(lambda: _errors.BrokenExecutor(text))
        dispatch.cancel()
        dispatch.abandon(lambda: _errors.BrokenExecutor(text))
        _open.discard(self)
        self._lease.close(cancel=True)

    def kill_workers(self):
        """Does the same as `terminate_workers`."""
        self.terminate_workers()

    @property
    def _broken(self):
        # Attribute name of other executors.
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
    """Reason why an executor is broken, for the executor and for its calls, which do not refer to it."""

    def __init__(self):
        #: The error; None as long as the executor works.
        self.text = None

    def translate(self, dispatch, error):
        """Converts errors of calls: the end of a worker breaks the executor, since the worker's state is lost."""
        if not isinstance(error, (_errors.WorkerDied, _errors.LeaseEnded, _errors.AgentUnreachable, _errors.BrokenExecutor)):
            return error
        broken = error
        if not isinstance(error, _errors.BrokenExecutor):
            broken = _errors.BrokenExecutor(f"a worker of the executor ended: {error}")
            broken.__cause__ = error
        if self.text is None:
            if broken is error:
                # Other executors log the exception of an initializer here, too.
                logging.getLogger("concurrent.futures").critical("Exception in initializer:", exc_info=broken.__cause__)
            self.text = text = str(broken)
            dispatch.break_all(lambda: _errors.BrokenExecutor(text))
        return broken


def _shut():
    return RuntimeError("cannot schedule new futures after shutdown")


def _at_exit():
    """Executes all submitted calls before the interpreter ends, as other executors do."""
    if _process.is_forked():
        return
    for executor in list(_open):
        try:
            executor.shutdown(wait=True)
        except Exception:
            # The lease ends with this process.
            pass
    for dispatch in list(_begun):
        dispatch.drain()


# Runs before daemon threads are stopped, which collect results.
threading._register_atexit(_at_exit)
