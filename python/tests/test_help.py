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
    "deploy", "", "call", "ps", "pus", "graph", "graph trigger", "runner", "run", "logs", "bill", "package", "environment",
    "secret", "tenant", "token", "gc", "lease", "sandbox", "image", "bench",
]  # fmt: skip
# Reasons for which an example may be left out, each with what it means.
REASONS = {
    "measures": "it measures for minutes",
    "needs a registry": "it needs the image debian:12, or a registry",
    "needs an environment": "it needs an environment that was made in Python, as test_environments.py makes it",
    "needs a running run": "it ends a run, which has to be in progress",
    "needs events": "it runs as long as there are events, as the platform's tests of triggers send them",
    "needs identifiers": "it names sandboxes, whose numbers differ",
    "needs sudo": "it needs sudo",
    "needs a lost client": "it needs a run whose client is gone",
    "needs a sharing node": "it needs a node with shared cores",
    "serves": "it is run where the user's platform does not run",
}
# Examples that are run until they serve.
SERVING = [
    "sublet manager", "sublet manager --state ./m --listen 0.0.0.0:7433",
    "sublet manager --global --store nats --store-url nats://n1:4222 --state ./g",
    "sublet agent", "sublet agent --manager https://m1:7433,https://m2:7433 --ca ca.pem --token-file token", "sublet agent --listen ''",
    "sublet up", "sublet up --cores 2 --memory 4GiB", "sublet up --cores 3 --shared-cores 1",
    "sublet up --listen 0.0.0.0:7441", "sublet up --state /tmp/s",
    "sublet runner", "sublet runner --at-once 64",
]  # fmt: skip
# Examples that are left out: by help text, and by how they begin.
LEFT_OUT = {
    "": {"sublet up": "serves", "sublet manager": "serves", "sublet agent": "serves", "sublet runner": "serves",
         "sublet store check": "serves"},
    "bench": {"sublet bench": "measures"},
    "call": {"sublet call libx/f --shared": "needs a sharing node"},
    "deploy": {"sublet deploy ./pricing": "needs a registry"},
    "doctor": {"sudo ": "needs sudo"},
    "environment": {"sublet environment show": "needs an environment", "sublet environment remove": "needs an environment"},
    "graph": {"sublet graph resume": "needs a lost client", "sublet graph trigger": "needs events", "sublet graph top": "needs events",
              "sublet graph cancel": "needs a running run"},
    "graph trigger": {"sublet graph trigger": "needs events", "tail ": "needs events"},
    "image": {"sublet image pull": "needs a registry", "sublet image import": "needs a registry",
              "sublet image show": "needs a registry", "sublet image remove": "needs a registry"},
    "sandbox": {"sublet sandbox create --start --image": "needs a registry", "sublet sandbox start": "needs identifiers",
                "sublet sandbox kill": "needs identifiers", "sublet sandbox delete": "needs identifiers"},
    "up": {"sublet up --cores 3": "needs a sharing node"},
}  # fmt: skip
# How many examples are left out, by reason. A number only falls.
NOT_RUN = {
    "measures": 17,
    "needs a lost client": 1,
    "needs a running run": 1,
    "needs a registry": 8,
    "needs a sharing node": 2,
    "needs an environment": 2,
    "needs events": 6,
    "needs identifiers": 3,
    "needs sudo": 1,
    "serves": 5,
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


def reason_of(name, example):
    """Why an example is not run, or `None`."""
    return next((reason for start, reason in LEFT_OUT.get(name, {}).items() if example.startswith(start)), None)


def script():
    """A script that runs all examples, and calls functions of `worlds/help.sh` before and after those of a help text."""
    lines = ["set -e -o pipefail", f"source {shlex.quote(str(page.WORLDS / 'help.sh'))}"]
    for name in ORDER:
        label = name.replace(" ", "_") or "sublet"
        lines.append(f"if declare -F before_{label} >/dev/null; then before_{label}; fi")
        for example, manifest in examples_of(name):
            if reason_of(name, example):
                continue
            if example == "sublet agent --drain":
                lines.append("start_agent")
            if manifest and example.startswith("sublet deploy ./"):
                file = shlex.quote(example.removeprefix("sublet deploy ./") + "/sublet.toml")
                lines += [f"cat >{file} <<'END'", *manifest, "END"]
            lines.append(f"{'serve' if example in SERVING else 'run'} {shlex.quote(example)}")
        lines.append(f"if declare -F after_{label} >/dev/null; then after_{label}; fi")
    return "\n".join([*lines, "finish", ""])


def test_every_help_text_is_in_the_order():
    listed = re.findall(r"^  (\w+) ", help_of("").split("\nCommands:\n")[1].split("\nOptions:\n")[0], re.MULTILINE)
    assert sorted(set(listed) - {"help"}) == sorted(set(ORDER) - {"", "graph trigger"})


def test_examples_that_are_not_run_have_a_reason_and_become_fewer():
    reasons = [reason_of(name, example) for name in ORDER for example, _ in examples_of(name)]
    found = collections.Counter(reason for reason in reasons if reason)
    assert set(found) <= set(REASONS)
    assert found == NOT_RUN, "write the number that is there now if it is smaller; otherwise have the example run"


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
