"""The documents: each is run as a reader would run it, and says the truth."""

import collections
import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sublet

sys.path.insert(0, str(Path(__file__).parent))
import page  # noqa: E402: it is beside this file

ROOT = page.ROOT
# Folders of build outputs, which may hold documents of others.
GENERATED = {"target", "node_modules", "build"}
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for path in ROOT.rglob("*.md")
    if not any(part in GENERATED or part.startswith(".") for part in path.relative_to(ROOT).parts)
    and re.search("^ *```(?!text)", path.read_text(), re.MULTILINE)
)
# How many blocks of all documents are not run, by reason, and how many show a form of notation. A number only falls.
NOT_RUN = {
    "boots a machine": 1,
    "builds Sublet": 9,
    "form": 23,
    "has a test of its own": 4,
    "installs packages": 2,
    "measures": 3,
    "needs Kubernetes": 1,
    "needs a container engine": 1,
    "needs packages": 1,
    "needs systemd": 3,
}
# How long the process of a document may take, in seconds: longer than it gives its blocks.
PATIENCE = 360


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_document_runs_as_printed(document, installed, tmp_path):
    has_own_machine = page.OWN_MACHINE.search((ROOT / document).read_text())
    if has_own_machine and os.getuid() != 0:
        pytest.skip("needs root")
    home, work, machine = tmp_path / "home", tmp_path / "work", tmp_path / "machine"
    work.mkdir()
    machine.mkdir()
    (home / ".local").mkdir(parents=True)
    for folder in installed.iterdir():
        (home / ".local" / folder.name).symlink_to(folder)
    told = ("PATH", "LANG", "TMPDIR", "USER", "LOGNAME", "TERM")
    environment = {name: os.environ[name] for name in told if name in os.environ}
    environment |= {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    environment |= toolchains() | sources()
    command = [sys.executable, Path(__file__).parent / "page.py", ROOT / document, tmp_path]
    if has_own_machine:
        command = [Path(__file__).parent / "machine.sh", machine, *command]
    # In a process of its own, since the document's functions are those of its main module.
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"


def test_blocks_that_are_not_run_have_a_reason_and_become_fewer():
    found = collections.Counter()
    for document in DOCUMENTS:
        for block in page.BLOCK.finditer((ROOT / document).read_text()):
            rules = page.rules_of(block)
            if "not run" in rules:
                assert rules["not run"] in page.REASONS, f"{document}: {rules['not run']!r} is not one of {list(page.REASONS)}"
                found[rules["not run"]] += 1
            elif "form" in rules:
                found["form"] += 1
    assert found == NOT_RUN, "write the number that is there now if it is smaller; otherwise have the block run"


def toolchains():
    """Where compilers keep what is in the user's home, which a document has not: Rust's compilers, and what Go has compiled."""
    home = Path.home()
    usual = {"RUSTUP_HOME": home / ".rustup", "CARGO_HOME": home / ".cargo", "GOCACHE": home / ".cache/go-build"}
    return {name: os.environ.get(name, str(folder)) for name, folder in usual.items()}


def sources():
    """Where the clone is, and what was built of it, for the scripts of `worlds`."""
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    profile = os.environ.get("SUBLET_PROFILE", "release")
    wheels = ROOT / "target/wheels"
    return {"PAGE_SOURCES": str(ROOT), "PAGE_TARGET": str(target), "PAGE_PROFILE": profile, "PAGE_WHEELS": str(wheels)}


def test_the_packages_own_example_is_so(platform):
    session = doctest.DocTestParser().get_doctest(sublet.__doc__, {}, "sublet", sublet.__file__, 0)
    said = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session, out=said.append)
    assert not failed, "".join(said)


def test_every_public_name_is_in_the_reference():
    named = re.findall(r"^::: sublet\.(\w+)$", (ROOT / "docs/python/api.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(sublet.__all__)
