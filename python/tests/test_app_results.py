"""Results of applications: those that are too large for a message are in a memory component, which is given back."""

import numpy
import pytest

import sublet
from sublet import _app, components
from sublet._compile import Compiled


@pytest.fixture(autouse=True)
def default(platform):
    before = sublet.set_default(platform)
    yield
    sublet.set_default(before)


def made(function, **options):
    """Makes an application that waits for the cores of other tests."""
    return sublet.app(function, **options).options(patience=60)


def arrays(n):
    table = numpy.arange(float(n))
    fixed = numpy.ones(n)
    fixed.flags.writeable = False
    sublet.split()
    table += 1
    return {"table": table, "part": table[5:8], "back": table[::-1], "fixed": fixed, "gaps": numpy.arange(n)[::100]}


def test_arrays_of_a_large_result_share_their_memory_as_in_the_function():
    application = made(arrays)
    found, expected = application(100_000), application.local(100_000)
    numpy.testing.assert_equal(found, expected)
    found["table"][6] = -1
    assert found["part"][1] == found["back"][-7] == -1
    assert {name: array.flags.writeable for name, array in found.items()} == {name: array.flags.writeable for name, array in expected.items()}


def text(n):
    return "x" * n, bytes(n), bytearray(n), {str(number): [number] for number in range(n // 100)}


@pytest.mark.parametrize("count", [10, 190_000, 300_000, 3_000_000])
def test_values_of_any_size_are_returned(count):
    assert made(text)(count) == text(count)


def empty():
    return bytes(300_000), numpy.empty((0, 3)), b"", bytearray()


def test_values_without_bytes_are_returned_beside_large_ones():
    numpy.testing.assert_equal(made(empty)(), empty())


def early(n):
    table = numpy.arange(float(n))
    if n > 100:
        return table
    sublet.split()
    return table.sum()


def test_a_component_that_is_not_the_last_returns_a_large_result():
    numpy.testing.assert_equal(made(early)(100_000), early(100_000))
    assert made(early)(100) == 4950


def test_the_memory_of_a_result_is_given_back(monkeypatch):
    seen = []

    def received(returned, memory):
        seen.append(memory)
        return components.received(returned, memory)

    monkeypatch.setattr(_app, "received", received)
    outcome = made(text).run(3_000_000)
    assert outcome.value == text(3_000_000) and outcome.result is None
    used = {part["component"]: part["used_bytes"] for part in outcome.components}
    assert used["text.result"] > 6_000_000
    assert [repr(memory) for memory in seen] == ["<sublet memory: released>"]


def test_a_small_result_needs_no_memory():
    outcome = made(text).run(10)
    assert {part["component"]: part["used_bytes"] for part in outcome.components}["text.result"] == 0
    assert outcome.result is None


def test_a_graph_without_memory_for_the_result_says_how_large_it_is():
    application = made(text)
    graph = application.graph
    graph["components"] = [part for part in graph["components"] if part["type"] == "compute"]
    graph["edges"] = [edge for edge in graph["edges"] if edge["type"] == "trigger"]
    with pytest.raises(sublet.InvalidArgument, match="component text_1 returns a value of .* bytes .*more than 262144"):
        application(300_000)


def locked(n):
    import threading

    return bytes(n), threading.Lock()


def test_a_large_result_that_cannot_be_pickled_is_named():
    with pytest.raises(TypeError, match="the result cannot be passed to the next component: .*lock"):
        made(locked)(300_000)


def result_of(function):
    graph = Compiled(function).graph("package")
    results = [part["name"] for part in graph["components"] if part.get("result")]
    return results, [edge["from"] for edge in graph["edges"] if edge["to"] in results]


def test_only_components_that_return_access_the_result():
    def plain(n) -> int:
        sublet.split()
        return n

    def effects(n):
        sublet.split("first", external_effects=True)
        if n:
            return n
        sublet.split("effects.result")
        if not n:
            return n
        sublet.split("last", external_effects=True)
        return n

    assert result_of(plain) == ([], [])
    assert result_of(effects) == (["effects.result_"], ["effects.result", "last"])
