"""Calls of functions in Python: messages to workers, and their replies. The counterpart is the worker's `worker.py`."""

import collections
import hashlib
import itertools
import logging
import pickle
import sys
import threading
import time
import weakref
from typing import NamedTuple, Optional

from . import _classes, _constants, _errors, _native, _rebuild
from ._contents import is_plain_array
from ._definition import Unwatchable, Watch
from ._memory import as_bytes_like
from ._pickling import pickle_arguments, pickle_function

# Version of the messages, which changes with any of the following.
VERSION = 4
# Kinds of requests.
CALL, MAP = VERSION << 8, VERSION << 8 | 1
# Kinds of replies; PRINTED is added if the last part has the printed and logged output.
DONE, RAISED, UNKNOWN, BROKEN = 0, 1, 2, 3
PRINTED = 16
# Content of a request: the header with the function; also its definition; also the session of the lease.
HEADER, DEFINITION, SESSION = 0, 1, 2
# Function of each Python package that calls all others.
FUNCTION = "sublet.call"
# Values of these types are pickled directly; others may have classes that are sent by value.
PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])
# Minimum and maximum capacity that a call reserves for its reply, in bytes.
ROOM, MOST_ROOM = 64 << 10, 1 << 31
# Number of replies in a row that need less than a quarter of the capacity, after which it shrinks. A worker keeps a reply that
# exceeds the capacity, and a second message fetches it, so a wrong guess costs little compared with such a reply.
SMALL_REPLIES = 4
# Maximum overhead of a message, and of each of its buffers, in bytes.
HEAD_BYTES, PIECE_BYTES = 4096, 88
# Minimum size, in bytes, of memory that is left out of a pickle without being registered: below, a copy is cheaper.
APART = 1024
# Maximum number of buffers that are left out of one pickle: a message takes 1 << 20, including the pickle and the other parts. More
# registered memory is rejected, since workers have to share it.
MOST_APART = (1 << 20) - 16
# Maximum number of functions that are remembered by their names.
MOST_NAMES = 4096

_sessions = itertools.count(1)


def digest(definition):
    return hashlib.blake2b(definition, digest_size=16).digest()


class Functions:
    """Functions of one lease, with their names on the worker and the sizes of their results."""

    def __init__(self, initializer=None, initargs=()):
        #: Reader of replies, which the lease sets before the first call.
        self.origin = OWN
        self._known = {}
        self._named = {}
        if initializer is not None and not callable(initializer):
            raise TypeError(f"the initializer {initializer!r} cannot be called")
        said = {"log_level": logging.getLogger().getEffectiveLevel()}
        if initializer is not None:
            said.update(initializer=initializer, initargs=tuple(initargs))
        self._session = Session(said)

    def known(self, function):
        """Returns the record of a function."""
        known = self._known.get(id(function))
        if known is not None and known.function() is function:
            if known.watch is None or not known.watch.is_same(function):
                known.define(function)
            return known
        if isinstance(function, str):
            return self._of_name(function)
        if not callable(function):
            message = f"{function!r} cannot be called: pass a callable, or a function's name as \"module:function\""
            raise TypeError(message)
        known = Known(self._session, function, self.origin)
        number, functions = id(function), weakref.ref(self)
        try:
            # A weak reference: the function's closure may be large.
            known.function = weakref.ref(function, lambda _: _forget(functions(), number))
        except TypeError:
            return known
        self._known[number] = known
        return known

    def _of_name(self, name):
        known = self._named.get(name)
        if known is None:
            known = Known(self._session, name, self.origin)
            if len(self._named) < MOST_NAMES:
                self._named[name] = known
        return known


def _forget(functions, number):
    if functions is not None:
        functions._known.pop(number, None)


