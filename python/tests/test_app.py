"""Applications that are compiled from one function: they come to the same as the function itself."""

import collections
import inspect
import json
import logging
import pickle
import subprocess
import sys
import threading

import numpy
import pytest

import sublet
from sublet import _package, components
from sublet._compile import Compiled
from writer import Writer, ended
from applications import check_refused, made


pytestmark = pytest.mark.usefixtures("default")


def check(function, *args, **kwargs):
    """Checks that the application returns the same locally and when it is run."""
    application = made(function)
    expected = application.local(*args, **kwargs)
    found = application(*args, **kwargs)
    numpy.testing.assert_equal(found, expected)
    assert type(found) is type(expected)
    return application


def scaled(table, factor):
    return table * factor


RATE = 0.5
Pair = collections.namedtuple("Pair", ["left", "right"])


def regression(rows, columns: int, *, steps: int = 3):
    """Not a word of this is executed."""
    samples = numpy.arange(rows * columns, dtype="f8").reshape(rows, columns)
    # The last are for validation.
    samples, test = samples[:-2], samples[-2:].copy()

    sublet.split("train")
    # From nothing.
    weights = numpy.zeros(columns)
    for _ in range(steps):
        weights += RATE * scaled(samples, 2).sum(axis=0)

    sublet.split("validate")
    return test @ weights, rows


def test_it_is_split_into_components_and_memory():
    application = check(regression, 10, 3)
    graph = application.graph
    assert [(part["name"], part["type"]) for part in graph["components"]] == [
        ("regression_1", "compute"),
        ("train", "compute"),
        ("validate", "compute"),
        ("rows", "memory"),
        ("samples", "memory"),
        ("test", "memory"),
        ("weights", "memory"),
        ("regression.arguments", "memory"),
        ("regression.result", "memory"),
    ]
    related = {(edge["type"], edge["from"], edge["to"]) for edge in graph["edges"]}
    assert related == {
        ("trigger", "regression_1", "train"),
        ("trigger", "train", "validate"),
        *(("access", part, "samples") for part in ("regression_1", "train")),
        *(("access", part, name) for part in ("regression_1", "validate") for name in ("test", "rows")),
        *(("access", part, "weights") for part in ("train", "validate")),
        ("access", "regression_1", "regression.arguments"),
        ("access", "validate", "regression.result"),
    }
    assert (application.__name__, application.__doc__) == ("regression", "Not a word of this is executed.")


def test_its_source_is_what_was_written():
    source = sublet.app(regression).source
    assert "def regression_1(rows, columns, *, steps=3):\n    samples = numpy.arange(" in source
    assert "\n    # The last are for validation.\n" in source
    assert "def train(*, columns, samples, steps):\n    # From nothing.\n    weights = numpy.zeros(columns)\n" in source
    assert '    return {"weights": weights}\n' in source
    assert "    return result((test @ weights, rows))\n" in source
    assert "\nimport numpy\n" in source and "\nRATE = 0.5\n" in source and "not a word" not in source.lower()
    compile(source, "source", "exec")


def test_memory_holds_what_its_variables_hold(platform):
    def two(n):
        table = numpy.ones((n, 8))
        label = "as it is"
        sublet.split()
        return table.sum(), label

    outcome = made(two).run(10_000)
    assert outcome.value == (80_000.0, "as it is")
    used = {part["component"]: part["used_bytes"] for part in outcome.components}
    # No component accessed the memory of the small text.
    assert used["table"] == 640_000 and used["label"] == 0


def flow(case):
    first, kept = 0, []
    if case == "returns":
        return "early", kept
    if case != "unset":
        maybe = "set"
    for last in range(3):
        kept.append(last)
    sublet.split()
    while True:
        first += 1
        if first > 3:
            break
    kept.append(first)
    if case == "deletes":
        del maybe
    try:
        {}[case]
    except KeyError as error:
        caught = str(error)
    sublet.split()
    with_all = [x for x in kept if (y := x) > 0]
    return with_all, y, last, caught, "unset" if case in ("unset", "deletes") else maybe


@pytest.mark.parametrize("case", ["plain", "returns", "unset", "deletes"])
def test_variables_go_on_as_they_are(case):
    check(flow, case)


def test_what_had_no_value_has_none():
    def lacks(case):
        if case:
            value = 1
        sublet.split()
        return value

    application = check(lacks, True)
    with pytest.raises(UnboundLocalError):
        application(False)


