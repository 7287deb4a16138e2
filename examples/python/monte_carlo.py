"""Estimates pi: how many random points of a square are within the circle? Once on processes of this machine, once on leased cores.

    python examples/python/monte_carlo.py [--chunks N] [--points N]

`sublet.Executor` takes the place of `ProcessPoolExecutor`: nothing else differs. Each chunk has a seed, so both count the same points.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import sys
import time

import numpy

import sublet


def points_within(seed, points):
    """Counts the random points of the unit square that are at most 1 from its corner."""
    x, y = numpy.random.default_rng(seed).random((2, points))
    return int(numpy.count_nonzero(x * x + y * y <= 1.0))


def estimate(executor, chunks, points):
    """Returns pi, and the seconds that the estimate took."""
    begun = time.perf_counter()
    within = sum(executor.map(points_within, range(chunks), [points] * chunks))
    return 4 * within / (chunks * points), time.perf_counter() - begun


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def main():
    parser = argparse.ArgumentParser(description="Estimates pi on processes, and on leased cores.")
    parser.add_argument("--cores", type=int, default=2, help="processes, and cores to lease [%(default)s]")
    parser.add_argument("--chunks", type=int, default=200, help="chunks of work [%(default)s]")
    parser.add_argument("--points", type=int, default=500_000, help="points of each [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()

    # A first chunk for each worker starts the workers on both sides; it is not measured.
    with concurrent.futures.ProcessPoolExecutor(options.cores) as processes:
        estimate(processes, options.cores, 1000)
        local, local_s = estimate(processes, options.chunks, options.points)
    with platform(), sublet.Executor(options.cores, imports=["numpy"], memory="1GiB", wait=60) as leased_cores:
        estimate(leased_cores, options.cores, 1000)
        leased, leased_s = estimate(leased_cores, options.chunks, options.points)

    if options.json:
        print(json.dumps({"pi": leased, "local_s": local_s, "leased_s": leased_s, "equal": leased == local}))
    else:
        print(f"pi is about {leased}")
        print(f"{options.cores} processes:    {local_s:.3f} s")
        print(f"{options.cores} leased cores: {leased_s:.3f} s")
    return 0 if leased == local else 1


if __name__ == "__main__":
    sys.exit(main())
