"""Reads the sources of a query for its components: the parts of files that the query needs, by the caller, which can read them.

Workers have neither the caller's files nor a network. Of a Parquet file, the caller reads its footer and then all but the columns that
no scan needs; they become the contents of a memory component. Each part of a scan puts together a file with its own groups of rows.
"""

import mmap
import os
import urllib.error
import urllib.request
from typing import NamedTuple

from . import _errors

MAGIC = b"PAR1"
# Most bytes of a footer.
MOST_FOOTER_BYTES = 256 << 20
# Time to wait for a server, in seconds.
PATIENCE = 60
_CHUNK_BYTES = 8 << 20
# Bytes of a value in memory, in the mean.
_VALUE_BYTES = 8


class Chunk(NamedTuple):
    """The pages of a column in a group of rows."""

    column: str
    offset: int
    nbytes: int


class Group(NamedTuple):
    """A group of rows."""

    rows: int
    chunks: tuple


class Piece(NamedTuple):
    """Bytes of a file, and where they are in the contents of a memory component."""

    offset: int
    at: int
    nbytes: int


class File:
    """A file of a source, as it was when the query was planned."""

    def __init__(self, path):
        self.path = path
        self._is_remote = "://" in path
        if self._is_remote and not path.startswith(("http://", "https://")):
            scheme = path.partition("://")[0]
            raise _errors.InvalidArgument(f"{path}: sources are files, and URLs with http or https, not {scheme}; an object store has such URLs")
        self.nbytes, self._state = self._look()

    def check(self):
        """Raises an error if the file is no longer what it was."""
        if self._look() != (self.nbytes, self._state):
            raise _errors.InvalidArgument(f"{self.path} was changed after the query was planned: run it again")

    def read(self, offset, nbytes):
        """Returns a range of the file."""
        if self._is_remote:
            # Behind the last byte.
            found = self._request({"Range": f"bytes={offset}-{offset + nbytes - 1}"}, "GET") if nbytes else b""
        else:
            with open(self.path, "rb") as file:
                file.seek(offset)
                found = file.read(nbytes)
        if len(found) != nbytes:
            raise _errors.InvalidArgument(f"{self.path} was changed after the query was planned: it ends before byte {offset + nbytes}")
        return found

    def _look(self):
        if not self._is_remote:
            try:
                found = os.stat(self.path)
            except OSError as error:
                raise _errors.InvalidArgument(f"{self.path} cannot be read: {error.strerror}") from None
            return found.st_size, (found.st_mtime_ns, found.st_ino)
        headers = self._request({}, "HEAD")
        tag = headers.get("ETag") or headers.get("Last-Modified")
        if tag is None or headers.get("Content-Length") is None:
            raise _errors.InvalidArgument(f"{self.path}: the server gives no length, or neither ETag nor Last-Modified, so changes would not be seen")
        return int(headers["Content-Length"]), tag

    def _request(self, headers, method):
        request = urllib.request.Request(self.path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                if method == "HEAD":
                    return reply.headers
                if reply.status != 206:
                    raise _errors.InvalidArgument(f"{self.path}: the server does not send ranges of bytes")
                return reply.read()
        except (urllib.error.URLError, TimeoutError) as error:
            raise _errors.InvalidArgument(f"{self.path} cannot be read: {error}") from None


def groups_of(file):
    """Returns the groups of rows of a Parquet file."""
    if file.nbytes < 12 or file.read(file.nbytes - 4, 4) != MAGIC or file.read(0, 4) != MAGIC:
        raise _errors.InvalidArgument(f"{file.path} is no Parquet file: it neither begins nor ends as one")
    length = int.from_bytes(file.read(file.nbytes - 8, 4), "little")
    if length > min(file.nbytes - 12, MOST_FOOTER_BYTES):
        raise _errors.InvalidArgument(f"{file.path} is damaged: its footer would have {length} bytes")
    try:
        found = [_group(group) for group in _Thrift(file.read(file.nbytes - 8 - length, length)).struct().get(4, ())]
        if any(chunk.offset < 4 or chunk.nbytes < 0 or chunk.offset + chunk.nbytes > file.nbytes for group in found for chunk in group.chunks):
            raise ValueError("a column is outside of the file")
    except (IndexError, KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
        raise _errors.InvalidArgument(f"{file.path} is damaged: its footer cannot be read ({error})") from None
    return found


def _group(fields):
    chunks = []
    for column in fields[1]:
        meta = column[3]
        begin = min(offset for offset in (meta[9], meta.get(11)) if offset)
        chunks.append(Chunk(meta[3][0].decode(), begin, meta[7]))
    return Group(fields[3], tuple(chunks))


class _Thrift:
    """Reads a structure in Thrift's compact protocol, as dicts of the fields' numbers."""

    def __init__(self, data):
        self._data = data
        self._at = 0

    def struct(self):
        fields, number = {}, 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)

    def _value(self, kind):
        if kind in (1, 2):
            return self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            if count > len(self._data):
                raise ValueError("a list is longer than the footer")
            return [self._value(head & 15) for _ in range(count)]
        if kind == 11:
            count = self._varint()
            kinds = self._byte() if count else 0
            return {self._value(kinds >> 4): self._value(kinds & 15) for _ in range(count)}
        if kind == 12:
            return self.struct()
        raise ValueError(f"there is no type {kind}")

    def _byte(self):
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, count):
        if count > len(self._data) - self._at:
            raise ValueError("a text is longer than the footer")
        self._at += count
        return self._data[self._at - count : self._at]

    def _varint(self):
        value, shift = 0, 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _zigzag(self):
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


