"""Building blocks for the source of compiled applications; see `sublet.app`.

A function that `component` decorates is executed by one component of the graph. Its parameters are variables of the application. It
returns a dict of the variables for later components, or the `result` of the application, which ends the run.

A variable travels as a pickle, in the message that triggers the next component, until a component has a parameter of its name. The
pickle leaves out the memory of arrays: it is stored once in the memory component of the variable's name. Components that get the
variable map it on their own node, and otherwise copy it, or use it as a remote array.

- Values that share mutable state are in one pickle; arrays that overlap lie in one range of memory.
- Arrays in a memory component stay there, and are not copied again.
- Each instance of a component gets the variables. Instances share the elements of arrays, and must not change anything else.
- Arguments and a result that are too large for a message are in the memory components that the graph has for them.
"""

import functools
import inspect
import operator
import pickle
import re
import sys

from . import _errors
from ._bundle import Bundle, Pickling, fingerprints, is_remote, load, needed, pickled
from ._channel import instance, instances
from ._leaving import Leaving
from ._regions import REMOTE, Contents, RunMemory

__all__ = ["choice", "component", "counted", "result", "unbound"]

# Start of each message; the last byte is the version of the format.
MAGIC = b"sublet app \x80\x02"
# Line before the start of a message: the number of instances of the next component, or the choice of it.
HEAD = re.compile(rb"(?:[0-9]+\n|sublet choice [^\n]*\n)?(?=sublet app )")
# Maximum size of a component's message, in bytes.
MOST_BYTES = 256 << 10
# Maximum size of a pickled result in a message, in bytes, which leaves space for what the components have printed.
RESULT_BYTES = 192 << 10
# Maximum characters of output of all components that are returned, and the overhead of a log record.
MOST_PRINTED = 16 << 10
LOG_BYTES = 512
DROPPED = ("stderr", f"\n[sublet: the rest of the output, after {MOST_PRINTED} characters, is dropped]\n")
# Part of the name of the memory component for the arguments. No variable's name has it.
ARGUMENTS = ".arguments"
# Name of the application's caller among the functions that access memory components.
CALLER = ""

# Parameters of the components of each module, in the order of their definition.
_components = {}
# The execution of a component's function, during it.
_running = None


class _Unbound:
    """Placeholder for a variable without a value."""

    def __repr__(self):
        return "<no value>"


unbound = _Unbound()


class result:
    """Result of the application."""

    __slots__ = ("value",)

    def __init__(self, value=None):
        self.value = value


class choice:
    """Variables of a component that chooses the next one, by the number of the condition that holds; -1 if none does."""

    __slots__ = ("number", "left")

    def __init__(self, number, left):
        self.number = number
        self.left = left

    @staticmethod
    def text(number):
        """How the message begins by which triggers of the graph choose."""
        return f"sublet choice {number}\n"


class counted:
    """Variables of a component, with the number of instances of the next one."""

    __slots__ = ("number", "left")

    def __init__(self, number, left):
        self.number = operator.index(number)
        self.left = left

    @staticmethod
    def text(number):
        """How the message begins by which the graph counts the instances."""
        return f"{number}\n"


def component(function):
    """Decorator that makes a function a component: it gets a message and returns the next one."""
    known = _components.setdefault(function.__module__, {})
    known[function.__name__] = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def execute(data):
        return _Execution(function, known, State.of(bytes(data))).run()

    return execute


class State:
    """Message of a component to the next ones."""

    def __init__(self, call=None, bundles=(), returned=None, access=None, printed=(), branches=None, changed=()):
        #: Arguments for the first component: pickled, or a `Bundle` in the memory component of the arguments.
        self.call = call
        self.bundles = list(bundles)
        #: Result of the application, which ends the run: pickled, or a `Bundle` in the memory component of the result.
        self.returned = returned
        #: Memory components that each function accesses. The caller accesses that of the result.
        self.access = access or {}
        self.printed = list(printed)
        #: Functions of components that are executed at the same time as others, each with its number among them.
        self.branches = branches or {}
        #: Variables that such a component has set. The first one has all others in `bundles`.
        self.changed = list(changed)

    def to_bytes(self):
        fields = self.call, self.bundles, self.returned, self.access, self.printed, self.branches, self.changed
        # A result that is passed on needs one instance of the next component, if these are counted.
        head = b"" if self.returned is None else counted.text(1).encode()
        return head + MAGIC + pickle.dumps(fields, 5)

    def join(self, others):
        """Adds what the components, or instances, have changed that were executed at the same time as this first one."""
        changed = [bundle for state in (self, *others) for bundle in state.changed]
        names = {name for bundle in changed for name in bundle.names}
        left = [bundle.without(names) for bundle in self.bundles]
        self.bundles, self.changed = [*(bundle for bundle in left if bundle is not None), *changed], []
        self.printed = _bounded(entry for state in (self, *others) for entry in state.printed)

    @staticmethod
    def of(data, loads=pickle.loads):
        """Decodes a message, or those of several components and instances, of which the first one has what they did not change."""
        if not data:
            raise _errors.InvalidArgument("components of an application need the message of another component, and got an empty one")
        head = HEAD.match(data)
        if head is not None:
            data = data[head.end() :]
        if not data.startswith(MAGIC):
            first, *others = [State.of(output, loads) for output in _outputs(data)]
            first.join(others)
            return first
        return State(*loads(memoryview(data)[len(MAGIC) :]))


