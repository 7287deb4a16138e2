"""Divides a query into stages at exchanges. Nothing here executes or needs Polars.

Operations that one instance computes from its own part of the rows are fused into one component: scans, filters, projections, partial
aggregations, and joins with small inputs, which each instance reads by itself or gets as a whole (Scad, section 3.2). Rows change hands by *exchanges*: by
the hash of keys before groups and joins of large inputs, and all to one before what needs all rows in order.

A fragment is a list of trees, its *parts*: the rows of the fragment are those of its parts, in their order.
"""

from typing import NamedTuple

from ._frame_tree import Node, columns_of, is_elementwise, is_one_row

# Bytes of sources below which an input of a join is given to each part of the other input.
BROADCAST_BYTES = 16 << 20
# Bytes of sources for each part.
PART_BYTES = 32 << 20
# Number of rows from which on a slice has no end: Polars numbers rows with 32 bits.
MOST_ROWS = (1 << 32) - 1
# Most parts of a fragment.
MOST_PARTS = 256
# Operations that give the same rows whenever they are repeated, so that each part may repeat them.
_REPEATABLE = {"scan", "filter", "select", "with_columns", "project", "join"}
# Joins for which an input may be whole while the other one is divided.
_WHOLE_RIGHT = {"inner", "left", "semi", "anti", "cross"}
_WHOLE_LEFT = {"inner", "right", "cross"}
# Types whose equal values have equal hashes.
_HASHED = ("Int", "UInt", "Boolean", "String", "Date", "Datetime", "Time", "Duration", "Decimal")


class Exchange(NamedTuple):
    """Where the parts of a stage go."""

    name: str
    #: Expressions by whose hash rows are divided; None if all rows of a part stay together.
    keys: object
    partitions: int


class Stage(NamedTuple):
    """A component of the graph. Its instances compute the parts."""

    name: str
    parts: list
    #: None for the last stage, whose rows are the result.
    output: object
    #: Bytes of the sources that it stands for.
    nbytes: int

    @property
    def reads(self):
        """Names of the exchanges that it reads, in order."""
        return list(dict.fromkeys(node.fields["name"] for part in self.parts for node in leaves(part) if node.kind == "exchange"))

    @property
    def sources(self):
        """Numbers of the sources that it reads."""
        return sorted({node.fields["source"] for part in self.parts for node in leaves(part) if node.kind == "scan"})


class Extent(NamedTuple):
    """How large a source is."""

    nbytes: int
    #: Numbers of rows that can be read apart, in order; empty if only all can be read.
    groups: tuple = ()


def leaves(tree):
    """The nodes without inputs below a node, each once."""
    return [node for node in nodes(tree) if not node.inputs]


def nodes(tree):
    """The nodes of a tree, each once although it may have several parents, and behind its inputs."""
    seen, found = set(), []

    def visit(node):
        if id(node) not in seen:
            seen.add(id(node))
            for below in node.inputs:
                visit(below)
            found.append(node)

    visit(tree)
    return found


def divide(tree, extents, partitions):
    """Divides a query into stages.

    Args:
        tree: The query, a `Node`.
        extents: The `Extent` of each source.
        partitions: Number of parts of large inputs.

    Returns the stages, each behind those it reads.
    """
    planner = _Planner(tree, extents, max(1, min(partitions, MOST_PARTS)))
    last = planner.whole(tree) if planner.has_parts(tree) else tree
    return [*planner.stages, Stage("result", [last], None, planner.nbytes(tree))]


