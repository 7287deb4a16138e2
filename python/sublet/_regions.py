"""The bytes of memory components as a component of an application reaches them: mapped, copied, or as remote arrays.

Variables are in *stretches* of memory components. Stretches that overlap are one *region*, so that arrays that share memory do so in
each of these forms:

- A region on the worker's own node is mapped.
- A region on another node is copied if it has at most `REMOTE_BYTES`, or if more than arrays is in it. Changes of
  the copy are written back behind the function.
- A larger region stays where it is: its arrays are remote arrays over the channel. So are those in the memory component of
  `sublet.remote`, on any node.
"""

import contextlib
import ctypes
from typing import NamedTuple

from . import _errors
from ._channel import channel

# Maximum size in bytes of what is copied from another node, although it could be a remote array.
REMOTE_BYTES = 1 << 20
# Part of the name of the memory component in which an application's own remote arrays are. No variable's name has it.
REMOTE = ".remote"
# Alignment of arrays.
ALIGNMENT = 64
# Bytes that are copied, or compared, at a time.
CHUNK_BYTES = 1 << 20


class Stretch(NamedTuple):
    """Bytes of a memory component."""

    component: str
    offset: int
    nbytes: int

    def has(self, other):
        """Whether all bytes of another stretch are in this one."""
        is_within = self.offset <= other.offset and other.offset + other.nbytes <= self.offset + self.nbytes
        return self.component == other.component and is_within

    def overlaps(self, other):
        is_beside = self.offset + self.nbytes <= other.offset or other.offset + other.nbytes <= self.offset
        return self.component == other.component and not is_beside


class Region:
    """Consecutive bytes of a memory component, as this process has them."""

    def __init__(self, stretch, opened, is_copied, is_local):
        """Opens the bytes of `stretch`.

        Args:
            opened: The channel, or the memory, of the component.
            is_copied: They are copied in any case, to this process's own memory.
            is_local: They cannot be on another node.
        """
        self.stretch = stretch
        #: The bytes, as an array; None if they stay where they are, for remote arrays.
        self.bytes = None
        self._channel = opened
        # A copy's bytes as they were.
        self._before = None
        if REMOTE in stretch.component:
            return
        if not is_copied:
            self.bytes = mapped(opened, stretch)
        if self.bytes is None and (is_copied or is_local or stretch.nbytes <= REMOTE_BYTES):
            self._copy(is_written_back=not is_copied)

    def part(self, stretch):
        """Returns the bytes of a stretch within the region; None if they stay where they are."""
        begin = stretch.offset - self.stretch.offset
        return None if self.bytes is None else self.bytes[begin : begin + stretch.nbytes]

    def write_back(self, is_shared):
        """Writes what was changed in a copy to the component; see `changed`."""
        if self._before is None:
            return
        for begin in range(0, self.stretch.nbytes, CHUNK_BYTES):
            before, after = self._before[begin : begin + CHUNK_BYTES], self.bytes[begin : begin + CHUNK_BYTES]
            for first, last in changed(before, after, is_shared):
                self._channel.write_async(self.stretch.offset + begin + first, after[first:last])
            before[...] = after

    def _copy(self, is_written_back):
        import numpy

        self.bytes = numpy.empty(self.stretch.nbytes, "u1")
        self._channel.read_into(self.stretch.offset, self.bytes)
        if not is_written_back:
            return
        if self._channel.readonly:
            self.bytes.flags.writeable = False
        else:
            self._before = self.bytes.copy()


def mapped(opened, stretch):
    """Returns the bytes of a stretch where they are, as an array; None if they are on another node."""
    try:
        return opened.array(stretch.nbytes, "u1", stretch.offset)
    except _errors.Error as error:
        if error.code != "fabric_unavailable":
            raise
        return None


def changed(before, after, is_shared):
    """Returns the ranges of bytes that differ, as pairs of their begin and end.

    Bytes that are the same are in none if other components or instances may change them at the same time, which `is_shared` says;
    otherwise there is at most one range.
    """
    import numpy

    different = numpy.flatnonzero(before != after)
    if different.size == 0:
        return []
    if not is_shared:
        return [(int(different[0]), int(different[-1]) + 1)]
    gaps = numpy.flatnonzero(numpy.diff(different) > 1)
    begins, ends = [0, *(gaps + 1).tolist()], [*gaps.tolist(), different.size - 1]
    return [(int(different[begin]), int(different[end]) + 1) for begin, end in zip(begins, ends)]


def merged(stretches):
    """Joins stretches that overlap."""
    joined = []
    for stretch in sorted(set(stretches)):
        last = joined[-1] if joined else None
        if last is not None and last.overlaps(stretch):
            end = max(last.offset + last.nbytes, stretch.offset + stretch.nbytes)
            joined[-1] = Stretch(last.component, last.offset, end - last.offset)
        else:
            joined.append(stretch)
    return joined


