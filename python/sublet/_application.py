"""Applications of several components: deployed graphs and their runs."""

import json
import os
import tempfile
from pathlib import Path

from . import _errors, _failure, _kept, _modules, _package, _process
from ._component import Memory


class Outcome:
    """Outcome of a run."""

    def __init__(self, run, outputs, components, value=None, result=None):
        #: The run's identifier, for `sublet graph history`.
        self.run = run
        #: Outputs of the components that trigger no other: for each name a list with the bytes of each instance.
        self.outputs = outputs
        #: Resources of each component, as a dict: `component`, `attempts`, `instances`, `cores`, `begin_us`, `end_us`, `allocated_bytes`,
        #: `used_bytes`, `allocated_byte_us`, `used_byte_us`, `cpu_ns`, and `channels`. Each channel is a dict of what the component's
        #: functions moved: `memory`, `reads`, `read_bytes`, `writes`, `written_bytes`, `maps`, `mapped_bytes`. Its `memory` is the name
        #: of a memory component, `"a~b"` for messages from `a` to `b`, or `"c/swap"` for the swap space of `c`.
        self.components = components
        #: Result of a compiled application.
        self.value = value
        #: The memory component that the graph declares as the result, as a `Memory`; `None` without one. It is given back when
        #: it is released or no longer referred to, and ends by itself after the application's `lease_timeout`.
        self.result = result

    @property
    def output(self):
        """Output of the last component, if it is a single one with one instance."""
        found = [output for outputs in self.outputs.values() for output in outputs]
        if len(found) != 1:
            raise _errors.InvalidArgument(f"the run has {len(found)} outputs: use `outputs`")
        return found[0]

    def __repr__(self):
        return f"<outcome of sublet run {self.run}>"


class Application:
    """A deployed graph, which can be run any number of times, by several threads at once. Created by `Client.deploy` and
    `Client.application`.
    """

    def __init__(self, native, own=()):
        self._native = native
        # Components whose functions are this program's: their pickles may be loaded.
        self._own = frozenset(own)

    @property
    def digest(self):
        """Digest of the document, which `Client.application` also accepts."""
        return self._native.digest

    @property
    def graph(self):
        """Document of the graph, with defaults filled in."""
        return json.loads(self._native.document)

    def run(self, input=b"", news=None, contents=None):
        """Runs the graph with this input for its entry; returns an `Outcome`.

        Args:
            input: An object with the buffer protocol. It has at most 256 KiB.
            news: Function that is called for events: `("began", component, attempt)`, `("ended", component, seconds)`,
                `("waits", component, exception)` if the component waits for resources, `("lost", component, exception)` if its
                worker or its memory is lost, and `("failed", component, exception)`. A failure ends the run.
                If the function raises, the run is abandoned.
            contents: Input that is larger: a dict of the bytes that memory components begin with, by their names, each an object with
                the buffer protocol. A run that still needs them cannot be resumed:
                [`resume`][sublet.Application.resume] then raises `WorkerDied`.

        Raises:
            Exception: The exception of a component's function in Python, after its output was printed. It is raised as for a call
                if the function is this program's, by `app` or as a callable of the graph. Pickles of other packages are not loaded:
                their exceptions become a `RemoteError` that is also an instance of the nearest builtin class.
            FunctionFailed: A component in another language has failed.
        """
        _process.check()
        _kept.release()
        return self._ran(news, lambda heard: self._native.run(_bytes_of(input), heard, list((contents or {}).items())))

    def resume(self, run, news=None):
        """Continues a run whose client is gone, by its identifier, from its records. Waits for some seconds if that client may
        still be there.

        Raises:
            Error: `run_taken` if another process drives the run.
            InvalidArgument: It is a run of another graph.
            WorkerDied: A component with external effects had begun, or the run needs `contents` that only its client had.
        """
        _process.check()
        _kept.release()
        return self._ran(news, lambda heard: self._native.resume(run, heard))

    def detach(self, input=b""):
        """Begins a run that does not depend on this program, with this input for its entry; returns a `Run`.

        A runner drives it, as of `sublet up` or `sublet runner`: it continues if this program ends, and if a runner, a manager or a node
        does. The graph may not declare a memory component as its result.
        """
        _process.check()
        return Run(self._native.detach(_bytes_of(input)))

    def _ran(self, news, run):
        news = _failure.News(news, self._own)
        try:
            return _outcome(run(news))
        except _errors.Error as error:
            failed = news.raised_for(error)
            if failed is error:
                raise
        raise failed

    __reduce__ = _process.stays_here("an application", "run it there")

    def __repr__(self):
        return f"<sublet application {self.graph['name']}>"


