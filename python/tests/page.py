"""Runs the code blocks of a document in their order, as a reader would: `page.py DOCUMENT FOLDER`.

The blocks of a document are one program, in a home and folders of their own, beside an installed Sublet. Nothing runs that the
document does not start. By the language of a block:

- `python` is executed in one interpreter; `pycon` is a session, whose answers must be those that are shown;
- `sh` is executed in one shell, where a command that fails ends the run; variables and the working folder hold for later blocks of
  each language;
- `console` is the same, with each command behind `$ ` and its output below it;
- `text` is a picture or output, and not run;
- a block with a title, in any language, is saved in a file of that name.

`...` in output stands for any text. Comments in front of a block, one in a line, change what happens to it:

- `<!-- prepared: FUNCTION -->`: before it, the shell executes a function of the page's script in `worlds` (`worlds/docs/operating.sh`
  for `docs/operating.md`), which makes what the text assumes, such as a service that systemd would start;
- `<!-- serves -->`: a shell of its own executes the block until the end, and the next block waits until `sublet ps` shows a node;
- `<!-- serves: manager -->`: the same, and the next block waits until `sublet ps` has an answer;
- `<!-- configures: manager -->`, or `agent`: the block is a configuration that this program accepts;
- `<!-- adds to: FILE -->`: the block's lines are added to this file, in place of lines with the same keys;
- `<!-- excerpt: FILE -->`: the block must be a part of this file of the repository, which other tests run;
- `<!-- form -->`: the block shows a form of notation with placeholders;
- `<!-- needs: MODULE -->`: the block is left out where Python has no such module;
- `<!-- not run: REASON -->`: the block is never run, for one of `REASONS`.

After the last block the shell executes the function `finish` of the page's script, if it has one. A page with the line
`<!-- own machine -->` has system folders and a network of its own (`machine.sh`), and runs as root.
"""

