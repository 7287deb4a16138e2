"""Classes that exist here and on workers.

A class of the program, which no worker can import, is sent by value. cloudpickle gives each such class an identifier, under which the
worker makes it. When an instance comes back, its class is this program's own: it keeps its identity and its attributes, whatever has
become of them here since, or on the worker.

- A worker refers to a class that it received by its identifier: see the worker's `classes.py`.
- A class that comes by value, as in the result of a graph, is made here only if there is none with its identifier.
"""

import functools
import io
import pickle
import weakref

from cloudpickle import cloudpickle

from ._contents import version_of

# Functions with which cloudpickle makes and fills classes. The identifier is the last argument but one of the makers.
_MAKERS = (cloudpickle._make_skeleton_class, cloudpickle._make_skeleton_enum)
_FILL = cloudpickle._class_setstate
# Name of the function that fills a class, as each pickle that has a class by value contains it.
_FILL_NAME = _FILL.__name__.encode()
# A pickle of fewer bytes has no class by value. Searching it takes longer than loading it.
_SHORTEST = 64
# Contents of each class when it was last sent.
_versions = weakref.WeakKeyDictionary()


def version(kind):
    """The version of a class: a worker that has it does not fill the class again, and keeps what functions have changed there."""
    return version_of(kind, _versions, kind)


def is_by_value(reduced):
    """Whether what cloudpickle made of an object is a class by value."""
    return type(reduced) is tuple and reduced[0] in _MAKERS


def of_identifier(identifier, name):
    """The class that was sent under an identifier. A worker's pickle refers to it by this function."""
    known = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(identifier)
    if known is None:
        raise LookupError(f"an object of class {name} cannot be received: the program has deleted this class since it sent it")
    return known


def loads(body, buffers=()):
    """Loads a pickle, with the classes of this program where they exist."""
    if len(body) < _SHORTEST or _FILL_NAME not in body:
        return pickle.loads(body, buffers=buffers)
    unpickler = _Unpickler(io.BytesIO(body), buffers=buffers)
    try:
        return unpickler.load()
    finally:
        # It refers to the unpickler.
        unpickler.memo = {}


class _Unpickler(pickle.Unpickler):
    """Leaves classes that exist here as they are."""

    def __init__(self, file, buffers):
        super().__init__(file, buffers=buffers)
        self._made = []

    def find_class(self, module, name):
        found = super().find_class(module, name)
        if found in _MAKERS:
            return functools.partial(self._make, found)
        return self._fill if found is _FILL else found

    def _make(self, maker, *arguments):
        known = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(arguments[-2])
        if known is not None:
            return known
        made = maker(*arguments)
        self._made.append(made)
        return made

    def _fill(self, kind, state):
        return _FILL(kind, state) if any(kind is made for made in self._made) else kind