class _Planner:
    def __init__(self, tree, extents, partitions):
        self.stages = []
        self._extents = extents
        self._partitions = partitions
        self._nbytes = {}
        self._parents = {}
        self._shared = {}
        self._names = {}
        self._count(tree)

    def _count(self, node):
        self._parents[id(node)] = self._parents.get(id(node), 0) + 1
        if self._parents[id(node)] == 1:
            for below in node.inputs:
                self._count(below)

    def nbytes(self, node):
        """Bytes of the sources below a node."""
        if id(node) not in self._nbytes:
            sources = {leaf.fields["source"] for leaf in leaves(node) if leaf.kind == "scan"}
            self._nbytes[id(node)] = sum(self._extents[number].nbytes for number in sources)
        return self._nbytes[id(node)]

    def has_parts(self, tree):
        """Whether any source is read in parts; otherwise all is one component."""
        return any(len(self._scan(leaf)) > 1 for leaf in leaves(tree))

    def parts(self, node):
        """Returns a query's parts."""
        if self._parents[id(node)] == 1 or self._is_repeatable(node):
            return self._parts(node)
        if id(node) not in self._shared:
            found = self._parts(node)
            # Both parents read what is computed once.
            name = self._exchange(found, None, 1, node)
            self._shared[id(node)] = [_read(name, [(number, 0)]) for number in range(len(found))]
        return self._shared[id(node)]

    def whole(self, node):
        """Returns a query as one tree."""
        found = self.parts(node)
        return found[0] if len(found) == 1 else self._gathered(found, node)

    def _for_each(self, node, count):
        """Returns a query as one tree for each of `count` parts."""
        found = self.parts(node)
        if len(found) == 1 and (count == 1 or self._is_repeatable(node) or found[0].kind == "exchange"):
            return found[0]
        return self._gathered(found, node)

    def _gathered(self, parts, node):
        name = self._exchange(parts, None, 1, node)
        return _read(name, [(number, 0) for number in range(len(parts))])

    def _exchange(self, parts, keys, partitions, node):
        kind = node.kind
        self._names[kind] = self._names.get(kind, 0) + 1
        name = f"{kind}{self._names[kind]}"
        self.stages.append(Stage(name, parts, Exchange(f"{name}.rows", keys, partitions), self.nbytes(node)))
        return self.stages[-1].output.name

    def _hashed(self, parts, keys, node):
        """Divides the rows of parts by the hash of keys; returns a leaf for each partition."""
        name = self._exchange(parts, keys, self._partitions, node)
        return [_read(name, [(number, at) for number in range(len(parts))]) for at in range(self._partitions)]

    def _is_small(self, node):
        """Whether an input of a join is given to each part of the other one."""
        return self.nbytes(node) <= BROADCAST_BYTES or is_one_row(node)

    def _is_repeatable(self, node):
        """Whether each part of another fragment may compute a query by itself."""
        if node.kind not in _REPEATABLE or self.nbytes(node) > BROADCAST_BYTES:
            return False
        return all(map(is_elementwise, _expressions(node))) and all(map(self._is_repeatable, node.inputs))

    def _parts(self, node):
        return getattr(self, f"_{node.kind}", self._all)(node)

    def _all(self, node):
        """An operation that needs all rows."""
        return [node.over(*map(self.whole, node.inputs))]

    def _each(self, node):
        return [node.over(part) for part in self.parts(node.inputs[0])]

    def _scan(self, node):
        extent = self._extents[node.fields["source"]]
        wanted = min(self._partitions, -(-extent.nbytes // PART_BYTES), sum(extent.groups))
        if wanted <= 1 or node.fields["predicate"] is not None and not is_elementwise(node.fields["predicate"]):
            return [node]
        return [node._replace(fields={**node.fields, "rows": rows}) for rows in _ranges(extent.groups, wanted)]

    def _filter(self, node):
        return self._each(node) if is_elementwise(node.fields["predicate"]) else self._all(node)

    def _with_columns(self, node):
        return self._each(node) if all(map(is_elementwise, _expressions(node))) else self._all(node)

    def _project(self, node):
        return self._each(node)

    def _select(self, node):
        trees = _expressions(node)
        # Constants alone are one row, whatever the number of parts.
        if all(map(is_elementwise, trees)) and any(map(columns_of, trees)):
            return self._each(node)
        found = self.parts(node.inputs[0])
        aggregated = Aggregated.of(node.fields["exprs"]) if len(found) > 1 else None
        if aggregated is None:
            return [node.over(found[0] if len(found) == 1 else self._gathered(found, node.inputs[0]))]
        gathered = self._gathered([Node("select", (part,), {"exprs": aggregated.partial}) for part in found], node)
        return [Node("select", (gathered,), {"exprs": aggregated.final}, node.schema)]

    def _group_by(self, node):
        below, keys = self.parts(node.inputs[0]), node.fields["keys"]
        if len(below) == 1:
            return [node.over(below[0])]
        can_divide = all(is_elementwise(tree) for _, tree in keys) and not node.fields["ordered"]
        if not can_divide:
            return [node.over(self._gathered(below, node.inputs[0]))]
        is_hashed = all(_is_hashed(node.schema[name]) for name, _ in keys)
        aggregated = Aggregated.of(node.fields["aggs"])
        if aggregated is None:
            if not is_hashed:
                return [node.over(self._gathered(below, node.inputs[0]))]
            return [node.over(leaf) for leaf in self._hashed(below, [tree for _, tree in keys], node.inputs[0])]
        partial = [Node("group_by", (part,), {"keys": keys, "aggs": aggregated.partial, "ordered": False}) for part in below]
        again = [(name, ("column", name)) for name, _ in keys]
        found = self._hashed(partial, [tree for _, tree in again], node) if is_hashed else [self._gathered(partial, node)]
        return [Node("group_by", (leaf,), {"keys": again, "aggs": aggregated.final, "ordered": False}, node.schema) for leaf in found]

    def _unique(self, node):
        below = self.parts(node.inputs[0])
        subset = node.fields["subset"] or list(node.schema)
        if len(below) == 1:
            return [node.over(below[0])]
        if node.fields["keep"] != "any" or node.fields["ordered"]:
            return [node.over(self._gathered(below, node.inputs[0]))]
        partial = [node.over(part) for part in below]
        if not all(_is_hashed(node.schema[name]) for name in subset):
            return [node.over(self._gathered(partial, node))]
        return [node.over(leaf) for leaf in self._hashed(partial, [("column", name) for name in subset], node)]

    def _union(self, node):
        if self.nbytes(node) <= BROADCAST_BYTES:
            return self._all(node)
        found = [part for below in node.inputs for part in self.parts(below)]
        return found if len(found) <= MOST_PARTS else [self._gathered(found, node)]

    def _slice(self, node):
        found, fields = self.parts(node.inputs[0]), node.fields
        most = MOST_ROWS if fields["len"] is None else fields["offset"] + fields["len"]
        if len(found) > 1 and fields["offset"] >= 0 and most < MOST_ROWS:
            # No part needs more rows than all together.
            found = [Node("slice", (part,), {"offset": 0, "len": most}) for part in found]
        return [node.over(found[0] if len(found) == 1 else self._gathered(found, node))]

    def _join(self, node):
        left, right = node.inputs
        how, order = node.fields["how"], node.fields["order"]
        if how in _WHOLE_RIGHT and order in ("none", "left") and self._is_small(right):
            below = self.parts(left)
            whole = self._for_each(right, len(below))
            return [node.over(part, whole) for part in below]
        if how in _WHOLE_LEFT and order in ("none", "right") and self._is_small(left):
            below = self.parts(right)
            whole = self._for_each(left, len(below))
            return [node.over(whole, part) for part in below]
        lefts, rights = self.parts(left), self.parts(right)
        if len(lefts) == len(rights) == 1:
            return [node.over(lefts[0], rights[0])]
        keys = [*node.fields["left_on"], *node.fields["right_on"]]
        types = [[dtype for _, dtype in node.fields[side]] for side in ("left_on", "right_on")]
        is_hashed = how != "cross" and order == "none" and types[0] == types[1]
        if is_hashed and all(is_elementwise(tree) and _is_hashed(dtype) for tree, dtype in keys):
            left_leaves = self._hashed(lefts, [tree for tree, _ in node.fields["left_on"]], left)
            right_leaves = self._hashed(rights, [tree for tree, _ in node.fields["right_on"]], right)
            return [node.over(*pair) for pair in zip(left_leaves, right_leaves)]
        sides = [found[0] if len(found) == 1 else self._gathered(found, below) for found, below in ((lefts, left), (rights, right))]
        return [node.over(*sides)]


class Aggregated(NamedTuple):
    """Aggregations that are computed from those of parts."""

    partial: list
    final: list

    @staticmethod
    def of(named):
        """Returns the aggregations of the parts, and those of their results; None if there are none such."""
        partial = []
        try:
            final = [(name, _final(tree, partial)) for name, tree in named]
        except LookupError:
            return None
        return Aggregated(partial, final)


def _final(tree, partial):
    kind = tree[0]
    if kind in ("len", "agg"):
        return _combined(tree, partial)
    if kind == "literal":
        return tree
    if kind == "binary":
        return (*tree[:2], _final(tree[2], partial), _final(tree[3], partial))
    if kind == "function":
        return (*tree[:2], tuple(_final(argument, partial) for argument in tree[2]), tree[3])
    if kind == "cast":
        return kind, _final(tree[1], partial), *tree[2:]
    if kind == "ternary":
        return kind, *(_final(below, partial) for below in tree[1:])
    raise LookupError(kind)


def _combined(tree, partial):
    def add(computed):
        partial.append((f"{_PARTIAL}{len(partial)}", computed))
        return "column", partial[-1][0]

    def total(computed, option=False):
        return "agg", "sum", add(computed), option, ""

    if tree[0] == "len":
        return total(tree)
    _, name, argument, option, dtype = tree
    values, *conditions = argument[1:3] if argument[0] == "filter" else (argument,)
    # A constant is one value, however many rows a part has.
    if not all(map(is_elementwise, (values, *conditions))) or not columns_of(values):
        raise LookupError(name)
    if name in ("min", "max"):
        return "agg", name, add(tree), option, ""
    if name == "sum":
        return total(tree, option)
    if name == "count":
        return total(tree)
    # Integers might overflow, and other types of means have no sums.
    if name != "mean" or not dtype.startswith(("Float64", "Int", "UInt", "Decimal")):
        raise LookupError(name)
    import polars

    wide = argument if dtype.startswith(("Float64", "Decimal")) else ("cast", argument, polars.Float64(), 1)
    added = "cast", total(("agg", "sum", wide, False, "")), polars.Float64(), 1
    count = total(("agg", "count", argument, False, ""))
    is_any = "binary", "Gt", count, ("literal", 0, polars.UInt32())
    return "ternary", is_any, ("binary", "TrueDivide", added, count), ("literal", None, polars.Null())


# Names of columns with the aggregations of parts.
_PARTIAL = "__sublet_partial_"


def _read(name, blocks):
    return Node("exchange", (), {"name": name, "blocks": blocks})


def _is_hashed(dtype):
    name = str(dtype).partition("(")[0]
    return name.rstrip("0123456789") in _HASHED


def _expressions(node):
    fields = node.fields
    if node.kind == "join":
        return [tree for tree, _ in (*fields["left_on"], *fields["right_on"])]
    found = [tree for _, tree in fields.get("exprs", ())]
    return found if fields.get("predicate") is None else [*found, fields["predicate"]]


def _ranges(groups, wanted):
    """Ranges of rows, each as its begin and length, along the groups as far as possible."""
    total = sum(groups)
    if len(groups) < wanted:
        ends = [total * (number + 1) // wanted for number in range(wanted)]
    else:
        ends, rows = [], 0
        for group in groups:
            rows += group
            if rows * wanted >= total * (len(ends) + 1):
                ends.append(rows)
    begins = [0, *ends]
    return [(begin, end - begin) for begin, end in zip(begins, ends) if end > begin]