class Session:
    """State that a lease sends once for all of its calls."""

    __slots__ = ("number", "definition", "classes", "is_sent", "_globals", "_constants", "_changes")

    def __init__(self, said):
        self.number = next(_sessions)
        # The globals that were sent, by module and name: see `_pickling.pickle_function`.
        self._globals = {}
        # The constants that were sent, by module and name, and how often that was another value: see `_constants.changed`.
        self._constants, self._changes = {}, 0
        # The function's pickle, and the classes that it has by value.
        self.definition, self.classes = self.pickle(said, _constants.own_modules())
        self.is_sent = False

    def pickle(self, function, modules=None):
        """Pickles a function, with constants of modules; returns also the classes that it has by value."""
        pickled, versions, named, classes = pickle_function(function, self._globals)
        constants = _constants.changed(named if modules is None else modules, self._constants)
        sent = {(module, name): (type(value), value) for module, values in constants.items() for name, value in values.items()}
        if any(self._constants.get(key) != value for key, value in sent.items()):
            self._constants.update(sent)
            self._changes += 1
        # The number distinguishes returned values from earlier ones of a worker.
        return pickle.dumps((versions, (self._changes if constants else 0, constants), pickled), 5), classes


class Definition:
    """A version of a function: its digest, or its name if the worker has it, and its pickle."""

    __slots__ = ("key", "pickled", "classes", "header", "is_sent", "known_by")

    def __init__(self, session, key, pickled, classes=()):
        self.key = key
        # Classes that the pickle has by value. They are kept until instances of them have come back.
        self.classes = classes
        # Header of a call to a worker that already has the function.
        self.header = pickle.dumps((session, key, None), 5)
        self.pickled = pickled
        self.is_sent = False
        #: Numbers of the workers that have executed it.
        self.known_by = set()


class Known:
    """One function."""

    __slots__ = ("session", "function", "origin", "load", "name", "definition", "watch", "room", "_small", "_largest")

    def __init__(self, session, function, origin):
        self.session, self.origin, self.load = session, origin, origin.load
        self.function, self.name = None, _name(function)
        # The capacity that the next call reserves; how many of the latest replies needed much less, and the most that one of these needed.
        self.room, self._small, self._largest = ROOM, 0, 0
        self.definition = self.watch = None
        if isinstance(function, str):
            self.definition = Definition(session.number, function, None)
        else:
            self.define(function)

    def define(self, function):
        """Updates the definition to the current state of the function."""
        is_again, is_watched = self.definition is not None, self.watch is not None
        try:
            # A function that is called only once has none, since it takes about as long as the pickling.
            self.watch = Watch(function) if is_again else None
        except Unwatchable:
            # It is pickled for each call.
            self.watch = None
        try:
            pickled, classes = self.session.pickle(function)
        except Exception as error:
            raise _unpicklable(error, f"the function {self.name}") from error
        key = digest(pickled)
        if self.definition is None or key != self.definition.key:
            self.definition = Definition(self.session.number, key, pickled, classes)
        if self.watch is not None and not is_watched:
            self.watch.warn_if_slow(function, self.name)

    def returned(self, size):
        """Adapts the capacity that calls reserve to a reply of `size` bytes."""
        if size > self.room:
            self.room, self._small, self._largest = min(size + (size >> 2), MOST_ROOM), 0, 0
        elif self.room > ROOM:
            self._shrink(size)

    def _shrink(self, size):
        if size > self.room >> 2:
            self._small, self._largest = 0, 0
            return
        self._small, self._largest = self._small + 1, max(self._largest, size)
        if self._small >= SMALL_REPLIES:
            self.room, self._small, self._largest = max(ROOM, self._largest + (self._largest >> 2)), 0, 0

    def parts(self, definition, arguments, how_much=HEADER):
        """Returns the parts of a request: the function, its arguments, and the memory that was left out of them."""
        header = definition.header
        if how_much != HEADER:
            session = self.session.definition if how_much == SESSION else None
            header = pickle.dumps((self.session.number, definition.key, (session, definition.pickled)), 5)
        return [header, *_dump(arguments, pickle.dumps if _is_plain(arguments) else pickle_arguments)]


def _is_plain(arguments):
    """Returns whether the arguments of a call cannot contain classes of this program."""
    if type(arguments) is not tuple or arguments[1]:
        return False
    for value in arguments[0]:
        if type(value) not in PLAIN and not is_plain_array(value):
            return False
    return True


def _dump(value, dumps):
    buffers = []

    def leave_out(buffer):
        memory = buffer.raw()
        if (memory.nbytes < APART or len(buffers) >= MOST_APART) and not _native.is_registered(memory):
            return True
        buffers.append(memory)
        return False

    try:
        body = dumps(value, 5, buffer_callback=leave_out)
    except Exception as error:
        raise _unpicklable(error, "an argument") from error
    return [body, *buffers]


