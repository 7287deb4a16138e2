"""Reports why a component of a graph failed: the exception and the printed output, as JSON, in place of its output.

The report is JSON so that a client that does not trust the package can read it: loading a pickle executes the code that
the pickle names. The pickles of `exceptions.py` are encoded in base64. `sublet/_failure.py` reads the report.
"""

import base64
import json

# Most characters of printed output, and the characters that a log record counts beside its text.
MOST_PRINTED = 16 << 10
LOG_CHARACTERS = 512
DROPPED = ("stderr", f"\n[sublet: the rest of the output, after {MOST_PRINTED} characters, is dropped]\n")
# Characters at the end of a traceback that are kept if the report would be too large.
LEAST_TEXT = 8 << 10


def report(description, printed, capacity):
    """Returns a report of at most `capacity` bytes; empty if even the smallest report does not fit."""
    printed = bounded(printed)
    words = [dict(fields, whole=None, arguments=None, state=None) for fields in description["errors"]]
    first = dict(words[0], cause=None, context=None, members=None, message=words[0]["message"][:LEAST_TEXT], notes=[])
    end = description["text"][-LEAST_TEXT:]
    for errors, text, entries in (
        (description["errors"], description["text"], printed),
        (words, description["text"], printed),
        ([first], end, printed),
        ([first], end, []),
    ):
        made = json.dumps({"printed": entries, "text": text, "errors": [encoded(fields) for fields in errors]}).encode()
        if len(made) <= capacity:
            return made
    return b""


def bounded(entries):
    """Cuts the printed output to the most that a report has."""
    found, left = [], MOST_PRINTED
    for kind, what in entries:
        left -= len(what["msg"]) + LOG_CHARACTERS if kind == "log" else len(what)
        if left < 0:
            return [*found, DROPPED]
        found.append((kind, what))
    return found


def encoded(fields):
    """The fields of an exception, with base64 of what is pickled."""
    pickles = {key: base64_of(fields[key]) for key in ("whole", "arguments", "state")}
    return {**fields, **pickles, "classes": [base64_of(pickled) for pickled in fields["classes"]]}


def base64_of(pickled):
    return None if pickled is None else base64.b64encode(pickled).decode()
