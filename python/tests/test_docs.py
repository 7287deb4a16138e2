"""The documentation: what it shows is executed, and comes to what it says.

The blocks of a page are executed in order, as one program, in a folder of their own and on the platform of all tests:

- `python` is executed, and with a title written to a file of that name instead, as are blocks of other languages with one;
- `pycon` is a session, whose answers must be those that are shown;
- `sh` is executed only below the line `<!-- run -->`;
- a `python` block below `<!-- needs: NAME -->` is left out where that module is not installed, and below `<!-- not run: WHY -->`
  always.
"""

import doctest
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

import sublet

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "python/README.md", *sorted((ROOT / "docs/python").glob("*.md"))]
BLOCK = re.compile(
    r"^(?:<!-- (?P<rule>run|needs|not run)(?:: (?P<what>[^\n]+))? -->\n)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_so(page, platform, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Functions of the page are sent as those of a program are.
    names = {"__name__": "__main__"}
    text = page.read_text()
    blocks = list(BLOCK.finditer(text))
    assert 2 * len(blocks) == len(re.findall("^```", text, re.MULTILINE)), (
        "a block of this page has a form that is not known here"
    )
    for block in blocks:
        line = text.count("\n", 0, block.start("text"))
        if block["title"]:
            path = tmp_path / block["title"]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block["text"])
        elif not is_left_out(block):
            execute(block["language"], block["text"], names, page, line)


def is_left_out(block):
    rule, what = block["rule"], (block["what"] or "").strip()
    if block["language"] == "sh":
        return rule != "run"
    return rule == "not run" or (rule == "needs" and importlib.util.find_spec(what) is None)


def execute(language, text, names, page, line):
    if language == "python":
        # With as many lines before it, so that a traceback names those of the page.
        exec(compile("\n" * line + text, page, "exec"), names)
    elif language == "pycon":
        names.update(answers_are_right(doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)))
    elif language == "sh":
        subprocess.run(text, shell=True, check=True)


def answers_are_right(session):
    """What is defined after the session."""
    names, said = session.globs, []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session, out=said.append, clear_globs=False)
    assert not failed, "".join(said)
    return names


def test_the_packages_own_example_is_so(platform):
    answers_are_right(doctest.DocTestParser().get_doctest(sublet.__doc__, {}, "sublet", sublet.__file__, 0))


def test_every_public_name_is_in_the_reference():
    named = re.findall(r"^::: sublet\.(\w+)$", (ROOT / "docs/python/api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(sublet.__all__)
