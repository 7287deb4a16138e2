"""Applications of tests."""

import importlib
import sys
import textwrap

import pytest

import sublet


def made(function, **options):
    """Makes an application that waits for the cores of other tests."""
    return sublet.app(function, **options).options(patience=60)


def check_refused(why, body, folder, monkeypatch):
    """Checks that a function of the argument `y` with this body is refused for this reason. Returns its file, and the error."""
    file = folder / "refused.py"
    file.write_text(f"import sublet\n\n\ndef f(y):\n{textwrap.indent(body, '    ')}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "refused", raising=False)
    function = importlib.import_module("refused").f
    with pytest.raises(SyntaxError, match=why) as found:
        sublet.app(function)
    return file, found.value
