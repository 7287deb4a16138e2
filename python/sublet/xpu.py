"""FIFOs between worker processes, rights to them, and executors on other processing units.

The module works in functions that a worker executes; elsewhere each call raises `InvalidArgument`. The worker's process is a *global
process*, whose id contains its processing unit: it exchanges messages with processes of the same tenant on the same unit and on linked
ones, as of a host and its DPUs. Its rights to a FIFO are to read, to write, and to own, which allows to grant and revoke. Within a unit
messages pass through shared memory, between two units through a connection.

    def open_frames(writer):
        global frames
        frames = xpu.fifo("frames")
        xpu.grant(writer, frames, xpu.WRITE)

    def tell(message):
        with xpu.connect("frames", timeout=1.0) as frames:
            frames.write(message, timeout=1.0)

A FIFO ends with the process that created it, unless another one reads it. Ends of a FIFO belong to the process, not to the function:
an end in a global variable stays open for the next call, and an end without references is closed.

All times are in seconds: `None` waits without limit, 0 does not wait. Waiting releases the interpreter's lock, and signals interrupt
it.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from . import _errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = [
    "OWN",
    "READ",
    "WRITE",
    "Chain",
    "Executor",
    "GlobalId",
    "Pid",
    "Reader",
    "Rights",
    "Writer",
    "connect",
    "connect_to_read",
    "device",
    "fifo",
    "find",
    "grant",
    "pid",
    "revoke",
    "rights",
    "spawn",
    "units",
]


class Rights(enum.IntFlag):
    """Rights of a process to a FIFO, which can be combined."""

    #: Right to connect to read.
    READ = 1
    #: Right to connect to write.
    WRITE = 2
    #: Right to grant and revoke rights to the FIFO, including its own.
    OWN = 4


READ, WRITE, OWN = Rights.READ, Rights.WRITE, Rights.OWN


class GlobalId(int):
    """Global id of a process or FIFO on all linked processing units, printed as `5f3a90c1:7`: the unit, and a number within it."""

    @property
    def pu(self) -> int:
        """Number of the processing unit, as in `sublet.pus()`."""
        return self >> 32

    @property
    def local(self) -> int:
        """Number within the unit."""
        return self & 0xFFFF_FFFF

    def __str__(self) -> str:
        return f"{self.pu:x}:{self.local:x}"

    def __repr__(self) -> str:
        return f"<sublet {type(self).__name__} {self}>"


class Pid(GlobalId):
    """The global id of a process."""


def _interface() -> Any:
    worker = sys.modules.get("sublet_template")
    if worker is None:
        raise _errors.InvalidArgument("this process was not started by an agent, and has no access to processing units")
    return worker.xpu


def pid() -> Pid:
    """Returns the global id of this process, by which others grant it rights."""
    return Pid(_interface().pid())


def _object(of: int | Reader | Writer) -> int:
    return of.object if isinstance(of, (Reader, Writer)) else of


def grant(to: int, object: int | Reader | Writer, rights: int) -> None:
    """Grants rights to a FIFO to another process on any processing unit. They are effective when this returns.

    `object` is the id of the FIFO or an end of it. Raises `PermissionDenied` without the right to own it; `InvalidArgument` if the
    tenant has no such process or FIFO; `AgentUnreachable`.

    Examples:
        >>> xpu.grant(writer, frames, xpu.WRITE)
    """
    _interface().grant(to, _object(object), rights)


def revoke(from_: int, object: int | Reader | Writer, rights: int) -> None:
    """Revokes rights. When this returns, connections that depend on them are closed, and their unread messages are lost.

    Raises the errors of `grant`.
    """
    _interface().revoke(from_, _object(object), rights)


def rights(object: int | Reader | Writer) -> Rights:
    """Returns the rights of this process to a FIFO."""
    return Rights(_interface().rights(_object(object)))


def units() -> list[int]:
    """Returns the processors of this computer: this process's own first, then those that are linked with it now."""
    found: list[int] = []
    while True:
        try:
            found.append(_interface().unit(len(found)))
        except _errors.InvalidArgument:
            if not found:
                raise
            return found


def device(name: str, processor: int | None = None) -> int:
    """Returns a device, as `"opencl0"`, of a processor's node, by default of this process's own. An `Executor` there executes
    functions of this package that have a build for such devices.

    Raises `InvalidArgument` if that node has no such device, `AgentUnreachable` if the processor is not linked or cannot be reached.
    """
    return _interface().device(_interface().unit(0) if processor is None else processor, name)


def find(kind: str) -> int:
    """Finds a unit of this kind, as `"dpu"` or `"opencl"`, on this process's own node or otherwise on a linked one.

    Raises `AgentUnreachable` if there is none.
    """
    return _interface().find(kind)  # type: ignore[no-any-return]


