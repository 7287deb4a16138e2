"""Checks a package in Python without executing it: its module can be parsed and has the functions that the manifest names.

Arguments: the package's folder, its module's file, and the functions. Prints the first fault of the package, or nothing. The
modules of the package that its module always imports are parsed as well. Other files may be for another version of Python.
"""

import ast
import os
import sys

# By these a module can bind names that its text does not show.
DYNAMIC = {"globals", "locals", "vars", "exec", "eval", "setattr", "modules", "__dict__", "__getattr__"}


def parse(folder, path):
    with open(os.path.join(folder, path), "rb") as file:
        source = file.read()
    try:
        return compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        sys.exit(print(f"{path}:{error.lineno}: {error.msg} (Python {version})"))
    except (ValueError, RecursionError, MemoryError) as error:
        sys.exit(print(f"{path}: {error}"))


def imported(tree, path):
    """Modules, as paths without a suffix, that the module of a file imports whatever its conditions are."""
    parents = os.path.dirname(path).split(os.sep)
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names = [alias.name.split(".") for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            above = parents[: len(parents) + 1 - statement.level] if statement.level else []
            module = above + (statement.module or "").split(".")
            names = [module] + [module + [alias.name] for alias in statement.names]
        else:
            continue
        for name in names:
            yield os.path.join(*filter(None, name)) if any(name) else ""


def parse_all(folder, path):
    """The trees of a file and of the package's files that it always imports, by their paths."""
    trees, left = {}, [path]
    while left:
        path = left.pop()
        if path in trees or not os.path.isfile(os.path.join(folder, path)):
            continue
        trees[path] = parse(folder, path)
        for module in imported(trees[path], path):
            left += [module + ".py", os.path.join(module, "__init__.py")]
    return trees


def bound(tree):
    """The names that a module binds, or None if its text does not show them all."""
    names, used = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            (names if isinstance(node.ctx, ast.Store) else used).add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.split(".")[0])
    return None if (names | used) & DYNAMIC or "*" in names else names


def main(folder, library, *functions):
    names = bound(parse_all(folder, library)[library])
    for function in functions:
        if names is not None and function.split(".")[0] not in names:
            sys.exit(print(f"{library} has no {function}, which the manifest names"))


main(*sys.argv[1:])