def test_arrays_and_values_are_the_same_ones_behind_a_split():
    def aliases():
        base = numpy.zeros(20)
        view, back, column = base[2:10], base[::-1], base.reshape(4, 5)[:, 1]
        same, shared = base, {"n": 1}
        holder = [shared, shared, base]
        sublet.split()
        view += 1
        base[0] = 5
        column[3] = 9
        holder[0]["n"] = 2
        sublet.split()
        back[1] = 3
        return base, view, back, column, same is base, holder[0] is shared, holder[2] is base, shared

    check(aliases)


def test_arrays_of_every_form_go_on():
    def forms():
        fixed = numpy.arange(3)
        fixed.flags.writeable = False
        made = {
            "empty": numpy.empty((0, 3)),
            "scalar": numpy.array(5.0),
            "fortran": numpy.asfortranarray(numpy.arange(12).reshape(3, 4)),
            "gaps": numpy.arange(1_000_000)[::1000],
            "backwards": numpy.arange(5)[::-1],
            "broadcast": numpy.broadcast_to(numpy.arange(3), (4, 3)),
            "text": numpy.array(["a", "bc"]),
            "record": numpy.array([(1, 2.5)], dtype=[("a", "i4"), ("b", ">f8")]),
            "time": numpy.array(["2020-01-01"], dtype="M8[D]"),
            "objects": numpy.array([1, "two", None], dtype=object),
            "masked": numpy.ma.masked_array(numpy.arange(2000), numpy.arange(2000) % 2 == 0),
            "scalars": numpy.float32(1.5),
        }
        sublet.split()
        flags = {name: (a.flags.writeable, a.flags.c_contiguous) for name, a in made.items() if type(a) is numpy.ndarray}
        sublet.split()
        return made, flags["fortran"], flags["broadcast"][0], fixed.flags.writeable

    application = made(forms)
    expected, outcome = application.local(), application.run()
    numpy.testing.assert_equal(outcome.value[0], expected[0])
    assert outcome.value[1:] == expected[1:]
    assert {name: a.dtype for name, a in outcome.value[0].items()} == {name: a.dtype for name, a in expected[0].items()}
    # An array with gaps takes what its elements take.
    used = {part["component"]: part["used_bytes"] for part in outcome.components}
    assert used["made"] < 200_000


def test_large_values_go_on_and_small_ones_need_no_memory():
    def large():
        words = {str(n): [n] * 3 for n in range(20_000)}
        few = {"a": (1, 2)}
        sublet.split()
        words["more"] = few
        sublet.split()
        few["b"] = words["more"] is few
        return len(words), words["19999"], words["more"]

    application = made(large)
    outcome = application.run()
    assert outcome.value == application.local() == (20_001, [19_999] * 3, {"a": (1, 2), "b": True})


def test_classes_and_functions_of_the_program_go_on():
    class Point:
        def __init__(self, x):
            self.x = x

    def twice(point):
        return Point(2 * point.x)

    def app(point):
        pair = Pair(point, [point])
        sublet.split()
        return twice(pair.right[0]).x, pair.left is pair.right[0], isinstance(pair.left, Point), type(pair).__name__

    check(app, Point(4))


def test_what_components_share_but_not_all_get_is_refused_and_a_copy_is_not():
    def shares(copies):
        base = numpy.arange(10.0)
        part = base[3:5].copy() if copies else base[3:5]
        sublet.split("second")
        total = base.sum()
        sublet.split("third")
        return part, total

    application = made(shares)
    assert application(True)[0].tolist() == [3, 4]
    with pytest.raises(sublet.InvalidArgument, match="base and part share memory, .*copy one of them"):
        application(False)


def test_memory_that_a_component_does_not_see_whole_is_not_moved():
    def moves(has_other):
        other = numpy.arange(10.0)
        view = other[2:] if has_other else numpy.arange(8.0)
        sublet.split("second")
        part = view[1:]
        sublet.split("third")
        other += 1
        view += 1
        total = other.sum() + part.sum()
        sublet.split("fourth")
        return part, total

    application = check(moves, False)
    with pytest.raises(sublet.InvalidArgument, match="part and view share memory with variables that this component does not get"):
        application(True)


def test_a_variable_that_takes_over_another_ones_memory_has_it():
    def takes(n):
        whole = numpy.arange(float(n))
        sublet.split()
        part = whole[1:3]
        sublet.split()
        part += 1
        sublet.split()
        return part

    check(takes, 10)


def parallel(n):
    table = numpy.zeros(n)
    seen = numpy.zeros(2, dtype=int)
    offset = {"by": 5}
    sublet.split("fill", parallelism=2)
    for row in range(sublet.instance(), n, sublet.instances()):
        table[row] = row + offset["by"]
    seen[sublet.instance()] = 1
    print("an instance")
    sublet.split("sum")
    return table, int(seen.sum())


