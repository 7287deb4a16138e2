"""A platform of this program's own: for scripts, tests and notebooks."""

import json
import os
import subprocess
import sys
import tempfile
import threading

from . import _errors
from ._client import Client, set_default
from ._command import program

# How long it may take until the platform is up, in seconds.
PATIENCE = 60


class local:
    """Starts a platform on this machine's cores, which ends with the `with` block, and with this process.

    Within the block its client is the default one. Functions are executed by this interpreter's like: its environment is theirs.

    Args:
        cores: How many it lends; without it, as `sublet up`.
        memory: How much it lends, as `"4GiB"`; without it, as `sublet up`.
        **options: Other options of that command, by their names: `lend_network=True`, `devices="none"`.

    Examples:
        >>> with sublet.local() as client, client.lease(cores=2) as lease:
        ...     print(lease.call(sum, [1, 2, 3]))
        6
    """

    def __init__(self, cores=None, memory=None, **options):
        self._arguments = ["--json", "up", "--python", sys.executable]
        for name, value in dict(options, cores=cores, memory=memory).items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                self._arguments.append(flag)
            elif value is not None and value is not False:
                self._arguments += [flag, str(value)]
        self._process = None

    def start(self):
        """Starts it; returns its client."""
        if self._process is not None:
            raise _errors.Error("this platform was started already")
        self._folder = tempfile.TemporaryDirectory(prefix="sublet-")
        state = os.path.join(self._folder.name, "state")
        log = open(os.path.join(self._folder.name, "log"), "w+b")
        arguments = [program(), *self._arguments, "--state", state]
        if threading.current_thread() is threading.main_thread():
            # It ends when this process does, however that ends. Of another thread it would be that thread's end.
            arguments += ["--with-parent", str(os.getpid())]
        self._process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        try:
            up = self._read_up(log)
            self._client = Client(up["manager"])
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
        why = log.read().decode(errors="replace").strip() or f"it said nothing for {PATIENCE} s"
        raise _errors.Error(f"the platform did not come up: {why}")

    def stop(self):
        """Stops it, and all leases with it."""
        process, self._process = self._process, None
        if process is None:
            return
        if getattr(self, "_client", None) is not None:
            set_default(self._before)
            self._client = None
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        self._folder.cleanup()

    def __enter__(self):
        return self.start()

    def __exit__(self, kind, error, traceback):
        self.stop()
