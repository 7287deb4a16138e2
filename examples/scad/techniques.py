"""The effect of each technique: one component fills memory and another one reads it, with one more technique each time (Scad, figure 17)."""

import time

from measuring import KEPT_S, MIB, WAIT_S, access, alone, compute, graph, interleaved, median, memory, record, trigger, two_nodes, warmed
from moving import ahead, fill, in_turn, mapped, plain

# Each adds a technique to the one before: the pool of the memory, the function that reads, and options of `Client.deploy`.
STEPS = {
    "memory of another node": ("memory", "in_turn", {"prewarm": None}),
    "reads begun ahead": ("memory", "ahead", {"prewarm": None}),
    "memory of the same node": ("balanced", "ahead", {"prewarm": None}),
    "mapped": ("balanced", "mapped", {"prewarm": None}),
    "next component prepared ahead": ("balanced", "mapped", {"prewarm": 0}),
    "workers kept": ("balanced", "mapped", {"prewarm": None, "keep_alive": KEPT_S}),
}


READERS = {"in_turn": in_turn, "ahead": ahead, "mapped": mapped}


def deployed(client, number, size, step):
    """The two components with these techniques. Neither can use the workers of the other one."""
    pool, reader, options = step
    components = [
        compute("fill", fill, entry=True, resources={"memory_bytes": 128 * MIB, "pool": "balanced"}),
        compute("read", READERS[reader], resources={"memory_bytes": 128 * MIB + 4096, "pool": "balanced"}),
        memory("table", size, MIB, pool=pool),
    ]
    edges = [trigger("fill", "read"), access("fill", "table"), access("read", "table", "read")]
    return client.deploy(graph(f"techniques-{number}", components, edges), patience=WAIT_S, fabric="tcp", **options)


def measure(options):
    """The records of this row."""
    size, rounds = (MIB, 1) if options.small else (32 * MIB, max(options.rounds, 5))

    def timed(application):
        begun = time.perf_counter()
        outcome = application.run(b"%d" % size)
        if int(outcome.output) != size:
            raise SystemExit("the second component has read other bytes than the first one wrote")
        return {"ms": (time.perf_counter() - begun) * 1000}

    with two_nodes(2) as client:
        applications = {name: deployed(client, number, size, step) for number, (name, step) in enumerate(STEPS.items())}
        # Brings the package to the node.
        for application in applications.values():
            timed(application)
        # The last one keeps its workers, and the first way needs their cores.
        time.sleep(2 * KEPT_S)
        ways = {name: lambda application=application: timed(application) for name, application in applications.items()}
        ways["workers kept"] = lambda run=ways["workers kept"]: warmed(run)
        ways["single"] = lambda: {"ms": alone(plain, size)["seconds"] * 1000}
        results = interleaved(ways, rounds)
    limit = median(results["single"], "ms")
    return [
        record("techniques", f"{number}. {name}", "time of the run", "ms", median(results[name], "ms"), limit=limit, limit_of="one process")
        for number, name in enumerate(STEPS, 1)
    ]
