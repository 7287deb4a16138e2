"""Arguments and results of applications: those that are too large for a message are in memory components."""

import threading

import numpy
import pytest

import sublet
from sublet import _app, components
from sublet._compile import Compiled
from applications import made


pytestmark = pytest.mark.usefixtures("default")


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


def test_names_of_applications_and_fields_do_not_mean_memory():
    def fields(n):
        class Point:
            table: int

        table = numpy.arange(n)
        sublet.split()
        return table.sum()

    application = made(fields, name="my.remote.arguments")
    names = [part["name"] for part in application.graph["components"] if part["type"] == "memory"]
    assert names == ["table", "my_remote_arguments.arguments", "my_remote_arguments.result"]
    assert application(100) == 4950


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


def given(table, words, *, part=None):
    table += 1
    sublet.split()
    part[0] = 7
    return table, words, part


@pytest.mark.parametrize("count", [100, 30_000, 1_000_000])
def test_arguments_of_any_size_are_copies(count):
    table, part, words = numpy.arange(float(count)), numpy.ones(count), {str(number): number for number in range(count // 10)}
    found = made(given)(table, words, part=part)
    numpy.testing.assert_equal(found, given(table.copy(), words, part=part.copy()))
    assert table[1] == part[0] == 1


def shared(whole, rest, fixed):
    rest[0] = 5
    sublet.split()
    rest[1] = 6
    return whole, rest, fixed.flags.writeable


@pytest.mark.parametrize("count", [100, 100_000])
def test_arguments_that_share_memory_share_the_copy(count):
    whole, fixed = numpy.zeros(count), numpy.zeros(count)
    fixed.flags.writeable = False
    found, rest, is_writable = made(shared)(whole, whole[1:], fixed)
    assert found[:3].tolist() == [0, 5, 6]
    assert rest[:2].tolist() == [5, 6] and not is_writable and not whole.any()


def test_a_component_that_begins_again_has_the_arguments_as_they_were():
    def dies(table):
        import os

        if table.size == 200_000 and (table == 1).all():
            table[:] = 0
            os._exit(1)
        return "other arguments"

    lost = []
    application = made(dies).options(retries=2, news=lambda event, component, *more: lost.append(component) if event == "lost" else None)
    with pytest.raises(sublet.WorkerDied):
        application(numpy.ones(200_000))
    assert lost == ["dies_1"] * 3


def test_a_graph_without_memory_for_the_arguments_says_how_large_they_are():
    application = made(given)
    graph = application.graph
    graph["components"] = [part for part in graph["components"] if part["name"] != "given.arguments"]
    graph["edges"] = [edge for edge in graph["edges"] if edge["to"] != "given.arguments"]
    with pytest.raises(sublet.InvalidArgument, match="the arguments have .* bytes, more than 262144: the graph has no memory component"):
        application(bytes(300_000), None)


def test_arguments_that_cannot_be_pickled_are_named():
    with pytest.raises(TypeError, match="the arguments cannot be passed to the next component: .*lock"):
        made(given)(threading.Lock(), None)


def test_arguments_with_too_many_arrays_are_refused():
    with pytest.raises(sublet.InvalidArgument, match="the arguments have .* bytes outside of their memory component"):
        made(given)([numpy.zeros(10) for _ in range(20_000)], None)


def test_numbers_need_no_memory_for_arguments():
    def plain(n: int, *, x: float = 1) -> float:
        doubled = n * 2
        sublet.split()
        return doubled * x

    assert [part["name"] for part in Compiled(plain).graph("package")["components"]] == ["plain_1", "plain_2", "doubled"]
