"""Workers as global processes: FIFOs between them, and who may use which."""

import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest

import sublet
from sublet import _modules, _package, xpu

ROOT = Path(__file__).resolve().parent.parent.parent
# Sizes of messages: for a line, for a slot, for several slots, and for a whole ring.
SIZES = (0, 1, 40, 41, 4096, 4097, 8184, 49_152)


def ends():
    """Returns the ends that this worker keeps from call to call."""
    import builtins

    return builtins.__dict__.setdefault("kept_ends", {})


def make(name=None, **shape):
    ends()["reader"] = xpu.fifo(name, **shape)
    return ends()["reader"].object


def allow(pid, rights):
    xpu.grant(pid, ends()["reader"], rights)


def forbid(pid, rights):
    xpu.revoke(pid, ends()["reader"], rights)


def join(to, timeout=180):
    ends()["writer"] = xpu.connect(to, timeout)


def say(message, timeout=180):
    ends()["writer"].write(message, timeout)


def hear(timeout=180):
    return ends()["reader"].read(timeout)


def shut(end):
    ends().pop(end).close()


@pytest.fixture
def one(platform):
    with platform.lease(wait=60) as lease:
        yield lease


@pytest.fixture
def two(platform):
    with platform.lease(wait=60) as lease:
        yield lease


@pytest.fixture
def pair(one, two):
    """Two workers, of which the second writes to the first; and the FIFO."""
    made = one.call(make)
    one.call(allow, two.call(xpu.pid), xpu.WRITE)
    two.call(join, made)
    return one, two, made


def test_messages_of_all_sizes_pass_and_say_whose_they_are(platform, one, two):
    writer = two.call(xpu.pid)
    assert type(writer) is xpu.Pid and writer != one.call(xpu.pid)
    assert str(writer) == f"{writer >> 32:x}:{writer & 0xFFFFFFFF:x}" == f"{writer}"
    assert writer.pu in {unit.id for unit in platform.pus()}
    made = one.call(make, "frames")
    assert made.pu == writer.pu and xpu.GlobalId(made) == made
    one.call(allow, writer, xpu.WRITE)
    two.call(join, "frames")
    for size in SIZES:
        message = os.urandom(size)
        two.call(say, message)
        read = one.call(hear)
        assert read == (message, writer) and [type(part) for part in read] == [bytes, xpu.Pid]
    with pytest.raises(sublet.InvalidArgument, match="49153 bytes"):
        two.call(say, bytes(49_153))


def test_a_device_is_found_by_its_name_beside_its_processor(platform, one):
    units = {unit.name: unit.id for unit in platform.pus()}
    [own, *linked] = one.call(xpu.units)
    assert own in units.values() and linked == []
    assert one.call(xpu.find, "cpu") == own
    with pytest.raises(sublet.AgentUnreachable, match="unit of kind 'dpu'|unit of kind \"dpu\""):
        one.call(xpu.find, "dpu")
    for name, found in units.items():
        device = name.rpartition("/")[2]
        if device != "cpu":
            assert one.call(xpu.device, device) == one.call(xpu.device, device, own) == found
    for wrong in ("cuda77", "cpu", ""):
        with pytest.raises(sublet.InvalidArgument, match=f'no device "{wrong}"'):
            one.call(xpu.device, wrong)
    with pytest.raises(sublet.AgentUnreachable, match="no neighbour"):
        one.call(xpu.device, "opencl0", own ^ 1)


def of_another_package():
    deadline = time.monotonic() + 180
    while True:
        try:
            return xpu.Executor(xpu.units()[0], package="libshift")
        except sublet.NoCapacity:
            # The core of a lease that has ended is lent again when its agent has said so.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def in_another_language(function, data):
    with of_another_package() as native:
        return native.call(function, data)


def kept_there(data):
    with of_another_package() as native:
        assert native.call("shift|@word", data) == b""
        return native.call("@word|shift"), native.call("@word")


