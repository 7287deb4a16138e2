"""Executes the stages of a chain: all of them here, or every second one on another processor."""

import time

import sublet
from stages import CHAINS, STAGE_BYTES, dialogue, door, frontend, home, light, map, reduce, split  # noqa: F401: the package offers them
from sublet import xpu

PATIENCE = 20.0


def once(stages, executor, text):
    """Executes a chain once: the executor executes the stages with an odd number, if there is one."""
    for number, stage in enumerate(stages):
        text = executor.call(stage, text, timeout=PATIENCE) if executor and number % 2 else sublet.call(stage, text)
    return text


def run(order):
    """Executes the rounds of a chain. The order is a line, "assistant|words here|across ROUNDS", and the text.

    Returns the mean time of a round, in nanoseconds, and the output of the chain.
    """
    head, _, text = bytes(order).partition(b"\n")
    chain, where, rounds = head.decode().split()
    executor = xpu.Executor(xpu.units()[1], STAGE_BYTES, PATIENCE) if where == "across" else None
    try:
        # The first round is not counted.
        output = once(CHAINS[chain], executor, text)
        begun = time.perf_counter_ns()
        for _ in range(int(rounds)):
            output = once(CHAINS[chain], executor, text)
        took = (time.perf_counter_ns() - begun) / int(rounds)
    finally:
        if executor:
            executor.close()
    return f"{took:.0f}\n".encode() + output