def spawn(
    unit: int,
    path: str,
    *args: str | bytes,
    env: Mapping[str, str] | None = None,
    capabilities: Iterable[tuple[int | Reader | Writer, int]] = (),
) -> Pid:
    """Starts a program of this function's package on a processor, in a lease of its own; returns when it is running.

    In a Python package the program is a Python file, which a copy of a warm interpreter runs; `sys.argv` has the path and the arguments.
    Its environment has the variables of `env` and of workers, but none of this process. It gets only the rights of `capabilities`,
    pairs of a FIFO that this process owns and rights. It ends with this process. `{arch}` in the path stands for the architecture
    of the processor.

    Raises `InvalidArgument` if the path is not a program of the package, `PermissionDenied` for a FIFO that this process does not own,
    `AgentUnreachable` if there is no such processor, `NoCapacity` if it has no free core.

    Examples:
        >>> child = xpu.spawn(xpu.units()[-1], "stage.py", "frames", capabilities=[(frames, xpu.WRITE)])
    """
    # As for os.exec: bytes that are not text stay unchanged.
    words = [os.fsencode(word) for word in (path, *args)]
    variables = [os.fsencode(f"{name}={value}") for name, value in (env or {}).items()]
    granted = [(_object(object), int(rights)) for object, rights in capabilities]
    return Pid(_interface().spawn(unit, path, words, variables, granted))


def fifo(name: str | None = None, slots: int = 16, slot_bytes: int = 4096) -> Reader:
    """Creates a FIFO, which this process reads and owns.

    Its name is unique for the tenant on all linked processing units; without a name it has only its id. Each writer has a ring of
    `slots` slots, a power of two from 4 to 1024, of `slot_bytes` bytes, a multiple of 4096; a message has at most three quarters of
    the ring. A name in use raises an `Error` of code `already_allocated`.

    Examples:
        >>> with xpu.fifo("frames", slots=16, slot_bytes=1 << 20) as frames:
        ...     xpu.grant(writer, frames, xpu.WRITE)
        ...     frame, writer = frames.read(timeout=1.0)
    """
    return Reader(_interface().fifo(name or "", slots, slot_bytes))


def connect(to: str | int, timeout: float | None = None) -> Writer:
    """Connects to a FIFO on any processing unit, by its name or its id, to write to it.

    The function waits for a reader; if a node requires encryption, until the reader reads. Raises `PermissionDenied` without
    the right to write, `InvalidArgument` if there is no such FIFO, and `DeadlineExceeded`, which is a `TimeoutError`.
    """
    interface = _interface()
    return Writer(interface.connect(to, timeout) if isinstance(to, str) else interface.connect_to(to, timeout))


def connect_to_read(name: str, timeout: float | None = None) -> Reader:
    """Connects to read a FIFO of the same processing unit that its reader has closed. It still exists because this process has the
    right to read it.

    While another process reads it, this raises an `Error` of code `already_allocated`. Other errors are those of `connect`.
    """
    return Reader(_interface().connect_to_read(name, timeout))


class _Closable:
    _native: Any

    @property
    def closed(self) -> bool:
        """Whether this object was closed."""
        return bool(self._native.closed)

    def close(self) -> None:
        """Closes this object. A second call does nothing; other uses afterwards raise `InvalidArgument`.

        A waiting call of another thread raises the same.
        """
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Executor(_Closable):
    """A worker process of a package on another processor or a device, in a lease of its own, which executes the package's functions.

    It executes the functions that the package names, from the build for that unit: bytes in, bytes out. Functions execute one after
    another, in the order of the calls; for concurrency, start several executors. The executor ends when it is closed, or with this
    process. It is a context manager, which closes it.

    Args:
        unit: A processor, one of `units()`, or a `device()`.
        max_bytes: Maximum size of an input or an output, up to 32 MiB.
        timeout: Maximum time for the start, in seconds.
        package: Another deployed package, by its name or digest. The default is this function's own package, if it
            names functions.

    Raises the errors of `spawn`; `WorkerDied` if it ends before it is ready, and `DeadlineExceeded`.

    Examples:
        >>> with xpu.Executor(xpu.units()[-1]) as dpu:
        ...     small = dpu.call("compress", image)
        >>> with xpu.Executor(xpu.device("opencl0"), package="vectors") as kernels:
        ...     scaled = kernels.call("scale", numbers)
    """

    def __init__(self, unit: int, max_bytes: int = 1 << 16, timeout: float | None = 30.0, package: str = "") -> None:
        self._native = _interface().executor(unit, max_bytes, timeout, package)

    @property
    def pid(self) -> Pid:
        """Global id of the executor's process."""
        return Pid(self._native.pid)

    def call(self, function: str, data: ReadableBuffer = b"", timeout: float | None = None) -> bytes:
        """Calls a function by its name, and returns its output. Several functions, as `"resize|compress"`, run one after another: the
        output of each, of at most `max_bytes`, is the input of the next, and on a device it stays in its memory.

        Names with `@` are buffers that stay there for later calls, at most 16: `"decode|@picture"` keeps the output and returns nothing,
        `"@picture|resize"` uses it as input, any number of times. `"|@picture"` keeps `data`, or removes the buffer without data, and
        `"@picture"` returns its contents. A call that fails before it fills a buffer leaves the buffer unchanged.

        Messages of failures begin with the name of the function. Raises `WorkerDied` if the executor has ended; `DeadlineExceeded`, which
        is a `TimeoutError`: the call then continues, its output is dropped, and the next call waits for its end.
        """
        return self._native.call(function, data, timeout)  # type: ignore[no-any-return]

    def submit(self, function: str, data: ReadableBuffer = b"", timeout: float | None = None) -> None:
        """Submits a call without waiting, so that several executors run at the same time. `result` returns its output.

        At most 8 calls of an executor may be in flight, with about `max_bytes` of input together: more raise an `Error` of code
        `too_many_in_flight`.
        """
        self._native.submit(function, data, timeout)

    def result(self, timeout: float | None = None) -> bytes:
        """Returns the output of the oldest submitted call. Raises the errors of `call`; after `DeadlineExceeded` it can be called again."""
        return self._native.result(timeout)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<sublet executor {self.pid}{': closed' if self.closed else ''}>"


