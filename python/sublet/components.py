"""Building blocks for the source of compiled applications; see `sublet.app`.

A function that `component` decorates is executed by one component of the graph. Its parameters are variables of the application. It
returns a dict of the variables for later components, or the `result` of the application, which ends the run.

A variable travels as a pickle, in the message that triggers the next component, until a component has a parameter of its name. The
pickle leaves out the memory of arrays: it is stored once in the memory component of the variable's name, and mapped by components that
get the variable.

- Values that share mutable state are in one pickle; arrays that overlap lie in one range of memory.
- Arrays in a memory component stay there, and are not copied again.
- Each instance of a component gets the variables. Instances share the elements of arrays, and must not change anything else.
"""

import ctypes
import functools
import inspect
import io
import pickle
import sys
import types
from typing import Any, NamedTuple

import cloudpickle

from . import _errors
from ._channel import channel, instance, instances

__all__ = ["component", "result", "unbound"]

# Start of each message; the last byte is the version of the format.
MAGIC = b"sublet app \x80\x01"
# Maximum size of a component's message, in bytes.
MOST_BYTES = 256 << 10
# Size, in bytes, above which a pickle goes into a memory component.
LARGE_BYTES = 8 << 10
# Maximum characters of output of all components that are returned, and the overhead of a log record.
MOST_PRINTED = 16 << 10
LOG_BYTES = 512
DROPPED = ("stderr", f"\n[sublet: the rest of the output, after {MOST_PRINTED} characters, is dropped]\n")
# Alignment of arrays.
ALIGNMENT = 64
# Types that cannot change or are pickled by name, and so may be in several pickles.
_FIXED = frozenset(
    (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, slice, type)
    + (types.ModuleType, types.BuiltinFunctionType, types.FunctionType, types.CodeType)
)

# Parameters of the components of each module, in the order of their definition.
_components = {}


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

    def __init__(self, call=None, bundles=(), returned=None, access=None, printed=()):
        #: Pickled arguments, for the first component.
        self.call = call
        self.bundles = list(bundles)
        #: Pickled result of the application, which ends the run.
        self.returned = returned
        #: Memory components that each function accesses.
        self.access = access or {}
        self.printed = list(printed)

    def to_bytes(self):
        return MAGIC + pickle.dumps((self.call, self.bundles, self.returned, self.access, self.printed), 5)

    @staticmethod
    def of(data, loads=pickle.loads):
        """Decodes a message. With several instances, the first one has the complete state."""
        if not data:
            raise _errors.InvalidArgument("components of an application need the message of another component, and got an empty one")
        if not data.startswith(MAGIC):
            outputs = [State.of(output, loads) for output in _outputs(data)]
            outputs[0].printed = _bounded(entry for output in outputs for entry in output.printed)
            return outputs[0]
        return State(*loads(memoryview(data)[len(MAGIC) :]))


