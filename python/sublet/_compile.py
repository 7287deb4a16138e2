"""Compiles the function of an application to its graph and the source of its components (Scad 3.2).

The body is cut at its calls of `sublet.split`. Each part becomes a function. Its parameters are the variables that it
reads and that earlier parts have set; it returns the variables that later parts read. A variable that is handed on gets
a memory component of its name, which the parts that get or return the variable access. A variable that is annotated as
a plain number needs no memory component.

Statements stay as they are written, with their comments; only `return` is replaced. The compiler refuses, with its
place in the source, any cut that would change what the program means.
"""

import __future__

import ast
import copy
import inspect
import re
import sys
import textwrap
import types

from . import _errors, _package
from ._cut import Cut
from ._flow import Refused
from ._reads import only_reads
from ._regions import REMOTE
from ._sizes import bytes_of
from .components import ARGUMENTS, choice

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
# Annotations of what is never so large that it needs memory of its own.
_PLAIN = frozenset(["bool", "int", "float", "complex"])
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Function:
    """A function and its source, with file and lines."""

    def __init__(self, function):
        self.function = function
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError) as error:
            name = getattr(function, "__qualname__", repr(function))
            raise _errors.InvalidArgument(f"the source of {name} cannot be read, and it is compiled from that: {error}") from error
        self.file = inspect.getsourcefile(function) or function.__code__.co_filename
        # One that stands within another is parsed as it stands: what is in its strings is not indentation.
        is_within = lines[0][:1].isspace()
        self.lines = ["if True:\n", *lines] if is_within else lines
        self.first = first - 1 if is_within else first
        (found,) = ast.parse("".join(self.lines)).body
        self.node = found.body[0] if is_within else found

    def refusal(self, node, why):
        """The exception that names a place in the file."""
        line = min(node.lineno, len(self.lines))
        text = self.lines[line - 1].rstrip("\n")
        return SyntaxError(why, (self.file, self.first + line - 1, node.col_offset + 1, text))

    def value(self, name):
        """Returns the value of a name that the function reads and that is not one of its local variables."""
        code = self.function.__code__
        if name in code.co_freevars:
            try:
                return self.function.__closure__[code.co_freevars.index(name)].cell_contents
            except ValueError:
                raise KeyError(name) from None
        return self.function.__globals__[name]


