"""Starts of components: a chain of functions that sleep, cold, prepared ahead, and kept by the run before (Scad, table 1 and figure 18)."""

import subprocess
import sys
import time

from measuring import KEPT_S, MIB, WAIT_S, compute, graph, interleaved, median, one_node, record, trigger, warmed
from napping import nap

# Options of `Client.deploy` for each way to start.
WAYS = {
    "cold": {"prewarm": None},
    "prepared ahead": {"prewarm": 0},
    "kept": {"prewarm": None, "keep_alive": KEPT_S},
}


def chain(client, name, count, options):
    """A chain of components. They cannot use each other's workers, unless workers are kept."""
    step = 0 if "keep_alive" in options else 4096
    parts = [compute(f"c{at}", nap, resources={"memory_bytes": 64 * MIB + at * step}) for at in range(count)]
    parts[0]["entry"] = True
    edges = [trigger(f"c{at}", f"c{at + 1}") for at in range(count - 1)]
    return client.deploy(graph(f"warm-{name.replace(' ', '-')}", parts, edges), patience=WAIT_S, **options)


def measure(options):
    """The records of this row."""
    count, naps, rounds = (2, [10], 1) if options.small else (10, [10, 100, 1000], options.rounds)

    def beyond(call, nap_ms):
        """Time of each component beyond its sleep, in milliseconds."""
        begun = time.perf_counter()
        call()
        return {"ms": (time.perf_counter() - begun) * 1000 / count - nap_ms}

    def processes(nap_ms):
        for _ in range(count):
            subprocess.run([sys.executable, "-S", "-c", f"import time; time.sleep({nap_ms / 1000})"], check=True)

    records = []
    with one_node() as client:
        chains = {name: chain(client, name, count, more) for name, more in WAYS.items()}
        for nap_ms in naps:
            message = b"%d" % nap_ms
            ways = {name: lambda run=application.run: beyond(lambda: run(message), nap_ms) for name, application in chains.items()}
            ways["kept"] = lambda run=ways["kept"]: warmed(run)
            ways["process"] = lambda: beyond(lambda: processes(nap_ms), nap_ms)
            ways["limit"] = lambda: beyond(lambda: [time.sleep(nap_ms / 1000) for _ in range(count)], nap_ms)
            results = interleaved(ways, rounds if nap_ms < 1000 else 1)
            limit, process = (median(results[name], "ms") for name in ("limit", "process"))
            records += [
                record("warm", f"functions of {nap_ms} ms, {name}", "time beyond the function", "ms", median(results[name], "ms"), limit=limit, limit_of="sleeping only", peers={"a process each": process})
                for name in WAYS
            ]
    return records
