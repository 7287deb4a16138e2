"""Programs at random, to be split in any manner, and what comes of them."""

import random


class Writer:
    """Writes programs that set, read, delete and lack variables in every manner, split anywhere."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []

    def name(self):
        # The last is seldom set.
        return self.random.choice(4 * "abcd" + "e")

    def value(self):
        return self.random.choice(
            [
                *4 * [lambda: f"{self.name()} + {self.random.randrange(3)}", lambda: str(self.random.randrange(5))],
                lambda: f"sum([{self.name()} for a in range({self.name()} % 3)])",
                lambda: f"(lambda x: x + {self.name()})(1)",
                lambda: f"({self.name()} := {self.name()} + 1)",
                lambda: f"{self.name()} and ({self.name()} := 2)",
            ]
        )()

    def block(self, depth, indent):
        for _ in range(self.random.randrange(1, 4)):
            self.statement(depth, indent)

    def statement(self, depth, indent):
        pad = "    " * indent
        rare = self.random.choice([["delete", "def"], ["delete several", "class"]])
        kinds = 8 * ["set", "add", "many"] + (3 * ["if", "for", "while", "try", "with", "return"] + rare if depth else [])
        kind = self.random.choice(kinds)
        if kind == "set":
            self.lines.append(f"{pad}{self.name()} = {self.value()}")
        elif kind == "add":
            self.lines.append(f"{pad}{self.name()} += {self.value()}")
        elif kind == "many":
            self.lines.append(f"{pad}{self.name()}, *rest = {self.value()}, {self.name()}, {self.name()}")
        elif kind == "delete":
            self.lines.append(f"{pad}del {self.name()}")
        elif kind == "delete several":
            self.lines.append(f"{pad}del ({self.name()}, [rest])")
        elif kind == "class":
            # Its variable is not that of its method.
            name = self.name()
            self.lines += [f"{pad}class Inner:", f"{pad}    {name} = 5", f"{pad}    made = [{name} for _ in range(2)]"]
            self.lines += [f"{pad}    def get(self):", f"{pad}        return {name} + self.{name} + self.made[0]"]
            self.lines.append(f"{pad}{self.name()} = Inner().get()")
        elif kind == "return":
            self.lines.append(f"{pad}if {self.name()} > 6: return {self.name()}, {self.name()}")
        elif kind == "def":
            self.lines += [f"{pad}def inner(b=1):", f"{pad}    c = {self.name()}", f"{pad}    return b + c"]
            self.lines.append(f"{pad}{self.name()} = inner()")
        else:
            heads = {
                "if": f"if {self.value()} > 2:",
                "for": f"for {self.name()} in range({self.name()} % 3):",
                "while": f"while {self.name()} < 3:",
                "try": "try:",
                "with": "with contextlib.suppress(NameError):",
            }
            self.lines.append(pad + heads[kind])
            self.block(depth - 1, indent + 1)
            if kind == "while":
                self.lines.append(f"{pad}    if {self.value()} > 1: {self.random.choice(['break', 'break', 'return 1'])}")
                self.lines.append(f"{pad}    {self.name()} = 9; budget.pop()")
            elif kind == "try":
                self.lines.append(f"{pad}except NameError as {self.name()}:")
                self.block(0, indent + 1)
                if self.random.randrange(2):
                    self.lines.append(f"{pad}finally:")
                    self.block(0, indent + 1)
            elif self.random.randrange(2) and kind != "with":
                self.lines.append(f"{pad}else:")
                self.block(depth - 1, indent + 1)

    def program(self, name):
        self.lines = [f"def {name}(a, b=2, c=1, d=0):", "    budget = [None] * 20"]
        for part in range(self.random.randrange(2, 5)):
            if part:
                self.lines.append("    sublet.split()")
            self.block(2, 1)
        self.lines.append("    return " + ", ".join("abcde"[: self.random.randrange(1, 6)]) + ",")
        return "\n".join(self.lines) + "\n"


def ended(call, *args):
    try:
        return call(*args)
    except NameError:
        # The message names a variable without a value or, in a part that never sets the variable, an undefined name.
        return "NameError"
    except Exception as error:
        return type(error).__name__
