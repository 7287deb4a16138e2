"""Functions that call functions of their own package."""

from __future__ import annotations

import sys
from typing import Any

from . import _errors


def call(function: str, /, *args: Any, **kwargs: Any) -> Any:
    """Calls another function of the package by its name, in place: in this worker, without a way through client or server.

    For functions that a worker executes: the package names them. What the function returns is returned as it is, and what it raises
    goes through, with a note that names the function where it was raised first. Elsewhere it raises `InvalidArgument`; without
    such a function in the package a `LookupError`.

    Examples:
        >>> def resize(image):
        ...     return sublet.call("compress", image[::2, ::2])
    """
    worker = sys.modules.get("sublet_worker")
    if worker is None:
        raise _errors.InvalidArgument("sublet.call is for functions that a worker executes: this process is none")
    return worker.call(function, *args, **kwargs)
