"""Describes exceptions so that the caller can raise them as themselves.

A description is a dictionary: `text` is the formatted traceback, `errors` a list of dictionaries, one for each exception. The first
is the one that was raised. The others are members of groups, causes and contexts, which are referred to by their indices.
The other end is `sublet/_rebuild.py`.

Pickle rebuilds an exception by calling its class with `args`. That fails for a class whose `__init__` takes something else, and
silently changes the message of another. So class, arguments and attributes are pickled apart, and the caller does not call
`__init__`. Only an exception that defines its own reduction is pickled whole.
"""

import builtins
import copyreg
import pickle
import traceback

# Most exceptions in one description; the text still has the others.
MOST_ERRORS = 4096
# Set in the flags of each class that is made at run time, which the builtin exceptions are not.
HEAP_TYPE = 1 << 9

Group = getattr(builtins, "BaseExceptionGroup", ())


def described(error, within, pickled):
    """The description of an exception whose traceback begins at `within`. `pickled` pickles a value."""
    text = "".join(traceback.format_exception(type(error), error, within))
    errors = related(error)
    indices = {id(one): index for index, one in enumerate(errors)}
    return {"text": text, "errors": [fields_of(one, indices, pickled) for one in errors]}


def related(error):
    """The exception, and all exceptions that it refers to."""
    errors, seen = [error], {id(error)}
    for one in errors:
        for other in (*members_of(one), one.__cause__, context_of(one)):
            if other is not None and id(other) not in seen and len(errors) < MOST_ERRORS:
                seen.add(id(other))
                errors.append(other)
    return errors


def members_of(error):
    return error.exceptions if isinstance(error, Group) else ()


def context_of(error):
    """The exception during whose handling this one was raised, unless its traceback leaves that out."""
    return None if error.__suppress_context__ else error.__context__


def fields_of(error, indices, pickled):
    """One exception; of what cannot be pickled there is None."""

    def attempt(value):
        try:
            return pickled(value)
        except BaseException:
            return None

    kind, base = type(error), builtin_base(type(error))
    members = [indices.get(id(member)) for member in members_of(error)] if isinstance(error, Group) else None
    arguments, state = reduced(error, base)
    return {
        "kind": f"{kind.__module__}.{kind.__qualname__}",
        "message": message_of(error),
        "whole": None if members is not None or is_reduced_by(base, kind) else whole(error, pickled),
        "classes": [attempt(one) for one in kind.__mro__ if one is not object],
        "names": [f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__ if one is not object],
        "arguments": attempt(arguments),
        "state": attempt(state),
        "notes": notes_of(error, (members or []).count(None)),
        "cause": indices.get(id(error.__cause__)),
        "context": indices.get(id(context_of(error))),
        "is_context_suppressed": error.__suppress_context__,
        "members": members,
    }


def builtin_base(kind):
    """The builtin class whose layout instances of the class have."""
    while kind.__flags__ & HEAP_TYPE:
        kind = kind.__base__
    return kind


def is_reduced_by(base, kind):
    """Whether pickle does with instances of the class what it does with those of its builtin base."""
    return kind.__reduce__ is base.__reduce__ and kind.__reduce_ex__ is base.__reduce_ex__ and kind not in copyreg.dispatch_table


def reduced(error, base):
    """The arguments of the builtin class, and the attributes. A group's members are described apart."""
    if isinstance(error, Group):
        arguments, state = (error.message,), dict(error.__dict__)
    else:
        _, arguments, *rest = base.__reduce__(error)
        state = dict(rest[0] or {}) if rest else {}
    for name in copyreg._slotnames(type(error)):
        if hasattr(error, name):
            state[name] = getattr(error, name)
    return arguments, state


def whole(error, pickled):
    """The pickled exception, if it comes back as it was; else None."""
    try:
        made = pickled(error)
        back = pickle.loads(made)
        return made if type(back) is type(error) and message_of(back) == message_of(error) else None
    except BaseException:
        return None


def message_of(error):
    try:
        return str(error)
    except BaseException:
        return "(its message is not available: its __str__ failed)"


def notes_of(error, left_out):
    notes = getattr(error, "__notes__", None)
    notes = [note for note in notes if isinstance(note, str)] if isinstance(notes, (list, tuple)) else []
    return [*notes, f"{left_out} more exceptions of this group are only in the traceback"] if left_out else notes
