"""Leases that are kept for their next use, until they have been idle for a while.

Nobody in this process has to wait for cores that are only kept: what needs some gives these back first, by `release`.
"""

import threading
import time
from typing import NamedTuple

from . import _errors

_changed = threading.Condition()
_kept = []
_reaper = None


class _Kept(NamedTuple):
    key: object
    lease: object
    # When it is given back, by the monotonic clock.
    until: float


def put(key, lease, seconds):
    """Keeps an idle lease for this many seconds, for whatever takes it by the same key."""
    global _reaper
    with _changed:
        _kept.append(_Kept(key, lease, time.monotonic() + seconds))
        if _reaper is None:
            _reaper = threading.Thread(target=_reap, name="sublet kept leases", daemon=True)
            _reaper.start()
        _changed.notify_all()


def take(key):
    """A lease that is kept under this key, which is the caller's from now on; None if there is none."""
    with _changed:
        for kept in reversed(_kept):
            if kept.key == key:
                _kept.remove(kept)
                return kept.lease
    return None


def is_empty():
    return not _kept


def release():
    """Gives back all that are kept."""
    with _changed:
        idle = [kept.lease for kept in _kept]
        _kept.clear()
        _changed.notify_all()
    for lease in idle:
        give_back(lease)


def give_back(lease):
    """Ends a lease, which may be over already."""
    try:
        lease.close(cancel=True)
    except _errors.Error:
        # Nothing holds its cores any more.
        pass


def _reap():
    global _reaper
    while True:
        with _changed:
            if not _kept:
                _reaper = None
                return
            now = time.monotonic()
            idle = [kept for kept in _kept if kept.until <= now]
            for kept in idle:
                _kept.remove(kept)
            if not idle:
                _changed.wait(min(kept.until for kept in _kept) - now)
        while idle:
            give_back(idle.pop().lease)
