"""Measures how many instances of a thumbnail function fit before their tail latency doubles, and how much memory each has of its own.

    python examples/python/density.py [--units cpu,dpu] [--rate 1]

An instance is a worker in its own sandbox, on the one core of its node, which it shares with other instances. Each
instance is called --rate times a second, at its own moments. The program doubles the number of instances until the 95th
percentile of a call is more than twice that of the first few, or until no more can be leased. It then halves the
interval between the last number that fits and the first that does not, twice. The platform of $SUBLET_MANAGER has to
lend shared cores (`--shared-cores`, `--shared-places`); without one this program starts its own, which lends one.

With several kinds of processing units each gets as many instances as the others (Molecule, figure 2-a).
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time

from thumbnailer import SIZES, photograph, thumbnail

import sublet

# Memory limit of a worker, in bytes; the worker occupies only what it uses.
MEMORY_BYTES = 48 << 20
NOT_LENT = (sublet.NoCapacity, sublet.InsufficientResources)


def own_bytes():
    """Memory of this process in bytes, including its share of the memory that other processes use, too."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as told:
        return next(int(line.split()[1]) * 1024 for line in told if line.startswith("Pss:"))


def platform(options):
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    if "SUBLET_MANAGER" in os.environ:
        return contextlib.nullcontext()
    return sublet.local(cores=0, shared_cores=1, shared_places=options.most, devices="none")


@contextlib.contextmanager
def leased(count, units):
    """Leases `count` instances, in equal parts on each kind of unit."""
    with contextlib.ExitStack() as stack:
        instances = []
        for unit in units:
            workers = math.ceil(count / len(units))
            lease = stack.enter_context(
                sublet.lease(
                    workers,
                    shared=True,
                    pu=unit,
                    policy="warm",
                    memory=workers * MEMORY_BYTES,
                    imports=["PIL.Image", "PIL.JpegImagePlugin"],
                    wait=10,
                )
            )
            turn = threading.Lock()
            instances += [Instance(lease.options(worker=number), turn) for number in range(workers)]
        yield instances


class Instance:
    """A worker, and the lock of the workers on its core: only one of them executes at a time."""

    def __init__(self, worker, turn):
        self.worker, self.turn = worker, turn

    def call(self, *call):
        with self.turn:
            return self.worker.call(*call)


def latencies(instances, jpeg, rate, seconds):
    """Returns the seconds of all calls, each from its due moment. The instances' calls are spread over each second."""
    took, changing = [], threading.Lock()
    begin = time.perf_counter() + 0.1

    def calls(number):
        own = []
        for turn in range(max(round(rate * seconds), 1)):
            due = begin + (turn + number / len(instances)) / rate
            time.sleep(max(due - time.perf_counter(), 0))
            instances[number].call(thumbnail, jpeg)
            own.append(time.perf_counter() - due)
        with changing:
            took.extend(own)

    threads = [threading.Thread(target=calls, args=[number]) for number in range(len(instances))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def measure(count, units, jpeg, options):
    """Measures the tail latency of `count` instances, and their memory."""
    with leased(count, units) as instances:
        equal = all(instance.call(thumbnail, jpeg) == thumbnail(jpeg) for instance in instances)
        took = latencies(instances, jpeg, options.rate, options.seconds)
        memory = statistics.median(instance.call(own_bytes) for instance in instances)
    p95 = statistics.quantiles(took, n=20, method="inclusive")[-1] if len(took) > 1 else took[0]
    return {"instances": len(instances), "p95_s": p95, "own_bytes": memory, "equal": equal}


def density(units, jpeg, options):
    """Measures the first few instances, and the largest number of instances that fits."""
    try:
        first = most = measure(options.first, units, jpeg, options)
    except NOT_LENT as error:
        raise SystemExit(f"{options.first} instances: {error}: see --help") from None
    beyond, halvings = None, 0
    while halvings < 3:
        count = min(2 * most["instances"], options.most) if beyond is None else (most["instances"] + beyond) // 2
        if count < most["instances"] + len(units):
            break
        try:
            tried = measure(count, units, jpeg, options)
            said = f"95th percentile {1e3 * tried['p95_s']:.1f} ms"
        except NOT_LENT as error:
            tried, said = None, str(error)
        if options.progress:
            print(f"  {count} instances: {said}", file=sys.stderr)
        if tried is not None and tried["p95_s"] <= 2 * first["p95_s"]:
            most = tried
        else:
            beyond = count
        halvings += beyond is not None
    return {"first": first, "most": most}


def main():
    parser = argparse.ArgumentParser(description="How many instances fit before their tail latency doubles.")
    parser.add_argument("--units", default="cpu", help="kinds of processing units, with commas between [%(default)s]")
    parser.add_argument("--rate", type=float, default=1.0, help="calls of an instance in a second [%(default)s]")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement [%(default)s]")
    parser.add_argument("--first", type=int, default=4, help="instances to begin with [%(default)s]")
    parser.add_argument("--most", type=int, default=1024, help="instances that are enough [%(default)s]")
    parser.add_argument("--progress", action="store_true", help="say each measurement on standard error")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()

    jpeg = photograph(*SIZES["97 kB"], seed=1)
    with platform(options):
        found = density(options.units.split(","), jpeg, options)
    first, most = found["first"], found["most"]
    if options.json:
        print(json.dumps({**found, "equal": first["equal"] and most["equal"]}))
    else:
        for name, of in (("first", first), ("most", most)):
            print(
                f"{name + ':':6} {of['instances']:4} instances, 95th percentile {1e3 * of['p95_s']:.1f} ms, "
                f"{of['own_bytes'] / 1e6:.1f} MB of its own each"
            )
    return 0 if first["equal"] and most["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
