"""Lends what the pods of a node did not request: the program of the agent's container in Kubernetes.

It asks the API server for the node's allocatable resources and for the requests of the node's pods, and starts
`sublet agent` with the difference. When pods request more than is left, it withdraws the node, gives leases the time to
end, and lends less. Resources that pods give back are lent from the agent's next start on.
"""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from decimal import Decimal

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
# Factors of the units of quantities.
UNITS = {"m": Decimal("0.001"), "": Decimal(1), "k": Decimal(1000), "M": Decimal(10**6), "G": Decimal(10**9),
         "T": Decimal(10**12), "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40)}
# Phases of pods that have given back what they requested.
ENDED = {"Succeeded", "Failed"}
# Least memory that is worth lending.
LEAST_BYTES = 64 * 2**20


def quantity(text: str) -> Decimal:
    """Returns the value of a quantity such as 250m or 4Gi."""
    number = text.rstrip("kmMGTi")
    return Decimal(number) * UNITS[text[len(number):]]


def requested(container: dict, resource: str) -> Decimal:
    """Returns what a container requests of a resource."""
    return quantity(container.get("resources", {}).get("requests", {}).get(resource, "0"))


def pod_requests(pod: dict, resource: str) -> Decimal:
    """Returns what a pod requests of a resource: the scheduler's rule, sidecars (init containers that keep running) included."""
    spec = pod["spec"]
    running = sum((requested(one, resource) for one in spec["containers"]), Decimal(0))
    peak = sidecars = Decimal(0)
    for one in spec.get("initContainers", []):
        if one.get("restartPolicy") == "Always":
            sidecars += requested(one, resource)
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + requested(one, resource))
    overhead = quantity(spec.get("overhead", {}).get(resource, "0"))
    return max(running + sidecars, peak) + overhead


def unrequested(node: dict, pods: list[dict], reserve: dict[str, str]) -> tuple[int, int]:
    """Returns whole cores and bytes that no pod of a node has requested, less the reserve; at least 0."""
    left = {}
    for resource in ("cpu", "memory"):
        used = sum((pod_requests(pod, resource) for pod in pods if pod["status"].get("phase") not in ENDED), Decimal(0))
        left[resource] = quantity(node["status"]["allocatable"][resource]) - used - quantity(reserve[resource])
    return max(0, int(left["cpu"])), max(0, int(left["memory"]))


def get(path: str) -> dict:
    """Reads from the API server."""
    server = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    with open(f"{ACCOUNT}/token", encoding="ascii") as file:
        headers = {"Authorization": f"Bearer {file.read().strip()}"}
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    request = urllib.request.Request(server + path, headers=headers)
    with urllib.request.urlopen(request, context=context, timeout=10) as answer:
        return json.load(answer)


def free_now() -> tuple[int, int]:
    """Returns what the node can lend now."""
    name = os.environ["NODE_NAME"]
    pods = get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")["items"]
    reserve = {"cpu": os.environ["RESERVE_CORES"], "memory": os.environ["RESERVE_MEMORY"]}
    return unrequested(get(f"/api/v1/nodes/{name}"), pods, reserve)


def is_too_much(lent: tuple[int, int], free: tuple[int, int]) -> bool:
    """Whether more is lent than pods leave."""
    return lent[0] > free[0] or lent[1] > free[1]


class Agent:
    """A running agent, and what it lends."""

    def __init__(self, lent: tuple[int, int]) -> None:
        self.lent = lent
        command = ["sublet", "agent", "--cores", str(lent[0]), "--memory", str(lent[1])]
        self._process = subprocess.Popen(command)

    def has_ended(self) -> bool:
        """Whether the agent has ended by itself."""
        return self._process.poll() is not None

    def stop(self, grace_seconds: int) -> None:
        """Withdraws the node, and ends the agent after the leases."""
        withdraw = ["sublet", "agent", "--reclaim", "--grace", f"{grace_seconds}s"]
        subprocess.run(withdraw, timeout=grace_seconds + 30, check=False)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)


def main() -> int:
    """Lends until a signal ends it."""
    interval, grace = int(os.environ["INTERVAL_SECONDS"]), int(os.environ["GRACE_SECONDS"])
    agent = None

    def end(*_: object) -> None:
        if agent:
            agent.stop(grace)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        try:
            free = free_now()
        except OSError as error:
            # The agent keeps its leases: a short outage of the API server ends none.
            print(f"cannot ask the API server: {error}", file=sys.stderr, flush=True)
            time.sleep(interval)
            continue
        if agent and agent.has_ended():
            return 1
        if agent and is_too_much(agent.lent, free):
            agent.stop(grace)
            agent = None
        if not agent and free[0] > 0 and free[1] >= LEAST_BYTES:
            print(f"lending {free[0]} cores and {free[1]} bytes", flush=True)
            agent = Agent(free)
        time.sleep(interval)


if __name__ == "__main__":
    sys.exit(main())
