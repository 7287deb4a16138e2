"""Components of an application that are executed at the same time: they come to the same as the function itself."""


import numpy
import pytest

import sublet
from sublet._compile import Compiled
from applications import check_refused, made


pytestmark = pytest.mark.usefixtures("default")


def statistics(n, *, is_early=False):
    table = numpy.arange(float(n))
    holder = [table, {"count": 1}]
    name = "before"
    print("begins")
    if is_early:
        return "early"
    with sublet.parallel():
        sublet.split("average")
        mean = table[1:].mean()
        for step in range(3):
            print("average", step)
        sublet.split("naming")
        if n:
            name = "behind"
        doubled = table[1:] * 2
        words = {str(number): number for number in range(3000)}
        sublet.split("write")
        for step in range(2):
            table[0] += step
    sublet.split("join")
    holder[1]["count"] += 1
    return mean, name, doubled, words, table, holder[0] is table, holder[1]


@pytest.mark.parametrize("count", [10, 300_000])
def test_parts_of_a_block_come_to_the_same_as_in_order(count, capsys):
    found = made(statistics)(count)
    assert capsys.readouterr().out == "begins\naverage 0\naverage 1\naverage 2\n"
    numpy.testing.assert_equal(found, statistics(count))


def test_a_run_that_returned_before_a_block_executes_nothing_of_it(capsys):
    assert made(statistics)(10, is_early=True) == "early"
    assert capsys.readouterr().out == "begins\n"


def twice(n):
    kept = [1]
    with sublet.parallel():
        a = n + 1
        sublet.split()
        b = n + 2
    c = a + b
    with sublet.parallel():
        sublet.split()
        d = c * 2
        sublet.split()
        e = c * 3
    kept.append(4)
    return d + e, kept


def test_blocks_are_forks_and_joins_of_the_graph():
    edges = [(edge["from"], edge["to"]) for edge in Compiled(twice).graph("twice")["edges"] if edge["type"] == "trigger"]
    assert edges == [(f"twice_{one}", f"twice_{other}") for one, other in ((1, 2), (1, 3), (2, 4), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7))]
    assert made(twice)(5) == twice(5)


def test_parts_of_a_block_are_executed_at_the_same_time():
    def meet():
        flags = numpy.zeros(2, "u1")
        with sublet.parallel():
            sublet.split("one")
            flags[0] = 1
            while not flags[1]:
                pass
            sublet.split("other")
            flags[1] = 1
            while not flags[0]:
                pass
        return flags.tolist()

    assert made(meet)() == [1, 1]


def test_what_else_a_part_of_a_block_changes_is_refused():
    def changes(n):
        found = [1]
        with sublet.parallel():
            sublet.split("appends")
            found.append(n)
            sublet.split("adds")
            more = n + 1
        return found, more

    with pytest.raises(sublet.InvalidArgument, match="component appends changes found, while others are executed"):
        made(changes)(2)

    def shares(n):
        found = {"list": [n]}
        with sublet.parallel():
            sublet.split("takes")
            inner = found["list"]
            sublet.split("adds")
            more = n + 1
        return found, inner, more

    with pytest.raises(sublet.InvalidArgument, match="inner, which component takes sets, shares values with other variables"):
        made(shares)(2)


def test_a_part_of_a_block_that_sets_nothing_gets_what_may_have_no_value():
    def lacks(n):
        if n:
            found = n
        with sublet.parallel():
            print(found)
            sublet.split()
            more = n + 1
        return found, more

    source = sublet.app(lacks).source
    compile(source, "source", "exec")
    assert source.count("    return {}\n") == 1 and "def lacks_2(*, found=unbound):" in source
    assert made(lacks)(3) == (3, 4)


REFUSED = {
    "nothing to be executed before this block": "with sublet.parallel():\n    a = 1\n    sublet.split()\n    b = 2\nreturn a + b",
    "nothing behind this block": "x = 1\nwith sublet.parallel():\n    a = x\n    sublet.split()\n    b = x",
    "a block of one component": "x = 1\nwith sublet.parallel():\n    a = x\nreturn a",
    "component f_2 sets a, which f_3 reads at the same time": "x = 1\nwith sublet.parallel():\n    a = x\n    sublet.split()\n    b = a\nreturn b",
    "component f_2 sets a, which f_3 sets at the same time": "x = 1\nwith sublet.parallel():\n    a = x\n    sublet.split()\n    a = 2\nreturn a",
    "a component returns, while others are executed": "x = 1\nwith sublet.parallel():\n    return x\n    sublet.split()\n    a = x\nreturn a",
    "x may be deleted here": "x = 1\nwith sublet.parallel():\n    if y: del x\n    sublet.split()\n    a = 2\nreturn x, a",
    "has one instance": "x = 1\nwith sublet.parallel():\n    sublet.split(parallelism=2)\n    x\n    sublet.split()\n    a = x\nreturn a",
    "has no arguments, and is alone": "x = 1\nwith sublet.parallel() as z:\n    a = x\n    sublet.split()\n    b = x\nreturn a",
    "a block of parallel components has to be a statement": "for x in y:\n    with sublet.parallel():\n        pass\nreturn x",
    "nothing behind this split": "x = 1\nwith sublet.parallel():\n    a = x\n    sublet.split()\nreturn a",
    "nothing between this split and the one before": "x = 1\nwith sublet.parallel():\n    sublet.split()\n    sublet.split()\n    a = x\nreturn a",
    "a split within `if`": "x = 1\nwith sublet.parallel():\n    if x:\n        sublet.split()\n    a = x\nreturn a",
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_block_that_means_something_else_is_refused(why, tmp_path, monkeypatch):
    file, error = check_refused(why, REFUSED[why], tmp_path, monkeypatch)
    assert error.filename == str(file) and error.lineno >= 4
