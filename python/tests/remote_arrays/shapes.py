"""Calls that change shapes, join and divide arrays."""

import numpy

from .comparison import case
from .operands import ALL, DATES, NUMBERS, SIMPLE


@case(numpy.pad)
def pads(draw, function):
    a = draw.array(SIMPLE)
    ndim = len(a.local().shape)
    widths = [(draw.number(0, 3), draw.number(0, 9)) for _ in range(ndim)] or 0
    width = draw.of(draw.number(0, 9), (1, 2), widths, -1 if draw.rarely() else 2)
    mode = draw.of("constant", "edge", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect", "symmetric", "wrap")
    options = {}
    if mode in ("maximum", "mean", "median", "minimum") and draw.flag():
        options["stat_length"] = draw.of(1, 2, (2, 3))
    if mode == "constant" and draw.flag():
        options["constant_values"] = draw.of(7, (1, 2))
    if mode == "linear_ramp" and draw.flag():
        options["end_values"] = draw.of(7, (1, 2))
    if mode in ("reflect", "symmetric") and draw.flag():
        options["reflect_type"] = draw.of("odd", "even")
    return lambda a: function(a, width, mode, **options), [a]


@case(numpy.triu, numpy.tril)
def triangles(draw, function):
    k = draw.number(-4, 4)
    return lambda a: function(a, k), [draw.array(least=draw.of(0, 1, 1, 1))]


@case(numpy.size)
def sizes(draw, function):
    a = draw.array()
    axis = draw.of(None, draw.axis(len(a.local().shape)))
    return lambda a: function(a, axis), [a]


@case(numpy.transpose, numpy.moveaxis, numpy.swapaxes, numpy.rollaxis, numpy.expand_dims, numpy.squeeze, numpy.flip)
def orders(draw, function):
    a = draw.array()
    ndim = len(a.local().shape)
    one, two = draw.axis(ndim), draw.axis(ndim)
    if function in (numpy.expand_dims,):
        return lambda a: function(a, one), [a]
    if function in (numpy.squeeze, numpy.flip):
        axes = draw.axes(ndim)
        return lambda a: function(a, axes), [a]
    if function is numpy.transpose:
        return function, [a]
    return lambda a: function(a, one, two), [a]


@case(numpy.broadcast_to)
def broadcasts(draw, function):
    shape = draw.shape()
    return lambda a: function(a, shape), [draw.array(shape=draw.partner(shape))]


@case(numpy.diagonal, numpy.trace)
def diagonals(draw, function):
    a = draw.array(NUMBERS)
    ndim = len(a.local().shape)
    offset, one, two = draw.number(-3, 3), draw.axis(ndim), draw.axis(ndim)
    return lambda a: function(a, offset, one, two), [a]


@case(numpy.rot90)
def rotations(draw, function):
    a, k = draw.array(least=1), draw.number(-1, 4)
    return lambda a: function(a, k), [a]


@case(numpy.split, numpy.array_split, numpy.hsplit, numpy.vsplit, numpy.dsplit)
def splits(draw, function):
    a = draw.array()
    sections = draw.of(1, 2, 3, [1, 4], [0, 2, 9])
    if function in (numpy.split, numpy.array_split):
        axis = draw.axis(len(a.local().shape))
        return lambda a: function(a, sections, axis), [a]
    return lambda a: function(a, sections), [a]


@case(numpy.shares_memory, numpy.may_share_memory)
def overlaps(draw, function):
    return lambda a: (function(a, a[:1]), function(a, a.copy())), [draw.array("f", 1, shape=(draw.number(1, 9),))]


@case(numpy.reshape, numpy.ravel)
def reshapes(draw, function):
    a = draw.array()
    order = draw.of("C", "C", "F", "A")
    if function is numpy.ravel:
        return lambda a: function(a, order), [a]
    size = a.local().size
    shape = draw.of(size, -1, (size, 1), (1, -1), (-1, 2), (2, -1, 1), (3, size // 3), ())
    return lambda a: function(a, shape, order), [a]


@case(numpy.concatenate, numpy.stack, numpy.vstack, numpy.hstack, numpy.column_stack, numpy.dstack)
def joints(draw, function):
    shape = draw.shape()
    kinds = draw.of(NUMBERS, NUMBERS, ALL)
    arrays = [draw.array(kinds, shape=shape) for _ in range(draw.number(1, 3))]
    if function in (numpy.concatenate, numpy.stack):
        axis = draw.axis(len(shape))
        dtype = draw.dtype("fc") if draw.rarely() else None
        return lambda *arrays: function(arrays, axis, dtype=dtype), arrays
    return lambda *arrays: function(arrays), arrays


@case(numpy.append)
def appends(draw, function):
    a = draw.array()
    axis = draw.of(None, draw.axis(len(a.local().shape)))
    return lambda a, b: function(a, b, axis), [a, draw.array(shape=a.local().shape)]


@case(numpy.roll)
def rolls(draw, function):
    a = draw.array()
    ndim = len(a.local().shape)
    # NumPy fails by accident where there are neither dimensions nor axes.
    axis, shift = draw.axes(ndim) if ndim else None, draw.of(draw.number(-9, 9), (1, -2))
    return lambda a: function(a, shift, axis), [a]


@case(numpy.tile)
def tiles(draw, function):
    reps = draw.of(2, (2,), (1, 3), (2, 1, 2), 0, ())
    return lambda a: function(a, reps), [draw.array()]


@case(numpy.repeat)
def repeats(draw, function):
    a = draw.array()
    axis = draw.of(None, draw.axis(len(a.local().shape)))
    repeats = draw.of(0, 2, 3, [2], [1, 2])
    return lambda a: function(a, repeats, axis), [a]


@case(numpy.diag)
def diagonal_matrices(draw, function):
    k = draw.number(-3, 3)
    return lambda a: function(a, k), [draw.array()]


@case(numpy.empty_like, numpy.zeros_like, numpy.ones_like, numpy.full_like)
def alike(draw, function):
    options = {"dtype": draw.dtype(NUMBERS)} if draw.rarely() else {}
    options.update({"shape": draw.shape()} if draw.rarely() else {})
    values = [3] if function is numpy.full_like else []

    def call(a):
        made = function(a, *values, **options)
        return (made.dtype, made.shape) if function is numpy.empty_like else made

    return call, [draw.array(NUMBERS + DATES)]
