"""The command `sublet` of this environment: the program that the package carries.

What it starts executes functions by the Python of the environment, unless something else is said.
"""

import os
import shutil
import sys
from pathlib import Path

_CARRIED = Path(__file__).resolve().parent / "_programs" / "sublet"


def program():
    """Where the program is: in the package, or, of a package that carries none, wherever it is found."""
    if _CARRIED.is_file():
        return str(_CARRIED)
    beside = Path(sys.executable).parent / "sublet"
    found = str(beside) if beside.is_file() else shutil.which("sublet")
    if found is None:
        raise FileNotFoundError("the program sublet is neither in its Python package nor in PATH")
    return found


def main():
    os.environ.setdefault("SUBLET_PYTHON", sys.executable)
    os.execv(program(), ["sublet", *sys.argv[1:]])
