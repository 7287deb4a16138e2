"""Applications with blocks and branches at random: their parts, by the graph, come to the same as the whole."""

import collections
import inspect

import sublet
from sublet import components
from writer import Writer, ended


class Blocks(Writer):
    """Writes programs with blocks, whose parts mostly set different variables, and with branches that have splits."""

    names = "abcde"

    def name(self):
        return self.random.choice(self.names)

    def statement(self, depth, indent):
        before = len(self.lines)
        super().statement(depth, indent)
        # A part of a block does not return, and what a function refers to is not set later.
        while self.names != "abcde" and any(word in line for line in self.lines[before:] for word in ("return", "lambda", "del ")):
            del self.lines[before:]
            super().statement(depth, indent)

    def fork(self):
        self.lines.append("    with sublet.parallel():")
        for number, names in enumerate(self.random.choice([("ab", "cd"), ("a", "b", "cd"), ("ac", "db")])):
            self.names = names
            if number:
                self.lines.append("        sublet.split()")
            self.block(1, 2)
        self.names = "abcde"

    def choose(self, indent):
        pad = "    " * indent
        heads = [f"if {self.value()} > 2:", *[f"elif {self.value()} > 1:"] * self.random.randrange(2), *["else:"] * self.random.randrange(2)]
        for number, head in enumerate(heads):
            self.lines.append(pad + head)
            if number == 0 or self.random.randrange(2):
                self.lines.append(f"{pad}    sublet.split()")
            self.block(1, indent + 1)
            if indent == 1 and self.random.randrange(4) == 0:
                self.choose(2)
                self.block(0, 2)
            elif self.random.randrange(3) == 0:
                self.lines.append(f"{pad}    sublet.split()")
                self.block(0, indent + 1)

    def program(self, name):
        self.lines = [f"def {name}(a, b=2, c=1, d=0):", "    budget = [None] * 20"]
        for _ in range(self.random.randrange(1, 3)):
            self.block(1, 1)
            if self.random.randrange(2):
                self.fork()
            else:
                self.choose(1)
        self.block(1, 1)
        self.lines.append("    return " + ", ".join("abcde"[: self.random.randrange(1, 6)]) + ",")
        return "\n".join(self.lines) + "\n"


def run_parts(application, *args):
    """The parts by the graph: those of a block each with what there was before it, and of branches those that are chosen."""
    space = {}
    exec(application.source, space)
    edges = [edge for edge in application.graph["edges"] if edge["type"] == "trigger"]
    parts = {part["name"]: part["function"] for part in application.graph["components"] if part["type"] == "compute"}
    chosen = {edge["to"] for edge in edges if "when" in edge or "otherwise" in edge}
    joins = {to for to, count in collections.Counter(edge["to"] for edge in edges).items() if count > 1} - chosen
    state = {next(iter(parts)): dict(inspect.signature(application.local.__self__._function).bind(*args).arguments)}
    for name, function in parts.items():
        if name not in state:
            # It was skipped.
            continue
        execute, before = space[function].__wrapped__, state.pop(name)
        gets = inspect.signature(execute).parameters
        left = execute(**{variable: before[variable] for variable in gets if variable in before})
        if isinstance(left, components.result):
            return left.value
        number = left.number if isinstance(left, components.choice) else None
        left = left if number is None else left.left
        for edge in edges:
            is_fired = ("when" not in edge or edge["when"] == components.choice.text(number)) and ("otherwise" not in edge or number == -1)
            if edge["from"] == name and is_fired:
                # Behind a part that is alone there is only what it hands on; one of several parts hands on only what it sets.
                kept = before if edge["to"] in joins else {key: value for key, value in before.items() if key not in gets}
                state[edge["to"]] = {**kept, **state.get(edge["to"], {}), **left}
    raise AssertionError("no part has returned")


def test_random_programs_with_blocks_and_branches_come_to_the_same_as_the_whole(tmp_path, monkeypatch):
    count = 600
    text = "\n\n".join(Blocks(seed).program(f"program_{seed}") for seed in range(count))
    (tmp_path / "programs_with_blocks.py").write_text(f"import contextlib\n\nimport sublet\n\n\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    import programs_with_blocks

    outcomes = collections.Counter()
    for seed in range(count):
        program = getattr(programs_with_blocks, f"program_{seed}")
        try:
            application = sublet.app(program)
        except SyntaxError as error:
            said = ("is set behind a split", "at the same time", "may be deleted here")
            assert any(what in str(error) for what in said), (str(error), inspect.getsource(program))
            outcomes["refused"] += 1
            continue
        for a in range(5):
            expected, found = ended(program, a), ended(run_parts, application, a)
            assert repr(found) == repr(expected), (inspect.getsource(program), application.source, a)
            outcomes["raised" if type(expected) is str else "returned"] += 1
    assert outcomes["returned"] > count // 4 and outcomes["raised"] > count // 8, outcomes
