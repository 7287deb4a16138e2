"""Failures of components of a graph: the counterpart of the worker's `failures.py`."""

import base64
import json

from . import _calls, _foreign, _rebuild


class News:
    """Receives the events of a run, passes them on, and keeps the report of the component that fails."""

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
        """Returns the exception to raise for a run that has failed with this error."""
        return error if self._failed is None else self._failed


def _remote(report, is_own):
    """The exception of a report, after what had been printed is shown; None if there is none in it."""
    if not report:
        return None
    try:
        report = json.loads(report)
        printed = [(kind, _plain(what) if kind == "log" else str(what)) for kind, what in report["printed"]]
        if is_own:
            errors = [_loadable(fields) for fields in report["errors"]]
            error = _rebuild.remote({"text": str(report["text"]), "errors": errors})
        else:
            error = _foreign.rebuilt(report)
    except Exception:
        # Whatever a package's code has written there, the run's own error is to be raised.
        return None
    if is_own:
        _calls.show_printed(printed)
    else:
        _foreign.show(printed)
    return error


def _plain(fields):
    """The fields of a log record, each of its type."""
    kinds = {"name": str, "levelno": int, "levelname": str, "msg": str, "pathname": str, "lineno": int, "funcName": str, "created": float}
    return {name: kind(fields[name]) for name, kind in kinds.items()}


def _loadable(fields):
    """An exception of this program's own function."""
    pickles = {key: _bytes_of(fields[key]) for key in ("whole", "arguments", "state")}
    return {**fields, **pickles, "classes": [_bytes_of(pickled) for pickled in fields["classes"]]}


def _bytes_of(text):
    return None if text is None else base64.b64decode(text)


def _note(error, text):
    """Adds a note, as exceptions have them from Python 3.11 on."""
    error.__notes__ = [*getattr(error, "__notes__", ()), text]
