"""Proposes where to split applications: `sublet profile [OPTIONS] FILE [ARGS]...` or `python -m sublet.profile`.

Runs a program in Python. Each call of a function with @sublet.app is executed here, in one process, as the function that it is; the time and
the memory of its statements are measured, and what a split before each of them would hand on. The splits that save the most
memory-time are proposed, with the memory-time before and after.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import _command_line, _errors, _profile, _profile_patch, _profile_plan
from ._command import program

_EXAMPLES = "\n".join(
    [
        "Examples:",
        "  sublet profile app.py                        show where to split the applications that app.py calls",
        "  sublet profile --patch split.patch app.py 7  the same with an argument, and write the splits: patch -p0 < split.patch",
        "  sublet profile --check app.py                run the proposed program on its platform as well, and compare",
        "  sublet profile --history regression          show which splits of its latest runs save nothing",
        "",
        "NumPy's arrays and Python's own objects are measured. Memory that other libraries allocate by themselves is not.",
    ]
)


def share(text):
    """Reads a percentage as a part."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value / 100


def seconds(text):
    """Reads a time of at least 0."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds, of 0 or more")
    return value


def arguments_of(given):
    """Reads the command line."""
    parser = _command_line.Parser(
        prog="sublet profile", description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--app", metavar="NAME", help="measure this application only")
    parser.add_argument("--patch", metavar="FILE", help="write the proposed splits as a unified diff into this file")
    parser.add_argument("--check", action="store_true", help="run the program with the proposed splits, and compare what it used with the prediction")
    parser.add_argument("--history", metavar="GRAPH", help="judge the splits of an application by its latest runs, without running it")
    parser.add_argument("--least", metavar="PERCENT", type=share, default=0.05, help="part of the memory-time that a split has to save [default: 5]")
    parser.add_argument("--start", metavar="SECONDS", type=seconds, default=0.01, help="time that the start of a component takes [default: 0.01]")
    parser.add_argument("--json", action="store_true", help="print one JSON object; what the program prints goes to standard error")
    parser.add_argument("program", metavar="FILE", nargs="?", help="the program")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the program")
    found = parser.parse_args(given)
    if (found.program is None) == (found.history is None):
        raise _errors.InvalidArgument("give the FILE of a program, or --history with the name of an application")
    if found.history is not None and (found.patch or found.check or found.app):
        raise _errors.InvalidArgument("--history runs no program: --app, --patch and --check are for a FILE")
    return found


# Proposals.


class Proposal:
    """The planned splits of an application."""

    def __init__(self, profile, least, start):
        self.profile = profile
        numbers, self.samples = profile.samples(_profile_patch.refusals(profile))
        self._numbers = numbers
        self.plan = _profile_plan.plan(self.samples, least, start)
        self.splits = [numbers[index] for index in self.plan.splits]
        why = _profile_patch.refusal(profile, self.splits) if self.splits else None
        if why is not None:
            raise _errors.InvalidArgument(f"the proposed splits of {profile.name} cannot be compiled together: {why}")

    def described(self):
        """The proposal as a dict, for JSON."""
        plan = self.plan
        return {
            "app": self.profile.name,
            "file": self.profile.source.file,
            "calls": self.profile.calls,
            "byte_seconds_before": plan.byte_seconds_before,
            "byte_seconds_after": plan.byte_seconds_after,
            "before": [self._section(section) for section in plan.before],
            "after": [self._section(section) for section in plan.after],
            "splits": [self._split(index) for index in plan.splits],
            "refused": [{"line": one.line, "reason": one.refused} for one in self.samples if one.refused is not None and not one.is_split],
        }

    def _split(self, index):
        return {"line": self.samples[index].line, "handed_bytes": self.samples[index].live, "variables": self.samples[index].handed}

    def _section(self, section):
        lines = {"first_line": self.samples[section.first].line, "last_line": self._end(section)}
        rest = section._asdict()
        return {**lines, **{name: rest[name] for name in ("seconds", "handed_bytes", "own_bytes", "byte_seconds")}}

    def _end(self, section):
        """Line at which a component ends."""
        return self.profile.end_line(self._numbers[section.last])

    def shown(self):
        """The proposal as text."""
        one = self.plan
        text = [f"{self.profile.name} in {_profile.relative(self.profile.source.file)}, {counted(self.profile.calls, 'call')}"]
        rows = [("LINES", "TOOK", "GETS", "ALLOCATES", "GB-S")]
        for section in one.after:
            lines = f"{self.samples[section.first].line}-{self._end(section)}"
            amounts = shown_bytes(section.handed_bytes), shown_bytes(section.own_bytes), f"{section.byte_seconds / 1e9:.4g}"
            rows.append((lines, f"{section.seconds:.3f} s", *amounts))
        text += table(rows)
        before, after = one.byte_seconds_before / 1e9, one.byte_seconds_after / 1e9
        if not one.splits:
            return "\n".join([*text, f"needs no further split: {before:.4g} GB-s as it is, and none saves enough (--least)", ""])
        lines = ", ".join(str(self.samples[index].line) for index in one.splits)
        text.append(f"split before line {lines}: {before:.4g} GB-s before, {after:.4g} GB-s after are predicted")
        return "\n".join([*text, ""])


def table(rows):
    """Rows as lines, with columns of the same width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def counted(count, noun):
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shown_bytes(count):
    """A size with its unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


# Patches and checks.


def patched(proposals):
    """The texts of the files with all proposed splits: their `Text` and the new lines. Raises if a file was changed in the meantime."""
    found = {}
    for proposal in proposals:
        text = proposal.profile.text
        found.setdefault(text.path, (text, {}))[1].update(_profile_patch.insertions(proposal.profile, proposal.splits))
    for text, _ in found.values():
        if text.is_changed():
            raise _errors.InvalidArgument(f"{text.path} was changed while it was profiled: profile it again")
    return [(text, _profile_patch.inserted(text.lines, lines)) for text, lines in found.values() if lines]


def write_patch(path, files):
    """Writes the patch: the file is there with all of it, or as it was."""
    content = b""
    for text, lines in files:
        content += _profile_patch.difference(_profile.relative(text.path), text.lines, lines).encode(text.encoding)
    target = Path(path)
    try:
        with tempfile.NamedTemporaryFile(dir=target.resolve().parent, prefix=".sublet-patch-", delete=False) as file:
            file.write(content)
        # As a file that a program has just made.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(file.name, 0o666 & ~mask)
        os.replace(file.name, target)
    except OSError as error:
        with contextlib.suppress(OSError, UnboundLocalError):
            os.unlink(file.name)
        raise _errors.InvalidArgument(f"{path} cannot be written: {error.strerror}") from None


def check(given, proposals, files):
    """Runs the program with the proposed splits on its platform; returns for each application what was predicted and what was used."""
    by_name = {proposal.profile.name: proposal for proposal in proposals if proposal.splits}
    lines = {text.path: made for text, made in files}
    path = os.path.abspath(given.program)
    if set(lines) != {path}:
        raise _errors.InvalidArgument("--check needs all proposed splits in the program's own file: apply the patch, and run the program")
    found = []

    def run(application, args, kwargs):
        outcome = original(application, *args, **kwargs)
        proposal = by_name.get(application.graph["name"])
        if proposal is not None:
            found.append(compared(proposal, outcome))
        return outcome

    with _profile.replaced_run(run) as original:
        _profile.execute(given.program, lines[path], given.arguments)
    return found


def compared(proposal, outcome):
    """The bytes of memory components: predicted, and as a run has used them."""
    predicted = {}
    for section in proposal.plan.after[1:]:
        for name, size in proposal.samples[section.first].handed.items():
            predicted[name] = max(predicted.get(name, 0), size)
    # A component without memory in use has its values in messages.
    memory = [used for used in outcome.components if not used["instances"] and used["used_bytes"] and used["component"] in predicted]
    rows = [{"memory": used["component"], "predicted_bytes": predicted[used["component"]], "used_bytes": used["used_bytes"]} for used in memory]
    totals = {
        "allocated_byte_seconds": sum(used["allocated_byte_us"] for used in outcome.components) / 1e6,
        "used_byte_seconds": sum(used["used_byte_us"] for used in outcome.components) / 1e6,
    }
    return {"app": proposal.profile.name, "run": outcome.run, "byte_seconds_predicted": proposal.plan.byte_seconds_after, **totals, "memory": rows}


def shown_check(checked):
    rows = [("MEMORY", "PREDICTED", "USED")]
    rows += [(row["memory"], shown_bytes(row["predicted_bytes"]), shown_bytes(row["used_bytes"])) for row in checked["memory"]]
    amounts = [checked[name] / 1e9 for name in ("byte_seconds_predicted", "used_byte_seconds", "allocated_byte_seconds")]
    said = "{:.4g} GB-s predicted, {:.4g} GB-s used, {:.4g} GB-s leased".format(*amounts)
    return "\n".join([f"{checked['app']} in run {checked['run']}", *table(rows), said, ""])


# History.


def history(given):
    """Judges the splits of an application by its runs that have succeeded."""
    try:
        command = [program(), "--json", "graph", "history", given.history]
    except FileNotFoundError as error:
        raise _errors.Error(str(error)) from None
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        # The command has said why.
        raise SystemExit(ended.returncode)
    runs = json.loads(ended.stdout).get("runs")
    if runs is None:
        raise _errors.InvalidArgument("--history takes the name of an application, not the identifier of a run")
    runs = [run for run in runs if run["ended_unix_ms"] is not None and run["error"] is None]
    # Runs of earlier versions have other components.
    runs = [run for run in runs if run["digest"] == runs[0]["digest"]]
    if not runs:
        raise _errors.InvalidArgument(f"no run of {given.history} has succeeded: nothing is known of its components")
    merges, unmeasured = _profile_plan.merges(runs, given.least)
    if given.json:
        print(json.dumps({"graph": given.history, "runs": len(runs), "merges": [merge._asdict() for merge in merges], "unmeasured": unmeasured}))
        return
    print(f"{given.history}, {counted(len(runs), 'run')}")
    for merge in merges:
        saved = f"{merge.saved_byte_seconds / 1e9:.4g} GB-s, {merge.share:.1%} of the run"
        print(f"merge {merge.first} and {merge.second}: their split saves {saved}. Remove the split that begins {merge.second}")
    if unmeasured:
        print(f"memory was not measured: {', '.join(unmeasured)}")
    if not merges:
        print("no split saves too little")


def propose(given):
    """Profiles a program, and prints what is proposed."""
    own = sys.stdout
    with contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext():
        profiles = _profile.profiled(given.program, given.arguments, given.app)
        proposals = [Proposal(profile, given.least, given.start) for profile in profiles]
        files, checked = patched(proposals), []
        if not given.json:
            print("\n".join(proposal.shown() for proposal in proposals), end="")
        if given.patch is not None and files:
            write_patch(given.patch, files)
        if given.check and files:
            checked = check(given, proposals, files)
    if given.json:
        document = {"apps": [proposal.described() for proposal in proposals], "checked": checked}
        print(json.dumps(document), file=own)
        return
    print("".join("\n" + shown_check(one) for one in checked), end="")
    if given.patch is not None:
        print(f"wrote {given.patch}: patch -p0 < {given.patch}" if files else f"nothing is proposed, and {given.patch} is not written")


def execute(found):
    """Executes the command of a command line."""
    history(found) if found.history is not None else propose(found)


def main(given=None):
    _command_line.run(lambda given: execute(arguments_of(given)), given)


if __name__ == "__main__":
    main()