def _unpicklable(error, what):
    if isinstance(error, (TypeError, pickle.PicklingError, AttributeError, RecursionError)):
        return type(error)(f"{what} cannot be sent to a worker: {error}")
    return error


def _name(function):
    return getattr(function, "__qualname__", None) or repr(function)


class Own:
    """Reader of replies of the program's own functions and its tenant's packages, whose pickles are loaded."""

    load = staticmethod(_classes.loads)
    rebuilt = staticmethod(_rebuild.remote)

    @staticmethod
    def failure(body):
        """Returns the exception of a reply."""
        return _rebuild.remote(pickle.loads(body))

    @staticmethod
    def show(body):
        """Prints and logs the output of a reply."""
        show_printed(pickle.loads(body))

    @staticmethod
    def show_entries(entries):
        """Prints and logs loaded entries."""
        show_printed(entries)


OWN = Own()


def read(known, kind, parts):
    """Reads the result or the exception of a function."""
    if kind == DONE:
        # A local name: calling a slot as a method takes longer.
        body, load = parts[0], known.load
        if len(parts) == 1:
            known.returned(len(body) + HEAD_BYTES)
            return load(body), None
        buffers = parts[1:]
        known.returned(len(body) + sum(map(len, buffers)) + PIECE_BYTES * len(buffers) + HEAD_BYTES)
        return load(body, [as_bytes_like(buffer) for buffer in buffers]), None
    error = known.origin.failure(parts[0])
    if kind == BROKEN:
        broken = _errors.BrokenExecutor(f"a worker could not be initialized: {error}")
        broken.__cause__ = error
        return None, broken
    return None, error


def deadline_of(options):
    """Returns the deadline of a call that is sent now, by the monotonic clock; None without a limit."""
    return None if options.timeout is None else time.monotonic() + options.timeout


class Sent:
    """A call that was sent, and the target of its result, for any kind of function."""

    __slots__ = ("call", "target", "completer", "number", "lock", "is_ended")

    def __init__(self, target, completer):
        self.target = target
        self.completer = completer
        # By which the background thread knows it, if it watches it.
        self.number = None
        self.lock = threading.Lock()
        self.is_ended = False

    def _outcome(self):
        """Returns result and exception of a call that has ended; None if another message follows."""
        raise NotImplementedError

    def _has_ended(self):
        return self.call.done()

    def _end(self, result, error):
        """Gives the result to the target and drops the reference to it, which may be a cycle."""
        target, self.target = self.target, None
        target._end(result, error)

    def collect(self, timeout):
        """Waits for the end, at most `timeout` seconds; returns whether the call has ended and its target has the result."""
        while not self.is_ended:
            if not self.call.wait(timeout):
                return False
            self._look()
        return True

    def _look(self):
        with self.lock:
            if self.is_ended or not self._has_ended():
                return
            try:
                outcome = self._outcome()
            except BaseException as error:
                # Whatever the error is, there is no second result.
                outcome = (None, _errors.from_outside(error))
            if outcome is None:
                return self._watch_again()
            self.is_ended = True
        if self.number is not None:
            self.completer.forget(self.number)
        self._end(*outcome)

    def watch(self):
        """Lets the background thread collect the call, so that the target gets the result without a waiting thread."""
        with self.lock:
            if self.is_ended or self.number is not None:
                return
            self.number = self.completer.add(self)
            self._watch_again()

    def _watch_again(self):
        if self.number is not None and self.call.watch(self.completer.queue, self.number):
            self.completer.queue.put(self.number)

    def woken(self):
        """Is called when the call may have ended."""
        if self.call.done():
            self._look()
        with self.lock:
            if not self.is_ended:
                self._watch_again()


class Order(NamedTuple):
    """A call that waits to be sent."""

    known: Known
    operation: int
    arguments: object
    options: object
    # Target of the result.
    target: object


class Begun(NamedTuple):
    """A call whose first message was sent."""

    definition: Definition
    call: object
    # The reply; None before it has arrived.
    reply: Optional[tuple]
    # Latest time for its end, by the monotonic clock; None if there is no limit.
    deadline: Optional[float]


