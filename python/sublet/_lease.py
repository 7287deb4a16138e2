"""Leases: workers, and calls of their functions."""

import concurrent.futures
import threading
import time
import weakref

from . import _errors, _foreign, _kept, _process
from ._calls import CALL, DONE, FUNCTION, Begun, Order, Sent, SentObjects, deadline_of, read
from ._dispatch import Dispatch
from ._future import Future
from ._map import BytesJob, Source, results_of
from ._memory import as_bytes_like

# Default maximum of the output of a function that is not in Python, in bytes.
OUTPUT_BYTES = 64 << 10

# Open leases, for the end of the interpreter.
_open = weakref.WeakSet()


def _count(name, value):
    """Checks that a number fits the library's type: not negative, and 32 bits."""
    if not 0 <= value < 1 << 32:
        raise _errors.InvalidArgument(f"{name} must be a number from 0 to {(1 << 32) - 1}, not {value}")
    return value


class Options:
    """Options of calls; see `Lease.options`."""

    __slots__ = ("timeout", "retries", "worker")

    def __init__(self, timeout=None, retries=0, worker=None):
        self.timeout = timeout
        self.retries = _count("retries", retries)
        self.worker = None if worker is None else _count("worker", worker)


class _Target:
    """Target of the result of a call whose caller waits for it."""

    __slots__ = ("result", "exception")

    def _end(self, result, exception):
        self.result = result
        self.exception = exception


class _Calls:
    """Connection of one lease to its workers, which sends calls."""

    def __init__(self, lease, completer):
        self._invoker = lease._invoker
        self._call = lease._invoker.call
        self.completer = completer
        completer.start()
        self.look()

    def look(self):
        """Checks whether all workers share this process's memory."""
        self._shares_memory = self._invoker.shares_memory()

    def send(self, known, operation, parts, options, timeout):
        """Sends a call, which must end within this many seconds."""
        return self._call(
            FUNCTION,
            operation,
            parts,
            capacity=known.room,
            shares_memory=self._shares_memory,
            worker=options.worker,
            retries=options.retries,
            timeout=timeout,
        )

    def release(self):
        """Releases the cores of a dropped lease."""
        try:
            self._invoker.deallocate()
        except _errors.Error:
            # The agent then ends the lease when the connection is closed.
            pass


