"""Starts the command `sublet` of this environment: the program that the package contains, and for `profile` and `frame` a module.

Nodes that the command starts execute functions by the Python of the environment, unless configured otherwise.
"""

import os
import shutil
import sys
from pathlib import Path

_CARRIED = Path(__file__).resolve().parent / "_programs" / "sublet"


def program():
    """Finds the program: in the package, beside the interpreter or on PATH."""
    if _CARRIED.is_file():
        return str(_CARRIED)
    folders = [Path(sys.executable).parent, *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for folder in folders:
        found = shutil.which("sublet", path=str(folder))
        if found is not None and not _is_script(found):
            return found
    raise FileNotFoundError("the program sublet is neither in its Python package nor on PATH")


def _is_script(path):
    """Returns whether the file is a script, like this command, which would start itself again without end."""
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def main():
    if sys.argv[1:2] == ["profile"]:
        # This one runs programs in Python, and so is written in Python.
        from . import profile

        return profile.main(sys.argv[2:])
    if sys.argv[1:2] == ["frame"]:
        # Likewise: the engine is a module of this environment.
        from . import frame

        return frame.main(sys.argv[2:])
    os.environ.setdefault("SUBLET_PYTHON", sys.executable)
    os.execv(program(), ["sublet", *sys.argv[1:]])
