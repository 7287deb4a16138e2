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

# What a function that is not in Python may return if nobody says where, in bytes.
OUTPUT_BYTES = 64 << 10

# Every lease that is open, for the end of the interpreter.
_open = weakref.WeakSet()


def _count(name, value):
    """A number as the library counts: not negative, and of 32 bits."""
    if not 0 <= value < 1 << 32:
        raise _errors.InvalidArgument(f"{value} {name}: a number from 0 to {(1 << 32) - 1} was expected")
    return value


class Options:
    """How calls are made; see `Lease.options`."""

    __slots__ = ("timeout", "retries", "worker")

    def __init__(self, timeout=None, retries=0, worker=None):
        self.timeout = timeout
        self.retries = _count("retries", retries)
        self.worker = None if worker is None else _count("worker", worker)


class _Target:
    """Where the result of a call goes whose caller waits for it."""

    __slots__ = ("result", "exception")

    def _end(self, result, exception):
        self.result = result
        self.exception = exception


class _Calls:
    """The calls of one lease, towards the workers."""

    def __init__(self, lease, completer):
        self._invoker = lease._invoker
        self._call = lease._invoker.call
        self.completer = completer
        completer.start()
        self.look()

    def look(self):
        """Finds out whether all workers share this process's memory."""
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
        """Gives the cores back, which nobody has any more."""
        try:
            self._invoker.deallocate()
        except _errors.Error:
            # Then the agent ends the lease, when the connection is closed.
            pass


