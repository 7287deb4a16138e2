"""Memory components."""

import gc
import os
import subprocess
import sys

import numpy
import pytest

import sublet
from waiting import with_growing_time

MIB = 1 << 20


def component(platform, fabric, **more):
    return platform.memory(MIB, MIB, 8 * MIB, fabric=fabric, **more)


@pytest.fixture(params=["shm", "tcp", "tcp+tls"])
def memory(platform, request):
    with component(platform, request.param) as memory:
        yield memory


def test_it_grows_and_is_given_back(memory):
    assert (memory.nbytes, memory.capacity, memory.leases) == (0, 0, [])
    data = os.urandom(2 * MIB + 5)
    memory.write(0, data)
    assert (memory.nbytes, memory.capacity) == (len(data), 3 * MIB)
    assert memory.read() == data and memory.read(MIB - 1, 3) == data[MIB - 1 : MIB + 2]
    assert [lease["memory_bytes"] for lease in memory.leases] == [MIB] * 3
    memory.resize(10)
    assert (memory.read(), memory.capacity) == (data[:10], MIB)
    memory.resize(MIB + 1)
    assert memory.read(8) == data[8:10] + bytes(MIB - 9)
    memory.renew(60)
    assert repr(memory) == f"<sublet memory of {MIB + 1} bytes, {2 * MIB} leased>"
    memory.release()
    memory.release()
    assert all(lease["usage"]["allocated_ns"] > 0 for lease in memory.leases) and len(memory.leases) == 2
    assert repr(memory) == "<sublet memory: released>"
    for use in (lambda: memory.nbytes, memory.read, memory.sync, lambda: memory.write(0, b"x"), lambda: memory.array(1)):
        with pytest.raises(sublet.LeaseEnded, match="released"):
            use()


def test_any_buffer_goes_in_and_out(memory):
    values = numpy.arange(300_000, dtype="f4")
    memory.write(0, values)
    back = numpy.empty_like(values)
    memory.read_into(0, back)
    assert (back == values).all()
    memory.write(4, memoryview(b"abcd"))
    part = bytearray(4)
    memory.read_into(4, part)
    assert part == b"abcd"
    memory.write(0, b"")
    for wrong in ("text", values[::2], 5):
        with pytest.raises((TypeError, BufferError, ValueError)):
            memory.write(0, wrong)
    with pytest.raises((TypeError, BufferError, ValueError)):
        memory.read_into(0, b"read-only")


def test_what_is_begun_comes(memory):
    data = os.urandom(MIB)
    memory.write_async(0, data)
    memory.sync()
    memory.prefetch(0, MIB)
    begun = [memory.read_async(at, 10_000) for at in range(0, 1_000_000, 10_000)]
    assert b"".join(reading.result() for reading in begun) == data[:1_000_000]
    with pytest.raises(sublet.InvalidArgument, match="taken"):
        begun[0].result()
    # This one is dropped without a wait.
    memory.read_async(0, MIB)


def test_arrays_lie_in_it_and_keep_it(platform):
    with component(platform, "shm") as memory:
        values = memory.array((512, 512), "f4", offset=4096)
        assert memory.nbytes == 4096 + MIB and (values == 0).all()
        values[:] = 7
        assert memory.read(4096, 4) == numpy.float32(7).tobytes()
        memory.write(4096, numpy.float32(8))
        assert values[0, 0] == 8
        last = values[-1]
        del values
        gc.collect()
        for use in (memory.release, lambda: memory.resize(4096)):
            with pytest.raises(sublet.InvalidArgument, match="1 arrays lie in"):
                use()
        # Longer it may become.
        memory.resize(3 * MIB)
        assert last[-1] == 7
        del last
        gc.collect()
        memory.resize(4096)
        assert memory.capacity == MIB
        with pytest.raises(ValueError, match="object"):
            memory.array(4, object)
    kept = component(platform, "shm").array(4, "i8")
    gc.collect()
    kept[:] = 5
    assert kept.sum() == 20


def test_what_is_elsewhere_has_no_arrays(platform):
    with component(platform, "tcp") as memory:
        with pytest.raises(sublet.Error, match="another machine"):
            memory.array(4)


def test_what_makes_no_sense_is_named(platform, memory):
    memory.write(0, b"abc")
    for offset, nbytes in [(0, 4), (3, 1), (1 << 62, 1 << 62), (2**64 - 1, 1)]:
        for use in (memory.read, memory.read_async):
            with pytest.raises(sublet.InvalidArgument, match="3 bytes"):
                use(offset, nbytes)
    with pytest.raises(sublet.Error, match=str(8 * MIB)):
        memory.write(8 * MIB - 1, b"ab")
    # A write that does not fit as a whole is not done in part.
    with pytest.raises(sublet.Error, match=str(8 * MIB)):
        memory.write(8 * MIB - 600_000, bytes(700_000))
    assert memory.nbytes == 3
    for negative in (lambda: memory.read(-1, 1), lambda: memory.read(0, -1), lambda: memory.resize(-1)):
        with pytest.raises(OverflowError):
            negative()
    for options in (
        {"initial": 0},
        {"increment": "lots"},
        {"line": 100},
        {"cache": 4096},
        {"timeout": -1},
        {"fabric": "homing pigeon"},
        {"pool": "puddle"},
    ):
        with pytest.raises(sublet.InvalidArgument):
            platform.memory(**options)
    with pytest.raises(sublet.InvalidArgument, match="puddle"):
        platform.lease(pool="puddle")


def test_memory_of_a_pool_is_on_a_node_of_it(platform):
    had, refused = [], []
    for pool in ("compute", "memory", "balanced"):
        with platform.memory(MIB, MIB, pool=pool) as memory:
            try:
                memory.write(0, b"abc")
                had.append(pool)
            except sublet.Error as error:
                assert f"{pool} pool" in str(error)
                refused.append(pool)
    # The one node is in one of them.
    assert len(had) == 1 and len(refused) == 2


def test_reports_the_end_of_the_lease(platform):
    def is_written_before_its_end(seconds):
        with component(platform, "shm", timeout=seconds) as memory:
            try:
                memory.write(0, b"abc")
                memory.read(0, 3)
            except sublet.LeaseEnded:
                return None
            with pytest.raises(sublet.LeaseEnded):
                while memory.read(0, 3):
                    pass
        assert memory.leases == []
        return True

    assert with_growing_time(0.3, is_written_before_its_end)


@pytest.mark.skipif(sys.platform != "linux", reason="it forks")
def test_a_child_that_was_forked_leaves_its_parents_memory_alone(platform):
    with component(platform, "shm") as memory:
        memory.write(0, b"abc")
        child = os.fork()
        if child == 0:
            try:
                memory.read()
            except sublet.Error as error:
                os._exit(0 if "forked" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert memory.read() == b"abc"


def test_the_default_client_has_memory_too(platform):
    with sublet.memory(limit="1MiB", near=["nowhere"]) as memory:
        memory.write(0, b"abc")
        assert memory.read() == b"abc"


def test_default_limit_fits_a_limit_of_address_space(platform):
    text = """
import resource, sys
import sublet
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
with sublet.Client(sys.argv[1]).memory() as memory:
    memory.write(0, b"x")
    assert memory.read(0, 1) == b"x"
"""
    subprocess.run([sys.executable, "-c", text, platform.managers], check=True, timeout=600)
