"""Processing units: processors and devices of the nodes."""

from typing import NamedTuple


class Price(NamedTuple):
    """Prices of a unit, in nano-units: billionths of the currency."""

    #: Price of 1 GiB of leased memory for a second.
    allocation_nano_per_gib_s: int
    #: Price of executing on a core for a second.
    compute_nano_per_core_s: int
    #: Price of polling on a core for a second.
    polling_nano_per_core_s: int


class ProcessingUnit(NamedTuple):
    """A processing unit, which executes functions: the processor of a node, or a device."""

    #: Number of the unit, the same after every start.
    id: int
    node: str
    #: Name within the node: `"cpu"` for its processor, of any kind; devices are `"opencl0"`, `"cuda0"`.
    unit: str
    #: Kind, by which leases request the unit (`pu`) and pay for it: `"cpu"`, `"dpu"`, `"opencl"`.
    kind: str
    architecture: str
    #: Model name; empty if unknown.
    model: str
    #: Number of lent cores, or of a device's compute units.
    cores: int
    memory_bytes: int
    #: Kinds of packages and interpreters that the unit executes.
    abilities: tuple
    price: Price
    #: Nodes that are linked with the unit's node.
    neighbours: tuple

    @property
    def name(self):
        """`NODE/UNIT`."""
        return f"{self.node}/{self.unit}"


def listed(units):
    """Converts the managers' reply to a list of `ProcessingUnit`."""
    return [ProcessingUnit(**{**unit, "price": Price(**unit["price"])}) for unit in units]
