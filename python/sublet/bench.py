"""Measures calls on this machine, beside their alternatives: `python -m sublet.bench [--peers] [--json]`.

`--environment FILE` measures an environment of a requirements or lock file instead: its installation on a node beside a plain copy of its
files, and cold starts in it beside those of the bare interpreter.

All in one run on one machine: ratios hold, absolute times drift. Peers are measured where they are installed: Ray, Dask
(`pip install ray distributed`); `ProcessPoolExecutor` always is.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

import sublet

from ._command import program

SMALL = b"x" * 1024
LARGE_BYTES = 10_000_000
ITEMS = 10_000
ITEM_SECONDS = 10e-6


def noop(value):
    return value


def ten_microseconds(value):
    end = time.perf_counter() + ITEM_SECONDS
    while time.perf_counter() < end:
        pass
    return value


def times_of(call, count, warm=20):
    """The median and the 99th percentile, in microseconds."""
    for _ in range(warm):
        call()
    taken = []
    for _ in range(count):
        begun = time.perf_counter_ns()
        call()
        taken.append((time.perf_counter_ns() - begun) / 1000)
    return summary(taken)


def summary(taken):
    """The median and the 99th percentile of times in microseconds."""
    taken.sort()
    return {"median_us": round(statistics.median(taken), 2), "p99_us": round(taken[int(len(taken) * 0.99)], 2)}


def items_per_second(run):
    """The best of three: how many items of a map end in a second."""
    rates = []
    for _ in range(3):
        begun = time.perf_counter()
        if sum(1 for _ in run()) != ITEMS:
            raise AssertionError("a map has lost items")
        rates.append(ITEMS / (time.perf_counter() - begun))
    return round(max(rates))


def large_array():
    import numpy

    return numpy.ones(LARGE_BYTES, "u1")


def measure_sublet(client, cores):
    figures = {}
    with client.lease(policy="hot", memory="256MiB") as lease:
        figures["noop 1 kB"] = times_of(lambda: lease.call(noop, SMALL), 5000)
        figures["noop 1 kB, future"] = times_of(lambda: lease.submit(noop, SMALL).result(), 5000)
        array, registered = large_array(), sublet.array(large_array())
        figures["10 MB array, copied"] = times_of(lambda: lease.call(noop, array), 200)
        figures["10 MB array, registered"] = times_of(lambda: lease.call(noop, registered), 500)
    with client.lease(cores) as lease:
        list(lease.map(ten_microseconds, range(ITEMS)))
        figures["map items/s"] = items_per_second(lambda: lease.map(ten_microseconds, range(ITEMS)))
    return figures


def measure_native(client):
    """The same function in C, called from Python and by the client in Rust."""
    with_c = json.loads(command(client, "bench", "latency", "--mode", "hot", "--function", "echo", "--size", "1024"))
    figures = {"by the library": with_c}
    package = next((name for name in packages(client) if "bench" in name), None)
    if package is not None:
        with client.lease(package=package, policy="hot") as lease:
            value, out = sublet.zeros(1024, "u1"), sublet.zeros(1024, "u1")
            figures["from Python"] = times_of(lambda: lease.call("echo", value, out=out), 20000)
    return figures


def command(client, *arguments):
    environment = dict(os.environ, SUBLET_MANAGER=client.managers)
    return subprocess.run([program(), *arguments, "--json"], env=environment, check=True, stdout=subprocess.PIPE).stdout


def packages(client):
    return [package["name"] for package in json.loads(command(client, "ps"))["packages"]]


def measure_joblib(client, cores):
    """A `Parallel` of ten small tasks, from the second one on, by Sublet and by joblib's own processes."""
    import joblib

    import sublet.joblib  # noqa: F401

    def parallel():
        return joblib.Parallel()(joblib.delayed(abs)(n) for n in range(10))

    backends = {"sublet": {"client": client}, "loky": {}}
    taken = {backend: [] for backend in backends}
    # In turn, since other load on this machine changes.
    for number in range(10):
        for backend, options in backends.items():
            with joblib.parallel_config(backend=backend, n_jobs=cores, **options):
                parallel()
                for _ in range(5 if number else 0):
                    begun = time.perf_counter_ns()
                    parallel()
                    taken[backend].append((time.perf_counter_ns() - begun) / 1000)
    figures = {backend: summary(times) for backend, times in taken.items()}
    figures["loky / sublet"] = round(figures["loky"]["median_us"] / figures["sublet"]["median_us"], 2)
    return figures


def measure_processes(cores):
    figures = {}
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        figures["noop 1 kB"] = times_of(lambda: pool.submit(noop, SMALL).result(), 1000)
        array = large_array()
        figures["10 MB array, copied"] = times_of(lambda: pool.submit(noop, array).result(), 20, warm=2)
    with concurrent.futures.ProcessPoolExecutor(cores) as pool:
        list(pool.map(ten_microseconds, range(100)))
        chunks = {size: items_per_second(lambda size=size: pool.map(ten_microseconds, range(ITEMS), chunksize=size)) for size in (1, 10, 100, 1000)}
        figures["map items/s, chunksize 1"] = chunks[1]
        figures["map items/s, best chunksize"] = max(chunks.values())
    return figures


def measure_ray():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        @ray.remote
        class Actor:
            def noop(self, value):
                return value

        actor = Actor.remote()
        array = large_array()
        return {
            "noop 1 kB": times_of(lambda: ray.get(actor.noop.remote(SMALL)), 500),
            "10 MB array, copied": times_of(lambda: ray.get(actor.noop.remote(array)), 50),
        }
    finally:
        ray.shutdown()