def test_instances_write_to_the_elements_of_arrays(capsys):
    application = made(parallel)
    table, seen = application(1000)
    assert (table == numpy.arange(1000) + 5).all() and seen == 2
    assert capsys.readouterr().out == "an instance\n" * 2
    assert application.local(1000)[1] == 1


def test_what_is_returned_before_instances_begin_is_returned_once(capsys):
    def returns(n):
        print("once")
        if n:
            return n
        sublet.split(parallelism=2)
        print("by each")
        sublet.split()
        return 0

    assert made(returns)(5) == 5
    assert capsys.readouterr().out == "once\n"


def test_an_array_that_one_component_only_reads_may_be_written_by_the_next():
    def reads():
        table = numpy.zeros(5)
        sublet.split("look")
        is_writable = table.flags.writeable
        sublet.split("write")
        table += 1
        return table, is_writable

    application = made(reads)
    for edge in application.graph["edges"]:
        if edge["to"] == "table" and edge["from"] == "look":
            edge["rights"] = "read"
    table, is_writable = application()
    assert table.tolist() == [1.0] * 5 and not is_writable


def test_what_else_instances_change_is_refused():
    def changes(n):
        found = []
        sublet.split(parallelism=2)
        found.append(n)
        sublet.split()
        return found

    with pytest.raises(sublet.InvalidArgument, match="each of the 2 instances of component changes_2 changes found"):
        made(changes)(1)


def test_what_it_prints_is_printed_here(capsys, caplog):
    def speaks():
        print("first")
        sublet.split()
        print("second", file=sys.stderr)
        logging.warning("third")
        for _ in range(3):
            print("x" * 10_000)
        sublet.split()
        print("last")
        return None

    assert made(speaks)() is None
    said = capsys.readouterr()
    assert said.out == "first\n" + "x" * 10_000 + "\n"
    assert said.err.startswith("second\n") and said.err.count("is dropped") == 1
    assert [record.getMessage() for record in caplog.records] == ["third"]


def test_what_it_raises_says_where():
    def raises(n):
        sublet.split("divides")
        return 1 / n

    application = made(raises)
    assert application(2) == 0.5
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        application(0)
    with pytest.raises(TypeError, match="missing a required argument: 'n'"):
        application()


class Retry(ValueError):
    def __init__(self, after, *, reason):
        super().__init__(f"again after {after} s")
        self.after, self.reason = after, reason


def test_raises_what_its_component_raised_after_showing_what_was_printed(capsys, caplog):
    def fails(n):
        print("begins")
        sublet.split("divides")
        print("divides")
        logging.warning("soon")
        try:
            return 1 / n
        except ZeroDivisionError as error:
            raise Retry(5, reason="zero") from error

    heard = []
    application = made(fails).options(news=lambda *what: heard.append(what))
    with pytest.raises(Retry, match="again after 5 s") as raised:
        application(0)
    error = raised.value
    assert (type(error), error.after, error.reason) == (Retry, 5, "zero")
    assert type(error.__cause__) is ZeroDivisionError
    text = error.__cause__.__cause__.text
    assert "in divides\n" in text and "raise Retry(5, reason=\"zero\") from error" in text and "in execute" not in text
    assert any(note.startswith("in component divides (") for note in error.__notes__)
    assert heard[-1] == ("failed", "divides", error)
    assert capsys.readouterr().out == "begins\ndivides\n"
    assert [record.getMessage() for record in caplog.records] == ["soon"]
    assert application(4) == 0.25


def test_what_cannot_go_on_is_named():
    def locks():
        lock = threading.Lock()
        sublet.split()
        return lock

    with pytest.raises(TypeError, match="lock cannot be passed to the next component"):
        made(locks)()


def test_graph_and_source_may_be_edited(tmp_path):
    application = made(regression)
    edited = application.options()
    edited.source = application.source.replace("RATE = 0.5", "RATE = 1.0")
    for edge in edited.graph["edges"]:
        if edge["to"] == "test" and edge["from"] == "validate":
            edge["rights"] = "read"
    assert (edited(10, 3)[0] == 2 * application(10, 3)[0]).all()
    assert application.source != edited.source and application.graph != edited.graph
    with pytest.raises(SyntaxError):
        edited.source = "def"

    edited.save(tmp_path / "saved")
    path = tmp_path / "saved" / "sublet_components.py"
    path.write_text(path.read_text().replace("return result((test @ weights, rows))", "return result(rows + 1)"))
    document = json.loads((tmp_path / "saved" / "graph.json").read_text())
    document["name"] = "another"
    (tmp_path / "saved" / "graph.json").write_text(json.dumps(document).replace('"package": "regression"', '"package": "another"'))
    loaded = sublet.load_app(tmp_path / "saved").options(patience=60)
    assert loaded(10, 3, steps=1) == 11 and repr(loaded) == "<sublet app another>"
    with pytest.raises(sublet.InvalidArgument, match="was loaded"):
        loaded.local(10, 3)
    with pytest.raises(sublet.InvalidArgument, match=r"it has no graph\.json"):
        sublet.load_app(tmp_path)
    with pytest.raises(FileExistsError):
        application.save(tmp_path / "saved")


