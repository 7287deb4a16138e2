"""Clients of managers, which lease cores and memory."""

import atexit
import os
import sys
import threading
from collections.abc import Mapping

from . import _application, _environment, _errors, _kept, _native, _package, _process
from ._bill import Bill
from ._calls import OWN, Completer, Functions
from ._component import Memory
from ._lease import Lease, close_all
from ._pus import listed
from ._sizes import bytes_of
from ._warning import warn_of_cold_imports

_completer = Completer(_native.Queue)


class Client:
    """A client of managers.

    Args:
        managers: Addresses, separated by commas, as `https://host:7433` or `unix:/run/sublet/manager.sock`; by default
            `$SUBLET_MANAGER`, or this machine's own `sublet up`.
        ca_file: PEM file of the trusted certificate authority; by default `$SUBLET_CA`.
        token: Access token; by default `$SUBLET_TOKEN`.
        token_file: File with the access token; by default `$SUBLET_TOKEN_FILE`.
    """

    def __init__(self, managers=None, *, ca_file=None, token=None, token_file=None):
        _process.check()
        if managers is None and "sublet_worker" in sys.modules and not os.environ.get("SUBLET_MANAGER"):
            raise _errors.InvalidArgument(
                "a function on a worker has no managers: lease from the program that calls it, or name the managers, "
                "as sublet.Client('https://host:7433')"
            )
        self._invoker = _native.Invoker.connect(managers, ca_file=ca_file, token=token, token_file=token_file)
        self._completer = _completer
        self._managers = managers
        # Folders of this program's modules that functions see as they are.
        self._visible = ()

    def lease(
        self,
        cores=1,
        package=None,
        *,
        memory=None,
        timeout=None,
        wait=None,
        policy=None,
        imports=(),
        path=None,
        environment=None,
        requirements=None,
        image=None,
        env=None,
        secrets=None,
        folders=None,
        devices=None,
        gpus=None,
        temporary=None,
        progress=None,
        start_timeout=None,
        initializer=None,
        initargs=(),
        share_arrays=None,
        **more,
    ):
        """Leases cores and starts a worker on each; returns a context manager.

        Args:
            package: Package whose functions are called. The name of a deployed package finds the caller's own, or
                otherwise a public one; `"tenant/name"` names one that another tenant has granted. The path of a folder
                or shared object begins with `/` or `.`, or ends with `.so` or `.wasm`. Without a package, calls send
                callables of this program.
            cores: Number of cores, each with a worker, on one or more nodes.
            memory: Memory for all cores together, in bytes or as `"2GiB"`.
            timeout: Duration of the lease in seconds. `renew` extends it.
            wait: Maximum time to wait for capacity, in seconds. The default is 0.
            policy: How workers wait for calls: `"hot"` always polls, `"warm"` always sleeps, a number polls for that many seconds
                after each call. By default 1 ms.
            imports: Modules that workers import ahead of time. Nodes keep modules warm that are requested often; a
                `ColdImportWarning` names one that they cannot keep warm.
            path: Files and folders of modules to send to the workers. By default all imported modules that do not belong to a Python
                environment.
            environment: Environment whose distributions the functions import: an `Environment`, or the name of a deployed one. A dict is
                taken for `env`.
            requirements: Distributions that the functions import, as `["numpy>=2"]`, or the path of a requirements or lock file: short for
                `environment=Environment(requirements)`.
            image: OCI image in which the functions run, by the image's own Python, as `"ghcr.io/user/app:1"`. That has to be of this
                interpreter's version. A tag is resolved once in this process.
            env: Environment variables for the functions, as a dict of texts. They take precedence over those of the package.
            secrets: Names of secrets of this tenant that the functions get as environment variables of the same names, as `["DB_KEY"]`; or
                a dict of variables and names of secrets. `sublet secret set` stores a secret.
            folders: Names of folders that nodes lend. Functions see them as `/folders/NAME`.
            devices: Numbers of devices by their kind, as `{"cuda": 1}`, which belong to the lease alone. Operators of nodes name the kinds.
                Workers in Python with devices are leased one at a time.
            gpus: Number of GPUs: short for `devices={"cuda": gpus}`, or `"rocm"` on nodes without that kind.
            temporary: Size of the temporary files of each worker in `/tmp`, in bytes or as `"256MiB"`. They are part of its memory. By
                default 64 MiB.
            progress: Function that is called with each step of the start, as `"downloaded numpy, 1 of 3"`. By default steps are shown on a
                terminal.
            start_timeout: Maximum time of a worker's start, in seconds, with the installation of its environment and its imports. Without it a
                start may take until the lease ends.
            initializer: Function that each worker calls before its first call.
            initargs: Arguments of the initializer.
            share_arrays: Whether workers on this machine use registered arrays in place. With `False` they access only the messages
                of their own calls, and all arrays are copied: for untrusted functions. By default `True` for functions of this program
                and for packages by path, and `False` for packages by name, which may be another tenant's. For such a package `True` is
                rejected.
            **more: `shared=True`, `max_nodes`, `idle_timeout`, `pu`, `fabric`, `interface`, `pool`, `slots`, `slot_bytes`,
                `spin`; `time_weight`: weight of execution time against price in the choice among kinds of processing units, from 0
                (only price) to 1 (only time). `isolation` names the isolation that the workers must have.
        """
        _process.check()
        environment, variables = _environment.chosen(environment, requirements)
        if image is not None and environment is not None:
            raise _errors.InvalidArgument("a lease has an image or an environment, not both: functions in an image import what the image has")
        functions = Functions(initializer, initargs)
        # Workers on another machine have copies of all shared memory, in the memory of their lease.
        is_shared = package is None or _package.is_path(package) if share_arrays is None else share_arrays
        is_near = is_shared and more.get("fabric") in (None, "auto", "shm") and self._invoker.has_near_nodes()
        invoker = self._invoker.another(is_near)
        options = dict(more, cores=cores, timeout=timeout, wait=wait, policy=policy, start_timeout=start_timeout)
        if memory is not None:
            options["memory_bytes"] = bytes_of(memory)
        options.update(_needs({**(variables or {}), **(env or {})}, secrets, folders, temporary))
        options.update(_devices(devices, gpus))
        if package is None:
            imports = leased = tuple(_package.checked_imports(imports))
            self._allocate_own(invoker, imports, path, (environment, image), progress, options)
        elif image is not None:
            raise _errors.InvalidArgument("a package names its own image, in its sublet.toml: image")
        elif environment is not None:
            raise _errors.InvalidArgument("a package names its own environment, in its sublet.toml: [python] environment or requirements")
        else:
            leased = _package.named(package)
            _allocate(invoker, leased, options, progress)
        warn_of_cold_imports(invoker, leased)
        lease = Lease(self, invoker, functions)
        if share_arrays and functions.origin is not OWN:
            lease.close()
            # It could write into the replies of other leases, which are unpickled.
            raise _errors.InvalidArgument(f"share_arrays=True is only allowed for your own packages, and package {lease.package} is another tenant's")
        return lease

    def _allocate_own(self, invoker, imports, path, place, progress, options):
        """Leases cores for functions of this program, in the place: an environment, an image, or neither."""
        environment, image = place
        if image is not None:
            with _package.deployable(imports, path, image=_environment.pinned(image)) as folder:
                return _allocate(invoker, folder, options, progress)
        address = None if environment is None else environment._deployed(self._invoker, self._managers, progress)[1]
        # In an environment functions see its modules alone.
        visible = self._visible if environment is None else ()
        try:
            with _package.deployable(imports, path, address, visible) as folder:
                return _allocate(invoker, folder, options, progress)
        except _errors.Error as error:
            if error.code != "unknown_package" or environment is None or not environment._forget(self._managers):
                raise
        # It was removed from the managers since this process made it.
        address = environment._deployed(self._invoker, self._managers, progress)[1]
        with _package.deployable(imports, path, address) as folder:
            _allocate(invoker, folder, options, progress)

    def memory(
        self,
        initial=None,
        increment=None,
        limit=None,
        *,
        timeout=None,
        wait=None,
        cache=None,
        line=None,
        near=None,
        fabric=None,
        pool=None,
    ):
        """Creates a memory component, whose first access leases its first segment; returns a `Memory`.

        Args:
            initial: Size of the first segment, in bytes or as `"64MiB"`. The default is 16 MiB.
            increment: Size of each further segment. The default is 16 MiB.
            limit: Maximum size. The default is 1 TiB.
            timeout: Duration of a segment's lease in seconds. `renew` extends it.
            wait: Maximum time to wait for capacity for each segment, in seconds. The default is 0.
            cache: Size of the cache for other machines. The default is 64 MiB. Without a cache (0), `write` returns
                when the other machine has the bytes.
            line: Size of a cache line, a power of two. The default is 4 KiB.
            near: Names of preferred nodes, in this order.
            fabric: `"shm"`, `"tcp"` or `"tcp+tls"`. The default is shared memory on this machine, and TCP elsewhere.
            pool: Use only nodes of this pool: `"compute"`, `"memory"`, `"balanced"` or `"flash"`. By default the memory
                pool is preferred. In the flash pool the bytes are on disks: read and written over TCP, and not mapped.
        """
        _process.check()
        sizes = {"initial": initial, "increment": increment, "limit": limit, "cache": cache, "line": line}
        options = {f"{name}_bytes": None if size is None else bytes_of(size) for name, size in sizes.items()}
        return Memory(self._invoker.memory(**options, timeout=timeout, wait=wait, near=near, fabric=fabric, pool=pool))

    def deploy(
        self,
        graph,
        *,
        imports=(),
        path=None,
        patience=None,
        retries=None,
        prewarm=0,
        keep_alive=None,
        hot_timeout=None,
        lease_timeout=None,
        fabric=None,
    ):
        """Deploys a graph of compute and memory components; returns an `Application`.

        Args:
            graph: Document of the graph: a dict, JSON, or the path of a file. In a dict, a component's `function` may
                be a callable of this program. It needs no `package`, gets a `memoryview`, and returns bytes or None.
            imports: Modules that the workers of such functions import ahead of time.
            path: Files and folders of modules to send along with them. See `lease`.
            patience: Maximum time that a component waits for cores or memory, in seconds. The default is 30.
            retries: Maximum number of restarts of a lost component. The default is 3.
            prewarm: Time in seconds after the start of a component until the environments of its successors are
                prepared. With `None` they are prepared when the successors start.
            keep_alive: Time that idle workers are kept for the next run, in seconds. The default is 0.
            hot_timeout: Time that workers poll after a call, in seconds. The default is 0.
            lease_timeout: Maximum duration of a run's leases, in seconds. The default is an hour.
            fabric: Fabric for calls, and for memory of other machines: `"shm"`, `"tcp"`, `"tcp+tls"` or another one of
                the nodes. The default is the best one.
        """
        _process.check()
        options = _run_options(patience, retries, prewarm, keep_alive, hot_timeout, lease_timeout, fabric)
        return _application.deploy(self._invoker, graph, options, imports, path)

    def application(
        self,
        name,
        *,
        patience=None,
        retries=None,
        prewarm=0,
        keep_alive=None,
        hot_timeout=None,
        lease_timeout=None,
        fabric=None,
    ):
        """Opens a deployed graph by its name or digest; returns an `Application`. The options are those of `deploy`."""
        _process.check()
        options = _run_options(patience, retries, prewarm, keep_alive, hot_timeout, lease_timeout, fabric)
        return _application.Application(self._invoker.open_graph(name, **options))

    def run(self, id):
        """Returns the `Run` of this identifier, to wait for it, cancel it, or read its log."""
        _process.check()
        return _application.Run(self._invoker.open_run(id))

    @property
    def managers(self):
        """Addresses of the managers, in the form of `$SUBLET_MANAGER`; None for the default."""
        return self._managers

    def bill(self, lease=None):
        """Returns the usage and costs, as a `Bill`, of all leases that this client may see, or of the lease of this id."""
        return Bill(self._invoker.bill(lease))

    def pus(self):
        """Returns the processing units of the managers' nodes as a list of `ProcessingUnit`, for each node its processor first."""
        return listed(self._invoker.pus())

    __reduce__ = _process.stays_here("a client", "lease from there")

    def __repr__(self):
        return "<sublet client>"