class Chain(_Closable):
    """The functions of a graph on the units of this computer, called as one.

    Each component has an `Executor` on a unit of its kind (`"resources": {"pu": "dpu"}`), or otherwise on this process's own unit.
    Components that only follow each other on one unit become one call, whose intermediate data stay in memory on a device. Components
    that may run at the same time have an executor each, as far as there are cores. A device has one executor, and an output that only
    components on that device read stays in its memory. The chain is a context manager, which closes it.

    Args:
        graph: Document as a dict or JSON: only compute components of one instance, and triggers with or without conditions.
        max_bytes: Maximum size of an input or an output, up to 32 MiB.
        timeout: Maximum time for the start, in seconds.

    Raises `InvalidArgument` with all errors of the document, `AgentUnreachable` if there is no unit of a kind, and the errors of `Executor`.

    Examples:
        >>> with xpu.Chain(json.load(open("pictures.json"))) as pictures:
        ...     small = pictures.call(image)
    """

    def __init__(self, graph: Mapping[str, Any] | str, max_bytes: int = 1 << 16, timeout: float | None = 30.0) -> None:
        document = graph if isinstance(graph, str) else json.dumps(graph)
        self._native = _interface().chain(document, max_bytes, timeout)

    @property
    def pids(self) -> list[Pid]:
        """Processes of the chain, in the order of their calls; a process that is called twice appears twice."""
        return [Pid(pid) for pid in self._native.pids]

    def call(self, data: ReadableBuffer = b"", timeout: float | None = None) -> bytes:
        """Calls the chain with this input for its entry; returns the output of the components that trigger no other. Several outputs are
        each preceded by their length in 8 bytes, little endian, and padded with zeros to a multiple of 8. The input of a component with
        several triggers has the same form.

        The first function that fails ends the call; the message begins with its name. Raises the errors of `Executor.call`.
        """
        return self._native.call(data, timeout)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<sublet chain{': closed' if self.closed else ''}>"


class _End(_Closable):
    """An end of a FIFO. Only one thread at a time uses it: a second one waits. It is a context manager, which closes it."""

    _what = ""

    def __init__(self, native: Any) -> None:
        self._native = native

    @property
    def object(self) -> GlobalId:
        """Global id of the FIFO."""
        return GlobalId(self._native.object)

    def __repr__(self) -> str:
        return f"<sublet {self._what} of FIFO {self.object}{': closed' if self.closed else ''}>"


class Reader(_End):
    """Reading end of a FIFO. Created by `fifo` and `connect_to_read`.

    When it is closed, writers get an error, and if no other process may read the FIFO, it ends.
    """

    _what = "reader"

    def read(self, timeout: float | None = None) -> tuple[bytes, Pid]:
        """Returns the next message of any writer, and its writer. Writers take turns; messages of one writer keep their order.

        The function also waits without writers, since one may connect. Raises `DeadlineExceeded`, which is a `TimeoutError`;
        `PermissionDenied` after the right was revoked; `AgentUnreachable`.
        """
        message, writer = self._native.read(timeout)
        return message, Pid(writer)

    def read_into(self, buffer: WriteableBuffer, timeout: float | None = None) -> tuple[int, Pid]:
        """Reads the next message to the front of a writable buffer, such as an array; returns its size and its writer.

        If the buffer is too small, the message stays, and this raises an `Error` of code `output_too_large` with the message's size.
        """
        count, writer = self._native.read_into(buffer, timeout)
        return count, Pid(writer)


class Writer(_End):
    """Writing end of a FIFO. Created by `connect`. Messages written before it is closed still reach the reader."""

    _what = "writer"

    def write(self, message: ReadableBuffer, timeout: float | None = None) -> None:
        """Writes a message: `bytes`, or any contiguous buffer, such as an array, which must not change meanwhile.

        The function waits for space in the ring, but not for the reader. Raises `DeadlineExceeded`, which is a `TimeoutError`, while the
        ring is full; `PermissionDenied` after the right was revoked; `LeaseEnded` when there is no reader any more; `InvalidArgument` for
        more than three quarters of the ring; `AgentUnreachable`. After an error, nothing of the message was written.
        """
        self._native.write(message, timeout)
