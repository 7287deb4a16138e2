"""Types of the compiled module `sublet._native`, for type checkers and editors."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict, final

from _typeshed import ReadableBuffer, WriteableBuffer
from typing_extensions import NotRequired

__all__ = ["VERSION", "Application", "Buffer", "Call", "Invoker", "Memory", "Queue", "Reading", "Run", "allocate", "find_environment", "forked", "is_registered", "make_environment"]

VERSION: str

class _Usage(TypedDict):
    calls: int
    failed_calls: int
    allocated_ns: int
    executing_ns: int
    polling_ns: int

class _Lease(TypedDict):
    id: str
    node: str
    package: str
    pu: str
    choice: str
    cores: int
    memory_bytes: int
    expires_unix_ms: int
    usage: NotRequired[_Usage]

class _ChannelUse(TypedDict):
    memory: str
    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    maps: int
    mapped_bytes: int

class _Use(TypedDict):
    component: str
    attempts: int
    instances: int
    cores: int
    begin_us: int
    end_us: int
    allocated_bytes: int
    used_bytes: int
    allocated_byte_us: int
    used_byte_us: int
    cpu_ns: int
    channels: list[_ChannelUse]

class _BillLine(TypedDict):
    lease: str
    tenant: str
    package: str
    pu: str
    cores: int
    memory_bytes: int
    usage: _Usage
    allocation_nano: int
    compute_nano: int
    polling_nano: int
    total_nano: int

class _Price(TypedDict):
    allocation_nano_per_gib_s: int
    compute_nano_per_core_s: int
    polling_nano_per_core_s: int

class _Unit(TypedDict):
    id: int
    node: str
    unit: str
    kind: str
    architecture: str
    model: str
    cores: int
    memory_bytes: int
    abilities: tuple[str, ...]
    price: _Price
    neighbours: tuple[str, ...]

class _ArrayInterface(TypedDict):
    version: Literal[3]
    typestr: str
    shape: tuple[int]
    data: tuple[int, bool]

_Ran = tuple[str, list[tuple[str, list[bytes]]], list[_Use], tuple[str, Memory] | None]

@final
class Application:
    @property
    def digest(self) -> str: ...
    @property
    def document(self) -> str: ...
    def run(
        self, input: bytes, news: Callable[[str, str, Any], object] | None = None, contents: Sequence[tuple[str, ReadableBuffer]] = ()
    ) -> _Ran: ...
    def resume(self, run: str, news: Callable[[str, str, Any], object] | None = None) -> _Ran: ...
    def detach(self, input: bytes) -> Run: ...

@final
class Run:
    @property
    def id(self) -> str: ...
    def wait(self, timeout: float | None = None) -> _Ran: ...
    def cancel(self) -> None: ...
    def logs(self) -> list[tuple[int, str, str]]: ...

@final
class Buffer:
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def __array_interface__(self) -> _ArrayInterface: ...
    def __len__(self) -> int: ...

@final
class Call:
    def wait(self, timeout: float | None = None) -> bool: ...
    def done(self) -> bool: ...
    def watch(self, queue: Queue, number: int) -> bool: ...
    def worker(self) -> int | None: ...
    def reply(self) -> tuple[int, list[bytes | bytearray | Buffer]] | None: ...
    def bytes(self) -> tuple[int, Buffer | None]: ...

@final
def make_environment(
    invoker: Invoker,
    requirements: list[str] | None,
    file: str | None,
    *,
    name: str | None,
    python: str | None,
    architecture: str | None,
    index: str | None,
    find_links: list[str],
    refresh: bool,
    interpreter: str,
    step: Callable[[str], object] | None,
) -> tuple[str, str]: ...
def pin_image(name: str) -> str: ...
def find_environment(invoker: Invoker, address: str) -> tuple[str, str]: ...

class Invoker:
    @staticmethod
    def connect(
        managers: str | None = None,
        *,
        ca_file: str | PathLike[str] | None = None,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
    ) -> Invoker: ...
    def another(self, is_near: bool) -> Invoker: ...
    def has_near_nodes(self) -> bool: ...
    def memory(
        self,
        *,
        initial_bytes: int | None = None,
        increment_bytes: int | None = None,
        limit_bytes: int | None = None,
        cache_bytes: int | None = None,
        line_bytes: int | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        near: Iterable[str] | None = None,
        fabric: str | None = None,
        pool: str | None = None,
    ) -> Memory: ...
    def deploy(self, path: str | PathLike[str]) -> str: ...
    def deploy_graph(
        self,
        document: bytes,
        *,
        patience: float | None = None,
        retries: int | None = None,
        prewarm: float | None = 0,
        keep_alive: float | None = None,
        hot_timeout: float | None = None,
        lease_timeout: float | None = None,
        fabric: str | None = None,
    ) -> Application: ...
    def open_graph(
        self,
        name: str,
        *,
        patience: float | None = None,
        retries: int | None = None,
        prewarm: float | None = 0,
        keep_alive: float | None = None,
        hot_timeout: float | None = None,
        lease_timeout: float | None = None,
        fabric: str | None = None,
    ) -> Application: ...
    def open_run(self, run: str) -> Run: ...
    def bill(self, lease: str | None = None) -> list[_BillLine]: ...
    def pus(self) -> list[_Unit]: ...
    def allocate(
        self,
        package: str,
        *,
        cores: int | None = None,
        memory_bytes: int | None = None,
        timeout: float | None = None,
        slots: int | None = None,
        slot_bytes: int | None = None,
        policy: float | Literal["hot", "warm"] | None = None,
        spin: float | None = None,
        max_nodes: int | None = None,
        shared: bool | None = None,
        wait: float | None = None,
        idle_timeout: float | None = None,
        pu: str | None = None,
        time_weight: float | None = None,
        fabric: str | None = None,
        interface: str | None = None,
        pool: str | None = None,
    ) -> None: ...
    def grow(self, cores: int) -> None: ...
    def renew(self, timeout: float) -> None: ...
    def deallocate(self) -> list[_Lease]: ...
    def leases(self) -> list[_Lease]: ...
    def notices(self) -> list[tuple[str, str]]: ...
    def fabrics(self) -> list[str]: ...
    def cold_imports(self) -> tuple[str, str, int] | None: ...
    def workers(self) -> int: ...
    def shares_memory(self) -> bool: ...
    def package(self) -> tuple[str, str, list[str], bool, bool, str] | None: ...
    def call(
        self,
        function: str,
        operation: int,
        parts: list[Any],
        *,
        capacity: int = 0,
        shares_memory: bool = False,
        worker: int | None = None,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Call: ...
    def call_bytes(
        self,
        function: str,
        input: ReadableBuffer,
        output: int | WriteableBuffer,
        *,
        worker: int | None = None,
        retries: int = 0,
        timeout: float | None = None,
    ) -> Call: ...

@final
class Memory:
    def sizes(self) -> tuple[int, int]: ...
    def read(self, offset: int, nbytes: int) -> bytes: ...
    def read_into(self, offset: int, buffer: WriteableBuffer) -> None: ...
    def write(self, offset: int, data: ReadableBuffer) -> None: ...
    def write_async(self, offset: int, data: ReadableBuffer) -> None: ...
    def read_async(self, offset: int, nbytes: int) -> Reading: ...
    def sync(self) -> None: ...
    def prefetch(self, offset: int, nbytes: int) -> None: ...
    def mapped(self, offset: int, nbytes: int) -> Buffer: ...
    def resize(self, nbytes: int) -> None: ...
    def renew(self, timeout: float) -> None: ...
    def leases(self) -> list[_Lease]: ...
    def release(self) -> list[_Lease]: ...

@final
class Reading:
    def result(self) -> bytes: ...

@final
class Queue:
    def __new__(cls) -> Queue: ...
    def put(self, number: int) -> None: ...
    def take(self, timeout: float) -> list[int]: ...

def forked() -> None: ...
def is_path(package: str) -> bool: ...
def is_registered(object: ReadableBuffer) -> bool: ...
def allocate(nbytes: int) -> Buffer: ...
