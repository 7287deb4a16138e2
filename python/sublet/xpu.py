"""Worker processes that know each other: FIFOs between them, and who may use which.

In a function that a worker executes; elsewhere each call raises `InvalidArgument`. The worker's process is a *global process*, whose
id says on which processing unit it is: it exchanges messages with others of the same tenant on the same unit and on those that are
linked with it, a host's and its DPUs'. What it may do with a FIFO are its rights: to read, to write, to own, which is to grant and
to revoke. Within a unit messages pass through memory, between two through a connection of the two processes.

    def open_frames(writer):
        global frames
        frames = xpu.fifo("frames")
        xpu.grant(writer, frames, xpu.WRITE)

    def tell(message):
        with xpu.connect("frames", timeout=1.0) as frames:
            frames.write(message, timeout=1.0)

A FIFO ends with the process that made it, unless another one reads it; a writer's end and a reader's are the process's, too, and
not their function's: what a global variable keeps is there for the next call, and what nobody keeps is closed.

All times are in seconds: `None` waits as long as it takes, 0 not at all. Who waits lets other threads execute, and is interrupted
by signals as ever.
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

    from _typeshed import ReadableBuffer, WriteableBuffer
    from typing_extensions import Self

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
    """What a process may do with a FIFO: any of these together."""

    #: To connect to read.
    READ = 1
    #: To connect to write.
    WRITE = 2
    #: To grant rights to it and to revoke them, its own included.
    OWN = 4


READ, WRITE, OWN = Rights.READ, Rights.WRITE, Rights.OWN


class GlobalId(int):
    """What names a process or a FIFO on all linked processing units: a number, printed as `5f3a90c1:7`, unit and number there."""

    @property
    def pu(self) -> int:
        """The processing unit's number, as `sublet.pus()` tells it."""
        return self >> 32

    @property
    def local(self) -> int:
        """The number there."""
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
        raise _errors.InvalidArgument("this process has no processing unit's shim: it was not started by an agent")
    return worker.xpu


def pid() -> Pid:
    """The global id of this process, by which others grant it rights."""
    return Pid(_interface().pid())


def _object(of: int | Reader | Writer) -> int:
    return of.object if isinstance(of, (Reader, Writer)) else of


def grant(to: int, object: int | Reader | Writer, rights: int) -> None:
    """Grants rights to a FIFO to another process, on whichever processing unit. They hold when this returns.

    The FIFO is named by its id, or by an end of it. Raises `PermissionDenied` without the right to own it; `InvalidArgument` if there
    is no such process or FIFO of the tenant; `AgentUnreachable`.

    Examples:
        >>> xpu.grant(writer, frames, xpu.WRITE)
    """
    _interface().grant(to, _object(object), rights)


def revoke(from_: int, object: int | Reader | Writer, rights: int) -> None:
    """Revokes rights. Connections that were made by them are cut when this returns, and what was not read of them is not read any more.

    Raises as `grant`.
    """
    _interface().revoke(from_, _object(object), rights)


def rights(object: int | Reader | Writer) -> Rights:
    """What this process may do with a FIFO."""
    return Rights(_interface().rights(_object(object)))


def units() -> list[int]:
    """The processors of this computer: this process's own first, then those that are linked with it now."""
    found: list[int] = []
    while True:
        try:
            found.append(_interface().unit(len(found)))
        except _errors.InvalidArgument:
            if not found:
                raise
            return found


def device(name: str, processor: int | None = None) -> int:
    """A device, as `"opencl0"`, of the node of a processor; without that of this process's own node. An `Executor` there executes the
    functions of this package that have a build for such devices.

    Raises `InvalidArgument` if that node has no such device, `AgentUnreachable` if the processor is no neighbour's, or out of reach.
    """
    return _interface().device(_interface().unit(0) if processor is None else processor, name)


