"""Replies of a package that is another tenant's, or public: its workers may execute any program, and write any bytes.

Nothing of them is unpickled but plain values (`_restricted`). Exceptions are described in words, and what was printed is shown escaped.
"""

import itertools
import logging
import math
import re
import sys

from . import _errors, _rebuild, _restricted

# Most characters of what one call has printed that are shown, and of the text that an exception has. As long as a worker sends.
MOST_TEXT = 1 << 20
# Most entries of what one call has printed, and most exceptions of one description.
MOST_ENTRIES, MOST_ERRORS = 1 << 16, 4096
# Name of the logger for all log records of such a package. The record's own logger name is only text.
LOGGER = "sublet.foreign"
DROPPED = f"\n[sublet: the rest of this call's output, after {MOST_TEXT} characters, is dropped]\n"

# Control characters but for tab and newline, characters that change the direction of text or are not visible, and lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def escaped(text):
    """Text for a terminal: what could control it, or hide text, is shown as a backslash and a number."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def described(package, owner):
    """A package in an error's text."""
    return f"package {package} of " + (f"tenant {owner}" if owner else "another tenant")


class Foreign:
    """How replies of another tenant's package are read; `_calls.OWN` has the same methods."""

    def __init__(self, described):
        self._described = escaped(described)

    def load(self, body, buffers=()):
        """Returns the result of a call. Raises `UntrustedResult`."""
        return self._load(body, buffers, "its result")

    def failure(self, body):
        """The exception that a reply describes."""
        return self.rebuilt(self._load(body, (), "the description of its exception"))

    def rebuilt(self, description):
        """Returns the exception of a description, or an exception that says that the description is invalid."""
        try:
            return rebuilt(description)
        except Exception:
            return self._invalid("the description of its exception")

    def show(self, body):
        """Prints and logs what the call has printed and logged."""
        self.show_entries(self._load(body, (), "what it has printed"))

    def show_entries(self, entries):
        """Prints and logs entries that were loaded already."""
        try:
            show(entries)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
            raise self._invalid("what it has printed") from None

    def _load(self, body, buffers, what):
        try:
            return _restricted.loads(body, buffers)
        except _restricted.Refused as refused:
            found = escaped(refused.what)
            found = f"the class or function {found}" if refused.is_object else found
        advice = "it may return bytes, JSON text or plain values; or deploy the package yourself, if you trust it with this process"
        raise _errors.UntrustedResult(f"{self._described}: {what} has {found}, which is not loaded: {advice}")

    def _invalid(self, what):
        return _errors.UntrustedResult(f"{self._described}: {what} is not valid")


def rebuilt(description):
    """The exception of a description, in words only."""
    errors = [_rebuild.in_words(fields, escaped) for fields in itertools.islice(description["errors"], MOST_ERRORS)]
    return _rebuild.remote({"text": escaped(description["text"][:MOST_TEXT]), "errors": errors})


def show(entries):
    """Prints and logs what a worker has printed and logged, escaped and up to `MOST_TEXT`."""
    left = MOST_TEXT
    for kind, what in itertools.islice(entries, MOST_ENTRIES):
        text = what["msg"] if kind == "log" else what
        if type(text) is not str:
            raise TypeError("text")
        shown, left = escaped(text[:left]), left - len(text)
        if kind == "log":
            _log(what, shown)
        else:
            _print(sys.stdout if kind == "stdout" else sys.stderr, shown)
        if left <= 0:
            return _print(sys.stderr, DROPPED)


def _log(fields, text):
    level, created = fields["levelno"], float(fields["created"])
    if type(level) is not int:
        raise TypeError("level")
    level = min(max(level, logging.NOTSET), logging.CRITICAL)
    logger = logging.getLogger(LOGGER)
    if logger.isEnabledFor(level):
        name, path, function = (escaped(fields[key])[:MOST_TEXT] for key in ("name", "pathname", "funcName"))
        record = logging.LogRecord(LOGGER, level, path, int(fields["lineno"]), "%s: %s", (name, text), None, function)
        # Formatting takes the time apart.
        if math.isfinite(created) and 0 <= created < 1 << 33:
            record.created = created
        logger.handle(record)


def _print(stream, text):
    if stream is not None:
        stream.write(text)
