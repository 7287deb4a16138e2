"""Standardizes and sorts an array that is larger than the memory which is used here: once by NumPy, once where the array is remote.

    python examples/python/remote_array.py [--rows N] [--working-set SIZE]

The function is the same. Decorated, it gets a remote array, and has at most the working set of it in this process at a time.
"""

import argparse
import contextlib
import json
import os
import sys
import time
import tracemalloc

import numpy

import sublet


def ranked(table):
    """Standardizes each column to mean 0 and deviation 1. Returns the table, and all of its values sorted."""
    table = (table - table.mean(axis=0)) / table.std(axis=0)
    return table, numpy.sort(table, axis=None)


def measured(function, table):
    """Returns the result of the function, its seconds, and its peak memory, as Python counts it."""
    tracemalloc.start()
    begun = time.perf_counter()
    made = function(table)
    taken_s = time.perf_counter() - begun
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return made, taken_s, most_bytes


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def main():
    parser = argparse.ArgumentParser(description="Standardizes and sorts a remote array.")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of four numbers [%(default)s]")
    parser.add_argument("--working-set", default="8MiB", help="memory to use here [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()

    table = numpy.random.default_rng(1).normal(5, 3, (options.rows, 4))
    (local, local_sorted), local_s, local_bytes = measured(ranked, table)
    with platform(), sublet.remote(working_set=options.working_set, threshold=0) as far:
        (there, there_sorted), remote_s, remote_bytes = measured(far(ranked), table)
        equal = bool(numpy.allclose(there, local) and numpy.allclose(there_sorted, local_sorted))

    if options.json:
        figures = {"local_s": local_s, "remote_s": remote_s, "local_bytes": local_bytes, "remote_bytes": remote_bytes, "equal": equal}
        print(json.dumps(figures))
    else:
        print(f"an array of {table.nbytes / 2**20:.0f} MiB")
        print(f"NumPy:  {local_s:.3f} s with {local_bytes / 2**20:.1f} MiB beside it")
        print(f"remote: {remote_s:.3f} s with {remote_bytes / 2**20:.1f} MiB")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
