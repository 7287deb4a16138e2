"""Packages of other tenants: what their workers answer is not unpickled but for plain values."""

import asyncio
import collections
import contextlib
import copyreg
import datetime
import decimal
import fractions
import functools
import io
import json
import logging
import operator
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tracemalloc
import types
import uuid

import numpy
import pytest

import sublet
from sublet import _calls, _failure, _foreign, _lease, _map, _package, _restricted, components
from sublet._command import program

ZONE = datetime.timezone(datetime.timedelta(hours=1), "one")
NESTED = numpy.empty((2, 2), object)
NESTED[0, 0], NESTED[0, 1], NESTED[1, 0] = [1, [2]], {"a": numpy.arange(3)}, "text"
RECORD = numpy.dtype([("a", "i4"), ("b", "f8", (2,)), ("c", [("d", ">u2"), ("e", "M8[us]")])])

PLAIN = [
    *(None, True, False, 0, -5, 1 << 200, 1.5, float("inf"), 2j, "text", "h\u00e9 \U0001f600", b"bytes", bytearray(b"more" * 1000)),
    *([1, [2, [3]]], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {"a": {"b": [1]}}, {(1, (2, 3)): 4}, {1, "a"}, frozenset([1, (2, 3)])),
    *(range(1, 9, 2), slice(1, None), slice("a", "b", 2), Ellipsis, NotImplemented),
    *(datetime.date(2020, 2, 29), datetime.time(1, 2, 3, 4, ZONE, fold=1), datetime.datetime(1, 1, 1), datetime.timedelta(-3, 4, 5)),
    *(datetime.datetime(9999, 12, 31, 23, 59, 59, 999999, datetime.timezone.utc, fold=1), datetime.timezone.utc, ZONE),
    *(decimal.Decimal("-1.50E+7"), decimal.Decimal("NaN"), fractions.Fraction(-3, 7), fractions.Fraction(5), uuid.UUID(int=1 << 90)),
    *(collections.OrderedDict(a=1, b=[2]), collections.deque([1, 2], 5), collections.deque([[3]]), collections.Counter("hello")),
    *(collections.defaultdict(list, {1: [2]}), collections.defaultdict(int, a=1), collections.defaultdict(None, a=1)),
]
ARRAYS = [
    *(numpy.arange(6).reshape(2, 3), numpy.asfortranarray(numpy.ones((3, 4), ">f4")), numpy.arange(10)[::2], numpy.zeros((0, 3))),
    *(numpy.arange(24).reshape(2, 3, 4).transpose(1, 0, 2), numpy.array(5), numpy.array(["ab", "c"]), numpy.array([b"ab"])),
    *(numpy.array(["2024-01-01"], "M8[D]"), numpy.array([3], "m8[25s]"), numpy.zeros(3, RECORD), numpy.zeros((2, 2), "V3")),
    *(numpy.zeros(2, numpy.dtype([("a", "i1"), ("b", "f8")], align=True)), NESTED, numpy.asfortranarray(NESTED), numpy.array(None, object)),
    *(numpy.empty((0, 2), object), numpy.array([True, False]), numpy.array([1j], "c8")),
    *(numpy.float32(1.5), numpy.int64(3), numpy.bool_(True), numpy.str_("h\u00e9"), numpy.str_(""), numpy.bytes_(b"x"), numpy.longdouble(1.5)),
    *(numpy.datetime64("2024-01-01T00:00:01", "ns"), numpy.datetime64("NaT"), numpy.timedelta64(3, "h"), numpy.zeros(1, RECORD)[0]),
    *(numpy.dtype("f4"), numpy.dtype(">i2"), numpy.dtype("U7"), RECORD, numpy.dtype((int, (2, 3))), numpy.dtype("O")),
]


def loaded(value, is_apart):
    buffers = []
    body = pickle.dumps(value, 5, buffer_callback=buffers.append if is_apart else None)
    return _restricted.loads(body, [buffer.raw() for buffer in buffers])


@pytest.mark.parametrize("is_apart", [False, True], ids=["within", "apart"])
@pytest.mark.parametrize("value", PLAIN + ARRAYS, ids=lambda value: f"{type(value).__name__}")
def test_plain_values_come_back(value, is_apart):
    found = loaded([value, value], is_apart)
    assert type(found) is list and len(found) == 2
    for one in found:
        assert type(one) is type(value) and repr(one) == repr(value)
        if isinstance(value, numpy.ndarray):
            assert one.dtype == value.dtype and one.shape == value.shape and one.flags.writeable
            assert one.flags.f_contiguous == value.flags.f_contiguous or not value.flags.c_contiguous


