"""Calls that sort: orders, unique elements, quantiles and searches."""

import numpy

from .comparison import case
from .operands import REAL


@case(numpy.sort, numpy.argsort)
def sorts(draw, function):
    a = draw.array()
    axis = draw.of(None, draw.axis(len(a.local().shape)))
    kind = "stable" if function is numpy.argsort else draw.of(None, "stable", "heapsort")
    return lambda a: function(a, axis, kind=kind), [a]


@case(numpy.ndarray.sort)
def sorts_in_place(draw, _):
    a = draw.array(least=1)
    axis = draw.axis(len(a.local().shape))

    def call(a):
        a = a.copy()
        a.sort(axis)
        return a

    return call, [a]


@case(numpy.unique)
def uniques(draw, function):
    a = draw.array()
    options = {name: draw.flag() for name in ("return_index", "return_inverse", "return_counts")}
    if draw.rarely():
        # Without the indices NumPy finds NaNs in any order.
        options.update(equal_nan=False, return_index=True)
    if draw.rarely():
        options["axis"] = draw.axis(len(a.local().shape))
    return lambda a: function(a, **options), [a]


@case(*(getattr(numpy, name) for name in ("unique_values", "unique_counts", "unique_inverse", "unique_all") if hasattr(numpy, name)))
def uniques_by_name(draw, function):
    # Without the indices NumPy finds NaNs in any order.
    a = draw.array(plain=True if function.__name__ == "unique_inverse" else None)
    # NumPy does not promise an order of these.
    return lambda a: tuple(function(a)) if function is not numpy.unique_values else numpy.sort(function(a)), [a]


@case(numpy.median, numpy.nanmedian)
def medians(draw, function):
    a = draw.array_for(function)
    axis, keepdims = draw.axes(len(a.local().shape)), draw.flag()
    return lambda a: function(a, axis, keepdims=keepdims), [a]


@case(numpy.quantile, numpy.percentile, numpy.nanquantile, numpy.nanpercentile)
def quantiles(draw, function):
    a = draw.array_for(function)
    axis, keepdims = draw.axes(len(a.local().shape)), draw.flag()
    q = draw.of(0, 0.5, 1, 0.3, 2, [0.25, 0.5], [0, 1], [[0.1], [0.9]], [], numpy.float32(0.3), numpy.array([0.5], "f4"))
    if "percentile" in function.__name__:
        q = q * 100 if not isinstance(q, list) else [part * 100 if not isinstance(part, list) else [part[0] * 100] for part in q]
    if "nan" in function.__name__ and isinstance(axis, tuple) and numpy.ndim(q) > 1:
        # NumPy puts the dimensions of the result into a wrong order.
        axis = None
    return lambda a: function(a, q, axis, keepdims=keepdims), [a]


@case(numpy.searchsorted)
def searches(draw, function):
    dtype = draw.dtype()
    a = draw.array(dtype=dtype, least=1, most=1)
    v = draw.array(dtype=dtype if draw.flag() else draw.dtype(REAL))
    side = draw.of("left", "right")
    return lambda a, v: function(numpy.sort(a), v, side), [a, v]
