"""Exceptions, by the same codes as in every language (SPECIFICATION.md, Errors)."""

import concurrent.futures
import traceback
from concurrent.futures.process import BrokenProcessPool


class Error(Exception):
    """An operation of Sublet failed.

    `code` is the stable name of the error, as `no_capacity`, `number` its number; the text describes the failure.
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
    """A value is not valid: the text names it."""

    code = "invalid_argument"
    number = 10


class NoCapacity(Error):
    """The requested resources exist, but are leased at the moment: wait (`lease(wait=...)`), or request less."""


class InsufficientResources(Error):
    """The nodes do not have the requested resources, even when idle."""


class ManagerUnreachable(Error, ConnectionError):
    """No manager answers: check that `sublet up` is running and the address is right."""


class AgentUnreachable(Error, ConnectionError):
    """A node cannot be reached, and neither can its leases."""


class PermissionDenied(Error, PermissionError):
    """The caller is known, but lacks the right."""


class LeaseEnded(Error):
    """The lease has ended: released, expired, or withdrawn with its node."""

    code = "lease_ended"
    number = 33


class WorkerDied(Error):
    """The worker process ended during the call: the text says how. The next call starts a new one."""


# Both are the same class from Python 3.11 on.
_TIMEOUTS = tuple(dict.fromkeys((TimeoutError, concurrent.futures.TimeoutError)))


class DeadlineExceeded(Error, *_TIMEOUTS):
    """The call did not end in time. Its worker was killed, since nothing else can stop a function."""


class FunctionFailed(Error):
    """A function in another language, or of a graph's component, reported a failure."""


class BrokenExecutor(BrokenProcessPool):
    """A worker of the executor ended, or could not be initialized: the executor accepts no more calls."""


class RemoteTraceback(Exception):
    """The traceback of an exception on its worker: the cause of the exception that is raised here, or of its innermost cause."""

    def __init__(self, text):
        super().__init__(text)
        self.text = text

    def __str__(self):
        return f'\n"""\n{self.text.rstrip()}\n"""'


class RemoteError(Error):
    """An exception that cannot be raised here as itself: its class is unknown here, or something in it cannot be pickled.

    It is also an instance of the nearest base class that is known here: `except ValueError` catches subclasses of
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
    """A function of another tenant's package returned an object that is not loaded into this process: the text names it."""

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
    """Creates the exception for an error of the library."""
    return _CLASSES.get(code, Error)(message, code, number)


def from_outside(error):
    """Converts an exception for a future: a traceback with frames outside of this package becomes text.

    Frames refer to those that called them, and so to the future and its lease: a cycle, which only a garbage collection would end.
    """
    within = error.__traceback__
    while within is not None and within.tb_frame.f_globals.get("__package__") == __package__:
        within = within.tb_next
    if within is not None or error.__cause__ is not None or error.__context__ is not None:
        text = "".join(traceback.format_exception(type(error), error, within))
        error.__context__, error.__cause__ = None, RemoteTraceback(text)
    return error.with_traceback(None)

