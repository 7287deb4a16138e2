"""Calls functions of this program on leased cores: a call, a future, an error, a map.

    python examples/python/calls.py
"""

import argparse
import contextlib
import json
import os
import sys
import time

import sublet


def greet(name):
    if not name:
        raise ValueError("the name is empty")
    return f"Hello, {name}!"


def collatz(number):
    """Counts the steps from a number down to 1."""
    steps = 0
    while number != 1:
        number = 3 * number + 1 if number % 2 else number // 2
        steps += 1
    return steps


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def timed(function, *args):
    begun = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser(description="Calls functions on leased cores.")
    parser.add_argument("--cores", type=int, default=2, help="cores to lease [%(default)s]")
    parser.add_argument("--items", type=int, default=100_000, help="items of the map [%(default)s]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()
    say = (lambda text: None) if options.json else print
    items = range(1, options.items + 1)

    with platform(), sublet.lease(options.cores, wait=60) as lease:
        # A call waits for what the function returns. The function itself is sent along with its first call.
        greeting = lease.call(greet, "world")
        say(greeting)

        # A future does not wait. It is one of concurrent.futures, and can be awaited.
        future = lease.submit(str.upper, greeting)
        say(future.result())

        # A call that fails raises what the function raised.
        try:
            lease.call(greet, "")
        except ValueError as error:
            say(f"ValueError: {error}")

        # A map goes to all workers.
        leased, leased_s = timed(lambda: list(lease.map(collatz, items)))
        calls = sorted(timed(lease.call, abs, -1)[1] for _ in range(1001))
    local, local_s = timed(lambda: list(map(collatz, items)))

    usage = lease.usage
    say(f"a map of {options.items} items: {local_s:.3f} s here, {leased_s:.3f} s on {options.cores} leased cores")
    say(f"one call: {1e6 * calls[500]:.1f} us in the median")
    say(f"{usage['calls']} calls, {usage['failed_calls']} of them failed")
    if options.json:
        figures = {"local_s": local_s, "leased_s": leased_s, "call_s": calls[500], "equal": leased == local}
        print(json.dumps(figures))
    return 0 if leased == local else 1


if __name__ == "__main__":
    sys.exit(main())
