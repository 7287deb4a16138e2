"""Executes lazy frames of Polars as graphs of components: `sublet frame [OPTIONS] FILE.sql`, `python -m sublet.frame`, and `run`.

A query is divided into parts that cores of any nodes compute. Its sources are read by this program, and the workers need neither its files
nor a network. Polars executes each part, in the version of this program's environment.
"""

import argparse
import hashlib
import io
import json
import os
import sys
import warnings
from pathlib import Path

from . import _application, _client, _command_line, _errors, _frame_plan, _frame_read, _frame_source, _frame_stage, _frame_tree
from ._sizes import bytes_of

__all__ = ["explain", "run"]

# Memory of a worker with Polars, without what it reads.
WORKER_BYTES = 512 << 20
# Memory of a worker for each byte of rows that it reads: operations make copies.
BYTES_FOR_EACH = 4
# Most bytes of the first segment of a memory component with a source, and of each further one.
SEGMENT_BYTES = 64 << 20
RESULT = "result.rows"


def run(lazy, *, partitions=None, memory=None, client=None, news=None, **options):
    """Executes a lazy frame of Polars as a graph; returns its `polars.DataFrame`.

    Args:
        lazy: The `polars.LazyFrame`. Its sources are Parquet and Arrow files, also by URLs with http and https, and frames of this program.
        partitions: Number of parts of large sources and exchanges. The default is the number of cores of the managers' nodes.
        memory: Memory of each worker, in bytes or as `"2GiB"`. The default is 512 MiB and four times the rows of the largest part.
        client: Client whose managers are used. The default is the default client.
        news: Function that is called for events; see `Application.run`.
        **options: Options of `Client.deploy`, as `patience` or `keep_alive`.

    Raises:
        InvalidArgument: Polars cannot serialise the query: the text names the operation. Or a source is damaged, was changed
            since the query was planned, or cannot be read; or the version of Polars is not supported.
        InsufficientResources: A worker needs more memory than any node has.

    Examples:
        >>> sales = polars.scan_parquet("sales.parquet")
        >>> sublet.frame.run(sales.group_by("shop").agg(polars.col("price").sum()))
    """
    client = client or _client.default_client()
    return Query(lazy, _cores(client) if partitions is None else partitions, memory).run(client, news, options)


def explain(lazy, *, partitions=None, memory=None, client=None):
    """Returns how `run` would execute a lazy frame, as text: its stages, their sizes, and where they are placed."""
    client = client or _client.default_client()
    return Query(lazy, _cores(client) if partitions is None else partitions, memory).explained()


def _cores(client):
    return max(1, sum(unit.cores for unit in client.pus() if unit.unit == "cpu"))


