"""Tests that what a function or its caller keeps beyond a call stays unchanged by later calls."""

import concurrent.futures
import functools
import pickle
import sys
import threading

import numpy
import pytest

import sublet

# Small ones are copied for the function, large ones lie in the message of their call.
SIZES = [128, 1000, 20_000, 1_000_000]
# More calls than use the memory of a message again.
OTHERS = 40


@pytest.fixture(params=["shm", "tcp", "tcp+tls"])
def carried(platform, request):
    with platform.lease(fabric=request.param, memory="512MiB", wait=60) as lease:
        yield lease


def overwrite(lease, count, n=OTHERS):
    """Calls that would use the memory of an earlier one again."""
    for _ in range(n):
        assert lease.call(lambda a: float(a[-1]), numpy.full(count, 9.0)) == 9.0


def kept_messages(lease):
    """How many messages workers use, when a later call has told of those that are free."""
    lease.call(int)
    return lease._invoker.lent()


def keep(value):
    import builtins

    builtins.kept = value


def kept():
    return kept  # noqa: F821


def sum_of_kept():
    import builtins

    return float(sum(numpy.sum(part) for part in builtins.kept))


def forget():
    import builtins

    builtins.kept = None


@pytest.mark.parametrize("count", SIZES)
def test_keeps_arguments_after_call(carried, count):
    carried.call(keep, [numpy.ones(count)])
    overwrite(carried, count)
    assert carried.call(sum_of_kept) == count
    carried.call(forget)
    assert kept_messages(carried) == 0


def test_keeps_part_of_argument_after_call(carried):
    carried.call(lambda a: keep([a[10:20]]), numpy.arange(100_000.0))
    overwrite(carried, 100_000)
    assert carried.call(sum_of_kept) == sum(range(10, 20))


def test_keeps_list_and_structure_of_arrays_after_call(carried):
    records = numpy.zeros(5000, dtype=[("a", "f8"), ("b", "i4")])
    records["a"] = 1
    value = {"list": [numpy.ones(2000 + n) for n in range(20)], "records": records}
    carried.call(lambda value: keep([*value["list"], value["records"]["a"]]), value)
    overwrite(carried, 60_000)
    assert carried.call(sum_of_kept) == sum(2000 + n for n in range(20)) + 5000


def test_keeps_bare_memory_after_call(carried):
    def keep_view(memory):
        import builtins

        builtins.kept = [numpy.frombuffer(memory, "u1")]

    carried.call(keep_view, pickle.PickleBuffer(bytearray(b"\1" * 100_000)))
    overwrite(carried, 12_500)
    assert carried.call(sum_of_kept) == 100_000


def test_keeps_items_of_map(carried):
    def collect(a):
        import builtins

        builtins.kept = [*(getattr(builtins, "kept", None) or []), a]
        return len(builtins.kept)

    carried.call(forget)
    assert list(carried.map(collect, [numpy.full(3000, n) for n in range(50)])) == list(range(1, 51))
    overwrite(carried, 3000)
    assert carried.call(sum_of_kept) == 3000 * sum(range(50))


def test_keeps_arguments_in_cache(carried):
    def prepare():
        import builtins

        class Key:
            def __init__(self, number, array):
                self.number, self.array = number, array

            def __hash__(self):
                return self.number

            def __eq__(self, other):
                return self.number == other.number

        builtins.Key = Key
        builtins.cached = functools.lru_cache(lambda key: key.array)

    def ask(number, array):
        return float(cached(Key(number, array)).sum())  # noqa: F821

    carried.call(prepare)
    for number in range(20):
        assert carried.call(ask, number, numpy.full(5000, float(number))) == 5000 * number
    for number in range(20):
        assert carried.call(ask, number, numpy.full(5000, -1.0)) == 5000 * number


