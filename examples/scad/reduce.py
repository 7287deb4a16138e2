"""Reduce-By-Key, a stage of a query: a sum for each key, by instances that have a part of the rows each (Scad, figures 11 to 14).

The rows are there before the stage begins: in a memory component, or as pickles in Redis. Instances map their part, or fetch and unpickle it;
each leaves its sums there. The functions that use Redis are processes that have started before, as functions that are kept warm.
"""

import json
import multiprocessing
import os
import pickle
import time

import numpy

import sublet
from measuring import KEPT_S, MB, MIB, WAIT_S, GrownMemory, access, alone, compute, graph, interleaved, median, memory, one_node, own_bytes, record, trigger, warmed
from store import Connection, Server

KEYS = 1 << 16
# A key and a value, of 8 bytes each.
ROW_BYTES = 16
PAGE_BYTES = 4096
# Rows that are generated at a time, so that this needs little memory.
BLOCK_ROWS = 1 << 18
PHASES = ("fetch", "unpickle", "compute", "store")
# Memory that goes with a core where their ratio is fixed, as the paper has it from AWS Lambda.
FIXED_BYTES = 1_769 * MB


def part_of(rows, number, count):
    """The rows of an instance, from the first to that behind the last."""
    return number * rows // count, (number + 1) * rows // count


def fill(keys, values, begin):
    """Generates rows from the number `begin` on: the same ones wherever they are generated."""
    for first in range(0, len(keys), BLOCK_ROWS):
        last = min(first + BLOCK_ROWS, len(keys))
        numbers = numpy.arange(begin + first, begin + last, dtype="u8")
        values[first:last] = numbers & numpy.uint64(3)
        numbers *= numpy.uint64(0x9E3779B97F4A7C15)
        keys[first:last] = numbers >> numpy.uint64(48)


def sums(keys, values):
    """The sum of the values of each key."""
    return numpy.bincount(keys, weights=values, minlength=KEYS)


class Phases:
    """Times of an instance's phases, in seconds."""

    def __init__(self):
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._since = time.perf_counter()

    def ends(self, phase):
        """Ends a phase, which began when the one before ended."""
        now = time.perf_counter()
        self.seconds[phase] += now - self._since
        self._since = now


def make(data):
    """Writes the rows into memory: all keys, then all values."""
    asked = json.loads(bytes(data))
    rows, channel = asked["rows"], sublet.channel("rows")
    fill(channel.array(rows, "i8"), channel.array(rows, "f8", rows * 8), 0)
    sublet.channel("sums").resize(asked["count"] * KEYS * 8)
    return bytes(data)


def add(data):
    """Writes the sums of this instance's rows. Returns their sum, its times, and its own memory."""
    own, phases = own_bytes(), Phases()
    rows, number = json.loads(bytes(data))["rows"], sublet.instance()
    begin, end = part_of(rows, number, sublet.instances())
    channel = sublet.channel("rows")
    keys, values = channel.array(end - begin, "i8", begin * 8), channel.array(end - begin, "f8", (rows + begin) * 8)
    target = sublet.channel("sums").array(KEYS, "f8", number * KEYS * 8)
    phases.ends("fetch")
    found = sums(keys, values)
    phases.ends("compute")
    target[:] = found
    phases.ends("store")
    return json.dumps({"sum": float(found.sum()), "own_bytes": own, "phases": phases.seconds}).encode()


