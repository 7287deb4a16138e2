"""What each technique adds: one component fills memory and another one reads it, with one more technique each time (Scad, figure 17)."""

import time

import sublet
from measuring import MIB, WAIT_S, access, alone, compute, graph, interleaved, median, memory, record, trigger, two_nodes

PIECE_BYTES = 64 << 10
# Reads that are begun before the first one is waited for.
AHEAD = 8
# Each adds a technique to the one before: the pool of the memory, the function that reads, and options of `Client.deploy`.
STEPS = {
    "memory of another node": ("memory", "in_turn", {"prewarm": None}),
    "reads begun ahead": ("memory", "ahead", {"prewarm": None}),
    "memory of the same node": ("balanced", "ahead", {"prewarm": None}),
    "mapped": ("balanced", "mapped", {"prewarm": None}),
    "next component prepared ahead": ("balanced", "mapped", {"prewarm": 0}),
    "workers kept": ("balanced", "mapped", {"prewarm": None, "keep_alive": 60}),
}


def fill(data):
    """Fills the memory."""
    size = int(bytes(data))
    channel = sublet.channel("table")
    for at in range(0, size, PIECE_BYTES):
        channel.write(at, b"\1" * PIECE_BYTES)
    channel.sync()
    return bytes(data)


def in_turn(data):
    """Reads piece by piece, and waits for each."""
    channel = sublet.channel("table")
    return b"%d" % sum(channel.read(at, PIECE_BYTES).count(1) for at in range(0, int(bytes(data)), PIECE_BYTES))


def ahead(data):
    """Reads piece by piece, with several on their way."""
    channel, found, begun = sublet.channel("table"), 0, []
    for at in range(0, int(bytes(data)), PIECE_BYTES):
        begun.append(channel.read_async(at, PIECE_BYTES))
        if len(begun) == AHEAD:
            found += bytes(begun.pop(0).result()).count(1)
    return b"%d" % (found + sum(bytes(reading.result()).count(1) for reading in begun))


def mapped(data):
    """Reads without a copy."""
    size = int(bytes(data))
    return b"%d" % sublet.channel("table").array(size, "u1").tobytes().count(1)


def plain(size):
    """The same in one process."""
    table = bytearray(size)
    for at in range(0, size, PIECE_BYTES):
        table[at : at + PIECE_BYTES] = b"\1" * PIECE_BYTES
    return table.count(1)


READERS = {"in_turn": in_turn, "ahead": ahead, "mapped": mapped}


def deployed(client, number, size, step):
    """The two components with these techniques. Neither can use the workers of the other one."""
    pool, reader, options = step
    components = [
        compute("fill", fill, entry=True, resources={"memory_bytes": 64 * MIB, "pool": "balanced"}),
        compute("read", READERS[reader], resources={"memory_bytes": 64 * MIB + 4096, "pool": "balanced"}),
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
        # Brings the package to the node, and starts the workers that are kept.
        for application in applications.values():
            timed(application)
        ways = {name: lambda application=application: timed(application) for name, application in applications.items()}
        ways["single"] = lambda: {"ms": alone(plain, size)["seconds"] * 1000}
        results = interleaved(ways, rounds)
    limit = median(results["single"], "ms")
    return [
        record("techniques", f"{number}. {name}", "time of the run", "ms", median(results[name], "ms"), limit=limit, limit_of="one process")
        for number, name in enumerate(STEPS, 1)
    ]
