"""Whatever keeps an array, a function here or one in a worker, keeps its elements."""

import numpy
import pytest

import sublet

FABRICS = ["shm", "tcp"]


@pytest.mark.parametrize("fabric", FABRICS)
def test_keeps_arguments_of_decorated_functions(platform, fabric):
    kept = []
    with sublet.remote(client=platform, fabric=fabric, threshold="1KiB", initial="64KiB", increment="64KiB") as far:

        @far
        def keep(array, rest):
            kept.extend([array, array[::2], rest["part"]])
            return array + 1

        results = [keep(numpy.full(1000, number), {"part": numpy.full(500, -number)}) for number in range(30)]
        for number, (array, part, rest) in enumerate(zip(kept[::3], kept[1::3], kept[2::3])):
            assert (array == number).all() and (part == number).all() and (rest == -number).all()
            assert (results[number] == number + 1).all()


@pytest.mark.parametrize("fabric", FABRICS)
def test_keeps_local_copies_and_elements(platform, fabric):
    with sublet.remote(client=platform, fabric=fabric, working_set="8KiB", initial="64KiB", increment="64KiB") as far:
        array, records = far.arange(3000), far.zeros(300, [("x", "i8"), ("y", "f8")])
        kept = [numpy.asarray(array), numpy.asarray(array[5:700:3]), array[7], list(array[:5]), array[array > 2990], array.sum(0)]
        record, each = records[3], list(records)
        expected = [numpy.array(one) for one in kept]
        # The same memory gets other elements, and other arrays.
        array[...] = -1
        records["x"] = 9
        del array, records
        for number in range(30):
            far.full(3000, number)
        for one, other in zip(kept, expected):
            numpy.testing.assert_array_equal(numpy.asarray(one), other)
        assert record["x"] == 0
        assert len(each) == 300 and all(one["x"] == 0 for one in each)


@pytest.mark.parametrize("fabric", FABRICS)
def test_keeps_arguments_of_functions_in_workers(platform, fabric):
    def keep(array):
        import builtins

        builtins.kept = getattr(builtins, "kept", []) + [array]

    def sums():
        import builtins

        return [(int(array.min()), int(array.max())) for array in builtins.kept]

    with sublet.remote(client=platform, fabric=fabric) as far, platform.lease(wait=60, fabric=fabric) as lease:
        array = far.zeros(5000, int)
        for number in range(20):
            array[...] = number
            lease.call(keep, numpy.asarray(array[::2]))
        for number in range(300):
            lease.call(len, numpy.full(2500, -1))
        assert lease.call(sums) == [(number, number) for number in range(20)]
