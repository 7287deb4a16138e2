"""Access of functions to the run that executes them: memory components, messages, and the number of the instance."""

import sys

from . import _errors
from ._shapes import _numpy, nbytes_of


def _worker():
    """Returns the module by which a worker executes functions, if this process is a worker."""
    return sys.modules.get("sublet_template")


def instance():
    """Returns the number of this instance of its component, from 0; 0 in a call outside of runs."""
    worker = _worker()
    return 0 if worker is None else worker.instance()[0]


def instances():
    """Returns the number of instances of the component; 1 in a call outside of runs."""
    worker = _worker()
    return 1 if worker is None else worker.instance()[1]


def _worker_of_a_run():
    worker = _worker()
    if worker is None:
        raise _errors.InvalidArgument("memory components exist only in workers that execute a graph's run")
    return worker


def channel(component):
    """Opens a memory component by its name in the graph; returns a `Channel`, valid for the run.

    Raises `InvalidArgument` if the graph has no access edge to it, and outside of runs; `LeaseEnded` if this function has
    released it.
    """
    return Channel(component, _worker_of_a_run().open_channel(component))


def send(component, data, instance=0, timeout=None):
    """Sends a message to an instance of another component, which runs at the same time: the graph has a message edge.

    `data` is `bytes` or any buffer, of at most 65536 bytes: larger data belong in memory components. The function waits for
    space in the instance's queue, at most `timeout` seconds, but not for the receiver. Messages of one sender keep their order.

    Raises `DeadlineExceeded`, which is a `TimeoutError`; `LeaseEnded` if the component has ended; and `InvalidArgument` without such
    an edge or instance, for a message that is too long, and outside of runs.

    Examples:
        >>> sublet.send("tell", b"a question")
    """
    _worker_of_a_run().send(component, data, instance, timeout)


def receive(component, timeout=None):
    """Receives the next message from any instance of another component; returns its bytes and the number of that instance.

    Several threads of the function may receive at the same time: each message goes to one of them.

    The function waits at most `timeout` seconds; 0 does not wait. Raises `DeadlineExceeded`, which is a `TimeoutError`; `LeaseEnded` when the
    component has ended and the queue is empty; and `InvalidArgument` as `send`.

    Examples:
        >>> question, asker = sublet.receive("ask", timeout=10)
    """
    return _worker_of_a_run().receive(component, timeout)


class Channel:
    """An open memory component, in a function that a run executes. Created by `channel`.

    The component is an array of bytes. The part on the worker's own machine is mapped, the rest is read and written over
    connections, through a cache. Several instances may access it at once; the program has to coordinate writes.
    """

    def __init__(self, name, native):
        #: Name of the component.
        self.name = name
        self._native = native
        # Weak reference to the state that all remote arrays in this component share.
        self._remote = None

    @property
    def nbytes(self):
        """Size of the component: the end of the last byte that was written."""
        return self._native.nbytes()

    @property
    def readonly(self):
        """Whether the edge is only for reading."""
        return not self._native.is_writable()

    def read(self, offset=0, nbytes=None):
        """Returns a copy of bytes from `offset` on; without `nbytes` all bytes to the end."""
        return self._native.read(offset, max(0, self.nbytes - offset) if nbytes is None else nbytes)

    def read_into(self, offset, buffer):
        """Fills a writable buffer, such as an array, with bytes from `offset` on."""
        self._native.read_into(offset, buffer)

    def write(self, offset, data):
        """Copies the bytes of a buffer in: `bytes` or a contiguous array. The component grows for bytes beyond its end."""
        self._native.write(offset, data)

    def read_async(self, offset, nbytes):
        """Starts to copy bytes out; `result()` of the returned object, called once, waits for them and returns them."""
        return self._native.read_async(offset, nbytes)

    def write_async(self, offset, data):
        """Copies bytes in as `write`, without waiting until others can read them, which `sync` and the end of the function do."""
        self._native.write_async(offset, data)

    def grow(self, nbytes):
        """Grows the component to `nbytes` bytes, if it is smaller. New bytes are 0."""
        self._native.grow(nbytes)

    def resize(self, nbytes):
        """Resizes the component to `nbytes` bytes. New bytes are 0.

        Shrinking requires that no other instance or component accesses it: `InvalidArgument` while another one has neither ended nor
        released it, and while an array lies in the removed part. On the machine of the run's client, whole unused segments are
        released; on other machines they are kept for later growth.
        """
        self._native.resize(nbytes)

    def release(self):
        """Syncs the component and ends this function's access to it.

        Its memory is released when all started instances of all components with access have ended or released it, and no further
        one will start. Raises `InvalidArgument` while an array lies in it. Afterwards every use by this function, including opening
        it again, raises `LeaseEnded`.
        """
        self._native.release()

    def sync(self):
        """Makes this function's writes visible to others, and makes writes that they have synced visible here.

        The return of a function does the same. Memory on one machine does not need it.
        """
        self._native.sync()

    def prefetch(self, offset, nbytes):
        """Starts to fetch bytes from other machines that will be read soon, without waiting for them."""
        self._native.prefetch(offset, nbytes)

    def array(self, shape, dtype=float, offset=0):
        """Returns a NumPy array over bytes of the component from `offset` on: writes to it go to the component, without copying.

        The component grows to hold the array. If the edge is only for reading, the component must be large enough, and the array is
        read-only. Bytes on another machine cannot be mapped: `read_into` copies them.
        """
        numpy = _numpy()
        shape, dtype, nbytes = nbytes_of(shape, dtype)
        if not self.readonly:
            self.grow(offset + nbytes)
        return numpy.ndarray(shape, dtype, buffer=numpy.asarray(self._native.mapped(offset, nbytes)))

    def __repr__(self):
        return f"<sublet channel to {self.name}>"
