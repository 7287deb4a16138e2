"""`sublet profile`: proposed splits, their patches, and predictions that are compared with runs."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sublet import _profile_plan as planner
from sublet import profile
from sublet._profile_plan import Sample

MIB = 1 << 20
# The first half needs 64 MiB, and hands on 8 MiB; the second half needs little more than that.
PROGRAM = """\
import sys
import time

import sublet


@sublet.app
def halves(n: int):
    \"\"\"Not a split.\"\"\"
    table = bytearray(n)
    time.sleep(0.2)
    kept = bytes(table[: n // 8])
    # The table is not read again.
    total = sum(kept)
    time.sleep(0.6)
    return len(kept) + total


if __name__ == "__main__":
    print(halves(int(sys.argv[1])))
"""


def sample(line, seconds, base, peak, live, **rest):
    return Sample(line, seconds, base, peak, {"x": live}, **rest)


def run(*arguments, cwd, **environment):
    """Runs the command; returns the ended process."""
    command = [sys.executable, "-m", "sublet.profile", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


def write(folder, text, name="app.py"):
    path = folder / name
    path.write_bytes(text.encode())
    return path


def proposal(folder, *arguments):
    """The proposals of the command for the program in a folder, by the names of applications."""
    ended = run("--json", *arguments, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return {one["app"]: one for one in json.loads(ended.stdout)["apps"]}


# The planner.


def test_a_split_is_where_little_is_live_between_two_parts():
    samples = [sample(1, 1, 0, 100, 0), sample(2, 1, 100, 100, 90), sample(3, 4, 100, 100, 5), sample(4, 4, 100, 110, 5)]
    plan = planner.plan(samples, start=0)
    assert plan.splits == [2]
    assert plan.byte_seconds_before == 110 * 10
    assert plan.byte_seconds_after == pytest.approx(100 * 2 + (5 + 10) * 8)


def test_no_split_is_proposed_where_all_is_live():
    samples = [sample(number, 1, 100 if number else 0, 100, 100 if number else 0) for number in range(6)]
    assert planner.plan(samples).splits == []


def test_splits_that_are_there_are_kept_and_those_that_are_refused_are_not_proposed():
    samples = [sample(1, 1, 0, 100, 0), sample(2, 5, 100, 100, 1, refused="no"), sample(3, 5, 100, 100, 1, is_split=True), sample(4, 1, 100, 100, 1)]
    plan = planner.plan(samples, start=0)
    assert plan.splits == [] and [section.first for section in plan.before] == [section.first for section in plan.after] == [0, 2]


def test_starts_that_take_longer_than_the_parts_are_not_worth_a_split():
    samples = [sample(1, 1, 0, 100, 0), sample(2, 1, 100, 100, 50)]
    assert planner.plan(samples, start=0).splits == [1]
    assert planner.plan(samples, start=5).splits == []


def test_plans_of_random_measurements_are_the_best_ones():
    for seed in range(200):
        source = random.Random(seed)
        count = source.randint(1, 7)
        bases = [source.randint(0, 50) for _ in range(count)]
        refused = [source.choice([None, None, "no"]) for _ in range(count)]
        samples = [sample(n, source.random(), bases[n], bases[n] + source.randint(0, 60), source.randint(0, 30), refused=refused[n]) for n in range(count)]
        least, start = source.choice([0, 0.05, 0.3]), source.choice([0, 0.1])
        plan = planner.plan(samples, least, start)
        penalty = least * plan.byte_seconds_before

        def cost(splits):
            return sum(one.byte_seconds for one in planner._sections(samples, splits, start)) + penalty * len(splits)

        allowed = [n for n in range(1, count) if refused[n] is None]
        choices = [[n for bit, n in enumerate(allowed) if mask >> bit & 1] for mask in range(1 << len(allowed))]
        assert set(plan.splits) <= set(allowed)
        assert cost(plan.splits) == pytest.approx(min(map(cost, choices))), seed
        assert plan.byte_seconds_after <= plan.byte_seconds_before + 1e-9


# Histories.


def used(component, begin, end, size, instances=1):
    times = {"begin_us": begin, "end_us": end, "used_byte_us": size * (end - begin)}
    return {"component": component, "instances": instances, "used_bytes": size, **times}


def test_splits_between_components_of_the_same_memory_are_merged():
    components = [used("a", 0, 100, 50), used("b", 110, 200, 52), used("c", 210, 1000, 5), used("x", 50, 900, 10, instances=0)]
    found, unmeasured = planner.merges([{"components": components}] * 3)
    assert [(merge.first, merge.second) for merge in found] == [("a", "b")] and unmeasured == []
    # The second component has 2 bytes more than the first one for 100 us; 10 bytes are held for 10 us in between.
    assert found[0].saved_byte_seconds == pytest.approx((52 * 190 - 50 * 100 - 52 * 90 - 10 * 10) / 1e6)


def test_components_at_the_same_time_or_of_several_instances_are_not_merged():
    assert planner.merges([{"components": [used("a", 0, 100, 50), used("b", 50, 150, 50)]}]) == ([], [])
    assert planner.merges([{"components": [used("a", 0, 100, 50), used("b", 100, 150, 50, instances=2)]}]) == ([], [])


def test_components_that_a_run_skipped_or_that_were_not_measured_are_not_merged():
    both, one = [used("a", 0, 100, 50), used("b", 100, 150, 50)], [used("a", 0, 100, 50), used("b", 0, 0, 0)]
    assert planner.merges([{"components": both}, {"components": one}])[0] == []
    assert planner.merges([{"components": [used("a", 0, 100, 50), used("b", 100, 150, 0)]}]) == ([], ["b"])


# The command.


def test_the_patch_applies_and_the_program_computes_the_same(tmp_path):
    write(tmp_path, PROGRAM)
    ended = run("--patch", "split.patch", "app.py", 64 * MIB, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{8 * MIB}\n") and "wrote split.patch: patch -p0 < split.patch" in ended.stdout
    if shutil.which("patch") is None:
        pytest.skip("no patch")
    with open(tmp_path / "split.patch") as patch:
        subprocess.run(["patch", "-p0"], stdin=patch, cwd=tmp_path, check=True, capture_output=True)
    text = (tmp_path / "app.py").read_text()
    assert text.count("\n    sublet.split()\n") == 1
    assert text.replace("    sublet.split()\n", "") == PROGRAM
    found = proposal(tmp_path, "app.py", 64 * MIB)["halves"]
    assert found["splits"] == [] and len(found["before"]) == 2


def test_a_program_that_needs_no_split_is_told_so(tmp_path):
    write(tmp_path, "import sublet\n\n@sublet.app\ndef small(n: int):\n    a = n + 1\n    b = a * 2\n    return a + b\n\nsmall(1)\n")
    ended = run("--patch", "split.patch", "--start", 1, "app.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "needs no further split" in ended.stdout and "split.patch is not written" in ended.stdout
    assert not (tmp_path / "split.patch").exists()


def test_time_and_memory_are_those_of_the_statements(tmp_path):
    write(tmp_path, PROGRAM)
    found = proposal(tmp_path, "app.py", 64 * MIB)["halves"]
    first, second = found["after"]
    assert first["first_line"] == 10 and second["last_line"] == 16
    # The table, and the slice of it that becomes bytes.
    assert 64 * MIB <= first["own_bytes"] < 84 * MIB
    assert 8 * MIB <= second["handed_bytes"] < 8 * MIB + 1024 and second["own_bytes"] < MIB
    (split,) = found["splits"]
    assert "table" not in split["variables"] and split["variables"]["kept"] == second["handed_bytes"] - split["variables"].get("total", 0)
    assert found["byte_seconds_after"] < found["byte_seconds_before"]


def test_values_that_the_function_no_longer_has_are_not_counted(tmp_path):
    text = """\
import sublet

@sublet.app
def f(n: int):
    a = bytearray(n)
    if n > 0:
        a = None
        b = bytearray(n)
    return len(b)

f(1 << 25)
"""
    write(tmp_path, text)
    (whole,) = proposal(tmp_path, "app.py")["f"]["before"]
    assert 32 * MIB <= whole["own_bytes"] < 33 * MIB


def test_closures_defaults_and_decorated_names_are_those_of_the_program(tmp_path):
    text = """\
import sublet as s

def made(base):
    @s.app
    def inner(n, *, step=[base]):
        values = [n + base + step[0]]
        step.append(1)
        return values, len(step)
    return inner

print(made(5)(1), made(5)(1, step=[7]))
"""
    write(tmp_path, text)
    ended = run("app.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("([11], 2) ([13], 2)\n")


def test_files_keep_their_line_ends_and_a_missing_last_one(tmp_path):
    text = PROGRAM.partition("if __name__")[0].rstrip() + "\nhalves(1 << 26)"
    for name, ends in (("plain.py", text), ("windows.py", text.replace("\n", "\r\n"))):
        path = write(tmp_path, ends, name)
        assert run("--patch", f"{name}.patch", name, cwd=tmp_path).returncode == 0
        ending = b"\r\n" if name == "windows.py" else b"\n"
        inserted = [line for line in (tmp_path / f"{name}.patch").read_bytes().splitlines(keepends=True) if line.startswith(b"+ ")]
        assert inserted == [b"+    sublet.split()" + ending]
        assert path.read_bytes() == ends.encode()


def test_components_that_are_there_and_variables_without_pickles_are_no_places_for_splits(tmp_path):
    text = """\
import threading
import sublet

@sublet.app
def f(n: int):
    a = bytearray(n)
    b = len(a)
    if n > 5:
        sublet.split()
        c = 1
    else:
        c = 2
    lock = threading.Lock()
    with lock:
        d = b + c
    return d

f(100)
"""
    write(tmp_path, text)
    found = proposal(tmp_path, "app.py")["f"]
    assert [(section["first_line"], section["last_line"]) for section in found["before"]] == [(6, 7), (8, 12), (13, 16)]
    reasons = {refused["line"]: refused["reason"] for refused in found["refused"]}
    assert set(reasons) == {14} and reasons[14].startswith("lock cannot be passed to the next component")


FAILS = {
    "no application": ("print(1)\n", "invalid_argument", "app.py has called no application: decorate a function with @sublet.app"),
    "an exception": ("import sublet\n\n@sublet.app\ndef f():\n    return 1 // 0\n\nf()\n", "function_failed", "error[function_failed]: app.py has failed\n"),
    "an exit status": ("raise SystemExit(3)\n", "function_failed", "app.py has ended with the status 3\n"),
    "no Python": ("def\n", "function_failed", "error[function_failed]: app.py has failed\n"),
    "a change": (
        "import sublet\n\n@sublet.app\ndef f():\n    a = 1\n    return a\n\nf()\nopen(__file__, 'a').write('# more\\n')\n",
        "invalid_argument",
        "app.py was changed while it was profiled: profile it again",
    ),
    "no name for split": ("from sublet import app\n\n@app\ndef f():\n    a = 1\n    return a\n\nf()\n", "invalid_argument", "has no name for `split`"),
}


@pytest.mark.parametrize("case", FAILS)
def test_programs_that_cannot_be_profiled_are_named(case, tmp_path):
    text, code, why = FAILS[case]
    write(tmp_path, text)
    ended = run("--patch", "split.patch", "app.py", cwd=tmp_path)
    assert ended.returncode == {"invalid_argument": 10, "function_failed": 40}[code]
    assert f"error[{code}]: " in ended.stderr and why in ended.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["app.py"]


def test_a_patch_of_a_program_that_was_changed_since_is_rejected(tmp_path):
    if shutil.which("patch") is None:
        pytest.skip("no patch")
    path = write(tmp_path, PROGRAM)
    assert run("--patch", "split.patch", "app.py", 64 * MIB, cwd=tmp_path).returncode == 0
    changed = PROGRAM.replace("    kept = ", "    kept = other = ").replace("    total = ", "    total = more = ").replace("0.6", "0.5").replace("0.2", "0.1")
    path.write_text(changed)
    with open(tmp_path / "split.patch") as patch:
        ended = subprocess.run(["patch", "-p0", "--force", "--fuzz=0"], stdin=patch, cwd=tmp_path, capture_output=True)
    assert ended.returncode != 0 and path.read_text() == changed


@pytest.mark.parametrize("given", [[], ["--history", "a", "app.py"], ["--history", "a", "--check"]])
def test_command_lines_that_mean_nothing_are_refused(given, tmp_path):
    ended = run(*given, cwd=tmp_path)
    assert ended.returncode == 10 and "error[invalid_argument]: " in ended.stderr


@pytest.mark.parametrize("given", ["-1", "x", "101%"])
def test_percentages_are_checked(given, tmp_path):
    ended = run("--least", given, "app.py", cwd=tmp_path)
    assert ended.returncode == 10 and "is not a percentage from 0 to 100" in ended.stderr


def test_the_command_of_the_environment_has_it(tmp_path):
    command = Path(sys.executable).parent / "sublet"
    ended = subprocess.run([command, "profile", "--help"], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("usage: sublet profile") and "\nExamples:\n" in ended.stdout


# Against runs.

ON_PLATFORM = PROGRAM.replace("    print(halves(", '    with sublet.local(cores=1, memory="2GiB"):\n        print(halves.options(patience=60)(')


def test_the_prediction_is_what_a_run_uses(tmp_path):
    write(tmp_path, ON_PLATFORM)
    ended = run("--json", "--check", "app.py", 64 * MIB, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (checked,) = json.loads(ended.stdout)["checked"]
    (kept,) = [row for row in checked["memory"] if row["memory"] == "kept"]
    # The memory component holds what was predicted, within a quarter.
    assert 0.75 < kept["used_bytes"] / kept["predicted_bytes"] < 1.25
    assert 0 < checked["used_byte_seconds"] <= checked["allocated_byte_seconds"]
    # Tracing takes time, which the run does not take; a run holds the interpreter's pages as well.
    assert 0.1 < checked["byte_seconds_predicted"] / checked["used_byte_seconds"] < 10


def test_a_history_names_the_splits_that_save_nothing(tmp_path):
    text = """\
import os
import time

import sublet
from sublet import profile


@sublet.app
def even(n: int):
    first = bytearray(n)
    time.sleep(0.5)
    total = first[0]
    sublet.split("again")
    second = bytearray(n)
    time.sleep(0.5)
    return total + second[0]


def main():
    with sublet.local(cores=1, memory="2GiB") as client:
        os.environ["SUBLET_MANAGER"] = client._managers
        even.options(patience=60)(64 << 20)
        profile.main(["--json", "--history", "even"])
        profile.main(["--history", "even"])


main()
"""
    write(tmp_path, text)
    ended = subprocess.run([sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[0])
    if not found["unmeasured"]:
        assert [(merge["first"], merge["second"]) for merge in found["merges"]] == [("even_1", "again")]
        assert "Remove the split that begins again" in ended.stdout


def test_sizes_have_units():
    assert [profile.shown_bytes(size) for size in (0, 1023, 1536, 3 * MIB, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "3 MiB", "5 GiB"]