class Run:
    """A run that another process drives. Created by `Application.detach`, `Client.run` and `run`."""

    def __init__(self, native):
        self._native = native

    @property
    def id(self):
        """The run's identifier, for `Client.run` and `sublet graph wait`."""
        return self._native.id

    def wait(self, timeout=None):
        """Waits until the run has ended, at most this many seconds; returns its `Outcome`.

        Raises:
            DeadlineExceeded: The run has not ended in time. It continues.
            FunctionFailed: The function of a component has failed, in any language.
            Error: The run has failed otherwise, with its code: `run_cancelled` if it was cancelled.
        """
        _process.check()
        return _outcome(self._native.wait(timeout))

    def cancel(self):
        """Ends the run before it is done. Its cores and memory are given back within about a second."""
        _process.check()
        self._native.cancel()

    def logs(self):
        """Returns the latest events of the run, at most 128, as a list of dicts with `at` in seconds since 1970, `component` and `text`.
        Events of the run itself have the component None."""
        _process.check()
        return [{"at": at / 1000, "component": component or None, "text": text} for at, component, text in self._native.logs()]

    __reduce__ = _process.stays_here("a run", "pass its `id`, and use `sublet.run(id)` there")

    def __repr__(self):
        return f"<sublet run {self.id}>"


def _bytes_of(input):
    """Returns a copy of a buffer. A number or a list, of which `bytes` makes something else, is a `TypeError`."""
    return input if type(input) is bytes else memoryview(input).tobytes()


def _outcome(ran):
    run, outputs, components, result = ran
    return Outcome(run, dict(outputs), components, result=None if result is None else Memory(result[1]))


def document_of(graph):
    """Returns a graph as a dict, from a dict, JSON, or the path of a file."""
    if isinstance(graph, os.PathLike):
        graph = Path(graph).read_text()
    if isinstance(graph, (bytes, bytearray)):
        graph = graph.decode()
    if isinstance(graph, str):
        text = graph if graph.lstrip().startswith("{") else Path(graph).read_text()
        try:
            graph = json.loads(text)
        except ValueError as error:
            raise _errors.InvalidArgument(f"the graph is not valid JSON: {error}") from error
    return graph


def with_functions(invoker, graph, imports, path):
    """Deploys the callables of a graph as a package; returns the graph with that package's functions, and their components."""
    components = graph.get("components") if isinstance(graph, dict) else None
    found = [part for part in components or () if isinstance(part, dict) and callable(part.get("function"))]
    if not found:
        return graph, ()
    names, functions = {}, {}
    for part in found:
        name = names[id(part)] = _package.identifier(str(part.get("name")), functions)
        functions[name] = part["function"]
    with tempfile.TemporaryDirectory(prefix="sublet-graph-") as folder:
        named = _package.globals_of(sorted(functions), functions.__getitem__)
        _package.write_components(folder, "functions", _package.checked_imports(imports), _modules.selected(path), sorted(functions))
        _package.write_values(folder, named.values)
        (Path(folder) / _package.COMPONENTS).write_text("\n".join(named.lines()) + "\n")
        package = invoker.deploy(folder)
    replaced = [{**part, "package": package, "function": names[id(part)]} if id(part) in names else part for part in components]
    return {**graph, "components": replaced}, [part["name"] for part in found]


def deploy(invoker, graph, options, imports=(), path=None, own=()):
    """Deploys a graph. The functions of the components `own`, besides its callables, are this program's."""
    graph, callables = with_functions(invoker, document_of(graph), imports, path)
    return Application(invoker.deploy_graph(json.dumps(graph).encode(), **options), [*own, *callables])
