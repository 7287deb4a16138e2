"""Finds the variables that statements read and set, without executing a function.

- *read*: may be read before it was set by these statements, so that its value comes from before them;
- *set*: has a value after them on every way through;
- *changed*: may have been set, or deleted, by them.

More may be read, and less set, than really is: then more is handed on than needed.
"""

import ast

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Functions that read or set variables other than by name: with any arguments, or only without arguments.
_BY_NAME = frozenset(["locals", "eval", "exec"])
_BY_NAME_ALONE = frozenset(["vars", "dir", "super"])


class Refused(Exception):
    """Something that cannot be compiled: where, and why."""

    def __init__(self, node, why):
        super().__init__(why)
        self.node = node
        self.why = why


class Captured:
    """A function within that refers to variables of the one that is compiled: when it is called, not when it is made."""

    def __init__(self, node, names):
        self.node = node
        self.names = names


class Flow:
    """The effects of consecutive statements on variables."""

    def __init__(self, statements):
        self.read = set()
        self.changed = set()
        #: Variables that may have no value any more.
        self.deleted = set()
        #: Every name that is read anywhere. A name that is no variable is a global.
        self.named = set()
        #: Nested functions that refer to variables of the function around them.
        self.captured = []
        # The names that comprehensions around an expression have for themselves.
        self._own = frozenset()
        ends = self._block(statements, set())
        #: Whether execution never gets to the end.
        self.never_ends = ends is None
        self.set = set() if ends is None else ends

    # Statements. Each gives the variables that are set behind it, of those that were before it; None if nothing is behind it.

    def _block(self, statements, known):
        for statement in statements:
            if known is None:
                # Never executed; what it names may still be wanted.
                known = set()
                self._statement(statement, known)
                known = None
                continue
            known = self._statement(statement, known)
        return known

    def _statement(self, node, known):
        handler = getattr(self, "_" + type(node).__name__, None)
        if handler is not None:
            return handler(node, known)
        # Those that are nothing but expressions.
        for child in ast.iter_child_nodes(node):
            self._expression(child, known)
        return known

    def _Assign(self, node, known):
        self._expression(node.value, known)
        for target in node.targets:
            known = self._target(target, known)
        return known

    def _AugAssign(self, node, known):
        if isinstance(node.target, ast.Name):
            self._name(node.target.id, known)
        self._expression(node.value, known)
        return self._target(node.target, known)

    def _AnnAssign(self, node, known):
        if node.value is None:
            return known
        self._expression(node.value, known)
        return self._target(node.target, known)

    def _For(self, node, known):
        self._expression(node.iter, known)
        _, gone = self._apart(node.body, self._target(node.target, known))
        return self._behind_loop(node, known - gone)

    def _While(self, node, known):
        self._expression(node.test, known)
        _, gone = self._apart(node.body, known)
        after = self._behind_loop(node, known - gone)
        is_for_ever = isinstance(node.test, ast.Constant) and node.test.value and not _breaks(node.body)
        return None if is_for_ever else after

    def _behind_loop(self, node, known):
        ends = self._block(node.orelse, known)
        # By a break it gets past that.
        return known if ends is None else known & ends

    def _apart(self, statements, known):
        """Returns the variables set after statements that may not all be executed, and those that may have lost their
        value.
        """
        around, self.deleted = self.deleted, set()
        ends = self._block(statements, known)
        gone = self.deleted
        self.deleted = around | gone
        return ends, gone

    def _If(self, node, known):
        self._expression(node.test, known)
        return _both(self._block(node.body, known), self._block(node.orelse, known))

    def _With(self, node, known):
        for item in node.items:
            self._expression(item.context_expr, known)
            if item.optional_vars is not None:
                known = self._target(item.optional_vars, known)
        # Execution may continue after the block if its context manager suppresses an exception.
        _, gone = self._apart(node.body, known)
        return known - gone

    def _Try(self, node, known):
        after, gone = self._apart(node.body, known)
        caught = known - gone
        otherwise, more = self._apart(node.orelse, caught if after is None else after)
        after, gone = None if after is None else otherwise, gone | more
        for handler in node.handlers:
            ends, more = self._handler(handler, caught)
            after, gone = _both(after, ends), gone | more
        known = known - gone
        last, more = self._apart(node.finalbody, known)
        return None if after is None or last is None else (after | (last - known)) - more

    def _handler(self, handler, known):
        if handler.type is not None:
            self._expression(handler.type, known)
        if handler.name is None:
            return self._apart(handler.body, known)
        self.changed.add(handler.name)
        self.deleted.add(handler.name)
        ends, gone = self._apart(handler.body, known | {handler.name})
        return None if ends is None else ends - {handler.name}, gone | {handler.name}

    _TryStar = _Try

    def _Match(self, node, known):
        self._expression(node.subject, known)
        after, is_sure = None, False
        for case in node.cases:
            inside = self._pattern(case.pattern, known)
            if case.guard is not None:
                self._expression(case.guard, inside)
            is_sure = case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            after = _both(after, self._block(case.body, inside))
        return after if is_sure else _both(after, known)

    def _pattern(self, node, known):
        for child in ast.walk(node):
            for name in (getattr(child, "name", None), getattr(child, "rest", None)):
                if isinstance(name, str):
                    known = self._bind(name, known)
            if isinstance(child, ast.expr):
                self._expression(child, known)
        return known

    def _Return(self, node, known):
        if node.value is not None:
            self._expression(node.value, known)
        return None

    def _Raise(self, node, known):
        for child in ast.iter_child_nodes(node):
            self._expression(child, known)
        return None

    def _Break(self, node, known):
        return None

    _Continue = _Break

    def _Import(self, node, known):
        for alias in node.names:
            known = self._bind(alias.asname or alias.name.partition(".")[0], known)
        return known

    _ImportFrom = _Import

    def _Delete(self, node, known):
        targets = list(node.targets)
        while targets:
            target = targets.pop(0)
            if isinstance(target, (ast.Tuple, ast.List)):
                targets[:0] = target.elts
            elif isinstance(target, ast.Name):
                self._name(target.id, known)
                self.changed.add(target.id)
                self.deleted.add(target.id)
                known = known - {target.id}
            else:
                self._expression(target, known)
        return known

    def _TypeAlias(self, node, known):
        own = {parameter.name for parameter in node.type_params}
        for name in ast.walk(node.value):
            if isinstance(name, ast.Name) and name.id not in own:
                self._name(name.id, known)
        return self._bind(node.name.id, known)

    def _FunctionDef(self, node, known):
        for expression in (*node.decorator_list, *_defaults(node.args), *_annotations(node)):
            self._expression(expression, known)
        self._within(node, known | {node.name})
        return self._bind(node.name, known)

    def _AsyncFunctionDef(self, node, known):
        return self._FunctionDef(node, known)

    def _ClassDef(self, node, known):
        for expression in (*node.decorator_list, *node.bases, *node.keywords):
            self._expression(expression, known)
        self._within(node, known)
        return self._bind(node.name, known)

    def _Global(self, node, known):
        raise Refused(node, f"{' and '.join(node.names)} is set for the whole module, which components of several processes do not share")

    def _Nonlocal(self, node, known):
        raise Refused(node, f"{' and '.join(node.names)} is set for the function around it, which components of several processes do not share")

    def _AsyncFor(self, node, known):
        raise Refused(node, "an application is no coroutine")

    _AsyncWith = _AsyncFor

    # Expressions.

    def _expression(self, node, known):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self._name(node.id, known)
        elif isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise Refused(node, "an application is neither a generator nor a coroutine")
        elif isinstance(node, ast.NamedExpr):
            self._expression(node.value, known)
            # Perhaps: it may stand where it is not evaluated.
            self.changed.add(node.target.id)
        elif isinstance(node, ast.Lambda):
            for expression in _defaults(node.args):
                self._expression(expression, known)
            self._within(node, known)
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node, known)
        else:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self._check_called(node, node.func.id)
            for child in ast.iter_child_nodes(node):
                self._expression(child, known)

    def _comprehension(self, node, known):
        self._expression(node.generators[0].iter, known)
        own = set()
        for generator in node.generators:
            own |= {name.id for name in ast.walk(generator.target) if isinstance(name, ast.Name)}
        inner = self._visible(known) | own
        around, self._own = self._own, self._own | own
        for number, generator in enumerate(node.generators):
            if number > 0:
                self._expression(generator.iter, inner)
            for condition in generator.ifs:
                self._expression(condition, inner)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._expression(part, inner)
        self._own = around

    def _check_called(self, node, name):
        if name in _BY_NAME or (name in _BY_NAME_ALONE and not node.args):
            raise Refused(node, f"{name}() refers to variables without naming them")

    def _within(self, node, known):
        """A function or class within: the names from around it are read when it is called, which may be at once."""
        names = _free(node)
        self.captured.append(Captured(node, names))
        for name in names:
            self._name(name, self._visible(known))

    def _visible(self, known):
        """Returns the variables that functions and comprehensions within can refer to."""
        return known

    def _target(self, node, known):
        if isinstance(node, ast.Name):
            return self._bind(node.id, known)
        if isinstance(node, ast.Starred):
            return self._target(node.value, known)
        if isinstance(node, (ast.Tuple, ast.List)):
            for element in node.elts:
                known = self._target(element, known)
            return known
        self._expression(node, known)
        return known

    def _bind(self, name, known):
        self.changed.add(name)
        return known | {name}

    def _name(self, name, known):
        if name in self._own:
            return
        self.named.add(name)
        if name not in known:
            self.read.add(name)