def _needs(variables, secrets, folders, temporary):
    """Returns the options of a lease for variables, secrets, folders and temporary space, without those that are not set."""
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _errors.InvalidArgument(f"the environment variable {name!r} is not set to text: write env={{{str(name)!r}: '...'}}")
    if secrets is not None and not isinstance(secrets, Mapping):
        secrets = {name: name for name in _names("secrets", secrets)}
    needs = {
        "variables": variables or None,
        "secrets": dict(secrets) if secrets else None,
        "folders": _names("folders", folders) if folders else None,
        "temporary_bytes": None if temporary is None else bytes_of(temporary),
    }
    return {name: value for name, value in needs.items() if value is not None}


def _devices(devices, gpus):
    """Returns the option of a lease for devices, if there are any."""
    if devices is not None and not isinstance(devices, Mapping):
        raise _errors.InvalidArgument(f"devices={devices!r} is not a dict of kinds and numbers: write devices={{'cuda': 1}}")
    counts = {**(devices or {}), **({} if gpus is None else {"gpu": gpus})}
    for kind, count in counts.items():
        if not isinstance(kind, str) or isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 1 << 32:
            raise _errors.InvalidArgument(f"{count!r} devices of the kind {kind!r} cannot be leased: write devices={{'cuda': 1}}")
    return {"devices": counts} if counts else {}


