"""Operations tile by tile: while one tile is computed the next ones come, and what is ready leaves.

An operand is an ndarray or a remote array. To an operation it is a part: *near* if its elements are in this process's reach, as
those of an ndarray and of remote arrays on this machine are, which are used in their place; *far* otherwise.
"""

import collections

import numpy

from . import blocks

# Far operands that are read again and again, as they are broadcast, are kept if they have at most this share of the working set.
KEPT_SHARE = 8


class Near:
    """Elements that are used in their place."""

    is_far = False

    def __init__(self, array, component=None):
        self.array = array
        self._component = component

    def like(self, array):
        """The same elements in another order, or some of them."""
        return Near(array, self._component)

    def check(self):
        """Says so if the memory has ended: what was read meanwhile is anything."""
        if self._component is not None:
            self._component.memory.read(0, 0)

    def begin(self, index):
        """Begins to read a tile; what is returned gives it when it is called."""
        tile = self.array[(*index, ...)]
        return lambda: tile

    def target(self, index):
        """An array that takes the values of a tile, to be `put` then."""
        return self.array[(*index, ...)]

    def put(self, index, values):
        target = self.target(index)
        if values.__array_interface__["data"] != target.__array_interface__["data"]:
            numpy.copyto(target, values)
        self.check()


class Far:
    """Elements that are read, and written, run by run."""

    is_far = True

    def __init__(self, component, shadow, read_bytes):
        self.array = shadow
        self._component, self._read_bytes = component, read_bytes

    def like(self, array):
        return Far(self._component, array, self._read_bytes)

    def check(self):
        """Each access is checked."""

    def begin(self, index):
        return _Reading(self._component, self.array[(*index, ...)], self._read_bytes)

    def target(self, index):
        here = self.array[(*index, ...)]
        return numpy.empty(here.shape, here.dtype)

    def put(self, index, values):
        """Writes a tile. Bytes between its elements, which are others', are read before and written as they were."""
        here = self.array[(*index, ...)]
        if here.size == 0:
            return
        core, once, order = blocks.straight(here)
        values = numpy.broadcast_to(values, here.shape)[(*once, ...)].transpose(order)
        memory = self._component.memory
        for run, nbytes in blocks.runs(core, self._read_bytes):
            part, offset = core[(*run, ...)], self._component.offset_of(core[(*run, ...)])
            if nbytes == part.nbytes:
                data = numpy.ascontiguousarray(values[(*run, ...)], part.dtype).reshape(-1).view("u1")
            else:
                data = numpy.empty(nbytes, "u1")
                memory.read_into(offset, data)
                numpy.ndarray(part.shape, part.dtype, data, strides=part.strides)[...] = values[(*run, ...)]
            memory.write_async(offset, data)


class _Reading:
    """A tile of far memory on its way: as many of its runs as have the bytes of the tile; the others are asked for as these come."""

    def __init__(self, component, here, read_bytes):
        self._component, self._shape = component, here.shape
        self._core, self._once, self._order = blocks.straight(here)
        self._runs = iter(blocks.runs(self._core, read_bytes) if here.size else ())
        self._asked, self._left_bytes = collections.deque(), here.nbytes
        self._ask()

    def _ask(self):
        while self._left_bytes > 0:
            run, nbytes = next(self._runs, (None, 0))
            if run is None:
                break
            part = self._core[(*run, ...)]
            reading = self._component.memory.read_async(self._component.offset_of(part), nbytes)
            self._asked.append((run, part, nbytes, reading))
            self._left_bytes -= nbytes + blocks.REQUEST_BYTES

    def __call__(self):
        if len(self._asked) == 1 and self._asked[0][1].size == self._core.size:
            _, part, _, reading = self._asked.popleft()
            values = numpy.ndarray(self._core.shape, part.dtype, reading.result(), strides=self._core.strides)
        else:
            values = numpy.empty(self._core.shape, self._core.dtype)
            while self._asked:
                run, part, nbytes, reading = self._asked.popleft()
                values[(*run, ...)] = numpy.ndarray(part.shape, part.dtype, reading.result(), strides=part.strides)
                self._left_bytes += nbytes + blocks.REQUEST_BYTES
                self._ask()
        values = values.transpose(numpy.argsort(self._order))[(*(slice(None, None, part.step) for part in self._once), ...)]
        return numpy.broadcast_to(values, self._shape)