def test_what_else_a_split_says_is_in_the_graph():
    def says():
        sublet.split("begin here", memory="32MiB")
        x = 1
        sublet.split("2nd", parallelism=PARTS, pu="cpu", external_effects=True)
        print(x)
        sublet.split()
        return x

    with pytest.raises(SyntaxError, match="no component can be called 'begin here'"):
        sublet.app(says)

    def says(x: int):
        sublet.split("begin", memory="32MiB", swap="1GiB")
        y: int = x
        sublet.split("2nd", parallelism=PARTS, cores=3, pu="cpu", external_effects=True)
        print(y)
        sublet.split()
        return y

    graph = sublet.app(says, name="said").graph
    assert graph["name"] == "said"
    assert graph["components"] == [
        {"name": "begin", "type": "compute", "package": "said", "function": "begin", "entry": True, "resources": {"memory_bytes": 32 << 20, "swap_bytes": 1 << 30}},
        {
            "name": "2nd",
            "type": "compute",
            "package": "said",
            "function": "component_2nd",
            "parallelism": 2,
            "external_effects": True,
            "resources": {"cores": 3, "pu": "cpu"},
        },
        {"name": "said_3", "type": "compute", "package": "said", "function": "said_3"},
        {"name": "said.result", "type": "memory", "result": True},
    ]


PARTS = 2


def test_memory_of_a_variable_that_is_lost_is_no_value():
    assert repr(components.unbound) == "<no value>"


