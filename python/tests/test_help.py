"""The examples of the command's help texts: each is run as it is printed, on a platform that the test starts."""

import collections
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import page  # noqa: E402: it is beside this file

# The help texts, in the order in which their examples are run: before `deploy` there is no platform of the user.
ORDER = [
    "completions", "manual", "fabrics", "doctor", "manager", "agent", "store", "up",
    "deploy", "", "call", "ps", "pus", "graph", "graph trigger", "runner", "run", "logs", "bill", "profile", "package", "environment",
    "secret", "tenant", "token", "gc", "lease", "memory", "memory mount", "sandbox", "image", "bench",
]  # fmt: skip
# Reasons for which an example may be left out, each with what it means.
REASONS = {
    "measures": "it measures for minutes",
    "needs a running run": "it ends a run, which has to be in progress",
    "needs three cores": "it lends more cores than small machines have",
    "shows all options": "its manifest has options for packages of different kinds",
}
# Examples that are run until they serve.
SERVING = [
    "sublet manager", "sublet manager --state ./m --listen 0.0.0.0:7433",
    "sublet manager --global --store nats --store-url nats://n1:4222 --state ./g",
    "sublet agent", "sublet agent --manager https://m1:7433,https://m2:7433 --ca ca.pem --token-file token", "sublet agent --listen ''",
    "sublet up", "sublet up --cores 2 --memory 4GiB",
    "sublet up --listen 0.0.0.0:7441", "sublet up --state /tmp/s",
    "sublet runner", "sublet runner --at-once 64",
    "sublet memory mount /tmp/spill", "sublet memory mount /tmp/spill --limit 64GiB --near node7",
    "sublet memory mount /tmp/spill --limit 64GiB", "sublet memory mount /tmp/spill --fallback /var/tmp",
]  # fmt: skip
# Examples that are left out: by help text, and by how they begin.
LEFT_OUT = {
    "bench": {
        f"sublet bench {name}": "measures"
        for name in ("latency", "bandwidth", "memory", "swap", "graph", "cold --sandbox", "lease", "reject", "chain")
    },
    "deploy": {"sublet deploy ./pricing": "shows all options"},
    "graph": {"sublet graph cancel": "needs a running run"},
    "up": {"sublet up --cores 3": "needs three cores"},
}
# How many examples are left out, by reason. A number only falls.
NOT_RUN = {"measures": 13, "needs a running run": 1, "needs three cores": 1, "shows all options": 2}
# Examples that are run with another help text, which has the same one.
REPEATED = {
    "": ["sublet up", "sublet manager", "sublet agent", "sublet runner", "sublet profile app.py", "sublet memory mount /tmp/spill"],
    "graph": ["sublet graph trigger app.json --files inbox"],
    "memory mount": ["sublet memory mount /tmp/spill"],
}
# Examples that are run after those of another help text, which makes what they assume.
MOVED = {("", "sublet store check"): "store"}
# Functions of `worlds/help.sh` that are called before an example, by how it begins.
BEFORE = {"sublet agent --drain": "start_agent", "sublet graph resume": "lose_client"}
# Functions of `worlds/help.sh` that run an example in place of `run`, by how it begins.
RUNNERS = {
    "sublet graph trigger": "trigger",
    "tail ": "trigger",
    "sublet call libx/f --shared": "run_on_shared_core",
    "sublet memory unmount": "run_on_mounted_folder",
    "sublet image pull debian:12": "run_with_registry",
    "sublet sandbox start": "run_with_sandboxes",
    "sublet sandbox kill": "run_with_sandboxes",
    "sublet sandbox delete": "run_with_sandboxes",
}


def help_of(name):
    """The help text of a command, with lines as long as they are."""
    command = [Path(sys.executable).parent / "sublet", *name.split(), "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "1000"}).stdout


def examples_of(name):
    """The examples of a help text, each with the manifest below it."""
    _, examples = help_of(name).split("\nExamples:\n")
    found = []
    for line in examples.split("\nEnvironment:\n")[0].splitlines():
        command = re.match(r"  (\S.*?)(?:  |$)", line)
        if command and re.match("(sublet|source|echo|tail|sudo) ", command[1]):
            found.append((command[1], []))
        elif line.startswith("      ") and found and line[6:7].isalpha() | line[6:7].startswith("["):
            found[-1][1].append(line[6:])
    return found


def by_beginning(table, example):
    """The value of the table for the beginning of an example, or `None`."""
    return next((value for start, value in table.items() if example.startswith(start)), None)


def reason_of(name, example):
    """Why an example is not run, or `None`."""
    return by_beginning(LEFT_OUT.get(name, {}), example)


def is_run_elsewhere(name, example):
    """Whether an example is run with those of another help text."""
    return example in REPEATED.get(name, ()) or (name, example) in MOVED


def script():
    """A script that runs all examples, and calls functions of `worlds/help.sh` before and after those of a help text."""
    lines = ["set -e -o pipefail", f"source {shlex.quote(str(page.WORLDS / 'help.sh'))}"]
    for name in ORDER:
        label = name.replace(" ", "_") or "sublet"
        lines.append(f"if declare -F before_{label} >/dev/null; then before_{label}; fi")
        for example, manifest in examples_of(name):
            if reason_of(name, example) or is_run_elsewhere(name, example):
                continue
            lines += filter(None, [by_beginning(BEFORE, example)])
            if manifest and example.startswith("sublet deploy ./"):
                file = shlex.quote(example.removeprefix("sublet deploy ./") + "/sublet.toml")
                lines += [f"cat >{file} <<'END'", *manifest, "END"]
            runner = "serve" if example in SERVING else by_beginning(RUNNERS, example) or "run"
            lines.append(f"{runner} {shlex.quote(example)}")
        lines += [f"run_on_{place} {shlex.quote(example)}" for (_, example), place in MOVED.items() if place == name]
        lines.append(f"if declare -F after_{label} >/dev/null; then after_{label}; fi")
    return "\n".join([*lines, "finish", ""])


def test_every_help_text_is_in_the_order():
    listed = re.findall(r"^  (\w+) ", help_of("").split("\nCommands:\n")[1].split("\nOptions:\n")[0], re.MULTILINE)
    assert sorted(set(listed) - {"help"}) == sorted(set(ORDER) - {"", "graph trigger", "memory mount"})


def test_examples_that_are_not_run_have_a_reason_and_become_fewer():
    reasons = [reason_of(name, example) for name in ORDER for example, _ in examples_of(name)]
    found = collections.Counter(reason for reason in reasons if reason)
    assert set(found) <= set(REASONS)
    assert found == NOT_RUN, "write the number that is there now if it is smaller; otherwise have the example run"


def test_examples_that_are_run_elsewhere_are_run():
    run = {example for name in ORDER for example, _ in examples_of(name) if not reason_of(name, example) and not is_run_elsewhere(name, example)}
    for name, examples in REPEATED.items():
        assert set(examples) <= {example for example, _ in examples_of(name)} & run
    assert all(example in dict(examples_of(name)) and place in ORDER for (name, example), place in MOVED.items())


def test_examples_run_as_printed(installed, tmp_path):
    if os.getuid() != 0:
        pytest.skip("needs root")
    home, work, machine = tmp_path / "home", tmp_path / "work", tmp_path / "machine"
    for folder in (home, work, machine):
        folder.mkdir()
    environment = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PAGE_SOURCES": str(page.ROOT)}
    (tmp_path / "examples.sh").write_text(script())
    command = [Path(__file__).parent / "machine.sh", machine, "bash", tmp_path / "examples.sh"]
    ran = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
