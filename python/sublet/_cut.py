"""Cuts the body of an application's function into parts: at its splits, its blocks of `parallel`, and at branches with splits."""

import ast

from ._flow import Flow, Refused
from ._split import parallel, split

_OPTIONS = ("name", "parallelism", "cores", "memory", "pu", "external_effects", "swap")
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)


class Part:
    """The statements between two splits."""

    def __init__(self, statements, options, node, block=None):
        self.statements = statements
        #: Options of the call of `split`.
        self.options = options
        #: Syntax node at which the part begins.
        self.node = node
        #: Block of parts that are executed at the same time, if it is in one.
        self.block = block
        self.flow = Flow(statements)
        #: Conditions, of which the first that holds chooses the part that is executed next.
        self.conditions = ()
        #: Variable that is the number of instances of the next part.
        self.counts = None
        #: Parts that trigger this one, each with the number of its condition; None without conditions, -1 if none of them holds.
        self.triggers = []
        #: Parts from which execution continues here, if the parts of blocks are taken in their order.
        self.before = []
        #: Name of the function that the part becomes.
        self.name = None
        #: Variables that the part gets, those of them that may have no value, and those that it returns.
        self.gets = ()
        self.perhaps = frozenset()
        self.leaves = ()
        #: Whether the part surely changes nothing of what it gets.
        self.only_reads = False

    def choose(self, conditions):
        """Makes the part evaluate conditions at its end."""
        self.conditions = conditions
        self.flow = Flow([*self.statements, *(ast.copy_location(ast.Expr(condition), condition) for condition in conditions)])