REFUSED = {
    "a split within `for`": "for x in y:\n    sublet.split()",
    "a split within `while`": "while y:\n    pass\nelse:\n    sublet.split()",
    "a split within `try`": "try:\n    sublet.split()\nfinally:\n    pass",
    "has to be a statement of the function's own body": "def inner():\n    sublet.split()",
    "has to be a statement": "x = sublet.split()",
    "nothing between this split and the one before": "x = 1\nsublet.split()\nsublet.split()\nreturn x",
    "nothing behind this split": "x = 1\nsublet.split()",
    "neither a generator nor a coroutine": "x = 1\nsublet.split()\nyield x",
    "is set for the whole module": "global x\nx = 1",
    "is set for the function around it": "x = 1\ndef inner():\n    nonlocal x\n    x = 2\ninner()",
    "locals\\(\\) refers to variables without naming": "return locals()",
    "eval\\(\\) refers to variables": "return eval('y')",
    "x, to which this refers, is set behind a split": "x = 1\nf = lambda: x\nsublet.split()\nx = 2\nreturn f()",
    "parallelism of a split has to be known": "x = 2\nsublet.split(parallelism=x)\nreturn x",
    "parallelism is 0": "x = 2\nsublet.split(parallelism=0)\nx\nsublet.split()\nreturn x",
    "cores is 0: a number from 1 to 1024": "x = 2\nsublet.split(cores=0)\nreturn x",
    "cores is 1025": "x = 2\nsublet.split(cores=1025)\nreturn x",
    "cores is True": "x = 2\nsublet.split(cores=True)\nreturn x",
    "no option sort": "x = 2\nsublet.split(sort=3)\nreturn x",
    "one positional argument": "x = 2\nsublet.split('a', 3)\nreturn x",
    "the last component has several instances": "x = 2\nsublet.split(parallelism=2)\nprint(x)",
    "each of the 2 instances would return": "x = 2\nsublet.split(parallelism=2)\nif x:\n    return 3\nsublet.split()\nreturn x",
    "each of the 2 instances sets x": "x = 2\nsublet.split(parallelism=2)\nx += 1\nsublet.split()\nreturn x",
    "two components are called a": "x = 2\nsublet.split('a')\nprint(x)\nsublet.split('a')\nreturn x",
    "a component and a variable that is handed on are both called x": "x = [2]\nsublet.split('x')\nreturn x",
    "no memory component can have its name": "größe = [2]\nsublet.split()\nreturn größe",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_compiled_is_refused_with_its_place(why, tmp_path, monkeypatch):
    file, error = check_refused(why, REFUSED[why], tmp_path, monkeypatch)
    assert error.filename == str(file) and error.lineno >= 4
    assert error.text.strip() in file.read_text()


def test_what_is_no_function_is_refused():
    async def coroutine():
        pass

    with pytest.raises(SyntaxError, match="no coroutine"):
        sublet.app(coroutine)
    for other in (len, Pair, sublet.app(regression), lambda: 1):
        with pytest.raises(sublet.InvalidArgument, match="the first decorator of a function"):
            sublet.app(other)
    space = {}
    exec("def unwritten(): pass", space)
    with pytest.raises(sublet.InvalidArgument, match="source of .* cannot be read"):
        sublet.app(space["unwritten"])


def test_text_in_strings_stays_as_it_is():
    def writes(n):
        text = """
no indentation
    # no comment
"""
        sublet.split()
        dict = text * n  # noqa: A001
        sublet.split()
        return dict

    check(writes, 2)


def test_statements_that_share_a_line_are_written_anew():
    def together(n): a = n; sublet.split(); b = a + 1; return b  # noqa: E702

    assert "    a = n\n" in Compiled(together).text(_package.globals_of([], {}.__getitem__))
    check(together, 4)


def result(n):
    return n + 1


def test_names_that_the_source_has_itself_are_the_programs():
    def train(component):
        unbound = result(component)
        sublet.split("result")
        if unbound > 2:
            value = 5
        sublet.split("scaled")
        return scaled(unbound, 2), value

    source = check(train, 4).source
    assert "def result_(" in source and "def scaled_(" in source and "    return result__((" in source


def test_components_of_like_names_have_functions_of_their_own(platform):
    parts = [{"name": name, "type": "compute", "function": function} for name, function in (("a-b", to_one), ("a_b", to_two))]
    document = {
        "version": 1,
        "name": "alike",
        "components": [{**parts[0], "entry": True}, parts[1]],
        "edges": [{"type": "trigger", "from": "a-b", "to": "a_b"}],
    }
    application = platform.deploy(document, patience=60)
    assert application.run().output == b"12"
    with pytest.raises(TypeError, match="an application belongs to the process"):
        pickle.dumps(application)


def to_one(data):
    return bytes(data) + b"1"


def to_two(data):
    return bytes(data) + b"2"


def test_a_node_without_the_package_has_what_components_need(tmp_path):
    sublet.app(regression).save(tmp_path / "saved")
    folder = tmp_path / "saved"
    # Without the folders of packages there is neither NumPy nor Sublet but that of the package.
    program = f"""
import subprocess
import sys
sys.path[:0] = [{str(folder)!r}, {str(folder / "fallback")!r}]
import sublet

assert sublet.__file__.startswith({str(folder)!r}), sublet.__file__
assert (sublet.instance(), sublet.split("x"), sublet.app(len), sublet.app(name="x")(len)) == (0, None, len, len)
from sublet import components

assert components.__file__.startswith({str(folder)!r})
try:
    import sublet_components
except ModuleNotFoundError as error:
    assert error.name == "numpy", error
"""
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def run_parts(application, *args):
    """The parts one after the other, each with what those before it have left, and with nothing else."""
    space = {}
    exec(application.source, space)
    state = dict(inspect.signature(application.local.__self__._function).bind(*args).arguments)
    for part in application.graph["components"]:
        if part["type"] == "compute":
            function = space[part["function"]].__wrapped__
            gets = inspect.signature(function).parameters
            left = function(**{name: state.pop(name) for name in gets if name in state})
            if isinstance(left, components.result):
                return left.value
            state.update(left)
    raise AssertionError("no part has returned")


def test_parts_come_to_the_same_as_the_whole(tmp_path, monkeypatch):
    """Whatever a program does with its variables."""
    count = 400
    text = "\n\n".join(Writer(seed).program(f"program_{seed}") for seed in range(count))
    (tmp_path / "programs.py").write_text(f"import contextlib\n\nimport sublet\n\n\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    import programs

    outcomes = collections.Counter()
    for seed in range(count):
        program = getattr(programs, f"program_{seed}")
        try:
            application = sublet.app(program)
        except SyntaxError as error:
            assert "is set behind a split" in str(error)
            outcomes["refused"] += 1
            continue
        for a in range(4):
            expected = ended(program, a)
            found = ended(run_parts, application, a)
            assert repr(found) == repr(expected), (inspect.getsource(program), application.source, a)
            outcomes["raised" if type(expected) is str else "returned"] += 1
    assert outcomes["returned"] > count and outcomes["raised"] > 100, outcomes
