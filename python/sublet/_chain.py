"""Functions that call functions of their own package."""

from __future__ import annotations

import sys
from typing import Any

from . import _errors


def call(function: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls another function of the package by its name, in this worker, without the detour over a client or server.

    For functions that a worker executes, in a package that names its functions. Returns the function's result unchanged, and
    raises its exception with a note that names the function. Outside of workers it raises `InvalidArgument`; for an unknown
    function a `LookupError`.

    Examples:
        >>> def resize(image):
        ...     return sublet.call("compress", image[::2, ::2])
    """
    worker = sys.modules.get("sublet_worker")
    if worker is None:
        raise _errors.InvalidArgument("sublet.call works only in a worker, and this process is not one")
    return worker.call(function, *args, **kwargs)