def test_references_stay_references():
    ring = [1]
    ring += [ring, numpy.arange(2000)]
    ring.append(ring[2])
    found = loaded(ring, True)
    assert found[1] is found and found[2] is found[3]


def test_pickles_of_numpy_1_are_loaded():
    for value in (numpy.arange(3), numpy.float64(2.0), NESTED):
        body = pickle.dumps(value, 5).replace(b"numpy._core.", b"numpy.core.")
        # The name is a byte shorter, and so is its frame.
        body = renamed(body)
        assert repr(_restricted.loads(body)) == repr(value)


def renamed(body):
    """A pickle after one of its names became a byte shorter."""
    for name in (b"numpy.core.multiarray", b"numpy.core.numeric"):
        body = body.replace(bytes([len(name) + 1]) + name, bytes([len(name)]) + name)
    size = struct.unpack("<Q", body[3:11])[0]
    return body[:3] + struct.pack("<Q", min(size, len(body) - 11)) + body[11:]


class Gadget:
    """Is pickled as what `reduced` says."""

    def __init__(self, *reduced):
        self._reduced = reduced

    def __reduce__(self):
        return self._reduced


class Touched(Exception):
    """A gadget was executed."""


def touch(*_):
    raise Touched


class Own:
    def __setstate__(self, state):
        touch()


def named(module, name):
    """The opcodes that push what a name stands for."""
    return short(module) + short(name) + pickle.STACK_GLOBAL


def short(text):
    return pickle.SHORT_BINUNICODE + bytes([len(text)]) + text.encode()


def code(*parts):
    return pickle.PROTO + b"\x05" + b"".join(parts) + pickle.STOP


EMPTY, MARK, TUPLE, REDUCE, BUILD, NONE = b")", b"(", b"t", b"R", b"b", b"N"
OBJECTS = numpy.dtype("O")
RECONSTRUCT, SCALAR = numpy.empty(0).__reduce__()[0], numpy.float64(0).__reduce__()[0]

