"""Stores the values of variables for the later components of an application."""

from . import _errors
from ._bundle import Bundle, Elsewhere, Pickling, bounds, copies_that_share, is_writable, located, view_bounds
from ._regions import Stretch, address_of

# Size, in bytes, above which a pickle goes into a memory component.
LARGE_BYTES = 8 << 10
# Size, in bytes, up to which a pickle is in the message if no memory component is accessed by all components that get it.
MESSAGE_BYTES = 64 << 10


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


class Leaving:
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
        alone = [Pickling({name: value}) for name, value in values.items()]
        self.check_copies(alone)
        reached = {}
        for made in alone:
            for array in made.arrays:
                reached.setdefault(id(array), set()).update(made.names)
        groups = _joined(alone)
        picklings = [group[0] if len(group) == 1 else self._together(group, values) for group in groups]
        for piece in self._pieces(picklings, reached):
            self._place(piece)
        return [self._bundle(made) for made in picklings]

    def check_copies(self, alone):
        """Refuses arrays that share memory of which one is copied. Arguments and results, to or from the caller without a name, are copies."""
        found = copies_that_share(alone) if self._name and "" not in self._later else None
        if found is not None:
            listed, kind = " and ".join(found[0]), found[1]
            text = f"at the end of component {self._name} {listed} share memory, and of a {kind} a copy is passed on: copy one of them before"
            raise _errors.InvalidArgument(text)

    def _together(self, group, values):
        names = [name for made in group for name in made.names]
        return Pickling({name: values[name] for name in names})

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
                    self._find(pieces, array, self._located(array, names), names)
            for view in made.views:
                self._find(pieces, view, (None, *view_bounds(view)), made.names)
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

    def _located(self, array, names):
        """Returns a memory component, and the range of the array in it; or None, and a range of addresses."""
        try:
            component, base, elements = located(array)
        except TypeError as error:
            raise TypeError(f"{' and '.join(sorted(names))} cannot be passed to the next component: {error}") from error
        low, high = bounds(elements)
        return component, low - base, high - base

    def _find(self, pieces, what, where, names):
        component, low, high = where
        if low == high:
            return
        stretch = None if component is not None else self._memory.find(low, high)
        if stretch is None:
            piece = _Piece(low, high, names, component)
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
            if any(before.overlaps(taken) for taken in self._taken):
                raise self._shared(piece.names, "memory with variables that this component does not get")
            piece.stretch = self._memory.append(self._home(piece.names, "memory"), nbytes)
            self._memory.copy(before, piece.stretch)
        else:
            home = self._home(piece.names, "memory")
            low, nbytes = self._source(piece)
            piece.stretch = self._memory.append(home, nbytes)
            self._memory.store(piece.stretch, low)
        for what, at in piece.members:
            self._places[id(what)] = piece.stretch, at - piece.low

    def _source(self, piece):
        """Returns the memory to copy, without the gaps of an array that is the only one there."""
        (what, _), *others = piece.members
        if not others and not isinstance(what, memoryview) and what.nbytes < piece.high - piece.low:
            compact = self._compact[id(what)] = located(what)[2].copy(order="K")
            low, high = bounds(compact)
            return low, high - low
        return piece.low, piece.high - piece.low

    def _users(self, names):
        """Returns the later components that get any of these variables."""
        return [function for function, parameters in self._later.items() if names & parameters]

    def _home(self, names, what):
        """Chooses the memory component for shared memory of these variables: every component that gets one of them must access it."""
        home = self._home_of(names)
        if home is None:
            raise self._shared(names, what)
        return home

    def _home_of(self, names):
        users = [self._name, *self._users(names)]
        return next((name for name in sorted(names) if all(name in self._access.get(user, ()) for user in users)), None)

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
            there = self._compact.get(id(array))
            there = located(array)[2] if there is None else there
            # With negative strides, the first element is not at the lowest address.
            at += 0 if number is None else address_of(there) - bounds(there)[0]
            may_write = is_writable(array) or (number is not None and self._is_only_read(stretches[number]))
            arrays.append((number, at, there.dtype, there.shape, there.strides, may_write))
        for view in made.views:
            buffers.append((*place(view), view.nbytes, view.readonly))
        return Bundle(made.names, self._body(made), tuple(stretches), tuple(arrays), tuple(buffers))

    def _is_only_read(self, stretch):
        """Returns whether this component may only read the memory."""
        return self._memory.has(stretch.component) and self._memory.channel(stretch.component).readonly

    def _body(self, made):
        names, nbytes = set(made.names), len(made.body)
        if nbytes <= LARGE_BYTES or (nbytes <= MESSAGE_BYTES and self._home_of(names) is None):
            return made.body
        home = self._home(names, f"{nbytes} bytes")
        stretch = self._memory.append(home, len(made.body))
        self._memory.channel(home).write(stretch.offset, made.body)
        return stretch


def _joined(picklings):
    """Joins picklings that share mutable values."""
    groups = []
    for made in picklings:
        those = [group for group in groups if any(one.seen.keys() & made.seen.keys() for one in group)]
        groups = [group for group in groups if group not in those]
        groups.append([one for group in those for one in group] + [made])
    return groups