def deployed(client, rows, count):
    """The stage as a graph."""
    components = [
        compute("make", make, entry=True, resources={"memory_bytes": 128 * MIB}),
        compute("add", add, parallelism=count, resources={"memory_bytes": 128 * MIB}),
        memory("rows", -(-rows * ROW_BYTES // PAGE_BYTES) * PAGE_BYTES, MIB),
        memory("sums", max(count * KEYS * 8, MIB), MIB),
    ]
    edges = [
        trigger("make", "add"),
        access("make", "rows"),
        access("make", "sums"),
        access("add", "rows", "read"),
        access("add", "sums"),
    ]
    return client.deploy(graph(f"reduce-{rows}-{count}", components, edges), patience=WAIT_S, keep_alive=KEPT_S)


def by_graph(application, rows, count):
    """Runs the stage on leased cores. Workers that the run before has left continue."""
    outcome = application.run(json.dumps({"rows": rows, "count": count}).encode())
    parts = {part["component"]: part for part in outcome.components}
    seconds = (parts["add"]["end_us"] - parts["add"]["begin_us"]) * 1e-6
    held = sum(parts[name]["allocated_bytes"] for name in ("add", "rows", "sums"))
    return summary([json.loads(output) for output in outcome.outputs["add"]], seconds, held)


def summary(instances, seconds, held_bytes):
    """A run of the stage: its time, the longest of each phase, and the memory that it held without and with that of processes."""
    processes = sum(instance["own_bytes"] for instance in instances)
    return {
        "sum": sum(instance["sum"] for instance in instances),
        "seconds": seconds,
        "bytes": held_bytes,
        "all_bytes": held_bytes + processes,
        **{phase: max(instance["phases"][phase] for instance in instances) for phase in PHASES},
    }


def serve(path, number, pipe):
    """An instance of the stage with Redis: waits until the stage begins, and sends what it found."""
    with Connection(path) as connection:
        pipe.send(None)
        pipe.recv()
        own, grown, phases = own_bytes(), GrownMemory(), Phases()
        stored = connection.get(f"rows:{number}")
        phases.ends("fetch")
        keys, values = pickle.loads(stored)
        del stored
        phases.ends("unpickle")
        found = sums(keys, values)
        phases.ends("compute")
        connection.put(f"sums:{number}", pickle.dumps(found, protocol=5))
        phases.ends("store")
        pipe.send({"sum": float(found.sum()), "own_bytes": own, "peak_bytes": grown.peak_bytes(), "phases": phases.seconds})


def fill_store(path, rows, count):
    """Stores the rows of each instance as the stage before would have."""
    with Connection(path) as connection:
        connection.clear()
        for number in range(count):
            begin, end = part_of(rows, number, count)
            keys, values = numpy.empty(end - begin, "i8"), numpy.empty(end - begin)
            fill(keys, values, begin)
            connection.put(f"rows:{number}", pickle.dumps((keys, values), protocol=5))


def by_redis(server, rows, count):
    """Runs the stage as functions that fetch from Redis and store there, each in a process of its own that was started before."""
    alone(fill_store, server.path, rows, count)
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(count):
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(server.path, number, there))
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        for pipe in pipes:
            pipe.recv()
        begun = time.perf_counter()
        for pipe in pipes:
            pipe.send(None)
        instances = [pipe.recv() for pipe in pipes]
        seconds = time.perf_counter() - begun
    except EOFError:
        raise SystemExit("a function with Redis has failed: its error is above") from None
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.close()
            process.join()
    stored = rows * ROW_BYTES + count * KEYS * 8
    return summary(instances, seconds, stored + sum(instance["peak_bytes"] for instance in instances))


def by_one_process(rows):
    """Runs the stage in this process, whose memory has the rows."""
    keys, values = numpy.empty(rows, "i8"), numpy.empty(rows)
    fill(keys, values, 0)
    begun = time.perf_counter()
    found = sums(keys, values)
    return time.perf_counter() - begun, float(found.sum())


def compared(client, server, size, count, rounds):
    """Runs the stage in all ways, in turn, for this size in bytes and number of instances."""
    rows = size // ROW_BYTES
    application = deployed(client, rows, count)
    ways = {
        "sublet": lambda: warmed(lambda: by_graph(application, rows, count)),
        "redis": lambda: by_redis(server, rows, count),
        "single": lambda: alone(by_one_process, rows)["value"],
    }
    results = interleaved(ways, rounds)
    expected = {found for _, found in results["single"]}
    if {result["sum"] for way in ("sublet", "redis") for result in results[way]} != expected:
        raise SystemExit("the ways of reducing have come to different sums")
    results["single"] = [{"seconds": seconds / count} for seconds, _ in results["single"]]
    return results


def records_of(results, case, count):
    """The records of one size and number of instances."""
    ours, redis = results["sublet"], results["redis"]

    def over_time(runs, field):
        return median([{field: run[field] * run["seconds"] * 1e-9} for run in runs], field)

    seconds = median(redis, "seconds")
    fixed = FIXED_BYTES * count * seconds * 1e-9
    return [
        record("reduce", case, "time of the stage", "s", median(ours, "seconds"), limit=median(results["single"], "seconds"), limit_of="one process, divided by the cores", peers={"Redis": seconds}),
        record("reduce", case, "memory", "MB", median(ours, "bytes") / MB, peers={"Redis": median(redis, "bytes") / MB}),
        record("reduce", case, "memory with processes", "MB", median(ours, "all_bytes") / MB, peers={"Redis": median(redis, "all_bytes") / MB}),
        record("reduce", case, "memory-time", "GB-s", over_time(ours, "bytes"), peers={"Redis": over_time(redis, "bytes"), "Redis with memory by core": fixed}),
    ]


def measure(options):
    """The records of this row."""
    cores = 1 if options.small else len(os.sched_getaffinity(0))
    sizes, rounds = ([2 * MB], 1) if options.small else ([64 * MB, 256 * MB, 1024 * MB], options.rounds)
    records = []
    with one_node() as client, Server() as server:
        for size in sizes:
            results = compared(client, server, size, cores, rounds)
            records += records_of(results, f"{size // MB} MB, {cores} cores", cores)
        for phase in PHASES:
            times = [median(results[way], phase) for way in ("sublet", "redis")]
            records.append(record("reduce", f"{sizes[-1] // MB} MB, {cores} cores", f"phase: {phase}", "s", times[0], peers={"Redis": times[1]}))
        # The same rows with fewer cores.
        count = 1
        while count < cores:
            records += records_of(compared(client, server, sizes[-1], count, rounds), f"{sizes[-1] // MB} MB, {count} cores", count)
            count *= 2
    return records
