"""NumPy's functions of remote arrays: `__array_function__`, and which modules have them."""

import importlib

import numpy

from .array import RemoteArray

# What NumPy's functions are for remote arrays. Each module puts its own here.
TABLE = {}
# Those that make arrays like one that is given as `like`: functions of its place.
MAKERS = frozenset((numpy.empty, numpy.zeros, numpy.ones, numpy.full, numpy.arange, numpy.asarray, numpy.array))
MODULES = ("shapes", "elementwise", "statistics", "sorting", "products")


def implements(*functions):
    """Makes a function what these functions of NumPy's are for remote arrays."""

    def put(function):
        TABLE.update(dict.fromkeys(functions, function))
        return function

    return put


def called(array, function, args, kwargs):
    """Calls what is in the table, or says that nothing is."""
    if not TABLE:
        for module in MODULES:
            importlib.import_module(f"{__package__}.{module}")
    if function in MAKERS:
        # The array is what was given as `like`.
        given = {name: value for name, value in kwargs.items() if name != "device" and value is not None}
        return getattr(array.place, function.__name__)(*args, **given)
    here = TABLE.get(function)
    if here is None:
        name = f"{function.__module__}.{function.__name__}"
        raise TypeError(f"{name} is not there for remote arrays: numpy.asarray(array) makes a local copy")
    return here(*args, **kwargs)


def place_among(arguments):
    """The place of the first remote array of arguments."""
    return next(argument.place for argument in arguments if isinstance(argument, RemoteArray))
