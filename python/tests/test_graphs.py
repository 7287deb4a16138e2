"""Graphs: deployed and run, and what their functions have of memory components."""

import contextlib
import json
import os
import signal
import threading
import time

import numpy
import pytest

import sublet
from sublet import _failure

MIB = 1 << 20


def graph(*components, edges=(), name="tested"):
    """A chain of compute components, and memory."""
    chain = [part["name"] for part in components if part["type"] == "compute"]
    triggers = [{"type": "trigger", "from": one, "to": other} for one, other in zip(chain, chain[1:])]
    return {"version": 1, "name": name, "components": list(components), "edges": [*triggers, *edges]}


def compute(name, function, **more):
    return {"name": name, "type": "compute", "function": function, **more}


def memory(name, **more):
    return {"name": name, "type": "memory", "initial_bytes": MIB, "increment_bytes": MIB, **more}


def access(component, to, rights="write"):
    return {"type": "access", "from": component, "to": to, "rights": rights}


def fill(data):
    rows = int(bytes(data))
    table = sublet.channel("table").array((rows, 4))
    table[:] = numpy.arange(4.0)
    return b"%d" % rows


def double(data):
    rows = int(bytes(data))
    me, all_of_us = sublet.instance(), sublet.instances()
    part = sublet.channel("table").array((rows, 4))[me * rows // all_of_us : (me + 1) * rows // all_of_us]
    part *= 2
    return data


def add(data):
    table = sublet.channel("table")
    found = table.array(table.nbytes // 8)
    assert not found.flags.writeable and table.readonly
    return b"%d" % found.sum()


TABLE = graph(
    compute("fill", fill, entry=True),
    compute("double", double, parallelism=2),
    compute("add", add),
    memory("table"),
    edges=[access("fill", "table"), access("double", "table"), access("add", "table", "read")],
    name="doubled",
)


@pytest.fixture(scope="module")
def table(platform):
    return platform.deploy(TABLE, patience=60)


def test_instances_share_arrays_in_memory_components(table):
    heard = []
    outcome = table.run(b"100000", lambda *news: heard.append(news))
    assert outcome.output == b"1200000" and outcome.outputs == {"add": [b"1200000"]}
    assert [news[:2] for news in heard if news[0] != "waits"] == [
        (what, component) for component in ("fill", "double", "add") for what in ("began", "ended")
    ]
    used = {part["component"]: part for part in outcome.components}
    assert used["double"]["instances"] == 2 and used["table"]["used_bytes"] == 3_200_000
    (moved,) = used["double"]["channels"]
    # Each instance maps the whole table.
    assert moved["memory"] == "table" and moved["maps"] >= 2 and moved["mapped_bytes"] >= 2 * 3_200_000
    assert {"reads", "read_bytes", "writes", "written_bytes"} <= moved.keys()
    assert used["fill"]["cpu_ns"] > 0 and used["table"]["channels"] == []
    assert len(outcome.run) == 32 and outcome.run in repr(outcome)


def test_result_in_memory_is_read_and_released(platform):
    kept = graph(compute("fill", fill, entry=True), {**memory("table"), "result": True}, edges=[access("fill", "table")], name="kept")
    outcome = platform.deploy(kept, patience=60).run(b"1000")
    with outcome.result as table:
        assert table.nbytes == 32_000 and len(table.read()) == 32_000
    with pytest.raises(sublet.Error):
        table.read()


def test_an_input_that_is_no_buffer_is_a_type_error(table):
    for wrong in (10, [49, 48], "10"):
        with pytest.raises(TypeError, match="bytes-like"):
            table.run(wrong)
    assert table.run(bytearray(b"10")).output == table.run(memoryview(b"1_0_")[::2]).output == table.run(b"10").output


def test_a_run_without_such_memory_has_no_result(table):
    assert table.run(b"10").result is None


def test_it_is_opened_by_its_name_and_by_its_digest(platform, table):
    for name in ("doubled", table.digest):
        assert platform.application(name, patience=60).run(b"10").output == b"120"
    assert table.graph["components"][1]["parallelism"] == 2 and "doubled" in repr(table)


@pytest.mark.parametrize("form", [json.dumps, lambda document: json.dumps(document).encode(), "a path"])
def test_a_document_is_a_dict_or_json_or_a_file(platform, table, form, tmp_path):
    document = dict(table.graph, name="written")
    if form == "a path":
        said = tmp_path / "graph.json"
        said.write_text(json.dumps(document))
    else:
        said = form(document)
    assert platform.deploy(said, patience=60).run(memoryview(b"10")).output == b"120"


def look(data):
    """Does what is said, and tells what came of it."""
    notes = sublet.channel("notes")
    found = []
    for what in LOOKS:
        try:
            found.append(what(notes))
        except Exception as error:
            found.append(f"{type(error).__name__} {getattr(error, 'code', '')}: {error}")
    return json.dumps(found).encode()


def written(notes):
    notes.write(0, b"some bytes")
    notes.write(3 * MIB, numpy.arange(3, dtype="u1"))
    notes.sync()
    notes.prefetch(0, 10)
    back = bytearray(4)
    notes.read_into(5, back)
    return [notes.read(5, 5).decode(), back.decode(), notes.read(3 * MIB).hex(), notes.nbytes - 3 * MIB, repr(notes)]


def grown(notes):
    notes.grow(4 * MIB)
    notes.grow(MIB)
    view = notes.array((2, 2), "u2", 4 * MIB - 8)
    view[1, 1] = 7
    return [notes.nbytes - 4 * MIB, view.tolist(), notes.array(3, "u1", 0).tobytes().decode(), notes.array(0).tolist()]


LOOKS = [
    written,
    grown,
    lambda notes: notes.read(4 * MIB - 1, 2),
    lambda notes: notes.write(8 * MIB - 1, b"12"),
    lambda notes: notes.write(0, [1, 2]),
    lambda notes: notes.array(3, object),
    lambda notes: sublet.channel("other"),
]


def test_channels_read_write_and_grow(platform):
    told = graph(compute("look", look, entry=True), memory("notes", limit_bytes=8 * MIB), edges=[access("look", "notes")])
    (one, two, beyond, full, wrong, objects, other) = json.loads(platform.deploy(told, patience=60).run().output)
    assert one == ["bytes", "byte", "000102", 3, "<sublet channel to notes>"]
    assert two == [0, [[0, 0], [0, 7]], "som", []]
    assert beyond == "InvalidArgument invalid_argument: 2 bytes at 4194303 of memory component notes of 4194304 bytes"
    assert full.startswith("Error memory_exceeded: ") and "grows to 8388608 bytes" in full
    assert wrong.startswith("TypeError ") and objects.startswith("ValueError ")
    assert other.startswith("InvalidArgument ") and 'no access edge from this component to "other"' in other


def scribble(data):
    try:
        sublet.channel("notes").write(0, b"x")
    except PermissionError as error:
        refused = f"{error.code}: {error}".encode()
    try:
        sublet.channel("notes").array(1)[0] = 1
    except sublet.InvalidArgument:
        return refused


def test_an_edge_for_reading_is_for_reading(platform):
    told = graph(compute("scribble", scribble, entry=True), memory("notes"), edges=[access("scribble", "notes", "read")])
    said = platform.deploy(told, patience=60).run().output
    assert said == b"permission_denied: memory component notes is read by this component, not written"


def overlapped(data):
    notes = sublet.channel("notes")
    notes.grow(2 * MIB)
    for at in range(0, 2 * MIB, 65536):
        notes.write_async(at, bytes([at >> 16]) * 65536)
    notes.sync()
    notes.prefetch(0, 2 * MIB)
    begun = [notes.read_async(at, 2) for at in range(65535, 2 * MIB - 65536, 65536)]
    found = [reading.result() for reading in begun]
    assert found == [bytes([at, at + 1]) for at in range(31)]
    for what in (begun[0].result, lambda: notes.read_async(2 * MIB, 1)):
        try:
            what()
            raise AssertionError("nothing is wrong with it")
        except sublet.InvalidArgument as error:
            data = bytes(data) + str(error).encode() + b"; "
    return data


def test_what_is_begun_in_a_channel_is_there_when_it_is_waited_for(platform):
    for fabric in (None, "tcp"):
        told = graph(compute("overlapped", overlapped, entry=True), memory("notes"), edges=[access("overlapped", "notes")])
        said = platform.deploy(told, patience=60, fabric=fabric).run(b"").output.decode()
        assert said.startswith("these bytes were taken already; 1 bytes at 2097152 of memory component notes"), said


def shorten(data):
    notes = sublet.channel("notes")
    notes.write(0, b"some bytes")
    table = notes.array(4, "u1", MIB)
    refused = []
    for what in (lambda: notes.resize(MIB), notes.release):
        try:
            what()
        except sublet.InvalidArgument as error:
            refused.append(str(error))
    notes.resize(MIB + 4)
    del table
    notes.resize(4)
    assert notes.nbytes == 4
    notes.resize(6)
    return json.dumps([refused, notes.read().decode()]).encode()


def test_a_channel_is_made_shorter_where_there_is_no_array(platform):
    told = graph(compute("shorten", shorten, entry=True), memory("notes"), edges=[access("shorten", "notes")])
    refused, left = json.loads(platform.deploy(told, patience=60).run().output)
    assert refused == ["1 arrays lie in what would go: give them up before"] * 2
    assert left == "some\0\0"


def let_go(data):
    notes = sublet.channel("notes")
    notes.write(0, b"some bytes")
    notes.release()
    found = []
    for what in (notes.read, notes.release, lambda: notes.nbytes, lambda: sublet.channel("notes")):
        try:
            what()
        except sublet.LeaseEnded as error:
            found.append(str(error))
    # The run has the memory again.
    sublet.channel("others").grow(3 * MIB)
    return json.dumps(found).encode()


def test_a_channel_is_released_before_the_function_ends(platform):
    told = graph(
        compute("let_go", let_go, entry=True, resources={"memory_bytes": 256 * MIB}),
        memory("notes", initial_bytes=3 * MIB),
        memory("others", initial_bytes=3 * MIB),
        edges=[access("let_go", "notes"), access("let_go", "others")],
    )
    told["limits"] = {"memory_bytes": 260 * MIB}
    found = json.loads(platform.deploy(told, patience=60).run().output)
    assert found == ["memory component notes was released by this function"] * 4


def ask(data):
    questions = int(bytes(data))
    for number in range(questions):
        sublet.send("tell", numpy.full(3, number, "u2"), timeout=60)
    answers = [sublet.receive("tell", timeout=60) for _ in range(questions)]
    return json.dumps(sorted((int(data), instance) for data, instance in answers)).encode()


def tell(data):
    times = 0
    while True:
        try:
            question, asker = sublet.receive("ask")
        except sublet.LeaseEnded:
            return b"%d" % times
        number = numpy.frombuffer(question, "u2")
        sublet.send("ask", b"%d" % number.sum(), asker)
        times += 1


def begin(data):
    return data


def talk(one, other):
    """Two that run at the same time, and share "flag"."""
    names = one["name"], other["name"]
    told = graph(compute("begin", begin, entry=True), one, other, memory("flag"))
    told["edges"] = [{"type": "trigger", "from": "begin", "to": name} for name in names]
    told["edges"] += [{"type": "message", "from": names[0], "to": names[1]}, *(access(name, "flag") for name in names)]
    return told


@pytest.mark.parametrize("fabric", [None, "tcp"])
def test_components_send_each_other_messages(platform, fabric):
    outputs = platform.deploy(talk(compute("ask", ask), compute("tell", tell)), patience=60, fabric=fabric).run(b"20").outputs
    assert outputs["tell"] == [b"20"]
    assert json.loads(outputs["ask"][0]) == [[3 * number, 0] for number in range(20)]


def pour_out(data):
    for number in range(int(bytes(data))):
        sublet.send("share", b"%d" % number, timeout=60)


def share(data):
    found = []

    def take():
        with contextlib.suppress(sublet.LeaseEnded):
            while True:
                found.append(int(sublet.receive("pour_out", timeout=60)[0]))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return json.dumps(sorted(found)).encode()


def test_threads_of_an_instance_share_its_messages(platform):
    document = talk(compute("pour_out", pour_out), compute("share", share))
    outputs = platform.deploy(document, patience=60).run(b"2000").outputs
    assert json.loads(outputs["share"][0]) == list(range(2000))


def pester(data):
    found = []
    for what in PESTERS:
        try:
            found.append(repr(what()))
        except Exception as error:
            found.append(f"{type(error).__name__} {getattr(error, 'code', '')}: {error}")
    sublet.channel("flag").write(0, b"1")
    return json.dumps(found).encode()


def flood():
    while True:
        sublet.send("greet", bytes(65536), timeout=0.01)


PESTERS = [
    lambda: sublet.receive("greet", timeout=60),
    lambda: sublet.receive("greet", timeout=0),
    lambda: sublet.send("absent", b""),
    lambda: sublet.send("greet", b"", instance=1),
    lambda: sublet.send("greet", bytes(65537)),
    lambda: sublet.send("greet", "text"),
    lambda: sublet.receive("greet", timeout=-1),
    flood,
    lambda: sublet.send("greet", bytes(65536), timeout=0),
]


def greet(data):
    sublet.send("pester", b"hello")
    # Until the other one has looked in vain, and filled the queue.
    while sublet.channel("flag").nbytes == 0:
        time.sleep(0.01)


def test_what_cannot_be_sent_or_received_is_said_so(platform):
    outputs = platform.deploy(talk(compute("pester", pester), compute("greet", greet)), patience=60).run().outputs
    heard, silent, absent, other, long, text, wrong, full, still = json.loads(outputs["pester"][0])
    assert heard == "(b'hello', 0)"
    assert silent == "DeadlineExceeded deadline_exceeded: component greet sends nothing"
    assert absent.startswith("InvalidArgument ") and 'no message edge between this component and "absent"' in absent
    assert other.startswith("InvalidArgument ") and "no instance 1 of component greet, which has 1" in other
    assert long.startswith("InvalidArgument ") and "a message of 65537 bytes" in long
    assert text.startswith("TypeError ")
    assert wrong == "InvalidArgument invalid_argument: a timeout of -1 seconds is no time to wait"
    assert full == still == "DeadlineExceeded deadline_exceeded: the queue of instance 0 of component greet stays full"


def test_a_channel_is_valid_only_during_its_run(platform):
    def first(data):
        import builtins

        builtins.kept = sublet.channel("notes"), sublet.channel("notes").array(4, "u1")
        builtins.kept[1][:] = 7

    def second(data):
        channel, array = kept  # noqa: F821
        try:
            channel.read()
        except sublet.LeaseEnded as error:
            # Its memory is mapped for as long as there is an array, and what was there is gone.
            array.sum()
            return str(error).encode()

    told = graph(compute("first", first, entry=True), compute("second", second), memory("notes"), edges=[access("first", "notes")])
    assert platform.deploy(told, patience=60).run().output == b"the run of this channel is over: open it again"


def test_outside_of_a_run_there_is_none(lease):
    assert (sublet.instance(), sublet.instances()) == (0, 1)
    with pytest.raises(sublet.InvalidArgument, match="only in workers that execute a graph's run"):
        sublet.channel("table")
    with pytest.raises(sublet.InvalidArgument, match="only in workers that execute a graph's run"):
        sublet.receive("ask")
    assert lease.call(lambda: (sublet.instance(), sublet.instances())) == (0, 1)
    with pytest.raises(sublet.InvalidArgument, match="this call is not of a graph's run"):
        lease.call(sublet.channel, "table")
    with pytest.raises(sublet.InvalidArgument, match="this call is not of a graph's run"):
        lease.call(sublet.send, "tell", b"")


class Refusal(ValueError):
    pass


def refuse(data):
    print("looks at it")
    raise Refusal("what is wrong", bytes(data))


@pytest.mark.parametrize("fabric", ["shm", "tcp"])
def test_what_a_component_raises_ends_the_run(platform, capfd, fabric):
    application = platform.deploy(graph(compute("refuse", refuse, entry=True)), patience=60, fabric=fabric)
    with pytest.raises(Refusal) as raised:
        application.run(b"this")
    assert type(raised.value) is Refusal and raised.value.args == ("what is wrong", b"this")
    assert any(note.startswith("in component refuse (") for note in raised.value.__notes__)
    assert 'raise Refusal("what is wrong", bytes(data))' in raised.value.__cause__.text
    assert "looks at it\n" in capfd.readouterr().out


def test_failures_that_are_too_large_come_back_in_words(platform):
    def refuse_much(data):
        raise Refusal("x" * 300_000)

    application = platform.deploy(graph(compute("refuse", refuse_much, entry=True)), patience=60)
    with pytest.raises(ValueError) as raised:
        application.run()
    assert isinstance(raised.value, sublet.RemoteError) and raised.value.message.startswith("xxxx")
    assert "xxxx" in raised.value.__cause__.text


class Loaded(ValueError):
    """An exception that has an effect where it is unpickled."""

    def __reduce__(self):
        return make_loaded, (self.args[0],)


def make_loaded(path):
    with contextlib.suppress(OSError):
        open(path, "w").close()
    return Loaded(path)


def test_nothing_is_loaded_that_other_packages_components_raise(platform, tmp_path):
    file = tmp_path / "made-by-loading"

    def refuse_harmfully(data):
        raise Loaded(str(file))

    own = platform.deploy(graph(compute("refuse", refuse_harmfully, entry=True)), patience=60)
    with pytest.raises(ValueError) as raised:
        platform.application(own.digest, patience=60).run()
    error = raised.value
    assert isinstance(error, sublet.RemoteError) and error.kind.endswith("Loaded") and error.message == str(file)
    assert "in refuse_harmfully" in error.__cause__.text
    assert not file.exists()
    # Its own program does load it, which shows that the above would have been seen.
    with pytest.raises(ValueError):
        own.run()
    assert file.exists()


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("report", [b"", b"{", b"[]", b"\xff", b'{"printed": 1, "text": "", "errors": []}',
    b'{"printed": [["log", 1]], "text": "", "errors": []}', b'{"printed": [], "text": "", "errors": [{"names": 1, "classes": 2}]}'])
def test_reports_that_are_none_leave_the_error_of_the_run(report, is_own):
    error, heard = sublet.FunctionFailed("component a (p/f): f failed: no"), []
    news = _failure.News(lambda *what: heard.append(what), {"a"} if is_own else ())
    news("failed", "a", error, report)
    assert news.raised_for(error) is error and heard == [("failed", "a", error)]


def test_what_is_no_graph_is_refused(platform, table):
    for wrong, said in (
        ({"version": 1}, "name"),
        (graph(compute("a", fill)), "entry"),
        (graph(compute("a", fill, entry=True), memory("b")), "b"),
        ("{", "is not valid JSON"),
        ([], "no graph"),
    ):
        with pytest.raises(sublet.InvalidArgument, match=said):
            platform.deploy(wrong)
    with pytest.raises(FileNotFoundError):
        platform.deploy("no-such-file.json")
    with pytest.raises(sublet.Error, match="absent") as found:
        platform.application("absent")
    assert found.value.code == "unknown_graph"
    with pytest.raises(sublet.InvalidArgument, match="patience"):
        platform.application("doubled", patience=-1)
    with pytest.raises(sublet.InvalidArgument, match="retries"):
        platform.application("doubled", retries=-1)
    with pytest.raises(sublet.Error) as found:
        table.resume("0" * 32)
    assert found.value.code == "unknown_run"


def later(data):
    time.sleep(0.5)
    return bytes(data)


def fail(data):
    print("printed before")
    raise ValueError("wrong")


def test_detached_run_is_waited_for_by_its_identifier(platform):
    application = platform.deploy(graph(compute("later", later, entry=True), name="detached"), patience=60)
    run = application.detach(b"x")
    assert len(run.id) == 32 and run.id in repr(run)
    with pytest.raises(sublet.DeadlineExceeded, match=run.id):
        run.wait(timeout=0)
    outcome = platform.run(run.id).wait(timeout=180)
    assert outcome.output == b"x" and outcome.run == run.id and outcome.components[0]["attempts"] == 1
    # The result stays.
    assert run.wait().output == b"x"
    texts = [line["text"] for line in run.logs() if line["component"] == "later"]
    assert texts[0] == "started" and texts[-1].startswith("done")
    with pytest.raises(sublet.Error, match="has ended") as refused:
        run.cancel()
    assert refused.value.code == "unknown_run"


def test_detached_run_keeps_its_failure_in_the_log(platform):
    application = platform.deploy(graph(compute("fail", fail, entry=True), name="detached"), patience=60)
    run = application.detach()
    with pytest.raises(sublet.FunctionFailed, match="wrong"):
        run.wait(timeout=180)
    failed = [line["text"] for line in run.logs() if line["text"].startswith("failed")]
    assert len(failed) == 1 and "printed before" in failed[0], failed


def test_cancelled_run_ends_with_its_own_code(platform):
    application = platform.deploy(graph(compute("sleep", sleep, entry=True), name="slept"), patience=60, prewarm=None)
    run = application.detach()
    run.cancel()
    run.cancel()
    with pytest.raises(sublet.Error) as found:
        run.wait(timeout=180)
    assert found.value.code == "run_cancelled"


def test_identifiers_of_no_runs_are_refused(platform):
    for wrong in ("", "nothing", "0" * 32, "../" * 8):
        for use in (lambda run: run.wait(), lambda run: run.cancel(), lambda run: run.logs()):
            with pytest.raises(sublet.Error) as found:
                use(platform.run(wrong))
            assert found.value.code == "unknown_run", wrong


def sleep(data):
    time.sleep(3600)


def test_an_interrupt_gives_the_run_up(platform, table):
    application = platform.deploy(graph(compute("sleep", sleep, entry=True), name="slept"), patience=60, prewarm=None)

    class Enough(Exception):
        pass

    def stop(*news):
        raise Enough(news)

    with pytest.raises(Enough, match="began"):
        application.run(news=stop)

    def interrupt(*news):
        # When the function executes, or is about to.
        threading.Timer(0.5, signal.raise_signal, [signal.SIGUSR1]).start()

    def enough(*_):
        raise Enough("by a signal")

    before = signal.signal(signal.SIGUSR1, enough)
    try:
        with pytest.raises(Enough, match="by a signal"):
            application.run(news=interrupt)
    finally:
        signal.signal(signal.SIGUSR1, before)
    # The memory of the run is free again.
    assert table.run(b"10").output == b"120"


def swap_large(data):
    count = 24 * MIB
    numbers = numpy.arange(count, dtype=numpy.uint64)
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * (len(block) // 4096)
    numbers *= 3
    here_and_there = numpy.random.default_rng(int(bytes(data))).integers(0, count, 5000)
    assert (numbers[here_and_there] == 3 * here_and_there.astype(numpy.uint64)).all()
    zeros = numpy.zeros(4 * MIB)
    assert not zeros.any() and block.count(b"x") == len(block) // 4096
    del block
    block = bytearray(96 * MIB)
    assert block.count(0) == len(block)
    return b"%d %d" % (numbers.sum(), sublet.instance())


def take_all(data):
    taken = []
    try:
        while True:
            # Python adds a byte.
            taken.append(bytearray(16 * MIB - 1))
    except MemoryError:
        return b"%d" % len(taken)


SWAPS = {"memory_bytes": 128 * MIB, "swap_bytes": 512 * MIB}


@pytest.fixture
def swaps():
    if not os.access("/dev/userfaultfd", os.R_OK | os.W_OK):
        pytest.skip("/dev/userfaultfd is not to be had")


def test_arrays_larger_than_the_memory_of_their_component_are_swapped(platform, swaps):
    application = platform.deploy(graph(compute("large", swap_large, entry=True, resources=SWAPS), name="swaps"), patience=60)
    outcome = application.run(b"7")
    total = 3 * (24 * MIB) * (24 * MIB - 1) // 2
    assert outcome.output == b"%d 0" % total
    used = {of["component"]: of for of in outcome.components}
    assert used["large"]["allocated_bytes"] == 128 * MIB
    assert 64 * MIB < used["large/swap"]["used_bytes"] <= 512 * MIB


def swap_arrow(data):
    import pyarrow

    pool = getattr(pyarrow, bytes(data).decode() + "_memory_pool")()
    count = 48 * MIB
    numbers = numpy.frombuffer(pyarrow.allocate_buffer(8 * count, memory_pool=pool), dtype=numpy.uint64)
    firsts = range(0, count, MIB)
    for first in firsts:
        numbers[first : first + MIB] = numpy.arange(first, first + MIB, dtype=numpy.uint64)
    return b"%d" % sum(int(numbers[first : first + MIB].sum()) for first in firsts)


def swap_polars(data):
    import polars

    series = polars.Series("a", [1.0]).extend_constant(2.0, 48 * MIB - 1)
    return b"%d" % (series * 2).sum()


# An arena of mimalloc has 1 GiB.
MAPS = {"memory_bytes": 256 * MIB, "swap_bytes": 2048 * MIB}


def swapped(platform, function, data):
    """Output of a function that maps 384 MiB or more, of which its own memory holds less than a half."""
    application = platform.deploy(graph(compute("large", function, entry=True, resources=MAPS), name="maps"), patience=60)
    outcome = application.run(data)
    used = {of["component"]: of for of in outcome.components}
    assert used["large/swap"]["used_bytes"] > 128 * MIB
    return outcome.output


@pytest.mark.parametrize("allocator", ["jemalloc", "mimalloc"])
def test_memory_of_allocators_of_their_own_is_swapped(platform, swaps, allocator):
    arrow = pytest.importorskip("pyarrow")
    if allocator not in arrow.supported_memory_backends():
        pytest.skip(f"this pyarrow is built without {allocator}")
    count = 48 * MIB
    assert swapped(platform, swap_arrow, allocator.encode()) == b"%d" % (count * (count - 1) // 2)


def test_columns_of_polars_are_swapped(platform, swaps):
    pytest.importorskip("polars")
    assert swapped(platform, swap_polars, b"") == b"%d" % (2 + 4 * (48 * MIB - 1))


def test_without_swap_space_they_are_a_memory_error(platform):
    application = platform.deploy(graph(compute("large", swap_large, entry=True, resources={"memory_bytes": 32 * MIB}), name="fails"), patience=60)
    with pytest.raises(MemoryError, match="allocate") as failed:
        application.run(b"7")
    assert any(note.startswith("in component large (") for note in failed.value.__notes__)


def test_swap_space_that_is_full_is_a_memory_error(platform, swaps):
    application = platform.deploy(graph(compute("all", take_all, entry=True, resources=SWAPS), name="full"), patience=60)
    assert application.run().output == b"32"


def empty(data):
    table = sublet.channel("table")
    before = table.nbytes
    table.resize(0)
    table.resize(8)
    return b"%d %d" % (before, table.array(1)[0])


def test_bytes_of_the_caller_are_cut_off_by_the_first_access(platform):
    told = graph(compute("empty", empty, entry=True), memory("table", limit_bytes=16 * MIB), edges=[access("empty", "table", "write")])
    application = platform.deploy(told, patience=60)
    for count in (1000, 1_000_000):
        assert application.run(b"", contents={"table": numpy.arange(1.0, count + 1)}).output == b"%d 0" % (8 * count)


def sum_up(data):
    table = sublet.channel("table")
    total = table.array(table.nbytes // 8).sum()
    if not table.readonly:
        table.write(0, bytes(8))
    return b"%d" % total


@pytest.mark.parametrize("rights", ["read", "write"])
def test_memory_begins_with_bytes_of_the_caller(platform, rights):
    told = graph(compute("sum_up", sum_up, entry=True), memory("table", limit_bytes=16 * MIB), edges=[access("sum_up", "table", rights)])
    application = platform.deploy(told, patience=60)
    for count in (1000, 1_000_000):
        content = numpy.arange(1.0, count + 1)
        assert application.run(b"", contents={"table": content}).output == b"%d" % content.sum()
        assert content[0] == 1
    for contents, said in (
        ({"other": b"abc"}, "other is to begin with 3 bytes, and is no memory component"),
        ({"sum_up": b"abc"}, "sum_up is to begin with 3 bytes, and is no memory component"),
        ({"table": bytes(16 * MIB + 1)}, "16777217 bytes for memory component table, which has at most 16777216"),
    ):
        with pytest.raises(sublet.InvalidArgument, match=said):
            application.run(b"", contents=contents)
    with pytest.raises(TypeError):
        application.run(b"", contents={"table": 3})


def die_once(data):
    import os

    seen = sublet.channel("seen")
    assert seen.nbytes == 0
    if bytes(data) == b"":
        seen.write(0, b"1")
        os._exit(1)


def test_a_component_that_is_lost_begins_again_and_too_often_fails(platform):
    told = graph(compute("die", die_once, entry=True), memory("seen"), edges=[access("die", "seen")], name="died")
    lost = []
    application = platform.deploy(told, patience=60, retries=2)
    with pytest.raises(sublet.WorkerDied):
        application.run(b"", lambda what, component, more: lost.append((component, more)) if what == "lost" else None)
    assert [component for component, _ in lost] == ["die"] * 3
    assert all(isinstance(error, sublet.WorkerDied) for _, error in lost)
    assert application.run(b"continue").outputs == {"die": [b""]}
