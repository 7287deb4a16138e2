"""Applications whose workers and memory are on different nodes: they come to the same as the function itself."""

import contextlib
import types

import numpy
import pytest

import sublet
from nodes import platform_of
from sublet import _regions, components

# Elements of an array of 8 bytes each that is too large to be copied to another node.
LARGE = (_regions.REMOTE_BYTES >> 3) + 1000
SMALL = 1000


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """A client of two nodes: one has the workers of applications, and the other one their memory components."""
    nodes = [("compute", "compute", 2, "2GiB"), ("memory", "memory", 1, "2GiB")]
    with platform_of(tmp_path_factory.mktemp("apart"), nodes) as client:
        yield client


@contextlib.contextmanager
def default(client):
    before = sublet.set_default(client)
    try:
        yield
    finally:
        sublet.set_default(before)


def spread(client, function):
    """An application whose components are on the node of their pool, and reach each other by a network."""
    made = sublet.app(function).options(client=client, patience=60, fabric="tcp")
    for part in made.graph["components"]:
        if part["type"] == "memory":
            part["pool"] = "memory"
        else:
            part.setdefault("resources", {})["pool"] = "compute"
    return made


def is_mapped(name):
    try:
        sublet.channel(name).array(1, "u1")
        return True
    except sublet.Error as error:
        assert error.code == "fabric_unavailable", error
        return False