class Cut:
    """The parts of a function's body, in the order of the source."""

    def __init__(self, source, node):
        self._source = source
        self.parts = []
        body = list(node.body)
        if ast.get_docstring(node, clean=False) is not None:
            body = body[1:]
        # The part that is being read, and what triggers it.
        self._statements, self._options, self._begin = [], {}, node
        self._triggers, self._before = [], []
        self._chain(body)
        for part in self.parts:
            self._count(part)

    def _count(self, part):
        """Makes the part before one whose number of instances is the value of a variable evaluate that at its end."""
        said = part.options.get("parallelism", 1)
        if not isinstance(said, dict):
            return
        if not {"from", "limit"} <= said.keys() <= {"from", "limit", "bytes_each"} or type(said["from"]) is not str:
            text = 'parallelism is a number, or {"from": the name of a variable, "limit": a number}, perhaps with "bytes_each"'
            raise Refused(part.node, text)
        if "bytes_each" in said:
            return
        name = said["from"]
        if [condition for _, condition in part.triggers] != [None]:
            raise Refused(part.node, f"parallelism follows from {name}, so exactly one component has to be before: add a split")
        before = part.triggers[0][0]
        if before.options.get("parallelism", 1) != 1:
            raise Refused(part.node, f"parallelism follows from {name}, so the component before has one instance: add a split")
        before.counts = name
        read = ast.copy_location(ast.Expr(ast.copy_location(ast.Name(name, ast.Load()), part.node)), part.node)
        before.flow = Flow([*before.statements, read])

    def _chain(self, body):
        """Cuts statements into parts one after the other; the last one triggers what follows."""
        first = self._begin
        for statement in body:
            called = self._split_of(statement)
            if self._is_parallel(statement):
                self._fork(statement)
            elif isinstance(statement, ast.If) and self._has_splits(statement):
                self._choose(statement)
            elif called is None:
                self._check_no_split(statement)
                self._statements.append(statement)
            else:
                if self._statements:
                    self._end()
                elif self._begin is not first and not isinstance(self._begin, (ast.With, ast.If)):
                    raise Refused(statement, "there is nothing between this split and the one before")
                self._statements, self._options, self._begin = [], self._options_of(called), statement
        if not self._statements:
            what = {ast.With: "block", ast.If: "`if`"}.get(type(self._begin), "split")
            is_empty = isinstance(self._begin, ast.FunctionDef)
            raise Refused(self._begin, "there is nothing to be executed here" if is_empty else f"there is nothing behind this {what}")
        return self._end()

    def _end(self, block=None):
        """Ends the part that is being read; the next one is triggered by it."""
        part = Part(self._statements, self._options, self._begin, block)
        part.triggers, part.before = self._triggers, self._before
        self.parts.append(part)
        self._statements, self._options = [], {}
        self._triggers, self._before = [(part, None)], [part]
        return part

    def _fork(self, block):
        """Cuts a block of parts that are executed at the same time."""
        if not self._statements:
            raise Refused(block, "there is nothing to be executed before this block")
        triggers = [(self._end(), None)]
        parts, self._begin = [], block.body[0]
        for statement in block.body:
            called = self._split_of(statement)
            if called is None:
                self._check_no_split(statement)
                self._statements.append(statement)
                continue
            if self._statements:
                self._triggers = triggers
                parts.append(self._end(block))
            elif statement is not block.body[0]:
                raise Refused(statement, "there is nothing between this split and the one before")
            self._options, self._begin = self._options_of(called), statement
        if not self._statements:
            raise Refused(self._begin, "there is nothing behind this split")
        self._triggers = triggers
        parts.append(self._end(block))
        if len(parts) == 1:
            raise Refused(block, "a block of one component: nothing is executed at the same time")
        self._triggers, self._begin = [(part, None) for part in parts], block

    def _choose(self, statement):
        """Cuts the branches of an `if`, of which one is executed."""
        if not self._statements:
            raise Refused(statement, "there is nothing to be executed before this `if`, whose branches have splits")
        conditions, bodies, otherwise = [], [], [statement]
        while len(otherwise) == 1 and isinstance(otherwise[0], ast.If):
            conditions.append(otherwise[0].test)
            bodies.append(otherwise[0].body)
            otherwise = otherwise[0].orelse
        for condition in conditions:
            self._check_no_split(condition)
        chooses = self._end()
        chooses.choose(conditions)
        triggers, before = [(chooses, -1)], [] if otherwise else [chooses]
        for number, body in enumerate([*bodies, *([otherwise] if otherwise else [])]):
            self._triggers, self._before, self._begin = [(chooses, number)], [chooses], statement
            last = self._chain(body)
            triggers.append((last, None))
            before.append(last)
        if otherwise:
            # The last branch has a number as the others: a result that was returned before triggers none of them.
            chooses.conditions = [*conditions, ast.Constant(True)]
        self._triggers, self._before, self._begin = triggers, before, statement

    def _has_splits(self, statement):
        """Whether a branch of an `if` has a split among its statements, or among those of a further `if` in it."""
        inner = [*statement.body, *statement.orelse]
        return any(self._split_of(one) is not None or (isinstance(one, ast.If) and self._has_splits(one)) for one in inner)

    def _is_parallel(self, statement):
        """Whether a statement is `with sublet.parallel():`."""
        if not isinstance(statement, ast.With):
            return False
        called = [item.context_expr for item in statement.items]
        if not any(isinstance(node, ast.Call) and self._is(node.func, parallel) for node in called):
            return False
        if len(called) > 1 or called[0].args or called[0].keywords or statement.items[0].optional_vars is not None:
            raise Refused(statement, "`with sublet.parallel():` has no arguments, and is alone")
        return True

    def _is(self, node, function):
        """Whether an expression is the name of this function."""
        try:
            if isinstance(node, ast.Name):
                return self._source.value(node.id) is function
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                return getattr(self._source.value(node.value.id), node.attr, None) is function
        except KeyError:
            pass
        return False

    def _split_of(self, statement):
        """The call, if a statement is a split."""
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and self._is(statement.value.func, split):
            return statement.value
        return None

    def _check_no_split(self, statement):
        for node in ast.walk(statement):
            if isinstance(node, (ast.Name, ast.Attribute)) and self._is(node, parallel):
                raise Refused(node, "a block of parallel components has to be a statement of the function's own body")
            if isinstance(node, (ast.Name, ast.Attribute)) and self._is(node, split):
                around = next((kind for kind in _BLOCKS if isinstance(statement, kind)), None)
                if around is not None:
                    raise Refused(node, f"a split within `{around.__name__.lower()}`: it has to be a statement of the function's own body")
                raise Refused(node, "a split has to be a statement of the function's own body")

    def _options_of(self, call):
        """Returns the options of a split, whose values must be known when the application is compiled."""
        found = {}
        if len(call.args) > 1 or any(isinstance(argument, ast.Starred) for argument in call.args):
            raise Refused(call, "a split has one positional argument, the component's name")
        named = [("name", argument) for argument in call.args] + [(said.arg, said.value) for said in call.keywords]
        for name, expression in named:
            if name not in _OPTIONS or name in found:
                raise Refused(expression, f"a split has no option {name}, or has it twice" if name else "the options of a split have to be named")
            found[name] = self._known_now(expression, name)
        return found

    def _known_now(self, expression, name):
        names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
        space = {"__builtins__": {}}
        for used in names:
            try:
                space[used] = self._source.value(used)
            except KeyError:
                raise Refused(expression, f"{name} of a split has to be known before the application runs, and {used} is not") from None
        try:
            return eval(compile(ast.Expression(expression), self._source.file, "eval"), space)
        except Exception as error:
            raise Refused(expression, f"{name} of a split has to be known before the application runs: {error}") from None
