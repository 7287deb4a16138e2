"""Solves a system of linear equations by Jacobi's method, here and on leased cores.

    python examples/python/jacobi.py [--unknowns N] [--iterations N]

The matrix stays the same, so each worker gets it once, by the initializer, and keeps it. An iteration sends the vector only, and gets
a part of the next one from each worker. rFaaS was measured with this, too (IPDPS 2023, section V-G).
"""

import argparse
import contextlib
import json
import os
import sys
import time

import numpy

import sublet

# State that this worker keeps from one call to the next.
matrix = right = diagonal = None


def keep(a, b):
    global matrix, right, diagonal
    matrix, right, diagonal = a, b, a.diagonal()


def improve(x, first, last):
    """A part of the next vector: x + (b - A x) / diag(A)."""
    rows = slice(first, last)
    return x[rows] + (right[rows] - matrix[rows] @ x) / diagonal[rows]


def solve_here(iterations):
    x = numpy.zeros(len(right))
    for _ in range(iterations):
        x = improve(x, 0, len(x))
    return x


def solve_leased(lease, unknowns, iterations):
    bounds = numpy.linspace(0, unknowns, lease.workers + 1).astype(int).tolist()
    # In memory that workers share, so that it is not copied.
    x = sublet.zeros(unknowns)
    for _ in range(iterations):
        parts = [
            lease.options(worker=worker).submit(improve, x, first, last)
            for worker, (first, last) in enumerate(zip(bounds, bounds[1:]))
        ]
        # All of them have read x before any of it is replaced.
        x[:] = numpy.concatenate([part.result() for part in parts])
    return x


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def timed(function, *args):
    begun = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description="Solves linear equations here and on leased cores.")
    parser.add_argument("--cores", type=int, default=2, help="cores to lease [%(default)s]")
    parser.add_argument("--unknowns", type=int, default=3000, help="unknowns, and equations [%(default)s]")
    parser.add_argument("--iterations", type=int, default=300, help="iterations [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()

    random = numpy.random.default_rng(seed=1)
    a = random.uniform(-1, 1, (options.unknowns, options.unknowns))
    numpy.fill_diagonal(a, options.unknowns)
    b = random.uniform(-1, 1, options.unknowns)

    keep(a, b)
    solve_here(1)
    local, local_s = timed(solve_here, options.iterations)

    # Each worker has memory for the matrix twice: in the request, and in the copy that it keeps.
    memory = options.cores * (2 * a.nbytes + (256 << 20))
    begun = time.perf_counter()
    with platform(), sublet.lease(
        options.cores, initializer=keep, initargs=(a, b), imports=["numpy"], memory=memory, wait=60
    ) as lease:
        solve_leased(lease, options.unknowns, 1)
        begin_s = time.perf_counter() - begun
        leased, leased_s = timed(solve_leased, lease, options.unknowns, options.iterations)

    difference = float(abs(leased - local).max())
    residual = float(abs(b - a @ leased).max())
    equal = numpy.allclose(leased, local, rtol=1e-12, atol=1e-15)
    if options.json:
        figures = {"local_s": local_s, "leased_s": leased_s, "begin_s": begin_s, "residual": residual}
        print(json.dumps({**figures, "difference": difference, "equal": bool(equal)}))
    else:
        print(f"{options.iterations} iterations of {options.unknowns} unknowns; residual {residual:.1e}")
        print(f"here:           {local_s:.3f} s, by as many threads as NumPy likes")
        print(f"{options.cores} leased cores: {leased_s:.3f} s, after {begin_s:.3f} s to lease them and send the matrix")
        print(f"largest difference: {difference:.1e}")
    return 0 if equal else 1


if __name__ == "__main__":
    # By its name: a module that was imported is sent to the workers whole, and all of its functions there have the same globals.
    import jacobi

    sys.exit(jacobi.main())
