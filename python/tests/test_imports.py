"""Tests of modules in `imports`: a warning names those that nodes cannot keep warm, with the reason."""

import json
import os
import subprocess
import sys
import sysconfig

import pytest

THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
# In a copy of a template the process that has imported them is another one.
MODULES = {
    "starts_thread": THREAD,
    "keeps_file": "file = open('/dev/zero')\n",
    "is_fine": "import os\nimporter = os.getpid()\n",
}
# The names of modules are its arguments. Prints for each the warnings of its leases, and what `sublet ps` shows.
PROGRAM = """
import importlib, json, os, subprocess, sys, time, warnings
import of_program  # which is sent along
import sublet
from sublet._command import program

def was_imported_elsewhere(name):
    return getattr(importlib.import_module(name), "importer", os.getpid()) != os.getpid()

def ps(*words):
    return subprocess.run([program(), "ps", *words], stdout=subprocess.PIPE, text=True, check=True).stdout

def shown():
    for _ in range(1800):
        rows = json.loads(ps("--json"))["leases"]
        if any("cold_imports" in row for row in rows):
            return [row["cold_imports"] for row in rows if "cold_imports" in row], ps()
        time.sleep(0.1)

def tell(name):
    is_warm, cold, since = False, (None, None), 0

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(1800):
            with sublet.lease(imports=[name], wait=60) as lease:
                is_warm = lease.call(was_imported_elsewhere, name)
                since += bool(caught) or is_warm
                if caught and not cold[0]:
                    cold = shown()

            # Two more leases, of which no warning may be given.
            if since > 2:
                break
            time.sleep(0.1 * (not since))

    told = [(each.category.__name__, str(each.message), os.path.basename(each.filename)) for each in caught]
    return {"told": told, "is_warm": is_warm, "cold": cold[0], "ps": cold[1]}

if __name__ == "__main__":
    with sublet.local(cores=1, memory="4GiB") as client:
        os.environ["SUBLET_MANAGER"] = client.managers
        print(json.dumps({name: tell(name) for name in sys.argv[1:]}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A folder with an environment of this one's packages and some modules more, and the program."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    library = next((folder / "venv" / "lib").iterdir()) / "site-packages"
    (library / "more.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name, text in MODULES.items():
        (library / f"{name}.py").write_text(text)
    (folder / "program.py").write_text(PROGRAM)
    (folder / "of_program.py").write_text("")
    return folder


def leases(environment, interpreter, *modules):
    """Returns the warnings of a program that leases with these modules, and what `sublet ps` shows then."""
    words = [interpreter, environment / "program.py", *modules]
    clean = {name: value for name, value in os.environ.items() if name != "SUBLET_MANAGER"}
    run = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=clean, timeout=1800)
    return json.loads(run.stdout.splitlines()[-1])


def test_warns_once_of_imports_that_cannot_be_kept_warm(environment):
    told = leases(environment, environment / "venv" / "bin" / "python3", "starts_thread", "keeps_file", "of_program", "is_fine")
    for module, reason in [
        ("starts_thread", "starts 1 thread"),
        ("keeps_file", "keeps /dev/zero open"),
        ("of_program", "fails with ModuleNotFoundError: No module named 'of_program'"),
    ]:
        (warning,) = told[module]["told"]
        assert warning[0] == "ColdImportWarning" and warning[2] == "program.py"
        assert f"'{module}' in imports cannot be kept warm, because importing it {reason}:" in warning[1]
        (shown,) = told[module]["cold"]
        assert (shown["module"], shown["reason"]) == (module, reason)
        assert f"cannot keep {module} warm, because importing it {reason}: each lease imports it anew" in told[module]["ps"]
    assert told["is_fine"] == {"told": [], "is_warm": True, "cold": None, "ps": None}