def test_keeps_arguments_of_thread_that_runs_on(carried):
    def begin(array):
        import builtins

        builtins.ready = threading.Event()
        builtins.sums = []

        def run():
            ready.wait()  # noqa: F821
            sums.append(float(array.sum()))  # noqa: F821

        builtins.thread = threading.Thread(target=run)
        thread.start()  # noqa: F821

    def finish():
        ready.set()  # noqa: F821
        thread.join()  # noqa: F821
        return sums[0]  # noqa: F821

    carried.call(begin, numpy.ones(50_000))
    overwrite(carried, 50_000)
    assert carried.call(finish) == 50_000


def test_caller_changes_no_kept_argument_by_its_result(carried):
    def keep_and_return(array):
        import builtins

        builtins.kept = [array]
        return array

    for count in SIZES:
        back = carried.call(keep_and_return, numpy.ones(count))
        assert back.sum() == count
        back.fill(5)
        overwrite(carried, count)
        assert carried.call(sum_of_kept) == count
        assert (back == 5).all()


def test_keeps_array_made_in_output(carried):
    def make(count):
        import builtins

        import sublet

        made = sublet.full(count, 1.0)
        builtins.kept = [made]
        return made

    for count in (2000, 7000, 200_000):
        for _ in range(3):
            back = carried.call(make, count)
            assert back.sum() == count
            back.fill(5)
        for _ in range(OTHERS):
            assert carried.call(lambda n: numpy.full(n, 9.0), count).sum() == 9 * count
        assert carried.call(sum_of_kept) == count


def test_keeps_arguments_of_call_with_large_result(carried):
    def keep_and_return_much(array):
        import builtins

        builtins.kept = [array]
        return [array, numpy.ones(3_000_000)]

    own, much = carried.call(keep_and_return_much, numpy.ones(20_000))
    own.fill(5)
    overwrite(carried, 20_000)
    assert carried.call(sum_of_kept) == 20_000 and much.sum() == 3_000_000
    carried.call(forget)
    assert kept_messages(carried) == 0


def test_keeps_arguments_of_call_that_raised(carried):
    def keep_and_raise(array):
        import builtins

        builtins.kept = [array]
        raise KeyError("after")

    with pytest.raises(KeyError):
        carried.call(keep_and_raise, numpy.ones(20_000))
    overwrite(carried, 20_000)
    assert carried.call(sum_of_kept) == 20_000
    carried.call(forget)
    assert kept_messages(carried) == 0


def test_keeps_arguments_of_calls_whose_results_are_read_late(lease):
    futures = [lease.submit(keep, [numpy.ones(20_000)]) for _ in range(10)]
    overwrite(lease, 20_000)
    assert lease.call(sum_of_kept) == 20_000
    lease.call(forget)
    # A reply that was not read yet may be the one that says which memory is free.
    concurrent.futures.wait(futures)
    # A call does not wait for those that were submitted before it and wait for free memory: one of them may be executed last.
    lease.call(forget)
    assert kept_messages(lease) == 0


def test_keeps_arguments_of_call_whose_reply_is_not_read(lease):
    from sublet._calls import CALL, FUNCTION

    lease.call(keep, [numpy.ones(20_000)])
    lease.call(forget)
    assert kept_messages(lease) == 0
    known = lease._functions.known(keep)
    parts = known.parts(known.definition, (([numpy.ones(20_000)],), {}))
    sent = lease._invoker.call(FUNCTION, CALL, parts, capacity=known.room, shares_memory=lease._invoker.shares_memory())
    assert sent.wait(60)
    del sent
    assert kept_messages(lease) == 1
    overwrite(lease, 20_000)
    assert lease.call(sum_of_kept) == 20_000


def test_argument_that_is_not_kept_keeps_no_message(carried):
    for count in SIZES:
        for _ in range(5):
            assert carried.call(lambda a: a, numpy.ones(count)).sum() == count
            assert carried._invoker.lent() == 0


def test_message_of_ended_worker_is_free(platform):
    import os

    with platform.lease(wait=60) as lease:
        lease.call(keep, [numpy.ones(20_000)])
        assert kept_messages(lease) == 1
        with pytest.raises(sublet.WorkerDied):
            lease.call(os._exit, 1)
        assert kept_messages(lease) == 0
        lease.call(keep, [numpy.ones(20_000)])
        assert kept_messages(lease) == 1
        lease.call(forget)
        assert kept_messages(lease) == 0


