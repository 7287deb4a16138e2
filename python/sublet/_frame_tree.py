"""Queries of frames as trees of nodes and expressions, and how Polars executes them.

A query is a tree of `Node`s. Expressions are tuples: a kind, and what belongs to it. Both can be pickled, and are compared and changed without
Polars, which only `expression` and `frame_of` import.

Expressions:
    ("column", name), ("literal", value, dtype), ("binary", operator, left, right), ("cast", e, dtype, mode),
    ("agg", name, e, option, dtype of e), ("function", name, arguments, options), ("ternary", predicate, then, otherwise), ("len",),
    ("filter", e, predicate), ("over", e, partition, order, descending, nulls last)
"""

from typing import NamedTuple


class Node(NamedTuple):
    """An operation of a query."""

    kind: str
    inputs: tuple
    fields: dict
    #: Columns of its result, with their dtypes; None for what the planner has added.
    schema: object = None

    def over(self, *inputs):
        """Returns the same operation over other inputs."""
        return self._replace(inputs=inputs)


OPERATORS = {
    "Eq": lambda a, b: a == b,
    "NotEq": lambda a, b: a != b,
    "EqValidity": lambda a, b: a.eq_missing(b),
    "NotEqValidity": lambda a, b: a.ne_missing(b),
    "Lt": lambda a, b: a < b,
    "LtEq": lambda a, b: a <= b,
    "Gt": lambda a, b: a > b,
    "GtEq": lambda a, b: a >= b,
    "Plus": lambda a, b: a + b,
    "Minus": lambda a, b: a - b,
    "Multiply": lambda a, b: a * b,
    "TrueDivide": lambda a, b: a / b,
    "FloorDivide": lambda a, b: a // b,
    "Modulus": lambda a, b: a % b,
    "And": lambda a, b: a & b,
    "LogicalAnd": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "LogicalOr": lambda a, b: a | b,
    "Xor": lambda a, b: a ^ b,
}


def _is_in(options, value, found):
    import polars

    # A constant list is one list for all rows.
    return value.is_in(found.implode() if isinstance(found, polars.Series) else found, nulls_equal=options[0])


def _horizontal(name):
    def joined(options, *values):
        import polars

        return getattr(polars, name)(*values)

    return joined


def _scaled(value, options):
    """A decimal number with the scale of the result, if the plan says which."""
    import polars

    return value.cast(polars.Decimal(38, options[0])) if options else value


def _concatenated(options, *values):
    import polars

    return polars.concat_str(*values, separator=options[0], ignore_nulls=options[1])


# Functions whose value in a row follows from that row alone.
FUNCTIONS = {
    "abs": lambda options, a: a.abs(),
    "ceil": lambda options, a: a.ceil(),
    "floor": lambda options, a: a.floor(),
    "negate": lambda options, a: -a,
    "round": lambda options, a: a.round(options[0], mode=options[1]),
    "fill_null": lambda options, a, b: a.fill_null(b),
    "coalesce": _horizontal("coalesce"),
    "decimal_mul": lambda options, a, b: _scaled(a, options) * b,
    "decimal_div": lambda options, a, b: _scaled(a, options) / b,
    "BooleanFunction.Not": lambda options, a: a.not_(),
    "BooleanFunction.IsNull": lambda options, a: a.is_null(),
    "BooleanFunction.IsNotNull": lambda options, a: a.is_not_null(),
    "BooleanFunction.IsNan": lambda options, a: a.is_nan(),
    "BooleanFunction.IsNotNan": lambda options, a: a.is_not_nan(),
    "BooleanFunction.IsBetween": lambda options, a, low, high: a.is_between(low, high, closed=options[0]),
    "BooleanFunction.IsIn": _is_in,
    "BooleanFunction.AllHorizontal": _horizontal("all_horizontal"),
    "BooleanFunction.AnyHorizontal": _horizontal("any_horizontal"),
    "StringFunction.Contains": lambda options, a, b: a.str.contains(b, literal=options[0], strict=options[1]),
    "StringFunction.StartsWith": lambda options, a, b: a.str.starts_with(b),
    "StringFunction.EndsWith": lambda options, a, b: a.str.ends_with(b),
    "StringFunction.Slice": lambda options, a, offset, length: a.str.slice(offset, length),
    "StringFunction.Uppercase": lambda options, a: a.str.to_uppercase(),
    "StringFunction.Lowercase": lambda options, a: a.str.to_lowercase(),
    "StringFunction.LenChars": lambda options, a: a.str.len_chars(),
    "StringFunction.LenBytes": lambda options, a: a.str.len_bytes(),
    "StringFunction.ConcatHorizontal": _concatenated,
    "TemporalFunction.Year": lambda options, a: a.dt.year(),
    "TemporalFunction.Month": lambda options, a: a.dt.month(),
    "TemporalFunction.Day": lambda options, a: a.dt.day(),
    "TemporalFunction.Hour": lambda options, a: a.dt.hour(),
    "TemporalFunction.Minute": lambda options, a: a.dt.minute(),
    "TemporalFunction.Second": lambda options, a: a.dt.second(),
    "TemporalFunction.Quarter": lambda options, a: a.dt.quarter(),
    "TemporalFunction.Week": lambda options, a: a.dt.week(),
    "TemporalFunction.WeekDay": lambda options, a: a.dt.weekday(),
}

