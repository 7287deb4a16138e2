"""joblib on leased cores: importing this module registers the backend `"sublet"`.

>>> import sublet.joblib
>>> from joblib import Parallel, delayed, parallel_config
>>> with parallel_config(backend="sublet", n_jobs=8, memory="4GiB"):
...     Parallel()(delayed(math.factorial)(n) for n in range(100))

The first `Parallel` leases its cores. At its end they are kept for the next one, and released when they have been idle for a
minute, or earlier if this program needs them for something else. Workers import joblib, so their environment must have it, as that
of `sublet.local()` does.
"""

import concurrent.futures
import contextlib
import pickle
import sys
import threading
import time

from joblib import cpu_count, register_parallel_backend
from joblib.parallel import AutoBatchingMixin, BatchedCalls, FallbackToBackend, ParallelBackendBase, SequentialBackend

from . import _errors, _kept, _modules, _process
from ._client import default_client

__all__ = ["SubletBackend"]

# Time that idle cores are kept, in seconds.
IDLE_SECONDS = 60
# Default duration of a lease after its latest use, in seconds.
LEASE_SECONDS = 600
# While a `Parallel` uses a lease, the lease is renewed after this many seconds.
RENEWAL_SECONDS = LEASE_SECONDS / 4
# A lease that was renewed less than this many seconds ago is used again without a renewal, which takes longer than ten calls.
RECENT_SECONDS = 1
# Options that joblib passes to every backend, without use here: arrays are in shared memory, without files.
_JOBLIBS = frozenset(["context", "max_nbytes", "mmap_mode", "prefer", "require", "temp_folder", "verbose"])


class SubletBackend(AutoBatchingMixin, ParallelBackendBase):
    """A joblib backend whose workers are on leased cores.

    `n_jobs` is the number of cores; without it, and for -1, the number of this machine's cores. For 1, nothing is leased and the work
    is done in this process, as by joblib's other backends. A `Parallel` within a function that a worker executes is sequential.

    Options of `joblib.parallel_config`:

    - `client`: the client that leases; by default the default client.
    - `idle_worker_timeout`: seconds for which the cores are kept for the next `Parallel` with the same options; 60 by default, and 0 keeps
      none.
    - all others: as for `Client.lease`.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    # In seconds. joblib's own work for a batch takes much longer than a call: a batch has to be long beside that.
    MIN_IDEAL_BATCH_DURATION = 0.02
    MAX_IDEAL_BATCH_DURATION = 0.2

    # The lease, under which key it is kept afterwards, and the batches of the present `Parallel` call.
    _lease = _key = _batches = None

    def effective_n_jobs(self, n_jobs):
        """Returns the number of workers for `n_jobs`, which may count down from this machine's cores."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(cpu_count() + 1 + n_jobs, 1)

    def configure(self, n_jobs=1, parallel=None, **options):
        """Leases the cores; returns their number."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        options = {**self.backend_kwargs, **{name: value for name, value in options.items() if name not in _JOBLIBS}}
        options["environment"] = {**self._environment(), **(options.get("environment") or {})}
        self._idle_seconds = options.pop("idle_worker_timeout", IDLE_SECONDS)
        client = options.pop("client", None) or default_client()
        self._key = _key_of(client, n_jobs, options)
        self._lease_seconds = options.get("timeout")
        self._lease = _take(self._key, self._lease_seconds) or client.lease(n_jobs, **options)
        self.parallel = parallel
        return n_jobs

    def _environment(self):
        # A worker has one core: joblib need not look there for what its processes would use, and warn of what sandboxes lack.
        environment = {"JOBLIB_MULTIPROCESSING": "0"}
        if self.inner_max_num_threads is not None:
            environment.update(dict.fromkeys(self.MAX_NUM_THREADS_VARS, str(self.inner_max_num_threads)))
        return environment

    def start_call(self):
        """Starts a call of the `Parallel`."""
        self._batches = _Batches()

    def submit(self, func, callback=None):
        """Sends a batch; returns its future."""
        batches = self._batches
        batches.begin()
        try:
            self._renew_if_due()
            # The batch is an argument: functions are kept for further calls, and each batch is executed once.
            future = self._lease.submit(BatchedCalls.__call__, func)
        except Exception as error:
            # For example because the lease has ended. joblib submits in its callbacks, too, where an exception would be lost.
            future = concurrent.futures.Future()
            future.set_exception(error)

        def ended(future):
            try:
                if callback is not None:
                    # Submits the next batches.
                    callback(future)
            finally:
                # An iterable of tasks that fails within the callback makes joblib abort.
                has_failed = future.cancelled() or future.exception() is not None or getattr(self.parallel, "_aborting", False)
                batches.end(has_failed)

        future.add_done_callback(ended)
        return future

    def _renew_if_due(self):
        # A lease whose duration the user has chosen ends then.
        if self._lease_seconds is None and time.monotonic() - self._lease._renewed_at > RENEWAL_SECONDS:
            with contextlib.suppress(_errors.Error):
                # The calls report the end of a lease.
                self._lease.renew(LEASE_SECONDS)

    @contextlib.contextmanager
    def retrieval_context(self):
        """Waits for the batches before joblib looks for results, since joblib sleeps for 10 ms whenever the next result is missing."""
        # A generator returns each result when it is there, and joblib measures its timeouts while it looks.
        if not self.parallel.return_generator and self.parallel.timeout is None:
            while not self._batches.wait(RENEWAL_SECONDS):
                self._renew_if_due()
        yield

    def retrieve_result_callback(self, out):
        return out.result()

    def terminate(self):
        """Keeps the cores for the next `Parallel`, unless they still execute an abandoned call."""
        lease, self._lease = self._lease, None
        if lease is not None:
            if self._key is not None and self._idle_seconds > 0 and lease._dispatch.is_idle():
                _kept.put(self._key, lease, self._idle_seconds)
            else:
                lease.close(cancel=True)
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready=True):
        """Ends all calls and their workers."""
        self._key = None
        self.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel, **self.parallel._backend_kwargs)

    def get_nested_backend(self):
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None


class _Batches:
    """Counter of the running batches of one call of a `Parallel`."""

    def __init__(self):
        self._changed = threading.Condition()
        self._count = 0
        self._has_failed = False

    def begin(self):
        """Counts a batch that is about to be sent."""
        with self._changed:
            self._count += 1

    def end(self, has_failed):
        """Counts the end of a batch whose callback has returned."""
        with self._changed:
            self._count -= 1
            self._has_failed = self._has_failed or has_failed
            if self._is_over():
                self._changed.notify_all()

    def wait(self, seconds):
        """Waits until all batches have ended or one has failed, at most this many seconds; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(self._is_over, seconds)

    def _is_over(self):
        return self._has_failed or self._count == 0


