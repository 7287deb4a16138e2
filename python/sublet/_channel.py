"""Access of functions to the run that executes them: memory components, messages, and the number of the instance."""

import sys

from . import _errors
from ._shapes import _numpy, nbytes_of


def _worker():
    """The module by which a worker executes functions, if this is one."""
    return sys.modules.get("sublet_template")


def instance():
    """Which instance of its component this is, from 0. Of a call that is not of a run: 0."""
    worker = _worker()
    return 0 if worker is None else worker.instance()[0]


def instances():
    """How many instances execute the component. Of a call that is not of a run: 1."""
    worker = _worker()
    return 1 if worker is None else worker.instance()[1]


def _worker_of_a_run():
    worker = _worker()
    if worker is None:
        raise _errors.InvalidArgument("this program is no worker that executes a graph's run, and has no memory components")
    return worker


def channel(component):
    """Opens the way to a memory component, by its name in the graph: a `Channel`, for as long as the run.

    Raises `InvalidArgument` if the graph has no access edge to it, and in a call that is not of a run; `LeaseEnded` if this
    function has released it.
    """
    return Channel(component, _worker_of_a_run().open_channel(component))


def send(component, data, instance=0, timeout=None):
    """Sends a message to an instance of another component, which runs at the same time: the graph has a message edge.

    `data` is `bytes` or any buffer, of at most 65536 bytes: what is larger is for memory components. It waits for room in that
    instance's queue, at most `timeout` seconds, and not until it is received. Messages of one sender keep their order.

    Raises `DeadlineExceeded`, which is a `TimeoutError`; `LeaseEnded` if the component has ended; and `InvalidArgument` without such
    an edge or instance, for what is too long, and in a call that is not of a run.

    Examples:
        >>> sublet.send("tell", b"a question")
    """
    _worker_of_a_run().send(component, data, instance, timeout)


def receive(component, timeout=None):
    """Takes the next message that any instance of another component has sent to this one: its bytes, and the number of that
    instance.

    It waits at most `timeout` seconds; 0 only looks. Raises `DeadlineExceeded`, which is a `TimeoutError`; `LeaseEnded` when the
    component has ended and nothing is left of it; and `InvalidArgument` as `send` does.

    Examples:
        >>> question, asker = sublet.receive("ask", timeout=10)
    """
    return _worker_of_a_run().receive(component, timeout)


class Channel:
    """The way to a memory component, in a function that is executed by a run. Made by `channel`.

    The component is one stretch of bytes from 0 on. What of it is on the worker's own machine is mapped, the rest is read and
    written over connections, past a cache. Several instances access it at once; who writes where
    when is the program's to say.
    """

    def __init__(self, name, native):
        #: The component's name.
        self.name = name
        self._native = native

    @property
    def nbytes(self):
        """How many bytes there are to be read: up to the last that anybody wrote."""
        return self._native.nbytes()

    @property
    def readonly(self):
        """Whether the edge is for reading alone."""
        return not self._native.is_writable()

    def read(self, offset=0, nbytes=None):
        """Bytes from there on, copied; without a number all that there are."""
        return self._native.read(offset, max(0, self.nbytes - offset) if nbytes is None else nbytes)

    def read_into(self, offset, buffer):
        """Copies as many bytes as a writable buffer has, such as an array, into it."""
        self._native.read_into(offset, buffer)

    def write(self, offset, data):
        """Copies the bytes of any buffer in: `bytes`, a contiguous array. What is beyond the end makes it grow."""
        self._native.write(offset, data)

    def read_async(self, offset, nbytes):
        """Begins to copy bytes out: `result()` of what this returns waits for them, once, and gives them."""
        return self._native.read_async(offset, nbytes)

    def write_async(self, offset, data):
        """As `write`, without waiting until others can read it, which `sync` and the end of the function do."""
        self._native.write_async(offset, data)

    def grow(self, nbytes):
        """Makes it so many bytes long, if it is shorter. New bytes are 0."""
        self._native.grow(nbytes)

    def resize(self, nbytes):
        """Makes it so many bytes long. New bytes are 0.

        To be made shorter it must be this function's alone: `InvalidArgument` while another instance or component accesses it that
        has neither ended nor released it, and while an array lies in what would go. Its memory is given back by whole segments, if
        the function is executed on the machine of the run's client; elsewhere it is kept for when it grows again.
        """
        self._native.resize(nbytes)

    def release(self):
        """Syncs it, and says that this function does not access it any more: it need not be kept until the function ends.

        Its memory is given back when all instances of all components that have begun have ended or released it, and no other is to
        begin that may access it. `InvalidArgument` while an array lies in it. What the function does with it afterwards, opening
        included, is `LeaseEnded`.
        """
        self._native.release()

    def sync(self):
        """Makes what was written be where others read it, and what others have synced before be read here.

        When a component's functions have returned that is done for them; on one machine it always is so.
        """
        self._native.sync()

    def prefetch(self, offset, nbytes):
        """Asks for bytes of other machines that will be read soon, and does not wait for them."""
        self._native.prefetch(offset, nbytes)

    def array(self, shape, dtype=float, offset=0):
        """A NumPy array that lies in it, from that byte on: what is written to it is in the component, without copying.

        The component grows to hold it. Where the edge is for reading, it must be long enough, and the array is read-only. Bytes of
        another machine cannot be mapped: `read_into` copies them.
        """
        numpy = _numpy()
        shape, dtype, nbytes = nbytes_of(shape, dtype)
        if not self.readonly:
            self.grow(offset + nbytes)
        return numpy.ndarray(shape, dtype, buffer=numpy.asarray(self._native.mapped(offset, nbytes)))

    def __repr__(self):
        return f"<sublet channel to {self.name}>"
