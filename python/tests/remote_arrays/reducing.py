"""Calls of reductions and accumulations."""

import numpy

from .comparison import case
from .operands import DATES, NUMBERS, REAL, SIMPLE


@case(
    *(numpy.sum, numpy.prod, numpy.min, numpy.max, numpy.any, numpy.all),
    *(numpy.nansum, numpy.nanprod, numpy.nanmin, numpy.nanmax),
    *(function for function in (numpy.amin, numpy.amax) if function not in (numpy.min, numpy.max)),
)
def reductions(draw, function):
    a = draw.array_for(function)
    options = {"axis": draw.axes(len(a.local().shape)), "keepdims": draw.flag()}
    may_have_initial = "nan" not in function.__name__ and function not in (numpy.any, numpy.all)
    if may_have_initial and draw.rarely():
        options["initial"] = 3
    if function in (numpy.sum, numpy.prod, numpy.nansum, numpy.nanprod) and draw.rarely():
        options["dtype"] = draw.dtype(NUMBERS)
    if not function.__name__.startswith("nan") and draw.rarely():
        where = draw.array("b", shape=draw.partner(a.local().shape))
        return lambda a, where: function(a, where=where, **options), [a, where]
    return lambda a: function(a, **options), [a]


@case(numpy.mean, numpy.var, numpy.std, numpy.nanmean, numpy.nanvar, numpy.nanstd)
def moments(draw, function):
    a = draw.array_for(function)
    options = {"axis": draw.axes(len(a.local().shape)), "keepdims": draw.flag()}
    if draw.rarely():
        options["dtype"] = draw.dtype("fc" if a.local().dtype.kind == "c" else "f")
    if "mean" not in function.__name__ and draw.flag():
        options["ddof"] = draw.number(0, 2)
    if draw.rarely():
        where = draw.array("b", shape=[draw.of(length, length, 1) for length in a.local().shape])
        return lambda a, where: function(a, where=where, **options), [a, where]
    return lambda a: function(a, **options), [a]


@case(numpy.average)
def averages(draw, function):
    a = draw.array(NUMBERS, 1)
    shape = a.local().shape
    axis = draw.of(None, draw.axis(len(shape)))
    returned, keepdims = draw.flag(), draw.flag()
    if draw.flag():
        return lambda a: function(a, axis, returned=returned, keepdims=keepdims), [a]
    whole = axis is None or draw.flag() or not -len(shape) <= axis < len(shape)
    weights = draw.array("biuf", shape=shape if whole else (shape[axis],))
    return lambda a, w: function(a, axis, w, returned=returned, keepdims=keepdims), [a, weights]


@case(numpy.argmin, numpy.argmax, numpy.nanargmin, numpy.nanargmax)
def arguments(draw, function):
    a = draw.array_for(function, SIMPLE if "nan" not in function.__name__ else NUMBERS + DATES)
    axis, keepdims = draw.of(None, draw.axis(len(a.local().shape))), draw.flag()
    return lambda a: function(a, axis, keepdims=keepdims), [a]


@case(numpy.count_nonzero)
def counts(draw, function):
    a = draw.array()
    axis, keepdims = draw.axes(len(a.local().shape)), draw.flag()
    return lambda a: function(a, axis, keepdims=keepdims), [a]


@case(numpy.ptp)
def ranges(draw, function):
    a = draw.array(SIMPLE)
    axis, keepdims = draw.axes(len(a.local().shape)), draw.flag()
    return lambda a: function(a, axis, keepdims=keepdims), [a]


@case(numpy.cumsum, numpy.cumprod, numpy.nancumsum, numpy.nancumprod)
def scans(draw, function):
    a = draw.array_for(function)
    axis = draw.of(None, draw.axis(len(a.local().shape)))
    dtype = draw.dtype(NUMBERS) if draw.rarely() else None
    return lambda a: function(a, axis, dtype), [a]


@case(numpy.ufunc.reduce, numpy.ufunc.accumulate)
def ufunc_methods(draw, method):
    names = "add multiply minimum fmax logical_and logical_xor bitwise_or hypot gcd lcm logaddexp maximum"
    ufunc = getattr(numpy, draw.of(*names.split()))
    a = draw.array(SIMPLE)
    axis = draw.axis(len(a.local().shape))
    dtype = draw.dtype(NUMBERS) if draw.rarely() else None
    return lambda a: method(ufunc, a, axis, dtype), [a]


@case(numpy.ufunc.outer)
def outer_products(draw, method):
    ufunc = getattr(numpy, draw.of("add", "multiply", "less", "arctan2"))
    return lambda a, b: method(ufunc, a, b), [draw.array(SIMPLE, 0, 2), draw.array(SIMPLE, 0, 1)]


@case(numpy.linalg.norm)
def norms(draw, function):
    a = draw.array(NUMBERS)
    ndim = len(a.local().shape)
    axis = draw.of(None, draw.axis(ndim))
    order = draw.of(None, 0, 1, 2, 3, numpy.inf, -numpy.inf, -1, 0.5)
    if axis is None and ndim != 1:
        order = draw.of(None, None, "fro") if ndim == 2 else None
    keepdims = draw.flag()
    return lambda a: function(a, order, axis, keepdims), [a]


@case(numpy.array_equal, numpy.array_equiv)
def equalities(draw, function):
    a = draw.array()
    b = draw.of(a, draw.array(shape=draw.partner(a.local().shape)))
    if function is numpy.array_equiv:
        return function, [a, b]
    equal_nan = draw.flag()
    return lambda a, b: function(a, b, equal_nan), [a, b]


@case(numpy.histogram, numpy.histogram_bin_edges)
def histograms(draw, function):
    a = draw.array(NUMBERS + DATES)
    bins = draw.of(1, 7, [0, 1, 2], [-1.5, 0, 0.25, 9], [3, 1], 0)
    options = {"range": draw.of(None, None, (0, 1), (-1.5, 2.5), (3, 1))}
    if function is numpy.histogram and draw.flag():
        options["density"] = draw.flag()
    if function is numpy.histogram and draw.rarely():
        return lambda a, w: function(a, bins, weights=w, **options), [a, draw.array("biufc", shape=draw.partner(a.local().shape))]
    return lambda a: function(a, bins, **options), [a]


@case(numpy.bincount)
def bin_counts(draw, function):
    a = draw.array("iub", 1, 2, plain=True)
    minlength = draw.of(0, 0, 9, -1)
    if draw.flag():
        return lambda a, w: function(abs(a), w, minlength), [a, draw.array(REAL, shape=a.local().shape)]
    return lambda a: function(a, minlength=minlength), [a]
