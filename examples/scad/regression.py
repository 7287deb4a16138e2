"""Logistic regression in Python, split by the compiler, with sizes from earlier runs only (Scad, figures 7 and 8).

The first run has the sizes that a graph has without any history. The memory of a worker before its function begins, which is its
interpreter and modules, is counted on both sides, or left out on both.
"""

import secrets
import time

import numpy

import sublet
from measuring import MB, WAIT_S, alone, bytes_over_time, median, one_node, own_bytes, record

COLUMNS = 20
ROW_BYTES = COLUMNS * 8
# Runs of one application: each has the sizes that follow from those before it.
RUNS = 4


def made(rows):
    """Generates samples, and the class of each, one of two."""
    random = numpy.random.default_rng(1)
    samples = random.normal(size=(rows, COLUMNS))
    noise = random.normal(size=rows)
    return samples, samples @ numpy.linspace(-1, 1, COLUMNS) + noise > 0


def step(samples, labels, weights, rate=0.5):
    """Takes one step of gradient descent."""
    wrong = 1 / (1 + numpy.exp(-samples @ weights)) - labels
    weights -= rate / len(labels) * (wrong @ samples)


def whole(rows: int, steps: int):
    """The program; the numbers of bytes are those of the processes that execute its parts."""
    sublet.split("load")
    own_load: int = own_bytes()
    samples, labels = made(rows)

    sublet.split("divide")
    own_divide: int = own_bytes()
    cut = rows * 4 // 5
    test, test_labels = samples[cut:].copy(), labels[cut:].copy()
    samples, labels = samples[:cut], labels[:cut]

    sublet.split("train")
    own_train: int = own_bytes()
    weights = numpy.zeros(COLUMNS)
    for _ in range(steps):
        step(samples, labels, weights)

    sublet.split("validate")
    own_validate: int = own_bytes()
    right = (test @ weights > 0) == test_labels
    return float(right.mean()), weights, {"load": own_load, "divide": own_divide, "train": own_train, "validate": own_validate}


def plain(rows, steps):
    """The program in one process. Returns only what crosses a pipe quickly."""
    accuracy, weights, _ = whole(rows, steps)
    return accuracy, weights


def run(application, rows, steps):
    """Runs the application once. Returns the model, its time, and its memory over time."""
    begun = time.perf_counter()
    outcome = application.run(rows, steps)
    wall_s = time.perf_counter() - begun
    accuracy, weights, own = outcome.value
    leased, used = bytes_over_time(outcome)
    parts = {part["component"]: part for part in outcome.components}
    seconds = {name: (parts[name]["end_us"] - parts[name]["begin_us"]) * 1e-6 for name in own}
    return {
        "accuracy": accuracy,
        "weights": weights,
        "seconds": wall_s,
        "leased": leased,
        "utilisation": used / leased,
        "own": sum(own[name] * seconds[name] for name in own),
    }


def measure(options):
    """The records of this row."""
    rows, steps, rounds = (20_000, 10, 1) if options.small else (44 * MB // ROW_BYTES, 200, options.rounds)
    single, runs = [], [[] for _ in range(2 if options.small else RUNS)]
    with one_node():
        for _ in range(rounds):
            # A new name: the application has no history.
            application = sublet.app(whole, name=f"regression_{secrets.token_hex(4)}").options(patience=WAIT_S)
            application.deploy()
            for results in runs:
                single.append(alone(plain, rows, steps))
                results.append(run(application, rows, steps))
                expected, found = single[-1]["value"], results[-1]
                if abs(found["accuracy"] - expected[0]) > 1e-3 or not numpy.allclose(found["weights"], expected[1]):
                    raise SystemExit("the graph has come to another model than one process")
    seconds = median(single, "seconds")
    for result in single:
        result["data"] = result["data_bytes"] * result["seconds"] * 1e-9
        result["all"] = (result["data_bytes"] + result["own_bytes"]) * result["seconds"] * 1e-9
    records = []
    for number, results in enumerate(runs, 1):
        if number == 3:
            continue
        for result in results:
            result["all"] = (result["leased"] + result["own"]) * 1e-9
            result["data"] = result["leased"] * 1e-9
        case = f"{rows * ROW_BYTES // MB} MB, run {number}"
        records += [
            record("regression", case, "leased memory-time that is used", "", median(results, "utilisation"), limit=1.0),
            record("regression", case, "time", "s", median(results, "seconds"), limit=seconds, limit_of="one process"),
            record("regression", case, "memory-time without processes", "GB-s", median(results, "data"), peers={"one process": median(single, "data")}),
            record("regression", case, "memory-time with processes", "GB-s", median(results, "all"), peers={"one process": median(single, "all")}),
        ]
    return records
