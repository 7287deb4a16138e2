"""Platforms of several nodes on this machine."""

import contextlib
import json
import os
import subprocess
import sys

import sublet
from sublet._command import program
from waiting import until


@contextlib.contextmanager
def platform_of(folder, nodes):
    """Starts a manager, and for each node its name, pool, cores and memory; the context is a client of theirs."""
    address = f"unix:{folder}/manager/manager.sock"
    environment = dict(os.environ, SUBLET_MANAGER=address)

    def start(*words):
        process = subprocess.Popen([program(), *words], stdin=subprocess.DEVNULL, start_new_session=True)
        started.callback(process.wait, 60)
        started.callback(process.terminate)

    def names():
        listed = subprocess.run([program(), "--json", "ps"], env=environment, stdout=subprocess.PIPE, check=True)
        return {node["name"] for node in json.loads(listed.stdout)["nodes"]}

    with contextlib.ExitStack() as started:
        start("manager", "--state", f"{folder}/manager", "--listen", "127.0.0.1:0")
        until((folder / "manager" / "manager.sock").exists, "the manager listens")
        for name, pool, cores, memory in nodes:
            words = ["--state", f"{folder}/{name}", "--name", name, "--pool", pool, "--cores", str(cores), "--memory", memory]
            start("agent", *words, "--listen", "127.0.0.1:0", "--manager", address, "--python", sys.executable)
        until(lambda: names() == {name for name, *_ in nodes}, "all nodes are registered")
        yield sublet.Client(address)
