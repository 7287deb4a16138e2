"""`sublet.remote` in applications: its arrays are in a memory component of the graph."""

import pickle
import weakref

import numpy
import pytest

import sublet
from sublet._compile import Compiled
from sublet._remote import arena
from applications import made


pytestmark = pytest.mark.usefixtures("default")


far = sublet.remote(working_set="1MiB")


@sublet.remote(threshold="8KiB")
def standardized(table):
    return (table - table.mean(axis=0)) / table.std(axis=0)


def test_addresses_of_a_component_end_with_its_last_array():
    channel = sublet.Channel("table", None)
    component = arena.component_of(channel)
    assert arena.component_of(channel) is component
    ended = weakref.ref(component)
    del component
    # Without a garbage collection.
    assert ended() is None
    assert arena.component_of(channel).memory is channel


def makes(n):
    big = sublet.remote.zeros(n)
    big[:] = numpy.arange(n)
    kinds = [type(big).__name__]
    sublet.split()
    twice = big * 2
    odd = twice[1::2]
    kinds.append(type(big).__name__)
    sublet.split("fill", parallelism=2)
    for part in range(sublet.instance(), 2, sublet.instances()):
        rows = slice(part * n // 2, (part + 1) * n // 2)
        big[rows] += twice[rows] * 1
    sublet.split("last")
    return numpy.asarray(big), numpy.asarray(odd), kinds, float(big.sum())


def decorated(n):
    table = numpy.arange(float(n))
    sublet.split()
    found = standardized(table)
    kind = type(found).__name__
    sublet.split()
    return float(found.std()), kind


def placed(n):
    table = far.arange(n)
    sublet.split()
    return float((table * 2).sum())


def returned(n):
    return sublet.remote.arange(n)


@pytest.mark.parametrize(("function", "count"), [(makes, 1000), (makes, 300_000), (decorated, 5000), (placed, 300_000)])
def test_applications_with_remote_arrays_come_to_the_same_as_their_function(function, count):
    numpy.testing.assert_equal(made(function)(count), function(count))


def test_remote_arrays_are_in_the_memory_component_of_the_graph():
    outcome = made(makes).run(300_000)
    used = {part["component"]: part["used_bytes"] for part in outcome.components}
    # Both arrays, and what is free between and behind them.
    assert used["makes.remote"] >= 4_800_000 and used["big"] == used["twice"] == used["odd"] == 0


def test_a_remote_array_is_returned_as_a_copy():
    for count in (10, 300_000):
        found = made(returned)(count)
        assert type(found) is numpy.ndarray and (found == numpy.arange(count)).all()


def test_only_parts_that_name_a_place_and_later_ones_access_its_memory():
    def late(n):
        sublet.split("second")
        table = standardized(n)
        sublet.split("third")
        return table

    def never(n):
        remote = n
        sublet.split()
        return remote

    graph = Compiled(late).graph("package")
    assert [edge["from"] for edge in graph["edges"] if edge["to"] == "late.remote"] == ["second", "third"]
    assert "never.remote" not in [part["name"] for part in Compiled(never).graph("package")["components"]]


def hidden(n):
    # Named by a function that is not a part of the application.
    return sublet.remote.zeros(n)


def test_a_place_that_no_part_names_is_refused():
    def hides(n):
        table = hidden(n)
        sublet.split()
        return table

    with pytest.raises(sublet.InvalidArgument, match="component hides_1 makes remote arrays, and no memory component is for them: name the place"):
        made(hides)(10)


def test_a_place_is_pickled_with_its_options():
    place = pickle.loads(pickle.dumps(far))
    assert type(place) is sublet.Remote and place is not far and place.working_bytes == 1 << 20
