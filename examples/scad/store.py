"""A Redis server of this program's own, and a client that sends and receives strings without a copy more than it needs."""

import os
import shutil
import socket
import subprocess
import tempfile
import time

# Longest time in which the server answers, in seconds.
PATIENCE_S = 10
# Bytes of one string: Redis refuses those of 512 MiB and more.
CHUNK_BYTES = 64 << 20


class Server:
    """A Redis server on a Unix socket, which writes nothing to disk; a context manager."""

    def __init__(self):
        # Debian's redis-tools contain the server, too: the program chooses its role by its name.
        self._program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        if not self._program:
            raise SystemExit("this row compares with Redis, and there is no redis-server: install Debian's redis-server or redis-tools")

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="sublet-redis-")
        self.path = os.path.join(self._folder.name, "redis.sock")
        options = ["--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no", "--dir", self._folder.name]
        self._process = subprocess.Popen(["redis-server", *options], executable=self._program, stdout=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with Connection(self.path) as connection:
                    connection.command(b"PING")
                return self
            except OSError:
                time.sleep(0.01)
        self.__exit__()
        raise SystemExit(f"redis-server does not answer within {PATIENCE_S} s")

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


class Connection:
    """A connection to a server; a context manager."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._answers = self._socket.makefile("rb", buffering=1 << 16)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._answers.close()
        self._socket.close()

    def command(self, *words):
        """Sends a command. Returns its answer: the bytes of a string, `None` without one, or the text of a line."""
        self._socket.sendall(b"*%d\r\n" % len(words))
        for word in words:
            view = memoryview(word).cast("B")
            self._socket.sendall(b"$%d\r\n" % len(view))
            self._socket.sendall(view)
            self._socket.sendall(b"\r\n")
        line = self._answers.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("redis-server has closed the connection")
        kind, text = line[:1], line[1:-2]
        if kind == b"-":
            raise OSError(f"redis-server refuses {bytes(words[0]).decode()}: {text.decode()}")
        if kind != b"$":
            return text
        size = int(text)
        if size < 0:
            return None
        answer = self._answers.read(size)
        if self._answers.read(2) != b"\r\n":
            raise ConnectionError(f"redis-server has sent {len(answer)} of {size} bytes")
        return answer

    def put(self, name, data):
        """Stores bytes of any length under a name."""
        view = memoryview(data).cast("B")
        chunks = range(0, max(len(view), 1), CHUNK_BYTES)
        for number, begin in enumerate(chunks):
            self.command(b"SET", f"{name}:{number}".encode(), view[begin : begin + CHUNK_BYTES])
        self.command(b"SET", f"{name}:count".encode(), b"%d" % len(chunks))

    def get(self, name):
        """Returns what was stored under a name."""
        count = self.command(b"GET", f"{name}:count".encode())
        if count is None:
            raise KeyError(name)
        return b"".join(self.command(b"GET", f"{name}:{number}".encode()) for number in range(int(count)))

    def clear(self):
        """Removes everything."""
        self.command(b"FLUSHALL")
