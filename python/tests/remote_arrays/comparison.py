"""Calls of operations, and the comparison of their outcomes with NumPy's."""

import warnings

import numpy

import sublet

# Tolerance of results by the dtypes of operands and results: sums may be added in another order, or more exactly.
TOLERANCE = {"f2": 2e-2, "f4": 1e-5, "c8": 1e-5}
# For each operation a function `make(draw, operation)`. It returns a call and the operands of that call.
CASES = {}


def case(*operations):
    """Registers a function that makes calls of some operations."""

    def register(make):
        for operation in operations:
            assert operation not in CASES, operation
            CASES[operation] = make
        return make

    return register


def outcome(call, operands):
    """The result of a call, or the exception that it raises."""
    try:
        with numpy.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "Out of bound index found", DeprecationWarning)
            return call(*operands)
    except DeprecationWarning as announced:
        # NumPy announces this error for selections that are empty.
        return IndexError(str(announced))
    except Exception as error:
        return error


def check(places, call, operands):
    """Compares the outcome of a call in each place with NumPy's: values, dtype, shape, kind of result, class of exception."""
    expected = outcome(call, [operand.local() for operand in operands])
    tolerance = max(_tolerance(operand.base.dtype) for operand in operands)
    for place in places:
        _agree(outcome(call, [operand.remote(place) for operand in operands]), expected, tolerance)


def _tolerance(dtype):
    return TOLERANCE.get(dtype.str[1:], 1e-11)


def _agree(result, expected, tolerance):
    if isinstance(expected, Exception) or isinstance(result, Exception):
        assert isinstance(expected, Exception), f"{result!r} instead of {expected!r}"
        assert isinstance(result, _public_class(expected)), f"{result!r} instead of {expected!r}"
    elif isinstance(expected, (tuple, list)):
        assert type(result) is type(expected) and len(result) == len(expected), (result, expected)
        for one, other in zip(result, expected):
            _agree(one, other, tolerance)
    elif isinstance(expected, (numpy.ndarray, numpy.generic)):
        _agree_as_arrays(result, expected, tolerance)
    else:
        assert type(result) is type(expected) and result == expected, (result, expected)


def _public_class(error):
    """The first class of an exception that programs catch: NumPy raises subclasses that are private."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins" or kind.__name__ == "AxisError")


def _agree_as_arrays(result, expected, tolerance):
    # A result without dimensions is always a scalar here, and sometimes an array in NumPy.
    kinds = [type(expected)]
    if isinstance(expected, numpy.ndarray):
        kinds += [sublet.RemoteArray, *([expected.dtype.type] if expected.ndim == 0 else [])]
    assert type(result) in kinds, f"{type(result)} {result!r} instead of {type(expected)} {expected!r}"
    if isinstance(result, numpy.generic) and result.dtype.kind in "US":
        # A scalar of text is as long as its text.
        expected = expected.astype(result.dtype)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape), f"{result!r} instead of {expected!r}"
    one, other = numpy.asarray(result), numpy.asarray(expected)
    if one.dtype.names:
        for name in one.dtype.names:
            _agree_as_arrays(one[name], other[name], tolerance)
    elif one.dtype.kind in "fc":
        tolerance = max(tolerance, _tolerance(one.dtype))
        numpy.testing.assert_allclose(one, other, tolerance, tolerance)
    else:
        numpy.testing.assert_array_equal(one, other)
