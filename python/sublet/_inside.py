"""The package `sublet` as functions have it on a node whose Python has none: what a component of a graph uses, and `sublet.xpu`.

It goes along with the caller's modules, which may also say `@sublet.app` and `sublet.split()`.
"""

import sys

from . import xpu
from ._chain import call
from ._channel import Channel, channel, instance, instances, receive, send
from ._split import split

__all__ = ["Channel", "app", "call", "channel", "instance", "instances", "receive", "send", "split", "xpu"]


def app(function=None, **options):
    """The function itself: it was compiled where it is called."""
    return function if function is not None else lambda function: function


def __getattr__(name):
    raise AttributeError(
        f"module {__name__!r} has no attribute {name!r} on a worker: there is only what functions use ({', '.join(__all__)}); "
        "lease from the program that calls the function",
        **({"name": name} if sys.version_info >= (3, 10) else {}),
    )