def find(kind: str) -> int:
    """A unit of this kind, as `"dpu"` or `"opencl"`: of this process's own node if that has one, else of a linked one.

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
    """Starts a program of this function's package on a processor, in a lease of its own, and returns when it is being executed.

    In a package of Python it is a Python file, which a copy of a warm interpreter runs; `sys.argv` has the path and the arguments. It has
    the variables of `env` beside those that each worker has, none of this process's, and the rights of `capabilities`, pairs of a FIFO
    that this process owns and rights, and no others. It ends with this process. `{arch}` in the path stands for the architecture of
    the processor.

    Raises `InvalidArgument` for a path that is no program of the package, `PermissionDenied` for a FIFO that this process does not own,
    `AgentUnreachable` if there is no such processor, `NoCapacity` if it has no core left.

    Examples:
        >>> child = xpu.spawn(xpu.units()[-1], "stage.py", "frames", capabilities=[(frames, xpu.WRITE)])
    """
    # As os.exec takes them: a name that is not text stays the bytes that it is.
    words = [os.fsencode(word) for word in (path, *args)]
    variables = [os.fsencode(f"{name}={value}") for name, value in (env or {}).items()]
    granted = [(_object(object), int(rights)) for object, rights in capabilities]
    return Pid(_interface().spawn(unit, path, words, variables, granted))


def fifo(name: str | None = None, slots: int = 16, slot_bytes: int = 4096) -> Reader:
    """Makes a FIFO, which this process reads and owns.

    Its name is the tenant's on all linked processing units; without one it is known by its id. Each writer has a ring of `slots`, a
    power of two, 4 to 1024, of `slot_bytes`, whole pages of 4096; a message has at most three quarters of that. A name that is taken
    is an `Error` of code `already_allocated`.

    Examples:
        >>> with xpu.fifo("frames", slots=16, slot_bytes=1 << 20) as frames:
        ...     xpu.grant(writer, frames, xpu.WRITE)
        ...     frame, writer = frames.read(timeout=1.0)
    """
    return Reader(_interface().fifo(name or "", slots, slot_bytes))


def connect(to: str | int, timeout: float | None = None) -> Writer:
    """Connects to a FIFO to write to it, by its name or its id, on whichever processing unit it is.

    While nobody reads it this waits; where a node insists on encryption, until its reader reads. Raises `PermissionDenied` without
    the right to write, `InvalidArgument` if there is no such FIFO, and `DeadlineExceeded`, which is a `TimeoutError`.
    """
    interface = _interface()
    return Writer(interface.connect(to, timeout) if isinstance(to, str) else interface.connect_to(to, timeout))


def connect_to_read(name: str, timeout: float | None = None) -> Reader:
    """Connects to read a FIFO of the same processing unit that its reader has closed, and that did not end then: this process had the
    right to read it.

    While another process reads it, it is an `Error` of code `already_allocated`. Raises as `connect` otherwise.
    """
    return Reader(_interface().connect_to_read(name, timeout))


class _Closable:
    _native: Any

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return bool(self._native.closed)

    def close(self) -> None:
        """Closes it. A second time that does nothing; what else is done with it afterwards is `InvalidArgument`.

        Another thread that waits with it is told the same.
        """
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Executor(_Closable):
    """Functions of a package on another processor, or on a device: a worker process of the package there, in a lease of its own.

    They are the functions that the package names, in whatever language its build for that unit is written: bytes in, bytes out.
    They execute one after another, in the order of the calls; who wants more at once starts more executors. It ends when it is closed,
    or with this process; it is a context manager, which closes it.

    Args:
        unit: the processor, one of `units()`, or a `device()`.
        max_bytes: bytes of an input or an output at most, up to 32 MiB.
        timeout: how long it may take to start, in seconds.
        package: another package that is deployed, by its name or digest; without it this function's own, if that names functions.

    Raises as `spawn`; `WorkerDied` if it ends before it is ready, and `DeadlineExceeded`.

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
        """The global id of the process that it is."""
        return Pid(self._native.pid)

    def call(self, function: str, data: ReadableBuffer = b"", timeout: float | None = None) -> bytes:
        """Calls a function by its name, and returns its output. Several, as `"resize|compress"`, follow each other there: the output of
        each, of at most `max_bytes`, is the input of the next, and on a device it stays in its memory.

        What is to stay there for later calls has a name with `@` before it, at most 16 of them: `"decode|@picture"` leaves the output
        and answers nothing, `"@picture|resize"` has it as its input, as often as it is called. `"|@picture"` leaves `data`, without any it takes
        away what was there, and `"@picture"` is answered with it. A call whose function fails before it leaves what was there.

        What it says when it fails comes with its name before it. Raises `WorkerDied` if the executor has ended, `DeadlineExceeded`, which is a
        `TimeoutError`: the call goes on then, its output is dropped, and what is called next waits for its end.
        """
        return self._native.call(function, data, timeout)  # type: ignore[no-any-return]

    def submit(self, function: str, data: ReadableBuffer = b"", timeout: float | None = None) -> None:
        """Submits a call, and returns before it is executed: to several executors, which execute at once. `result` takes its output.

        At most 8 calls of an executor are without an answer, and as many as it has room for together: of inputs of `max_bytes`, one.
        What is more is an `Error` of code `too_many_in_flight`.
        """
        self._native.submit(function, data, timeout)

    def result(self, timeout: float | None = None) -> bytes:
        """The output of the oldest call that was submitted. Raises as `call`; after `DeadlineExceeded` it can be taken later."""
        return self._native.result(timeout)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<sublet executor {self.pid}{': closed' if self.closed else ''}>"