def _outputs(data):
    """Splits the outputs of several instances, each preceded by its length."""
    at, found = 0, []
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 8 : at + 8 + length])
        at += 8 + -(-length // 8) * 8
    if at != len(data) or not all(output.startswith(MAGIC) for output in found):
        raise _errors.InvalidArgument("the input is not a message of a component of an application")
    return found


def pickled(value):
    """Pickles a value, whose classes may be those of the caller's program."""
    file = io.BytesIO()
    cloudpickle.Pickler(file, 5).dump(value)
    return file.getvalue()


class Bundle(NamedTuple):
    """Variables that share one pickle."""

    names: tuple
    #: The pickle, or its location.
    body: Any
    #: Locations of the memory that was left out, as `Stretch`.
    memory: tuple
    #: Arrays: index of the memory, offset, and description.
    arrays: tuple
    #: Other memory: index, offset, size in bytes.
    buffers: tuple


class Stretch(NamedTuple):
    """Bytes of a memory component."""

    component: str
    offset: int
    nbytes: int


class Elsewhere(NamedTuple):
    """An array of a variable that this component does not get, in a pickle with one that it gets."""

    stretch: Stretch
    array: tuple


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
        self._memory = _Memory()

    def run(self):
        state = self._state
        if state.returned is not None:
            return (state if instance() == 0 else State()).to_bytes()
        loaded, others = self._load()
        if state.call is None:
            args, kwargs = (), {name: value for name, value in loaded.items() if name in self._parameters}
        else:
            args, kwargs = pickle.loads(state.call)
        is_one_of_many = instances() > 1
        before = _fingerprints(loaded) if is_one_of_many else None
        worker = sys.modules.get("sublet_worker")
        printed = state.printed if instance() == 0 else []
        if worker is not None:
            # For the report of a failure.
            worker.printed.earlier = printed
        left = self._function(*args, **kwargs)
        if worker is not None:
            worker.printed.earlier = printed = _bounded([*printed, *worker.printed.take()])
        if isinstance(left, result):
            self._check_alone(is_one_of_many)
            return self._message(State(returned=pickled(left.value), printed=printed), "returns a value of")
        if type(left) is not dict:
            kind = type(left).__name__
            raise TypeError(f"component {self._name} returned a {kind}: neither a dict of variables nor a result")
        if is_one_of_many:
            self._check_same(left, loaded, before)
            bundles = state.bundles if instance() == 0 else ()
        else:
            kept = {name: value for name, value in loaded.items() if name not in self._parameters}
            leaving = _Leaving(self._memory, self._name, self._later, state.access, others)
            bundles = [*others, *leaving.bundles({**kept, **left})]
        return self._message(State(bundles=bundles, access=state.access, printed=printed), "passes on")

    def _load(self):
        """Loads the variables of this component and those in the same pickles; returns also the bundles of the others."""
        loaded, others = {}, []
        for bundle in self._state.bundles:
            wanted = [name for name in bundle.names if name in self._parameters]
            if wanted:
                loaded.update(_load(bundle, self._memory, wanted))
            else:
                others.append(bundle)
        return loaded, others

    def _message(self, state, does):
        message = state.to_bytes()
        if len(message) > MOST_BYTES:
            text = f"component {self._name} {does} {len(message)} bytes outside of its memory components, more than {MOST_BYTES}"
            raise _errors.InvalidArgument(text)
        return message

    def _check_alone(self, is_one_of_many):
        if is_one_of_many:
            raise _errors.InvalidArgument(f"each of the {instances()} instances of component {self._name} returns: add a split after it")

    def _check_same(self, left, loaded, before):
        """Checks that several instances have only changed the elements of arrays."""
        new = [name for name, value in left.items() if loaded.get(name, unbound) is not value]
        after = _fingerprints(loaded)
        changed = new or [name for name in loaded if before[name] != after[name]]
        if changed:
            raise _errors.InvalidArgument(
                f"each of the {instances()} instances of component {self._name} changes {' and '.join(changed)}: only what they write "
                "to the elements of arrays is shared"
            )


def _bounded(entries):
    """Truncates the output to the part that is returned."""
    found, left = [], MOST_PRINTED
    for kind, what in entries:
        left -= len(what["msg"]) + LOG_BYTES if kind == "log" else len(what)
        found.append((kind, what) if left >= 0 else DROPPED)
        if found[-1] == DROPPED:
            break
    return found


class _Memory:
    """The memory components that this component accesses."""

    def __init__(self):
        self._channels = {}

    def channel(self, name):
        """Opens a memory component."""
        if name not in self._channels:
            self._channels[name] = channel(name)
        return self._channels[name]

    def has(self, name):
        try:
            self.channel(name)
        except _errors.InvalidArgument:
            return False
        return True

    def bytes_of(self, stretch):
        return self.channel(stretch.component).array(stretch.nbytes, "u1", stretch.offset)

    def find(self, low, high):
        """Returns the location of these addresses, if they are in a component."""
        for name, opened in self._channels.items():
            nbytes = opened.nbytes
            if nbytes:
                base = _address(self.bytes_of(Stretch(name, 0, nbytes)))
                if base <= low and high <= base + nbytes:
                    return Stretch(name, low - base, high - low)
        return None

    def append(self, name, nbytes):
        """Appends new bytes to a component."""
        opened = self.channel(name)
        offset = -(-opened.nbytes // ALIGNMENT) * ALIGNMENT
        opened.grow(offset + nbytes)
        return Stretch(name, offset, nbytes)


def _load(bundle, memory, wanted):
    """Loads the values of a bundle, of which the `wanted` ones are needed."""
    is_whole = len(wanted) == len(bundle.names)
    there = [stretch if is_whole or memory.has(stretch.component) else None for stretch in bundle.memory]
    pieces = [stretch and memory.bytes_of(stretch) for stretch in there]
    arrays = [_array(array, pieces, bundle) for array in bundle.arrays]
    buffers = []
    for number, offset, nbytes, is_readonly in bundle.buffers:
        if number is None:
            buffers.append(b"" if is_readonly else bytearray())
        elif pieces[number] is None:
            listed, component = " and ".join(bundle.names), bundle.memory[number].component
            raise _errors.InvalidArgument(f"{listed} share values, and there is no access edge to memory component {component}")
        else:
            view = memoryview(pieces[number][offset : offset + nbytes])
            buffers.append(view.toreadonly() if is_readonly else view)
    body = bundle.body
    if isinstance(body, Stretch):
        body = memory.channel(body.component).read(body.offset, body.nbytes)
    return _Unpickler(body, arrays, buffers).load()


def _array(array, pieces, bundle):
    import numpy

    number, offset, dtype, shape, strides, is_writable = array
    if number is None:
        return numpy.empty(shape, dtype)
    if pieces[number] is None:
        return Elsewhere(bundle.memory[number], array)
    made = numpy.ndarray(shape, dtype, pieces[number], offset, strides)
    if not is_writable:
        made.flags.writeable = False
    return made


def _address(array):
    return array.__array_interface__["data"][0]


def _bounds(array):
    """Returns the address range of an array's elements."""
    if array.size == 0:
        return 0, 0
    low = high = _address(array)
    for length, stride in zip(array.shape, array.strides):
        low, high = low + min(0, (length - 1) * stride), high + max(0, (length - 1) * stride)
    return low, high + array.itemsize


def _view_bounds(view):
    if view.nbytes == 0:
        return 0, 0
    import numpy

    low = _address(numpy.frombuffer(view, "u1"))
    return low, low + view.nbytes


class _Pickling(cloudpickle.Pickler):
    """Pickler of variables, which collects left-out memory and mutable values."""

    def __init__(self, values):
        self.names = tuple(values)
        self.arrays = []
        #: Mutable values by identity, which are kept alive here.
        self.seen = {}
        self._numbers = {}
        buffers, file = [], io.BytesIO()
        super().__init__(file, 5, buffer_callback=buffers.append)
        try:
            self.dump(values)
            self.views = [buffer.raw() for buffer in buffers]
        except (TypeError, pickle.PicklingError, AttributeError, RecursionError, BufferError) as error:
            what = " and ".join(values)
            raise type(error)(f"{what} cannot be passed to the next component: {error}") from error
        self.body = file.getvalue()

    def persistent_id(self, value):
        kind = type(value)
        if kind in _FIXED:
            return None
        if kind is Elsewhere or _is_plain_array(value):
            number = self._numbers.setdefault(id(value), len(self.arrays))
            if number == len(self.arrays):
                self.arrays.append(value)
                self.seen[id(value)] = value
            return number
        if not isinstance(value, type):
            self.seen[id(value)] = value
        return None


def _is_plain_array(value):
    """Returns whether the value is an array whose memory is left out of pickles."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


class _Unpickler(pickle.Unpickler):
    """Unpickler of variables."""

    def __init__(self, body, arrays, buffers):
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._arrays = arrays

    def persistent_load(self, number):
        return self._arrays[number]


def _fingerprints(values):
    """Fingerprints of variables, without the elements of arrays."""
    found = {}
    for name, value in values.items():
        made = _Pickling({name: value})
        arrays = [array if type(array) is Elsewhere else (*_bounds(array), array.dtype, array.strides) for array in made.arrays]
        found[name] = made.body, arrays, [_view_bounds(view) for view in made.views]
    return found


class _Piece:
    """A contiguous range of memory, of the process or of a component."""

    def __init__(self, low, high, names, component):
        self.low = low
        self.high = high
        #: Variables that refer to the memory.
        self.names = set(names)
        #: Location, if it is in a component.
        self.component = component
        #: Arrays and views in the range, with their offsets.
        self.members = []
        #: New location.
        self.stretch = None


class _Leaving:
    """Stores the values of variables for the later components."""

    def __init__(self, memory, name, later, access, others):
        self._memory = memory
        self._name = name
        self._later = later
        self._access = access
        # Memory of other variables.
        self._taken = [stretch for bundle in others for stretch in bundle.memory]
        # New location of each array and view: a piece and an offset.
        self._places = {}
        # Compact copies of arrays with gaps that are not shared.
        self._compact = {}

    def bundles(self, values):
        alone = [_Pickling({name: value}) for name, value in values.items()]
        reached = {}
        for made in alone:
            for array in made.arrays:
                reached.setdefault(id(array), set()).update(made.names)
        groups = _joined(alone)
        picklings = [group[0] if len(group) == 1 else self._together(group, values) for group in groups]
        for piece in self._pieces(picklings, reached):
            self._place(piece)
        return [self._bundle(made) for made in picklings]

    def _together(self, group, values):
        names = [name for made in group for name in made.names]
        return _Pickling({name: values[name] for name in names})

    def _pieces(self, picklings, reached):
        """Collects the memory of all arrays and views; overlapping ranges become one piece."""
        pieces = []
        for made in picklings:
            for array in made.arrays:
                names = reached.get(id(array), made.names)
                if type(array) is Elsewhere:
                    stretch = array.stretch
                    found = _Piece(stretch.offset, stretch.offset + stretch.nbytes, names, stretch.component)
                    found.members.append((array, found.low))
                    pieces.append(found)
                else:
                    self._find(pieces, array, _bounds(array), names)
            for view in made.views:
                self._find(pieces, view, _view_bounds(view), made.names)
        pieces.sort(key=lambda piece: (piece.component or "", piece.low, piece.high))
        merged = []
        for piece in pieces:
            last = merged[-1] if merged else None
            if last is not None and last.component == piece.component and piece.low < last.high:
                last.high = max(last.high, piece.high)
                last.names |= piece.names
                last.members += piece.members
            else:
                merged.append(piece)
        return merged

    def _find(self, pieces, what, bounds, names):
        low, high = bounds
        if low == high:
            return
        stretch = self._memory.find(low, high)
        if stretch is None:
            piece = _Piece(low, high, names, None)
        else:
            piece = _Piece(stretch.offset, stretch.offset + stretch.nbytes, names, stretch.component)
        piece.members.append((what, piece.low))
        pieces.append(piece)

    def _place(self, piece):
        """Chooses a component for a piece, and copies it there if necessary."""
        nbytes = piece.high - piece.low
        users = self._users(piece.names)
        if piece.component is not None and all(piece.component in self._access.get(user, ()) for user in users):
            piece.stretch = Stretch(piece.component, piece.low, nbytes)
        elif piece.component is not None:
            # The component belonged to a variable that is not needed any more.
            before = Stretch(piece.component, piece.low, nbytes)
            if any(_overlap(before, taken) for taken in self._taken):
                raise self._shared(piece.names, "memory with variables that this component does not get")
            piece.stretch = self._memory.append(self._home(piece.names, "memory"), nbytes)
            self._memory.bytes_of(piece.stretch)[...] = self._memory.bytes_of(before)
        else:
            home = self._home(piece.names, "memory")
            low, nbytes = self._source(piece)
            piece.stretch = self._memory.append(home, nbytes)
            ctypes.memmove(_address(self._memory.bytes_of(piece.stretch)), low, nbytes)
        for what, at in piece.members:
            self._places[id(what)] = piece.stretch, at - piece.low

    def _source(self, piece):
        """Returns the memory to copy, without the gaps of an array that is the only one there."""
        (what, _), *others = piece.members
        if not others and not isinstance(what, memoryview) and what.nbytes < piece.high - piece.low:
            compact = self._compact[id(what)] = what.copy(order="K")
            low, high = _bounds(compact)
            return low, high - low
        return piece.low, piece.high - piece.low

    def _users(self, names):
        """Returns the later components that get any of these variables."""
        return [function for function, parameters in self._later.items() if names & parameters]

    def _home(self, names, what):
        """Chooses the memory component for shared memory of these variables: every component that gets one of them must access it."""
        users = [self._name, *self._users(names)]
        for name in sorted(names):
            if all(name in self._access.get(user, ()) for user in users):
                return name
        raise self._shared(names, what)

    def _shared(self, names, what):
        listed = " and ".join(sorted(names))
        if len(names) == 1:
            text = f"{listed} has {what}, and not all components that get it access a memory component {listed}"
        else:
            text = f"{listed} share {what}, and not all later components get all of them: copy one of them"
        return _errors.InvalidArgument(f"at the end of component {self._name} {text}")

    def _bundle(self, made):
        stretches = []

        def place(what):
            stretch, at = self._places.get(id(what), (None, 0))
            if stretch is None:
                return None, 0
            if stretch not in stretches:
                stretches.append(stretch)
            return stretches.index(stretch), at

        arrays, buffers = [], []
        for array in made.arrays:
            number, at = place(array)
            if type(array) is Elsewhere:
                arrays.append((number, at + array.array[1], *array.array[2:]))
                continue
            there = self._compact.get(id(array), array)
            # With negative strides, the first element is not at the lowest address.
            at += 0 if number is None else _address(there) - _bounds(there)[0]
            is_writable = array.flags.writeable or (number is not None and self._is_only_read(stretches[number]))
            arrays.append((number, at, there.dtype, there.shape, there.strides, is_writable))
        for view in made.views:
            buffers.append((*place(view), view.nbytes, view.readonly))
        return Bundle(made.names, self._body(made), tuple(stretches), tuple(arrays), tuple(buffers))

    def _is_only_read(self, stretch):
        """Returns whether this component may only read the memory."""
        return self._memory.has(stretch.component) and self._memory.channel(stretch.component).readonly

    def _body(self, made):
        if len(made.body) <= LARGE_BYTES:
            return made.body
        home = self._home(set(made.names), f"{len(made.body)} bytes")
        stretch = self._memory.append(home, len(made.body))
        self._memory.channel(home).write(stretch.offset, made.body)
        return stretch


def _overlap(one, other):
    is_beside = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
    return one.component == other.component and not is_beside


def _joined(picklings):
    """Joins picklings that share mutable values."""
    groups = []
    for made in picklings:
        those = [group for group in groups if any(one.seen.keys() & made.seen.keys() for one in group)]
        groups = [group for group in groups if group not in those]
        groups.append([one for group in those for one in group] + [made])
    return groups