def test_a_function_that_was_sent_has_those_of_a_package_in_c_executed(platform, one, tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler is here")
    source, library = tmp_path / "libshift.c", tmp_path / "libshift.so"
    source.write_text(
        "unsigned shift(const unsigned char *in, unsigned size, unsigned char *out) {\n"
        "    for (unsigned at = 0; at < size; at++) out[at] = in[at] + 1;\n"
        "    return size;\n"
        "}\n"
    )
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    with platform.lease(package=library, wait=60):
        pass
    assert one.call(in_another_language, "shift", b"HAL") == b"IBM"
    assert one.call(kept_there, b"HAL") == (b"JCN", b"IBM")
    with pytest.raises(sublet.Error, match='no function "lift"'):
        one.call(in_another_language, "lift", b"")


def link(graph, timeout):
    deadline = time.monotonic() + timeout
    while True:
        try:
            ends()["chain"] = xpu.Chain(graph)
            return ends()["chain"].pids
        except sublet.NoCapacity:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def call_chain(data, timeout=180):
    return ends()["chain"].call(data, timeout)


def test_a_graph_of_functions_in_c_is_called(platform, one, tmp_path):
    compiler = shutil.which("cc") or pytest.skip("no C compiler is here")
    source, library = tmp_path / "libcases.c", tmp_path / "libcases.so"
    body = "for (unsigned at = 0; at < size; at++) out[at] = in[at] {}; return size;"
    parameters = "(const unsigned char *in, unsigned size, unsigned char *out)"
    functions = {"same": "", "lower": "| 32", "next": "+ 1"}
    source.write_text("".join(f"unsigned {name}{parameters} {{ {body.format(how)} }}\n" for name, how in functions.items()))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    with platform.lease(package=library, wait=60):
        pass
    component = {"type": "compute", "package": "libcases"}
    graph = {
        "version": 1,
        "name": "cases",
        "components": [
            {**component, "name": "same", "function": "same", "entry": True},
            {**component, "name": "lower", "function": "lower"},
            {**component, "name": "next", "function": "next"},
        ],
        "edges": [
            {"type": "trigger", "from": "same", "to": "lower", "when": "A"},
            {"type": "trigger", "from": "same", "to": "next", "otherwise": True},
        ],
    }
    pids = one.call(link, graph, 20)
    assert len(pids) == 3 and {pid.pu for pid in pids} == {one.call(xpu.pid).pu}
    assert one.call(call_chain, b"ABC") == b"abc"
    assert one.call(call_chain, bytearray(b"HAL")) == b"IBM"
    with pytest.raises(sublet.Error, match="70000 bytes of input"):
        one.call(call_chain, bytes(70_000))
    assert one.call(call_chain, b"A") == b"a"
    one.call(shut, "chain")
    with pytest.raises(sublet.InvalidArgument, match=r"components\[1\].function"):
        one.call(link, {**graph, "components": [graph["components"][0], {**component, "name": "lower"}]}, 0)


def test_ids_come_back_from_pickles_and_are_numbers():
    pid = xpu.Pid(0x5F3A90C1 << 32 | 7)
    assert (pid.pu, pid.local, str(pid)) == (0x5F3A90C1, 7, "5f3a90c1:7")
    assert repr(pid) == "<sublet Pid 5f3a90c1:7>" and repr(xpu.GlobalId(pid)) == "<sublet GlobalId 5f3a90c1:7>"
    back = pickle.loads(pickle.dumps(pid))
    assert back == pid == int(pid) and type(back) is xpu.Pid


def write_array(rows):
    frame = numpy.arange(rows * 4.0).reshape(rows, 4)
    for part in (frame, memoryview(frame)[1:3], bytearray(b"abc"), frame[0].astype("f4")):
        ends()["writer"].write(part)
    for wrong in (frame[:, 0], "text", 5):
        try:
            ends()["writer"].write(wrong)
        except (TypeError, BufferError, ValueError):
            continue
        raise AssertionError(f"{type(wrong)} was written")


def read_arrays(rows):
    reader, frame = ends()["reader"], numpy.zeros((rows, 4))
    count, writer = reader.read_into(frame, timeout=180)
    assert count == frame.nbytes and type(writer) is xpu.Pid
    part = numpy.zeros((3, 4))
    count, _ = reader.read_into(part, timeout=180)
    assert count == 64 and (part[:2] == frame[1:3]).all() and (part[2] == 0).all()
    short = bytearray(2)
    for _ in range(2):
        try:
            reader.read_into(short, timeout=180)
        except sublet.Error as error:
            assert error.code == "output_too_large" and "3 bytes" in str(error) and "not fit into 2" in str(error)
        else:
            raise AssertionError("the message did fit")
    assert short == b"\0\0" and reader.read(timeout=180)[0] == b"abc"
    assert numpy.frombuffer(reader.read(timeout=180)[0], "f4").tolist() == [0, 1, 2, 3]
    try:
        reader.read_into(b"read-only", timeout=0)
    except (TypeError, BufferError):
        return float(frame.sum())


def test_any_buffer_is_written_and_read_into(one, two):
    rows = 10_000
    made = one.call(make, slot_bytes=1 << 16)
    one.call(allow, two.call(xpu.pid), xpu.WRITE)
    two.call(join, made)
    reading = one.submit(read_arrays, rows)
    two.call(write_array, rows)
    assert reading.result() == numpy.arange(rows * 4.0).sum()


def test_rights_are_granted_and_revoked_by_who_owns_a_fifo(one, two):
    made, writer = one.call(make, "owned"), two.call(xpu.pid)
    assert one.call(xpu.rights, made) == xpu.READ | xpu.WRITE | xpu.OWN and two.call(xpu.rights, made) == xpu.Rights(0)
    for use in (lambda: two.call(join, "owned"), lambda: two.call(join, made)):
        with pytest.raises(sublet.PermissionDenied, match="no right to write"):
            use()
    with pytest.raises(sublet.PermissionDenied, match="no right to own"):
        two.call(xpu.grant, writer, made, xpu.WRITE)
    with pytest.raises(sublet.InvalidArgument, match="there is no FIFO"):
        two.call(join, "owner")
    for pid, rights, match in ((writer, 8, "no rights 0x8"), (writer + 1000, xpu.READ, "no process")):
        with pytest.raises(sublet.InvalidArgument, match=match):
            one.call(allow, pid, rights)
    with pytest.raises(sublet.AgentUnreachable, match="no neighbour"):
        one.call(allow, 5 << 32 | 1, xpu.READ)
    one.call(allow, writer, xpu.WRITE | xpu.OWN)
    granted = two.call(xpu.rights, made)
    assert granted == xpu.WRITE | xpu.OWN and type(granted) is xpu.Rights
    two.call(join, "owned")
    two.call(say, b"unread")
    one.call(forbid, writer, xpu.WRITE)
    with pytest.raises(TimeoutError, match="no process has written"):
        one.call(hear, 0)
    with pytest.raises(sublet.PermissionDenied, match="was revoked"):
        two.call(say, b"late")
    # Who may own it grants itself what it lacks.
    two.call(xpu.grant, writer, made, xpu.WRITE)
    two.call(join, made)
    two.call(say, b"again")
    assert one.call(hear) == (b"again", writer)
    with pytest.raises(sublet.Error, match="is taken") as taken:
        two.call(make, "owned")
    assert taken.value.code == "already_allocated"
    two.call(xpu.revoke, one.call(xpu.pid), made, xpu.READ)
    with pytest.raises(sublet.PermissionDenied, match="right to read FIFO .* was revoked"):
        one.call(hear)


def read_on(name):
    with xpu.connect_to_read(name, timeout=180) as reader:
        return reader.read(timeout=180)


def test_a_reader_may_follow_another_and_when_there_is_none_writers_learn_it(pair):
    one, two, made = pair
    two.call(say, b"read")
    assert one.call(hear)[0] == b"read"
    one.call(shut, "reader")
    with pytest.raises(sublet.LeaseEnded, match="has no reader"):
        two.call(say, b"unread")
    with pytest.raises(sublet.InvalidArgument, match="there is no FIFO"):
        two.call(join, made)
    two.call(make, "handed on")
    two.call(allow, one.call(xpu.pid), xpu.READ | xpu.WRITE)
    with pytest.raises(sublet.Error, match="reads FIFO") as read:
        one.call(read_on, "handed on")
    assert read.value.code == "already_allocated"
    two.call(shut, "reader")
    reading = one.submit(read_on, "handed on")
    two.call(join, "handed on")
    two.call(say, b"to the second")
    assert reading.result() == (b"to the second", two.call(xpu.pid))


def fill():
    for count in range(100):
        try:
            ends()["writer"].write(bytes(4096), timeout=0.1)
        except sublet.DeadlineExceeded as error:
            assert isinstance(error, TimeoutError) and "stays full" in str(error)
            return count


def test_a_full_fifo_takes_nothing_until_it_is_read(pair):
    one, two, _ = pair
    assert two.call(fill) == 16
    for _ in range(16):
        assert one.call(hear, 0)[0] == bytes(4096)
    with pytest.raises(TimeoutError, match="no process has written"):
        one.call(hear, 0.1)
    two.call(say, b"after", 0)
    assert one.call(hear)[0] == b"after"


def close_twice():
    told = []
    with xpu.fifo("closed") as reader:
        xpu.grant(xpu.pid(), reader, xpu.WRITE)
        assert repr(reader) == f"<sublet reader of FIFO {reader.object}>" and not reader.closed
        with xpu.connect("closed", timeout=180) as writer:
            writer.write(b"x")
        writer.close()
        assert reader.read(timeout=0) == (b"x", xpu.pid())
    reader.close()
    assert reader.closed and writer.closed and repr(writer) == f"<sublet writer of FIFO {writer.object}: closed>"
    for use in (reader.read, lambda: reader.read_into(bytearray(4), timeout=0), lambda: writer.write(b"")):
        try:
            use()
        except sublet.InvalidArgument as error:
            told.append(str(error))
    assert told == [f"this end of FIFO {reader.object} was closed"] * 3
    # The name is free, and a FIFO without references is closed.
    for _ in range(300):
        xpu.fifo("closed")


def test_an_end_is_closed_once_and_not_used_afterwards(one):
    one.call(close_twice)


def interrupted():
    import signal

    def handler(*_):
        raise KeyboardInterrupt("so it is")

    signal.signal(signal.SIGALRM, handler)
    with xpu.fifo() as reader:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            reader.read()
        except KeyboardInterrupt as error:
            # It is as good as before.
            try:
                reader.read(timeout=0)
            except TimeoutError:
                return str(error)


def test_who_waits_is_interrupted_by_signals(one):
    assert one.options(timeout=180).call(interrupted) == "so it is"


def wait_beside():
    import threading

    told, began = [], threading.Event()
    reader = xpu.fifo()

    def wait():
        began.set()
        try:
            reader.read()
        except sublet.InvalidArgument as error:
            told.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    # Others execute meanwhile, and wait for the end no longer than they say.
    for _ in range(2):
        try:
            reader.read(timeout=0.1)
        except TimeoutError as error:
            told.append(str(error))
    reader.close()
    thread.join()
    return told


def test_an_end_is_one_threads_and_when_it_is_closed_that_one_learns_it(one):
    told = one.options(timeout=180).call(wait_beside)
    assert "was closed" in told.pop()
    assert len(told) == 2 and all("another thread uses" in text or "no process has written" in text for text in told)


def test_a_worker_that_waits_for_too_long_is_replaced(one):
    one.call(make)
    before = one.call(xpu.pid)
    with pytest.raises(sublet.DeadlineExceeded):
        one.options(timeout=0.5).call(hear, None)
    assert one.call(xpu.pid) != before


def fork(begun):
    import gc

    if begun:
        reader = xpu.fifo("forked")
    child = os.fork()
    if child == 0:
        try:
            uses = [xpu.pid, xpu.fifo]
            if begun:
                uses += [lambda: reader.read(timeout=0), reader.close]
            told = 0
            for use in uses:
                try:
                    use()
                except sublet.InvalidArgument as error:
                    told += "was forked" in str(error)
            if begun:
                del reader, use, uses
                gc.collect()
            os._exit(told)
        finally:
            os._exit(100)
    status = os.waitpid(child, 0)[1]
    if begun:
        # The end still exists, and belongs to this process only.
        xpu.grant(xpu.pid(), reader, xpu.WRITE)
        with xpu.connect("forked", timeout=180) as writer:
            writer.write(b"x")
        assert reader.read(timeout=180)[0] == b"x"
    return status >> 8


def test_a_child_that_a_function_forks_has_nothing_of_its_parents(one):
    assert one.call(fork, False) == 2
    assert one.call(fork, True) == 4
    assert one.call(xpu.pid) == one.call(xpu.pid)


def test_what_makes_no_sense_is_named(one):
    for options, match in (
        ({"slots": 3}, "power of two"),
        ({"slot_bytes": 100}, "pages"),
        ({"slots": 1024, "slot_bytes": 1 << 20}, "more than"),
        ({"name": "two\nlines"}, "character"),
        ({"name": "x" * 129}, "129 bytes"),
    ):
        with pytest.raises(sublet.InvalidArgument, match=match):
            one.call(make, **options)
    one.call(make)
    for timeout in (-1, float("nan")):
        with pytest.raises(sublet.InvalidArgument, match="no time to wait"):
            one.call(hear, timeout)
    for negative in (lambda: one.call(xpu.rights, -1), lambda: one.call(join, 1 << 64), lambda: one.call(make, slots=-1)):
        with pytest.raises(OverflowError):
            negative()
    with pytest.raises(TypeError):
        one.call(join, 1.5)


def test_outside_of_a_function_there_is_none():
    for use in (
        xpu.pid,
        xpu.fifo,
        lambda: xpu.connect("frames"),
        lambda: xpu.connect_to_read("frames"),
        lambda: xpu.grant(1, 2, xpu.READ),
        lambda: xpu.revoke(1, 2, xpu.READ),
        lambda: xpu.rights(1),
    ):
        with pytest.raises(sublet.InvalidArgument, match="was not started by an agent"):
            use()


def test_interpreters_without_the_package_get_this_part_of_it(tmp_path):
    _package.write(tmp_path, (), _modules.Selection())
    program = """
import sys
sys.path.append(sys.argv[1])
from sublet import xpu
try:
    xpu.pid()
except ValueError as error:
    print(type(error).__name__, error)
"""
    # Without its environment's packages.
    command = [sys.executable, "-I", "-S", "-c", program, tmp_path / "fallback"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.startswith("InvalidArgument") and "was not started by an agent" in told


@pytest.fixture
def native(platform, tmp_path):
    """A worker of `tests/functions/neighbours.c`."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler is here")
    library = tmp_path / "libneighbours.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, ROOT / "tests/functions/neighbours.c"], check=True)
    with platform.lease(package=library, wait=60) as lease:
        yield lease


def words(*numbers):
    return numpy.array(numbers, "<u8").tobytes()


def test_functions_in_python_and_in_c_exchange_messages(one, native):
    mine, its = one.call(xpu.pid), int.from_bytes(native.call("pid"), "little")
    one.call(make, "to python")
    one.call(allow, its, xpu.WRITE)
    to_python = native.call("join", b"to python")
    theirs, fd = numpy.frombuffer(native.call("make", b"to c"), "<u8").tolist()
    native.call("allow", words(mine, theirs, xpu.WRITE))
    one.call(join, theirs)
    for size in SIZES[:-1]:
        message = os.urandom(size)
        native.call("say", to_python + message)
        assert one.call(hear) == (message, its)
        one.call(say, message)
        assert native.call("hear", numpy.array([fd, 10_000], "<u4").tobytes()) == words(mine) + message