class SentObjects(Sent):
    """A call of a function in Python."""

    __slots__ = ("dispatch", "order", "definition", "how_much", "reply", "deadline")

    def __init__(self, dispatch, order, begun=None):
        super().__init__(order.target, dispatch.completer)
        self.dispatch = dispatch
        self.order = order
        if begun is None:
            self.definition, self.reply = order.known.definition, None
            self.deadline = deadline_of(order.options)
            is_begun = order.known.session.is_sent
            self._send(HEADER if self.definition.is_sent else DEFINITION if is_begun else SESSION)
        else:
            self.how_much = HEADER
            self.definition, self.call, self.reply, self.deadline = begun

    def _send(self, how_much):
        known, operation, arguments, options, _ = self.order
        parts = known.parts(self.definition, arguments, how_much)
        left = None if self.deadline is None else self.deadline - time.monotonic()
        if left is not None and left <= 0:
            raise _errors.DeadlineExceeded("the deadline passed before the worker had the function", "deadline_exceeded", 42)
        self.how_much = how_much
        self.call = self.dispatch.send(known, operation, parts, options, left)
        if how_much != HEADER:
            self.definition.is_sent = known.session.is_sent = True

    def _send_all(self):
        """Sends the call again with its definition, to a worker that does not know it. The worker must not ask again."""
        if self.how_much == SESSION:
            message = f"a worker does not accept the definition of function {self.order.known.name}"
            raise _errors.Error(message, "protocol", 52)
        self._send(SESSION)

    def may_be_sent_again(self):
        """Returns whether the worker may lack the function."""
        workers, worker = self.definition.known_by, self.order.options.worker
        return len(workers) < self.dispatch.workers if worker is None else worker not in workers

    def _has_ended(self):
        return self.reply is not None or super()._has_ended()

    def collect(self, timeout):
        if self.reply is not None:
            self._look()
        return super().collect(timeout)

    def _outcome(self):
        reply, self.reply = self.reply, None
        worker = None
        if reply is None:
            worker, reply = self.call.worker(), self.call.reply()
        if reply is None:
            # The reply was larger than the space for it.
            return None
        kind, parts = reply
        if kind & PRINTED:
            # Much of it is not copied out of its message.
            self.order.known.origin.show(as_bytes_like(parts.pop()))
            kind &= ~PRINTED
        if kind == UNKNOWN:
            self._send_all()
            return None
        if worker is not None and worker not in self.definition.known_by:
            self.definition.known_by.add(worker)
        return read(self.order.known, kind, parts)

    def _end(self, result, error):
        self.order = None
        dispatch = self.dispatch
        if error is not None and dispatch.translate is not None:
            error = dispatch.translate(dispatch, error)
        try:
            dispatch.ended(self)
        finally:
            # Whatever interrupts the sending of others.
            super()._end(result, error)


class Completer:
    """Background thread that collects calls without waiting threads."""

    def __init__(self, make_queue):
        self.queue = make_queue()
        self._sent = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._thread = None
        self._is_stopping = False
        # Calls of leases that were dropped.
        self._left = collections.deque()

    def start(self):
        """Starts the thread, if it is not running."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sublet completer", daemon=True)
                self._thread.start()

    def add(self, sent):
        number = next(self._numbers)
        self._sent[number] = sent
        return number

    def take_over(self, dispatch):
        """Lets the thread complete the calls of a dropped lease. Takes no lock, since a garbage collection may call this."""
        self._left.append(dispatch)
        self.queue.put(0)

    def forget(self, number):
        self._sent.pop(number, None)

    def stop(self):
        """Stops the thread, which must not be in the native module when the interpreter ends."""
        thread, self._is_stopping = self._thread, True
        if thread is not None:
            self.queue.put(0)
            thread.join()

    def _run(self):
        while not self._is_stopping:
            numbers = self.queue.take(3600.0)
            while self._left:
                self._left.popleft().leave()
            for number in numbers:
                sent = self._sent.get(number)
                if sent is not None:
                    try:
                        sent.woken()
                    except BaseException:
                        logging.getLogger("sublet").exception("a call could not be completed")
                sent = None


def show_printed(entries):
    """Prints and logs the output of a worker."""
    for kind, what in entries:
        if kind == "log":
            record = logging.makeLogRecord(what)
            logger = logging.getLogger(record.name)
            if logger.isEnabledFor(record.levelno):
                logger.handle(record)
        else:
            stream = sys.stdout if kind == "stdout" else sys.stderr
            if stream is not None:
                stream.write(what)