def test_reply_of_ended_worker_that_is_read_late_keeps_no_message(platform):
    import os

    with platform.lease(wait=60) as lease:
        lease.call(keep, [numpy.ones(20_000)])
        late = lease.submit(keep, [numpy.ones(20_000)])
        # The worker has replied to both when it replies to this.
        assert lease.call(sum_of_kept) == 20_000
        with pytest.raises(sublet.WorkerDied):
            lease.call(os._exit, 1)
        lease.call(keep, [numpy.ones(20_000)])
        assert late.result(60) is None
        assert kept_messages(lease) == 1


def test_closed_lease_keeps_no_messages(platform):
    with platform.lease(wait=60) as lease:
        lease.call(keep, [numpy.ones(20_000)])
        assert kept_messages(lease) == 1
    assert lease._invoker.lent() == 0


def test_reply_without_capacity_for_freed_messages_leaves_them_to_the_next(carried):
    from sublet._calls import ROOM

    def add(array):
        import builtins

        builtins.kept = [*(builtins.kept or []), array]

    carried.call(forget)
    for size in range(ROOM - 256, ROOM, 8):
        for _ in range(4):
            carried.call(add, numpy.ones(1000))

        # A new function's calls reserve the least capacity.
        def forget_and_return(size):
            import builtins

            builtins.kept = None
            return bytes(size)

        assert len(carried.call(forget_and_return, size)) == size
        assert kept_messages(carried) == 0, size


def test_keeps_registered_array_that_the_caller_drops(lease):
    array = sublet.full(50_000, 1.0)
    lease.call(keep, [array])
    array[0] = 2
    assert lease.call(sum_of_kept) == 50_001, "it is shared"
    del array
    others = [sublet.full(50_000, 9.0) for _ in range(OTHERS)]
    assert lease.call(sum_of_kept) == 50_001
    del others


def test_keeps_results_after_later_calls(carried):
    results = [(count, n, carried.call(numpy.full, count, float(n))) for count in SIZES for n in range(20)]
    overwrite(carried, 1_000_000, 5)
    for count, n, result in results:
        assert result.shape == (count,) and (result == n).all()
    results = list(carried.map(lambda n: numpy.full(3000, float(n)), range(50)))
    overwrite(carried, 3000)
    assert all((result == n).all() for n, result in enumerate(results))


def test_many_small_arrays_are_kept(lease):
    def add(array):
        import builtins

        builtins.kept.append(array)

    lease.call(keep, [])
    for n in range(300):
        lease.call(add, numpy.full(400, float(n)))
    assert lease.call(sum_of_kept) == 400 * sum(range(300))
    assert kept_messages(lease) == 0, "they were copied"


BYTES_PACKAGE = """
import numpy

kept = None

def keep_view(data):
    global kept
    kept = data
    return b"kept"

def keep_and_raise(data):
    global kept
    kept = data
    raise KeyError("after")

def look(data):
    try:
        return bytes(kept[:4])
    except ValueError as error:
        return str(error).encode()

def keep_array(data):
    global kept
    kept = numpy.frombuffer(data, "u1")
    return b"kept"

def keep_cycle(data):
    array = numpy.frombuffer(data, "u1")
    cycle = [array]
    cycle.append(cycle)
    return bytes(array[:4])

def keep_copy(data):
    global kept
    kept = numpy.frombuffer(bytes(data), "u1")
    return kept
"""