class Chain(_Closable):
    """Functions that a graph connects, on the units of this computer: one call of all of them.

    Each component has an `Executor` on the unit of its kind (`"resources": {"pu": "dpu"}`), and without one on this process's own.
    Components that follow each other there, and nobody else, are one call: on a device what is between them stays in its memory. Those that may be
    executed at the same time have an executor each, as far as there are cores; a device has one, and an output that several read there, and
    nobody else, stays in its memory. It is a context manager, which ends them.

    Args:
        graph: the document, as a dictionary or as JSON: compute components of one instance and triggers, which may have conditions.
        max_bytes: bytes of an input or an output at most, up to 32 MiB.
        timeout: how long it may take to start, in seconds.

    Raises `InvalidArgument` with all that is wrong with the document, `AgentUnreachable` if there is no unit of a kind; and as `Executor`.

    Examples:
        >>> with xpu.Chain(json.load(open("pictures.json"))) as pictures:
        ...     small = pictures.call(image)
    """

    def __init__(self, graph: Mapping[str, Any] | str, max_bytes: int = 1 << 16, timeout: float | None = 30.0) -> None:
        document = graph if isinstance(graph, str) else json.dumps(graph)
        self._native = _interface().chain(document, max_bytes, timeout)

    @property
    def pids(self) -> list[Pid]:
        """The processes that execute it, in the order in which they are called; one that does so twice is named twice."""
        return [Pid(pid) for pid in self._native.pids]

    def call(self, data: ReadableBuffer = b"", timeout: float | None = None) -> bytes:
        """The output of the components that trigger no other, for this input of the entry. Of several each is behind its length in 8 bytes,
        little endian, and followed by zeros up to a multiple of 8; and so is the input of a component that several trigger.

        The first function that fails ends the call, and its name is before what it says. Raises as `Executor.call`.
        """
        return self._native.call(data, timeout)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<sublet chain{': closed' if self.closed else ''}>"


class _End(_Closable):
    """Either end. It is used by one thread at a time: a second one waits. It is a context manager, which closes it."""

    _what = ""

    def __init__(self, native: Any) -> None:
        self._native = native

    @property
    def object(self) -> GlobalId:
        """The global id of the FIFO."""
        return GlobalId(self._native.object)

    def __repr__(self) -> str:
        return f"<sublet {self._what} of FIFO {self.object}{': closed' if self.closed else ''}>"


class Reader(_End):
    """The reading end of a FIFO. Made by `fifo` and `connect_to_read`.

    When it is closed its writers are told so, and if nobody else may read the FIFO it has ended.
    """

    _what = "reader"

    def read(self, timeout: float | None = None) -> tuple[bytes, Pid]:
        """The next message of any writer, and whose it is. Writers take turns; those of one keep their order.

        It also waits while nobody writes: somebody may come. Raises `DeadlineExceeded`, which is a `TimeoutError`;
        `PermissionDenied` after the right was revoked; `AgentUnreachable`.
        """
        message, writer = self._native.read(timeout)
        return message, Pid(writer)

    def read_into(self, buffer: WriteableBuffer, timeout: float | None = None) -> tuple[int, Pid]:
        """The same, to the front of a writable buffer, such as an array: how many bytes, and whose.

        Without room for it the message stays, and this raises an `Error` of code `output_too_large`, which says how long it is.
        """
        count, writer = self._native.read_into(buffer, timeout)
        return count, Pid(writer)


class Writer(_End):
    """The writing end of a FIFO. Made by `connect`. When it is closed its reader gets what was written."""

    _what = "writer"

    def write(self, message: ReadableBuffer, timeout: float | None = None) -> None:
        """Writes a message: `bytes`, or any contiguous buffer, such as an array, which nobody should change meanwhile.

        It waits for room in the ring, and not until it is read. Raises `DeadlineExceeded`, which is a `TimeoutError`, while it is full;
        `PermissionDenied` after the right was revoked; `LeaseEnded` when nobody reads any more; `InvalidArgument` for what is longer than
        three quarters of the ring; `AgentUnreachable`. Then nothing of the message was written.
        """
        self._native.write(message, timeout)
