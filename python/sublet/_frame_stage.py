"""Executes a stage of a query of frames: in a component of a graph, or in this process over frames."""

import contextlib
import io
import os
import tempfile
import warnings
from typing import NamedTuple

from . import _errors
from ._channel import channel, instance, instances
from ._frame_tree import expression, frame_of, scanned

# Alignment of blocks.
ALIGNMENT = 64
# Bytes that are copied at a time.
CHUNK_BYTES = 8 << 20
# Types of Arrow that Polars gets back from it as they were.
_EXACT = ("int", "uint", "bool", "float", "double", "date32", "timestamp", "duration", "decimal128", "string_view", "large_string", "null")


class Written(NamedTuple):
    """How the rows of an exchange are kept: a memory component for each instance that writes them."""

    instances: int
    partitions: int


def divided(frame, keys, partitions):
    """Divides rows by the hash of keys."""
    import polars

    if keys is None or partitions == 1:
        return [frame]
    keyed = polars.struct([expression(tree).alias(f"key{number}") for number, tree in enumerate(keys)])
    # Hashes are the same in all processes with one version of Polars; `Component` checks it.
    targets = frame.select((keyed.hash(1) % partitions).alias("target"))["target"]
    return [frame.filter(targets == number) for number in range(partitions)]


def encoded(frame):
    """Returns a frame as a file of Arrow's."""
    import polars

    # Behind the nulls of enumerations, aggregations may leave numbers of no category, which Arrow refuses to read.
    enums = [column.name for column in frame if isinstance(column.dtype, polars.Enum) and column.null_count()]
    if enums:
        frame = frame.with_columns(frame[name].cast(polars.String).cast(frame.schema[name]) for name in enums)
    stream = io.BytesIO()
    frame.write_ipc(stream, compression="uncompressed")
    return stream.getbuffer()


def decoded(data):
    """Returns the frame of a file of Arrow's, without a copy of its values where that is possible."""
    import polars

    if type(data) is bytes:
        return polars.read_ipc(data)
    # Polars reads the types that pyarrow does not know, as integers of 128 bits.
    with contextlib.suppress(ImportError, NotImplementedError):
        import pyarrow

        with pyarrow.ipc.open_file(pyarrow.py_buffer(data)) as file:
            if all(str(field.type).startswith(_EXACT) for field in file.schema):
                return polars.from_arrow(file.read_all(), rechunk=False)
    return polars.read_ipc(bytes(data))


