"""Memory that follows a workload: a compressed table is unpacked block by block and sampled, then given back (Scad, figure 15)."""

import json
import time
import zlib

import numpy

import sublet
from measuring import MB, MIB, WAIT_S, access, alone, compute, graph, interleaved, median, memory, one_node, record

BLOCK_ROWS = 1 << 18
BLOCK_BYTES = BLOCK_ROWS * 8
# Rows that are sampled after each block.
SAMPLES = 20_000
# The blocks that are given back at a time, at the end.
STEPS = 8


def packed():
    """A compressed block of the table."""
    return zlib.compress((numpy.arange(BLOCK_ROWS) % 251).astype("f8").tobytes(), 1)


def sampled(table, random):
    """The sum of some of the table's rows."""
    return int(table[random.integers(0, len(table), SAMPLES)].sum())


def unpack(data):
    """Unpacks and samples the table in a memory component, which grows and shrinks with it."""
    count, block = int(bytes(data[:8])), bytes(data[8:])
    channel, random, found = sublet.channel("table"), numpy.random.default_rng(1), 0
    for number in range(count):
        rows = numpy.frombuffer(zlib.decompress(block))
        channel.write(number * BLOCK_BYTES, rows)
        found += sampled(numpy.frombuffer(channel.read(number * BLOCK_BYTES, BLOCK_BYTES)), random)
    for step in range(STEPS - 1, -1, -1):
        channel.resize(count * step // STEPS * BLOCK_BYTES)
    return json.dumps(found).encode()


def plain(count, block):
    """The same in one process, with a list of arrays."""
    table, random, found = [], numpy.random.default_rng(1), 0
    for _ in range(count):
        table.append(numpy.frombuffer(zlib.decompress(block)))
        found += sampled(table[-1], random)
    for step in range(STEPS - 1, -1, -1):
        del table[count * step // STEPS :]
    return found


def measure(options):
    """The records of this row."""
    counts, rounds = ([4], 1) if options.small else ([50, 100, 200], options.rounds)
    records = []
    with one_node() as client:
        components = [
            compute("unpack", unpack, entry=True, resources={"memory_bytes": 128 * MIB}),
            memory("table", 16 * MIB, 16 * MIB),
        ]
        application = client.deploy(graph("growth", components, [access("unpack", "table")]), patience=WAIT_S)
        for count in counts:
            # The block is compressed outside of both times.
            block = packed()
            message = b"%8d" % count + block

            def run():
                begun = time.perf_counter()
                outcome = application.run(message)
                parts = {part["component"]: part for part in outcome.components}
                table = parts["table"]
                return {
                    "value": json.loads(outcome.output),
                    "seconds": time.perf_counter() - begun,
                    "used": table["used_byte_us"] / table["allocated_byte_us"],
                    "leased": table["allocated_byte_us"] * 1e-15,
                    "peak": table["used_bytes"] * (table["end_us"] - table["begin_us"]) * 1e-15,
                }

            results = interleaved({"sublet": run, "single": lambda: alone(plain, count, block)}, rounds)
            ours, single = results["sublet"], results["single"]
            if len({result["value"] for result in ours + single}) != 1:
                raise SystemExit("the graph has sampled other values than one process")
            case = f"{count * BLOCK_BYTES // MB} MB"
            records += [
                record("growth", case, "leased memory-time that is used", "", median(ours, "used"), limit=1.0),
                record("growth", case, "memory-time of the table", "GB-s", median(ours, "leased"), peers={"its peak for the whole time": median(ours, "peak")}),
                record("growth", case, "time", "s", median(ours, "seconds"), limit=median(single, "seconds"), limit_of="one process"),
            ]
    return records