class Lease:
    """Workers on leased cores, until `close`, the end of a `with` block, or the lease's own time.

    Made by `Client.lease`. May be used from several threads at once. One that nobody refers to any more gives its cores back when the
    calls that were submitted have ended.
    """

    def __init__(self, client, invoker, functions):
        self._ended = self._dispatch = None
        self._client = client
        self._invoker = invoker
        self._functions = functions
        self._plain = Options()
        self._closing = threading.Lock()
        name, _, names, is_python, is_own, owner = invoker.package()
        #: The name of the package whose functions are called.
        self.package = name
        #: The names of its functions.
        self.functions = tuple(function for function in names if function != FUNCTION)
        self._is_python = is_python
        if not is_own:
            functions.origin = _foreign.Foreign(_foreign.described(name, owner))
        #: How many workers there are: one for each core.
        self.workers = invoker.workers()
        # When the managers last confirmed the lease, by the monotonic clock.
        self._renewed_at = time.monotonic()
        self._calls = _Calls(self, client._completer)
        self._dispatch = Dispatch(self._calls, self.workers)
        _open.add(self)

    # Calls of functions in Python, and of others.

    def call(self, function, /, *args, **kwargs):
        """Calls a function and waits for what it returns, which is the fastest way. Raises what it raises.

        `function` is a callable, or the name of a function of the package: `module:name`, or as its manifest names it. Of a package
        that is not in Python, the argument is one array, or whatever has the buffer protocol, and `out=` says where the output
        goes: an array, or how many bytes there may be.
        """
        return self._call(self._plain, function, args, kwargs)

    def submit(self, function, /, *args, **kwargs):
        """As `call`, without waiting: returns a `Future`.

        Futures among the arguments are waited for first, in the background, and the function gets their results: calls that depend
        on each other are submitted at once. If one of them fails, this fails with the same exception.
        """
        return self._submit(self._plain, function, args, kwargs)

    def map(self, function, *iterables, timeout=None, chunksize=None, buffersize=None):
        """Calls a function with each item, as the builtin `map`: returns an iterator of the results, in order.

        It is an asynchronous iterator, too, for `async for`, and then the iterables may be asynchronous.

        Items are taken when they are needed: of an iterable without a length, which may be endless, a few more than the workers
        have, and further ones as results are read. Items of one with a length, as a list, are all taken at once.

        Args:
            timeout: Seconds from now on after which reading a result raises `TimeoutError`; without it there is no limit.
            chunksize: How many items a worker is given at a time; without it, as many as take about 2 ms.
            buffersize: How many items, or chunks if `chunksize` says their size, are taken at most whose results were not read yet.
        """
        return self._map(self._plain, function, Source(iterables), timeout, chunksize, buffersize)

    def starmap(self, function, iterable, timeout=None, chunksize=None, buffersize=None):
        """As `map`, with the arguments of each call in a tuple."""
        return self._map(self._plain, function, Source([iterable], is_star=True), timeout, chunksize, buffersize)

    def options(self, timeout=None, retries=0, worker=None):
        """This lease for calls that are made otherwise.

        Args:
            timeout: Seconds by which a call must have ended. Nothing else can stop a function, so its worker is ended, and the
                call raises `DeadlineExceeded`.
            retries: How often a call may be repeated on another worker if its own ends. It may then have been executed in part.
            worker: The number of the one that is to execute it.

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
            # The way of nearly all calls. Those that come back with anything but a value go the others' way from here.
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
        """Leases so many cores more, on the same terms."""
        _kept.release()
        self._invoker.grow(cores)
        self.workers = self._invoker.workers()
        self._calls.look()
        self._dispatch.resize(self.workers)

    def renew(self, timeout):
        """Lets the lease end so many seconds from now, as far as the managers allow."""
        self._invoker.renew(timeout)
        self._renewed_at = time.monotonic()

    @property
    def leases(self):
        """What is leased of which node, each a dict: `id`, `node`, `pu`, `choice` (why that, where there were several), `cores`,
        `memory_bytes`, `expires_unix_ms`."""
        return self._ended if self._ended is not None else self._invoker.leases()

    @property
    def fabrics(self):
        """What carries the calls of each: `shm`, `tcp`, or what libfabric reaches."""
        return self._invoker.fabrics()

    @property
    def notices(self):
        """Ends of leases that were announced, as when a node is taken back: `[(lease, why)]`."""
        return self._invoker.notices()

    @property
    def usage(self):
        """What was used in all, known once the lease is closed: `calls`, `executing_ns`, `polling_ns`, `allocated_ns`."""
        total = {}
        for lease in self._ended or ():
            for name, value in lease.get("usage", {}).items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self, cancel=False):
        """Gives the cores back, when all calls have ended; `cancel` drops those that no worker has yet."""
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
            # Then it is over, too, and only the bill says what it used.
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
        # With its last reference the library's own lease goes, and gives the cores back. Calls that are under way refer to that, too.
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
    """A lease, with options for the calls that are made by this."""

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
    """A call of a function that is not in Python: its input and output are memory."""

    def __init__(self, lease, options, function, args, kwargs):
        out = kwargs.pop("out", OUTPUT_BYTES)
        if not isinstance(function, str):
            raise TypeError(f"functions of package {lease.package} are called by their names, not by {function!r}: it is not in Python")
        if kwargs or len(args) > 1:
            raise TypeError(f"{function} is not in Python: it takes one argument, and out=")
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
    """The same, for a future."""

    __slots__ = ("_bytes",)

    def __init__(self, call, future, completer):
        super().__init__(future, completer)
        self._bytes = call
        self.call = call._sent

    def _outcome(self):
        return self._bytes._result(), None


def _checked(what, value):
    """Memory that other languages can read: they know nothing of an array's dtype and strides."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        if getattr(dtype, "hasobject", False):
            raise _errors.InvalidArgument(f"{what} is an array of objects, which only Python can read")
        if not getattr(dtype, "isnative", True):
            raise _errors.InvalidArgument(f"{what} is of dtype {dtype.str}, whose bytes are in the other order: convert it by .astype(...)")
        flags = value.flags
        if not flags.c_contiguous:
            raise _errors.InvalidArgument(f"{what} is not contiguous: pass numpy.ascontiguousarray(...) of it")
        if what == "out" and not flags.writeable:
            raise _errors.InvalidArgument("out is a read-only array")
    return value


def _closed():
    return _errors.LeaseEnded("the lease was closed")


def close_all():
    """Gives back whatever is held: the interpreter ends."""
    for lease in list(_open):
        try:
            lease.close(cancel=True)
        except Exception:
            # The agent ends it when this process is gone.
            pass
