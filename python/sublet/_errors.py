"""Exceptions, by the same codes as in every language (SPECIFICATION.md, Errors)."""

import concurrent.futures
import traceback
from concurrent.futures.process import BrokenProcessPool


class Error(Exception):
    """Something that Sublet could not do.

    `code` is the error's stable name, as `no_capacity`, `number` its number; the text says what was wrong with which values.
    """

    code = "internal"
    number = 0

    def __init__(self, message, code=None, number=None):
        super().__init__(message)
        if code is not None:
            self.code = code
        if number is not None:
            self.number = number

    def __reduce__(self):
        return type(self), (*self.args, self.code, self.number)


class InvalidArgument(Error, ValueError):
    """A value that cannot be: the text names it."""

    code = "invalid_argument"
    number = 10


class NoCapacity(Error):
    """The nodes could give what was asked, but not now: wait (`lease(wait=...)`), or ask for less."""


class InsufficientResources(Error):
    """No node, or all nodes together, have what was asked."""


class ManagerUnreachable(Error, ConnectionError):
    """No manager answers: is `sublet up` running, is the address right?"""


class AgentUnreachable(Error, ConnectionError):
    """A node is out of reach, and the leases there with it."""


class PermissionDenied(Error, PermissionError):
    """Who one is, is known, and may not do this."""


class LeaseEnded(Error):
    """The lease is over: given back, expired, or taken back by its node."""

    code = "lease_ended"
    number = 33


class WorkerDied(Error):
    """The worker process ended during the call: the text says how. The next call gets a new one."""


# Which are one from Python 3.11 on.
_TIMEOUTS = tuple(dict.fromkeys((TimeoutError, concurrent.futures.TimeoutError)))


class DeadlineExceeded(Error, *_TIMEOUTS):
    """The call did not end in time. Nothing else can stop a function, so its worker was ended."""


class FunctionFailed(Error):
    """A function that is not in Python, or one of a graph's component, said that it failed."""


class BrokenExecutor(BrokenProcessPool):
    """A worker of the executor ended, or could not be initialised: the executor takes no more calls."""


class RemoteTraceback(Exception):
    """The traceback of an exception on its worker: the cause of the exception that is raised here, or of its innermost cause."""

    def __init__(self, text):
        super().__init__(text)
        self.text = text

    def __str__(self):
        return f'\n"""\n{self.text.rstrip()}\n"""'


class RemoteError(Error):
    """An exception that cannot be raised here as itself: its class is unknown here, or something in it cannot be pickled.

    It is also an instance of the nearest base class that is known here: `except ValueError` catches what was derived from
    `ValueError`. `kind` is the full name of its class, `message` its text.
    """

    code = "function_failed"

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __str__(self):
        return f"{self.kind}: {self.message}"

    def __reduce__(self):
        return type(self), (self.kind, self.message)


class UntrustedResult(Error):
    """A function of another tenant's package returned something that is not loaded into this process: the text names it."""

    code = "permission_denied"
    number = 34


_CLASSES = {
    "invalid_argument": InvalidArgument,
    "invalid_graph": InvalidArgument,
    "no_capacity": NoCapacity,
    "insufficient_resources": InsufficientResources,
    "manager_unreachable": ManagerUnreachable,
    "agent_unreachable": AgentUnreachable,
    "permission_denied": PermissionDenied,
    "unauthenticated": PermissionDenied,
    "lease_ended": LeaseEnded,
    "lease_expired": LeaseEnded,
    "node_reclaimed": LeaseEnded,
    "worker_died": WorkerDied,
    "deadline_exceeded": DeadlineExceeded,
    "function_failed": FunctionFailed,
}


def of(code, number, message):
    """The exception of an error of the library."""
    return _CLASSES.get(code, Error)(message, code, number)


def from_outside(error):
    """The exception as a future holds it: its traceback is text, where it has frames beyond this package.

    Frames refer to those that called them, and so to the future and its lease: a cycle, which only a garbage collection would end.
    """
    within = error.__traceback__
    while within is not None and within.tb_frame.f_globals.get("__package__") == __package__:
        within = within.tb_next
    if within is not None or error.__cause__ is not None or error.__context__ is not None:
        text = "".join(traceback.format_exception(type(error), error, within))
        error.__context__, error.__cause__ = None, RemoteTraceback(text)
    return error.with_traceback(None)

