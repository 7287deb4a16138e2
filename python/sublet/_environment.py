"""Environments and images: what functions import on the workers, in place of what the nodes have."""

import os
import sys
import threading
from collections.abc import Mapping

from . import _errors, _native, _process
from ._package import version

# Environments of lists of requirements that this process has used, so that the next lease with a list resolves nothing.
_MOST_KEPT = 256


class Environment:
    """Distributions of Python for functions, from PyPI or another index.

    Made at the first use: resolved and downloaded on this machine, as wheels for the Python and the platform of the nodes, and given to
    the managers. Nodes fetch them once and share them among leases. A function in an environment sees these distributions and the
    standard library, and none that is installed on the node.

    Args:
        requirements: A list of requirements, as `["numpy>=2", "pandas"]`, or the path of a file: a `requirements.txt`, or a lock file
            (`pylock.toml` or `uv.lock`), which always has the same result.
        name: Name of the environment, for `sublet environment list` and for other programs. By default one that follows from the content.
        python: Version of Python, as `"3.12"`. The default is this interpreter's, which functions of this program need.
        architecture: Architecture of the nodes, as `"aarch64"`. The default is this machine's, if nodes have it.
        index: URL of an index in place of PyPI, or `False` for none. By default as uv or pip are configured.
        find_links: Folders or pages with further wheels.
        refresh: Whether to resolve anew, if the same list was resolved before on this machine.

    Examples:
        >>> environment = sublet.Environment(["scikit-learn"])
        >>> with sublet.lease(environment=environment) as lease:
        ...     lease.call(train, data)
    """

    def __init__(self, requirements, *, name=None, python=None, architecture=None, index=None, find_links=(), refresh=False):
        self._list = self._file = self._address = None
        if isinstance(requirements, (str, os.PathLike)):
            self._file = os.path.abspath(os.fspath(requirements))
            if not os.path.isfile(self._file):
                raise _errors.InvalidArgument(
                    f"there is no file {os.fspath(requirements)!r}: requirements are a list, as ['numpy'], or the path of a file"
                )
        else:
            self._list = [str(requirement).strip() for requirement in requirements]
            if not all(self._list):
                raise _errors.InvalidArgument("a requirement is empty")
            if not self._list:
                raise _errors.InvalidArgument("there are no requirements: without them no environment is needed")
        self._name = name
        self._python = version() if python is None else str(python)
        self._architecture = architecture
        self._index = "" if index is False else index
        self._links = [find_links] if isinstance(find_links, (str, os.PathLike)) else list(find_links)
        self._links = [os.fspath(link) for link in self._links]
        self._refresh = bool(refresh)
        self._making = threading.Lock()
        self._made = {}

    @classmethod
    def named(cls, name):
        """Returns an environment that is deployed: `NAME`, `TENANT/NAME`, or a digest."""
        environment = cls.__new__(cls)
        environment._list = environment._file = None
        environment._address = environment._name = str(name)
        environment._python = version()
        return environment

    def deploy(self, client=None, progress=None):
        """Makes the environment now, instead of at its first use; returns its digest.

        Args:
            client: Client whose managers get the environment. By default the default client.
            progress: Function that is called with each step, as `"downloaded numpy, 1 of 3"`. By default steps are shown on a terminal.
        """
        if client is None:
            from ._client import default_client

            client = default_client()
        if self._address is not None:
            return _native.find_environment(client._invoker, self._address)[0]
        return self._deployed(client._invoker, client.managers, progress)[0]

    def _deployed(self, invoker, managers, progress):
        """The digest and the address of the environment, which is made unless these managers were given it before."""
        _process.check()
        if self._address is not None:
            return _native.find_environment(invoker, self._address)
        with self._making:
            made = self._made.get(managers)
            if made is None or self._refresh:
                with shown(progress) as step:
                    made = _native.make_environment(
                        invoker,
                        self._list,
                        self._file,
                        name=self._name,
                        python=self._python,
                        architecture=self._architecture,
                        index=self._index,
                        find_links=self._links,
                        refresh=self._refresh,
                        interpreter=sys.executable,
                        step=step,
                    )
                self._made[managers], self._refresh = made, False
            return made

    def _forget(self, managers):
        """Makes it anew at its next use: the managers do not have it any more. Returns whether that can help."""
        if self._address is not None:
            return False
        with self._making:
            return self._made.pop(managers, None) is not None

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key not in ("_making", "_made")}

    def __setstate__(self, state):
        self.__dict__.update(state, _making=threading.Lock(), _made={})

    def __repr__(self):
        said = self._address or self._name or self._file or ", ".join(self._list)
        return f"<sublet environment: {said}>"


_kept = {}


def of(requirements):
    """The environment of requirements; of the same ones the same, so that it is made once."""
    if isinstance(requirements, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(requirements))
        try:
            found = os.stat(path)
        except OSError:
            return Environment(requirements)
        key = (path, found.st_mtime_ns, found.st_size)
    else:
        requirements = key = tuple(requirements)
    known = _kept.get(key)
    if known is None:
        if len(_kept) >= _MOST_KEPT:
            _kept.clear()
        known = _kept[key] = Environment(requirements)
    return known


# Images by the names that this process has used, with their digests.
_pinned = {}


def pinned(image):
    """The name of an image with its digest, which the registry is asked for once."""
    if not isinstance(image, str):
        raise _errors.InvalidArgument(f"image={image!r} is not the name of an image, such as 'debian:12'")
    known = _pinned.get(image)
    if known is None:
        if len(_pinned) >= _MOST_KEPT:
            _pinned.clear()
        known = _pinned[image] = _native.pin_image(image)
    return known


def chosen(environment, requirements):
    """Splits the argument `environment` of a lease, which has been variables, too: the environment, and the variables."""
    variables = None
    if isinstance(environment, str):
        environment = Environment.named(environment)
    elif environment is not None and not isinstance(environment, Environment):
        if not isinstance(environment, Mapping):
            raise _errors.InvalidArgument(
                f"environment={environment!r} is not an Environment, the name of one, or a dict of environment variables"
            )
        environment, variables = None, environment
    if requirements is not None:
        if environment is not None:
            raise _errors.InvalidArgument("a lease has requirements or an environment, not both")
        environment = of(requirements)
    return environment, variables


class shown:
    """Shows steps: by the caller's function, or on standard error if that is a terminal."""

    def __init__(self, progress):
        self._progress = progress
        self._is_terminal = progress is None and sys.stderr is not None and sys.stderr.isatty()
        self._width = 0
        self._is_over = False

    def __enter__(self):
        return self._progress if self._progress is not None else self._show if self._is_terminal else None

    def _show(self, step):
        if self._is_over:
            # A worker that is started anew during a call.
            return
        line = f"sublet: {step}"[:120]
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __exit__(self, kind, error, traceback):
        self._is_over = True
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