def part_of(operand):
    """An operand as a part."""
    if isinstance(operand, numpy.ndarray):
        return Near(operand)
    stretch, shadow = operand._stretch, operand._shadow
    lent = stretch.lent
    if lent is None:
        return Far(stretch.component, shadow, min(blocks.READ_BYTES, operand.place.working_bytes // blocks.READ_SHARE))
    # The offset of an array without elements does not matter.
    offset = stretch.component.offset_of(shadow) - stretch.offset if shadow.size else 0
    part = Near(numpy.ndarray(shadow.shape, shadow.dtype, lent, offset, shadow.strides), stretch.component)
    part.check()
    return part


def local(operand):
    """All elements, as an ndarray of this process's own."""
    values = numpy.empty_like(operand._shadow, subok=False)
    pointwise(copy_tile, [operand], [values], operand.place.working_bytes)
    return values


def copy_tile(targets, values):
    """Puts values of any dtype into an array, as `ndarray.astype` would."""
    numpy.copyto(targets[0], values[0], casting="unsafe")


def streamed(parts, indexes):
    """Each index with the parts' tiles there; those of the next index are on their way then."""
    ahead = None
    for index in indexes:
        begun = index, [part.begin(index) for part in parts]
        if ahead is not None:
            yield ahead[0], [finish() for finish in ahead[1]]
            for part in parts:
                part.check()
        ahead = begun
    if ahead is not None:
        yield ahead[0], [finish() for finish in ahead[1]]
        for part in parts:
            part.check()


def arranged(operands, shape, room_bytes):
    """Operands, broadcast to a shape, as parts whose axes are in the best order; that order, and the shape of their tiles."""
    parts = [_broadcast(operand, shape, room_bytes) for operand in operands]
    order = blocks.axes_order([part.array for part in parts])
    parts = [part.like(part.array.transpose(order)) for part in parts]
    return parts, order, blocks.tile_of([part.array for part in parts], room_bytes)


def in_order(operands, shape, room_bytes):
    """Tiles of operands in the order of C: each one's index, and the operands' elements there."""
    parts = [_broadcast(operand, shape, room_bytes) for operand in operands]
    tile = blocks.tile_of([part.array for part in parts], room_bytes, in_order=True)
    return streamed(parts, blocks.tiles(shape, tile))


def slabs(operands, shape, elements):
    """Tiles of operands in the order of C, as `in_order`, of at most some elements."""
    parts = [_broadcast(operand, shape, 0) for operand in operands]
    return streamed(parts, blocks.tiles(shape, blocks.slab(shape, elements)))


def pointwise(fill, operands, outs, room_bytes):
    """Calls `fill(targets, values)` for each tile of the operands, which are broadcast to the shape of the outs.

    No out may be broadcast, nor have elements in common with an operand but at the same index.
    """
    shape = outs[0].shape
    parts, order, tile = arranged([*operands, *outs], shape, room_bytes)
    inputs, results = parts[: len(operands)], parts[len(operands) :]
    for index, values in streamed(inputs, blocks.tiles([shape[axis] for axis in order], tile)):
        targets = tuple(result.target(index) for result in results)
        fill(targets, values)
        for result, target in zip(results, targets):
            result.put(index, target)


def _broadcast(operand, shape, room_bytes):
    part = part_of(operand)
    if part.array.shape == tuple(shape):
        return part
    if part.is_far and part.array.nbytes * KEPT_SHARE <= room_bytes:
        return Near(numpy.broadcast_to(local(operand), shape))
    return part.like(numpy.broadcast_to(part.array, shape))
