"""Arrays whose elements are in memory components, and operations that work through them tile by tile (Scad 3.2, 4.2.2).

- `array`: `RemoteArray`, NumPy's face;
- `place`: `Remote`, where arrays are made;
- `channels`: places of workers that execute a graph, in its memory components;
- `arena`: the memory of a place, and which of it is whose;
- `blocks`: how arrays are divided, arithmetic alone;
- `stream`: tiles that come and go while others are computed;
- `functions`: the table of operations, which the other modules fill;
- `ufuncs`, `reductions`, `scans`: universal functions, their reductions and accumulations;
- `keys`, `indexing`: what an index means, and the elements that it selects;
- `elementwise`, `statistics`, `nans`, `quantiles`, `sorting`, `products`, `einsum`, `covariances`, `differences`, `shapes`, `padding`,
  `saving`: NumPy's other functions.

Invariants: an operation has at most the working set of its place in this process, beside local operands and results; no tile is
written that some operand still needs; an array's memory is given back with its last view.
"""

# Each registers its operations.
from . import covariances, differences, einsum, elementwise, indexing, nans, padding, products, quantiles  # noqa: F401
from . import reductions, saving, scans, shapes, sorting, statistics, ufuncs  # noqa: F401
from .array import RemoteArray
from .place import Remote

__all__ = ["Remote", "RemoteArray", "remote"]

# As users know them.
Remote.__module__ = RemoteArray.__module__ = "sublet"

remote = Remote()
"""The place for remote arrays of the default client: a namespace that makes them, a decorator for functions, and a
function that makes other places. See `Remote`.
"""
