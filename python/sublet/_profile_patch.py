"""Inserts splits into the text of a program, and writes the difference as a patch."""

import ast
import copy
import difflib

from . import _errors, _split
from ._compile import Compiled


def spelled(profile):
    """How the function's file calls `split`: `sublet.split` or another name."""
    module = _module()
    for name, value in profile.function.__globals__.items():
        if value is module:
            return f"{name}.split"
    for name, value in profile.function.__globals__.items():
        if value is _split.split:
            return name
    raise _errors.InvalidArgument(f"{profile.source.file} has no name for `split`: add `import sublet`, and profile it again")


def _module():
    import sublet

    return sublet


def refusals(profile):
    """For each statement before which there cannot be a split, by its number, the reason."""
    found = {}
    for number, statement in enumerate(profile.statements):
        if number > 0 and not profile.is_begin(number):
            before = profile.statements[number - 1]
            if before.end_lineno >= _first(statement):
                found[number] = "it begins on the line of the statement before"
            else:
                why = refusal(profile, [number])
                if why is not None:
                    found[number] = why
    return found


def refusal(profile, numbers):
    """The reason for which the compiler refuses splits before the statements of these numbers; None if it takes them."""
    called = ast.parse(f"{spelled(profile)}()").body[0]
    source = copy.copy(profile.source)
    source.node = copy.copy(source.node)
    splits = {id(profile.statements[number]) for number in numbers}
    source.node.body = []
    for statement in profile.source.node.body:
        if id(statement) in splits:
            source.node.body.append(_located(called, statement))
        source.node.body.append(statement)
    try:
        compiled = Compiled(profile.function, profile.name, source)
    except SyntaxError as error:
        return error.msg
    if len(compiled.parts) != len(profile.compiled.parts) + len(numbers):
        return f"`{spelled(profile)}` is a variable of the function"
    return None


def _located(node, place):
    made = copy.deepcopy(node)
    for one in ast.walk(made):
        ast.copy_location(one, place)
    return made


def _first(statement):
    """Line of a statement's first decorator, or of the statement itself."""
    return min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])


def insertions(profile, numbers):
    """The lines of the file before which splits are inserted, counted from 0, each with the line to insert."""
    lines, found = profile.text.lines, {}
    for number in numbers:
        at = profile.line(number) - 1
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        ending = lines[at][len(lines[at].rstrip("\r\n")) :] or "\n"
        after = profile.source.first + profile.statements[number - 1].end_lineno - 1
        # Comments above a statement belong to it.
        while at > after and lines[at - 1].lstrip().startswith("#"):
            at -= 1
        found[at] = f"{indent}{spelled(profile)}(){ending}"
    return found


def inserted(lines, found):
    """The lines of a file with these insertions."""
    made = []
    for number, line in enumerate(lines):
        if number in found:
            made.append(found[number])
        made.append(line)
    return made


def difference(name, before, after):
    """A unified diff, which `patch` takes."""
    made = []
    for line in difflib.unified_diff(before, after, name, name):
        made.append(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n")
    return "".join(made)