def _names(what, names):
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise _errors.InvalidArgument(f"{what}={names!r} is not a list of names: write {what}=['name']")
    return list(names)


def _allocate(invoker, package, options, progress):
    """Leases the cores; if necessary, releases the idle leases that this process keeps."""
    with _environment.shown(progress) as step:
        options = dict(options, progress=step)
        if not _kept.is_empty():
            try:
                return invoker.allocate(package, **dict(options, wait=None))
            except _errors.NoCapacity:
                _kept.release()
        invoker.allocate(package, **options)


def _run_options(patience, retries, prewarm, keep_alive, hot_timeout, lease_timeout, fabric):
    return {
        "patience": patience,
        "retries": retries,
        "prewarm": prewarm,
        "keep_alive": keep_alive,
        "hot_timeout": hot_timeout,
        "lease_timeout": lease_timeout,
        "fabric": fabric,
    }


_default = None
_making = threading.Lock()


def default_client():
    """Returns the client of this process, which is created at its first use."""
    global _default
    with _making:
        if _default is None:
            _default = Client()
        return _default


def set_default(client):
    """Sets the default client; returns the previous one."""
    global _default
    with _making:
        before, _default = _default, client
        return before


def lease(*args, **kwargs):
    """Calls `Client.lease` of the default client: `$SUBLET_MANAGER`, or this machine's own `sublet up`."""
    return default_client().lease(*args, **kwargs)


def memory(*args, **kwargs):
    """Calls `Client.memory` of the default client."""
    return default_client().memory(*args, **kwargs)


def run(id):
    """Calls `Client.run` of the default client."""
    return default_client().run(id)


def pus():
    """Calls `Client.pus` of the default client."""
    return default_client().pus()


# Functions to call at the end of the interpreter, after all leases have ended.
_last = []


def at_end(stop):
    """Registers a function to call at the end of the interpreter, after all leases were closed."""
    _last.append(stop)


def not_at_end(stop):
    """Removes a function registered by `at_end`."""
    if stop in _last:
        _last.remove(stop)


@atexit.register
def _at_exit():
    if _process.is_forked():
        return
    close_all()
    _completer.stop()
    for stop in list(reversed(_last)):
        stop()