class RunMemory:
    """The memory components that a component of an application accesses, by channels, or its caller, by the run's result."""

    def __init__(self, opened=channel, is_copied=False, is_shared=False):
        """Opens components by the function `opened`, of their names.

        Args:
            is_copied: That of each `Region`.
            is_shared: Other components or instances access the memory at the same time.
        """
        self._opened = opened
        self._is_copied = is_copied
        self._is_shared = is_shared
        self._channels = {}
        self._regions = []
        self._places = {}

    def channel(self, name):
        """Opens a memory component."""
        if name not in self._channels:
            self._channels[name] = self._opened(name)
        return self._channels[name]

    def has(self, name):
        try:
            self.channel(name)
        except _errors.InvalidArgument:
            return False
        return True

    def attach(self, stretches, local):
        """Makes stretches accessible, all that are needed at once. Those that overlap one of `local` are not left on another node."""
        for stretch in merged(stretches):
            is_local = any(stretch.overlaps(other) for other in local)
            self._regions.append(Region(stretch, self.channel(stretch.component), self._is_copied, is_local))

    def bytes_of(self, stretch):
        """Returns the bytes of an attached stretch; None if they stay where they are."""
        return self._region(stretch).part(stretch)

    def remote(self, stretch, description):
        """Returns an array in an attached stretch that stays where it is; see `ChannelPlace.at`."""
        whole = self._region(stretch).stretch
        begin, *rest = description
        return self.place(stretch.component).at(whole.offset, whole.nbytes, (begin + stretch.offset - whole.offset, *rest))

    def place(self, name):
        """Returns the place of remote arrays in a memory component."""
        # Imported here, so that only components with such arrays pay for it.
        from ._remote.channels import ChannelPlace

        if name not in self._places:
            self._places[name] = ChannelPlace(self.channel(name), self._is_shared)
        return self._places[name]

    def trim(self, needed):
        """Shortens components that have grown for results of remote arrays to what the stretches `needed` have of them."""
        for name, place in self._places.items():
            if place.has_grown:
                end = max((stretch.offset + stretch.nbytes for stretch in needed if stretch.component == name), default=0)
                # It is refused while an array lies there, or while another component accesses it.
                with contextlib.suppress(_errors.InvalidArgument):
                    self.channel(name).resize(end)

    def find(self, low, high):
        """Returns the location of these addresses, if they are in a component or in the copy of a part of one."""
        for stretch, found in self._reached():
            if found is not None:
                base = address_of(found)
                if base <= low and high <= base + stretch.nbytes:
                    return Stretch(stretch.component, stretch.offset + low - base, high - low)
        return None

    def _reached(self):
        """Stretches with their bytes: those that were attached, and then components as a whole, which functions may have opened."""
        for region in self._regions:
            yield region.stretch, region.bytes
        for name, opened in self._channels.items():
            whole = Stretch(name, 0, opened.nbytes)
            if whole.nbytes:
                yield whole, mapped(opened, whole)

    def append(self, name, nbytes):
        """Appends new bytes to a component."""
        opened = self.channel(name)
        offset = -(-opened.nbytes // ALIGNMENT) * ALIGNMENT
        opened.grow(offset + nbytes)
        return Stretch(name, offset, nbytes)

    def store(self, stretch, address):
        """Copies bytes of this process to a stretch."""
        self.channel(stretch.component).write(stretch.offset, (ctypes.c_ubyte * stretch.nbytes).from_address(address))

    def copy(self, source, target):
        """Copies a stretch to another one, which it does not overlap."""
        read, write = self.channel(source.component), self.channel(target.component)
        for at in range(0, source.nbytes, CHUNK_BYTES):
            nbytes = min(CHUNK_BYTES, source.nbytes - at)
            write.write_async(target.offset + at, read.read(source.offset + at, nbytes))

    def write_back(self):
        """Writes what was changed in copies to their components."""
        for region in self._regions:
            region.write_back(self._is_shared)

    def _region(self, stretch):
        return next(region for region in self._regions if region.stretch.has(stretch))


class Contents:
    """Bytes that a memory component is to begin with, to be stored as those of a `RunMemory` are."""

    def __init__(self):
        self.content = bytearray()

    def channel(self, name):
        return self

    def has(self, name):
        return False

    def find(self, low, high):
        return None

    def append(self, name, nbytes):
        offset = -(-len(self.content) // ALIGNMENT) * ALIGNMENT
        self.content.extend(bytes(offset + nbytes - len(self.content)))
        return Stretch(name, offset, nbytes)

    def store(self, stretch, address):
        self.write(stretch.offset, (ctypes.c_ubyte * stretch.nbytes).from_address(address))

    def write(self, offset, data):
        with memoryview(self.content) as content, memoryview(data) as given:
            content[offset : offset + given.nbytes] = given.cast("B")


def address_of(array):
    return array.__array_interface__["data"][0]
