"""Processing units: processors and devices, as the platform sees them."""

from typing import NamedTuple


class Price(NamedTuple):
    """What a unit costs, in nano-units: billionths of the currency."""

    #: Of a GiB that is held for a second.
    allocation_nano_per_gib_s: int
    #: Of a core that computes for a second.
    compute_nano_per_core_s: int
    #: Of a core that polls for a second.
    polling_nano_per_core_s: int


class ProcessingUnit(NamedTuple):
    """What executes functions: the processor of a node, or a device of one."""

    #: Its number, the same after every start.
    id: int
    node: str
    #: Which of its node's: `"cpu"` runs programs, of whatever kind it is; devices are `"opencl0"`, `"cuda0"`.
    unit: str
    #: By which leases ask for it (`pu`) and pay: `"cpu"`, `"dpu"`, `"opencl"`.
    kind: str
    architecture: str
    #: What it calls itself; empty if nobody could say.
    model: str
    #: Lent; of a device its compute units.
    cores: int
    memory_bytes: int
    #: Kinds of packages and interpreters that it executes.
    abilities: tuple
    price: Price
    #: Nodes with which its own is linked.
    neighbours: tuple

    @property
    def name(self):
        """`NODE/UNIT`."""
        return f"{self.node}/{self.unit}"


def listed(units):
    """What the managers told, as a list of `ProcessingUnit`."""
    return [ProcessingUnit(**{**unit, "price": Price(**unit["price"])}) for unit in units]
