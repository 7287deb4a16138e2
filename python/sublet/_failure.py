"""Failures of components of a graph: the other end of the worker's `failures.py`."""

import base64
import builtins
import json
import pickle

from . import _calls, _rebuild


class News:
    """Hears what happens in a run, for whoever else wants to, and keeps the report of the component that fails."""

    def __init__(self, called, own):
        self._called = called
        self._own = own
        self._failed = None

    def __call__(self, event, component, detail, report=b""):
        if event == "failed":
            error, detail = detail, _remote(report, component in self._own) or detail
            if detail is not error:
                _note(detail, f"in {str(error).partition(': ')[0]}")
            self._failed = detail
        if self._called is not None:
            self._called(event, component, detail)

    def raised_for(self, error):
        """What is raised in place of the error of a run."""
        return error if self._failed is None else self._failed


def _remote(report, is_own):
    """The exception of a report, after what had been printed is shown; None if there is none in it."""
    if not report:
        return None
    try:
        report = json.loads(report)
        printed = [(kind, _plain(what) if kind == "log" else str(what)) for kind, what in report["printed"]]
        errors = [(_loadable if is_own else _in_words)(fields) for fields in report["errors"]]
        error = _rebuild.remote({"text": str(report["text"]), "errors": errors})
    except Exception:
        # Whatever a package's code has written there, the run's own error is to be raised.
        return None
    _calls.show_printed(printed)
    return error


def _plain(fields):
    """The fields of a log record, each of its type."""
    kinds = {"name": str, "levelno": int, "levelname": str, "msg": str, "pathname": str, "lineno": int, "funcName": str, "created": float}
    return {name: kind(fields[name]) for name, kind in kinds.items()}


def _loadable(fields):
    """An exception of this program's own function."""
    pickles = {key: _bytes_of(fields[key]) for key in ("whole", "arguments", "state")}
    return {**fields, **pickles, "classes": [_bytes_of(pickled) for pickled in fields["classes"]]}


def _in_words(fields):
    """An exception of another package's function: nothing is loaded of it, and its class is the nearest builtin one by its name."""
    names = [name.partition(".")[2] for name in fields["names"] if name.startswith("builtins.")]
    found = [getattr(builtins, name, None) for name in names]
    known = [one for one in found if isinstance(one, type) and issubclass(one, Exception)]
    # A group cannot be made without its members.
    classes = [pickle.dumps(one) for one in known if not hasattr(one, "exceptions")] or [pickle.dumps(Exception)]
    kind, message = str(fields["kind"]), str(fields["message"])
    words = {"kind": kind, "message": message, "members": None, "whole": None, "arguments": None, "state": None, "classes": classes}
    return {**fields, **words}


def _bytes_of(text):
    return None if text is None else base64.b64decode(text)


def _note(error, text):
    """Adds a note, as exceptions have them from Python 3.11 on."""
    error.__notes__ = [*getattr(error, "__notes__", ()), text]
