"""Rights of an application's components: those that surely only read their variables may not write their memory."""

import ast

import numpy
import pytest

import sublet
from sublet._compile import Compiled
from sublet._reads import only_reads

READ = [
    "x = v.sum()",
    "return v[1:].mean(axis=0) + w.shape[0], len(v), float(v[0].max())",
    "x = numpy.max(v[n]) if len(w) else 3",
    "for i in range(len(v)):\n    x = v[i].sum()",
    "f = lambda: v.std()",
    "print(repr(v), str(w))",
    "x = v[w.argmax()].sum()",
    "v.sum(out=x)",
    "x = [v[i].any() for i in range(v.size)]",
    "x = other.sum()",
]
WRITTEN = [
    "x = v",
    "return v",
    "x = v[1:]",
    "v += 1",
    "v[0] = 1",
    "v[0] += len(w)",
    "del v[0]",
    "v.sort()",
    "v.shape = (3, 4)",
    "v[1:].shape = (3, 4)",
    "x = v * 2",
    "x = v.T",
    "x = v.T.sum()",
    "x = (v * 2).sum()",
    "f(v)",
    "x = sum(v)",
    "x = max(v)",
    "x = numpy.sort(v)",
    "x = numpy.sum(w, out=v)",
    "w.sum(out=v)",
    "x = v[w].sum()",
    "x = numpy.add(v, 1)",
    "x = [v]",
    "x = lambda: v",
    "x = other.mean(v)",
    "x = a.len(v)",
    "x = bool(n, v)",
    "for x in v: pass",
    "x = v if n else 0",
    "x = v and len(v)",
    "with v: pass",
    "v = 2",
]


def are_reads(text, known=None):
    return only_reads(ast.parse(text).body, {"v", "w"}, {"numpy": numpy, "other": ast, **(known or {})}.__getitem__)


@pytest.mark.parametrize("text", READ)
def test_reductions_and_shapes_are_reads(text):
    assert are_reads(text)


@pytest.mark.parametrize("text", WRITTEN)
def test_what_may_change_a_variable_or_keep_it_is_no_read(text):
    assert not are_reads(text)


@pytest.mark.parametrize("text", ["x = len(v)", "x = numpy.sum(v)"])
def test_another_value_of_a_known_name_is_not_known(text):
    assert are_reads(text)
    assert not are_reads(text, {"len": are_reads, "numpy": ast})


def rights(function):
    edges = Compiled(function).graph("package")["edges"]
    return {(edge["from"], edge["to"]): edge["rights"] for edge in edges if edge["type"] == "access" and "." not in edge["to"]}


def reads(n):
    table = numpy.arange(float(n))
    part = table[1:].copy()
    sublet.split("look")
    total = table.sum()
    sublet.split("write")
    part += table[0]
    sublet.split("end")
    return float(part.sum()), total.mean(), len(part)


def test_a_component_that_only_reads_what_it_does_not_hand_on_has_the_right_to_read(platform):
    found = rights(reads)
    assert found["end", "part"] == found["end", "total"] == "read"
    # Variables that are handed on, or used beside a changed variable that may share their memory.
    assert found["look", "table"] == found["write", "part"] == found["write", "table"] == "write"
    application = sublet.app(reads).options(client=platform, patience=60)
    for count in (10, 300_000):
        assert application(count) == reads(count)


def test_names_of_parameters_are_not_those_of_builtins():
    def shadows(table, len):
        table += 1
        sublet.split("end")
        return len(table)

    assert rights(shadows)["end", "table"] == "write"