class Query:
    """A query that is divided into stages, with what its sources were when it was planned."""

    def __init__(self, lazy, partitions, memory=None):
        polars = _frame_read.check_version()
        if not isinstance(lazy, polars.LazyFrame):
            raise _errors.InvalidArgument(f"{type(lazy).__name__} is no polars.LazyFrame: call its `lazy()`")
        if not isinstance(partitions, int) or partitions < 1:
            raise _errors.InvalidArgument(f"partitions={partitions!r} is not 1 or more")
        self._version = polars.__version__
        self._partitions = partitions
        #: Why the query is executed as a whole; None if it is divided.
        self.reason = None
        self.whole = None
        try:
            self._divide(lazy)
        except _frame_read.NotDivisible as error:
            self.reason = str(error)
            self._keep_whole(lazy)
        most = max((self._row_bytes(part) for stage in self.stages for part in stage.parts), default=0)
        most = max(most, sum(contents.size() for contents in self.contents) if self.whole else 0)
        self.memory = WORKER_BYTES + BYTES_FOR_EACH * most if memory is None else bytes_of(memory)

    def _divide(self, lazy):
        tree, sources = _frame_read.tree_of(lazy)
        needed = {}
        for node in _frame_plan.leaves(tree):
            needed.setdefault(node.fields["source"], set()).update(_columns(node))
        self.contents = [_frame_source.Contents(source, needed[number]) for number, source in enumerate(sources)]
        extents = [_frame_plan.Extent(one.size(), one.rows()) for one in self.contents]
        self._check(lazy, tree, extents, sources)
        self.stages = [self._with_files(stage) for stage in _frame_plan.divide(tree, extents, self._partitions)]
        self.formats = [source.format for source in sources]

    def _check(self, lazy, tree, extents, sources):
        """Checks that the divided query has the columns of the original one, by executing it without rows."""
        import polars

        empty = [_scan_of(source).head(0).collect().lazy() for source in sources]
        unlimited = [extent._replace(groups=()) for extent in extents]
        wanted = lazy.collect_schema()
        for chosen in (extents, unlimited):
            try:
                stages = [_without_rows(stage) for stage in _frame_plan.divide(tree, chosen, self._partitions)]
                found = _frame_stage.executed(stages, empty).schema
            except (polars.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
                raise _frame_read.NotDivisible(f"an operation that fails without rows ({error})") from None
            if found != wanted:
                names = [name for name in wanted if found.get(name) != wanted[name]]
                raise _frame_read.NotDivisible(f"an operation whose result has another type when it is divided: {', '.join(names)}")

    def _with_files(self, stage):
        """Adds to the scans of a stage which pieces of which files they read."""

        def changed(node):
            if node.kind != "scan" or not self.contents[node.fields["source"]].files:
                return node
            files = self.contents[node.fields["source"]].part(_columns(node), node.fields.get("rows"))
            return node._replace(fields={**node.fields, "files": files})

        return stage._replace(parts=_mapped(stage.parts, changed))

    def _keep_whole(self, lazy):
        """Keeps Polars' own plan, in which the paths of files are replaced."""
        import polars

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                plan = json.loads(lazy.serialize(format="json"))
        except (polars.exceptions.PolarsError, TypeError, ValueError, AttributeError) as error:
            raise _errors.InvalidArgument(f"Polars cannot serialise the query, which has {self.reason}: {error}") from None
        if next(iter(plan)) in ("Sink", "SinkMultiple"):
            raise _errors.InvalidArgument("a sink would write into files of the worker, which end with it: write the rows that are returned")
        sources = {}
        for scan in _scans(plan):
            _replace_paths(scan, sources)
        try:
            _frame_stage.plan_of(json.dumps(plan))
        except polars.exceptions.PolarsError as error:
            # JSON has no such numbers.
            raise _errors.InvalidArgument(
                f"Polars cannot send the query, which has {self.reason}, perhaps for a constant that is infinite or not a number: {error}"
            ) from None
        self.contents = [_frame_source.Contents(source, None) for source in sources]
        self.formats = [source.format for source in sources]
        self.whole = json.dumps(plan), [contents.part(None, None) for contents in self.contents]
        self.stages = [_frame_plan.Stage("result", [], None, sum(contents.nbytes for contents in self.contents))]

    def _row_bytes(self, part):
        """Bytes of the rows that a part reads of sources, in memory."""
        found = 0
        for leaf in _frame_plan.leaves(part):
            if leaf.kind == "scan":
                contents, rows = self.contents[leaf.fields["source"]], leaf.fields.get("rows")
                found += contents.size() if rows is None else contents.size() * rows[1] // max(1, sum(contents.rows()))
        return found

    def _read_bytes(self, part):
        pieces = [piece for leaf in _frame_plan.leaves(part) for _, found in leaf.fields.get("files", ()) for piece in found]
        frames = {leaf.fields["source"] for leaf in _frame_plan.leaves(part) if leaf.kind == "scan" and "files" not in leaf.fields}
        return sum(nbytes for _, _, nbytes in pieces) + sum(self.contents[number].nbytes for number in frames)

    # The graph.

    def instances(self, stage):
        """Number of instances that compute the parts of a stage."""
        return max(1, min(len(stage.parts), self._partitions))

    def graph(self):
        """Returns the document of the graph, whose functions are callables.

        Its stages are executed one after the other with the same number of instances, by the same workers: they start once. Instances
        without a part of a stage return at once.
        """
        most = max(map(self.instances, self.stages))
        written = {self._output(stage)[0]: _frame_stage.Written(most, self._output(stage)[2]) for stage in self.stages}
        components, edges = [], []
        for number, stage in enumerate(self.stages):
            slots, output = -(-len(stage.parts) // most) or 1, self._output(stage)
            reads = {read: written[read] for read in stage.reads}
            function = _frame_stage.Component(self._version, stage.parts, output, slots, reads, self.formats, self.whole)
            components.append(self._compute(stage.name, function, most, is_first=number == 0))
            if number:
                edges.append({"type": "trigger", "from": self.stages[number - 1].name, "to": stage.name})
            homes = [f"{output[0]}.{instance}" for instance in range(self.instances(stage))]
            components += [{"name": home, "type": "memory", "result": stage.output is None} for home in homes]
            edges += [{"type": "access", "from": stage.name, "to": home, "rights": "write"} for home in homes]
            edges += [{"type": "access", "from": stage.name, "to": name, "rights": "read"} for name in self._read_by(stage)]
        components += [self._source(number, contents) for number, contents in enumerate(self.contents)]
        return {"version": 1, "name": self.name(), "components": components, "edges": edges}

    def _read_by(self, stage):
        """Names of the memory components that a stage reads."""
        sources = [f"source{number}" for number in (range(len(self.contents)) if self.whole else stage.sources)]
        instances = {self._output(one)[0]: self.instances(one) for one in self.stages}
        return sources + [f"{read}.{number}" for read in stage.reads for number in range(instances[read])]

    def _compute(self, name, function, parallelism, is_first):
        described = {"name": name, "type": "compute", "entry": is_first, "function": function, "parallelism": parallelism}
        return {**described, "resources": {"memory_bytes": self.memory}}

    def _source(self, number, contents):
        segment = max(4096, min(contents.nbytes, SEGMENT_BYTES))
        return {"name": f"source{number}", "type": "memory", "initial_bytes": segment, "increment_bytes": segment}

    def _output(self, stage):
        return (RESULT, None, 1) if stage.output is None else tuple(stage.output)

    def name(self):
        """Name of the application: the same for the same query, whose sizes are then known from its earlier runs."""
        described = repr([(stage.name, len(stage.parts), stage.reads) for stage in self.stages]) + (self.whole[0] if self.whole else "")
        return f"frame-{hashlib.sha256(described.encode()).hexdigest()[:16]}"

    def run(self, client, news, options):
        import polars

        contents = {f"source{number}": contents.read() for number, contents in enumerate(self.contents)}
        application = _application.deploy(client._invoker, self.graph(), _client._run_options(**_options(options)), imports=("polars",))
        outcome = application.run(b"", news, contents)
        with outcome.result as memory:
            where = memory.read(0, 16)
            data = memory.read(int.from_bytes(where[:8], "little"), int.from_bytes(where[8:], "little"))
        return polars.read_ipc(io.BytesIO(data))

    # Descriptions.

    def described(self):
        """The stages as dicts, for JSON."""
        found = []
        for stage in self.stages:
            nodes = [node for part in stage.parts for node in _frame_plan.nodes(part)]
            operations = list(dict.fromkeys(node.kind for node in nodes if node.kind != "exchange"))
            nbytes = sum(map(self._read_bytes, stage.parts)) if self.whole is None else stage.nbytes
            one = {
                "stage": stage.name,
                "operations": operations,
                "parts": max(1, len(stage.parts)),
                "instances": self.instances(stage),
                "reads": [f"source{number}" for number in (range(len(self.contents)) if self.whole else stage.sources)] + stage.reads,
                "source_bytes": nbytes,
                "memory_bytes": self.memory,
                "writes": self._output(stage)[0],
                "partitions": self._output(stage)[2],
                "placement": f"{self.instances(stage)} x 1 core, near {' and '.join(stage.reads) or 'the sources'}",
            }
            found.append(one)
        return found

    def explained(self):
        lines = []
        if self.reason is not None:
            lines.append(f"executed as a whole by one component, because of {self.reason}")
        for number, contents in enumerate(self.contents):
            what = ", ".join(file.path for file in contents.files) or "a frame of this program"
            lines.append(f"source{number}: {what}: {contents.nbytes} bytes are read")
        for one in self.described():
            what = "Polars' own plan" if self.whole else " + ".join(one["operations"]) or "all rows in one frame"
            lines.append(f"{one['stage']}: {what}")
            lines.append(f"    reads {', '.join(one['reads'])}: {one['source_bytes']} bytes of sources, in {one['parts']} parts")
            lines.append(f"    placed on {one['placement']}, each with {one['memory_bytes']} bytes of memory")
            to = f"{one['partitions']} partitions by hash" if one["partitions"] > 1 else "one partition"
            lines.append(f"    writes {one['writes']}: {to} of each part, as Arrow")
        return "\n".join(lines)


def _options(given):
    known = {"patience": None, "retries": None, "prewarm": 0, "keep_alive": None, "hot_timeout": None, "lease_timeout": None, "fabric": None}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise _errors.InvalidArgument(f"there is no option {unknown[0]}: those of Client.deploy are {', '.join(known)}")
    return {**known, **given}


def _columns(node):
    """Names of the columns of a source that a scan reads."""
    predicate = node.fields["predicate"]
    return {*node.fields["columns"], *(() if predicate is None else _frame_tree.columns_of(predicate))}


def _mapped(trees, change):
    """Applies a function to all nodes of trees. Nodes with several parents stay so."""
    made = {}

    def of(node):
        if id(node) not in made:
            made[id(node)] = node, change(node.over(*map(of, node.inputs)))
        return made[id(node)][1]

    return [of(tree) for tree in trees]


def _without_rows(stage):
    """A stage whose scans read everything, of sources without rows."""

    def changed(node):
        return node._replace(fields={**node.fields, "rows": None}) if node.kind == "scan" else node

    return stage._replace(parts=_mapped(stage.parts, changed))


def _scan_of(source):
    import polars

    if source.frame is not None:
        return source.frame.lazy()
    scan = polars.scan_parquet if source.format == "parquet" else polars.scan_ipc
    # They are the paths of files, whatever signs they have.
    return scan(list(source.paths), glob=False, hive_partitioning=False)


def _scans(plan):
    """The scans in a serialised plan."""
    if isinstance(plan, dict):
        for name, value in plan.items():
            if name == "Scan" and isinstance(value, dict) and "sources" in value:
                yield value
            else:
                yield from _scans(value)
    elif isinstance(plan, list) and not (plan and isinstance(plan[0], int)):
        for value in plan:
            yield from _scans(value)


def _replace_paths(scan, sources):
    paths = scan["sources"].get("Paths") if isinstance(scan["sources"], dict) else None
    if paths is None:
        raise _errors.InvalidArgument("a scan of open files or bytes cannot be sent to workers: give it the paths of files")
    options = scan.get("unified_scan_args", {})
    if options.get("include_file_paths") is not None or options.get("hive_options", {}).get("enabled"):
        path = _frame_source.shown(paths[0]["inner"])
        raise _errors.InvalidArgument(f"the scan of {path} gives columns by the paths of its files, which workers do not have")
    found = []
    for path in (one["inner"] for one in paths):
        if "://" not in path and (os.path.isdir(path) or any(sign in path for sign in "*?[")):
            raise _errors.InvalidArgument(f"{path} is a folder or a pattern, in a query that is executed as a whole: give it the paths of files")
        found.append(path)
    kind = next(iter(scan["scan_type"]), "file").lower()
    source = _frame_read.Source(kind if kind in ("parquet", "ipc") else "file", tuple(found))
    number = sources.setdefault(source, len(sources))
    # They may have credentials of an object store, which no worker reads.
    options["cloud_options"] = None
    scan["sources"]["Paths"] = [{"inner": _frame_stage.placeholder(number, place)} for place in range(len(found))]


# The command.

_EXAMPLES = "\n".join(
    [
        "Examples:",
        "  sublet frame --table sales=sales.parquet report.sql               execute a query, and print its rows",
        "  sublet frame --explain --table sales=sales.parquet report.sql     show its stages, sizes and placements",
        "  sublet frame --output report.parquet report.sql                   a table is a file of its name in the folder of the query, too",
        "",
        "The SQL is that of Polars. Where FILE.sql names a table without --table, it is FOLDER/NAME.parquet.",
    ]
)


def arguments_of(given):
    """Reads the command line."""
    parser = _command_line.Parser(
        prog="sublet frame", description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--table", metavar="NAME=PATH", action="append", default=[], help="a table of the query: a Parquet or Arrow file, or its URL")
    parser.add_argument("--output", metavar="FILE", help="write the rows into this Parquet file")
    parser.add_argument("--explain", action="store_true", help="show the stages, and execute nothing")
    parser.add_argument("--partitions", metavar="N", type=int, help="parts of large tables [default: all cores of the nodes]")
    parser.add_argument("--memory", metavar="SIZE", help="memory of each worker, as 2GiB [default: by the sizes of the tables]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("query", metavar="FILE.sql", help="the query; - reads standard input")
    return parser.parse_args(given)


def tables_of(named, folder):
    """Returns lazy frames of tables by their names: those that are named, and the Parquet files of a folder."""
    polars = _frame_read.check_version()
    found = {path.stem: str(path) for path in sorted(folder.glob("*.parquet"))} if folder is not None else {}
    for one in named:
        name, sign, path = one.partition("=")
        if not sign or not name or not path:
            raise _errors.InvalidArgument(f"--table {one} is not NAME=PATH")
        found[name] = path
    return {name: (polars.scan_ipc if path.endswith((".arrow", ".ipc", ".feather")) else polars.scan_parquet)(path) for name, path in found.items()}


def execute(given):
    """Executes the command."""
    polars = _frame_read.check_version()
    if given.partitions is not None and given.partitions < 1:
        raise _errors.InvalidArgument(f"--partitions {given.partitions} is not 1 or more")
    if given.query == "-":
        text, folder = sys.stdin.read(), None
    else:
        try:
            text, folder = Path(given.query).read_text(), Path(given.query).parent
        except (OSError, UnicodeDecodeError) as error:
            raise _errors.InvalidArgument(f"{given.query} cannot be read: {getattr(error, 'strerror', error)}") from None
    try:
        lazy = polars.SQLContext(tables_of(given.table, folder)).execute(text)
        lazy.collect_schema()
    except polars.exceptions.PolarsError as error:
        raise _errors.InvalidArgument(f"{given.query} is no query that Polars knows: {error}") from None
    client = _client.default_client()
    query = Query(lazy, given.partitions or _cores(client), given.memory)
    if given.explain:
        print(json.dumps({"stages": query.described(), "whole": query.reason}) if given.json else query.explained())
        return
    frame = query.run(client, None, {})
    if given.output is not None:
        frame.write_parquet(given.output)
    if given.json:
        rows = {} if given.output is not None else {"rows": frame.rows()}
        print(json.dumps({"columns": frame.columns, "height": frame.height, **rows}, default=str))
    elif given.output is not None:
        print(f"wrote {frame.height} rows to {given.output}")
    else:
        print(frame)


def main(given=None):
    _command_line.run(lambda given: execute(arguments_of(given)), given)


if __name__ == "__main__":
    main()
