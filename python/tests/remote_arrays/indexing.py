"""Calls that read or change elements at indices."""

import operator

import numpy

from .comparison import case, outcome
from .operands import NUMBERS, SIMPLE, Operand, elements


def key_of(draw, shape):
    """A function that makes a key of an array, and the operands of that key: arrays of integers and masks. The key is rarely invalid."""
    parts, arrays, axis = [], [], 0
    has_ellipsis = False
    common = tuple(min(length, 6) for length in draw.shape(0, 2))
    while axis < len(shape) and len(parts) < 6:
        kind = draw.number(0, 11)
        if kind == 0:
            parts.append(None)
        elif kind == 1 and not has_ellipsis:
            parts.append(Ellipsis)
            has_ellipsis, axis = True, axis + draw.number(0, len(shape) - axis)
        elif kind in (2, 3):
            parts.append(draw.number(-max(1, shape[axis]), max(0, shape[axis] - 1)))
            axis += 1
        elif kind in (4, 5, 6):
            ends = [draw.of(None, draw.number(-7, 7)) for _ in range(2)]
            parts.append(slice(*ends, draw.of(None, 1, 2, -1, -3)))
            axis += 1
        elif kind == 7:
            depth = draw.number(0, min(2, len(shape) - axis))
            mask = draw.array("b", shape=shape[axis : axis + depth])
            arrays.append(mask)
            parts.append(mask)
            axis += depth
            if depth == 0:
                break
        else:
            arrays.append(draw.indices(shape[axis], draw.partner(common)))
            parts.append(arrays[-1])
            axis += 1
        if draw.rarely():
            break
    places = [index for index, part in enumerate(parts) if isinstance(part, Operand)]
    how = [draw.of("same", "same", "local", "list") for _ in places]

    def key(found):
        made = list(parts)
        for index, one, as_what in zip(places, found, how):
            if as_what != "same":
                one = numpy.asarray(one)
                one = one.tolist() if as_what == "list" and one.ndim else one
            made[index] = one
        return made[0] if len(made) == 1 else tuple(made)

    return key, arrays


@case(operator.getitem)
def selections(draw, _):
    a = draw.array()
    key, arrays = key_of(draw, a.local().shape)
    return lambda a, *arrays: a[key(arrays)], [a, *arrays]


@case(operator.setitem)
def assignments(draw, _):
    a = draw.array(NUMBERS + "U")
    shape = a.local().shape
    key, arrays = key_of(draw, shape)
    wanted = outcome(lambda *arrays: numpy.zeros(shape)[key(arrays)].shape, [one.local() for one in arrays])
    wanted = () if isinstance(wanted, Exception) else wanted
    value = draw.array(dtype=a.local().dtype, shape=draw.partner(wanted))

    def call(a, value, *arrays):
        if hasattr(a, "flags"):
            a = a.copy() if not a.flags.writeable else a
        elif any(stride == 0 and length > 1 for stride, length in zip(a.strides, a.shape)):
            a = a.copy()
        a[key(arrays)] = value[:1] if draw_scalar and value.ndim else value
        return a

    draw_scalar = draw.rarely()
    return call, [a, value, *arrays]


@case(numpy.ufunc.at)
def changes_at(draw, _):
    shape = draw.shape(1, 3)
    a = Operand(elements(numpy.random.default_rng(draw.number(0, 99)), draw.dtype("iuf"), shape, True))
    key, arrays = key_of(draw, shape)
    wanted = outcome(lambda *arrays: numpy.zeros(shape)[key(arrays)].shape, [one.local() for one in arrays])
    wanted = () if isinstance(wanted, Exception) else wanted
    value = draw.array(dtype=a.base.dtype, shape=draw.partner(wanted), plain=True)
    ufunc = draw.of(numpy.add, numpy.maximum)

    def call(a, value, *arrays):
        ufunc.at(a, key(arrays), value)
        return a

    return call, [a, value, *arrays]


@case(numpy.take)
def takes(draw, function):
    a = draw.array()
    axis = draw.of(None, draw.axis(len(a.local().shape)))
    length = a.local().size if axis is None else a.local().shape[axis] if -len(a.local().shape) <= axis < len(a.local().shape) else 3
    mode = draw.of("raise", "raise", "wrap", "clip")
    return lambda a, i: function(a, i, axis, mode=mode), [a, draw.indices(length)]


@case(numpy.compress)
def compressions(draw, function):
    a = draw.array()
    axis = draw.of(None, draw.axis(len(a.local().shape)))
    return lambda a, c: function(c, a, axis), [a, draw.array("b", 1, 1)]


@case(numpy.take_along_axis, numpy.put_along_axis)
def along_axes(draw, function):
    a = draw.array(least=1)
    shape = a.local().shape
    axis = draw.axis(len(shape))
    good = -len(shape) <= axis < len(shape)
    lengths = [draw.of(length, length, 1) for length in shape]
    if good:
        lengths[axis] = draw.number(0, 5)
    indices = draw.indices(shape[axis] if good else 1, tuple(lengths))
    if draw.rarely():
        axis = None
        indices = draw.indices(a.local().size, (draw.number(0, 9),))
    if function is numpy.take_along_axis:
        return lambda a, i: function(a, i, axis), [a, indices]

    def call(a, i):
        a = a.copy()
        function(a, i, a[:1].ravel()[:1] if a.size else 0, axis)
        return a

    return call, [a, indices]


@case(numpy.ix_)
def meshes(draw, function):
    a = draw.array(least=1)
    shape = a.local().shape
    arrays = [draw.array("b", shape=(length,)) if draw.rarely() else draw.indices(length, (draw.number(0, 9),)) for length in shape]
    return lambda a, *arrays: a[function(*arrays)], [a, *arrays]


@case(numpy.nonzero, numpy.argwhere, numpy.flatnonzero)
def nonzeros(draw, function):
    return function, [draw.array()]


@case(numpy.putmask, numpy.copyto, numpy.place)
def puts(draw, function):
    shape = draw.shape()
    a = Operand(elements(numpy.random.default_rng(draw.number(0, 99)), draw.dtype(SIMPLE), shape, True))
    mask = draw.array("b", shape=shape)
    values = draw.array(SIMPLE, shape=draw.of(shape, (), (1,)))

    def call(a, mask, values):
        if function is numpy.copyto:
            function(a, values, where=mask)
        else:
            function(a, mask, values)
        return a

    return call, [a, mask, values]
