"""Implements the functions of neighbours.c in Python: functions that are global processes."""

import os
import struct

from sublet import xpu

ends = {}


def keep(end):
    ends[len(ends)] = end
    return len(ends) - 1


def words(input):
    return struct.unpack(f"<{len(input) // 8}Q", input)


def half(input):
    return int.from_bytes(input[:4], "little")


def pid(input):
    return struct.pack("<Q", xpu.pid())


def make(input):
    reader = xpu.fifo(bytes(input).decode())
    return struct.pack("<QQ", reader.object, keep(reader))


def allow(input):
    xpu.grant(*words(input))


def forbid(input):
    xpu.revoke(*words(input))


def may(input):
    return struct.pack("<I", xpu.rights(*words(input)))


def join(input):
    return struct.pack("<I", keep(xpu.connect(bytes(input).decode(), timeout=5)))


def say(input):
    ends[half(input)].write(input[4:], timeout=5)


def hear(input):
    message, writer = ends[half(input)].read(timeout=half(input[4:]) / 1000)
    return struct.pack("<Q", writer) + message


def unit(input):
    units, number = xpu.units(), half(input)
    if number >= len(units):
        raise LookupError(f"there is no processor {number}")
    return struct.pack("<I", units[number])


def spawn(input):
    """The processor, a FIFO and rights to it, if any; then the path and arguments, each ended by 0."""
    processor, fifo, rights = words(input[:24])
    path, *arguments, _ = bytes(input[24:]).decode().split("\0")
    capabilities = [(fifo, rights)] if rights else []
    return struct.pack("<Q", xpu.spawn(processor, path, *arguments, env={"COLOUR": "red"}, capabilities=capabilities))


def shut(input):
    ends[half(input)].close()


def die(input):
    os._exit(1)


def delegate(input):
    """A processor, a function's name and its input: executed there."""
    function, data = bytes(input[4:]).split(b" ", 1)
    with xpu.Executor(half(input)) as far:
        assert far.pid.pu == half(input)
        shouted = far.call(function.decode(), data, timeout=20)
        far.submit(function.decode(), data)
        assert far.result(timeout=20) == shouted
    assert far.closed
    return shouted


def shout(input):
    """Returns its input in upper case, and the processor that executed it."""
    text = bytes(input).decode().strip()
    if not text:
        raise ValueError("nothing to shout")
    return f"{text.upper()} {xpu.pid().pu:x}".encode()