def views(n):
    base = numpy.arange(float(n))
    view, back, same = base[2 : n // 2], base[::-1], base
    holder = [base, {"n": 1}]
    sublet.split()
    view += 1
    base[0] = 5
    holder[1]["n"] = 2
    sublet.split()
    back[1] = 3
    return base, view, back, same is base, holder[0] is base, holder[1]


def results(n):
    table = numpy.arange(float(n))
    sublet.split()
    doubled = table * 2
    third = doubled[::3] + 1
    sublet.split()
    last = third[1:] - table.sum()
    sublet.split()
    return table, doubled, third, last


def instances(n):
    table = numpy.arange(float(n))
    sublet.split("fill", parallelism=2)
    for part in range(sublet.instance(), 2, sublet.instances()):
        rows = slice(part * n // 2, (part + 1) * n // 2)
        table[rows] = table[rows] * 2 + part
    sublet.split("add")
    return table, table.sum()


def interleaved(n):
    table = numpy.zeros(n, "u1")
    sublet.split("fill", parallelism=2)
    for number in range(sublet.instance(), n, sublet.instances()):
        table[number] = number % 200 + 1
    sublet.split("add")
    return table


def forms(n):
    masked = numpy.ma.masked_array(numpy.arange(n), numpy.arange(n) % 2 == 0)
    text, fixed = bytearray(n), numpy.arange(n)
    fixed.flags.writeable = False
    wide = numpy.broadcast_to(numpy.arange(3), (4, 3))
    words = {str(number): [number] for number in range(2000)}
    empty = numpy.empty((0, 3))
    sublet.split()
    masked[1] = 77
    text[5] = 9
    words["more"] = words["7"]
    sublet.split()
    return masked.sum(), bytes(text), fixed, wide, words, words["more"] is words["7"], empty


def remote(n):
    big = sublet.remote.zeros(n)
    big[:] = numpy.arange(n)
    sublet.split()
    twice = big * 2
    sublet.split()
    return numpy.asarray(big + twice), float(twice.sum())


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("function", [views, results, instances, interleaved, forms, remote])
def test_applications_on_two_nodes_come_to_the_same_as_their_function(apart, function, count):
    with default(apart):
        expected = function(count)
    numpy.testing.assert_equal(spread(apart, function)(count), expected)


def framed(n):
    import pandas

    frame = pandas.DataFrame({"a": numpy.arange(n), "b": [str(number) for number in range(n)]})
    sublet.split()
    frame.loc[1, "a"] = 9
    sublet.split()
    return frame.to_dict("list")


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_columns_of_another_node_are_copied(apart, count):
    pytest.importorskip("pandas")
    assert spread(apart, framed)(count) == framed(count)


def kinds(n):
    table, mutable = numpy.arange(float(n)), bytearray(8 * n)
    sublet.split()
    return type(table).__name__, type(mutable).__name__, is_mapped("table")


@pytest.mark.parametrize(("count", "kind"), [(SMALL, "ndarray"), (LARGE, "RemoteArray")])
def test_large_arrays_of_another_node_are_remote_and_small_ones_are_copies(apart, count, kind):
    assert spread(apart, kinds)(count) == (kind, "bytearray", False)


def sums(n: int):
    sublet.split("make", memory="768MiB")
    table = numpy.arange(float(n))
    sublet.split("use", memory="128MiB")
    table *= 2
    largest = (table + 1).max()
    sublet.split("add", memory="128MiB")
    return float(table.sum()), float(largest)


def test_an_array_of_another_node_may_be_larger_than_the_worker(apart):
    count = 24 << 20
    assert spread(apart, sums)(count) == (count * (count - 1.0), 2.0 * count - 1)


def fixed(n):
    table = numpy.arange(float(n))
    table.flags.writeable = False
    sublet.split()
    table[0] = 1
    return table


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_read_only_array_of_another_node_is_read_only(apart, count):
    with pytest.raises(ValueError, match="read-only"):
        spread(apart, fixed)(count)


def decomposed(n):
    table = numpy.ones((n, 1))
    sublet.split()
    return numpy.linalg.svd(table)


def test_an_operation_that_remote_arrays_lack_is_named(apart):
    with pytest.raises(TypeError, match=r"numpy\.linalg\.svd is not there for remote arrays"):
        spread(apart, decomposed)(LARGE)


def fails(n):
    print("begins")
    table = numpy.zeros(n)
    sublet.split("divides")
    print("divides", table.size)
    try:
        return 1 // int(table.sum())
    except ZeroDivisionError as error:
        raise LookupError("nothing", n) from error


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_failure_keeps_its_class_its_cause_the_lines_of_the_source_and_what_was_printed(apart, count, capsys):
    with pytest.raises(LookupError) as raised:
        spread(apart, fails)(count)
    error = raised.value
    assert type(error) is LookupError and error.args == ("nothing", count)
    assert type(error.__cause__) is ZeroDivisionError
    text = error.__cause__.__cause__.text
    assert "in divides\n" in text and "return result(1 // int(table.sum()))" in text and 'raise LookupError("nothing", n) from error' in text
    assert any(note.startswith("in component divides (") for note in error.__notes__)
    assert capsys.readouterr().out == f"begins\ndivides {count}\n"


# Without nodes.


class Bytes:
    """The channel of a memory component on another node, in this process."""

    def __init__(self, content):
        self.content, self.written = bytearray(content), []
        self.readonly = False

    @property
    def nbytes(self):
        return len(self.content)

    def array(self, shape, dtype, offset):
        raise sublet._errors.of("fabric_unavailable", 30, "the segment is on another machine")

    def read_into(self, offset, buffer):
        buffer[:] = numpy.frombuffer(self.content, "u1")[offset : offset + buffer.nbytes]

    def write_async(self, offset, data):
        self.written.append((offset, bytes(data)))


def attached(channel, stretches, local=(), is_shared=False):
    memory = _regions.RunMemory(lambda name: channel, is_shared=is_shared)
    memory.attach([_regions.Stretch("table", *stretch) for stretch in stretches], [_regions.Stretch("table", *one) for one in local])
    return memory


@pytest.mark.parametrize(
    ("is_shared", "written"), [(False, [(10, bytes([1, 0, 0, 1]))]), (True, [(10, bytes([1])), (13, bytes([1]))])]
)
def test_bytes_that_an_instance_did_not_change_are_others(is_shared, written):
    channel = Bytes(bytes(100))
    memory = attached(channel, [(8, 50)], is_shared=is_shared)
    part = memory.bytes_of(_regions.Stretch("table", 8, 50))
    part[2] = part[5] = 1
    memory.write_back()
    assert channel.written == written
    memory.write_back()
    assert channel.written == written


def test_overlapping_stretches_are_one_copy():
    memory = attached(Bytes(bytes(100)), [(0, 40), (30, 20), (60, 10)])
    whole, end = memory.bytes_of(_regions.Stretch("table", 0, 40)), memory.bytes_of(_regions.Stretch("table", 30, 20))
    whole[35] = 7
    assert end[5] == 7
    low = _regions.address_of(end)
    assert memory.find(low, low + 20) == _regions.Stretch("table", 30, 20)
    assert memory.find(low + 15, low + 25) is None


def test_large_regions_stay_unless_more_than_arrays_is_in_them():
    nbytes = _regions.REMOTE_BYTES + 1
    stretches = [(0, nbytes), (nbytes, nbytes)]
    memory = attached(Bytes(bytes(2 * nbytes)), stretches, local=[(nbytes, 10)])
    assert memory.bytes_of(_regions.Stretch("table", 0, 10)) is None
    assert memory.bytes_of(_regions.Stretch("table", nbytes, 10)).tolist() == [0] * 10


def test_copies_of_what_is_only_read_are_read_only():
    channel = Bytes(bytes(100))
    channel.readonly = True
    memory = attached(channel, [(0, 40)])
    assert not memory.bytes_of(_regions.Stretch("table", 0, 40)).flags.writeable
    memory.write_back()
    assert channel.written == []


def test_a_failed_access_is_not_taken_for_memory_of_another_node():
    def refused(*what):
        raise sublet._errors.of("lease_ended", 33, "memory component table is over")

    channel = Bytes(bytes(100))
    channel.array = refused
    with pytest.raises(sublet.LeaseEnded, match="table is over"):
        attached(channel, [(0, 40)])


def test_the_message_of_another_version_is_refused():
    execution = components.component(types.FunctionType((lambda: {}).__code__, {"__name__": "older"}, "f"))
    with pytest.raises(sublet.InvalidArgument, match="not a message of a component"):
        execution(components.MAGIC[:-1] + b"\x01" + b"rest of it")
