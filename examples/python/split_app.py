"""Trains and validates a logistic regression: as one function here, and as a graph of the components into which it is split.

    python examples/python/split_app.py [--rows N] [--columns N] [--steps N]

The function is the same. Split, its parts have memory and a core only while they need them: what each had is printed.
"""

import argparse
import contextlib
import json
import os
import sys
import time

import numpy

import sublet


def made(rows, columns):
    """Generates samples, and the class of each, one of two."""
    random = numpy.random.default_rng(1)
    samples = random.normal(size=(rows, columns))
    noise = random.normal(size=rows)
    return samples, samples @ numpy.linspace(-1, 1, columns) + noise > 0


def step(samples, labels, weights, rate=0.5):
    """Takes one step of gradient descent."""
    wrong = 1 / (1 + numpy.exp(-samples @ weights)) - labels
    weights -= rate / len(labels) * (wrong @ samples)


@sublet.app
def regression(rows: int, columns: int, steps: int):
    sublet.split("load")
    samples, labels = made(rows, columns)

    sublet.split("divide")
    cut = rows * 4 // 5
    test, test_labels = samples[cut:].copy(), labels[cut:].copy()
    samples, labels = samples[:cut], labels[:cut]

    sublet.split("train")
    weights = numpy.zeros(columns)
    for _ in range(steps):
        step(samples, labels, weights)

    sublet.split("validate")
    right = (test @ weights > 0) == test_labels
    return float(right.mean()), weights


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def main():
    parser = argparse.ArgumentParser(description="Trains a logistic regression as a graph of components.")
    parser.add_argument("--rows", type=int, default=400_000, help="samples [%(default)s]")
    parser.add_argument("--columns", type=int, default=20, help="numbers in each [%(default)s]")
    parser.add_argument("--steps", type=int, default=100, help="steps of the training [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()
    asked = options.rows, options.columns, options.steps

    begun = time.perf_counter()
    accuracy, weights = regression.local(*asked)
    local_s = time.perf_counter() - begun
    with platform():
        application = regression.options(patience=60)
        application(100, options.columns, 1)
        begun = time.perf_counter()
        outcome = application.run(*asked)
        graph_s = time.perf_counter() - begun
    found_accuracy, found = outcome.value
    equal = bool(abs(found_accuracy - accuracy) < 1e-3 and numpy.allclose(found, weights))

    if options.json:
        figures = {"local_s": local_s, "graph_s": graph_s, "accuracy": accuracy, "components": outcome.components, "equal": equal}
        print(json.dumps(figures))
    else:
        print(f"{accuracy:.1%} of {options.rows // 5} are classified correctly, by either")
        print(f"one function: {local_s:.3f} s\na graph:      {graph_s:.3f} s")
        for used in outcome.components:
            took_s, leased = (used["end_us"] - used["begin_us"]) / 1e6, used["allocated_bytes"] / 2**20
            print(f"  {used['component']:12} {took_s:7.3f} s {leased:7.0f} MiB")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