def header_bytes(slots, partitions):
    return -(-slots * partitions * 16 // ALIGNMENT) * ALIGNMENT


class Blocks:
    """Writes the blocks of one instance, with a header of their offsets and sizes, by part and partition."""

    def __init__(self, opened, slots, partitions):
        self._channel = opened
        self._partitions = partitions
        self._end = header_bytes(slots, partitions)
        self._header = bytearray(self._end)

    def write(self, slot, frames):
        for number, frame in enumerate(frames):
            data = encoded(frame)
            self._channel.write_async(self._end, data)
            at = (slot * self._partitions + number) * 16
            self._header[at : at + 16] = self._end.to_bytes(8, "little") + len(data).to_bytes(8, "little")
            self._end += -(-len(data) // ALIGNMENT) * ALIGNMENT

    def close(self):
        self._channel.write_async(0, bytes(self._header))
        self._channel.sync()


class Reader:
    """Reads the exchanges and sources of a stage from memory components."""

    def __init__(self, reads, formats):
        self._reads = reads
        self._formats = formats
        self._channels = {}
        self._files = contextlib.ExitStack()

    def leaf(self, node):
        """Returns the rows of a node without inputs, as a lazy frame."""
        return self._scan(node) if node.kind == "scan" else self._exchange(node)

    def close(self):
        self._files.close()

    def _channel(self, name):
        if name not in self._channels:
            self._channels[name] = channel(name)
        return self._channels[name]

    def _exchange(self, node):
        import polars

        name, blocks = node.fields["name"], node.fields["blocks"]
        written = self._reads[name]
        # All are requested before the first one is awaited.
        asked = [self._block(name, written, *block) for block in blocks]
        return polars.concat([decoded(data()) for data in asked], how="vertical").lazy()

    def _block(self, name, written, part, partition):
        opened = self._channel(f"{name}.{part % written.instances}")
        at = (part // written.instances * written.partitions + partition) * 16
        where = opened.read(at, 16)
        return _range(opened, int.from_bytes(where[:8], "little"), int.from_bytes(where[8:], "little"))

    def _scan(self, node):
        import polars

        fields = node.fields
        opened = self._channel(f"source{fields['source']}")
        form = self._formats[fields["source"]]
        if form == "frame":
            return scanned(node, decoded(_range(opened, 0, opened.nbytes)()).lazy())
        files = [self.file(opened, nbytes, pieces) for nbytes, pieces in fields["files"]]
        return scanned(node, polars.scan_parquet(files) if form == "parquet" else polars.scan_ipc(files))

    def file(self, opened, nbytes, pieces):
        """Makes a file of this size, which has only these pieces."""
        made = self._files.enter_context(_temporary())
        os.ftruncate(made.fileno(), nbytes)
        for offset, at, length in pieces:
            asked = None
            for begin in range(0, length, CHUNK_BYTES):
                following = _range(opened, at + begin, min(CHUNK_BYTES, length - begin))
                if asked is not None:
                    _write(made, offset + begin - CHUNK_BYTES, asked())
                asked = following
            if asked is not None:
                _write(made, offset + (length - 1) // CHUNK_BYTES * CHUNK_BYTES, asked())
        made.seek(0)
        return made


def _temporary():
    """A file in memory."""
    try:
        return os.fdopen(os.memfd_create("source"), "w+b", buffering=0)
    except OSError:
        return tempfile.TemporaryFile(buffering=0)


def _write(file, offset, data):
    data = memoryview(data)
    while data.nbytes:
        written = os.pwrite(file.fileno(), data, offset)
        data, offset = data[written:], offset + written


def _range(opened, offset, nbytes):
    """Returns a function that returns bytes of a memory component: where they are on this node, or a copy that is under way."""
    try:
        found = opened.array(nbytes, "u1", offset)
    except _errors.Error as error:
        if error.code != "fabric_unavailable":
            raise
        return opened.read_async(offset, nbytes).result
    return lambda: found


def hashes():
    """Hashes of some rows: workers whose processor or Polars has others would divide rows in another way."""
    import polars

    rows = polars.DataFrame({"key0": [None, -1, 1 << 40], "key1": [None, "", "a text of more than sixteen bytes"]})
    return rows.to_struct("keys").hash(1).to_list()


class Component:
    """The function of a component: it executes parts of a stage, or a query as a whole."""

    def __init__(self, version, parts, output, slots, reads, formats, whole=None):
        self._version = version
        self._hashes = hashes()
        self._parts = parts
        # Name of the exchange, its keys and partitions.
        self._output = output
        self._slots = slots
        self._reads = reads
        self._formats = formats
        # A query that is not divided: Polars' own plan, and the files of its sources.
        self._whole = whole

    def __call__(self, data):
        import polars

        if polars.__version__ != self._version:
            raise _errors.InvalidArgument(f"the worker has Polars {polars.__version__}, and the query was planned by {self._version}")
        if hashes() != self._hashes:
            raise _errors.InvalidArgument("the worker's Polars has other hashes of rows than this program's: its processor or its build differs")
        number, count = instance(), instances()
        if number >= max(1, len(self._parts)):
            # More instances than parts.
            return b""
        name, keys, partitions = self._output
        reader, written = Reader(self._reads, self._formats), Blocks(channel(f"{name}.{number}"), self._slots, partitions)
        try:
            for slot, part in enumerate(self._parts[number::count] if self._whole is None else [None]):
                lazy = frame_of(part, reader.leaf) if self._whole is None else self._own_plan(reader)
                written.write(slot, divided(_collected(lazy), keys, partitions))
        finally:
            reader.close()
        written.close()
        return b""

    def _own_plan(self, reader):
        text, sources = self._whole
        for number, files in enumerate(sources):
            opened = channel(f"source{number}")
            for place, (nbytes, pieces) in enumerate(files):
                made = reader.file(opened, nbytes, pieces)
                text = text.replace(placeholder(number, place), f"/proc/self/fd/{made.fileno()}")
        return plan_of(text)


def plan_of(text):
    """Returns the lazy frame of Polars' own plan in JSON."""
    import polars

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return polars.LazyFrame.deserialize(io.StringIO(text), format="json")


def _collected(lazy):
    """Executes a lazy frame. A panic of Polars, which is no `Exception`, becomes one."""
    try:
        return lazy.collect()
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        text = str(error)
    if "Resource temporarily unavailable" in text or "Cannot allocate memory" in text:
        raise MemoryError(f"the worker has too little memory for Polars: give more `memory`, or more `partitions` ({text})")
    raise RuntimeError(f"Polars has panicked: {text}")


def placeholder(source, file):
    """The path of a file in the plan of a query that is executed as a whole."""
    return f"/sublet-source/{source}/{file}.file"


def executed(stages, sources):
    """Executes stages in this process, over the lazy frames of the sources; returns the result."""
    import polars

    exchanges = {}

    def leaf(node):
        if node.kind == "scan":
            return scanned(node, sources[node.fields["source"]])
        blocks = exchanges[node.fields["name"]]
        return polars.concat([blocks[part][partition] for part, partition in node.fields["blocks"]], how="vertical").lazy()

    for stage in stages:
        frames = [frame_of(part, leaf).collect() for part in stage.parts]
        if stage.output is None:
            return frames[0]
        exchanges[stage.output.name] = [divided(frame, stage.output.keys, stage.output.partitions) for frame in frames]
    raise AssertionError("no stage has the result")