HOSTILE = {
    "os.system": Gadget(os.system, ("true",)),
    "eval": Gadget(eval, ("1",)),
    "exec": Gadget(exec, ("1",)),
    "getattr": Gadget(getattr, (1, "real")),
    "setattr": Gadget(setattr, (int, "made", 1)),
    "import": Gadget(__import__, ("os",)),
    "open": Gadget(open, (os.devnull,)),
    "breakpoint": Gadget(breakpoint, ()),
    "attrgetter": Gadget(operator.attrgetter, ("x",)),
    "methodcaller": operator.methodcaller("x", 1),
    "partial": functools.partial(os.system, "true"),
    "map": Gadget(map, (touch, (1,))),
    "object": Gadget(object, ()),
    "type": Gadget(type, ("Made", (), {})),
    "a function": len,
    "a class": int,
    "an allowed class": datetime.date,
    "a class in a tuple": (int, 1),
    "a class in a set": {int},
    "a class as a key": {int: 1},
    "an own class": Own(),
    "an own exception": Touched("x"),
    "copyreg": Gadget(copyreg._reconstructor, (Own, object, None)),
    "a new class": Gadget(types.new_class, ("Made",)),
    "loads": Gadget(pickle.loads, (pickle.dumps(Gadget(touch, ())),)),
    "namedtuple": os.terminal_size((1, 2)),
    "path": pathlib.PurePath("a"),
    "regular expression": __import__("re").compile("a"),
    # Its members would be hashed unchecked.
    "counter of a list": Gadget(collections.Counter, ([1, 1],)),
    "time zone of a number": Gadget(datetime.timezone, (1,)),
    "deque of items": Gadget(collections.deque, ([1],)),
    "defaultdict of a function": collections.defaultdict(touch),
    "defaultdict of a method": collections.defaultdict(datetime.datetime.now),
    "defaultdict of an allowed class": collections.defaultdict(datetime.date),
    "large fraction": Gadget(fractions.Fraction, ("1e1000000000",)),
    "fraction of many bits": fractions.Fraction(1 << (1 << 16), 3),
    "nested": [{"a": ({"b": [Gadget(os.system, ("true",))]},)}],
    "in an array": numpy.array([Gadget(os.system, ("true",)), None], object),
    "of numpy.load": Gadget(numpy.load, (os.devnull,)),
    "object scalar": Gadget(SCALAR, (OBJECTS, pickle.dumps(Gadget(touch, ())))),
    "object scalar of a record": Gadget(SCALAR, (numpy.dtype([("a", "O")]), pickle.dumps(Gadget(touch, ())))),
    "object scalar of an address": Gadget(SCALAR, (OBJECTS, b"A" * 8)),
    "array of another class": Gadget(RECONSTRUCT, (int, (0,), b"b"), (1, (1,), numpy.dtype("u1"), False, b"A")),
    "array of a record class": Gadget(RECONSTRUCT, (numpy.recarray, (0,), b"b")),
    "record array": numpy.zeros(2, [("a", "i4")]).view(numpy.recarray),
    "masked array": numpy.ma.array([1, 2], mask=[0, 1]),
    "record with objects": numpy.zeros(2, [("a", "O")]),
    "pointers in place of objects": Gadget(RECONSTRUCT, (numpy.ndarray, (0,), b"b"), (1, (1,), OBJECTS, False, b"A" * 8)),
    "more shape than bytes": Gadget(RECONSTRUCT, (numpy.ndarray, (0,), b"b"), (1, (1 << 40,), numpy.dtype("u1"), False, b"A")),
    "more shape than objects": Gadget(RECONSTRUCT, (numpy.ndarray, (0,), b"b"), (1, (1 << 40,), OBJECTS, False, [None])),
    "negative shape": Gadget(RECONSTRUCT, (numpy.ndarray, (0,), b"b"), (1, (-1, -1), numpy.dtype("u1"), False, b"A")),
    "a dtype of a text": Gadget(numpy.dtype, ("O,O", False, True), (3, "|", None, None, None, -1, -1, 0)),
    "a dtype that is not complete": Gadget(numpy.dtype, ("O", False, True)),
    "date of wrong bytes": Gadget(datetime.datetime, (b"\xff\xff\x01\xff\xff\xff\xff\xff\xff\xff",)),
    "time zone of another class": Gadget(datetime.time, (b"\0" * 6, fractions.Fraction(1))),
}
OPCODES = {
    "dotted name": code(named("os", "path.join")),
    "dotted name of an allowed one": code(named("datetime", "datetime.now"), EMPTY, REDUCE),
    "dotted module": code(named("collections", "abc.sys.modules")),
    "attribute of an allowed one": code(named("collections", "_sys")),
    "global": b"cos\nsystem\n(S'true'\ntR.",
    "inst": b"(S'true'\nios\nsystem\n.",
    "obj": code(MARK, named("collections", "OrderedDict"), b"o"),
    "new object with keywords": code(named("uuid", "UUID"), EMPTY, b"}", pickle.NEWOBJ_EX),
    "new object of an allowed class": code(named("collections", "OrderedDict"), EMPTY, pickle.NEWOBJ),
    "class in tuples": code(named("builtins", "int"), b"\x85\x85\x85"),
    "persistent id of a text": b"Pid\n.",
    "persistent id": code(NONE, pickle.BINPERSID),
    "extension of 1 byte": code(pickle.EXT1, b"\xf0"),
    "extension of 2 bytes": code(pickle.EXT2, b"\xf0\x00"),
    "extension of 4 bytes": code(pickle.EXT4, b"\xf0\x00\x00\x00"),
    "state of a class": code(named("collections", "Counter"), NONE, b"}", short("x"), b"K\x01", b"s", b"\x86", BUILD),
    "state of an object": code(b"]", b"}", short("x"), b"K\x01", b"s", BUILD),
    "state of a dict": code(b"}", b"}", short("x"), b"K\x01", b"s", BUILD),
    "call of a value": code(b"]", EMPTY, REDUCE),
    "call with a list": code(named("builtins", "range"), b"](K\x01K\x02K\x03e", REDUCE),
    "call of a method": code(named("builtins", "range.__new__"), b"K\x01K\x02K\x03\x87", REDUCE),
    "items for a class": code(named("collections", "deque"), b"K\x01", b"a"),
    "keys for a list": code(b"]", b"K\x00", b"K\x01", b"s"),
    "bytearray of 1 EiB": code(pickle.BYTEARRAY8, struct.pack("<Q", 1 << 60)),
    "bytearray of 1 GiB": code(pickle.BYTEARRAY8, struct.pack("<Q", 1 << 30)),
    "bytes of 1 EiB": code(pickle.BINBYTES8, struct.pack("<Q", 1 << 60)),
    "frame of 1 EiB": code(pickle.FRAME, struct.pack("<Q", 1 << 60)),
    "tuple of too few": code(b"K\x01", b"\x87"),
    "nothing": b"",
    "no end": code()[:-1],
    "unknown opcode": code(b"\xff"),
    "protocol 9": b"\x80\x09N.",
    "buffer that is not there": code(pickle.NEXT_BUFFER),
    "read-only text": code(short("a"), pickle.READONLY_BUFFER),
    "deep key": code(b"}", EMPTY, b"\x85" * 200_000, NONE, b"s"),
    "key of exponential size": code(b"}", EMPTY, *[b"\x94h%c\x86" % n for n in range(60)], NONE, b"s"),
    "key of many parts": code(b"}", EMPTY, *[b"\x940(" + b"h%c" % n * 50 + TUPLE for n in range(10)], NONE, b"s"),
    "deep member": code(b"\x8f", MARK, EMPTY, b"\x85" * 200_000, b"\x90"),
    "deep frozen set": code(MARK, EMPTY, b"\x85" * 200_000, b"\x91"),
}