def test_input_of_bytes_is_taken_back_after_call(platform, tmp_path):
    functions = ("keep_view", "keep_and_raise", "look", "keep_array", "keep_cycle", "keep_copy")
    manifest = 'name = "bytes-kept"\nkind = "python"\nlibrary = "held.py"\n\n'
    manifest += "".join(f'[[function]]\nname = "{name}"\n\n' for name in functions)
    (tmp_path / "sublet.toml").write_text(manifest)
    (tmp_path / "held.py").write_text(BYTES_PACKAGE)
    with platform.lease(package=f"{tmp_path}/", wait=60) as lease:
        call = functools.partial(lease._invoker.call_bytes, output=1 << 20)

        def bytes_of(name, data):
            sent = call(name, data)
            sent.wait()
            count, buffer = sent.bytes()
            return bytes(numpy.asarray(buffer))[:count]

        assert bytes_of("keep_view", b"abcd") == b"kept"
        assert b"released memoryview" in bytes_of("look", b"efgh")
        assert bytes_of("keep_copy", b"abcd") == b"abcd"
        with pytest.raises(sublet.FunctionFailed, match="after"):
            bytes_of("keep_and_raise", b"abcd")
        assert b"released memoryview" in bytes_of("look", b"efgh")
        output = sublet.zeros(4096, "u1")
        failed = lease._invoker.call_bytes("keep_and_raise", b"abcd", output=output)
        with pytest.raises(sublet.FunctionFailed, match="after"):
            failed.wait()
            failed.bytes()
        assert not output.any(), "a failed call outside of runs writes no output"
        with pytest.raises(sublet.FunctionFailed, match=r"keep_array failed: .*copy, as bytes\(input\)"):
            bytes_of("keep_array", b"abcd")
        assert bytes_of("keep_cycle", b"abcd") == b"abcd", "garbage is collected"
        assert bytes_of("keep_copy", b"abcd") == b"abcd"
        assert bytes_of("look", b"efgh") == b"abcd"


@pytest.mark.parametrize("count", [4_093, 4_094, 4_095, 20_000])
def test_takes_any_number_of_small_arrays(lease, count):
    arrays = [numpy.full(128, float(n)) for n in range(count)]
    assert lease.call(lambda arrays: sum(float(a[-1]) for a in arrays), arrays) == sum(range(count))
    back = lease.call(lambda arrays: arrays[::-1], arrays)
    assert [a[0] for a in back] == list(range(count))[::-1]
    made = lease.call(lambda count: {n: numpy.full(128, float(n)) for n in range(count)}, count)
    assert len(made) == count and all(made[n][127] == n for n in range(count))


def test_rejects_more_registered_arrays_than_a_message_takes(lease):
    from sublet._calls import CALL, FUNCTION

    most, array = (1 << 20) - 2, sublet.zeros(1)
    with pytest.raises(sublet.Error, match=f"have {most + 1} registered arrays, at most {most} are taken"):
        lease._invoker.call(FUNCTION, CALL, [b"", b"", *[array] * (most + 1)], shares_memory=True)


def test_rejects_result_of_more_buffers_than_a_message_takes(lease):
    def return_too_many():
        worker = sys.modules["sublet_worker"]
        usual = worker.dump

        def dump(value):
            worker.dump = usual
            return [b""] * ((1 << 20) + 1)

        worker.dump = dump

    most = (1 << 20) - 1
    with pytest.raises(sublet.FunctionFailed, match=f"ValueError: the result of the call has {most + 1} buffers, at most {most} are returned"):
        lease.call(return_too_many)
    assert lease.call(len, [1]) == 1, "the worker continues"


def test_takes_ragged_array_of_objects(lease):
    ragged = numpy.array([numpy.ones(n % 500) for n in range(5_000)], dtype=object)
    back = lease.call(lambda a: a, ragged)
    assert [len(a) for a in back] == [len(a) for a in ragged]
    assert sum(a.sum() for a in back) == sum(a.sum() for a in ragged)


def test_pieces_beyond_the_most_of_a_message_are_joined(lease, monkeypatch):
    from sublet import _calls

    monkeypatch.setattr(_calls, "MOST_APART", 10)
    arrays = [numpy.full(1000, float(n)) for n in range(50)]
    assert len(_calls._dump(arrays, pickle.dumps)) == 11, "the pickle and ten pieces"

    def lower_most_and_dump(arrays):
        sys.modules["sublet_worker"].MOST_APART = 10
        return len(sys.modules["sublet_worker"].dump(arrays))

    assert lease.call(lower_most_and_dump, arrays) == 11
    back = lease.call(lambda arrays: [a + 1 for a in arrays], arrays)
    assert all((a == n + 1).all() for n, a in enumerate(back))
