"""Operands of comparisons with NumPy: arrays of drawn dtypes, shapes, elements and memory layouts."""

import numpy
from hypothesis import strategies as st

# Dtypes by kind.
DTYPES = {
    "b": ["?"],
    "i": ["i1", ">i2", "i4", "i8", ">i8"],
    "u": ["u1", ">u4", "u8"],
    "f": ["f2", "f4", "f8", ">f4", ">f8"],
    "c": ["c8", "c16", ">c16"],
    "m": ["m8[s]", ">m8[D]"],
    "M": ["M8[D]", ">M8[s]"],
    "U": ["U3", ">U2"],
    "S": ["S3"],
    "V": [[("x", "i4"), ("y", ">f8")]],
}
NUMBERS = "biufc"
REAL = "biuf"
DATES = "mM"
SIMPLE = "biufcmMUS"
ALL = "biufcmMUSV"


class Operand:
    """An array of some memory layout: a contiguous array, and a function that returns a view of it.

    The same function makes the local and the remote operand, so that both have the same layout.
    """

    def __init__(self, base, view=lambda base: base):
        self.base, self._view = base, view

    def local(self):
        return self._view(self.base.copy())

    def remote(self, place):
        return self._view(place.asarray(self.base))

    def __repr__(self):
        return f"Operand({self.local()!r}, strides={self.local().strides})"


def elements(rng, dtype, shape, plain=True):
    """An array of random elements, few of which differ, so that some are equal. Unless `plain`, some are NaN, infinite or extreme."""
    return numpy.asarray(_elements(rng, numpy.dtype(dtype), shape, plain), dtype)


def _elements(rng, dtype, shape, plain):
    if dtype.names:
        made = numpy.zeros(shape, dtype)
        for name in dtype.names:
            made[name] = _elements(rng, dtype[name], shape, plain)
        return made
    numbers = rng.integers(0 if dtype.kind in "bu" else -4, 5, shape)
    made = _MAKERS[dtype.kind](numbers, dtype, rng)
    special = [] if plain else _special(dtype)
    if not special:
        return made
    picked = numpy.array([numpy.asarray(value).astype(dtype) for value in special], dtype)[rng.integers(0, len(special), shape)]
    return numpy.where(rng.random(shape) < 0.15, picked, made).astype(dtype)


_MAKERS = {
    **dict.fromkeys("b", lambda numbers, dtype, rng: numbers % 2 == 0),
    **dict.fromkeys("iu", lambda numbers, dtype, rng: numbers.astype(dtype)),
    **dict.fromkeys("f", lambda numbers, dtype, rng: (numbers / 2).astype(dtype)),
    **dict.fromkeys("c", lambda numbers, dtype, rng: (numbers / 2 + 1j * rng.integers(-2, 3, numbers.shape)).astype(dtype)),
    **dict.fromkeys("mM", lambda numbers, dtype, rng: numbers.astype("i8").astype(dtype)),
    **dict.fromkeys("US", lambda numbers, dtype, rng: numpy.array(["", "a", "b", "ab", "aa"], dtype)[abs(numbers)]),
}


def _special(dtype):
    """Elements of a dtype that operations often treat in a way of their own."""
    if dtype.kind in "iu":
        return [numpy.iinfo(dtype).max, numpy.iinfo(dtype).min]
    return {
        "f": [numpy.nan, numpy.nan, numpy.inf, -numpy.inf, -0.0],
        "c": [numpy.nan, complex(1, numpy.nan), complex(numpy.inf, 2)],
        "m": [numpy.timedelta64("NaT")],
        "M": [numpy.datetime64("NaT")],
    }.get(dtype.kind, [])


class Draw:
    """Draws values from hypothesis."""

    def __init__(self, data):
        self._data = data

    def of(self, *choices):
        return self._data.draw(st.sampled_from(choices))

    def number(self, least, most):
        return self._data.draw(st.integers(least, most))

    def flag(self):
        return self.of(False, True)

    def rarely(self):
        """True in one of eight cases."""
        return self.number(0, 7) == 7

    def dtype(self, kinds=ALL):
        return self.of(*(numpy.dtype(name) for kind in kinds for name in DTYPES[kind]))

    def shape(self, least=0, most=3):
        """A shape of `least` to `most` dimensions."""
        ndim = self.number(least, most)
        length = {0: 1, 1: 70, 2: 11, 3: 6}.get(ndim, 4)
        return tuple(self.number(0 if self.rarely() else 1, length) for _ in range(ndim))

    def array(self, kinds=ALL, least=0, most=3, shape=None, dtype=None, plain=None):
        """An operand. Its shape and dtype are drawn where they are not given."""
        shape = self.shape(least, most) if shape is None else tuple(shape)
        dtype = self.dtype(kinds) if dtype is None else numpy.dtype(dtype)
        rng = numpy.random.default_rng(self.number(0, 999))
        plain = self.of(True, True, False) if plain is None else plain
        if not shape or not self.of(True, True, False):
            return Operand(elements(rng, dtype, shape, plain))
        order = self._data.draw(st.permutations(range(len(shape))))
        steps = [self.of(1, 1, -1, 2, -2, 0) for _ in shape]
        lengths = [(length - 1) * abs(step) + 1 if length else 0 for length, step in zip(shape, steps)]

        def view(base):
            base = base.transpose([order.index(axis) for axis in range(len(shape))])
            base = base[tuple(slice(None, None, step or 1) for step in steps)]
            return numpy.broadcast_to(base, shape) if 0 in steps else base

        return Operand(elements(rng, dtype, [lengths[axis] for axis in order], plain), view)

    def array_for(self, function, kinds=SIMPLE):
        """An operand of a function. It often has NaNs if the function ignores them."""
        is_with_nans = function.__name__.startswith("nan") and self.flag()
        return self.array("ffc", plain=False) if is_with_nans else self.array(kinds)

    def axis(self, ndim):
        """An axis of an array; rarely one that does not exist."""
        return ndim if ndim == 0 or (self.rarely() and self.rarely()) else self.number(-ndim, ndim - 1)

    def axes(self, ndim):
        """Draws no axis, one axis, or several axes."""
        return self.of(None, self.axis(ndim), tuple(self._data.draw(st.permutations(range(ndim))))[: self.number(0, ndim)])

    def partner(self, shape):
        """A shape that broadcasts to another; rarely one that does not."""
        shape = tuple(1 if self.rarely() else length for length in shape[self.number(0, len(shape)) if self.rarely() else 0 :])
        return (*shape, 2) if self.rarely() and self.rarely() else shape

    def indices(self, length, shape=None):
        """An operand of integers that index an axis; rarely one is out of bounds or of another dtype."""
        shape = self.shape(0, 2) if shape is None else shape
        rng, wrong = numpy.random.default_rng(self.number(0, 999)), self.rarely() and self.rarely()
        if length == 0:
            return Operand(numpy.zeros(shape, numpy.intp))
        found = rng.integers(-length, length + (2 if wrong else 0), shape)
        return Operand(found.astype(self.of("i8", "i8", "u1", "i2") if wrong else "i8"))
