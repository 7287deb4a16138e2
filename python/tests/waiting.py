"""Waits that the tests share: for a condition, for a call that executes, and for a time that this machine can keep."""

import os
import signal
import threading
import time

# Seconds after which what has not happened never will, on a machine that is ten times slower than usual and stands still
# for some seconds now and then. They only end tests that hang.
PATIENCE = 180


def until(is_so, what):
    """Waits until something is so, and fails if it does not become so."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.005)


def with_growing_time(first, attempt):
    """The first result of an attempt that is not None, with longer and longer times in seconds: the first is enough on a usual machine."""
    seconds = first
    while seconds < PATIENCE:
        result = attempt(seconds)
        if result is not None:
            return result
        seconds *= 2
    raise AssertionError(f"no time below {PATIENCE} s was long enough")


def held(flags, value=None):
    """Says by the first flag that a worker executes it, and returns the value once the second flag is set."""
    flags[0] = 1
    while not flags[1]:
        time.sleep(0.001)
    return value


def interrupt_when_executing(flags):
    """Interrupts this program as soon as a worker executes `held` with these flags: then the caller waits for the call."""

    def interrupt():
        until(lambda: flags[0], "the call executes")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
