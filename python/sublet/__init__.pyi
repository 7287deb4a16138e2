import concurrent.futures
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from os import PathLike
from types import TracebackType
from typing import Any, Literal, SupportsIndex, TypedDict, TypeVar, overload

import numpy
from _typeshed import ReadableBuffer, WriteableBuffer
from numpy.typing import ArrayLike, DTypeLike, NDArray
from typing_extensions import ParamSpec, Self, TypeAlias, Unpack

from ._native import Invoker, _BillLine, _Lease
from ._native import Memory as _NativeMemory
from ._native import Reading as _Reading

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Scalar = TypeVar("_Scalar", bound=numpy.generic)
_Path: TypeAlias = str | PathLike[str]
_Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
_Order: TypeAlias = Literal["C", "F"]
_Policy: TypeAlias = float | Literal["hot", "warm"]

__all__ = [
    "AgentUnreachable",
    "Bill",
    "BrokenExecutor",
    "Client",
    "DeadlineExceeded",
    "Error",
    "Executor",
    "FunctionFailed",
    "Future",
    "InsufficientResources",
    "InvalidArgument",
    "Lease",
    "LeaseEnded",
    "ManagerUnreachable",
    "Memory",
    "NoCapacity",
    "PermissionDenied",
    "RemoteError",
    "RemoteTraceback",
    "WorkerDied",
    "array",
    "default_client",
    "empty",
    "empty_like",
    "full",
    "lease",
    "local",
    "memory",
    "ones",
    "set_default",
    "zeros",
]

__version__: str

class _MoreOptions(TypedDict, total=False):
    shared: bool
    max_nodes: int | None
    idle_timeout: float | None
    pu: str | None
    fabric: str | None
    interface: str | None
    slots: int | None
    slot_bytes: int | None
    spin: float | None

class _ExecutorOptions(_MoreOptions, total=False):
    memory: int | str | None
    timeout: float | None
    wait: float | None
    policy: _Policy | None
    imports: Iterable[str]
    path: _Path | Iterable[_Path] | None
    environment: Mapping[str, str] | None
    share_arrays: bool

class _LeaseOptions(_ExecutorOptions, total=False):
    initializer: Callable[..., object] | None
    initargs: Iterable[Any]

class Client:
    def __init__(
        self,
        managers: str | None = None,
        *,
        ca_file: _Path | None = None,
        token: str | None = None,
        token_file: _Path | None = None,
    ) -> None: ...
    def lease(
        self,
        cores: int = 1,
        package: _Path | None = None,
        *,
        memory: int | str | None = None,
        timeout: float | None = None,
        wait: float | None = None,
        policy: _Policy | None = None,
        imports: Iterable[str] = (),
        path: _Path | Iterable[_Path] | None = None,
        environment: Mapping[str, str] | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        share_arrays: bool = True,
        **more: Unpack[_MoreOptions],
    ) -> Lease: ...
    def memory(
        self,
        initial: int | str | None = None,
        increment: int | str | None = None,
        limit: int | str | None = None,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        cache: int | str | None = None,
        line: int | str | None = None,
        near: Iterable[str] | None = None,
        fabric: str | None = None,
    ) -> Memory: ...
    def bill(self, lease: str | None = None) -> Bill: ...
    @property
    def managers(self) -> str | None: ...

class Bill:
    lines: list[_BillLine]
    def __init__(self, lines: list[_BillLine]) -> None: ...
    @property
    def total_nano(self) -> int: ...
    def _repr_html_(self) -> str: ...

class Memory:
    def __init__(self, native: _NativeMemory) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def leases(self) -> list[_Lease]: ...
    def read(self, offset: int = 0, nbytes: int | None = None) -> bytes: ...
    def read_into(self, offset: int, buffer: WriteableBuffer) -> None: ...
    def write(self, offset: int, data: ReadableBuffer) -> None: ...
    def read_async(self, offset: int, nbytes: int) -> _Reading: ...
    def write_async(self, offset: int, data: ReadableBuffer) -> None: ...
    def sync(self) -> None: ...
    def prefetch(self, offset: int, nbytes: int) -> None: ...
    @overload
    def array(self, shape: _Shape, dtype: type[_Scalar], offset: int = 0) -> NDArray[_Scalar]: ...
    @overload
    def array(self, shape: _Shape, dtype: DTypeLike = ..., offset: int = 0) -> NDArray[Any]: ...
    def resize(self, nbytes: int) -> None: ...
    def renew(self, timeout: float) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def default_client() -> Client: ...
def set_default(client: Client | None) -> Client | None: ...
def lease(cores: int = 1, package: _Path | None = None, **options: Unpack[_LeaseOptions]) -> Lease: ...
def memory(
    initial: int | str | None = None,
    increment: int | str | None = None,
    limit: int | str | None = None,
    *,
    timeout: float | None = None,
    wait: float | None = None,
    cache: int | str | None = None,
    line: int | str | None = None,
    near: Iterable[str] | None = None,
    fabric: str | None = None,
) -> Memory: ...

