"""The documents: each is run as a reader would run it, and says the truth."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sublet

ROOT = Path(__file__).resolve().parent.parent.parent
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "examples/README.md",
    "examples/*/README.md",
    "packaging/README.md",
    "python/README.md",
)
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for pattern in PATTERNS
    for path in ROOT.glob(pattern)
    if re.search("^ *```(?!text)", path.read_text(), re.MULTILINE)
)
# How long the process of a document may take, in seconds: longer than it gives its blocks.
PATIENCE = 360


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_document_runs_as_printed(document, installed, tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    (home / ".local").mkdir(parents=True)
    for folder in installed.iterdir():
        (home / ".local" / folder.name).symlink_to(folder)
    told = ("PATH", "LANG", "TMPDIR", "USER", "LOGNAME", "TERM")
    environment = {name: os.environ[name] for name in told if name in os.environ}
    environment |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    environment |= toolchains()
    # In a process of its own, since the document's functions are those of its main module.
    run = subprocess.run(
        [sys.executable, Path(__file__).parent / "page.py", ROOT / document, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


def toolchains():
    """Where compilers keep what is in the user's home, which a document has not: Rust's compilers, and what Go has compiled."""
    home = Path.home()
    usual = {"RUSTUP_HOME": home / ".rustup", "CARGO_HOME": home / ".cargo", "GOCACHE": home / ".cache/go-build"}
    return {name: os.environ.get(name, str(folder)) for name, folder in usual.items()}


def test_the_packages_own_example_is_so(platform):
    session = doctest.DocTestParser().get_doctest(sublet.__doc__, {}, "sublet", sublet.__file__, 0)
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session, out=said.append)
    assert not failed, "".join(said)


def test_every_public_name_is_in_the_reference():
    named = re.findall(r"^::: sublet\.(\w+)$", (ROOT / "docs/python/api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(sublet.__all__)
