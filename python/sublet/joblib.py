"""joblib on leased cores: importing this makes the backend `"sublet"` known.

>>> import sublet.joblib
>>> from joblib import Parallel, delayed, parallel_config
>>> with parallel_config(backend="sublet", n_jobs=8, memory="4GiB"):
...     Parallel()(delayed(math.factorial)(n) for n in range(100))

Each `Parallel` leases its cores when it is called and gives them back at its end. `with Parallel(...) as parallel:` keeps them from
call to call. Workers import joblib, so their environment has to have it, as that of `sublet.local()` has.
"""

import concurrent.futures

from joblib import cpu_count, register_parallel_backend
from joblib.parallel import AutoBatchingMixin, BatchedCalls, FallbackToBackend, ParallelBackendBase, SequentialBackend

from ._client import default_client

__all__ = ["SubletBackend"]

# What joblib tells every backend, and what is of no use here: arrays are in memory that workers share, without files.
_JOBLIBS = frozenset(["context", "max_nbytes", "mmap_mode", "prefer", "require", "temp_folder", "verbose"])


class SubletBackend(AutoBatchingMixin, ParallelBackendBase):
    """A joblib backend whose workers are on leased cores.

    `n_jobs` is how many are leased; without it, and for -1, as many as this machine has. For one, nothing is leased and the work is
    done here, as by joblib's other backends. A `Parallel` within a function that a worker executes is sequential.

    `parallel_config` takes `client`, whose lease it is (without it, the default one), and the options of `Client.lease`.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    # In seconds. A call costs microseconds, joblib's own work for a batch about 0.1 ms: a batch has to be long beside that.
    MIN_IDEAL_BATCH_DURATION = 0.02
    MAX_IDEAL_BATCH_DURATION = 0.2

    _lease = None

    def effective_n_jobs(self, n_jobs):
        """How many workers there are for so many jobs, which may be counted down from this machine's cores."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(cpu_count() + 1 + n_jobs, 1)

    def configure(self, n_jobs=1, parallel=None, **options):
        """Leases the cores; returns how many."""
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        options = {**self.backend_kwargs, **{name: value for name, value in options.items() if name not in _JOBLIBS}}
        options["environment"] = {**self._environment(), **(options.get("environment") or {})}
        client = options.pop("client", None) or default_client()
        self._lease = client.lease(n_jobs, **options)
        self.parallel = parallel
        return n_jobs

    def _environment(self):
        # A worker has one core: joblib need not look there for what its processes would use, and warn of what sandboxes lack.
        environment = {"JOBLIB_MULTIPROCESSING": "0"}
        if self.inner_max_num_threads is not None:
            environment.update(dict.fromkeys(self.MAX_NUM_THREADS_VARS, str(self.inner_max_num_threads)))
        return environment

    def submit(self, func, callback=None):
        """Sends a batch; returns its future."""
        try:
            # The batch is an argument: functions are kept for further calls, and each batch is executed once.
            future = self._lease.submit(BatchedCalls.__call__, func)
        except Exception as error:
            # As of a lease that has ended. joblib submits in its callbacks, too, where nobody would hear of it.
            future = concurrent.futures.Future()
            future.set_exception(error)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out):
        return out.result()

    def terminate(self):
        """Gives the cores back. Whatever is still executed there, nobody wants."""
        if self._lease is not None:
            self._lease.close(cancel=True)
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready=True):
        """Ends all calls, and their workers."""
        self.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel, **self.parallel._backend_kwargs)

    def get_nested_backend(self):
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None


register_parallel_backend("sublet", SubletBackend)