class Contents:
    """What a memory component has of the files of a source."""

    def __init__(self, source, columns):
        """Plans what to read.

        Args:
            source: The source of the query; see `_frame_read.Source`.
            columns: Names of the columns that its scans need; None for all.
        """
        self._source = source
        self.files = [File(path) for path in source.paths]
        self.groups = [groups_of(file) if source.format == "parquet" else [] for file in self.files]
        self.pieces, end = [], 0
        for file, groups in zip(self.files, self.groups):
            left_out = [] if columns is None else [chunk for group in groups for chunk in group.chunks if chunk.column not in columns]
            found = without([Piece(0, 0, file.nbytes)], left_out)
            self.pieces.append([])
            for piece in found:
                self.pieces[-1].append(piece._replace(at=end))
                end += piece.nbytes
        #: Number of bytes that are read.
        self.nbytes = end
        self._frame = None
        self._columns = columns
        if source.frame is not None:
            self._frame = _encoded(source.frame)
            self.nbytes = len(self._frame)

    def rows(self):
        """Numbers of rows of the groups."""
        if self._source.frame is not None:
            return (self._source.frame.height,)
        return tuple(group.rows for groups in self.groups for group in groups)

    def size(self):
        """Bytes of the rows in memory, about: files are compressed."""
        found = self.nbytes
        for groups in self.groups:
            for group in groups:
                names = {chunk.column for chunk in group.chunks}
                found += group.rows * _VALUE_BYTES * len(names if self._columns is None else names & set(self._columns))
        return found

    def part(self, columns, rows):
        """Returns for each file its size and the pieces of it with these columns and this range of rows."""
        found, row = [], 0
        for file, groups, pieces in zip(self.files, self.groups, self.pieces):
            left_out = []
            for group in groups:
                is_read = rows is None or (row < rows[0] + rows[1] and rows[0] < row + group.rows)
                row += group.rows
                left_out += [chunk for chunk in group.chunks if not is_read or (columns is not None and chunk.column not in columns)]
            found.append((file.nbytes, [tuple(piece) for piece in without(pieces, left_out)]))
        return found

    def read(self):
        """Reads the files; returns the contents. Raises an error if a file was changed since it was planned."""
        if self._frame is not None:
            return self._frame
        made = mmap.mmap(-1, max(1, self.nbytes))
        for file, pieces in zip(self.files, self.pieces):
            file.check()
            for piece in pieces:
                for begin in range(0, piece.nbytes, _CHUNK_BYTES):
                    nbytes = min(_CHUNK_BYTES, piece.nbytes - begin)
                    made[piece.at + begin : piece.at + begin + nbytes] = file.read(piece.offset + begin, nbytes)
            file.check()
        return made


def without(pieces, chunks):
    """Removes the bytes of chunks from pieces."""
    found = []
    left = sorted(chunk[1:] for chunk in chunks)
    for piece in pieces:
        begin, end = piece.offset, piece.offset + piece.nbytes
        for offset, nbytes in left:
            if offset >= end or offset + nbytes <= begin:
                continue
            if offset > begin:
                found.append(Piece(begin, piece.at + begin - piece.offset, offset - begin))
            begin = offset + nbytes
        if begin < end:
            found.append(Piece(begin, piece.at + begin - piece.offset, end - begin))
    return found


def _encoded(frame):
    import io

    stream = io.BytesIO()
    frame.write_ipc(stream, compression="uncompressed")
    return stream.getvalue()
