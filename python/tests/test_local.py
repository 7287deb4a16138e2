"""Platforms of a program's own: they end when the program does, in whichever way, and leave nothing."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import sublet
from sublet import _command
from waiting import PATIENCE, until

OPTIONS = "cores=1, memory='1GiB'"


@pytest.fixture
def folder():
    """Where the programs make their folders: a path that is longer than a socket's address holds, as in batch systems."""
    with tempfile.TemporaryDirectory() as above:
        folder = os.path.join(above, "t" * 110)
        os.mkdir(folder)
        yield folder


def begin(folder, text):
    """Starts a program; returns it when it has said where its platform is, with that and the platform's process."""
    environment = {**os.environ, "TMPDIR": folder}
    program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=environment)
    said = program.stdout.readline().split()
    assert len(said) == 2, "the program has not said where its platform is"
    return program, said[0], int(said[1])


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


STARTED = f"""
import os, sublet, sys, threading, time
platform = sublet.local({OPTIONS})
def start():
    client = platform.start()
    print(client.managers, platform._process.pid, flush=True)
"""
IN_THREAD = """
thread = threading.Thread(target=start)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("where", ["start()\n", IN_THREAD], ids=["main thread", "another thread"])
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "1 / 0"], ids=["returns", "exits", "raises"])
def test_a_platform_ends_with_its_program_and_leaves_no_folder(folder, where, end):
    text = STARTED + where + "lease = sublet.lease(wait=180)\nassert lease.call(abs, -1) == 1\n" + end
    program, _, pid = begin(folder, text)
    program.wait(PATIENCE)
    assert not is_alive(pid), "the program did not wait for its platform's end"
    assert os.listdir(folder) == []


@pytest.mark.parametrize("where", ["start()\n", IN_THREAD], ids=["main thread", "another thread"])
def test_a_platform_ends_with_a_program_that_is_killed(folder, where):
    program, managers, pid = begin(folder, STARTED + where + "time.sleep(600)")
    # After this time a platform with a request to stop would have stopped.
    time.sleep(2)
    assert is_alive(pid), "the platform has ended with the thread that has started it"
    with sublet.Client(managers).lease(wait=180) as lease:
        assert lease.call(abs, -1) == 1
    program.kill()
    program.wait()
    until(lambda: not is_alive(pid), "the end of the platform")
    left = os.listdir(folder)
    assert len(left) == 1
    # The next program removes what the killed one has left.
    program, _, _ = begin(folder, STARTED + "start()\n")
    program.wait(PATIENCE)
    assert os.listdir(folder) == []


def test_folders_that_are_in_use_stay(folder):
    first, managers, pid = begin(folder, STARTED + "start()\ntime.sleep(600)")
    try:
        second, _, _ = begin(folder, STARTED + "start()\n")
        second.wait(PATIENCE)
        with sublet.Client(managers).lease(wait=180) as lease:
            assert lease.call(abs, -1) == 1
    finally:
        first.send_signal(signal.SIGINT)
        first.wait(PATIENCE)
    assert os.listdir(folder) == []


def test_folder_of_a_platform_that_has_not_ended_stays(folder):
    program, _, pid = begin(folder, STARTED + "start()\ntime.sleep(600)")
    # Its platform cannot end while it is stopped.
    os.kill(pid, signal.SIGSTOP)
    try:
        program.kill()
        program.wait()
        begin(folder, STARTED + "start()\n")[0].wait(PATIENCE)
        assert len(os.listdir(folder)) == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not is_alive(pid), "the end of the platform")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_folders_of_others_stay(tmp_path, monkeypatch):
    from sublet import _local

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("others", "linked", "own"):
        (tmp_path / (_local._PREFIX + name)).mkdir()
    for name in ("others", "own"):
        (tmp_path / (_local._PREFIX + name) / _local._LOCK).touch(0o600)
    os.chown(tmp_path / (_local._PREFIX + "others") / _local._LOCK, 1, 1)
    (tmp_path / "elsewhere").touch(0o600)
    (tmp_path / (_local._PREFIX + "linked") / _local._LOCK).symlink_to(tmp_path / "elsewhere")
    _local._remove_old()
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", _local._PREFIX + "others", _local._PREFIX + "linked"}


def test_a_forked_process_leaves_its_parents_platform_alone(folder):
    text = STARTED + (
        "with platform:\n"
        "    print(sublet.default_client().managers, platform._process.pid, flush=True)\n"
        "    if os.fork() == 0:\n"
        "        platform.stop()\n"
        "        sys.exit()\n"
        "    os.wait()\n"
        "    with sublet.lease(wait=180) as lease:\n"
        "        assert lease.call(abs, -1) == 1\n"
    )
    program, _, _ = begin(folder, text)
    assert program.wait(PATIENCE) == 0
    assert os.listdir(folder) == []


def test_command_does_not_take_its_own_script_for_the_program(tmp_path, monkeypatch):
    script = tmp_path / "sublet"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(_command, "_CARRIED", tmp_path / "none")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="neither in its Python package nor on PATH"):
        _command.program()
