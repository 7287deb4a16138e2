"""Functions that are not in Python, called with arrays."""

import shutil
import signal
import subprocess

import numpy
import pytest

import sublet
from waiting import interrupt_when_executing

SOURCE = """
#include <stdint.h>
#include <string.h>

uint32_t echo(void *in, uint32_t size, void *out) { memcpy(out, in, size); return size; }

uint32_t twice(void *in, uint32_t size, void *out) {
    for (uint32_t i = 0; i < size / 8; i++) ((double *)out)[i] = 2 * ((double *)in)[i];
    return size / 8 * 8;
}

#include <unistd.h>
uint32_t held(void *in, uint32_t size, void *out) {
    volatile double *flags = in;
    flags[0] = 1;
    while (flags[1] == 0) usleep(1000);
    return 0;
}

uint32_t crash(void *in, uint32_t size, void *out) { *(volatile int *)0 = 1; return 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or pytest.skip("no C compiler is here")
    folder = tmp_path_factory.mktemp("native")
    (folder / "libtwice.c").write_text(SOURCE)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", folder / "libtwice.so", folder / "libtwice.c"], check=True)
    return folder / "libtwice.so"


@pytest.fixture
def native(platform, library):
    with platform.lease(package=library, wait=60) as lease:
        yield lease


def test_arrays_go_in_and_out(native):
    assert set(native.functions) == {"echo", "twice", "held", "crash"}
    for make in (numpy.arange, lambda n: sublet.array(numpy.arange(float(n)))):
        value, out = make(1000.0 if make is numpy.arange else 1000), numpy.zeros(1000)
        assert native.call("twice", value, out=out) is out
        assert numpy.array_equal(out, 2 * value)


def test_a_registered_array_may_be_both(native):
    value = sublet.array(numpy.arange(100_000.0))
    assert native.call("twice", value, out=value) is value
    assert value[-1] == 2 * 99_999


def test_bytes_come_back_where_no_place_is_said(native):
    assert native.call("echo", b"hello") == b"hello"
    assert native.call("echo", bytearray(b"x" * 1000), out=1000) == b"x" * 1000
    assert native.call("echo") == b""
    assert native.call("echo", numpy.zeros(0)) == b""
    read_only = numpy.arange(3)
    read_only.flags.writeable = False
    assert native.call("echo", read_only) == read_only.tobytes()


def test_large_arrays_that_are_not_registered_are_copied(native):
    value, out = numpy.arange(1_000_000.0), numpy.zeros(1_000_000)
    assert native.call("twice", value, out=out) is out
    assert numpy.array_equal(out, 2 * value)


def test_a_lease_may_be_kept_from_registered_arrays(platform, library):
    array, out = sublet.array(numpy.arange(1000.0)), sublet.zeros(1000)
    with platform.lease(package=library, share_arrays=False, wait=60) as lease:
        lease.call("twice", array, out=out)
    assert numpy.array_equal(out, 2 * array)


def test_callables_are_not_called_there(native):
    with pytest.raises(TypeError, match="by their names"):
        native.call(len, b"")


def test_an_interrupt_does_not_wait_for_the_function(native):
    # A process that a shell has started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    flags = sublet.zeros(2)
    try:
        interrupt_when_executing(flags)
        # The function returns only after the second flag is set.
        with pytest.raises(KeyboardInterrupt):
            native.call("held", flags)
    finally:
        signal.signal(signal.SIGINT, before)
    flags[1] = 1
    assert native.call("echo", b"after") == b"after"


def test_futures_and_maps(native):
    futures = [native.submit("echo", bytes([n])) for n in range(50)]
    assert [future.result() for future in futures] == [bytes([n]) for n in range(50)]
    assert list(native.map("echo", [b"a", b"b"])) == [b"a", b"b"]


@pytest.mark.parametrize(
    "value, named",
    [
        (numpy.arange(100.0)[::2], "contiguous"),
        (numpy.arange(10, dtype=">f8"), "byte order is not native"),
        (numpy.array([1, "a"], dtype=object), "objects"),
    ],
)
def test_arrays_that_only_python_can_read_are_refused(native, value, named):
    with pytest.raises(sublet.InvalidArgument, match=named):
        native.call("twice", value)
    with pytest.raises(sublet.InvalidArgument, match=named):
        native.submit("twice", b"", out=value)


def test_what_cannot_be_is_named(native):
    read_only = numpy.zeros(3)
    read_only.flags.writeable = False
    with pytest.raises(sublet.InvalidArgument, match="read-only"):
        native.call("twice", b"", out=read_only)
    for read_only in (b"abcd", memoryview(b"abcd")):
        with pytest.raises(BufferError):
            native.call("echo", b"1234", out=read_only)
        assert bytes(read_only) == b"abcd"
    with pytest.raises(sublet.Error, match="4 bytes.*3"):
        native.call("echo", b"1234", out=3)
    with pytest.raises(TypeError, match="one positional argument"):
        native.call("echo", b"1", b"2")
    with pytest.raises(sublet.Error, match="absent"):
        native.call("absent", b"")
    with pytest.raises(TypeError):
        native.call("echo", 5)
    with pytest.raises(sublet.WorkerDied, match="SIGSEGV"):
        native.call("crash", b"")
    assert native.call("echo", b"on") == b"on"


def test_lazy_map(native):
    taken = []

    def items():
        for n in range(256):
            taken.append(n)
            yield bytes([n])

    results = native.map("echo", items(), buffersize=3)
    assert len(taken) == 3
    assert [next(results) for _ in range(20)] == [bytes([n]) for n in range(20)]
    assert len(taken) <= 23
    results.close()
    assert list(results) == [] and not results._reading.job.chunks, "a closed map keeps its calls"
