"""The table of operations, where `RemoteArray` looks up their implementations without importing them.

A key is the function that a user calls: one of NumPy's, a ufunc that is not elementwise, a method of `numpy.ufunc` (as
`numpy.ufunc.reduce`), a method of `numpy.ndarray`, or an operator of the module `operator`. Each module of operations registers its own
when `sublet._remote` imports it, so this module depends on none of them.
"""

import numpy

TABLE = {}
# Functions that make an array like the one given as `like`: functions of its place.
MAKERS = frozenset((numpy.empty, numpy.zeros, numpy.ones, numpy.full, numpy.arange, numpy.asarray, numpy.array))


def implements(*functions):
    """Registers a function as the implementation of some functions for remote arrays."""

    def put(function):
        TABLE.update(dict.fromkeys(functions, function))
        return function

    return put


def called(array, function, args, kwargs):
    """Calls the implementation of one of NumPy's functions.

    Raises:
        TypeError: There is none.
    """
    if function in MAKERS:
        # The array is what was given as `like`.
        given = {name: value for name, value in kwargs.items() if name != "device" and value is not None}
        return getattr(array.place, function.__name__)(*args, **given)
    here = TABLE.get(function)
    if here is None:
        raise unsupported(f"{function.__module__}.{function.__name__}")
    return here(*args, **kwargs)


def unsupported(name):
    """The error for an operation that remote arrays do not have."""
    return TypeError(f"{name} is not there for remote arrays: numpy.asarray(array) makes a local copy")
