"""Warnings that name the program's own line."""

import sys
import warnings

from . import _foreign


class ColdImportWarning(UserWarning):
    """Modules in `imports` cannot be kept warm on the nodes: each lease imports them again."""


# For which imports or packages this process was warned.
_told = set()


def warn_of_cold_imports(invoker, leased):
    """Warns, once for each list of imports or package, if a node of the leases cannot keep a module warm."""
    cold = invoker.cold_imports()
    if cold is None or leased in _told:
        return
    _told.add(leased)
    module, reason, milliseconds = cold
    time = f" ({milliseconds} ms)" if milliseconds else ""
    warn(
        f"{module!r} in imports cannot be kept warm, because importing it {reason}: each lease imports it anew{time}. Keep a lease "
        "for many calls, or import the module in the functions that need it",
        ColdImportWarning,
    )


def warn(text, category=UserWarning):
    """Warns at the first frame that is not of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(_foreign.escaped(text), category, stacklevel=level)
