"""Branches of an application that have components of their own: one branch is executed, and the others are skipped."""


import numpy
import pytest

import sublet
from sublet._compile import Compiled
from applications import check_refused, made


pytestmark = pytest.mark.usefixtures("default")


def branches(n, kind):
    table = numpy.arange(float(n))
    kept = []
    print("begins")
    if kind == "early":
        return kind
    if kind == "heavy" and table.sum() > 3:
        sublet.split("heavy", memory="256MiB")
        found = table * 2
        kept.append("heavy")
        sublet.split("heavier")
        found += 1
    elif kind == "light":
        sublet.split("light")
        found = table[1:3]
        table[2] = 9
    elif kind == "returns":
        return "returned", table[:2]
    else:
        one = 1
        with sublet.parallel():
            a = one + 1
            sublet.split()
            b = one + 2
        found = a + b
    kept.append("behind")
    if n > 100:
        sublet.split("large")
        kept.append("large")
    sublet.split("end")
    return kept, found, table


@pytest.mark.parametrize("kind", ["early", "heavy", "light", "returns", "other"])
def test_the_branch_whose_condition_holds_is_executed(kind, capsys):
    for count in (10, 100_000):
        found = made(branches)(count, kind)
        assert capsys.readouterr().out == "begins\n"
        numpy.testing.assert_equal(found, branches(count, kind))
        capsys.readouterr()


def test_other_branches_are_skipped():
    began = []
    application = made(branches).options(news=lambda event, component, *more: began.append(component) if event == "began" else None)
    application(10, "light")
    assert began == ["branches_1", "light", "branches_10", "end"]


def chosen(n):
    found = n + 1
    if n > 5:
        sublet.split("more")
        found *= 2
    elif n > 2:
        sublet.split("some")
        found *= 3
    return found


def test_conditions_are_those_of_triggers():
    edges = [edge for edge in Compiled(chosen).graph("chosen")["edges"] if edge["type"] == "trigger"]
    assert edges == [
        {"type": "trigger", "from": "chosen_1", "to": "more", "when": "sublet choice 0\n"},
        {"type": "trigger", "from": "chosen_1", "to": "some", "when": "sublet choice 1\n"},
        {"type": "trigger", "from": "chosen_1", "to": "chosen_4", "otherwise": True},
        {"type": "trigger", "from": "more", "to": "chosen_4"},
        {"type": "trigger", "from": "some", "to": "chosen_4"},
    ]
    assert [made(chosen)(n) for n in (1, 3, 6)] == [2, 12, 14]


def test_what_a_condition_raises_is_raised():
    def divides(n):
        found = n
        if 1 / n > 2:
            sublet.split()
            found += 1
        return found

    with pytest.raises(ZeroDivisionError):
        made(divides)(0)


REFUSED = {
    "nothing to be executed before this `if`": "if y:\n    sublet.split()\n    x = 1\nreturn y",
    "nothing behind this `if`": "x = 1\nif y:\n    sublet.split()\n    x = 2",
    "nothing behind this split": "x = 1\nif y:\n    x = 3\n    sublet.split()\nreturn x",
    "nothing between this split and the one before": "x = 1\nif y:\n    sublet.split()\n    sublet.split()\n    x = 3\nreturn x",
    "a component of several instances is before an `if`": "x = [1]\nsublet.split(parallelism=2)\nx\nif y:\n    sublet.split()\n    x = 3\nreturn x",
    "a split within `for`": "x = 1\nif y:\n    sublet.split()\n    for z in y:\n        sublet.split()\nreturn x",
}


@pytest.mark.parametrize("why", REFUSED)
def test_branches_that_cannot_be_components_are_refused(why, tmp_path, monkeypatch):
    file, error = check_refused(why, REFUSED[why], tmp_path, monkeypatch)
    assert error.filename == str(file) and error.lineno >= 4