# Functions of columns as a whole.
OF_COLUMNS = {
    "drop_nulls": lambda options, a: a.drop_nulls(),
    "null_count": lambda options, a: a.null_count(),
    "rank": lambda options, a: a.rank(options[0], descending=options[1]),
    "shift": lambda options, a, n: a.shift(n),
}

AGGREGATES = {
    "sum": lambda a, option: a.sum(),
    "min": lambda a, option: a.min(),
    "max": lambda a, option: a.max(),
    "mean": lambda a, option: a.mean(),
    "median": lambda a, option: a.median(),
    "count": lambda a, option: a.count(),
    "n_unique": lambda a, option: a.n_unique(),
    "first": lambda a, option: a.first(),
    "last": lambda a, option: a.last(),
    "std": lambda a, option: a.std(ddof=option),
    "var": lambda a, option: a.var(ddof=option),
    "item": lambda a, option: a.item(allow_empty=option),
}


def expression(tree):
    """Returns Polars' expression for a tree."""
    import polars

    kind = tree[0]
    if kind == "column":
        return polars.col(tree[1])
    if kind == "len":
        return polars.len()
    if kind == "literal":
        return _literal(tree[1], tree[2])
    if kind == "binary":
        return OPERATORS[tree[1]](expression(tree[2]), expression(tree[3]))
    if kind == "cast":
        return expression(tree[1]).cast(tree[2], strict=tree[3] == 0, wrap_numerical=tree[3] == 2)
    if kind == "ternary":
        return polars.when(expression(tree[1])).then(expression(tree[2])).otherwise(expression(tree[3]))
    if kind == "filter":
        return expression(tree[1]).filter(expression(tree[2]))
    if kind == "function":
        function = FUNCTIONS.get(tree[1]) or OF_COLUMNS[tree[1]]
        arguments = list(map(expression, tree[2]))
        if tree[1] == "BooleanFunction.IsIn":
            arguments[1] = _constant(tree[2][1])
        return function(tree[3], *arguments)
    if kind == "over":
        order = {} if tree[3] is None else {"order_by": expression(tree[3]), "descending": tree[4], "nulls_last": tree[5]}
        return expression(tree[1]).over([expression(key) for key in tree[2]] or None, **order)
    name, argument, option = tree[1], expression(tree[2]), tree[3]
    found = AGGREGATES[name](argument, option)
    # SQL's sum of no values is null.
    return polars.when(argument.count() > 0).then(found) if name == "sum" and option else found


def _constant(tree):
    if tree[0] == "literal" and isinstance(tree[1], list):
        import polars

        return polars.Series(tree[1], dtype=tree[2].inner)
    return expression(tree)


def _literal(value, dtype):
    import polars

    if isinstance(value, int) and not isinstance(value, bool) and dtype.is_temporal():
        return polars.lit(value).cast(dtype)
    if dtype == polars.Null:
        return polars.lit(None)
    return polars.lit(value, dtype=dtype)


def _named(pairs):
    return [expression(tree).alias(name) for name, tree in pairs]


