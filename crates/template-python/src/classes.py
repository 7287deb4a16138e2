"""Classes of the caller's program.

They come by value, under the identifiers that cloudpickle gives them, and go back as references: so the caller gets instances of its
own classes. Classes that functions make here go back by value. The other end is `sublet/_classes.py`.
"""

import functools
import types
import weakref

# The classes that came from the caller, and the version that each has.
received = weakref.WeakKeyDictionary()


def make(maker, arguments):
    """Makes a class that was sent, or finds it if it was sent before. `maker` is one of cloudpickle's."""
    kind = maker(*arguments)
    received.setdefault(kind, None)
    return kind


def fill(kind, state):
    """Sets a class's attributes, unless it came before in this version: functions may have changed it since."""
    from cloudpickle import cloudpickle

    version, attributes = state
    if version is None or received.get(kind) != version:
        cloudpickle._class_setstate(kind, attributes)
        received[kind] = version


def is_received(kind):
    try:
        return kind in received
    except TypeError:
        # Its metaclass makes it unhashable, so that it cannot have been sent by value.
        return False


class _OfCaller:
    """Stands for the caller's function that finds a class by its identifier."""

    def __call__(self, identifier, name):
        raise NotImplementedError("only a pickle refers to it")

    def __reduce__(self):
        return eval, ("__import__('sublet._classes', None, None, ['of_identifier']).of_identifier",)


_of_caller = _OfCaller()


@functools.lru_cache(maxsize=None)
def pickler():
    """The class of picklers for what goes to the caller. cloudpickle is imported only if it is needed."""
    from cloudpickle import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, obj):
            if isinstance(obj, type) and is_received(obj):
                return _of_caller, (cloudpickle._get_or_create_tracker_id(obj), obj.__qualname__)
            if type(obj) is types.MethodType and is_received(type(obj.__self__)) and getattr(obj.__self__, obj.__name__, None) == obj:
                return getattr, (obj.__self__, obj.__name__)
            return super().reducer_override(obj)

    return Pickler
