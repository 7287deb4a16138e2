"""Applications that are written as one function."""

import contextlib
import copy
import functools
import inspect
import json
import shutil
import tempfile
import threading
import types
from pathlib import Path

from . import _application, _calls, _client, _errors, _foreign, _modules, _package
from ._bundle import Bundle
from .components import CALLER, State, message_of, received

# Name of the graph's file in the folder of an application.
GRAPH = "graph.json"


class App:
    """A function that is executed as a graph of components. Created by `app` and by `load_app`.

    A call runs the graph on leased cores, and returns the function's result.
    """

    def __init__(self, name, write, graph, source, function=None):
        self._name = name
        # Writes the files that the components need, besides their source, into a folder.
        self._write_rest = write
        self._graph = graph
        self._source = source
        self._function = function
        self._client = None
        self._news = None
        self._options = {}
        self._deployed = None
        self._deploying = threading.Lock()

    @property
    def graph(self):
        """Document of the graph, a dict. Changes apply to the next run. The package of its name is the application's."""
        return self._graph

    @graph.setter
    def graph(self, graph):
        self._graph = _application.document_of(graph)

    @property
    def source(self):
        """Source of the components' functions. It may be set for the next run."""
        if callable(self._source):
            self._source = self._source()
        return self._source

    @source.setter
    def source(self, source):
        compile(source, _package.COMPONENTS, "exec")
        self._source = source

    def options(self, client=None, news=None, **options):
        """Returns a function that runs the application with these options.

        Args:
            client: Client whose managers are used; without it the default client.
            news: Function that is called for events; see `Application.run`.
            **options: Options of `Client.deploy`, as `patience` or `keep_alive`.

        Examples:
            >>> regression.options(keep_alive=60)(table)
        """
        made = copy.copy(self)
        made._client, made._news, made._options = client or self._client, news or self._news, {**self._options, **options}
        made._graph, made._source = copy.deepcopy(self.graph), self.source
        made._deployed, made._deploying = None, threading.Lock()
        return made

    def local(self, *args, **kwargs):
        """Calls the function itself in this process. An application that was loaded has none."""
        if self._function is None:
            raise _errors.InvalidArgument(f"{self._name} was loaded, and has only its components: the original function cannot be called")
        return self._function(*args, **kwargs)

    def __call__(self, *args, **kwargs):
        return self.run(*args, **kwargs).value

    def run(self, *args, **kwargs):
        """Runs the application as a call does; returns an `Outcome` with the `value` and the usage of each component."""
        if self._function is not None:
            bound = inspect.signature(self._function).bind(*args, **kwargs)
            bound.apply_defaults()
            args, kwargs = bound.args, bound.kwargs
        entry = next((part["function"] for part in self.graph["components"] if part.get("entry")), None)
        message, contents = message_of((args, kwargs), self._access(), entry, self._branches())
        outcome = self.deploy().run(message, self._news, contents)
        origin = self._origin()
        state = State.of(outcome.output, origin.load)
        if state.printed:
            origin.show_entries(state.printed)
        if state.returned is None:
            raise _errors.InvalidArgument(f"the last component of {self._name} returns no result")
        outcome.value = self._received(outcome, state.returned) if isinstance(state.returned, Bundle) else origin.load(state.returned)
        return outcome

    def _received(self, outcome, returned):
        """Loads a result from the memory component that has it, and gives that back."""
        memory, outcome.result = outcome.result, None
        if memory is None:
            raise _errors.InvalidArgument(f"the result of {self._name} is in no memory component: give the graph one with `result`")
        with memory:
            return received(returned, memory)

    def _origin(self):
        """How the result is read: a component of another package may have written it, or data that it was made from."""
        packages = {str(part.get("package")) for part in self.graph["components"] if part.get("type") != "memory"} - {self._name}
        if not packages:
            return _calls.OWN
        return _foreign.Foreign(f"application {self._name} with package {' and '.join(sorted(packages))}")

    def _access(self):
        """The memory components that each function accesses."""
        functions = {part["name"]: part["function"] for part in self.graph["components"] if part.get("type") == "compute"}
        access = {}
        for edge in self.graph.get("edges", ()):
            if edge.get("type") == "access" and edge.get("from") in functions:
                access.setdefault(functions[edge["from"]], []).append(edge["to"])
        results = [part["name"] for part in self.graph["components"] if part.get("type") == "memory" and part.get("result")]
        if results:
            access[CALLER] = results
        return access

    def _branches(self):
        """The functions of components that trigger another one together, with their numbers in the order of the edges."""
        functions = {part["name"]: part["function"] for part in self.graph["components"] if part.get("type") == "compute"}
        before, chosen = {}, set()
        for edge in self.graph.get("edges", ()):
            if edge.get("type") == "trigger" and edge.get("from") in functions:
                before.setdefault(edge["to"], []).append(functions[edge["from"]])
                if "when" in edge or "otherwise" in edge:
                    # One of these components is chosen, and only that one is executed.
                    chosen.add(edge["to"])
        joined = [together for to, together in before.items() if len(together) > 1 and to not in chosen]
        return {function: number for together in joined for number, function in enumerate(together)}

    def deploy(self):
        """Deploys the current graph, if the managers do not have it; returns its `Application`."""
        client = self._client or _client.default_client()
        said = json.dumps(self.graph, sort_keys=True), self.source
        with self._deploying:
            if self._deployed is None or self._deployed[0] is not client or self._deployed[1] != said:
                self._deployed = client, said, self._deploy(client._invoker)
            return self._deployed[2]

    def _deploy(self, invoker):
        with tempfile.TemporaryDirectory(prefix="sublet-app-") as folder:
            self._write(folder)
            package = invoker.deploy(folder)
        graph = copy.deepcopy(self.graph)
        own = [part for part in graph["components"] if part.get("package") == self._name]
        for part in own:
            part["package"] = package
        return _application.deploy(invoker, graph, self._options, own=[part["name"] for part in own])

    def _write(self, folder):
        functions = [part["function"] for part in self.graph["components"] if part.get("package") == self._name]
        self._write_rest(folder, list(dict.fromkeys(functions)))
        (Path(folder) / _package.COMPONENTS).write_text(self.source)

    def save(self, folder):
        """Writes the application into a new folder: `graph.json`, `sublet_components.py`, and the files they need. Both may be edited: see `load_app`.

        The folder is also a package for `sublet deploy`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True)
        self._write(folder)
        (folder / GRAPH).write_text(json.dumps(self.graph, indent=2) + "\n")

    def __repr__(self):
        return f"<sublet app {self._name}>"


def app(function=None, *, name=None, imports=(), path=None):
    """Decorator that compiles a function to a graph of components, split at its calls of `split`.

    Args:
        name: Name of the application; without it the function's name.
        imports: Modules that workers import ahead of time.
        path: Files and folders of modules to send along; see `Client.lease`.

    Raises `SyntaxError`, with the place and the reason, if the function cannot be compiled.

    Examples:
        >>> @sublet.app
        ... def report(path):
        ...     table = load(path)
        ...     sublet.split("count")
        ...     return table.sum(axis=0)
        >>> report("table.csv")
    """
    if function is None:
        return functools.partial(app, name=name, imports=imports, path=path)
    if type(function) is not types.FunctionType or hasattr(function, "__wrapped__") or function.__name__ == "<lambda>":
        raise _errors.InvalidArgument(f"{function!r} is not a plain function: `app` has to be the first decorator of a function")
    # Imported here, so that only programs that compile pay for it.
    from ._compile import Compiled

    compiled = Compiled(function, name)
    listed = _package.checked_imports(imports)
    named = functools.lru_cache(maxsize=None)(lambda: _package.globals_of(compiled.names(), compiled.source.value))

    def write(folder, functions):
        _package.write_components(folder, compiled.name, listed, _modules.selected(path), functions)
        _package.write_values(folder, named().values)

    made = App(compiled.name, write, compiled.graph(compiled.name), lambda: compiled.text(named()), function)
    # Last: this copies the function's attributes.
    return functools.update_wrapper(made, function)


def load_app(folder):
    """Loads an application that `App.save` has written, with later changes in its folder."""
    folder = Path(folder)
    try:
        graph, source = _application.document_of(folder / GRAPH), (folder / _package.COMPONENTS).read_text()
    except FileNotFoundError as error:
        raise _errors.InvalidArgument(f"{folder} is not a folder of an application: it has no {Path(error.filename).name}") from None
    compile(source, str(folder / _package.COMPONENTS), "exec")
    imports = _imports(folder)

    def write(target, functions):
        shutil.copytree(folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(GRAPH, "__pycache__"))
        _package.write_functions(target, graph["name"], imports, functions)

    return App(graph["name"], write, graph, source)


def _imports(folder):
    """The imports of an application's package."""
    with contextlib.suppress(FileNotFoundError, StopIteration):
        line = next(line for line in (folder / "sublet.toml").read_text().splitlines() if line.startswith("imports = "))
        return json.loads(line.partition("=")[2])
    return []
