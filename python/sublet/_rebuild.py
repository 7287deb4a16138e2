"""Makes the exceptions that a worker described: the other end of the worker's `exceptions.py`."""

import builtins
import functools
import pickle
import types

from . import _classes
from ._errors import RemoteError, RemoteTraceback

# Set in the flags of each class that is made at run time, which the builtin exceptions are not.
_HEAP_TYPE = 1 << 9
# Most classes of `RemoteError` that are kept.
_MOST_KINDS = 256


def remote(description):
    """The exception that a worker raised.

    Members of groups, causes and contexts come along. The innermost cause has the worker's traceback as its cause.
    """
    described, made = description["errors"], {}
    for index in range(len(described)):
        _make(described, index, made)
    for index, fields in enumerate(described):
        _relate(made[index], fields, made)
    _innermost(made[0]).__cause__ = RemoteTraceback(description["text"])
    return made[0]


def in_words(fields, escaped=str):
    """An exception of another tenant's function, as `remote` takes it: nothing is loaded of it, and its class is the nearest builtin
    one by its name. `escaped` makes its texts safe to show.
    """
    names = [name.partition(".")[2] for name in fields["names"] if name.startswith("builtins.")]
    found = [getattr(builtins, name, None) for name in names]
    known = [one for one in found if isinstance(one, type) and issubclass(one, Exception)]
    # A group cannot be made without its members.
    classes = [pickle.dumps(one) for one in known if not hasattr(one, "exceptions")] or [pickle.dumps(Exception)]
    numbers = {key: _index(fields[key]) for key in ("cause", "context")}
    return {
        **numbers,
        "kind": escaped(str(fields["kind"])),
        "message": escaped(str(fields["message"])),
        "notes": [escaped(str(note)) for note in fields["notes"] or ()],
        "is_context_suppressed": bool(fields["is_context_suppressed"]),
        "members": None,
        "whole": None,
        "arguments": None,
        "state": None,
        "classes": classes,
    }


def _index(value):
    if value is not None and type(value) is not int:
        raise TypeError("the index of an exception is not an int")
    return value


def _make(described, index, made):
    """Makes an exception, after the members that it has as a group."""
    if index in made:
        return
    fields, members = described[index], None
    if fields["members"] is not None:
        numbers = [number for number in fields["members"] if number is not None]
        for number in numbers:
            _make(described, number, made)
        members = [made[number] for number in numbers]
    made[index] = _whole(fields) or _itself(fields, members) or _in_words(fields, members)


def _relate(error, fields, made):
    error.__cause__ = made.get(fields["cause"])
    error.__context__ = made.get(fields["context"])
    error.__suppress_context__ = fields["is_context_suppressed"]
    if fields["notes"]:
        error.__notes__ = fields["notes"]


def _innermost(error):
    """The last exception of a chain of causes; of a ring, the last one before it closes."""
    seen = {id(error)}
    while error.__cause__ is not None and id(error.__cause__) not in seen:
        error = error.__cause__
        seen.add(id(error))
    return error


def _whole(fields):
    """The exception that was pickled whole, if it can be loaded here."""
    error = _loaded(fields["whole"])
    return error if isinstance(error, BaseException) else None


def _itself(fields, members):
    """The exception, of its own class, if all of it can be loaded here."""
    kind, arguments, state = _loaded(fields["classes"][0]), _loaded(fields["arguments"]), _loaded(fields["state"])
    if not _is_exception(kind) or arguments is None or state is None:
        return None
    try:
        return _filled(kind, arguments, state, members)
    except Exception:
        return None


def _filled(kind, arguments, state, members=None):
    """An exception with these arguments and attributes, whose own `__init__` is not called."""
    base = _builtin_base(kind)
    if members is not None:
        arguments = (*arguments, members)
    error = base.__new__(kind, *arguments)
    base.__init__(error, *arguments)
    if state:
        error.__setstate__(state)
    return error


def _in_words(fields, members):
    """A `RemoteError` that is also of the nearest base that is known here."""
    words = fields["kind"], fields["message"]
    arguments = _loaded(fields["arguments"])
    for pickled in fields["classes"]:
        known = _loaded(pickled)
        if _is_exception(known):
            try:
                return _remote_error(known, words, arguments, _loaded(fields["state"]), members)
            except Exception:
                # Its class cannot be a base of another, or needs the arguments, which cannot be loaded here.
                continue
    return RemoteError(*words)


def _remote_error(known, words, arguments, state, members=None):
    error = _filled(_kind(known), (words[1],) if arguments is None else arguments, state, members)
    # Beside attributes of the same names that its class may have and that cannot be set.
    error.__dict__.update(zip(("kind", "message"), words))
    return error


@functools.lru_cache(_MOST_KINDS)
def _kind(known):
    """`RemoteError`, as a subclass of another exception."""
    if issubclass(RemoteError, known):
        return RemoteError
    names = {"__module__": RemoteError.__module__, "__doc__": RemoteError.__doc__, "__reduce__": _reduce, "_known": known}
    return types.new_class("RemoteError", (RemoteError, known), {}, lambda space: space.update(names))


def _reduce(error):
    """Returns how pickle makes a `RemoteError` that is also of another class."""
    arguments, members = _builtin_base(type(error)).__reduce__(error)[1], None
    if hasattr(error, "exceptions"):
        *arguments, members = arguments
    state = {name: value for name, value in error.__dict__.items() if name not in ("kind", "message")}
    return _remote_error, (error._known, (error.kind, error.message), tuple(arguments), state, members)


def _builtin_base(kind):
    """The builtin class whose layout instances of the class have."""
    while kind.__flags__ & _HEAP_TYPE:
        kind = kind.__base__
    return kind


def _is_exception(kind):
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _loaded(pickled):
    """Loads a pickle. Returns None if there is no pickle, or if it cannot be loaded here."""
    try:
        return None if pickled is None else _classes.loads(pickled)
    except (Exception, SystemExit):
        return None
