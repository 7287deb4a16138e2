"""Runs the code blocks of a document in their order, as a reader would: `page.py DOCUMENT FOLDER`.

The blocks of a document are one program, in a home and folders of their own, beside an installed Sublet. Nothing runs that the
document does not start. By the language of a block:

- `python` is executed in one interpreter; `pycon` is a session, whose answers must be those that are shown;
- `sh` is executed in one shell, where a command that fails ends the run; variables and the working folder hold for later blocks of
  each language;
- `console` is the same, with each command behind `$ ` and its output below it;
- `text` is a picture or output, and not run;
- a block with a title, in any language, is saved in a file of that name.

`...` in output stands for any text. A comment in front of a block changes what happens to it:

- `<!-- serves -->`: a shell of its own executes the block until the end, and the next block waits until `sublet ps` shows a node;
- `<!-- serves: manager -->`: the same, and the next block waits until `sublet ps` has an answer;
- `<!-- excerpt: FILE -->`: the block must be a part of this file of the repository, which other tests run;
- `<!-- form -->`: the block shows a form of notation with placeholders;
- `<!-- needs: MODULE -->`: the block is left out where Python has no such module;
- `<!-- not run: WHY -->`: the block is never run.
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
BLOCK = re.compile(
    r"^(?:<!-- (?P<rule>serves|excerpt|form|needs|not run)(?:: (?P<what>[^\n]+))? -->\n)?"
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
        self._bash = subprocess.Popen(
            ["bash", "--norc", "-e", "-o", "pipefail"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

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
        end(self._bash)


def end(process):
    """Ends a process and all that it has started."""
    for what in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, what)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue


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
        rule, what, language, text = block["rule"], block["what"], block["language"], block["text"]
        if rule in ("not run", "form") or (language == "text" and not block["title"]):
            return
        if rule == "needs" and importlib.util.find_spec(what) is None:
            return
        if rule == "excerpt":
            if squeezed(text) not in squeezed((ROOT / what).read_text()):
                raise Failed(f"it is not a part of {what}")
        elif rule == "serves":
            self._serve(text, what)
        elif block["title"]:
            path = Path(block["title"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif language == "python":
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