def pickled(value):
    file = io.BytesIO()
    pickle.Pickler(file, 5).dump(value)
    return file.getvalue()


@pytest.mark.parametrize("name", HOSTILE)
def test_refuses_hostile_objects(name):
    try:
        body = pickled(HOSTILE[name])
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        pytest.fail(f"the test's own pickle cannot be made: {error}")
    with pytest.raises(_restricted.Refused):
        _restricted.loads(body)


@pytest.mark.parametrize("name", OPCODES)
def test_refuses_hostile_opcodes(name):
    with pytest.raises(_restricted.Refused):
        _restricted.loads(OPCODES[name])


def test_refuses_registered_extensions():
    # The standard unpickler takes one that was used before without asking for its name.
    copyreg.add_extension("collections", "OrderedDict", 0xF0)
    try:
        assert pickle.loads(OPCODES["extension of 1 byte"]) is collections.OrderedDict
        with pytest.raises(_restricted.Refused, match="EXT1"):
            _restricted.loads(OPCODES["extension of 1 byte"])
    finally:
        copyreg.remove_extension("collections", "OrderedDict", 0xF0)


@pytest.mark.parametrize("name", ["bytearray of 1 GiB", "bytearray of 1 EiB", "bytes of 1 EiB", "frame of 1 EiB"])
def test_sizes_that_a_pickle_claims_reserve_no_memory(name):
    tracemalloc.start()
    try:
        with pytest.raises(_restricted.Refused):
            _restricted.loads(OPCODES[name])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_changes_no_class():
    before = dict(vars(collections.Counter)), dict(vars(fractions.Fraction)), dict(vars(uuid.UUID))
    for module, name in [("collections", "Counter"), ("fractions", "Fraction"), ("uuid", "UUID"), ("numpy._core.numeric", "_frombuffer")]:
        for state in (b"}" + short("__init__") + NONE + b"s", NONE + b"}" + short("__init__") + NONE + b"s\x86"):
            with pytest.raises(_restricted.Refused):
                _restricted.loads(code(named(module, name), state, BUILD))
    assert before == (dict(vars(collections.Counter)), dict(vars(fractions.Fraction)), dict(vars(uuid.UUID)))


def test_flags_of_a_dtype_are_not_taken():
    # Without its flags for references, NumPy would take bytes for the addresses of objects.
    flagless = Gadget(numpy.dtype, ("O", False, True), (3, "|", None, None, None, 8, 8, 0))
    body = pickled(Gadget(RECONSTRUCT, (numpy.ndarray, (0,), b"b"), (1, (1,), flagless, False, b"A" * 8)))
    with pytest.raises(_restricted.Refused):
        _restricted.loads(body)
    assert _restricted.loads(pickled(flagless)).hasobject


