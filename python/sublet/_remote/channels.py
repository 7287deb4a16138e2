"""Places of workers that execute a graph: their arrays are in its memory components.

Results of operations are behind the bytes that the component has already. Where these cannot be added, since the component is
only read or since others add to it at the same time, results are in the worker's own memory.
"""

import numpy

from .. import _errors
from .._channel import Channel
from . import stream
from .arena import ALIGNMENT_BYTES, SPACE_BYTES, Arena, Component, Stretch, component_of
from .array import RemoteArray
from .place import Remote

# Working set of an operation: a share of the worker's memory, within these bounds in bytes.
WORKING_SHARE = 8
LEAST_BYTES, MOST_BYTES = 1 << 20, 64 << 20
# Steps, in bytes, in which a component grows for results.
STEP_BYTES = 16 << 20


class ChannelPlace(Remote):
    """The place of the arrays in one memory component, for a `sublet.Channel` to it.

    Results are not in the component if it is read-only, or if others may add to it at the same time, which `is_shared` says.
    """

    def __init__(self, channel, is_shared):
        super().__init__(working_set=_working_bytes())
        self._channel = channel
        self._is_shared = is_shared
        self._component = component_of(channel)

    def at(self, offset, nbytes, description):
        """Returns an array that is there already.

        Args:
            offset: Begin of the bytes that it lies in.
            nbytes: Number of these bytes.
            description: Offset of the first element within them, dtype, shape, strides, and whether it may be written.
        """
        begin, dtype, shape, strides, is_writable = description
        stretch = Stretch(self._component, offset, nbytes)
        shadow = numpy.ndarray(shape, dtype, stretch.shadow(), begin, strides)
        return RemoteArray(self, stretch, shadow, is_readonly=self._channel.readonly or not is_writable)

    @property
    def has_grown(self):
        """Whether results are in the component."""
        return self._arena is not None

    def _take(self, nbytes):
        if self._channel.readonly or self._is_shared:
            nbytes = max(nbytes, 1)
            return Stretch(Component(_OwnBytes(nbytes), nbytes), 0, nbytes)
        with self._lock:
            if self._arena is None:
                begin = -(-self._channel.nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
                self._arena = Arena(_Growing(self._channel), STEP_BYTES, STEP_BYTES, SPACE_BYTES, self._component, begin)
        return self._arena.take(nbytes)


class _OwnBytes:
    """Memory of this process for one array."""

    def __init__(self, nbytes):
        self._bytes = numpy.empty(nbytes, "u1")

    def array(self, nbytes, dtype, offset):
        return self._bytes[offset : offset + nbytes].view(dtype)

    def read(self, offset, nbytes):
        return self._bytes[offset : offset + nbytes].tobytes()


class _Growing:
    """The memory of an arena in a channel. It keeps its size: what the component's function leaves is behind it."""

    def __init__(self, channel):
        self._channel = channel

    def resize(self, nbytes):
        if nbytes < self._channel.nbytes:
            raise _errors.InvalidArgument(f"memory component {self._channel.name} is not made shorter for remote arrays")
        self._channel.grow(nbytes)


def located(array):
    """Returns where a remote array's elements are: the name of a memory component, the address at which its shadows begin, and an
    ndarray whose addresses are those of the elements.

    For elements in the memory of this process the name is `None`, and the address 0.

    Raises:
        TypeError: They are in memory that the run does not have.
    """
    component = array._stretch.component
    if isinstance(component.memory, _OwnBytes):
        return None, 0, stream.part_of(array).array
    if not isinstance(component.memory, Channel):
        raise TypeError("a remote array of another place belongs to this worker: numpy.asarray(array) is a copy")
    return component.memory.name, component.address, array._shadow


def _working_bytes():
    """Returns the working set for this worker, by its memory as the lease shows it."""
    try:
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemTotal:"))
        total = int(line.split()[1]) << 10
    except (OSError, StopIteration, ValueError, IndexError):
        return LEAST_BYTES
    return min(max(total // WORKING_SHARE, LEAST_BYTES), MOST_BYTES)
