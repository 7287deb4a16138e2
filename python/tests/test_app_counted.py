"""Components of an application whose number of instances follows from a variable."""


import numpy
import pytest

import sublet
from sublet._compile import Compiled
from applications import check_refused, made


pytestmark = pytest.mark.usefixtures("default")


def filled(n, *, is_early=False):
    table = numpy.zeros(n)
    parts: int = n // 10
    label = ["as it is"]
    if is_early:
        return "early", parts
    sublet.split("fill", parallelism={"from": "parts", "limit": 2})
    table[sublet.instance() :: sublet.instances()] = sublet.instances()
    sublet.split("sum")
    return table.sum(), parts, label


def numbers(outcome):
    return {part["component"]: part["instances"] for part in outcome.components}


@pytest.mark.parametrize("count", [10, 19, 20])
def test_the_value_of_a_variable_is_the_number(count):
    outcome = made(filled).run(count)
    instances = count // 10
    assert outcome.value == (count * instances, instances, ["as it is"])
    assert numbers(outcome)["fill"] == instances and numbers(outcome)["sum"] == 1


@pytest.mark.parametrize("count, found", [(5, "0 instances"), (30, "3 instances"), (-10, "-1")])
def test_a_number_out_of_range_fails_the_run(count, found):
    def ranged(n):
        sublet.split("first")
        parts = n // 10
        sublet.split("fill", parallelism={"from": "parts", "limit": 2})
        print(parts)
        sublet.split("end")
        return n

    with pytest.raises(sublet.InvalidArgument, match=f"component fill.*{found}"):
        made(ranged)(count)


def test_a_value_that_is_no_number_fails_where_it_is_read():
    def worded(n):
        parts = "2"
        sublet.split("fill", parallelism={"from": "parts", "limit": 2})
        print(n)
        sublet.split("end")
        return parts

    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        made(worded)(1)


def test_a_run_that_has_returned_executes_no_instances(capsys):
    outcome = made(filled).run(20, is_early=True)
    assert outcome.value == ("early", 2)
    assert numbers(outcome)["fill"] == 1


def test_the_size_of_memory_is_the_number():
    def sized(n):
        table = numpy.zeros(n)
        sublet.split("fill", parallelism={"from": "table", "bytes_each": "1MiB", "limit": 2})
        table[sublet.instance() :: sublet.instances()] = sublet.instances()
        sublet.split("sum")
        return table.sum()

    assert Compiled(sized).graph("sized")["components"][1]["parallelism"] == {"from": "table", "bytes_each": 1 << 20, "limit": 2}
    application = made(sized)
    for count, instances in ((1, 1), (2 << 17, 2), (1 << 20, 2)):
        outcome = application.run(count)
        assert outcome.value == count * instances and numbers(outcome)["fill"] == instances


def test_the_number_is_that_of_the_component_before_which_may_get_it():
    def later(n):
        parts: int = n
        kept = [n]
        sublet.split("between")
        kept.append(2)
        sublet.split("print", parallelism={"from": "parts", "limit": 2})
        print(len(kept))
        sublet.split("end")
        return kept

    source = sublet.app(later).source
    assert 'def between(*, kept, parts):\n    kept.append(2)\n    return counted(parts, {"kept": kept})\n' in source
    assert "from sublet.components import component, counted, result\n" in source
    outcome = made(later).run(2)
    assert outcome.value == [2, 2] and numbers(outcome)["print"] == 2


FROM = 'parallelism={"from": "x", "limit": 4}'
REFUSED = {
    "exactly one component has to be before": f"sublet.split({FROM})\nx = y\nsublet.split()\nreturn x",
    "the component before has one instance": f"sublet.split(parallelism=2)\nx = y\nsublet.split({FROM})\ny\nsublet.split()\nreturn y",
    "x, which is no variable of f": f"z = y\nsublet.split({FROM})\ny\nsublet.split()\nreturn z",
    "a component that is executed at the same time as others has one instance": (
        f"x = y\nwith sublet.parallel():\n    sublet.split({FROM})\n    y\n    sublet.split()\n    b = y\nreturn b"
    ),
    "the last component has several instances": f"x = y\nsublet.split({FROM})\nreturn y",
    "the limit of parallelism is 0": f"x = y\nsublet.split({FROM.replace('4', '0')})\ny\nsublet.split()\nreturn y",
    "the name of a variable": "x = y\nsublet.split(parallelism={'from': 'x'})\ny\nsublet.split()\nreturn y",
    "use x in it": "x = y\nsublet.split(parallelism={'from': 'x', 'bytes_each': 1, 'limit': 2})\ny\nsublet.split()\nreturn y",
    "is not a size": "x = y\nsublet.split(parallelism={'from': 'x', 'bytes_each': 'all', 'limit': 2})\nx\nsublet.split()\nreturn y",
    "at least 1 byte": "x = y\nsublet.split(parallelism={'from': 'x', 'bytes_each': 0, 'limit': 2})\nx\nsublet.split()\nreturn y",
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_number_that_is_not_known_then_is_refused(why, tmp_path, monkeypatch):
    check_refused(why, REFUSED[why], tmp_path, monkeypatch)