def test_names_what_was_refused():
    foreign = _foreign.Foreign(_foreign.described("words", "alice"))
    with pytest.raises(sublet.UntrustedResult, match=r"package words of tenant alice: its result has the class or function os\.|posix") as caught:
        foreign.load(pickled(HOSTILE["os.system"]))
    assert "system" in str(caught.value) and "bytes, JSON text or plain values" in str(caught.value) and "deploy the package" in str(caught.value)
    assert caught.value.code == "permission_denied"
    with pytest.raises(sublet.UntrustedResult, match=r"\\x1b"):
        foreign.load(code(named("os", "\x1b[2J")))


def test_escapes_what_controls_a_terminal():
    assert _foreign.escaped("a\tb\n\x1b[2J\r\u202e\u200b\x9b\ud800\x00h\u00e9") == "a\tb\n\\x1b[2J\\r\\u202e\\u200b\\x9b\\ud800\\x00h\u00e9"


# With real workers, whose replies are read as those of another tenant's package.


@pytest.fixture
def foreign(platform):
    with platform.lease(wait=60) as lease:
        lease._functions.origin = _foreign.Foreign(_foreign.described("words", "alice"))
        yield lease


class Evil:
    def __reduce__(self):
        return eval, ("__import__('test_foreign').touch()",)


def evil(*_):
    return Gadget(os.system, ("true",))


REFUSED = "package words of tenant alice: its result has the class or function"


def test_calls_return_plain_values(foreign):
    value = {"a": numpy.arange(5000), "b": [1, "x", datetime.date(2024, 1, 2)]}
    found = foreign.call(lambda value: value, value)
    assert (found.pop("a") == value.pop("a")).all() and found == value
    assert foreign.submit(len, [1, 2]).result(60) == 2
    assert list(foreign.map(lambda x: x * x, range(100))) == [x * x for x in range(100)]


def test_every_way_to_call_refuses_objects(foreign):
    for _ in range(3):
        # The first call takes another way than the later ones.
        with pytest.raises(sublet.UntrustedResult, match=REFUSED):
            foreign.call(evil)
    with pytest.raises(sublet.UntrustedResult, match=REFUSED):
        foreign.submit(evil).result(60)
    with pytest.raises(sublet.UntrustedResult, match=REFUSED):
        list(foreign.map(evil, range(10)))
    with pytest.raises(sublet.UntrustedResult, match=REFUSED):
        list(foreign.starmap(evil, [(1,)]))
    with pytest.raises(sublet.UntrustedResult, match=REFUSED):
        foreign.options(timeout=60).call(evil)

    async def mapped():
        return [one async for one in foreign.map(evil, range(3))]

    with pytest.raises(sublet.UntrustedResult, match=REFUSED):
        asyncio.run(mapped())

    async def awaited():
        return await foreign.submit(evil)

    with pytest.raises(sublet.UntrustedResult, match=REFUSED):
        asyncio.run(awaited())
    assert foreign.call(abs, -1) == 1


def test_an_executor_refuses_objects(executor):
    executor.lease._functions.origin = _foreign.Foreign(_foreign.described("words", "alice"))
    with pytest.raises(sublet.UntrustedResult, match=REFUSED):
        executor.submit(evil).result(60)
    assert executor.submit(abs, -1).result(60) == 1


def test_imposes_no_class(foreign):
    class Mine:
        limit = 1

    def changed(mine):
        type(mine).limit = 9
        return mine

    with pytest.raises(sublet.UntrustedResult, match="of_identifier|eval|getattr|class"):
        foreign.call(changed, Mine())
    assert Mine.limit == 1


def test_exceptions_are_described_in_words(foreign):
    class Odd(KeyError):
        def __reduce__(self):
            return touch, ()

    def fail():
        raise Odd("\x1b[2Jgone") from ValueError(3)

    for call in (lambda: foreign.call(fail), lambda: foreign.submit(fail).result(60), lambda: list(foreign.map(lambda _: fail(), [1]))):
        with pytest.raises(KeyError) as caught:
            call()
        error = caught.value
        assert isinstance(error, sublet.RemoteError) and "Odd" in error.kind and "\x1b" not in str(error) and "\\x1b[2Jgone" in str(error)
        assert isinstance(error.__cause__, sublet.RemoteError) and isinstance(error.__cause__, ValueError)
        assert "fail" in error.__cause__.__cause__.text and "\x1b" not in error.__cause__.__cause__.text


def test_a_raised_exit_ends_nothing(foreign):
    with pytest.raises(sublet.RemoteError, match="SystemExit"):
        foreign.call(sys.exit, 3)


