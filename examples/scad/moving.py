"""The functions of the row `techniques`: one fills memory, the others read it in different ways, piece by piece."""

import numpy

import sublet

PIECE_BYTES = 64 << 10
# Reads that are begun before the first one is waited for.
AHEAD = 8
PIECE = b"\1" * PIECE_BYTES


def ones(piece):
    """The number of bytes that are 1."""
    return int(numpy.count_nonzero(piece == 1))


def array_of(piece):
    """Bytes as an array, without a copy."""
    return numpy.frombuffer(piece, "u1")


def fill(data):
    """Fills the memory."""
    channel = sublet.channel("table")
    for at in range(0, int(bytes(data)), PIECE_BYTES):
        channel.write(at, PIECE)
    channel.sync()
    return bytes(data)


def in_turn(data):
    """Reads piece by piece, and waits for each."""
    channel = sublet.channel("table")
    return b"%d" % sum(ones(array_of(channel.read(at, PIECE_BYTES))) for at in range(0, int(bytes(data)), PIECE_BYTES))


def ahead(data):
    """Reads piece by piece, with several on their way."""
    channel, found, begun = sublet.channel("table"), 0, []
    for at in range(0, int(bytes(data)), PIECE_BYTES):
        begun.append(channel.read_async(at, PIECE_BYTES))
        if len(begun) == AHEAD:
            found += ones(array_of(begun.pop(0).result()))
    return b"%d" % (found + sum(ones(array_of(reading.result())) for reading in begun))


def mapped(data):
    """Reads without a copy."""
    size = int(bytes(data))
    table = sublet.channel("table").array(size, "u1")
    return b"%d" % sum(ones(table[at : at + PIECE_BYTES]) for at in range(0, size, PIECE_BYTES))


def plain(size):
    """The same in one process."""
    table = numpy.empty(size, "u1")
    for at in range(0, size, PIECE_BYTES):
        table[at : at + PIECE_BYTES] = array_of(PIECE)
    return sum(ones(table[at : at + PIECE_BYTES]) for at in range(0, size, PIECE_BYTES))