class Compiled:
    """The parts of a function, and how they are related. `source` is the function's, perhaps with other statements."""

    def __init__(self, function, name=None, source=None):
        self.source = source or Function(function)
        self.name = name or function.__name__
        node = self.source.node
        try:
            if not isinstance(node, ast.FunctionDef):
                raise Refused(node, "an application is a function, and no coroutine" if "Async" in type(node).__name__ else "an application is a def")
            self.parts = Cut(self.source, node).parts
            self._relate(node)
        except Refused as refused:
            raise self.source.refusal(refused.node, refused.why) from None

    def _names_place(self, part):
        """Whether a part names a place of remote arrays, or a function that one decorates."""
        for statement in (*part.statements, *part.conditions):
            for node in ast.walk(statement):
                if isinstance(node, (ast.Name, ast.Attribute)) and _is_place(self._value(node)):
                    return True
        return False

    def _value(self, node):
        """The value of a global, or of a module's attribute, as it is now; None without one."""
        try:
            if isinstance(node, ast.Name):
                return None if node.id in self.variables else self.source.value(node.id)
            if isinstance(node.value, ast.Name) and node.value.id not in self.variables:
                module = self.source.value(node.value.id)
                return getattr(module, node.attr, None) if isinstance(module, types.ModuleType) else None
        except (KeyError, ImportError):
            pass
        return None

    def _global(self, name):
        """The value of a global; None for a variable."""
        return None if name in self.variables else self.source.value(name)

    # Relating.

    def _relate(self, node):
        parts = self.parts
        parameters = _parameters(node.args)
        self.plain = {argument.arg for argument in _arguments(node.args) if _is_plain(argument.annotation)}
        annotated = [found for found in _own(node) if isinstance(found, ast.AnnAssign) and isinstance(found.target, ast.Name)]
        self.plain |= {found.target.id for found in annotated if _is_plain(found.annotation)}
        self._name_parts(node)
        maybe, surely, live = self._lives(set(parameters))
        for number, part in enumerate(parts):
            flow, out = part.flow, live[part]
            gets = flow.read & maybe[part]
            # A part that sets a variable only in some cases also gets it, and otherwise hands it on unchanged.
            gets |= {name for name in out & flow.changed - flow.set if name in maybe[part]}
            part.gets = tuple(sorted(gets))
            part.perhaps = frozenset(gets - surely[part])
            known = gets | flow.changed | (set(parameters) if number == 0 else set())
            part.leaves = tuple(sorted(out & known))
            part.unsure = frozenset(part.leaves) - ((surely[part] - flow.deleted) | flow.set)
            self._check_captured(number)
            self._check_parallel(number)
            part.only_reads = number > 0 and only_reads([*part.statements, *part.conditions], gets - self.plain, self._global)
        for block in {id(part.block): part.block for part in parts if part.block is not None}.values():
            self._check_block(block, live)
        self.handed_on = sorted({name for part in parts for name in part.leaves})
        for name in self.handed_on:
            if _NAME.fullmatch(name) is None:
                raise Refused(node, f"the variable {name!r} is handed on, and no memory component can have its name")
        self.memories = [name for name in self.handed_on if name not in self.plain]
        self.result = None if _is_plain(node.returns) else self._memory_name(".result")
        is_plain = all(name in self.plain for name in parameters)
        self.arguments = None if is_plain else self._memory_name(ARGUMENTS)
        for name in self.memories:
            if any(part.component == name for part in parts):
                raise Refused(node, f"a component and a variable that is handed on are both called {name}: give one another name")

    def _memory_name(self, what):
        """The name of a memory component for what is too large for a message. No variable has such a name."""
        # The end of the name tells its purpose, so no other part of the name may be the same.
        name = f"{self.name[:40].replace('.', '_')}{what}"
        while any(part.component == name for part in self.parts):
            name += "_"
        return name

    def _may_return(self, number):
        """Whether a part may return a large result. One that cannot be executed again does not share memory with later parts for that."""
        part = self.parts[number]
        if number == len(self.parts) - 1:
            return True
        returns = any(next(_returns(statement), None) is not None for statement in part.statements)
        return returns and not part.options.get("external_effects")

    def _name_parts(self, node):
        if _NAME.fullmatch(self.name) is None:
            raise Refused(node, f"no application can be called {self.name!r}")
        taken = {part.options.get("name") for part in self.parts}
        for number, part in enumerate(self.parts, 1):
            said = part.options.get("name")
            if said is None:
                said = f"{self.name}_{number}"
                while said in taken:
                    said += "_"
                taken.add(said)
            if not isinstance(said, str) or _NAME.fullmatch(said) is None:
                raise Refused(part.node, f"no component can be called {said!r}")
            if said in (before.component for before in self.parts[: number - 1]):
                raise Refused(part.node, f"two components are called {said}")
            part.component = said
        # The functions of the generated source need names that differ from all names that the source uses.
        named = set(_parameters(node.args)).union(*(part.flow.named | part.flow.changed for part in self.parts))
        for part in self.parts:
            part.name = _package.identifier(part.component, named)
            named.add(part.name)
        self.helpers = {helper: _package.identifier(helper, named) for helper in ("choice", "component", "counted", "result", "unbound")}

    def _check_captured(self, number):
        """Refuses functions that refer to a variable set behind a split: they would see an old value."""
        later = set().union(*(part.flow.changed for part in self.parts[number + 1 :]))
        for captured in self.parts[number].flow.captured:
            both = captured.names & later
            if both:
                name = min(both)
                raise Refused(captured.node, f"{name}, to which this refers, is set behind a split: pass it as an argument")

    def _check_parallel(self, number):
        part = self.parts[number]
        cores = part.options.get("cores", 1)
        if type(cores) is not int or not 1 <= cores <= 1024:
            raise Refused(part.node, f"cores is {cores!r}: a number from 1 to 1024 was expected")
        parallelism = part.options.get("parallelism", 1)
        if isinstance(parallelism, dict):
            self._check_counted(part, parallelism["from"], parallelism["limit"], parallelism.get("bytes_each"))
        elif type(parallelism) is not int or not 1 <= parallelism <= 1024:
            raise Refused(part.node, f"parallelism is {parallelism!r}: a number from 1 to 1024 was expected")
        if parallelism == 1:
            return
        if part.conditions:
            raise Refused(part.node, "a component of several instances is before an `if` whose branches have splits: split between them")
        if number == len(self.parts) - 1:
            raise Refused(part.node, "the last component has several instances: split behind it, so that one continues when all are done")
        for statement in part.statements:
            returned = next(_returns(statement), None)
            if returned is not None:
                raise Refused(returned, f"each of the {parallelism} instances would return: split before")
        changed = sorted(set(part.leaves) & part.flow.changed)
        if changed:
            name = changed[0]
            place = next((found for statement in part.statements for found in ast.walk(statement) if _sets(found, name)), part.node)
            raise Refused(place, f"each of the {parallelism} instances sets {name}, which is read behind the next split: let them write to the elements of an array")

    def _check_counted(self, part, name, limit, bytes_each):
        """Checks a number of instances that follows from the variable of this name."""
        if type(limit) is not int or not 1 <= limit <= 1024:
            raise Refused(part.node, f"the limit of parallelism is {limit!r}: a number from 1 to 1024 was expected")
        if name not in self.variables:
            raise Refused(part.node, f"parallelism follows from {name}, which is no variable of {self.name}")
        if bytes_each is None:
            return
        if name in self.plain or name not in part.gets:
            raise Refused(part.node, f"parallelism follows from the memory of {name}, which the component has to get from before: use {name} in it")
        try:
            is_positive = bytes_of(bytes_each) > 0
        except _errors.InvalidArgument as error:
            raise Refused(part.node, f"bytes_each of parallelism: {error}") from None
        if not is_positive:
            raise Refused(part.node, f"bytes_each of parallelism is {bytes_each!r}: a size of at least 1 byte was expected")

    def _lives(self, parameters):
        """For each part the variables that may have a value before it, those that surely have one, and those that are read behind it."""
        maybe, surely = {}, {}
        for part in self.parts:
            before = [(maybe[one] | one.flow.changed, (surely[one] - one.flow.deleted) | one.flow.set) for one in part.before]
            before = before or [(parameters, parameters)]
            maybe[part] = set().union(*(values for values, _ in before))
            surely[part] = set.intersection(*(set(values) for _, values in before))
        self.variables = parameters.union(*(part.flow.changed for part in self.parts))
        live = {part: set() for part in self.parts}
        for part in reversed(self.parts):
            needed = (part.flow.read | (live[part] - part.flow.set)) & maybe[part]
            for one in part.before:
                live[one] |= needed
        return maybe, surely, live

    def _check_block(self, block, live):
        """Refuses parts that are not independent of those that are executed at the same time."""
        numbers = [number for number, part in enumerate(self.parts) if part.block is block]
        behind = live[self.parts[numbers[-1]]]
        for number in numbers:
            part = self.parts[number]
            returned = next((found for statement in part.statements for found in _returns(statement)), None)
            if returned is not None:
                raise Refused(returned, "a component returns, while others are executed at the same time: split before")
            if part.options.get("parallelism", 1) != 1:
                raise Refused(part.node, "a component that is executed at the same time as others has one instance")
            lost = sorted(part.flow.deleted & behind)
            if lost:
                raise Refused(part.node, f"{lost[0]} may be deleted here, and is read behind the block")
            for other in (self.parts[index] for index in numbers if index != number):
                both = sorted(part.flow.changed & (other.flow.read | (other.flow.changed & behind)))
                if both:
                    does = "reads" if both[0] in other.flow.read else "sets"
                    raise Refused(part.node, f"component {part.component} sets {both[0]}, which {other.component} {does} at the same time")
            part.leaves = tuple(name for name in part.leaves if name in part.flow.changed)

    # Results of the compilation.

    def graph(self, package):
        """The graph's document."""
        components, edges = [], []
        for number, part in enumerate(self.parts):
            said = part.options
            component = {"name": part.component, "type": "compute", "package": package, "function": part.name}
            if number == 0:
                component["entry"] = True
            parallelism = _parallelism(part)
            if parallelism != 1:
                component["parallelism"] = parallelism
            if said.get("external_effects"):
                component["external_effects"] = True
            sizes = {field: said.get(option) for field, option in (("memory_bytes", "memory"), ("swap_bytes", "swap"))}
            sizes = {field: None if size is None else bytes_of(size) for field, size in sizes.items()}
            cores = said.get("cores", 1)
            resources = {"cores": cores if cores > 1 else None, "memory_bytes": sizes["memory_bytes"], "pu": said.get("pu"), "swap_bytes": sizes["swap_bytes"]}
            resources = {name: value for name, value in resources.items() if value is not None}
            if resources:
                component["resources"] = resources
            components.append(component)
            for before, condition in part.triggers:
                edges.append({"type": "trigger", "from": before.component, "to": part.component, **_fires(condition)})
        for name in self.memories:
            components.append({"name": name, "type": "memory"})
            for number, part in enumerate(self.parts):
                if name in part.leaves or (number > 0 and name in part.gets):
                    rights = "read" if part.only_reads and name not in part.leaves else "write"
                    edges.append({"type": "access", "from": part.component, "to": name, "rights": rights})
        placed = next((number for number, part in enumerate(self.parts) if self._names_place(part)), len(self.parts))
        if placed < len(self.parts):
            name = self._memory_name(REMOTE)
            components.append({"name": name, "type": "memory"})
            # Later parts may get the arrays.
            edges += [{"type": "access", "from": part.component, "to": name, "rights": "write"} for part in self.parts[placed:]]
        if self.arguments is not None:
            components.append({"name": self.arguments, "type": "memory"})
            edges.append({"type": "access", "from": self.parts[0].component, "to": self.arguments, "rights": "write"})
        if self.result is not None:
            components.append({"name": self.result, "type": "memory", "result": True})
            returning = [part for number, part in enumerate(self.parts) if self._may_return(number)]
            edges += [{"type": "access", "from": part.component, "to": self.result, "rights": "write"} for part in returning]
        return {"version": 1, "name": self.name, "components": components, "edges": edges}

    def names(self):
        """The names that are no variables: globals, or what the function closes over, or builtins."""
        named = set().union(*(part.flow.named for part in self.parts))
        for default in (*self.source.node.args.defaults, *self.source.node.args.kw_defaults):
            named |= {node.id for node in ast.walk(default) if isinstance(node, ast.Name)} if default is not None else set()
        return sorted(named - self.variables)

    def text(self, named):
        """The source of the components, which come so to what they name."""
        used = {"choice": any(part.conditions for part in self.parts), "component": True, "counted": any(part.counts for part in self.parts)}
        used |= {"result": True, "unbound": any(part.perhaps for part in self.parts)}
        uses = [use for use, is_used in used.items() if is_used]
        uses = [f"{use} as {self.helpers[use]}" if self.helpers[use] != use else use for use in uses]
        where = f"{self.source.file.rpartition('/')[2]}, line {self.source.first + self.source.node.lineno - 1}"
        head = [f'"""The components of {self.name}, compiled from {where}. graph.json says how they are related."""', ""]
        if self.source.function.__code__.co_flags & __future__.annotations.compiler_flag:
            head += ["from __future__ import annotations", ""]
        head += named.lines([f"from sublet.components import {', '.join(uses)}"])
        functions = [self._function(number) for number in range(len(self.parts))]
        return "\n\n\n".join(["\n".join(head), *functions]) + "\n"

    def _function(self, number):
        part, unbound = self.parts[number], self.helpers["unbound"]
        if number == 0:
            arguments = _without_annotations(self.source.node.args)
            signature = ast.unparse(arguments)
        else:
            names = [f"{name}={unbound}" if name in part.perhaps else name for name in part.gets]
            signature = ", ".join(["*", *names] if names else [])
        lines = [f"@{self.helpers['component']}\ndef {part.name}({signature}):"]
        for name in sorted(part.perhaps) if number > 0 else ():
            lines.append(f"    if {name} is {unbound}:\n        del {name}")
        lines.append(self._body(part).rstrip("\n"))
        if not part.flow.never_ends:
            lines.append(self._leave(number))
        return "\n".join(lines)

    def _leave(self, number):
        part = self.parts[number]
        if number == len(self.parts) - 1:
            return f"    return {self.helpers['result']}(None)"
        if not part.unsure.isdisjoint(part.leaves):
            listed = ", ".join(map(repr, part.leaves))
            left = f"{{name: value for name, value in locals().items() if name in ({listed},)}}"
        else:
            left = "{" + ", ".join(f'"{name}": {name}' for name in part.leaves) + "}"
        if part.counts is not None:
            return f"    return {self.helpers['counted']}({part.counts}, {left})"
        if not part.conditions:
            return f"    return {left}"
        chosen = "".join(f"{number} if {ast.unparse(condition)} else " for number, condition in enumerate(part.conditions))
        return f"    return {self.helpers['choice']}({chosen}-1, {left})"

    def _body(self, part):
        """The statements as they were written, if that can be done, with their comments."""
        expected = [ast.dump(self._with_results(statement)) for statement in part.statements]
        try:
            text = self._written(part)
            made = ast.parse("def f():\n" + text).body[0].body
            if [ast.dump(statement) for statement in made] == expected:
                return text
        except (SyntaxError, IndexError):
            # It is written in another form.
            pass
        made = [ast.fix_missing_locations(self._with_results(statement)) for statement in part.statements]
        return textwrap.indent("\n".join(ast.unparse(statement) for statement in made), "    ")

    def _with_results(self, statement):
        return _Results(self.helpers["result"]).visit(copy.deepcopy(statement))

    def _written(self, part):
        """The lines of the statements, with another `return`."""
        result = self.helpers["result"].encode()
        first, last = part.statements[0], part.statements[-1]
        begin = min([first.lineno, *(decorator.lineno for decorator in getattr(first, "decorator_list", ()))])
        # Comments before the first statement belong to it.
        while begin >= 2 and self.source.lines[begin - 2].lstrip().startswith("#"):
            begin -= 1
        lines = [line.encode() for line in self.source.lines[begin - 1 : last.end_lineno]]
        returns = [node for statement in part.statements for node in _returns(statement)]
        for node in sorted(returns, key=lambda node: (node.lineno, node.col_offset), reverse=True):
            if node.value is None:
                at, line = node.end_col_offset, node.lineno - begin
                lines[line] = lines[line][:at] + b" " + result + b"(None)" + lines[line][at:]
                continue
            opening, closing = (b"((", b"))") if isinstance(node.value, ast.Tuple) else (b"(", b")")
            at, line = node.value.end_col_offset, node.value.end_lineno - begin
            lines[line] = lines[line][:at] + closing + lines[line][at:]
            at, line = node.value.col_offset, node.value.lineno - begin
            lines[line] = lines[line][:at] + result + opening + lines[line][at:]
        text = b"".join(lines).decode()
        width = first.col_offset
        if width == 4:
            return text
        return textwrap.indent(textwrap.dedent(text), "    ")


