"""Calls of ufuncs and other elementwise operations."""

import operator

import numpy

from .comparison import case
from .operands import ALL, DATES, NUMBERS, SIMPLE

UFUNCS = sorted(
    {value for value in vars(numpy).values() if isinstance(value, numpy.ufunc) and value.signature is None},
    key=lambda ufunc: ufunc.__name__,
)


@case(*UFUNCS)
def ufuncs(draw, ufunc):
    kinds = draw.of(*SIMPLE, NUMBERS, NUMBERS, SIMPLE)
    a = draw.array(kinds)
    operands = [a, *(draw.array(kinds, shape=draw.partner(a.local().shape)) for _ in range(ufunc.nin - 1))]
    scalar = draw.of(None, None, 2, 1.5, True, numpy.float32(2), numpy.int8(3), 1j, numpy.timedelta64(3, "h"), "a")
    # The last bit of a power depends on the memory layout, and integers are compared exactly.
    is_exact = "power" not in ufunc.__name__
    if ufunc.nin == 2 and scalar is not None and is_exact:
        return lambda a: ufunc(a, scalar), [a]
    if draw.rarely():
        where = draw.array("b", shape=draw.partner(a.local().shape))

        def call(*operands):
            shape = numpy.broadcast_shapes(*(operand.shape for operand in operands))
            sample = ufunc(*(numpy.ones(1, operand.dtype) for operand in operands[:-1]))
            outs = [numpy.zeros(shape, one.dtype, like=operands[0]) for one in (sample if ufunc.nout > 1 else [sample])]
            return ufunc(*operands[:-1], out=tuple(outs), where=operands[-1])

        return call, [*operands, where]
    return ufunc, operands


@case(operator.eq, operator.ne)
def comparisons(draw, compare):
    a = draw.array()
    times = numpy.datetime64("2020-01-01"), numpy.timedelta64(1, "s")
    other = draw.of("array", "array", 2, 1.5, True, "a", b"a", None, *times, [1, 2], "NaT", ())
    if isinstance(other, str) and other == "array":
        return compare, [a, draw.array(shape=draw.partner(a.local().shape))]
    return lambda a: compare(a, other), [a]


@case("in")
def containments(draw, _):
    other = draw.of(2, 1.5, True, "a", b"a", None, numpy.datetime64("1970-01-02"), numpy.timedelta64(1, "s"), float("nan"))
    return lambda a: other in a, [draw.array()]


@case(numpy.round, numpy.around)
def rounding(draw, function):
    decimals = draw.number(-2, 3)
    return lambda a: function(a, decimals), [draw.array(SIMPLE)]


@case(
    *(numpy.nan_to_num, numpy.angle, numpy.i0, numpy.sinc, numpy.isneginf, numpy.isposinf, numpy.fix, numpy.isreal, numpy.iscomplex),
    *(numpy.real, numpy.imag, numpy.iscomplexobj, numpy.isrealobj, numpy.shape, numpy.ndim, numpy.copy),
    *(numpy.flipud, numpy.fliplr, numpy.atleast_1d, numpy.atleast_2d, numpy.atleast_3d),
)
def functions_of_one(draw, function):
    return function, [draw.array(SIMPLE)]


@case(numpy.digitize)
def digits(draw, function):
    bins, right = draw.of([-1, 0, 1.5], [2, 1, 0], [1, 0, 1], []), draw.flag()
    return lambda a: function(a, bins, right), [draw.array(NUMBERS)]


@case(numpy.isin)
def memberships(draw, function):
    among, invert = draw.of([1, 2], ["a", "ab"], [], [1.5, numpy.nan], [numpy.timedelta64(1, "s")]), draw.flag()
    return lambda a: function(a, among, invert=invert), [draw.array(SIMPLE)]


@case(numpy.interp)
def interpolations(draw, function):
    return lambda a: function(a, [-1, 0, 1], [0.5, -2.0, 7.0]), [draw.array(NUMBERS)]

@case(numpy.isclose, numpy.allclose)
def closeness(draw, function):
    a = draw.array(NUMBERS)
    b = draw.array(NUMBERS, shape=draw.partner(a.local().shape))
    atol, equal_nan = draw.of(0, 0.6), draw.flag()
    return lambda a, b: function(a, b, atol=atol, equal_nan=equal_nan), [a, b]


@case(numpy.where)
def choices(draw, function):
    condition = draw.array("b" if draw.flag() else ALL)
    if draw.rarely():
        return function, [condition]
    a = draw.array(shape=draw.partner(condition.local().shape))
    return function, [condition, a, draw.array(shape=draw.partner(condition.local().shape))]


@case(numpy.clip)
def clips(draw, function):
    a = draw.array(SIMPLE)
    low, high = draw.of(None, -1, 0.5, numpy.float32(0)), draw.of(None, 1, 2.5)
    return lambda a: function(a, low, high), [a]


@case(numpy.result_type, numpy.can_cast)
def types(draw, function):
    if function is numpy.can_cast:
        to, casting = draw.dtype(), draw.of("safe", "same_kind", "no")
        return lambda a: function(a.dtype, to, casting), [draw.array()]
    return lambda a, b: function(a, b), [draw.array(), draw.array(NUMBERS)]


@case(*([numpy.astype] if hasattr(numpy, "astype") else []))
def conversions(draw, function):
    dtype = draw.dtype(NUMBERS)
    return lambda a: function(a, dtype), [draw.array(NUMBERS + DATES)]
