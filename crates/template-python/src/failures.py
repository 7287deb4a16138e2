"""Reports why a component of a graph failed: what was raised and what was printed, as JSON, in the place of the component's output.

It is JSON so that those can read it who do not trust the package, since loading a pickle executes what it says. What
`exceptions.py` has pickled stands in it by base64. The other end is `sublet/_failure.py`.
"""

import base64
import json

# Most characters of what was printed, and how many a log record has beside its text.
MOST_PRINTED = 16 << 10
LOG_CHARACTERS = 512
DROPPED = ("stderr", f"\n[sublet: the rest of the output, after {MOST_PRINTED} characters, is dropped]\n")
# What is left of the traceback of a report that would be too large, in characters: its end.
LEAST_TEXT = 8 << 10


def report(description, printed, capacity):
    """A report of at most so many bytes; empty if there is not even room for the smallest."""
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
    """What was printed, as far as it is reported."""
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