def _arguments(arguments):
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return found + [argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None]


def _parameters(arguments):
    return [argument.arg for argument in _arguments(arguments)]


def _parallelism(part):
    """The number of a part's instances, or what it follows from, as the field of its component."""
    said = part.options.get("parallelism", 1)
    if not isinstance(said, dict):
        return said
    if "bytes_each" in said:
        return {"from": said["from"], "bytes_each": bytes_of(said["bytes_each"]), "limit": said["limit"]}
    return {"from": part.triggers[0][0].component, "limit": said["limit"]}


def _fires(condition):
    """When a trigger fires, as the fields of its edge."""
    if condition is None:
        return {}
    return {"otherwise": True} if condition < 0 else {"when": choice.text(condition)}


def _is_place(value):
    """Whether a value is a place of remote arrays, or a function that one decorates."""
    module = sys.modules.get("sublet._remote.place")
    if isinstance(value, types.FunctionType):
        value = vars(value).get("sublet_place")
    return module is not None and isinstance(value, module.Remote)


def _is_plain(annotation):
    return isinstance(annotation, ast.Name) and annotation.id in _PLAIN


def _without_annotations(arguments):
    arguments = copy.deepcopy(arguments)
    for argument in _arguments(arguments):
        argument.annotation = None
    return arguments


def _own(node):
    """The nodes below a function or statement, without those of functions and classes within."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _own(child)


def _returns(statement):
    """The returns of the function itself."""
    if isinstance(statement, ast.Return):
        return iter([statement])
    return (found for found in ([] if isinstance(statement, _SCOPES) else _own(statement)) if isinstance(found, ast.Return))


def _sets(node, name):
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)


class _Results(ast.NodeTransformer):
    """Each `return` of the function itself returns a result."""

    def __init__(self, result):
        self._result = result

    def visit_Return(self, node):
        value = node.value if node.value is not None else ast.Constant(None)
        return ast.Return(ast.Call(ast.Name(self._result, ast.Load()), [value], []))

    def visit_FunctionDef(self, node):
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = visit_FunctionDef
