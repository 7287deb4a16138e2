"""A program that functions of neighbours.py spawn: it says in the FIFO of its first argument what there is of it, and waits for its end."""

import os
import signal
import sys

from sublet import xpu

with xpu.connect(sys.argv[1], timeout=5) as to:
    # The secret of hashes is as old as the interpreter: copies of a warm one have the same.
    said = [xpu.pid(), sys.argv[2:], os.environ.get("COLOUR"), hash("as old as the interpreter")]
    to.write(" ".join(map(str, said)).encode(), timeout=5)
signal.pause()
