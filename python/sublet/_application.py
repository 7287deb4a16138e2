"""Applications of several components: graphs, deployed, and their runs."""

import json
import os
import tempfile
from pathlib import Path

from . import _errors, _failure, _kept, _modules, _package, _process


class Outcome:
    """What a run has come to."""

    def __init__(self, run, outputs, components, value=None):
        #: The run's identifier, for `sublet graph history`.
        self.run = run
        #: Of each component that triggers no other, by its name, what each of its instances returned: a list of bytes.
        self.outputs = outputs
        #: What each component had, each a dict: `component`, `attempts`, `instances`, `begin_us`, `end_us`, `allocated_bytes`,
        #: `used_bytes`, `allocated_byte_us`, `used_byte_us`.
        self.components = components
        #: What a compiled application has returned.
        self.value = value

    @property
    def output(self):
        """What the last component returned, if it is one with one instance."""
        found = [output for outputs in self.outputs.values() for output in outputs]
        if len(found) != 1:
            raise _errors.InvalidArgument(f"the run has {len(found)} outputs: see `outputs`")
        return found[0]

    def __repr__(self):
        return f"<outcome of sublet run {self.run}>"


class Application:
    """A deployed graph, to be run any number of times, and by several threads at once. Made by `Client.deploy` and
    `Client.application`.
    """

    def __init__(self, native, own=()):
        self._native = native
        # Of which components the functions are this program's: what they pickle may be loaded.
        self._own = frozenset(own)

    @property
    def digest(self):
        """Of its document: `Client.application` takes it, too."""
        return self._native.digest

    @property
    def graph(self):
        """Its document, with what was left out filled in."""
        return json.loads(self._native.document)

    def run(self, input=b"", news=None):
        """Runs it, with this input of its entry; returns an `Outcome`.

        Args:
            input: Whatever has the buffer protocol.
            news: What is called with what happens: `("began", component, attempt)`, `("ended", component, seconds)`,
                `("waits", component, exception)` with what it waits for to begin, `("lost", component, exception)` if what executed
                it, or its memory, is gone, and `("failed", component, exception)` if its function has failed, which ends the run. If
                it raises, the run is given up.

        Raises:
            Exception: What a component's function in Python has raised, after what had been printed. It is as that of a call if the
                component's function is this program's, by `app` or as a callable of the graph; of other packages nothing that was
                pickled is loaded, and it is a `RemoteError` that is also of the nearest builtin class.
            FunctionFailed: A component in another language has failed.
        """
        _process.check()
        _kept.release()
        return self._ran(news, lambda heard: self._native.run(bytes(input), heard))

    def resume(self, run, news=None):
        """Goes on with a run whose client is gone, by its identifier: from what was recorded. Nobody else may do so at the same time."""
        _process.check()
        _kept.release()
        return self._ran(news, lambda heard: self._native.resume(run, heard))

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


def _outcome(ran):
    run, outputs, components = ran
    return Outcome(run, dict(outputs), components)


def document_of(graph):
    """A graph as a dict, from whatever says it: a dict, JSON, or the path of a file with it."""
    if isinstance(graph, os.PathLike):
        graph = Path(graph).read_text()
    if isinstance(graph, (bytes, bytearray)):
        graph = graph.decode()
    if isinstance(graph, str):
        text = graph if graph.lstrip().startswith("{") else Path(graph).read_text()
        try:
            graph = json.loads(text)
        except ValueError as error:
            raise _errors.InvalidArgument(f"the graph is no JSON: {error}") from error
    return graph


def with_functions(invoker, graph, imports, path):
    """The graph with what it has in place of callables: functions of a package, which is deployed; and the components that have them."""
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
    """Gives a graph to the managers. The functions of the components `own`, beside its callables, are this program's."""
    graph, callables = with_functions(invoker, document_of(graph), imports, path)
    return Application(invoker.deploy_graph(json.dumps(graph).encode(), **options), [*own, *callables])