def measure_dask():
    from distributed import Client

    with Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        array = large_array()
        return {
            "noop 1 kB": times_of(lambda: client.submit(noop, SMALL, pure=False).result(), 200),
            "10 MB array, copied": times_of(lambda: client.submit(noop, array, pure=False).result(), 10, warm=2),
        }


def measure_environment(requirements, starts):
    """The installation of an environment that the managers have, on a node that has none of it; and cold starts in it, in turn with bare ones."""
    platform = sublet.local(memory="4GiB")
    with platform as client, tempfile.TemporaryDirectory() as folder:
        environment = sublet.Environment(requirements)
        digest = environment.deploy(client)

        def start(**options):
            begun = time.perf_counter_ns()
            with client.lease(wait=60, **options):
                return (time.perf_counter_ns() - begun) / 1000

        # The first start of each kind also starts its interpreter.
        start()
        bare = min(start() for _ in range(5))
        interpreter = start(environment=_bare(client))
        installed = start(environment=environment)
        tree = os.path.join(platform._folder.path, "state", "packages", digest, ".built", "environment")
        size = sum(os.lstat(os.path.join(above, name)).st_size for above, _, names in os.walk(tree) for name in names)
        copies = []
        for number in range(3):
            begun = time.perf_counter_ns()
            subprocess.run(["cp", "-r", tree, os.path.join(folder, str(number))], check=True)
            copies.append((time.perf_counter_ns() - begun) / 1000)
        taken = {"bare": [], "environment": []}
        for _ in range(starts):
            taken["bare"].append(start())
            taken["environment"].append(start(environment=environment))
        figures = {kind: summary(times) for kind, times in taken.items()}
        install_us = installed - bare
        return {
            **figures,
            "difference of medians, us": round(figures["environment"]["median_us"] - figures["bare"]["median_us"], 2),
            "first start in any environment, us": round(interpreter, 2),
            "MB": round(size / 1e6, 1),
            "installed, ms": round(install_us / 1000, 1),
            "copied, ms": round(min(copies) / 1000, 1),
            "installed / copied, of bytes per second": round(min(copies) / install_us, 2),
        }


def _bare(client):
    """An environment of one empty wheel."""
    folder = tempfile.mkdtemp()
    name = os.path.join(folder, "nothing-1.0-py3-none-any.whl")
    information = "nothing-1.0.dist-info"
    with zipfile.ZipFile(name, "w") as archive:
        archive.writestr(f"{information}/METADATA", "")
        digest = base64.urlsafe_b64encode(hashlib.sha256(b"").digest()).rstrip(b"=").decode()
        archive.writestr(f"{information}/RECORD", f"{information}/METADATA,sha256={digest},0\n{information}/RECORD,,\n")
    with open(name, "rb") as wheel:
        digest = hashlib.sha256(wheel.read()).hexdigest()
    lock = os.path.join(folder, "pylock.toml")
    with open(lock, "w") as file:
        file.write(f'lock-version = "1.0"\n[[packages]]\nname = "nothing"\nwheels = [{{ path = "{name}", hashes = {{ sha256 = "{digest}" }} }}]\n')
    return sublet.Environment(lock)


def ratios(figures):
    """How many times as long each peer takes."""
    own, found = figures["sublet"], {}
    for peer, others in figures.items():
        if peer in ("sublet", "native", "joblib"):
            continue
        found[peer] = {
            "noop 1 kB": round(others["noop 1 kB"]["median_us"] / own["noop 1 kB"]["median_us"], 1),
            "10 MB array, copied": round(others["10 MB array, copied"]["median_us"] / own["10 MB array, copied"]["median_us"], 1),
            "10 MB array, registered": round(others["10 MB array, copied"]["median_us"] / own["10 MB array, registered"]["median_us"], 1),
        }
        for name, rate in others.items():
            if name.startswith("map"):
                found[peer][name] = round(own["map items/s"] / rate, 2)
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m sublet.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help="measure Ray and Dask, too, where they are installed")
    parser.add_argument("--cores", type=int, default=min(2, len(os.sched_getaffinity(0))), help="of the maps (2, or what there is)")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--environment", metavar="FILE", help="measure an environment of this requirements or lock file, and nothing else")
    arguments = parser.parse_args()
    if arguments.environment is not None:
        print(json.dumps(measure_environment(arguments.environment, 50), indent=2))
        return
    figures, missing = {}, []
    with sublet.local(memory="4GiB") as client:
        figures["sublet"] = measure_sublet(client, arguments.cores)
        figures["native"] = measure_native(client)
        try:
            figures["joblib"] = measure_joblib(client, max(2, arguments.cores))
        except ImportError:
            missing.append("joblib")
    figures["ProcessPoolExecutor"] = measure_processes(arguments.cores)
    for peer, measure in (("Ray", measure_ray), ("Dask", measure_dask)) if arguments.peers else ():
        try:
            figures[peer] = measure()
        except ImportError:
            missing.append(peer)
    figures["ratios"] = ratios(figures)
    figures["not installed"] = missing
    if arguments.json:
        json.dump(figures, sys.stdout, indent=2)
        print()
        return
    for who, measured in figures.items():
        print(who)
        for name, value in measured.items() if isinstance(measured, dict) else ():
            print(f"  {name:28} {value}")


if __name__ == "__main__":
    main()