class Lease:
    """Workers on leased cores, until `close`, the end of a `with` block, or the expiry of the lease.

    Created by `Client.lease`. Several threads may use it at once. A lease without references releases its cores when the submitted
    calls have ended.
    """

    def __init__(self, client, invoker, functions):
        self._ended = self._dispatch = None
        self._client = client
        self._invoker = invoker
        self._functions = functions
        self._plain = Options()
        self._closing = threading.Lock()
        name, _, names, is_python, is_own, owner = invoker.package()
        #: Name of the package.
        self.package = name
        #: Names of the package's functions.
        self.functions = tuple(function for function in names if function != FUNCTION)
        self._is_python = is_python
        if not is_own:
            functions.origin = _foreign.Foreign(_foreign.described(name, owner))
        #: Number of workers: one for each core.
        self.workers = invoker.workers()
        # Time of the managers' latest confirmation of the lease, by the monotonic clock.
        self._renewed_at = time.monotonic()
        self._calls = _Calls(self, client._completer)
        self._dispatch = Dispatch(self._calls, self.workers)
        _open.add(self)

    # Calls of functions in Python, and of others.

    def call(self, function, /, *args, **kwargs):
        """Calls a function and waits for its result, which is the fastest way to call. Raises the function's exception.

        `function` is a callable, or the name of a function of the package: `module:name`, or a name from its manifest. Functions in
        other languages take one array or another object with the buffer protocol, and `out=` for the output: an array, or the
        maximum number of bytes.
        """
        return self._call(self._plain, function, args, kwargs)

    def submit(self, function, /, *args, **kwargs):
        """Starts a call and returns its `Future`.

        Arguments may be futures: the background thread waits for them, and the function gets their results. So calls that depend on
        each other can be submitted at once. If one of them fails, this call fails with the same exception.
        """
        return self._submit(self._plain, function, args, kwargs)

    def map(self, function, *iterables, timeout=None, chunksize=None, buffersize=None):
        """Calls a function with each item, as the builtin `map`; returns an iterator of the results, in order.

        The result is also an asynchronous iterator, for `async for`, with which the iterables may be asynchronous.

        Items of an iterable with a length, such as a list, are taken at once. From an iterable without a length, which
        may be endless, the map takes a few more items than the workers execute, and further ones as results are read.

        Args:
            timeout: Seconds from now after which reading a result raises `TimeoutError`. The default is no limit.
            chunksize: Number of items per call. By default, a call gets items for about 2 ms.
            buffersize: Maximum number of items, or of chunks if `chunksize` is set, whose results were not read yet.
        """
        return self._map(self._plain, function, Source(iterables), timeout, chunksize, buffersize)

    def starmap(self, function, iterable, timeout=None, chunksize=None, buffersize=None):
        """Calls a function as `map`, with the arguments of each call in a tuple."""
        return self._map(self._plain, function, Source([iterable], is_star=True), timeout, chunksize, buffersize)

    def options(self, timeout=None, retries=0, worker=None):
        """Returns this lease with other options for calls.

        Args:
            timeout: Time limit of a call in seconds. A call that exceeds it raises `DeadlineExceeded`, and its worker is killed,
                since nothing else can stop a function.
            retries: Maximum number of repetitions on another worker if the worker ends. The function may then run partially more
                than once.
            worker: Number of the worker that executes the calls.

        Examples:
            >>> lease.options(timeout=5, retries=2).call(f, x)
        """
        return _WithOptions(self, Options(timeout, retries, worker))

    def _call(self, options, function, args, kwargs):
        if not self._is_python:
            return self._bytes(options, function, args, kwargs).finish(self._dispatch)
        self._check_open()
        calls, known, arguments = self._calls, self._functions.known(function), (args, kwargs)
        begun, definition = None, known.definition
        if definition.is_sent:
            # Fast path of nearly all calls. Replies other than a value continue on the general path.
            deadline = deadline_of(options)
            call = calls.send(known, CALL, known.parts(definition, arguments), options, options.timeout)
            try:
                call.wait()
            except BaseException:
                self._dispatch.keep(call)
                raise
            reply = call.reply()
            if reply is not None and reply[0] == DONE:
                return read(known, DONE, reply[1])[0]
            begun = Begun(definition, call, reply, deadline)
        target = _Target()
        sent = SentObjects(self._dispatch, Order(known, CALL, arguments, options, target), begun)
        try:
            sent.collect(None)
        except BaseException:
            self._dispatch.keep(sent.call)
            raise
        if target.exception is not None:
            try:
                raise target.exception
            finally:
                del target
        return target.result

    def _submit(self, options, function, args, kwargs):
        if not self._is_python:
            return self._bytes(options, function, args, kwargs).future(self)
        self._check_open()
        known = self._functions.known(function)
        if any(isinstance(value, concurrent.futures.Future) for value in (*args, *kwargs.values())):
            return self._dispatch.submit_after(known, (args, kwargs), options)
        return self._dispatch.submit(known, (args, kwargs), options)

    def _map(self, options, function, source, timeout, chunksize, buffersize, is_eager=False):
        if chunksize is not None and chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        self._check_open()
        is_eager = buffersize is None and not source.is_async and (is_eager or source.is_sized)
        if self._is_python:
            job, each = self._dispatch.map(self._functions.known(function), chunksize, options), chunksize or 1
        else:
            job, each = BytesJob(lambda arguments: self._submit(options, function, arguments, {}), self.workers), 1
        limit = None if buffersize is None else buffersize * each
        return results_of(source, job, limit, timeout, self, is_eager)

    def _bytes(self, options, function, args, kwargs):
        self._check_open()
        return _Bytes(self, options, function, args, kwargs)

    # The lease itself.

    def grow(self, cores):
        """Leases more cores on the same terms."""
        _kept.release()
        self._invoker.grow(cores)
        self.workers = self._invoker.workers()
        self._calls.look()
        self._dispatch.resize(self.workers)

    def renew(self, timeout):
        """Renews the lease to end this many seconds from now, if the managers allow it."""
        self._invoker.renew(timeout)
        self._renewed_at = time.monotonic()

    @property
    def leases(self):
        """Leases by node, each a dict: `id`, `node`, `pu`, `choice` (reason for the choice among several units), `cores`,
        `memory_bytes`, `expires_unix_ms`."""
        return self._ended if self._ended is not None else self._invoker.leases()

    @property
    def isolation(self):
        """Isolation of the workers from the rest of their node, as `"process"` or `"weak"`; None of a lease that has ended."""
        return self._invoker.isolation()

    @property
    def fabrics(self):
        """Fabric of each lease: `shm`, `tcp`, or a network of libfabric."""
        return self._invoker.fabrics()

    @property
    def notices(self):
        """Announced ends of leases, as when a node is withdrawn: `[(lease, reason)]`."""
        return self._invoker.notices()

    @property
    def usage(self):
        """Total usage, which is known after `close`: `calls`, `executing_ns`, `polling_ns`, `allocated_ns`."""
        total = {}
        for lease in self._ended or ():
            for name, value in lease.get("usage", {}).items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self, cancel=False):
        """Releases the cores after all calls have ended; `cancel` drops the calls that no worker has yet."""
        self._dispatch.refuse(_closed)
        with self._closing:
            if self._ended is not None:
                return
            if cancel:
                self._dispatch.cancel()
            try:
                if not cancel:
                    self._dispatch.drain()
            finally:
                self._end()

    def _end(self):
        try:
            self._ended = self._invoker.deallocate()
        except _errors.AgentUnreachable:
            # The lease has ended in this case, too, and only the bill has its usage.
            self._ended = []
        finally:
            if self._ended is None:
                self._ended = []
            self._dispatch.abandon(_closed)
            _open.discard(self)

    def _check_open(self):
        if self._ended is not None:
            raise _closed()
        if _process.is_forked():
            _process.check()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.close(cancel=kind is not None)

    __reduce__ = _process.stays_here("a lease", "call its functions from there")

    def __del__(self):
        # The last reference releases the library's lease and its cores. Running calls refer to it, too.
        dispatch = self._dispatch
        if self._ended is not None or dispatch is None or _process.is_forked():
            return
        if not dispatch.is_idle() or dispatch.has_kept():
            dispatch.completer.take_over(dispatch)

    def __repr__(self):
        state = "closed" if self._ended is not None else f"{self.workers} workers"
        return f"<sublet lease of {self.package}: {state}>"

    def _repr_html_(self):
        from ._notebook import lease_html

        return lease_html(self)


