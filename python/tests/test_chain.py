"""Functions that call functions of their package, in place, and programs that functions spawn."""

import time

import pytest

import sublet
from sublet import _modules, _package, xpu

MODULE = """
import os
import sublet
from sublet import xpu

def resize(image):
    return sublet.call("compress", image[::2], level=3)

def compress(data, level=1):
    if not data:
        raise ValueError("nothing to compress")
    return sublet.call("checksum", bytes(data)), level

def checksum(data):
    return sum(data) % 251

def shout(text):
    return bytes(sublet.call("upper", text))

def upper(text):
    if bytes(text) == b"quiet":
        raise RuntimeError("not now")
    return bytes(text).upper()

def lost(_=None):
    return sublet.call("absent")

def open_news():
    global news
    news = xpu.fifo("news")
    return news.object

def spawn(path, *words, **env):
    return xpu.spawn(xpu.units()[0], path, *words, env=env, capabilities=[(news, xpu.WRITE)])

def hear():
    message, writer = news.read(10)
    return message.decode(), writer

def unit(number):
    return xpu.units()[number]
"""

PROGRAM = """
import os, sys
from sublet import xpu
from m import checksum

with xpu.connect(sys.argv[1], 10) as news:
    news.write(f"{xpu.pid()} {sys.argv[1:]} {os.environ.get('COLOUR')} {__name__} {checksum(b'ab')}".encode(), 10)

    try:
        xpu.grant(xpu.pid(), news, xpu.READ)
    except sublet_error as error:
        news.write(str(error).encode(), 10)

if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
while True:
    os.read(os.pipe()[0], 1)
""".replace("sublet_error", "PermissionError")


@pytest.fixture
def words(platform, tmp_path):
    # With what interpreters need that have no package `sublet`.
    _package.write(tmp_path, (), _modules.Selection())
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "stage.py").write_text(PROGRAM)
    (tmp_path / "notes.txt").write_text("no program")
    names = ("resize", "compress", "checksum", "shout", "upper", "lost", "open_news", "spawn", "hear", "unit")
    functions = "".join(f'[[function]]\nname = "{name}"\n' for name in names)
    (tmp_path / "sublet.toml").write_text(f'name = "words"\nkind = "python"\nlibrary = "m.py"\n{functions}')
    with platform.lease(package=tmp_path, wait=60) as lease:
        yield lease


def test_a_function_calls_others_with_any_arguments(words):
    assert words.call("resize", bytes(range(10))) == (20, 3)
    assert words.call("shout", b"loud") == b"LOUD"


def test_an_error_in_the_middle_names_the_function_where_it_was_raised(words):
    with pytest.raises(ValueError, match="nothing to compress") as raised:
        words.call("resize", b"")
    assert raised.value.__notes__[0] == "in function compress"
    with pytest.raises(LookupError, match="no function absent"):
        words.call("lost")
    # Callers in other languages see this message.
    sent = words._invoker.call_bytes("shout", b"quiet", 64)
    sent.wait()
    with pytest.raises(sublet.FunctionFailed, match=r"RuntimeError: not now \(in function upper\)"):
        sent.bytes()


def test_outside_of_a_worker_nothing_is_called():
    with pytest.raises(sublet.InvalidArgument, match="this process is not one"):
        sublet.call("resize")


def test_a_program_in_python_has_what_it_was_given(words, platform):
    words.call("open_news")
    child = spawn_when_a_core_is_free(words, "stage.py", "news", COLOUR="blue")
    said, writer = words.call("hear")
    assert writer == child and child != words.call(xpu.pid)
    assert said == f"{child} ['news'] blue __main__ {(97 + 98) % 251}"
    assert "no right to own" in words.call("hear")[0]


def test_a_program_that_ends_makes_room_for_the_next(words):
    words.call("open_news")
    for _ in range(3):
        child = spawn_when_a_core_is_free(words, "stage.py", "news", "0")
        assert words.call("hear")[1] == child
        words.call("hear")


def spawn_when_a_core_is_free(words, *arguments, **env):
    # A core is free again when its agent has said so.
    for _ in range(18_000):
        try:
            return words.call("spawn", *arguments, **env)
        except sublet.NoCapacity:
            time.sleep(0.01)
    raise AssertionError("the core is not free again")


def test_what_is_no_program_of_the_package_is_refused(words):
    words.call("open_news")
    for path in ("../stage.py", "/bin/sh", "nothing.py", "notes.txt", ""):
        with pytest.raises(sublet.InvalidArgument, match="path|no program"):
            spawn_when_a_core_is_free(words, path)
    with pytest.raises(IndexError):
        words.call("unit", 7)
