"""Tests the messages of errors that a value of the caller or of a function causes."""

import functools
import threading

import pytest

import sublet


def test_a_memory_error_names_the_limit(platform):
    with platform.lease(memory="128MiB", wait=60) as lease:
        with pytest.raises(MemoryError, match=r"more memory than the \d+ MiB of its worker: raise lease\(memory="):
            lease.call(lambda: len(bytearray(1 << 34)))


@pytest.mark.parametrize("how", [lambda value: value, lambda value: [value], lambda value: {"a": (value,)}], ids=["itself", "list", "dict"])
def test_handles_in_arguments_are_named(platform, lease, how):
    memory, executor = platform.memory(), sublet.Executor(1, client=platform, wait=60)
    for handle, named in [
        (lease, "a lease belongs to the process"),
        (lease.options(retries=1), "a lease belongs to the process"),
        (platform, "a client belongs to the process"),
        (executor, "an executor belongs to the process"),
        (memory, "a memory component belongs to the process"),
    ]:
        with pytest.raises(TypeError, match=f"an argument cannot be sent to a worker: {named}"):
            lease.call(len, how(handle))
        with pytest.raises(TypeError, match=f"cannot be sent to a worker: {named}"):
            lease.submit(len, how(handle)).result(60)
    executor.shutdown()
    with pytest.raises(TypeError, match="an argument cannot be sent to a worker: a future belongs to the process"):
        lease.call(len, how(lease.submit(abs, 1)))


def test_handles_that_a_function_refers_to_are_named(lease):
    def calls():
        return lease.call(abs, 1)

    with pytest.raises(TypeError, match="the function .*calls cannot be sent to a worker: a lease belongs to the process"):
        lease.call(calls)


def test_a_result_that_cannot_be_pickled_is_named(lease):
    with pytest.raises(TypeError, match="the result, of type lock, cannot be sent to the caller: .*lock"):
        lease.call(threading.Lock)
    with pytest.raises(TypeError, match="the result, of type list, cannot be sent to the caller: .*lock"):
        lease.submit(lambda: [threading.Lock()]).result(60)
    assert lease.call(abs, -1) == 1


def test_a_map_gives_the_results_before_one_that_cannot_be_pickled(lease):
    results, got = lease.map(lambda n: threading.Lock() if n == 3 else n, range(6), chunksize=6), []
    with pytest.raises(TypeError, match="the result, of type lock, cannot be sent to the caller"):
        for result in results:
            got.append(result)
    assert got == [0, 1, 2]


def test_functions_with_a_cache_are_called(lease):
    space = {"__name__": "__main__", "__builtins__": __builtins__, "functools": functools}
    exec(
        "executed = []\n"
        "@functools.lru_cache(maxsize=100)\n"
        "def fibonacci(n):\n"
        "    executed.append(n)\n"
        "    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n"
        "def info():\n"
        "    return fibonacci.cache_info().maxsize\n",
        space,
    )
    assert lease.call(space["fibonacci"], 60) == 1548008755920
    assert lease.call(space["info"]) == 100
    assert list(lease.map(space["fibonacci"], range(5))) == [0, 1, 1, 2, 3]
    # The cache is kept between calls, by the worker.
    space["executed"].clear()
    counted = "import time\n@functools.cache\ndef stamp(n):\n    return time.monotonic_ns()\n"
    exec(counted, space)
    assert lease.call(space["stamp"], 1) == lease.call(space["stamp"], 1)


def test_a_lease_within_a_function_is_refused_clearly(lease):
    def leases():
        import sublet

        with sublet.lease() as lease:
            return lease.call(abs, 1)

    with pytest.raises((AttributeError, sublet.InvalidArgument), match="lease from the program that calls"):
        lease.call(leases)


def test_package_on_a_worker_without_sublet_says_where_to_lease():
    from sublet import _inside

    with pytest.raises(AttributeError, match="has no attribute 'lease' on a worker.*: lease from the program that calls"):
        _inside.lease