def _both(one, other):
    """Returns the variables set on both paths. None stands for a path that execution never leaves at its end."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _defaults(arguments):
    return [default for default in (*arguments.defaults, *arguments.kw_defaults) if default is not None]


def _annotations(node):
    """Returns the annotations of a function, which are evaluated when the function is defined, or not at all."""
    arguments = node.args
    own = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    found = [argument.annotation for argument in own if argument is not None] + [node.returns]
    return [annotation for annotation in found if annotation is not None]


def _breaks(statements):
    """Whether a loop with this body may be left: loops within have their own."""
    for statement in statements:
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, (ast.For, ast.While, *_SCOPES, ast.ClassDef)):
            if _breaks(getattr(statement, "orelse", ())):
                return True
            continue
        if any(_breaks(getattr(statement, part, ())) for part in ("body", "orelse", "finalbody")):
            return True
        within = [*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())]
        if any(_breaks(part.body) for part in within):
            return True
    return False


def _free(node):
    """The names that a function or class reads from around it."""
    if isinstance(node, ast.ClassDef):
        return _ClassBody(node.body).read
    arguments = node.args
    own = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    own |= {argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None}
    body = [ast.Expr(node.body)] if isinstance(node, ast.Lambda) else node.body
    inner = _Within(body)
    return inner.named - own - inner.changed


class _ClassBody(Flow):
    """The body of a class, whose variables its functions and comprehensions do not see: these see those around the class."""

    def _visible(self, known):
        return set()


class _Within(Flow):
    """A function within, which may be a generator or a coroutine."""

    def _expression(self, node, known):
        if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            for child in ast.iter_child_nodes(node):
                self._expression(child, known)
        else:
            super()._expression(node, known)

    def _check_called(self, node, name):
        pass

    def _AsyncFor(self, node, known):
        return self._For(node, known)

    def _AsyncWith(self, node, known):
        return self._With(node, known)
