"""Cache of idle leases, which are kept for their next use for a limited time.

Threads of this process never wait for cores of cached leases: an allocation calls `release` first.
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
    # Time of its release, by the monotonic clock.
    until: float


def put(key, lease, seconds):
    """Caches an idle lease under a key for `seconds` seconds."""
    global _reaper
    with _changed:
        _kept.append(_Kept(key, lease, time.monotonic() + seconds))
        if _reaper is None:
            _reaper = threading.Thread(target=_reap, name="sublet kept leases", daemon=True)
            _reaper.start()
        _changed.notify_all()


def take(key):
    """Removes and returns a lease of this key, which then belongs to the caller; None if there is none."""
    with _changed:
        for kept in reversed(_kept):
            if kept.key == key:
                _kept.remove(kept)
                return kept.lease
    return None


def is_empty():
    return not _kept


def release():
    """Releases all cached leases."""
    with _changed:
        idle = [kept.lease for kept in _kept]
        _kept.clear()
        _changed.notify_all()
    for lease in idle:
        give_back(lease)


def give_back(lease):
    """Closes a lease, which may have ended already."""
    try:
        lease.close(cancel=True)
    except _errors.Error:
        # The lease has ended already.
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
