"""Clients: who leases, from which managers."""

import atexit
import os
import re
import sys
import threading

from . import _application, _errors, _kept, _native, _package, _process
from ._bill import Bill
from ._calls import OWN, Completer, Functions
from ._component import Memory
from ._lease import Lease, close_all
from ._pus import listed
from ._warning import warn_of_cold_imports

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_completer = Completer(_native.Queue)


def bytes_of(size):
    """A size in bytes: a number, or as `512MiB`."""
    if isinstance(size, int):
        return size
    matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", str(size))
    if matched is None:
        raise _errors.InvalidArgument(f"{size!r} is no size: say it in bytes, or as '512MiB'")
    return int(float(matched[1]) * _UNITS[matched[2]])


class Client:
    """A client of managers.

    Args:
        managers: Their addresses, separated by commas, as `https://host:7433` or `unix:/run/sublet/manager.sock`; without this
            those of `$SUBLET_MANAGER`, or this machine's own `sublet up`.
        ca_file: The certificate of the authority to trust, where `$SUBLET_CA` does not say it.
        token: Who one is, where `$SUBLET_TOKEN` does not say it.
        token_file: A file with that, where `$SUBLET_TOKEN_FILE` does not say it.
    """

    def __init__(self, managers=None, *, ca_file=None, token=None, token_file=None):
        _process.check()
        if managers is None and "sublet_worker" in sys.modules and not os.environ.get("SUBLET_MANAGER"):
            raise _errors.InvalidArgument(
                "a function on a worker has no manager: lease from the program that calls it, or name the managers, "
                "as sublet.Client('https://host:7433')"
            )
        self._invoker = _native.Invoker.connect(managers, ca_file=ca_file, token=token, token_file=token_file)
        self._completer = _completer
        self._managers = managers

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
        initializer=None,
        initargs=(),
        share_arrays=None,
        **more,
    ):
        """Leases cores and starts a worker on each; a context manager.

        Args:
            package: Whose functions are called: the name of one that is deployed (the caller's own, or else a public one),
                `"tenant/name"` of one that another tenant has granted, or the path of one (its folder, or a shared object),
                which begins with `/` or `.` or ends with `.so` or `.wasm`. Without it, functions of this program: callables, which are sent.
            cores: How many workers, on as many nodes as that takes.
            memory: Of all of them together, in bytes or as `"2GiB"`.
            timeout: Seconds after which the lease ends by itself; `renew` puts it off.
            wait: Seconds that are waited for capacity; without it, not at all.
            policy: How workers wait for calls: `"hot"` polls always, `"warm"` sleeps always, a number of seconds polls for so long
                after each call. Without it, 1 ms.
            imports: Modules that workers are to have imported: those that are asked for often are kept warm on the nodes. A
                `ColdImportWarning` names one that cannot be.
            path: Files and folders of modules that are sent to the workers. Without it, all that were imported here and are of no
                environment.
            environment: Environment variables of the functions.
            initializer: What each worker calls before its first function.
            initargs: The arguments of that.
            share_arrays: Whether workers on this machine use registered arrays where they are. With `False` they reach nothing of this
                program but the messages of their own calls, and all arrays are copied: for functions that are not trusted. Without it,
                `True` for functions of this program and for packages by their paths, and `False` for packages by their names, which may
                be another tenant's. `True` is refused for a package that is.
            **more: `shared=True`, `max_nodes`, `idle_timeout`, `pu`, `fabric`, `interface`, `pool`, `slots`, `slot_bytes`,
                `spin`; `time_weight`: where the package has several kinds of processing units to be executed on, how much the time
                counts that its work takes, beside what it costs, from 0, the price alone, to 1, the time alone.
        """
        _process.check()
        functions = Functions(environment, initializer, initargs)
        # Workers of another machine have copies of all that they reach, in the memory of their lease.
        is_shared = package is None or _package.is_path(package) if share_arrays is None else share_arrays
        is_near = is_shared and more.get("fabric") in (None, "auto", "shm") and self._invoker.has_near_nodes()
        invoker = self._invoker.another(is_near)
        options = dict(more, cores=cores, timeout=timeout, wait=wait, policy=policy)
        if memory is not None:
            options["memory_bytes"] = bytes_of(memory)
        if package is None:
            imports = leased = tuple(_package.checked_imports(imports))
            with _package.deployable(imports, path) as folder:
                _allocate(invoker, folder, options)
        else:
            leased = _package.named(package)
            _allocate(invoker, leased, options)
        warn_of_cold_imports(invoker, leased)
        lease = Lease(self, invoker, functions)
        if share_arrays and functions.origin is not OWN:
            lease.close()
            # It could write into the replies of other leases, which are unpickled.
            raise _errors.InvalidArgument(f"share_arrays=True is for your own packages, and package {lease.package} is another tenant's")
        return lease

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
        """A memory component, which leases nothing before its first access: a `Memory`.

        Args:
            initial: How much the first segment has, in bytes or as `"64MiB"`; 16 MiB if nothing is said.
            increment: How much each further segment has; 16 MiB.
            limit: How large it may become; 1 TiB.
            timeout: Seconds after which a segment ends by itself; `renew` puts it off.
            wait: Seconds that are waited for capacity, for each segment; without it, not at all.
            cache: How much of what is on other machines is kept here; 64 MiB. With 0 nothing is, and what was written is there when
                `write` returns.
            line: The lines of that, a power of two; 4 KiB.
            near: Names of nodes: rather on one of these, the first with room, than on others.
            fabric: `"shm"`, `"tcp"` or `"tcp+tls"`; without it shared memory on this machine, and TCP elsewhere.
            pool: `"compute"`, `"memory"` or `"balanced"`: on nodes of this pool and on no others; without it, rather on those of the
                memory pool.
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
        """Gives the managers a graph of compute and memory components, to be run: an `Application`.

        Args:
            graph: Its document: a dict, JSON, or the path of a file. In a dict, a component's `function` may be a callable of this
                program, and then it needs no `package`: it gets a `memoryview`, and returns bytes or nothing.
            imports: Modules that the workers of such functions are to have imported.
            path: Files and folders of modules that are sent along with them; see `lease`.
            patience: Seconds that a component waits for cores or memory; 30.
            retries: How often a component may be lost and begin again; 3.
            prewarm: Environments of the next components are made ready so many seconds after those before them have begun. `None`: when
                they begin.
            keep_alive: For how many seconds workers are kept for the next run; not at all.
            hot_timeout: How many seconds workers poll after a call; not at all.
            lease_timeout: No lease of a run lasts longer, in seconds; an hour.
            fabric: What carries calls, and the bytes of memory to and from other machines: `"shm"`, `"tcp"`, `"tcp+tls"` or another
                network that the nodes have; without it the best.
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
        """Opens a graph that was deployed, by its name or digest: an `Application`. The options are those of `deploy`."""
        _process.check()
        options = _run_options(patience, retries, prewarm, keep_alive, hot_timeout, lease_timeout, fabric)
        return _application.Application(self._invoker.open_graph(name, **options))

    @property
    def managers(self):
        """The addresses of the managers, as `$SUBLET_MANAGER` takes them; None if that, or this machine's own `sublet up`, is meant."""
        return self._managers

    def bill(self, lease=None):
        """What has been used and what it costs: a `Bill` of all leases that this client may see, or of the one of this id."""
        return Bill(self._invoker.bill(lease))

    def pus(self):
        """The processing units of the managers' nodes, of each its processor first: a list of `ProcessingUnit`."""
        return listed(self._invoker.pus())

    __reduce__ = _process.stays_here("a client", "lease from there")

    def __repr__(self):
        return "<sublet client>"


def _allocate(invoker, package, options):
    """Leases the cores, and gives back for that what this process only keeps."""
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
    """The client of this process that is made when one is first needed."""
    global _default
    with _making:
        if _default is None:
            _default = Client()
        return _default


def set_default(client):
    """Makes another client the default one; returns the one before."""
    global _default
    with _making:
        before, _default = _default, client
        return before


def lease(*args, **kwargs):
    """As `Client.lease`, of the default client: `$SUBLET_MANAGER`, or this machine's own `sublet up`."""
    return default_client().lease(*args, **kwargs)


def memory(*args, **kwargs):
    """As `Client.memory`, of the default client."""
    return default_client().memory(*args, **kwargs)


def pus():
    """As `Client.pus`, of the default client."""
    return default_client().pus()


# What ends after all leases, at the end of the interpreter.
_last = []


def at_end(stop):
    """Has this called at the end of the interpreter, after all leases have been closed."""
    _last.append(stop)


def not_at_end(stop):
    """Has it not called any more."""
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
