"""Values of applications that share memory: they do so behind a split, in arguments and in results, or are refused."""

import array

import numpy
import pytest

import sublet
from sublet._bundle import Pickling, copies_that_share
from applications import made


pytestmark = pytest.mark.usefixtures("default")


def written(pair):
    table, part = pair
    part[0] = 9
    sublet.split()
    table[2] += part[0]
    return table, part[:2], table[::-1]


@pytest.mark.parametrize("count", [4, 300_000])
def test_arguments_and_results_of_any_size_share_memory_as_in_the_function(count):
    table, expected = numpy.arange(float(count)), numpy.arange(float(count))
    found = made(written)((table, table[1:]))
    numpy.testing.assert_equal(found, written((expected, expected[1:])))
    assert all(numpy.shares_memory(found[0], part) for part in found[1:])
    # The caller's are not changed.
    assert table[1] == 1


def looked(n):
    words = {number: str(number) for number in range(n)}
    both = [words, 1]
    sublet.split("look")
    words[-1] = "added"
    count = len(words)
    sublet.split("end")
    return count, both


def test_values_that_share_others_need_no_common_memory_up_to_64_kib():
    assert made(looked)(3000) == looked(3000)
    with pytest.raises(sublet.InvalidArgument, match="both and words share .* bytes, and not all later components get all of them"):
        made(looked)(30_000)


def masked():
    table = numpy.arange(4.0)
    shown = numpy.ma.array(table, copy=False)
    sublet.split("fill")
    shown[0] = 7
    return table


def masked_copy():
    table = numpy.arange(4.0)
    shown = numpy.ma.array(table, copy=True)
    sublet.split("fill")
    shown[0] = 7
    return table, shown


def test_a_copy_beside_its_original_is_refused_and_one_without_is_passed_on():
    with pytest.raises(sublet.InvalidArgument, match="masked_1 shown and table share memory, and of a MaskedArray a copy is passed on"):
        made(masked)()
    found, expected = made(masked_copy)(), masked_copy()
    numpy.testing.assert_equal(found, expected)
    assert type(found[1]) is type(expected[1])


def test_a_part_of_a_block_does_not_hand_on_a_copy_of_what_all_share():
    def views(n):
        table = numpy.arange(float(n))
        with sublet.parallel():
            sublet.split("view")
            shown = table.view(numpy.matrix)
            sublet.split("measure")
            count = len(table)
        shown[0, 0] = 5
        return table, count

    with pytest.raises(sublet.InvalidArgument, match="view shown and table share memory, and of a matrix a copy"):
        made(views)(4)


def shared(**values):
    return copies_that_share([Pickling({name: value}) for name, value in values.items()])


def test_which_values_share_memory_with_a_copy():
    table, listed, raw, several = numpy.arange(8.0), numpy.array([1, "a", None], object), bytearray(8), array.array("d", [1, 2])
    assert shared(a=table, b=table[2:].view(numpy.matrix)) == (["a", "b"], "matrix")
    assert shared(b=table.view(numpy.recarray), a=[table[1:]]) == (["a", "b"], "recarray")
    assert shared(a=listed, b=listed[1:]) == (["a", "b"], "ndarray")
    assert shared(a=numpy.frombuffer(raw, "u1"), b={"raw": raw}) == (["a", "b"], "bytearray")
    assert shared(a=numpy.frombuffer(several), b=several) == (["a", "b"], "array")
    inner = table[3:4].view(numpy.matrix)
    assert shared(a=table[:2], b=inner, c=table[5:], d=table[2:6]) == (["b", "d"], "matrix")


def test_which_values_do_not():
    table, listed = numpy.arange(8.0), numpy.array([1, "a", None], object)
    shown = table.view(numpy.matrix)
    assert shared(a=table, b=table[1:], c=numpy.frombuffer(memoryview(table))) is None
    assert shared(a=shown, b=[shown, shown]) is None
    assert shared(a=table[:4], b=table[4:].view(numpy.matrix), c=numpy.arange(3).view(numpy.recarray)) is None
    assert shared(a=listed, b=listed, c=[1]) is None
    assert shared(a=numpy.frombuffer(b"abc", "u1"), b=b"abc") is None
    assert shared(a=[listed], b=[listed[1:]]) is None
    fixed = table.copy()
    fixed.flags.writeable = False
    assert shared(a=fixed, b=fixed[1:].view(numpy.matrix)) is None
