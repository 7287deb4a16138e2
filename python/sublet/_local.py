"""A platform of this program's own: for scripts, tests and notebooks."""

import contextlib
import fcntl
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

from . import _errors, _kept, _process, _visible
from ._client import Client, at_end, not_at_end, set_default
from ._command import program

# Maximum time for the start of a platform, in seconds.
PATIENCE = 60
# Prefix of the names of platforms' folders.
_PREFIX = "sublet-local-"
# The file in such a folder that is locked while the folder is in use.
_LOCK = "lock"


class local:
    """Starts a platform on this machine's cores, which ends with the `with` block or with this process.

    Within the block its client is the default one. Functions are executed by this interpreter, in its environment: they find modules where
    this program finds them, in its virtual environment, in the user's own installations, in `PYTHONPATH` and in editable installations, as
    they are on the disk and without a copy. Such folders are read-only there. Home folders as a whole and temporary folders are not shown;
    modules in these are sent, as to a platform of other machines. So are all modules if `listen` is given, since others may lease then.

    Args:
        cores: Number of cores to lend; by default as `sublet up`.
        memory: Memory to lend, as `"4GiB"`; by default as `sublet up`.
        **options: Other options of that command, by their names: `lend_network=True`, `devices="none"`.

    Examples:
        >>> with sublet.local() as client, client.lease(cores=2) as lease:
        ...     print(lease.call(sum, [1, 2, 3]))
        6
    """

    def __init__(self, cores=None, memory=None, **options):
        self._arguments = ["--json", "up", "--python", sys.executable]
        self._is_shared = "listen" in options
        for name, value in dict(options, cores=cores, memory=memory).items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                self._arguments.append(flag)
            elif value is not None and value is not False:
                self._arguments += [flag, str(value)]
        self._process = None

    def start(self):
        """Starts the platform; returns its client."""
        if self._process is not None:
            raise _errors.Error("this platform was started already")
        _process.check()
        _remove_old()
        self._owner = os.getpid()
        self._folder = _Folder()
        state = os.path.join(self._folder.path, "state")
        log = open(os.path.join(self._folder.path, "log"), "w+b")
        paths = [] if self._is_shared else _visible.search_path()
        shown = [word for path in paths for word in ("--python-path", path)]
        # The platform ends with this process, however that ends.
        arguments = [program(), *self._arguments, *shown, "--state", state, "--with-parent", str(self._owner)]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        at_end(self.stop)
        try:
            with log:
                up = self._read_up(log)
            self._client = Client(up["manager"])
            self._client._visible = tuple(paths)
        except BaseException:
            self.stop()
            raise
        self._before = set_default(self._client)
        return self._client

    def _read_up(self, log):
        said = []
        reader = threading.Thread(target=lambda: said.append(self._process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(PATIENCE)
        if said and said[0].strip():
            return json.loads(said[0])
        log.seek(0)
        why = log.read().decode(errors="replace").strip() or f"it reported nothing for {PATIENCE} s"
        raise _errors.Error(f"the platform did not start: {why}")

    def stop(self):
        """Stops the platform and all leases. Does nothing in a forked child process."""
        if self._process is None or os.getpid() != self._owner:
            return
        process, self._process = self._process, None
        not_at_end(self.stop)
        if getattr(self, "_client", None) is not None:
            _kept.release()
            set_default(self._before)
            self._client = None
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._folder.remove()

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, traceback):
        self.stop()


class _Folder:
    """The folder of one platform, with a file that this process keeps locked while it lives."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix=_PREFIX)
        made = os.path.join(self.path, "made")
        self._lock = os.open(made, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # The folder has this name only while it is locked, or after its program was killed.
        os.rename(made, os.path.join(self.path, _LOCK))

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_old():
    """Removes the folders of this user's programs that were killed."""
    for lock in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*", _LOCK)):
        folder = os.path.dirname(lock)
        with contextlib.ExitStack() as opened:
            # The lock of a platform is that of its agent: one whose program has ended may not have ended yet.
            if all(_is_free(path, opened) for path in (lock, os.path.join(folder, "state", "agent.lock"))):
                shutil.rmtree(folder, ignore_errors=True)


def _is_free(lock, opened):
    """Returns whether this user's lock is free; it is then held until the stack is closed."""
    try:
        file = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        opened.callback(os.close, file)
        if os.fstat(file).st_uid != os.geteuid():
            return False
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except FileNotFoundError:
        return True
    except OSError:
        return False
