"""Run functions on leased cores, at the speed of memory.

>>> import sublet
>>> with sublet.local(), sublet.lease(cores=2) as lease:
...     print(lease.call(pow, 2, 10))
...     print(list(lease.map(len, ["a", "bb", "ccc"])))
1024
[1, 2, 3]

- `lease` and `Client.lease`: workers on leased cores, and calls of functions there;
- `Environment`: the distributions that functions import there;
- `Executor`: leased workers as a `concurrent.futures.Executor`;
- `empty`, `zeros`, `array`: NumPy arrays that workers use in place;
- `memory` and `Client.memory`: memory that is leased by the segment, and grows;
- `remote`: NumPy arrays in such memory, larger than this process's;
- `app` and `split`: a function that is executed as a graph of components; `Client.deploy` runs any graph;
- `run` and `Client.run`: a run that `Application.detach` has begun and another process drives;
- `channel`, `send`, `receive`, `instance`, `instances`: access of a component's function to its run;
- `xpu`: FIFOs between worker processes, and executors on other units;
- `pus` and `Client.pus`: the processors and devices of the nodes;
- `local`: a platform of this program's own.
"""

from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from . import _memory, _native, xpu
from ._app import App, app, load_app
from ._application import Application, Outcome, Run
from ._bill import Bill
from ._chain import call
from ._channel import Channel, channel, instance, instances, receive, send
from ._client import Client, default_client, lease, memory, pus, run, set_default
from ._component import Memory
from ._environment import Environment
from ._errors import (
    AgentUnreachable,
    BrokenExecutor,
    DeadlineExceeded,
    Error,
    FunctionFailed,
    InsufficientResources,
    InvalidArgument,
    LeaseEnded,
    ManagerUnreachable,
    NoCapacity,
    PermissionDenied,
    RemoteError,
    RemoteTraceback,
    UntrustedResult,
    WorkerDied,
)
from ._executor import Executor
from ._future import Future
from ._lease import Lease
from ._local import local
from ._memory import array, empty, empty_like, full, ones, zeros
from ._pus import Price, ProcessingUnit
from ._split import parallel, split
from ._warning import ColdImportWarning

if TYPE_CHECKING:
    from ._remote import Remote, RemoteArray, remote

__version__ = _native.VERSION

__all__ = [
    "AgentUnreachable",
    "App",
    "Application",
    "Bill",
    "BrokenExecutor",
    "Channel",
    "Client",
    "ColdImportWarning",
    "DeadlineExceeded",
    "Environment",
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
    "Outcome",
    "PermissionDenied",
    "Price",
    "ProcessingUnit",
    "Remote",
    "RemoteArray",
    "RemoteError",
    "RemoteTraceback",
    "Run",
    "UntrustedResult",
    "WorkerDied",
    "app",
    "array",
    "call",
    "channel",
    "default_client",
    "empty",
    "empty_like",
    "full",
    "instance",
    "instances",
    "lease",
    "load_app",
    "local",
    "memory",
    "ones",
    "parallel",
    "pus",
    "receive",
    "remote",
    "run",
    "send",
    "set_default",
    "split",
    "xpu",
    "zeros",
]

# These need NumPy, which is optional, and are imported at their first use.
_WITH_NUMPY = frozenset(("Remote", "RemoteArray", "remote"))
if _find_spec("numpy") is None:
    __all__ = [name for name in __all__ if name not in _WITH_NUMPY]


def __getattr__(name):
    if name not in _WITH_NUMPY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _memory._numpy()
    from . import _remote

    for found in _WITH_NUMPY:
        globals()[found] = getattr(_remote, found)
    return globals()[name]


def __dir__():
    return sorted({*globals(), *_WITH_NUMPY})


for _name in __all__:
    if isinstance(globals().get(_name), type):
        # The public name.
        globals()[_name].__module__ = __name__
