"""Finds parts of an application that surely only read the variables that they get, so that they need no right to write their memory.

A variable may be an array, a table, or anything that has arrays, and several variables may share memory. So a part only reads if
each of its variables is used in no other way than those here, all of which have new values as results, or none that refer to memory:

- `len(v)` and the like; `v.shape` and the like;
- a reduction of the variable or of an element or slice of it: `v.sum(axis=0)`, `v[1:].max()`, `numpy.mean(v)`.

An operation such as `v * 2` is not among them: for a remote array its result needs space behind the array.
"""

import ast
import types

# Functions that are builtins, attributes, and reductions, as methods and as functions of NumPy's.
_BUILTINS = frozenset(["len", "float", "int", "bool", "complex", "str", "repr"])
_ATTRIBUTES = frozenset(["shape", "size", "ndim", "dtype", "nbytes", "itemsize"])
_REDUCTIONS = frozenset(["sum", "prod", "mean", "std", "var", "min", "max", "any", "all", "argmin", "argmax"])


def only_reads(statements, names, value_of):
    """Returns whether statements only read the variables of these names.

    `value_of` returns the value of a global, and raises `KeyError` for builtins and unknown names.
    """
    return all(_Uses(names, value_of).are_reads(statement) for statement in statements)


class _Uses:
    """The uses of variables."""

    def __init__(self, names, value_of):
        self._names = names
        self._value_of = value_of

    def are_reads(self, node):
        if self._is_variable(node):
            return False
        known = self._read_by(node)
        return all(child is known or self.are_reads(child) for child in ast.iter_child_nodes(node)) and self._are_indices_reads(known)

    def _are_indices_reads(self, node):
        """Whether what selects from a variable reads variables only: their values are not known to be numbers."""
        while isinstance(node, ast.Subscript):
            if not self.are_reads(node.slice):
                return False
            node = node.value
        # The method of a call is an attribute of what it selects from.
        return not isinstance(node, ast.Attribute) or self._are_indices_reads(node.value)

    def _read_by(self, node):
        """Returns the child of a node that is, or selects from, a variable that the node surely only reads."""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _ATTRIBUTES:
            return node.value if self._selects(node.value) else None
        if not isinstance(node, ast.Call):
            return None
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in _REDUCTIONS and self._selects(function.value):
            return function
        if node.args and self._selects(node.args[0]) and (self._is_builtin(function) or self._is_of_numpy(function)):
            return node.args[0]
        return None

    def _selects(self, node):
        """Whether an expression is a variable, or elements of one."""
        while isinstance(node, ast.Subscript):
            node = node.value
        return self._is_variable(node) and isinstance(node.ctx, ast.Load)

    def _is_variable(self, node):
        return isinstance(node, ast.Name) and node.id in self._names

    def _is_builtin(self, node):
        if not isinstance(node, ast.Name) or node.id not in _BUILTINS:
            return False
        try:
            self._value_of(node.id)
        except KeyError:
            return True
        return False

    def _is_of_numpy(self, node):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in _REDUCTIONS):
            return False
        try:
            value = self._value_of(node.value.id)
        except KeyError:
            return False
        return isinstance(value, types.ModuleType) and value.__name__ == "numpy"
