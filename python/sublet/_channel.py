"""What a function that is executed by a graph's run has of the run: memory components, and which instance it is."""

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


def channel(component):
    """Opens the way to a memory component, by its name in the graph: a `Channel`, for as long as the run.

    Raises `InvalidArgument` if the graph has no access edge to it, and in a call that is not of a run.
    """
    worker = _worker()
    if worker is None:
        raise _errors.InvalidArgument("this program is no worker that executes a graph's run, and has no memory components")
    return Channel(component, worker.open_channel(component))


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

    def grow(self, nbytes):
        """Makes it so many bytes long, if it is shorter. New bytes are 0."""
        self._native.grow(nbytes)

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
