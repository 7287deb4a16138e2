"""Reads the optimized plan of a lazy frame of Polars into the trees of `_frame_tree`.

The plan is read by the interface that Polars offers to other engines (`NodeTraverser`), whose version is checked: plans of other versions
are refused. The planner may divide every operation that is read here. `NotDivisible` names any other one, and such a query is executed
as a whole.
"""

import contextlib
import json
from typing import NamedTuple

from . import _errors
from ._frame_tree import AGGREGATES, FUNCTIONS, OF_COLUMNS, OPERATORS, Node, columns_of, is_one_row

# Version of the plan's interface that this module reads, and the versions of Polars that have it.
INTERFACE = (16, 0)
VERSIONS = ("2.1",)

_HOW = {"Inner": "inner", "Left": "left", "Right": "right", "Full": "full", "Semi": "semi", "Anti": "anti", "Cross": "cross"}
_FORMATS = {"parquet", "ipc"}
# Options of a scan, with the values that change nothing.
_PLAIN_SCAN = {
    "n_rows": (None,),
    "row_index": (None,),
    "column_mapping": (None,),
    "default_values": (None,),
    "deletion_files": (None,),
    "hive_options": (None,),
    "include_file_paths": (None,),
    "missing_columns_policy": ("raise",),
    "extra_columns_policy": ("raise",),
}


# Operations of rows without columns, which are only counted. Polars' interface in Python has no such rows, so they keep one column.
_COUNTED = ("scan", "project", "filter", "slice", "sort")


# Names of the validations of joins in serialised plans.
_VALIDATED = (b"OneToOne", b"OneToMany", b"ManyToOne")


class NotDivisible(Exception):
    """A part of a query that the planner does not know: the text names it."""


class Source(NamedTuple):
    """Rows that a query reads: files, or a frame of this process."""

    #: `parquet`, `ipc` or `frame`.
    format: str
    #: Paths or URLs of its files, or a frame of this process.
    paths: tuple
    frame: object = None


def check_version():
    """Refuses versions of Polars whose plans are not known here; returns the module."""
    try:
        import polars
    except ImportError:
        raise _errors.InvalidArgument("sublet.frame needs Polars: pip install 'sublet[frame]', or pip install polars==2.1.*") from None
    if ".".join(polars.__version__.split(".")[:2]) not in VERSIONS:
        raise _errors.InvalidArgument(
            f"this is Polars {polars.__version__}, and plans are only known of {' and '.join(VERSIONS)}: pip install 'polars=={VERSIONS[-1]}.*'"
        )
    return polars


def tree_of(lazy):
    """Reads a lazy frame; returns its tree and its sources."""
    polars = check_version()
    # Slices stay nodes of their own, and common expressions are found again when a part of the plan is executed.
    flags = {"slice_pushdown": False, "comm_subexpr_elim": False, "check_order_observe": False, "sort_collapse": False}
    optimized = lazy._ldf.with_optimizations(polars.QueryOptFlags(**flags)._pyoptflags)
    reader = _Reader(optimized.visit())
    if tuple(reader.traverser.version()) != INTERFACE:
        found = ".".join(map(str, reader.traverser.version()))
        raise _errors.InvalidArgument(f"this Polars has version {found} of the plan's interface, and {'.'.join(map(str, INTERFACE))} is known")
    tree = reader.node()
    if reader.has_joins:
        _check_joins(lazy)
    return tree, reader.sources


def _check_joins(lazy):
    """Checks that no join counts the rows with equal keys (`validate`), which the interface does not show, but the serialised plan does."""
    try:
        plan = lazy.serialize()
    except Exception as error:
        raise NotDivisible(f"a join in a plan that cannot be serialised ({error})") from None
    if any(one in plan for one in _VALIDATED):
        raise NotDivisible("a join with a validation")


