"""Building blocks for the source of compiled applications; see `sublet.app`.

A function that `component` decorates is executed by one component of the graph. It gets variables of the application by the names of
its parameters, and returns a dict of those that it leaves to the components behind it, or the `result` of the application, of which
nothing more is executed then.

What stands in a variable goes on as a pickle, in the message that triggers the next component, and stays there until a component has
a parameter of its name. The memory of arrays is left out of the pickle: it is put into the memory component of the variable's name,
once, and mapped by those who get the variable.

- Values that share anything that may change are in one pickle; arrays that overlap lie in one stretch of memory.
- What is in a memory component stays where it is: what was written there is not copied again.
- Of several instances each gets the variables; what they write to arrays is everybody's, and nothing else may have changed.
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

# What a message begins with; the last is changed with anything of it.
MAGIC = b"sublet app \x80\x01"
# Most that a component hands on, in bytes.
MOST_BYTES = 256 << 10
# A larger pickle goes into a memory component, in bytes.
LARGE_BYTES = 8 << 10
# Most characters of what all components have printed that come back, and how many a log record has beside its text.
MOST_PRINTED = 16 << 10
LOG_BYTES = 512
DROPPED = ("stderr", f"\n[sublet: the rest of the output, after {MOST_PRINTED} characters, is dropped]\n")
# Arrays begin at multiples of this.
ALIGNMENT = 64
# What cannot change, or is known by its name: it may be in several pickles.
_FIXED = frozenset(
    (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, slice, type)
    + (types.ModuleType, types.BuiltinFunctionType, types.FunctionType, types.CodeType)
)

# The components of each module, in the order of their definition: their parameters.
_components = {}


class _Unbound:
    """In place of a variable that has no value."""

    def __repr__(self):
        return "<no value>"


unbound = _Unbound()


class result:
    """What the application returns."""

    __slots__ = ("value",)

    def __init__(self, value=None):
        self.value = value


def component(function):
    """A function as a component executes it: it gets a message, and returns the next."""
    known = _components.setdefault(function.__module__, {})
    known[function.__name__] = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def execute(data):
        return _Execution(function, known, State.of(bytes(data))).run()

    return execute


class State:
    """What a component hands on."""

    def __init__(self, call=None, bundles=(), returned=None, access=None, printed=()):
        #: Of the first component: its arguments, pickled.
        self.call = call
        self.bundles = list(bundles)
        #: What the application returns, pickled; nothing more is executed.
        self.returned = returned
        #: Of each function the memory components that it accesses.
        self.access = access or {}
        self.printed = list(printed)

    def to_bytes(self):
        return MAGIC + pickle.dumps((self.call, self.bundles, self.returned, self.access, self.printed), 5)

    @staticmethod
    def of(data, loads=pickle.loads):
        """That of a message: of several instances, the first has it all."""
        if not data:
            raise _errors.InvalidArgument("an application's components get what its others hand on, and not an empty message")
        if not data.startswith(MAGIC):
            outputs = [State.of(output, loads) for output in _outputs(data)]
            outputs[0].printed = _bounded(entry for output in outputs for entry in output.printed)
            return outputs[0]
        return State(*loads(memoryview(data)[len(MAGIC) :]))


def _outputs(data):
    """The outputs of several instances, each of which stands behind its length."""
    at, found = 0, []
    while at + 8 <= len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 8 : at + 8 + length])
        at += 8 + -(-length // 8) * 8
    if at != len(data) or not all(output.startswith(MAGIC) for output in found):
        raise _errors.InvalidArgument("the input is not what a component of an application hands on")
    return found


def pickled(value):
    """A value as it is sent, whose classes may be the caller's program's."""
    file = io.BytesIO()
    cloudpickle.Pickler(file, 5).dump(value)
    return file.getvalue()


class Bundle(NamedTuple):
    """Variables that are in one pickle."""

    names: tuple
    #: The pickle, or where it is.
    body: Any
    #: Where the memory is that was left out: `Stretch`es.
    memory: tuple
    #: The arrays: which of the memory, from which byte on, and what they are.
    arrays: tuple
    #: Other memory: which, from which byte on, how many bytes.
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
        # The parameters of those behind this one.
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
            # For the report if this fails.
            worker.printed.earlier = printed
        left = self._function(*args, **kwargs)
        if worker is not None:
            worker.printed.earlier = printed = _bounded([*printed, *worker.printed.take()])
        if isinstance(left, result):
            self._check_alone(is_one_of_many)
            return self._message(State(returned=pickled(left.value), printed=printed), "returns a value")
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
        return self._message(State(bundles=bundles, access=state.access, printed=printed), "hands on")

    def _load(self):
        """The values of the variables that this component gets, and of those that come with them; and the bundles of the others."""
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
            text = f"component {self._name} {does} {len(message)} bytes beside its memory components, at most {MOST_BYTES} are taken"
            raise _errors.InvalidArgument(text)
        return message

    def _check_alone(self, is_one_of_many):
        if is_one_of_many:
            raise _errors.InvalidArgument(f"each of the {instances()} instances of component {self._name} returns: split behind it")

    def _check_same(self, left, loaded, before):
        """Of several instances nothing is different after them but the elements of arrays."""
        new = [name for name, value in left.items() if loaded.get(name, unbound) is not value]
        after = _fingerprints(loaded)
        changed = new or [name for name in loaded if before[name] != after[name]]
        if changed:
            raise _errors.InvalidArgument(
                f"each of the {instances()} instances of component {self._name} changes {' and '.join(changed)}: only what they write "
                "to the elements of arrays is shared"
            )


def _bounded(entries):
    """What was printed, as far as it comes back."""
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
        """The way to it."""
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
        """Where these addresses are, if that is in a component."""
        for name, opened in self._channels.items():
            nbytes = opened.nbytes
            if nbytes:
                base = _address(self.bytes_of(Stretch(name, 0, nbytes)))
                if base <= low and high <= base + nbytes:
                    return Stretch(name, low - base, high - low)
        return None

    def append(self, name, nbytes):
        """New bytes at a component's end."""
        opened = self.channel(name)
        offset = -(-opened.nbytes // ALIGNMENT) * ALIGNMENT
        opened.grow(offset + nbytes)
        return Stretch(name, offset, nbytes)


def _load(bundle, memory, wanted):
    """The values of a bundle's variables, of which these are asked for."""
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
    """The addresses from which and up to which its elements lie."""
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
    """The pickle of variables, and what was left out of it or must not be in two."""

    def __init__(self, values):
        self.names = tuple(values)
        self.arrays = []
        #: What may change, by its identity, which lasts as long as this.
        self.seen = {}
        self._numbers = {}
        buffers, file = [], io.BytesIO()
        super().__init__(file, 5, buffer_callback=buffers.append)
        try:
            self.dump(values)
            self.views = [buffer.raw() for buffer in buffers]
        except (TypeError, pickle.PicklingError, AttributeError, RecursionError, BufferError) as error:
            what = " and ".join(values)
            raise type(error)(f"{what} cannot be handed on to the next component: {error}") from error
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
    """Whether it is an array whose memory is left out of pickles by this module."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


class _Unpickler(pickle.Unpickler):
    """The way back."""

    def __init__(self, body, arrays, buffers):
        super().__init__(io.BytesIO(body), buffers=buffers)
        self._arrays = arrays

    def persistent_load(self, number):
        return self._arrays[number]


def _fingerprints(values):
    """What is to be the same of variables: all but the elements of arrays."""
    found = {}
    for name, value in values.items():
        made = _Pickling({name: value})
        arrays = [array if type(array) is Elsewhere else (*_bounds(array), array.dtype, array.strides) for array in made.arrays]
        found[name] = made.body, arrays, [_view_bounds(view) for view in made.views]
    return found


class _Piece:
    """Memory that belongs together: from one address of the process, or offset of a component, to another."""

    def __init__(self, low, high, names, component):
        self.low = low
        self.high = high
        #: The variables that reach it.
        self.names = set(names)
        #: Where it is, if that is in a component.
        self.component = component
        #: The arrays and views there, and how many bytes behind the piece's beginning each begins.
        self.members = []
        #: Where it will be.
        self.stretch = None


class _Leaving:
    """Puts the values of variables where the components behind this one get them."""

    def __init__(self, memory, name, later, access, others):
        self._memory = memory
        self._name = name
        self._later = later
        self._access = access
        # What other variables have.
        self._taken = [stretch for bundle in others for stretch in bundle.memory]
        # Where each array and view will be: a piece, and how many bytes behind its beginning.
        self._places = {}
        # In place of an array with gaps, which nobody shares, one without.
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
        """The memory of all arrays and views; what overlaps is one piece."""
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
        """Finds it a component, and copies what is not there."""
        nbytes = piece.high - piece.low
        users = self._users(piece.names)
        if piece.component is not None and all(piece.component in self._access.get(user, ()) for user in users):
            piece.stretch = Stretch(piece.component, piece.low, nbytes)
        elif piece.component is not None:
            # It was another variable's, which is not needed any more.
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
        """What is to be copied of this process's own memory. Gaps of an array that is alone there are not."""
        (what, _), *others = piece.members
        if not others and not isinstance(what, memoryview) and what.nbytes < piece.high - piece.low:
            compact = self._compact[id(what)] = what.copy(order="K")
            low, high = _bounds(compact)
            return low, high - low
        return piece.low, piece.high - piece.low

    def _users(self, names):
        """The components behind this one that get any of these variables."""
        return [function for function, parameters in self._later.items() if names & parameters]

    def _home(self, names, what):
        """The memory component for what all of these variables have: whoever gets one of them has to access it."""
        users = [self._name, *self._users(names)]
        for name in sorted(names):
            if all(name in self._access.get(user, ()) for user in users):
                return name
        raise self._shared(names, what)

    def _shared(self, names, what):
        listed = " and ".join(sorted(names))
        if len(names) == 1:
            text = f"{listed} has {what}, and not all that have it access a memory component {listed}"
        else:
            text = f"{listed} share {what}, and not all components behind it get all of them: let one be a copy"
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
            # Of one that goes backwards the first element is not at the lowest address.
            at += 0 if number is None else _address(there) - _bounds(there)[0]
            is_writable = array.flags.writeable or (number is not None and self._is_only_read(stretches[number]))
            arrays.append((number, at, there.dtype, there.shape, there.strides, is_writable))
        for view in made.views:
            buffers.append((*place(view), view.nbytes, view.readonly))
        return Bundle(made.names, self._body(made), tuple(stretches), tuple(arrays), tuple(buffers))

    def _is_only_read(self, stretch):
        """Whether it is this component alone that may not write there."""
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
    """Those that have something in common which may change, together."""
    groups = []
    for made in picklings:
        those = [group for group in groups if any(one.seen.keys() & made.seen.keys() for one in group)]
        groups = [group for group in groups if group not in those]
        groups.append([one for group in those for one in group] + [made])
    return groups
