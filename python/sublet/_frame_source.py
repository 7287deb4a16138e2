"""Reads the sources of a query for its components: the parts of files that the query needs, by the caller, which can read them.

Workers have neither the caller's files nor a network. The caller reads the footer of a Parquet file, and then all but the columns
that no scan needs; they become the contents of a memory component. Each part of a scan puts together a file with its own groups of rows.
"""

import http.client
import mmap
import os
import re
import stat
import urllib.request
from typing import NamedTuple

from . import _errors

MAGIC = b"PAR1"
# Most bytes of a footer.
MOST_FOOTER_BYTES = 64 << 20
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
        self._path = path
        self._is_remote = "://" in path
        #: The path for people: of a URL, without its user, password and query, which may be credentials.
        self.path = shown(path)
        if self._is_remote and not path.startswith(("http://", "https://")):
            scheme = path.partition("://")[0]
            raise _errors.InvalidArgument(f"{self.path}: sources are files, and URLs with http or https, not {scheme}; an object store has such URLs")
        if self._is_remote and "@" in _host(path):
            raise _errors.InvalidArgument(f"{self.path}: a URL with a user or a password is not supported: use one whose query is signed")
        self.nbytes, self._state = self._look()

    def check(self):
        """Raises an error if the file is no longer what it was."""
        if self._look() != (self.nbytes, self._state):
            raise _errors.InvalidArgument(f"{self.path} was changed after the query was planned: run it again")

    def read(self, offset, nbytes):
        """Returns a range of the file."""
        if self._is_remote:
            # Behind the last byte.
            found = self._ranged(offset, nbytes) if nbytes else b""
        else:
            try:
                with open(self._path, "rb") as file:
                    file.seek(offset)
                    found = file.read(nbytes)
            except OSError as error:
                raise _errors.InvalidArgument(f"{self.path} cannot be read: {error.strerror}") from None
        if len(found) != nbytes:
            raise _errors.InvalidArgument(f"{self.path} was changed after the query was planned: it ends before byte {offset + nbytes}")
        return found

    def _look(self):
        if not self._is_remote:
            try:
                found = os.stat(self._path)
            except OSError as error:
                raise _errors.InvalidArgument(f"{self.path} cannot be read: {error.strerror}") from None
            if not stat.S_ISREG(found.st_mode):
                raise _errors.InvalidArgument(f"{self.path} is no regular file")
            return found.st_size, (found.st_mtime_ns, found.st_ino)
        _, headers, _ = self._request({}, "HEAD", 0)
        tag, length = _tag(headers), headers.get("Content-Length", "")
        if tag is None or not (length.isascii() and length.isdigit()):
            raise _errors.InvalidArgument(f"{self.path}: the server gives no length, or neither ETag nor Last-Modified, so changes would not be seen")
        return int(length), tag

    def _ranged(self, offset, nbytes):
        wanted = f"{offset}-{offset + nbytes - 1}"
        status, headers, found = self._request({"Range": f"bytes={wanted}"}, "GET", nbytes)
        if status != 206 or headers.get("Content-Range", "").partition("/")[0] != f"bytes {wanted}":
            raise _errors.InvalidArgument(f"{self.path}: the server does not send the ranges of bytes that are requested")
        if _tag(headers) not in (None, self._state):
            raise _errors.InvalidArgument(f"{self.path} was changed after the query was planned: run it again")
        return found

    def _request(self, headers, method, nbytes):
        """Returns the status and the headers of a reply, and at most this many bytes."""
        try:
            request = urllib.request.Request(self._path, headers=headers, method=method)
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return reply.status, reply.headers, reply.read(nbytes)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Other texts may have the URL with its credentials.
            reason = error if isinstance(error, OSError) else type(error).__name__
            raise _errors.InvalidArgument(f"{self.path} cannot be read: {reason}") from None


def shown(path):
    """Returns a path as it is, and a URL without what may be credentials."""
    if "://" not in path:
        return path
    scheme, host = path.partition("://")[0], _host(path)
    rest = path[len(scheme) + len("://") + len(host) :]
    return f"{scheme}://{host.rpartition('@')[2]}{re.split('[?#]', rest, maxsplit=1)[0]}"


def _host(url):
    """The part of a URL with the host, and with the user and password if there are any."""
    return re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0]


def _tag(headers):
    return headers.get("ETag") or headers.get("Last-Modified")


def groups_of(file):
    """Returns the groups of rows of a Parquet file."""
    if file.nbytes < 12 or file.read(file.nbytes - 4, 4) != MAGIC or file.read(0, 4) != MAGIC:
        raise _errors.InvalidArgument(f"{file.path} is no Parquet file: it neither begins nor ends as one")
    length = int.from_bytes(file.read(file.nbytes - 8, 4), "little")
    if length > min(file.nbytes - 12, MOST_FOOTER_BYTES):
        raise _errors.InvalidArgument(f"{file.path} is damaged: its footer would have {length} bytes, and at most {MOST_FOOTER_BYTES} are read")
    try:
        found = [_group(group) for group in _Thrift(file.read(file.nbytes - 8 - length, length)).struct().get(4, ())]
        if any(group.rows < 0 for group in found):
            raise ValueError("a group has less than no rows")
        end = len(MAGIC)
        for chunk in sorted((chunk for group in found for chunk in group.chunks), key=lambda chunk: chunk[1:]):
            # Columns that a query does not need are left out, so no other column may be among these bytes.
            if chunk.nbytes < 0 or chunk.offset < end or chunk.offset + chunk.nbytes > file.nbytes:
                raise ValueError("a column is outside of the file, or within another one")
            end = chunk.offset + chunk.nbytes
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
            if shift > 63:
                raise ValueError("a number has more than 64 bits")

    def _zigzag(self):
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


class Contents:
    """Parts of the files of a source that a memory component holds."""

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
    at = 0
    for piece in pieces:
        begin, end = piece.offset, piece.offset + piece.nbytes
        # Both are in order, so none before this one is looked at again.
        while at < len(left) and sum(left[at]) <= begin:
            at += 1
        for number in range(at, len(left)):
            offset, nbytes = left[number]
            if offset >= end:
                break
            if offset > begin:
                found.append(Piece(begin, piece.at + begin - piece.offset, offset - begin))
            begin = offset + nbytes
        if begin < end:
            found.append(Piece(begin, piece.at + begin - piece.offset, end - begin))
    return found


def _encoded(frame):
    import io

    import polars

    stream = io.BytesIO()
    try:
        frame.write_ipc(stream, compression="uncompressed")
    except polars.exceptions.PolarsError as error:
        raise _errors.InvalidArgument(f"a frame of this program has a column that Arrow cannot have: {error}") from None
    return stream.getvalue()
