"""Allocates arrays in memory components: the pieces of one that arrays take and give back.

The bytes of an array are in a component, which may be on any machine. NumPy itself computes everything that does not
need the bytes (the shape, strides and offset of a slice, whether two slices overlap) on a *shadow*. A shadow is an
ndarray in a range of addresses that is as long as the component and has no memory behind it. Its elements are never
read or written.

An `Arena` leases one component for all arrays of a place. A lease takes milliseconds, and memory that is new to the machine is
many times slower than memory that was used before, so what an array gives up serves the next one.
"""

import bisect
import collections
import mmap
import os
import sys
import threading
import weakref

import numpy

from .. import _errors

# Arrays begin at lines of the processor's cache.
ALIGNMENT_BYTES = 64
# Default limit of a component's size.
SPACE_BYTES = 1 << 40


class Component:
    """A component of memory, and the addresses of its shadows."""

    def __init__(self, memory, space_bytes=SPACE_BYTES):
        self.memory = memory
        space = mmap.mmap(-1, space_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
        self._space = numpy.frombuffer(space, "u1")
        #: Address at which the shadows begin.
        self.address = address_of(self._space)

    def shadow(self, offset, nbytes):
        return self._space[offset : offset + nbytes]

    def offset_of(self, shadow):
        """Returns the offset of an array in the component."""
        return address_of(shadow) - self.address

    def lent(self, offset, nbytes):
        """Returns the bytes in the component's memory as an array, or None if they are on another machine."""
        try:
            return self.memory.array(nbytes, "u1", offset)
        except _errors.Error as error:
            if error.code != "fabric_unavailable":
                raise
            return None


def component_of(memory):
    """Returns the component of a caller's `sublet.Memory`, or of a function's `sublet.Channel`: one for each, so that
    overlapping arrays have overlapping shadows.
    """
    if memory._remote is None:
        memory._remote = Component(memory)
    return memory._remote


def address_of(array):
    return array.__array_interface__["data"][0]


class Stretch:
    """Bytes of a component that arrays lie in, given back with the last of them.

    `lent` are the bytes themselves where they are on this machine. An operation holds `lent` while it works on the
    bytes, so that the component is not released meanwhile.
    """

    __slots__ = ("__weakref__", "_arena", "component", "lent", "nbytes", "offset")

    def __init__(self, component, offset, nbytes, arena=None):
        self.component, self.offset, self.nbytes = component, offset, nbytes
        self._arena = arena
        self.lent = component.lent(offset, nbytes)

    def shadow(self):
        return self.component.shadow(self.offset, self.nbytes)

    def __del__(self):
        self.lent = None
        if self._arena is not None and not sys.is_finalizing():
            self._arena.give(self.offset, self.nbytes)


class Arena:
    """The pieces of one component.

    Bytes before `begin` belong to others: a graph's memory component has a variable's value there.

    Invariants: The free pieces are sorted, and none touches the next. The component ends with a segment, or with its limit. The free
    bytes at its end are no more than the bytes that are taken, and one segment. If nothing is taken, there is at most one segment,
    and none with `begin` 0.
    """

    def __init__(self, memory, initial_bytes, increment_bytes, limit_bytes, component=None, begin=0):
        self.memory = memory
        self._component = component or Component(memory, limit_bytes)
        # A forked process must not shrink the component of its parent.
        self._process = os.getpid()
        self._segments = initial_bytes, increment_bytes
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._stretches = weakref.WeakSet()
        self._free = []
        self._end, self._taken = begin, 0
        # Stretches that were given back while a thread held the lock, possibly this one: Python may collect a stretch
        # at any time.
        self._given = collections.deque()

    def take(self, nbytes):
        """Returns a stretch of `nbytes` bytes of any value."""
        nbytes = max(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        try:
            with self._lock:
                self._collect()
                offset = self._take_free(nbytes)
                if offset is None:
                    self._grow(nbytes)
                    offset = self._take_free(nbytes)
                self._taken += nbytes
                stretch = Stretch(self._component, offset, nbytes, self)
                self._stretches.add(stretch)
                return stretch
        finally:
            self._settle()

    def give(self, offset, nbytes):
        self._given.append((offset, nbytes))
        self._settle()

    def release(self):
        """Releases all memory, also that of existing arrays."""
        with self._lock:
            for stretch in list(self._stretches):
                stretch.lent = None
            self.memory.release()

    def _take_free(self, nbytes):
        for index, (offset, length) in enumerate(self._free):
            if length >= nbytes:
                self._free[index : index + 1] = [(offset + nbytes, length - nbytes)] if length > nbytes else []
                return offset
        return None

    def _grow(self, nbytes):
        begin = self._tail()
        # Beyond the limit it is the component that says so.
        end = max(begin + nbytes, min(self._segment_end(begin + nbytes), self._limit))
        try:
            self.memory.resize(end)
        except _errors.Error:
            # Some of the segments may have come.
            self._shrink(self._end)
            raise
        if begin < self._end:
            self._free.pop()
        self._free.append((begin, end - begin))
        self._end = end

    def _settle(self):
        while self._given and self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self):
        while self._given:
            offset, nbytes = self._given.popleft()
            self._taken -= nbytes
            self._insert(offset, nbytes)
        begin = self._tail()
        spare = self._taken + self._segments[1] if self._taken else 0
        if self._end - begin > spare:
            end = self._segment_end(begin)
            if end < self._end and self._shrink(end):
                self._free[-1:] = [(begin, end - begin)] if begin < end else []
                self._end = end

    def _insert(self, offset, nbytes):
        index = bisect.bisect(self._free, (offset, nbytes))
        before = self._free[index - 1] if index else (0, 0)
        after = self._free[index] if index < len(self._free) else (0, 0)
        first, last = index, index
        if index and sum(before) == offset:
            first, offset, nbytes = index - 1, before[0], nbytes + before[1]
        if after[1] and offset + nbytes == after[0]:
            last, nbytes = index + 1, nbytes + after[1]
        self._free[first:last] = [(offset, nbytes)]

    def _tail(self):
        """Returns the offset behind which all bytes are free."""
        return self._free[-1][0] if self._free and sum(self._free[-1]) == self._end else self._end

    def _segment_end(self, offset):
        """The end of the segment that has the byte before this one."""
        initial, increment = self._segments
        return 0 if offset == 0 else initial + max(-(-(offset - initial) // increment), 0) * increment

    def _shrink(self, end):
        try:
            if os.getpid() == self._process:
                self.memory.resize(end)
                return True
        except _errors.Error:
            # An operation still works on an array that was there, or the lease has ended, which its next use reports.
            pass
        return False
