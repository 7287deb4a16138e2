"""Memory components: memory that is leased by the segment, and grows while it is written."""

from . import _errors, _process
from ._memory import _numpy, nbytes_of


class Memory:
    """Memory that is leased, grows while it is written, may lie on any machine, and is given back; a context manager.

    It is one stretch of bytes from 0 on. Segments of this machine are mapped, and an access copies memory. Those of other machines
    are read and written over a connection, past a cache: who writes reads what it wrote, and others do from its `sync` on, once
    they have synced themselves. When one segment has ended, all of the component has, and every access says why.

    Made by `Client.memory` and `sublet.memory`.

    Examples:
        >>> with sublet.memory(limit="1GiB") as memory:
        ...     memory.write(0, b"some bytes")
        ...     memory.read(5, 5)
        b'bytes'
    """

    def __init__(self, native):
        self._native = native
        self._leases = None
        # Weak reference to the state that all remote arrays in this component share.
        self._remote = None

    @property
    def nbytes(self):
        """Number of bytes that can be read: up to the last byte written, or the size set by `resize`."""
        return self._checked().sizes()[0]

    @property
    def capacity(self):
        """Number of leased bytes."""
        return self._checked().sizes()[1]

    @property
    def leases(self):
        """Leases of the segments in order, each a dict of `id`, `node`, `memory_bytes` and `expires_unix_ms`."""
        return self._leases if self._leases is not None else self._native.leases()

    def read(self, offset=0, nbytes=None):
        """Returns a copy of `nbytes` bytes from `offset` on; by default of all bytes up to the end."""
        native = self._checked()
        return native.read(offset, max(0, native.sizes()[0] - offset) if nbytes is None else nbytes)

    def read_into(self, offset, buffer):
        """Fills a writable buffer, such as an array, with the bytes from `offset` on."""
        self._checked().read_into(offset, buffer)

    def write(self, offset, data):
        """Copies the bytes of any buffer in: `bytes`, a contiguous array.

        The component grows if they exceed its end.
        """
        self._checked().write(offset, data)

    def read_async(self, offset, nbytes):
        """Begins to copy bytes out: `result()` of what this returns waits for them and returns them, once."""
        return self._checked().read_async(offset, nbytes)

    def write_async(self, offset, data):
        """Writes as `write`, without waiting until others can read the bytes; `sync` waits for that.

        `data` may be changed at once.
        """
        self._checked().write_async(offset, data)

    def sync(self):
        """Makes the bytes written here visible to other readers, and what others have synced visible here."""
        self._checked().sync()

    def prefetch(self, offset, nbytes):
        """Requests bytes that will be read soon, without waiting for them."""
        self._checked().prefetch(offset, nbytes)

    def array(self, shape, dtype=float, offset=0):
        """Returns a NumPy array in the component's memory, from byte `offset` on: writing to the array writes to the
        component.

        The component grows to hold it. It must be on this machine, and is neither released nor made so short as to end before the
        array, or another array or view of it, as long as there are any.
        """
        numpy = _numpy()
        shape, dtype, nbytes = nbytes_of(shape, dtype)
        native = self._checked()
        if offset + nbytes > native.sizes()[0]:
            native.resize(offset + nbytes)
        return numpy.ndarray(shape, dtype, buffer=numpy.asarray(native.mapped(offset, nbytes)))

    def resize(self, nbytes):
        """Sets the size in bytes. New bytes are 0. Segments beyond the new end are given back."""
        self._checked().resize(nbytes)

    def renew(self, timeout):
        """Sets the end of all segments' leases to `timeout` seconds from now, as far as the managers allow."""
        self._checked().renew(timeout)

    def release(self):
        """Gives all of it back, if that was not done. `leases` says what each segment used then."""
        if self._leases is not None:
            return
        _process.check()
        try:
            self._leases = self._native.release()
        except _errors.InvalidArgument:
            # Arrays are in the component.
            raise
        except _errors.Error:
            # It was over before, and only the bill says what it used.
            self._leases = []

    def _checked(self):
        if _process.is_forked():
            _process.check()
        return self._native

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.release()

    __reduce__ = _process.stays_here("a memory component", "read and write it there, and pass the bytes")

    def __repr__(self):
        if self._leases is not None:
            return "<sublet memory: released>"
        nbytes, capacity = self._native.sizes()
        return f"<sublet memory of {nbytes} bytes, {capacity} leased>"