def _join(node, left, right):
    fields = node.fields
    options = {"suffix": fields["suffix"], "maintain_order": fields["order"]}
    if fields["how"] == "cross":
        return left.join(right, how="cross", **options)
    keys = {"left_on": [expression(tree) for tree, _ in fields["left_on"]], "right_on": [expression(tree) for tree, _ in fields["right_on"]]}
    return left.join(right, how=fields["how"], nulls_equal=fields["nulls_equal"], coalesce=fields["coalesce"], **keys, **options)


def _sort(node, frame):
    fields = node.fields
    by = [expression(tree) for tree in fields["by"]]
    return frame.sort(by, descending=fields["descending"], nulls_last=fields["nulls_last"], maintain_order=fields["stable"])


def _group_by(node, frame):
    keys = _named(node.fields["keys"])
    return frame.group_by(keys, maintain_order=node.fields["ordered"]).agg(_named(node.fields["aggs"]))


def _unique(node, frame):
    return frame.unique(node.fields["subset"], keep=node.fields["keep"], maintain_order=node.fields["ordered"])


def _union(node, *frames):
    import polars

    return polars.concat(frames, how="vertical")


# How each kind of node is executed, from its inputs' lazy frames.
KINDS = {
    "filter": lambda node, frame: frame.filter(expression(node.fields["predicate"])),
    "select": lambda node, frame: frame.select(_named(node.fields["exprs"])),
    "with_columns": lambda node, frame: frame.with_columns(_named(node.fields["exprs"])),
    "project": lambda node, frame: frame.select(node.fields["columns"]),
    "group_by": _group_by,
    "join": _join,
    "sort": _sort,
    "slice": lambda node, frame: frame.slice(node.fields["offset"], node.fields["len"]),
    "unique": _unique,
    "union": _union,
    "row_index": lambda node, frame: frame.with_row_index(node.fields["name"], node.fields["offset"]),
}


def frame_of(node, leaf):
    """Returns the lazy frame of a tree. `leaf` returns those of nodes without inputs.

    A node that has several parents is one lazy frame, which Polars evaluates once.
    """
    made = {}

    def of(node):
        if id(node) not in made:
            made[id(node)] = node, _of(node)
        return made[id(node)][1]

    def _of(node):
        if node.kind in ("scan", "exchange"):
            return leaf(node)
        return KINDS[node.kind](node, *map(of, node.inputs))

    return of(node)


def scanned(node, frame):
    """Returns the rows and columns of a source that a node reads."""
    fields = node.fields
    if fields.get("rows") is not None:
        frame = frame.slice(*fields["rows"])
    if fields["predicate"] is not None:
        frame = frame.filter(expression(fields["predicate"]))
    return frame if fields["columns"] is None else frame.select(fields["columns"])


def is_elementwise(tree):
    """Whether the value in each row follows from that row alone."""
    kind = tree[0]
    if kind in ("agg", "len", "filter", "over") or (kind == "function" and tree[1] not in FUNCTIONS):
        return False
    return all(map(is_elementwise, children(tree)))


def children(tree):
    """The expressions within an expression."""
    kind = tree[0]
    if kind in ("column", "literal", "len"):
        return ()
    if kind == "binary":
        return tree[2:4]
    if kind == "function":
        return tree[2]
    if kind == "ternary":
        return tree[1:4]
    if kind == "filter":
        return tree[1:3]
    if kind == "over":
        return (tree[1], *tree[2], *(() if tree[3] is None else (tree[3],)))
    return (tree[2],) if kind == "agg" else (tree[1],)


def is_one_row(node):
    """Whether a node surely has one row: all its columns are aggregated."""
    while node.kind in ("project", "with_columns") and node.inputs:
        if node.kind == "with_columns" and not all(is_elementwise(tree) for _, tree in node.fields["exprs"]):
            return False
        node = node.inputs[0]
    return node.kind == "select" and all(map(_is_one_value, (tree for _, tree in node.fields["exprs"])))


def _is_one_value(tree):
    """Whether an expression has one value for all rows."""
    kind = tree[0]
    if kind in ("len", "agg") or (kind == "literal" and not isinstance(tree[1], list)):
        return True
    if kind in ("column", "literal", "filter", "over") or (kind == "function" and tree[1] not in FUNCTIONS):
        return False
    return all(map(_is_one_value, children(tree)))


def columns_of(tree):
    """Names of the columns that an expression reads."""
    found = {tree[1]} if tree[0] == "column" else set()
    return found.union(*map(columns_of, children(tree)))