class _WithOptions:
    """A lease with options for its calls."""

    def __init__(self, lease, options):
        self._lease = lease
        self._options = options

    def call(self, function, /, *args, **kwargs):
        """See `Lease.call`."""
        return self._lease._call(self._options, function, args, kwargs)

    def submit(self, function, /, *args, **kwargs):
        """See `Lease.submit`."""
        return self._lease._submit(self._options, function, args, kwargs)

    def map(self, function, *iterables, timeout=None, chunksize=None, buffersize=None):
        """See `Lease.map`."""
        return self._lease._map(self._options, function, Source(iterables), timeout, chunksize, buffersize)

    def starmap(self, function, iterable, timeout=None, chunksize=None, buffersize=None):
        """See `Lease.starmap`."""
        return self._lease._map(self._options, function, Source([iterable], is_star=True), timeout, chunksize, buffersize)


class _Bytes:
    """A call of a function that is not in Python, with buffers as input and output."""

    def __init__(self, lease, options, function, args, kwargs):
        out = kwargs.pop("out", OUTPUT_BYTES)
        if not isinstance(function, str):
            raise TypeError(f"package {lease.package} is not in Python: call its functions by their names, not by {function!r}")
        if kwargs or len(args) > 1:
            raise TypeError(f"{function} is not in Python: it takes one positional argument, and out=")
        value = _checked("the input", args[0]) if args else b""
        self.out = out if type(out) is int else _checked("out", out)
        self._sent = lease._invoker.call_bytes(
            function, value, self.out, worker=options.worker, retries=options.retries, timeout=options.timeout
        )

    def finish(self, dispatch):
        try:
            self._sent.wait()
        except BaseException:
            dispatch.keep(self._sent)
            raise
        return self._result()

    def _result(self):
        count, buffer = self._sent.bytes()
        return self.out if buffer is None else bytes(as_bytes_like(buffer))[:count]

    def future(self, lease):
        future = Future()
        future._begin(_SentBytes(self, future, lease._client._completer))
        return future


class _SentBytes(Sent):
    """A sent call of a function that is not in Python, for a future."""

    __slots__ = ("_bytes",)

    def __init__(self, call, future, completer):
        super().__init__(future, completer)
        self._bytes = call
        self.call = call._sent

    def _outcome(self):
        return self._bytes._result(), None


def _checked(what, value):
    """Checks that other languages can read the memory: they ignore an array's dtype and strides."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        if getattr(dtype, "hasobject", False):
            raise _errors.InvalidArgument(f"{what} is an array of objects, which only Python can read")
        if not getattr(dtype, "isnative", True):
            raise _errors.InvalidArgument(f"{what} has dtype {dtype.str}, whose byte order is not native: convert it by .astype(...)")
        flags = value.flags
        if not flags.c_contiguous:
            raise _errors.InvalidArgument(f"{what} is not contiguous: pass numpy.ascontiguousarray(...) of it")
        if what == "out" and not flags.writeable:
            raise _errors.InvalidArgument("out is a read-only array")
    return value


def _closed():
    return _errors.LeaseEnded("the lease was closed")


def close_all():
    """Releases all leases at the end of the interpreter."""
    for lease in list(_open):
        try:
            lease.close(cancel=True)
        except Exception:
            # The agent ends the lease when this process is gone.
            pass
