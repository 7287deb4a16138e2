"""Detects processes that were forked from one that uses Sublet."""

import os

from . import _errors, _native

_forked = False


def check():
    """Raises in a forked process: the leases belong to its parent."""
    if _forked:
        raise _errors.Error(
            "this process was forked from one that uses sublet, whose leases are the parent's: start it by another way "
            "(as multiprocessing's spawn), or fork before the first use",
        )


def stays_here(what, instead):
    """The `__reduce__` of a handle of this process, which cannot be pickled."""

    def __reduce__(self):
        raise TypeError(f"{what} belongs to the process that created it: {instead}")

    return __reduce__


def is_forked():
    return _forked


def _after_fork():
    global _forked
    _forked = True
    _native.forked()


os.register_at_fork(after_in_child=_after_fork)