def test_prints_are_escaped(foreign, capsys, caplog):
    def noisy():
        print("\x1b]0;title\x07 a line")
        logging.getLogger("root.audit").error("\x1b[31mred\nline")

    with caplog.at_level(logging.INFO):
        foreign.call(noisy)
    out = capsys.readouterr().out
    assert out == "\\x1b]0;title\\x07 a line\n"
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("sublet.foreign", "root.audit: \\x1b[31mred\nline")]


@pytest.mark.parametrize("entries", [[("stdout", Evil())], [("log", {"msg": "x"})], [("stdout", 3)], 3, [1], [("log", {"msg": 1})]])
def test_invalid_prints_are_an_error(entries):
    foreign = _foreign.Foreign(_foreign.described("words", "alice"))
    with pytest.raises(sublet.UntrustedResult, match="what it has printed"):
        foreign.show(pickle.dumps(entries, 5))


def test_prints_are_bounded(capsys):
    _foreign.show([("stdout", "x" * 1000)] * 5000)
    captured = capsys.readouterr()
    assert len(captured.out) <= _foreign.MOST_TEXT and "is dropped" in captured.err


def test_entries_of_prints_are_bounded(capsys):
    shown = []
    _foreign.show(shown.append(number) or ("stdout", "") for number in range(_foreign.MOST_ENTRIES + 10))
    assert len(shown) == _foreign.MOST_ENTRIES
    assert capsys.readouterr().out == ""


def test_exceptions_of_a_description_are_bounded():
    fields = {"names": [], "cause": None, "context": None, "kind": "K", "message": "m", "notes": None, "is_context_suppressed": False}
    read = []
    errors = (read.append(number) or fields for number in range(_foreign.MOST_ERRORS + 10))
    assert isinstance(_foreign.rebuilt({"errors": errors, "text": ""}), sublet.RemoteError)
    assert len(read) == _foreign.MOST_ERRORS


@pytest.mark.parametrize("description", [3, {}, {"errors": [], "text": ""}, {"errors": [{"names": [1]}], "text": ""}, {"errors": 1, "text": 2}])
def test_invalid_descriptions_of_exceptions_are_an_error(description):
    foreign = _foreign.Foreign(_foreign.described("words", "alice"))
    assert isinstance(foreign.failure(pickle.dumps(description)), sublet.UntrustedResult)


@pytest.mark.parametrize("answer", [3, ([], None, 0.1), ([1, 2, 3], None, 0.1), ([1, 2], None, float("nan")), ([1, 2], {}, 0.1), ([1, 2], None, "x")])
def test_maps_end_when_the_answer_is_invalid(answer):
    class Sent:
        def took(self, count, seconds):
            raise AssertionError("not an answer")

    chunk = _map.Chunk(Sent(), 2)
    chunk._end(answer, None)
    assert isinstance(chunk.exception(0), sublet.Error)


def test_only_own_packages_are_unpickled(platform):
    made = []

    class Invoker:
        def __init__(self, is_own):
            self._is_own = is_own

        def package(self):
            return "words", "sha256:0", [], True, self._is_own, "alice"

        def workers(self):
            return 1

        def call(self):
            raise AssertionError

        def shares_memory(self):
            return False

        def deallocate(self):
            return []

    for is_own in (True, False):
        functions = _calls.Functions()
        lease = _lease.Lease(platform, Invoker(is_own), functions)
        lease.close()
        made.append(functions.origin)
        assert functions.known("words:f").load == functions.origin.load
    assert made[0] is _calls.OWN and isinstance(made[1], _foreign.Foreign)


@pytest.mark.parametrize(
    ("package", "is_path"),
    [("words", False), ("alice/words", False), ("public/words", False), ("sha256:00", False), ("alice/words@sha256:00", False)]
    + [("./words", True), (".", True), ("/srv/words", True), ("libx.so", True), (pathlib.Path("words"), True)],
)
def test_names_are_not_taken_for_paths(package, is_path):
    assert _package.is_path(package) is is_path


def test_packages_by_name_reach_no_registered_memory(platform, tmp_path):
    (tmp_path / "sublet.toml").write_text('name = "own"\nkind = "python"\nlibrary = "own.py"\n')
    (tmp_path / "own.py").write_text("def fill(array, value):\n    array[:] = value\n    return array.sum()\n")
    array = sublet.zeros(1000)
    with platform.lease(package=tmp_path, wait=60) as lease:
        assert lease.call("own:fill", array, 1.0) == 1000 and array.sum() == 1000
    with platform.lease(package="own", wait=60) as lease:
        # It has a copy.
        assert lease.call("own:fill", array, 2.0) == 2000 and array.sum() == 1000