def _key_of(client, n_jobs, options):
    """Returns a key that is equal for uses that may share workers; None if the options cannot be compared."""
    terms = {name: value for name, value in options.items() if name != "wait"}
    # Modules that were imported since are not on the workers.
    modules = None if terms.get("path") is not None else _own_modules()
    try:
        return client, n_jobs, pickle.dumps(sorted(terms.items())), modules
    except Exception:
        return None


# The names of all modules when they were looked through last, and the files of those that workers are sent.
_looked_through = (None, None)


def _own_modules():
    """Returns the files of modules that are sent to workers. They are collected again only after further imports, since that takes longer than a call."""
    global _looked_through
    names = frozenset(sys.modules)
    if _looked_through[0] != names:
        _looked_through = names, frozenset(_modules.selected(None).files)
    return _looked_through[1]


def _take(key, timeout):
    """Returns a kept lease, renewed to the duration of a new one; None if there is none."""
    _process.check()
    lease = None if key is None else _kept.take(key)
    if lease is None:
        return None
    try:
        if _is_recent(lease, timeout):
            return lease
        if not lease.notices:
            lease.renew(LEASE_SECONDS if timeout is None else timeout)
            return lease
    except _errors.Error:
        # The lease has ended.
        pass
    _kept.give_back(lease)
    return None


def _is_recent(lease, timeout):
    """Whether a lease needs no renewal, since the managers confirmed it just now for the usual duration, and it has not ended here."""
    if timeout is not None or time.monotonic() - lease._renewed_at > RECENT_SECONDS:
        return False
    return lease._invoker.workers() == lease.workers and not lease.notices


register_parallel_backend("sublet", SubletBackend)