class _Reader:
    def __init__(self, traverser):
        self.traverser = traverser
        self.sources = []
        #: Whether the plan has joins.
        self.has_joins = False
        self._cached = {}

    def node(self):
        """Reads the current node."""
        at = self.traverser.get_node()
        try:
            seen = self.traverser.view_current_node()
        except NotImplementedError as error:
            raise NotDivisible(str(error)) from None
        name = type(seen).__name__
        if name == "Cache":
            # All caches with this number are one node, with several parents.
            if seen.id_ not in self._cached:
                self._cached[seen.id_] = self._inputs()[0]
            return self._cached[seen.id_]
        read = getattr(self, f"_{name.lower()}", None)
        if read is None:
            raise NotDivisible(name)
        schema = dict(self.traverser.get_schema())
        kind, fields = read(seen, schema)
        inputs = self._inputs()
        if not schema and kind not in _COUNTED:
            raise NotDivisible("rows without columns")
        if kind == "project" and not schema:
            fields = {"columns": [_first_column(inputs[0])]}
        made = Node(kind, inputs, fields, schema) if kind != "side_by_side" else _beside(inputs, fields)
        condition = getattr(seen, "predicate", None) if name == "Join" else None
        if condition is not None:
            made = Node("filter", (made,), {"predicate": self._condition(condition, schema)}, schema)
        self.traverser.set_node(at)
        return made

    def _inputs(self):
        at, found = self.traverser.get_node(), []
        for number in self.traverser.get_inputs():
            self.traverser.set_node(number)
            found.append(self.node())
        self.traverser.set_node(at)
        return tuple(found)

    # Nodes.

    def _scan(self, seen, schema):
        kind, options = seen.scan_type[0], seen.file_options
        if kind not in _FORMATS:
            raise NotDivisible(f"scan of {kind}")
        for name, plain in _PLAIN_SCAN.items():
            if getattr(options, name) not in plain:
                raise NotDivisible(f"{name} of a scan")
        if seen.hive_parts is not None or json.loads(seen.scan_type[1]).get("schema") is not None:
            raise NotDivisible("a scan with a schema of its own")
        changed = [name for name, value in options.cast_columns_policy.items() if value != (name == "null_upcast") and value != "raise"]
        if changed:
            raise NotDivisible(f"{changed[0]} of a scan")
        source = Source(kind, tuple(map(str, seen.paths)))
        predicate = None if seen.predicate is None else self._expression(seen.predicate.node)
        return "scan", {"source": self._source(source), "columns": list(schema) or self._first_column(source), "predicate": predicate}

    def _first_column(self, source):
        """For what only counts the rows of a source."""
        polars = check_version()
        read = polars.scan_parquet if source.format == "parquet" else polars.scan_ipc
        found = source.frame.columns if source.frame is not None else list(read(list(source.paths)).collect_schema())
        if not found:
            raise NotDivisible("a source without columns")
        return found[:1]

    def _dataframescan(self, seen, schema):
        import polars

        if seen.selection is not None:
            raise NotDivisible("a selection of a frame")
        frame = polars.DataFrame._from_pydf(seen.df)
        source = Source("frame", (), frame)
        return "scan", {"source": self._source(source), "columns": list(schema) or self._first_column(source), "predicate": None}

    def _source(self, source):
        for number, known in enumerate(self.sources):
            is_same = known.frame is source.frame if source.frame is None or known.frame is None else known.frame._df is source.frame._df
            if is_same and known.format == source.format and known.paths == source.paths:
                return number
        self.sources.append(source)
        return len(self.sources) - 1

    def _filter(self, seen, schema):
        return "filter", {"predicate": self._expression(seen.predicate.node)}

    def _select(self, seen, schema):
        return "select", {"exprs": self._named(seen.expr)}

    def _hstack(self, seen, schema):
        self._check_columns()
        return "with_columns", {"exprs": self._named(seen.exprs)}

    def _simpleprojection(self, seen, schema):
        return "project", {"columns": list(schema)}

    def _groupby(self, seen, schema):
        options = seen.options
        if seen.apply or options.dynamic is not None or options.rolling is not None or options.slice is not None:
            raise NotDivisible("group_by of time or with a function in Python")
        return "group_by", {"keys": self._named(seen.keys), "aggs": self._named(seen.aggs), "ordered": seen.maintain_order}

    def _join(self, seen, schema):
        self._check_columns()
        how, nulls_equal, cut, suffix, coalesce, order = seen.options
        if how in (("Inner", "fused_predicate"), ("Cross", "cross_and_filter")):
            # The condition besides the keys becomes a filter of its own.
            how = how[0]
        elif seen.predicate is not None or cut is not None or not isinstance(how, str) or how not in _HOW:
            raise NotDivisible(f"a join that is {how if isinstance(how, str) else how[0]}, with a condition")
        self.has_joins = True
        fields = {"how": _HOW[how], "nulls_equal": nulls_equal, "suffix": suffix, "coalesce": coalesce, "order": order}
        left, right = self.traverser.get_inputs()
        return "join", {**fields, "left_on": self._keys(seen.left_on, left), "right_on": self._keys(seen.right_on, right)}

    def _condition(self, condition, schema):
        """The condition that rows of an inner join have to fulfil besides equal keys."""
        found = self._expression(condition.node)
        if not columns_of(found) <= set(schema):
            raise NotDivisible("a join with a condition on columns that it leaves out")
        return found

    def _keys(self, found, side):
        """The keys of one input of a join, with their types."""
        with self._within(side):
            return [(self._expression(one.node), str(self._dtype(one.node))) for one in found]

    @contextlib.contextmanager
    def _within(self, number):
        """Types of expressions are those with the columns of this node."""
        at = self.traverser.get_node()
        self.traverser.set_node(number)
        yield
        self.traverser.set_node(at)

    def _dtype(self, number):
        return self.traverser.get_dtype(number)

    def _sort(self, seen, schema):
        stable, nulls_last, descending = seen.sort_options
        if seen.slice is not None:
            raise NotDivisible("a sort with a slice")
        by = [self._expression(one.node) for one in seen.by_column]
        return "sort", {"by": by, "descending": list(descending), "nulls_last": list(nulls_last), "stable": stable}

    def _slice(self, seen, schema):
        return "slice", {"offset": seen.offset, "len": seen.len}

    def _distinct(self, seen, schema):
        keep, subset, ordered, cut = seen.options
        if cut is not None:
            raise NotDivisible("a distinct with a slice")
        return "unique", {"keep": keep, "subset": None if subset is None else list(subset), "ordered": ordered}

    def _check_columns(self):
        """Checks that no input only gives a number of rows: it has a column here."""
        for number in self.traverser.get_inputs():
            with self._within(number):
                if not self.traverser.get_schema():
                    raise NotDivisible("rows without columns")

    def _union(self, seen, schema):
        self._check_columns()
        if seen.slice is not None:
            raise NotDivisible("a union with a slice")
        return "union", {}

    def _hconcat(self, seen, schema):
        self._check_columns()
        # Parallel, strict, and whether frames of one row are repeated.
        return "side_by_side", {"is_repeated": bool(seen.options[2])}

    def _mapfunction(self, seen, schema):
        if seen.function[0] != "row_index":
            raise NotDivisible(f"the operation {seen.function[0]}")
        return "row_index", {"name": seen.function[1], "offset": seen.function[2]}

    # Expressions.

    def _named(self, found):
        with self._within(self.traverser.get_inputs()[0]):
            return [(one.output_name, self._expression(one.node)) for one in found]

    def _expression(self, number):
        try:
            seen = self.traverser.view_expression(number)
        except NotImplementedError as error:
            raise NotDivisible(str(error)) from None
        name = type(seen).__name__
        if name == "Column":
            return "column", seen.name
        if name == "Len":
            return ("len",)
        if name == "Literal":
            return "literal", _value(seen.value, seen.dtype), seen.dtype
        if name == "BinaryExpr":
            operator = str(seen.op).rpartition(".")[2]
            if operator not in OPERATORS:
                raise NotDivisible(f"the operator {operator}")
            return "binary", operator, self._expression(seen.left), self._expression(seen.right)
        if name == "Cast":
            return "cast", self._expression(seen.expr), seen.dtype, int(seen.options)
        if name == "Ternary":
            return "ternary", self._expression(seen.predicate), self._expression(seen.truthy), self._expression(seen.falsy)
        if name == "Filter":
            return "filter", self._expression(seen.input), self._expression(seen.by)
        if name == "Agg":
            return self._aggregate(seen)
        if name == "Function":
            return self._function(seen)
        if name == "Window":
            return self._window(seen)
        raise NotDivisible(f"the expression {name}")

    def _aggregate(self, seen):
        if seen.name not in AGGREGATES or len(seen.arguments) != 1 or (seen.name in ("min", "max", "count") and seen.options):
            raise NotDivisible(f"the aggregation {seen.name}")
        (argument,) = seen.arguments
        return "agg", seen.name, self._expression(argument), seen.options, str(self._dtype(argument))

    def _window(self, seen):
        if getattr(seen.options, "kind", None) not in ("groups_to_rows", "group_to_rows"):
            raise NotDivisible(f"a window with {getattr(seen.options, 'kind', 'an unknown mapping')}")
        order = None if seen.order_by is None else self._expression(seen.order_by)
        partition = tuple(map(self._expression, seen.partition_by))
        return "over", self._expression(seen.function), partition, order, seen.order_by_descending, seen.order_by_nulls_last

    def _function(self, seen):
        first, *options = seen.function_data
        name = first if isinstance(first, str) else str(first)
        if name == "dynamic_pred":
            # It only leaves out rows that a later node would leave out.
            import polars

            return "literal", True, polars.Boolean
        if name not in FUNCTIONS and (name not in OF_COLUMNS or (name == "rank" and options[2] is not None)):
            raise NotDivisible(f"the function {name}")
        return "function", name, tuple(map(self._expression, seen.input)), tuple(options)


def _beside(frames, fields):
    """Frames side by side, of which all but one have one row, which is repeated: the pairs of their rows."""
    if not fields["is_repeated"] or sum(not is_one_row(frame) for frame in frames) > 1:
        raise NotDivisible("frames side by side")
    made = frames[0]
    for frame in frames[1:]:
        order = "left" if is_one_row(frame) else "right"
        pairs = {"how": "cross", "nulls_equal": False, "suffix": "_right", "coalesce": False, "order": order, "left_on": [], "right_on": []}
        made = Node("join", (made, frame), pairs, {**made.schema, **frame.schema})
    return made


def _first_column(node):
    """Name of a column that a node has."""
    if node.schema:
        return next(iter(node.schema))
    return node.fields["columns"][0] if node.kind in ("scan", "project") else _first_column(node.inputs[0])


def _value(value, dtype):
    if type(value).__name__ == "PySeries":
        import polars

        value = polars.wrap_s(value).to_list()
        if dtype != polars.List or len(value) != 1 or not isinstance(value[0], list):
            raise NotDivisible("a constant series")
        return value[0]
    if isinstance(value, list) and getattr(dtype, "inner", None) is None:
        raise NotDivisible("a constant series")
    return value