def test_refuses_to_share_memory_with_another_tenants_package(platform, monkeypatch):
    begin = _lease.Lease.__init__

    def begin_foreign(lease, client, invoker, functions):
        begin(lease, client, invoker, functions)
        functions.origin = _foreign.Foreign("package words of tenant alice")

    monkeypatch.setattr(_lease.Lease, "__init__", begin_foreign)
    with pytest.raises(sublet.InvalidArgument, match="share_arrays=True is only allowed for your own packages"):
        platform.lease(share_arrays=True, wait=60)


def test_failures_of_graphs_are_shown_escaped(capsys):
    fields = {"kind": "a.B", "message": "\x1bx", "names": ["a.B", "builtins.ValueError"], "notes": [], "cause": None, "context": None}
    report = {"printed": [["stdout", "\x1b[2J"]], "text": "\x1btext", "errors": [{**fields, "is_context_suppressed": False}]}
    error = _failure._remote(json.dumps(report), False)
    assert isinstance(error, ValueError) and "\x1b" not in str(error) and "\x1b" not in error.__cause__.text
    assert capsys.readouterr().out == "\\x1b[2J"


@pytest.mark.parametrize("level", [-5, 1 << 40])
def test_levels_out_of_range_do_not_replace_the_error(level, caplog):
    record = {"name": "n", "levelno": level, "levelname": "x", "msg": "said", "pathname": "", "lineno": 1, "funcName": "f", "created": 1e300}
    fields = {"kind": "a.B", "message": "x", "names": [], "notes": [], "cause": None, "context": None, "is_context_suppressed": False}
    report = json.dumps({"printed": [["log", record]], "text": "", "errors": [fields]})
    with caplog.at_level(logging.DEBUG, "sublet.foreign"):
        assert isinstance(_failure._remote(report, False), sublet.RemoteError)


def test_an_app_with_another_package_is_read_restricted():
    @sublet.app
    def own(x):
        return x

    assert own._origin() is _calls.OWN
    graph = own.graph
    graph["components"].append({"name": "other", "type": "compute", "package": "alice/words", "function": "f"})
    own.graph = graph
    origin = own._origin()
    with pytest.raises(sublet.UntrustedResult, match="alice/words"):
        components.State.of(components.MAGIC + pickled(evil()), origin.load)


# With two tenants.

WORDS = """
import os

def count(text):
    return len(text.split())

class Taken:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)

def taken(path):
    return Taken(path)

def noisy():
    print("\x1b[2J")
    raise LookupError("\x1b[2J")
"""


def client_of(platform, tenant):
    """A client of another tenant on the platform."""
    command = [program(), "--json", "token", "create", "--tenant", tenant]
    made = subprocess.run(command, env={**os.environ, "SUBLET_MANAGER": platform.managers}, stdout=subprocess.PIPE, check=True)
    return sublet.Client(platform.managers, token=json.loads(made.stdout)["secret"])


def test_executes_nothing_of_another_tenants_package(platform, tmp_path, capsys):
    alice, folder, made = client_of(platform, "alice"), tmp_path / "words", tmp_path / "made"
    folder.mkdir()
    (folder / "sublet.toml").write_text('name = "words"\nkind = "python"\nlibrary = "words.py"\n')
    (folder / "words.py").write_text(WORDS)
    with alice.lease(package=folder, wait=60):
        # Deployed, for others to lease.
        pass
    with platform.lease(package="alice/words", wait=60) as lease:
        assert lease.call("words:count", "to be or not") == 4
        with pytest.raises(sublet.UntrustedResult, match="package words of tenant alice: .*posix.mkdir"):
            lease.call("words:taken", str(made))
        assert not made.exists()
        with pytest.raises(LookupError) as caught:
            lease.call("words:noisy")
        assert "\x1b" not in str(caught.value) and capsys.readouterr().out == "\\x1b[2J\n"
    with alice.lease(package="words", wait=60) as lease, contextlib.suppress(TypeError):
        # Its owner's own: as its functions say.
        lease.call("words:taken", str(made))
    assert made.exists()
