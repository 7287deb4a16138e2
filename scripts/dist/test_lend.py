"""Tests what the agent of the Helm chart lends: packaging/helm/sublet/files/lend.py. A test of xtask runs them."""

import importlib.util
import unittest
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent.parent.parent / "packaging/helm/sublet/files/lend.py"
SPECIFICATION = importlib.util.spec_from_file_location("lend", PROGRAM)
lend = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(lend)

NODE = {"status": {"allocatable": {"cpu": "7910m", "memory": "31Gi"}}}
NOTHING = {"cpu": "0", "memory": "0"}


def container(cpu: str, memory: str, **more: str) -> dict:
    """Returns a container with requests."""
    return {"resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def pod(*containers: dict, phase: str = "Running", **more: object) -> dict:
    """Returns a pod of these containers."""
    return {"spec": {"containers": list(containers), **more}, "status": {"phase": phase}}


class Lend(unittest.TestCase):
    """What is lent of a node."""

    def test_quantities_have_units(self) -> None:
        cases = {"250m": 0.25, "2": 2, "1.5": 1.5, "4Gi": 4 * 2**30, "128M": 128 * 10**6, "100k": 100_000}
        for text, value in cases.items():
            self.assertEqual(lend.quantity(text), value, text)

    def test_lends_whole_cores_that_no_pod_has_requested(self) -> None:
        pods = [pod(container("500m", "1Gi"), container("1", "2Gi")), pod({}), pod(container("250m", "1Gi"))]
        self.assertEqual(lend.unrequested(NODE, pods, NOTHING), (6, 27 * 2**30))
        self.assertEqual(lend.unrequested(NODE, pods, {"cpu": "1", "memory": "3Gi"}), (5, 24 * 2**30))

    def test_ended_pods_request_nothing(self) -> None:
        for phase, cores in {"Succeeded": 7, "Failed": 7, "Pending": 3, "Running": 3}.items():
            found = lend.unrequested(NODE, [pod(container("4", "0"), phase=phase)], NOTHING)
            self.assertEqual(found[0], cores, phase)

    def test_init_containers_count_by_their_peak_and_sidecars_for_good(self) -> None:
        starts = [container("3", "0"), container("1", "0", restartPolicy="Always"), container("4", "0")]
        self.assertEqual(lend.pod_requests(pod(container("2", "0"), initContainers=starts), "cpu"), 5)
        self.assertEqual(lend.pod_requests(pod(container("6", "0"), initContainers=starts), "cpu"), 7)
        self.assertEqual(lend.pod_requests(pod(container("1", "0"), overhead={"cpu": "250m"}), "cpu"), 1.25)

    def test_nothing_is_left_below_zero(self) -> None:
        self.assertEqual(lend.unrequested(NODE, [pod(container("9", "64Gi"))], NOTHING), (0, 0))

    def test_notices_that_pods_request_what_is_lent(self) -> None:
        self.assertFalse(lend.is_too_much((2, 100), (2, 100)))
        self.assertTrue(lend.is_too_much((3, 100), (2, 100)))
        self.assertTrue(lend.is_too_much((2, 101), (2, 100)))


if __name__ == "__main__":
    unittest.main()