# What calls functions: a lease, and a lease with options.
class _Calling:
    @overload
    def call(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T: ...
    @overload
    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def submit(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]: ...
    @overload
    def submit(self, function: str, /, *args: Any, **kwargs: Any) -> Future[Any]: ...
    @overload
    def map(
        self, function: Callable[..., _T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int | None = None
    ) -> Iterator[_T]: ...
    @overload
    def map(
        self, function: str, *iterables: Iterable[Any], timeout: float | None = None, chunksize: int | None = None
    ) -> Iterator[Any]: ...
    @overload
    def starmap(
        self,
        function: Callable[..., _T],
        iterable: Iterable[Iterable[Any]],
        timeout: float | None = None,
        chunksize: int | None = None,
    ) -> Iterator[_T]: ...
    @overload
    def starmap(
        self, function: str, iterable: Iterable[Iterable[Any]], timeout: float | None = None, chunksize: int | None = None
    ) -> Iterator[Any]: ...

class Lease(_Calling):
    package: str
    functions: tuple[str, ...]
    workers: int
    def __init__(self, client: Client, invoker: Invoker, functions: Any) -> None: ...
    def options(self, timeout: float | None = None, retries: int = 0, worker: int | None = None) -> _WithOptions: ...
    def grow(self, cores: int) -> None: ...
    def renew(self, timeout: float) -> None: ...
    @property
    def leases(self) -> list[_Lease]: ...
    @property
    def fabrics(self) -> list[str]: ...
    @property
    def notices(self) -> list[tuple[str, str]]: ...
    @property
    def usage(self) -> dict[str, int]: ...
    def close(self, cancel: bool = False) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None: ...

class _WithOptions(_Calling): ...

class Future(concurrent.futures.Future[_T]):
    def __await__(self) -> Generator[Any, None, _T]: ...

class Executor(concurrent.futures.Executor):
    def __init__(
        self,
        max_workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        client: Client | None = None,
        **lease: Unpack[_ExecutorOptions],
    ) -> None: ...
    @property
    def lease(self) -> Lease: ...
    @overload
    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]: ...
    @overload
    def submit(self, fn: str, /, *args: Any, **kwargs: Any) -> Future[Any]: ...
    @overload
    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[_T]: ...
    @overload
    def map(
        self,
        fn: str,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int | None = None,
        buffersize: int | None = None,
    ) -> Iterator[Any]: ...
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...

class local:
    def __init__(self, cores: int | None = None, memory: int | str | None = None, **options: str | int | _Path | None) -> None: ...
    def start(self) -> Client: ...
    def stop(self) -> None: ...
    def __enter__(self) -> Client: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None: ...

@overload
def empty(shape: _Shape, dtype: type[float] = ..., order: _Order = "C") -> NDArray[numpy.float64]: ...
@overload
def empty(shape: _Shape, dtype: type[_Scalar] | numpy.dtype[_Scalar], order: _Order = "C") -> NDArray[_Scalar]: ...
@overload
def empty(shape: _Shape, dtype: DTypeLike, order: _Order = "C") -> NDArray[Any]: ...
@overload
def zeros(shape: _Shape, dtype: type[float] = ..., order: _Order = "C") -> NDArray[numpy.float64]: ...
@overload
def zeros(shape: _Shape, dtype: type[_Scalar] | numpy.dtype[_Scalar], order: _Order = "C") -> NDArray[_Scalar]: ...
@overload
def zeros(shape: _Shape, dtype: DTypeLike, order: _Order = "C") -> NDArray[Any]: ...
@overload
def ones(shape: _Shape, dtype: type[float] = ..., order: _Order = "C") -> NDArray[numpy.float64]: ...
@overload
def ones(shape: _Shape, dtype: type[_Scalar] | numpy.dtype[_Scalar], order: _Order = "C") -> NDArray[_Scalar]: ...
@overload
def ones(shape: _Shape, dtype: DTypeLike, order: _Order = "C") -> NDArray[Any]: ...
@overload
def full(
    shape: _Shape, fill_value: ArrayLike, dtype: type[_Scalar] | numpy.dtype[_Scalar], order: _Order = "C"
) -> NDArray[_Scalar]: ...
@overload
def full(shape: _Shape, fill_value: ArrayLike, dtype: DTypeLike | None = None, order: _Order = "C") -> NDArray[Any]: ...
@overload
def empty_like(prototype: NDArray[_Scalar], dtype: None = None, shape: _Shape | None = None) -> NDArray[_Scalar]: ...
@overload
def empty_like(
    prototype: NDArray[Any], dtype: type[_Scalar] | numpy.dtype[_Scalar], shape: _Shape | None = None
) -> NDArray[_Scalar]: ...
@overload
def empty_like(prototype: NDArray[Any], dtype: DTypeLike | None = None, shape: _Shape | None = None) -> NDArray[Any]: ...
@overload
def array(values: NDArray[_Scalar], dtype: None = None) -> NDArray[_Scalar]: ...
@overload
def array(values: ArrayLike, dtype: type[_Scalar] | numpy.dtype[_Scalar]) -> NDArray[_Scalar]: ...
@overload
def array(values: ArrayLike, dtype: DTypeLike | None = None) -> NDArray[Any]: ...

class Error(Exception):
    code: str
    number: int
    def __init__(self, message: str, code: str | None = None, number: int | None = None) -> None: ...

class InvalidArgument(Error, ValueError): ...
class NoCapacity(Error): ...
class InsufficientResources(Error): ...
class ManagerUnreachable(Error, ConnectionError): ...
class AgentUnreachable(Error, ConnectionError): ...
class PermissionDenied(Error, PermissionError): ...
class LeaseEnded(Error): ...
class WorkerDied(Error): ...

if sys.version_info >= (3, 11):
    class DeadlineExceeded(Error, TimeoutError): ...

else:
    class DeadlineExceeded(Error, TimeoutError, concurrent.futures.TimeoutError): ...

class FunctionFailed(Error): ...
class BrokenExecutor(BrokenProcessPool): ...

class RemoteTraceback(Exception):
    text: str
    def __init__(self, text: str) -> None: ...

class RemoteError(Error):
    kind: str
    message: str
    def __init__(self, kind: str, message: str) -> None: ...
