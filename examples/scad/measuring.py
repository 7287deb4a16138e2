"""Shared parts of all rows of the evaluation: medians of rounds in turn, processes to compare with, and platforms of several nodes."""

import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time

import sublet

MB = 1_000_000
MIB = 1 << 20
# Longest time in which nodes register, in seconds.
PATIENCE_S = 60
# Longest time that a component waits for cores, in seconds.
WAIT_S = 120
# Time for which workers are kept for the next run, in seconds.
KEPT_S = 0.5


def record(row, case, measure, unit, ours, **more):
    """Returns one line of the evaluation: a measure of Sublet, beside its limit and its peers."""
    return {"bench": "scad", "row": row, "case": case, "measure": measure, "unit": unit, "sublet": ours, **more}


def interleaved(ways, rounds):
    """Calls each of the named functions in turn, `rounds` times. Returns the results of each by its name."""
    results = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            results[name].append(way())
    return results


def median(results, field):
    """The median of a field of the results."""
    return statistics.median(result[field] for result in results)


def own_bytes():
    """Memory of this process in bytes, shared pages divided among those that share them."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _status_bytes(field):
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


class GrownMemory:
    """Measures how much memory this process gets beyond what it has now: the peak, in bytes.

    Both numbers count shared pages as a whole. `own_bytes` does not: the peak less that would count the interpreter's pages as data.
    """

    def __init__(self):
        # Forgets the peak of the imports. Where that is refused, it counts.
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as peak:
            peak.write("5")
        self._before = _status_bytes("VmRSS:")

    def peak_bytes(self):
        """Largest number of bytes since then."""
        return max(_status_bytes("VmHWM:") - self._before, 0)


def _called(function, arguments, pipe):
    own, grown = own_bytes(), GrownMemory()
    begun = time.perf_counter()
    value = function(*arguments)
    seconds = time.perf_counter() - begun
    pipe.send({"value": value, "seconds": seconds, "own_bytes": own, "data_bytes": grown.peak_bytes()})


def alone(function, *arguments):
    """Calls the function in a new process. Returns its value, its time, and the process's memory: before the call, and the peak beyond that."""
    # A forked process would count the peak of this one as its own.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_called, args=(function, arguments, there))
    process.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise SystemExit("a process that Sublet is compared with has failed: its error is above") from None
    finally:
        process.join()
        here.close()


def warmed(run):
    """Calls `run` twice, with workers that are kept in between. Returns the result of the second call, when the workers have ended.

    Kept workers have their cores, which the next way to measure needs.
    """
    run()
    result = run()
    time.sleep(2 * KEPT_S)
    return result


def bytes_over_time(outcome):
    """Leased and used memory over time of a run, in byte-seconds."""
    leased, used = (sum(part[field] for part in outcome.components) * 1e-6 for field in ("allocated_byte_us", "used_byte_us"))
    return leased, used


def compute(name, function, **more):
    """A compute component of a graph."""
    return {"name": name, "type": "compute", "function": function, **more}


def memory(name, initial=MIB, increment=MIB, **more):
    """A memory component of a graph."""
    return {"name": name, "type": "memory", "initial_bytes": initial, "increment_bytes": increment, **more}


def access(component, to, rights="write"):
    """An edge from a compute component to memory."""
    return {"type": "access", "from": component, "to": to, "rights": rights}


def trigger(first, then):
    """An edge between two compute components."""
    return {"type": "trigger", "from": first, "to": then}


def graph(name, components, edges):
    """A document for `Client.deploy`."""
    return {"version": 1, "name": name, "components": components, "edges": edges}


@contextlib.contextmanager
def one_node():
    """A client of the platform of $SUBLET_MANAGER, or of one that ends with the block."""
    if "SUBLET_MANAGER" in os.environ:
        yield sublet.default_client()
    else:
        with sublet.local() as client:
            yield client


@contextlib.contextmanager
def two_nodes(cores):
    """A client of a manager and two nodes on this machine: one lends cores and memory, the other one is a memory pool.

    They reach each other over loopback.
    """
    # Imported here, because workers import this module, too.
    from sublet._command import program

    with tempfile.TemporaryDirectory(prefix="sublet-scad-") as folder, contextlib.ExitStack() as started:
        address = f"unix:{folder}/manager/manager.sock"
        environment = dict(os.environ, SUBLET_MANAGER=address)

        def start(*words):
            process = subprocess.Popen([program(), *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
            started.callback(process.wait, PATIENCE_S)
            started.callback(process.terminate)
            return process

        def names():
            listed = subprocess.run([program(), "--json", "ps"], env=environment, check=False, capture_output=True)
            return {node["name"] for node in json.loads(listed.stdout)["nodes"]} if listed.returncode == 0 else set()

        def wait(processes, expected):
            end = time.monotonic() + PATIENCE_S
            while not expected():
                if time.monotonic() > end or any(process.poll() is not None for process in processes):
                    raise SystemExit(f"two nodes did not start within {PATIENCE_S} s: their messages are above")
                time.sleep(0.02)

        manager = start("manager", "--state", f"{folder}/manager", "--listen", "127.0.0.1:0")
        wait([manager], lambda: os.path.exists(f"{folder}/manager/manager.sock"))
        nodes = []
        for pool, lent in (("balanced", cores), ("memory", 1)):
            words = ["--state", f"{folder}/{pool}", "--name", pool, "--pool", pool, "--cores", str(lent), "--memory", "4GiB"]
            words += ["--listen", "127.0.0.1:0", "--manager", address, "--python", sys.executable]
            nodes.append(start("agent", *words))
        wait([manager, *nodes], lambda: names() == {"balanced", "memory"})
        client = sublet.Client(address)
        before = sublet.set_default(client)
        try:
            yield client
        finally:
            sublet.set_default(before)
