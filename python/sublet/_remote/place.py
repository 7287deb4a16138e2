"""Places: where arrays are made, and how much of them is in this process at a time."""

import functools
import inspect
import math
import sys
import threading

import numpy

from .. import _errors
from .._sizes import bytes_of
from . import stream
from .arena import Arena, Stretch, component_of
from .array import RemoteArray

# The least working set that goes with tiles of some use.
LEAST_WORKING_BYTES = 1024
# Maximum share of the working set for a result of a reduction that is local.
LOCAL_SHARE = 16


class Remote:
    """A place for arrays in remote memory: one memory component, and how much of its arrays is in this process at a time.

    `sublet.remote` is the place of the default client. It makes other places: `sublet.remote(near=["node-3"])`. A place
    leases nothing before its first array. Later arrays use the memory that earlier ones give back; the lease shrinks
    when more is free at the component's end than is used. The end of a `with` block releases all memory, even if arrays
    exist; the next array starts a new lease.

    In an application that `app` compiles, arrays are in a memory component of its graph, which ends with the run.

    A place is three things: a namespace of functions that make arrays; for a function, a decorator; for an ndarray, a function that
    copies it there.

    Args:
        working_set: Maximum memory of this process that an operation uses for elements, in bytes or as `"64MiB"`.
        threshold: Minimum size of an ndarray that a decorated function gets, or returns, as a remote array.
        client: Client that leases the memory. The default is the default client.
        initial: Size of the first segment, as for `Client.memory`.
        increment: Size of each further segment. The default is 64 MiB.
        limit: Maximum size of all arrays together. The default is 1 TiB.
        timeout: Duration of the lease in seconds, after which the memory and all its arrays end. `renew` extends it.
        wait: Maximum time to wait for capacity, in seconds.
        near: Names of preferred nodes.
        fabric: `"shm"`, `"tcp"` or `"tcp+tls"`. The default is shared memory on this machine, and TCP elsewhere.
    Examples:
        >>> with sublet.remote(working_set="16MiB") as far:
        ...     table = far.ones((1_000_000, 4))
        ...     table.sum(axis=0)
        array([1000000., 1000000., 1000000., 1000000.])
    """

    def __init__(
        self,
        *,
        working_set="64MiB",
        threshold="1MiB",
        client=None,
        initial="16MiB",
        increment="64MiB",
        limit="1TiB",
        timeout=None,
        wait=None,
        near=None,
        fabric=None,
    ):
        self._options = {name: value for name, value in locals().items() if name != "self"}
        self.working_bytes = bytes_of(working_set)
        if self.working_bytes < LEAST_WORKING_BYTES:
            raise _errors.InvalidArgument(f"a working set of {self.working_bytes} bytes: it has at least {LEAST_WORKING_BYTES}")
        self._threshold_bytes = bytes_of(threshold)
        self._lock = threading.Lock()
        self._arena = self._of = None

    def __call__(self, what=None, /, **options):
        """Returns a function with its large arrays in this place, a copy of an ndarray there, or another place.

        - A function: one that does the same with remote arrays. Each ndarray argument of at least `threshold` bytes,
          also within tuples, lists and dicts, is copied to this place first, and the function sees a `RemoteArray`.
          Changes of this copy do not reach the caller's array. Such ndarrays in the result are copied to this place,
          too. Arrays that the function itself makes with `numpy.zeros` and the like stay local, unless it passes
          `like=array` or calls the place's own functions.
        - An ndarray: a copy, as by `asarray`.
        - Only options: another place, with these and otherwise the options of this one.
        """
        if what is None:
            return Remote(**{**self._options, **options})
        if options:
            return self(**options)(what)
        if isinstance(what, (numpy.ndarray, RemoteArray)):
            return self.asarray(what)
        if callable(what):
            return self._decorated(what)
        raise TypeError(f"a function or an ndarray can be remote, not {type(what).__name__}")

    def _decorated(self, function):
        for is_other in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.isclass):
            if is_other(function):
                raise TypeError(f"{function!r} cannot be remote: only a function that returns its result can")

        @functools.wraps(function)
        def with_remote_arrays(*args, **kwargs):
            return self._exchanged(function(*self._exchanged(args), **self._exchanged(kwargs)))

        # Applications that name the function have memory for its arrays.
        with_remote_arrays.sublet_place = self
        return with_remote_arrays

    def _exchanged(self, what):
        """Returns a value with its large arrays copied to this place."""
        if isinstance(what, numpy.ndarray) and what.nbytes >= self._threshold_bytes and not what.dtype.hasobject:
            return self.asarray(what)
        if type(what) in (tuple, list):
            return type(what)(self._exchanged(part) for part in what)
        if type(what) is dict:
            return {name: self._exchanged(part) for name, part in what.items()}
        return what

    def empty(self, shape, dtype=float, order="C"):
        """A new array of any values."""
        dtype = self.checked(dtype)
        shape = (int(shape),) if isinstance(shape, (int, numpy.integer)) else tuple(int(length) for length in shape)
        if any(length < 0 for length in shape):
            raise ValueError("negative dimensions are not allowed")
        nbytes = math.prod(shape) * dtype.itemsize
        stretch = self._take(nbytes)
        return RemoteArray(self, stretch, stretch.shadow()[:nbytes].view(dtype).reshape(shape, order=order))

    def zeros(self, shape, dtype=float, order="C"):
        """A new array of zeros."""
        return self.full(shape, numpy.zeros((), dtype), dtype, order)

    def ones(self, shape, dtype=float, order="C"):
        """A new array of ones."""
        return self.full(shape, 1, dtype, order)

    def full(self, shape, fill_value, dtype=None, order="C"):
        """A new array of one value, or of values that are broadcast."""
        made = self.empty(shape, numpy.asarray(fill_value).dtype if dtype is None else dtype, order)
        made[...] = fill_value
        return made

    def arange(self, start, stop=None, step=1, dtype=None):
        """Evenly spaced numbers within an interval, as `numpy.arange`."""
        if stop is None:
            start, stop = 0, start
        dtype = numpy.dtype(numpy.result_type(start, stop, step) if dtype is None else dtype)
        if dtype.kind not in "iuf":
            raise TypeError(f"remote arange makes integers and floating-point numbers, not {dtype}")
        length = max(0, math.ceil((stop - start) / step))
        # NumPy computes the step from the rounded difference of the first two elements.
        wide = numpy.promote_types(dtype, "f4") if dtype.kind == "f" else dtype
        first, second = numpy.array([start, start + step]).astype(dtype).astype(wide)
        return self._by_position(length, dtype, lambda at: first + at.astype(wide) * (second - first))

    def linspace(self, start, stop, num=50, endpoint=True, dtype=None):
        """Makes `num` evenly spaced numbers from `start` to `stop`, as `numpy.linspace`."""
        intervals = max(1, num - 1 if endpoint else num)
        step = (stop - start) / intervals
        made = self._by_position(num, numpy.dtype(float if dtype is None else dtype), lambda at: at * step + start)
        if endpoint and num > 1:
            made[-1] = stop
        return made

    def array(self, values, dtype=None):
        """Makes a copy of values."""
        if isinstance(values, RemoteArray):
            values = values.astype(values.dtype if dtype is None else dtype)
            return values if values.place is self else self.copied(values)
        values = numpy.asarray(values, dtype)
        return self.copied(values)

    def asarray(self, values, dtype=None):
        """Values in this place: a copy, or if they are a remote array of this place already that itself."""
        if isinstance(values, RemoteArray) and values.place is self:
            return values if dtype is None else values.astype(dtype, copy=False)
        return self.array(values, dtype)

    def frombuffer(self, memory, dtype=float, count=-1, offset=0):
        """Returns the bytes of a `sublet.Memory` from `offset` on as a flat array, without copying: `count` elements,
        or all.

        The component is the caller's: it stays when the array goes, and its cache is not part of the working set.
        """
        dtype = self.checked(dtype)
        count = (memory.nbytes - offset) // dtype.itemsize if count < 0 else count
        if offset < 0 or count < 0 or offset + count * dtype.itemsize > memory.nbytes:
            raise ValueError(f"{count} elements of {dtype} from byte {offset} on are not in memory of {memory.nbytes} bytes")
        stretch = Stretch(component_of(memory), offset, count * dtype.itemsize)
        return RemoteArray(self, stretch, stretch.shadow().view(dtype))

    @property
    def nbytes(self):
        """Number of leased bytes."""
        return 0 if self._arena is None else self._arena.memory.capacity

    @property
    def leases(self):
        """Leases of the segments, as of `Memory`."""
        return [] if self._arena is None else self._arena.memory.leases

    def renew(self, timeout):
        """Sets the end of the memory's lease to `timeout` seconds from now, as far as the managers allow."""
        if self._arena is not None:
            self._arena.memory.renew(timeout)

    def release(self):
        """Releases all memory, which ends the arrays in this place.

        Must not be called while another thread uses one.
        """
        if self._arena is not None:
            self._arena.release()
            self._arena = None

    def __reduce__(self):
        """Another place with the same options, without the arrays of this one."""
        return functools.partial(Remote, **self._options), ()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        try:
            self.release()
        except _errors.InvalidArgument:
            # The operation that failed has tiles in its traceback: their memory goes with that.
            if error is None:
                raise

    def __repr__(self):
        return f"<sublet place for remote arrays: {self.nbytes} bytes leased>"

    def checked(self, dtype):
        """A dtype, if its elements are bytes and nothing else."""
        dtype = numpy.dtype(dtype)
        if dtype.hasobject:
            raise TypeError(f"objects cannot be remote: an array of dtype {dtype} has them")
        if dtype.itemsize == 0:
            raise TypeError(f"elements without bytes cannot be remote: dtype {dtype} has none")
        return dtype

    def laid_out(self, shape, dtype, like):
        """Makes a new array with the order of axes in memory of arrays that are broadcast to its shape."""
        order = stream.blocks.axes_order([numpy.broadcast_to(getattr(array, "_shadow", array), shape) for array in like])
        order = order or tuple(range(len(shape)))
        made = self.empty([shape[axis] for axis in order], dtype)
        return made.transpose([order.index(axis) for axis in range(len(shape))])

    def copied(self, array, order="K"):
        """A copy of any array."""
        if order in ("K", "A"):
            made = self.laid_out(array.shape, array.dtype, [array])
        else:
            made = self.empty(array.shape, array.dtype, order)
        stream.pointwise(stream.copy_tile, [array], [made], self.working_bytes)
        return made

    def is_small(self, nbytes):
        """Whether what a reduction leaves is local."""
        return nbytes * LOCAL_SHARE <= self.working_bytes

    def _by_position(self, length, dtype, values):
        made = self.empty(length, dtype)
        step = max(1, min(self.working_bytes // 32, stream.blocks.TILE_BYTES // 8))
        for piece in stream.blocks.pieces(length, step):
            made[piece] = values(numpy.arange(piece.start, piece.stop))
        return made

    def _take(self, nbytes):
        place = _place_of_run() if self._options["client"] is None else None
        if place is not None:
            return place._take(nbytes)
        from .._client import default_client

        client = self._options["client"] or default_client()
        with self._lock:
            # The default client may have become another one.
            if self._arena is None or self._of is not client:
                self._arena, self._of = self._leased(client), client
            arena = self._arena
        try:
            return arena.take(nbytes)
        except (_errors.LeaseEnded, _errors.AgentUnreachable):
            # It is over with all its arrays. The next ones are in another.
            with self._lock:
                if self._arena is arena:
                    self._arena = None
            raise

    def _leased(self, client):
        names = ("initial", "increment", "limit")
        sizes = [bytes_of(self._options[name]) for name in names]
        # Leased in whole pages.
        sizes = [-(-size // 4096) * 4096 for size in sizes]
        more = {name: self._options[name] for name in ("timeout", "wait", "near", "fabric")}
        # The working set takes the place of a cache, so the component has none.
        return Arena(client.memory(*sizes, cache=0, **more), *sizes)


def _place_of_run():
    """Returns the place in memory components of the application that this worker executes; None elsewhere."""
    components = sys.modules.get("sublet.components")
    return None if components is None else components.place_of_run()
