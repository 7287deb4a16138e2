"""The package `sublet` for functions on a node whose Python lacks it: the interface of graph components, and `sublet.xpu`.

It is sent with the caller's modules, which may also use `@sublet.app`, `sublet.split()` and `sublet.parallel()`.
"""

import importlib
import importlib.util

from . import xpu
from ._chain import call
from ._channel import Channel, channel, instance, instances, receive, send
from ._split import parallel, split

__all__ = ["Channel", "app", "call", "channel", "instance", "instances", "parallel", "receive", "send", "split", "xpu"]


def app(function=None, **options):
    """Returns the function unchanged: it was compiled at the caller."""
    return function if function is not None else lambda function: function


def __getattr__(name):
    if name in ("remote", "Remote", "RemoteArray") and importlib.util.find_spec(f"{__name__}._remote") is not None:
        return getattr(importlib.import_module(f"{__name__}._remote"), name)
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r} on a worker, which only has {', '.join(__all__)}: "
        "lease from the program that calls the function",
        name=name,
    )
