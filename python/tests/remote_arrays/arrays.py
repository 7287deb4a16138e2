"""Arrays of many dtypes, and the comparison of a function of them with NumPy's."""

import numpy

import sublet

KIB = 1 << 10
WORKING_BYTES = 8 * KIB

RNG = numpy.random.default_rng(11)
TABLE = RNG.normal(size=(31, 43))
OTHER = RNG.normal(size=(31, 43))
MASK = RNG.random((31, 43)) > 0.6
CUBE = RNG.normal(size=(7, 24, 11))
WHOLE = RNG.integers(-100, 100, (40, 30))
SMALL = RNG.integers(0, 255, 1500).astype("u1")
HALF = RNG.normal(size=1500).astype("f2")
SINGLE = RNG.normal(size=1500).astype("f4")
COMPLEX = RNG.normal(size=(30, 20)) + 1j * RNG.normal(size=(30, 20))
GAPS = RNG.normal(size=1500)
GAPS[RNG.integers(0, 1500, 7)] = numpy.nan
COUNTS = RNG.integers(0, 50, 1500)
DATES = numpy.datetime64("2020-01-01") + RNG.integers(0, 999, 1500)
WORDS = RNG.integers(0, 999, 1500).astype("U4")
FOREIGN = RNG.integers(0, 999, 1500).astype(">i4")
RECORDS = numpy.zeros(500, [("x", "i4"), ("y", "f8")])
RECORDS["x"] = RNG.integers(0, 99, 500)
NUMBERS = (TABLE, WHOLE, SMALL, HALF, SINGLE, COMPLEX, GAPS, CUBE, MASK)
# How much two orders of additions may differ.
TOLERANCE = {"f2": 1e-2, "f4": 1e-5, "c8": 1e-5}


def found(function, arrays):
    try:
        with numpy.errstate(all="ignore"):
            return function(*arrays)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        return error


def agree(far, function, *arrays, is_exact=True):
    """A function of remote arrays comes to what it comes to of NumPy's own, the error's class included."""
    expected = found(function, [array.copy() for array in arrays])
    result = found(function, [far.asarray(array) for array in arrays])
    if isinstance(expected, Exception) or isinstance(result, Exception):
        assert type(result) is type(expected), (result, expected)
        return
    both = zip(result, expected) if isinstance(expected, tuple) else [(result, expected)]
    for one, other in both:
        assert type(one) is type(other) or sublet.RemoteArray in (type(one), type(other))
        one, other = numpy.asarray(one), numpy.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if is_exact or one.dtype.kind not in "fc":
            numpy.testing.assert_array_equal(one, other)
        else:
            tolerance = TOLERANCE.get(one.dtype.str[1:], 1e-12)
            numpy.testing.assert_allclose(one, other, tolerance, tolerance)
