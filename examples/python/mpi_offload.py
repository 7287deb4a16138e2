"""Multiplies matrices, or solves linear equations, in the ranks of an MPI program that each leave half of their work to a leased core.

    mpiexec -n 2 --bind-to none python -m mpi4py examples/python/mpi_offload.py multiply [--size N]
    mpiexec -n 2 --bind-to none python -m mpi4py examples/python/mpi_offload.py jacobi [--size N] [--iterations N]

It takes an MPI and mpi4py: Debian's openmpi-bin, and `pip install mpi4py`. Each rank has some of the rows. First the ranks compute alone,
then each with a core that it leases; the result is compared with the one of a single process. For Jacobi's method the worker gets its
rows of the matrix once and keeps them: an iteration sends only the vector. rFaaS was measured with both (IPDPS 2023, section V-G). It pays
where there are cores that no rank has. Without `--bind-to none` Open MPI binds each rank to one core, and with it the platform that the
first rank starts. `-m mpi4py` ends all ranks if one of them fails.
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
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy

import sublet

# State that this worker keeps from one call to the next.
matrix = right = diagonal = None


def multiply(a, b):
    return a @ b


def keep(first, a, b):
    global matrix, right, diagonal
    matrix, right, diagonal = a, b, a[numpy.arange(len(a)), first + numpy.arange(len(a))]


def improve(x, first):
    """Rows of the next vector from `first` on, those that this worker keeps: x + (b - A x) / diag(A)."""
    return x[first : first + len(right)] + (right - matrix @ x) / diagonal


class Ranks:
    """The communicator, and the rows of this rank: those from `first` to `last`, of which workers get the ones before `half`."""

    def __init__(self, world, size):
        self.world = world
        self.bounds = [size * rank // world.size for rank in range(world.size + 1)]
        self.first, self.last = self.bounds[world.rank : world.rank + 2]
        self.half = (self.first + self.last) // 2

    def gather(self, own, whole):
        """Gives every rank the rows of all ranks."""
        width = whole[0].size
        offsets = [width * bound for bound in self.bounds]
        counts = [end - begin for begin, end in zip(offsets, offsets[1:])]
        self.world.Allgatherv(own, [whole, counts, offsets[:-1], _double()])

    def median(self, repeat, function, *args):
        """Returns the result of the function, and the median over its calls of the seconds that the slowest rank takes."""
        result = function(*args)
        seconds = []
        for _ in range(repeat):
            self.world.Barrier()
            begun = time.perf_counter()
            result = function(*args)
            seconds.append(max(self.world.allgather(time.perf_counter() - begun)))
        return result, statistics.median(seconds)


def _double():
    from mpi4py import MPI

    return MPI.DOUBLE


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


def run_multiply(ranks, options):
    """Returns the seconds without and with leased cores, and whether the product is that of one process."""
    shape = (options.size, options.size)
    random = numpy.random.default_rng(seed=1)
    whole, b = random.random(shape), sublet.empty(shape)
    random.random(out=b)
    ranks.world.Bcast(b)
    # In memory that workers of this machine share, as b is.
    a = sublet.array(whole[ranks.first : ranks.last])
    half = ranks.half - ranks.first

    def offloaded(lease):
        # While the worker has this half, the rank does the other.
        leased = lease.submit(multiply, a[:half], b)
        product = numpy.empty((len(a), options.size))
        numpy.matmul(a[half:], b, out=product[half:])
        product[:half] = leased.result()
        return product

    _, local_s = ranks.median(options.repeat, multiply, a, b)
    memory = 3 * b.nbytes + (256 << 20)
    with platform(ranks.world) as client, client.lease(imports=["numpy"], memory=memory, wait=60) as lease:
        own, leased_s = ranks.median(options.repeat, offloaded, lease)
    product = numpy.empty(shape)
    ranks.gather(own, product)
    return local_s, leased_s, numpy.allclose(product, whole @ b, rtol=1e-12)


def run_jacobi(ranks, options):
    """Returns the seconds without and with leased cores, and whether the solution is that of one process."""
    random = numpy.random.default_rng(seed=1)
    a = random.uniform(-1, 1, (options.size, options.size))
    numpy.fill_diagonal(a, options.size)
    b = random.uniform(-1, 1, options.size)

    def solve(next_rows):
        x = sublet.zeros(options.size)
        for _ in range(options.iterations):
            ranks.gather(next_rows(x), x)
        return x

    def alone(x):
        return improve(x, ranks.first)

    def with_lease(x):
        leased = lease.submit(improve, x, ranks.first)
        rest = improve(x, ranks.half)
        return numpy.concatenate([leased.result(), rest])

    keep(ranks.first, a[ranks.first : ranks.last], b[ranks.first : ranks.last])
    _, local_s = ranks.median(options.repeat, solve, alone)
    keep(ranks.half, a[ranks.half : ranks.last], b[ranks.half : ranks.last])
    rows = slice(ranks.first, ranks.half)
    # The worker has its rows twice: in the request, and in the copy that it keeps.
    memory = 2 * a[rows].nbytes + (256 << 20)
    start = {"initializer": keep, "initargs": (ranks.first, a[rows], b[rows]), "imports": ["numpy"]}
    with platform(ranks.world) as client, client.lease(**start, memory=memory, wait=60) as lease:
        leased, leased_s = ranks.median(options.repeat, solve, with_lease)

    x = numpy.zeros(options.size)
    for _ in range(options.iterations):
        x = x + (b - a @ x) / a.diagonal()
    return local_s, leased_s, numpy.allclose(leased, x, rtol=1e-12, atol=1e-15)


def main():
    parser = argparse.ArgumentParser(description="Computes in MPI's ranks, and on a leased core for each.")
    parser.add_argument("kernel", choices=["multiply", "jacobi"])
    parser.add_argument("--size", type=int, default=1500, help="rows and columns of the matrices [%(default)s]")
    parser.add_argument("--iterations", type=int, default=100, help="iterations of Jacobi's method [%(default)s]")
    parser.add_argument("--repeat", type=int, default=11, help="measurements of which the median is taken [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the times as JSON")
    options = parser.parse_args()
    # Not at the top: workers import this module, and are no ranks.
    try:
        from mpi4py import MPI
    except ImportError:
        sys.exit("this example needs an MPI and mpi4py: install openmpi-bin, then pip install mpi4py")

    ranks = Ranks(MPI.COMM_WORLD, options.size)
    local_s, leased_s, equal = {"multiply": run_multiply, "jacobi": run_jacobi}[options.kernel](ranks, options)
    equal = all(ranks.world.allgather(bool(equal)))
    if ranks.world.rank == 0 and options.json:
        print(json.dumps({"ranks": ranks.world.size, "local_s": local_s, "leased_s": leased_s, "equal": equal}))
    elif ranks.world.rank == 0:
        print(f"{options.kernel}, {ranks.world.size} ranks, size {options.size}, medians of {options.repeat}:")
        print(f"  by the ranks:               {1e3 * local_s:.1f} ms")
        print(f"  and a leased core for each: {1e3 * leased_s:.1f} ms")
    return 0 if equal else 1


if __name__ == "__main__":
    # By its name: a module that was imported is sent to the workers whole, and all of its functions there have the same globals.
    import mpi_offload

    sys.exit(mpi_offload.main())