import doctest
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Scripts that make what pages assume, each beside the page's own path.
WORLDS = Path(__file__).resolve().parent / "worlds"
OWN_MACHINE = re.compile("^<!-- own machine -->$", re.MULTILINE)
# Reasons for which a block may be left out, each with what it means.
REASONS = {
    "builds Sublet": "it compiles the repository, which the tests have done before",
    "needs systemd": "it speaks to systemd, which is not the init process of a container",
    "installs packages": "it installs distributions of PyPI or packages of Debian",
    "needs packages": "it installs packages of `make dist`, which scripts/dist/installs.sh does in root file systems",
    "needs a container engine": "it needs podman",
    "needs Kubernetes": "it needs a cluster of Kubernetes, and Helm",
    "measures": "it measures for minutes, or between machines",
    "boots a machine": "it boots an emulated machine",
    "has a test of its own": "a test compiles and runs the example, in small sizes",
}
RULE = re.compile(r"<!-- (prepared|serves|configures|adds to|excerpt|form|needs|not run)(?:: ([^\n]+))? -->\n")
BLOCK = re.compile(
    r"^(?P<rules>(?:<!-- [^\n]+ -->\n)*)"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"\n]+)")?\n(?P<text>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
# How long a server may take until it serves, in seconds.
PATIENCE = 180
# How long all blocks of a document may take together, in seconds.
LIMIT = 300
# Line that ends the output of a block in the shell.
END = "-- end of block --"


class Failed(Exception):
    """A block did not do what the document says."""


class Shell:
    """A shell that executes blocks, and tells its variables and its working folder."""

    def __init__(self, state):
        self._state = state
        self._is_prepared = False
        self._bash = subprocess.Popen(
            ["bash", "--norc", "-e", "-o", "pipefail"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def prepare(self, world, function):
        """Executes a function of a page's script."""
        if not self._is_prepared:
            self.run(f"source '{world}'")
            self._is_prepared = True
        self.run(function)

    def run(self, text):
        """Executes a block; returns its output. This process takes over the variables and the folder."""
        self._bash.stdin.write(f"{text}\nenv -0 >'{self._state}'; pwd >'{self._state}.cwd'; echo; echo '{END}'\n")
        self._bash.stdin.flush()
        output = []
        for line in self._bash.stdout:
            if line.rstrip("\n") == END:
                break
            output.append(line)
        else:
            raise Failed("the shell ended:\n" + "".join(output))
        variables = dict(pair.split("=", 1) for pair in self._state.read_text().split("\0") if pair)
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(Path(f"{self._state}.cwd").read_text().rstrip("\n"))
        # The end's own empty line.
        return "".join(output).removesuffix("\n")

    def end(self):
        try:
            if self._is_prepared:
                self.run("if declare -F finish >/dev/null; then finish; fi")
        except (Failed, OSError):
            # The shell has ended, since a command has failed.
            pass
        # The shell's background processes ignore SIGINT.
        end(self._bash, (signal.SIGTERM, signal.SIGKILL))


def end(process, signals=(signal.SIGINT, signal.SIGTERM, signal.SIGKILL)):
    """Ends a process and all that it has started."""
    for what in signals:
        until = time.monotonic() + 10
        try:
            os.killpg(process.pid, what)
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return


class Page:
    """A document whose blocks are run."""

    def __init__(self, path, folder):
        self._path, self._folder = path, folder
        self._text = path.read_text()
        self._names = {"__name__": "__main__"}
        self._shell = Shell(folder / "variables")
        self._servers = []

    def run(self):
        blocks = list(BLOCK.finditer(self._text))
        if 2 * len(blocks) != len(re.findall("^ *```", self._text, re.MULTILINE)):
            raise Failed("a block of this document has a form that is not known")
        for block in blocks:
            line = self._text.count("\n", 0, block.start("text"))
            try:
                self._block(block, line)
            except BaseException as error:
                raise Failed(f"{self._path}, the block in line {line}: {error}") from error

    def _block(self, block, line):
        rules, language, title, text = rules_of(block), block["language"], block["title"], block["text"]
        if "not run" in rules and rules["not run"] not in REASONS:
            raise Failed(f"{rules['not run']!r} is no reason to leave it out; there are {', '.join(REASONS)}")
        if is_left_out(block) or ("needs" in rules and importlib.util.find_spec(rules["needs"]) is None):
            return
        if "prepared" in rules:
            self._shell.prepare(WORLDS / self._path.relative_to(ROOT).with_suffix(".sh"), rules["prepared"])
        if "excerpt" in rules:
            if squeezed(text) not in squeezed((ROOT / rules["excerpt"]).read_text()):
                raise Failed(f"it is not a part of {rules['excerpt']}")
        elif "configures" in rules:
            self._configure(rules["configures"], text)
        elif "adds to" in rules:
            add(Path(rules["adds to"]), text)
        elif "serves" in rules:
            self._serve(text, rules["serves"])
        elif title:
            path = Path(title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        else:
            self._execute(language, text, line)

    def _execute(self, language, text, line):
        if language == "python":
            # With as many lines before it, so that a traceback names those of the document.
            exec(compile("\n" * line + text, self._path, "exec"), self._names)
        elif language == "pycon":
            self._session(text, line)
        elif language == "sh":
            self._shell.run(text)
        elif language == "console":
            self._console(text)
        else:
            raise Failed(f"nothing runs a block of {language} without a title")

    def _configure(self, program, text):
        file = self._folder / f"{program}.toml"
        file.write_text(text)
        shown = subprocess.run(["sublet", program, "--config", file, "--print-config"], capture_output=True, text=True)
        if shown.returncode:
            raise Failed(f"sublet {program} does not accept it: {shown.stderr}")

    def _session(self, text, line):
        session = doctest.DocTestParser().get_doctest(text, self._names, self._path.name, str(self._path), line)
        said = []
        failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session, out=said.append, clear_globs=False)
        if failed:
            raise Failed("".join(said))
        # Names that the block has defined.
        self._names.update(session.globs)

    def _console(self, text):
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, expected = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.DOTALL).groups()
            output = self._shell.run(command)
            # A document shows the last line as any other, whether or not the command ends it.
            if output and not output.endswith("\n"):
                output += "\n"
            if expected and not doctest.OutputChecker().check_output(expected, output, doctest.ELLIPSIS):
                raise Failed(f"$ {command}printed:\n{output}instead of:\n{expected}")

    def _serve(self, text, what):
        log = open(self._folder / f"server{len(self._servers)}.log", "w+")
        server = subprocess.Popen(
            ["bash", "--norc", "-e", "-c", text], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._servers.append(server)
        until = time.monotonic() + PATIENCE
        while not is_served(what):
            if server.poll() is not None or time.monotonic() > until:
                log.seek(0)
                raise Failed(f"it does not serve:\n{log.read()}")
            time.sleep(0.05)

    def end(self):
        for server in reversed(self._servers):
            end(server)
        self._shell.end()


def rules_of(block):
    """The rules of the comments in front of a block, each with what follows its colon."""
    rules = block["rules"]
    found = dict(RULE.findall(rules))
    if rules.count("\n") != len(found):
        raise Failed(f"one of these comments is no rule of page.py, or stands twice: {rules}")
    return found


def is_left_out(block):
    """Whether a block is not run in any way: a picture or output, a form of notation, or one with a reason."""
    rules = rules_of(block)
    return "not run" in rules or "form" in rules or (block["language"] == "text" and not block["title"])


def add(file, text):
    """Adds lines to a configuration: each to the table that it is in, in place of a line with the same key."""
    tables = parts_of(file.read_text())
    for header, lines in parts_of(text).items():
        keys = [key_of(line) for line in lines if key_of(line)]
        kept = [line for line in tables.get(header, []) if key_of(line) not in keys]
        tables[header] = lines + kept
    file.write_text("\n".join(line for header, lines in tables.items() for line in ([header] if header else []) + lines) + "\n")


def parts_of(text):
    """The lines of a configuration by the header of their table; those before the first table have the header ""."""
    parts, header = {"": []}, ""
    for line in text.splitlines():
        if line.startswith("["):
            header = line
            parts.setdefault(header, [])
        else:
            parts[header].append(line)
    return parts


def key_of(line):
    """The key that a line sets, if it sets one."""
    return "" if line.startswith("#") or "=" not in line else line.split("=")[0].strip()


def is_served(what):
    """Whether a manager answers, and has a node unless the manager alone is meant."""
    shown = subprocess.run(["sublet", "ps", "--json"], capture_output=True, text=True)
    return shown.returncode == 0 and (what == "manager" or '"cores"' in shown.stdout)


def squeezed(text):
    """The text with its indentation and empty lines left out."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def too_long(_signal, _frame):
    raise Failed(f"the document takes more than {LIMIT} s")


def main(document, folder):
    os.chdir(Path(folder) / "work")
    # Raised here, so that the servers and the shell are ended.
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT)
    page = Page(Path(document), Path(folder))
    try:
        page.run()
    finally:
        page.end()


if __name__ == "__main__":
    sys.modules.pop("page", None)
    main(*sys.argv[1:])
