"""Arrays whose elements are in memory components, and operations that work through them tile by tile (Scad 3.2, 4.2.2).

- `array`: `RemoteArray`, NumPy's face;
- `place`: `Remote`, where arrays are made;
- `arena`: the memory of a place, and which of it is whose;
- `blocks`: how arrays are divided, arithmetic alone;
- `stream`: tiles that come and go while others are computed;
- `ufuncs`, `reductions`, `scans`, `indexing`: what ufuncs and indices do, by these;
- `functions`: the table of NumPy's functions, filled by `shapes`, `elementwise`, `statistics`, `sorting` and `products`.

Invariants: an operation has at most the working set of its place in this process, beside local operands and results; no tile is
written that some operand still needs; an array's memory is given back with its last view.
"""

from .array import RemoteArray
from .place import Remote

__all__ = ["Remote", "RemoteArray", "remote"]

# As users know them.
Remote.__module__ = RemoteArray.__module__ = "sublet"

remote = Remote()
"""The place for remote arrays of whoever wants no other, of the default client: a namespace that makes them, a decorator for functions,
and a function that makes other places. See `Remote`."""
