"""Pairs of a component and its memory, which is placed beside it, or all on one other node, or in Redis (Scad, figure 19).

A node runs as many components at a time as it has cores; the others wait, with Sublet in the manager's queue.
"""

import json
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import sublet
from measuring import KEPT_S, MB, MIB, WAIT_S, access, compute, graph, interleaved, median, memory, record, two_nodes, warmed
from store import Connection, Server

PIECE_BYTES = 64 << 10
# Pieces of each memory.
PLACES_OF_A_PAIR = 8
PLACES = {"beside the component": "balanced", "on one node": "memory"}


def exchanged(write, read, count):
    """Writes a piece and reads it, `count` times. Returns the microseconds of each access: half of both."""
    piece, taken = b"\1" * PIECE_BYTES, []
    for number in range(count):
        begun = time.perf_counter()
        write(number % PLACES_OF_A_PAIR, piece)
        found = read(number % PLACES_OF_A_PAIR)
        taken.append((time.perf_counter() - begun) * 1e6 / 2)
        if found != piece:
            raise ValueError("another piece was read than was written")
    return taken


def exchange(data):
    """A pair of a run: works on its memory."""
    channel = sublet.channel("own")
    taken = exchanged(
        lambda place, piece: channel.write(place * PIECE_BYTES, piece),
        lambda place: channel.read(place * PIECE_BYTES, PIECE_BYTES),
        int(bytes(data)),
    )
    return json.dumps(taken).encode()


def exchange_with_redis(path, number, count):
    """A pair with Redis as its memory."""
    with Connection(path) as connection:
        return exchanged(
            lambda place, piece: connection.command(b"SET", b"%d:%d" % (number, place), piece),
            lambda place: connection.command(b"GET", b"%d:%d" % (number, place)),
            count,
        )


def deployed(client, name, pool):
    """A pair as a graph: each run is one."""
    components = [
        compute("exchange", exchange, entry=True, resources={"memory_bytes": 128 * MIB, "pool": "balanced"}),
        memory("own", PLACES_OF_A_PAIR * PIECE_BYTES, MIB, pool=pool),
    ]
    document = graph(f"pairs-{name.replace(' ', '-')}", components, [access("exchange", "own")])
    return client.deploy(document, patience=WAIT_S, keep_alive=KEPT_S, fabric="tcp")


def timed(pairs, count, start):
    """Starts all pairs at once. Returns their rate together, and the median of their accesses."""
    begun = time.perf_counter()
    taken = [micros for one in start(pairs) for micros in one]
    seconds = time.perf_counter() - begun
    return {"mb_per_s": pairs * count * 2 * PIECE_BYTES / MB / seconds, "us": statistics.median(taken)}


def measure(options):
    """The records of this row."""
    numbers, count, rounds = ([1, 2], 16, 1) if options.small else ([1, 10, 50], 1000, options.rounds)
    cores = min(len(os.sched_getaffinity(0)), 2 if options.small else 1 << 10)
    context, records = multiprocessing.get_context("spawn"), []
    with two_nodes(cores) as client, Server() as server, ThreadPoolExecutor(max(numbers)) as threads, context.Pool(cores) as pool:
        applications = {name: deployed(client, name, place) for name, place in PLACES.items()}

        def runs(application):
            return lambda pairs: threads.map(lambda _: json.loads(application.run(b"%d" % count).output), range(pairs))

        def with_redis(pairs):
            return pool.starmap(exchange_with_redis, [(server.path, number, count) for number in range(pairs)], chunksize=1)

        starts = {name: runs(application) for name, application in applications.items()} | {"redis": with_redis}
        for pairs in numbers:
            ways = {name: lambda start=start: warmed(lambda: timed(pairs, count, start)) for name, start in starts.items()}
            results = interleaved(ways, rounds)
            beside, apart = results["beside the component"], results["on one node"]
            for field, measure, unit in (("us", "an access", "us"), ("mb_per_s", "all accesses together", "MB/s")):
                peers = {"memory on one other node": median(apart, field), "Redis": median(results["redis"], field)}
                records.append(record("pairs", f"{pairs} pairs", measure, unit, median(beside, field), peers=peers))
    return records