def _outputs(data):
    """Splits the outputs of several instances, each preceded by its length."""
    at, found = 0, []
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 8 : at + 8 + length])
        at += 8 + -(-length // 8) * 8
    if at != len(data) or not all(HEAD.match(output) for output in found):
        raise _errors.InvalidArgument("the input is not a message of a component of an application")
    return found


class _Execution:
    """One component's part of a run."""

    def __init__(self, function, known, state):
        self._function = function
        self._name = function.__name__
        self._parameters = known[self._name]
        # Parameters of the later components.
        names = list(known)
        self._later = {name: known[name] for name in names[names.index(self._name) + 1 :]}
        self._state = state
        self._memory = RunMemory(is_shared=instances() > 1 or self._name in state.branches)

    def run(self):
        state = self._state
        # One of several that are executed at the same time hands on the variables that none of them changes.
        branch = state.branches.get(self._name)
        is_first = instance() == 0 and not branch
        if state.returned is not None:
            return (state if is_first else State()).to_bytes()
        loaded, others = self._load()
        if state.call is None:
            args, kwargs = (), {name: value for name, value in loaded.items() if name in self._parameters}
        else:
            args, kwargs = self._call(state.call)
        is_one_of_many = instances() > 1
        before = fingerprints(loaded) if is_one_of_many or branch is not None else None
        worker = sys.modules.get("sublet_worker")
        printed = state.printed if is_first else []
        if worker is not None:
            # For the report of a failure.
            worker.printed.earlier = printed
        left = self._called(args, kwargs)
        if worker is not None:
            worker.printed.earlier = printed = _bounded([*printed, *worker.printed.take()])
        if isinstance(left, result):
            self._check_alone(is_one_of_many or branch is not None)
            # With the branches, of several components at the same time only one hands on what was printed.
            returned = State(returned=self._returned(left.value), printed=printed, branches=state.branches)
            return self._message(returned, "returns a value of")
        text = ""
        if isinstance(left, choice):
            text, left = choice.text(left.number), left.left
        elif isinstance(left, counted):
            text, left = counted.text(left.number), left.left
        if type(left) is not dict:
            kind = type(left).__name__
            raise TypeError(f"component {self._name} returned a {kind}: neither a dict of variables nor a result")
        # The variables that are passed on refer to the memory components.
        self._memory.write_back()
        bundles, changed = self._left(left, loaded, others, before)
        kept = {"access": state.access, "branches": state.branches} if is_first else {}
        return self._message(State(bundles=bundles if is_first else (), changed=changed, printed=printed, **kept), "passes on", text)

    def _load(self):
        """Loads the variables of this component and those in the same pickles; returns also the bundles of the others."""
        found, others, stretches, local = [], [], [], []
        for bundle in self._state.bundles:
            wanted = bundle.wanted(self._parameters)
            if wanted:
                found.append((bundle, wanted))
                stretches += [stretch for stretch in needed(bundle, self._memory, wanted) if stretch is not None]
                local += bundle.local()
            else:
                others.append(bundle)
        # All at once: bundles may share memory.
        self._memory.attach(stretches, local)
        loaded = {}
        for bundle, wanted in found:
            loaded.update(load(bundle, self._memory, wanted))
        return loaded, others

    def _left(self, left, loaded, others, before):
        """Returns the bundles of all variables, and those of variables that one of several components has set."""
        state = self._state
        if instances() > 1:
            self._check_same(left, loaded, before)
            return state.bundles, ()
        if before is not None:
            return state.bundles, self._branch(left, loaded, before)
        kept = {name: value for name, value in loaded.items() if name not in self._parameters}
        leaving = Leaving(self._memory, self._name, self._later, state.access, others)
        bundles = [*others, *leaving.bundles({**kept, **left})]
        self._memory.trim([stretch for bundle in bundles for stretch in bundle.stretches()])
        return bundles, ()

    def _branch(self, left, loaded, before):
        """Returns the bundles of the variables that this component has set, while others are executed."""
        same = {name: value for name, value in loaded.items() if left.get(name, value) is value}
        after = fingerprints(same)
        changed = [name for name in same if before[name] != after[name]]
        if changed:
            raise _errors.InvalidArgument(
                f"component {self._name} changes {' and '.join(changed)}, while others are executed that may read it: only what it writes to the "
                "elements of arrays is shared"
            )
        new = {name: value for name, value in left.items() if name not in same}
        shared = sorted(name for name in new if Pickling({name: new[name]}).shares(Pickling(same)))
        if shared:
            raise _errors.InvalidArgument(f"{' and '.join(shared)}, which component {self._name} sets, shares values with other variables: copy them")
        wanted = frozenset().union(*self._later.values())
        others = [bundle for bundle in self._state.bundles if bundle.wanted(wanted)]
        leaving = Leaving(self._memory, self._name, self._later, self._state.access, others)
        leaving.check_copies([Pickling({name: value}) for name, value in {**same, **new}.items()])
        return leaving.bundles(new)

    def _called(self, args, kwargs):
        global _running
        _running = self
        try:
            return self._function(*args, **kwargs)
        finally:
            _running = None

    def place(self):
        """Returns the place for the function's own remote arrays."""
        homes = [name for name in self._state.access.get(self._name, ()) if REMOTE in name]
        if not homes:
            text = f"component {self._name} makes remote arrays, and no memory component is for them: name the place, or the function "
            raise _errors.InvalidArgument(text + "that it decorates, in the application's own source")
        return self._memory.place(homes[0])

    def _call(self, call):
        """Loads the arguments."""
        if not isinstance(call, Bundle):
            return pickle.loads(call)
        self._memory.attach(call.memory, call.local())
        (loaded,) = load(call, self._memory, call.names).values()
        return loaded

    def _returned(self, value):
        """Returns the result for the caller, in its memory component if it is too large for a message or has arrays that share memory."""
        homes = self._state.access.get(CALLER, ())
        if not homes or homes[0] not in self._state.access.get(self._name, ()):
            return pickled(value)
        home, what = homes[0], Pickling({"the result": value})
        if what.nbytes() <= RESULT_BYTES and not any(map(is_remote, what.arrays)) and not what.overlap():
            body = pickled(value)
            if len(body) <= RESULT_BYTES:
                return body
        self._memory.write_back()
        leaving = Leaving(self._memory, self._name, {CALLER: frozenset([home])}, self._state.access, ())
        return leaving.bundles({home: value})[0]

    def _message(self, state, does, text=""):
        message = text.encode() + state.to_bytes()
        if len(message) > MOST_BYTES:
            text = f"component {self._name} {does} {len(message)} bytes outside of its memory components, more than {MOST_BYTES}"
            raise _errors.InvalidArgument(text)
        return message

    def _check_alone(self, is_one_of_many):
        if is_one_of_many:
            each = f"each of the {instances()} instances of component" if instances() > 1 else "component"
            raise _errors.InvalidArgument(f"{each} {self._name} returns, while others are executed: add a split after it")

    def _check_same(self, left, loaded, before):
        """Checks that several instances have only changed the elements of arrays."""
        new = [name for name, value in left.items() if loaded.get(name, unbound) is not value]
        after = fingerprints(loaded)
        changed = new or [name for name in loaded if before[name] != after[name]]
        if changed:
            raise _errors.InvalidArgument(
                f"each of the {instances()} instances of component {self._name} changes {' and '.join(changed)}: only what they write "
                "to the elements of arrays is shared"
            )


def place_of_run():
    """Returns the place for remote arrays of the component whose function is executed; None outside of it."""
    return None if _running is None else _running.place()


def message_of(call, access, entry, branches=None):
    """Returns the message with the arguments for the first component, and the bytes that memory components begin with, by their names.

    Arguments that are large, or arrays that share memory, are in the memory component that the function `entry` accesses for them.
    """
    homes = [name for name in access.get(entry, ()) if ARGUMENTS in name]
    what = Pickling({"the arguments": call})
    if not homes or (what.nbytes() <= MOST_BYTES and not what.overlap()):
        message = State(call=pickled(call), access=access, branches=branches).to_bytes()
        if len(message) <= MOST_BYTES:
            return message, {}
        if not homes:
            text = f"the arguments have {len(message)} bytes, more than {MOST_BYTES}: the graph has no memory component for them"
            raise _errors.InvalidArgument(text)
    home, given = homes[0], Contents()
    leaving = Leaving(given, CALLER, {entry: frozenset([home])}, {**access, CALLER: [home]}, ())
    (bundle,) = leaving.bundles({home: call})
    message = State(call=bundle, access=access, branches=branches).to_bytes()
    if len(message) > MOST_BYTES:
        text = f"the arguments have {len(message)} bytes outside of their memory component, more than {MOST_BYTES}: they have too many arrays"
        raise _errors.InvalidArgument(text)
    return message, {home: given.content}


def received(returned, memory):
    """Loads a result that is in a memory component, as the application's caller: copies of the values are made."""
    found = RunMemory(lambda name: memory, is_copied=True)
    found.attach(returned.memory, returned.memory)
    (value,) = load(returned, found, returned.names).values()
    return value


def _bounded(entries):
    """Truncates the output to the part that is returned."""
    found, left = [], MOST_PRINTED
    for kind, what in entries:
        left -= len(what["msg"]) + LOG_BYTES if kind == "log" else len(what)
        found.append((kind, what) if left >= 0 else DROPPED)
        if found[-1] == DROPPED:
            break
    return found
