"""Calls of products, and of what is made of sums and differences along axes."""

import string

import numpy

from .comparison import case
from .operands import DTYPES, NUMBERS, SIMPLE


@case(numpy.dot, numpy.vdot, numpy.inner, numpy.outer, numpy.matmul)
def products(draw, function):
    a = draw.array(NUMBERS, plain=True)
    shape = a.local().shape
    other = draw.shape(0, 3)
    if function is numpy.vdot:
        other = shape
    elif function is numpy.inner and shape and other:
        other = (*other[:-1], shape[-1])
    elif function is not numpy.outer and shape and other and not draw.rarely():
        other = (*other[:-2], shape[-1], *other[-1:]) if len(other) > 1 else shape[-1:]
        if function is numpy.matmul:
            other = (*draw.partner(shape[:-2]), *other[-2:])
    return function, [a, draw.array(NUMBERS, shape=other, plain=True)]


@case(numpy.tensordot)
def tensor_products(draw, function):
    a = draw.array(NUMBERS, plain=True)
    shape = a.local().shape
    count = draw.number(0, len(shape))
    if draw.flag():
        b = draw.array(NUMBERS, shape=(*shape[len(shape) - count :], *draw.shape(0, 1)), plain=True)
        return lambda a, b: function(a, b, count), [a, b]
    ours = list(range(len(shape)))[:count]
    theirs = list(range(count))[::-1]
    b = draw.array(NUMBERS, shape=(*(shape[axis] for axis in ours[::-1]), *draw.shape(0, 2)), plain=True)
    return lambda a, b: function(a, b, (ours, theirs)), [a, b]


@case(numpy.einsum)
def sums_of_products(draw, function):
    lengths = {letter: draw.number(0 if draw.rarely() else 1, 5) for letter in "ijkl"}
    terms = ["".join(draw.of(*"ijkl") for _ in range(draw.number(0, 3))) for _ in range(draw.number(1, 3))]
    used = sorted(set("".join(terms)))
    output = "".join(letter for letter in used if draw.flag())
    text = ",".join(terms) + draw.of("", f"->{output}", f"->{output[::-1]}")
    shapes = [[1 if draw.rarely() else lengths[letter] for letter in term] for term in terms]
    operands = [draw.array(NUMBERS, shape=shape, plain=True) for shape in shapes]
    options = {"optimize": draw.of(False, False, True)}
    if draw.rarely():
        more = draw.of("->...", "")
        stacked = draw.array("f", shape=(2, *operands[0].local().shape), plain=True)
        text = ",".join(["..." + terms[0], *terms[1:]]) + (more and more + output)
        operands = [stacked, *operands[1:]]
    if draw.rarely():
        options["dtype"] = draw.of("f8", "c16", "i8")
        options["casting"] = draw.of("unsafe", "safe")
    if draw.rarely():
        lists = [[string.ascii_letters.index(letter) for letter in term] for term in terms]
        if "." not in text:
            return lambda *arrays: function(*(part for pair in zip(arrays, lists) for part in pair)), operands
    return lambda *arrays: function(text, *arrays, **options), operands


@case(numpy.cov, numpy.corrcoef)
def covariances(draw, function):
    m = draw.array(NUMBERS, 1, 2)
    rowvar = draw.flag()
    shape = m.local().shape
    if draw.flag():
        return lambda m: function(m, rowvar=rowvar), [m]
    if draw.flag() and function is numpy.cov:
        count = shape[-1] if rowvar or len(shape) == 1 else shape[0]
        bias, ddof = draw.flag(), draw.of(None, 0, 1)
        options = {"fweights": numpy.arange(count) % 3} if draw.flag() else {}
        options.update({"aweights": numpy.arange(count) / 2 + 0.5} if draw.flag() else {})
        return lambda m: function(m, None, rowvar, bias, ddof, **options), [m]
    return lambda m, y: function(m, y, rowvar), [m, draw.array(NUMBERS, shape=shape)]


@case(numpy.gradient)
def gradients(draw, function):
    # NumPy's gradient takes the bytes of big-endian dates in the wrong order.
    f = draw.array(dtype=draw.of(*(numpy.dtype(name) for kind in SIMPLE for name in DTYPES[kind] if not name.startswith(">M8"))), least=1)
    shape = f.local().shape
    axis = draw.of(None, draw.axis(len(shape)))
    order = draw.of(1, 1, 2)
    spacing = draw.of((), (2,), (0.5,), "coordinates")
    axes = range(len(shape)) if axis is None else [axis if -len(shape) <= axis < len(shape) else 0]
    # With coordinates of a single element NumPy's error is by accident about an index.
    if spacing == "coordinates" and min(shape[one] for one in axes) < 2:
        spacing = ()
    if spacing == "coordinates":
        spacing = tuple(numpy.arange(shape[one]) ** draw.of(1, 2) + 1.5 for one in axes)
    return lambda f: function(f, *spacing, axis=axis, edge_order=order), [f]


@case(numpy.diff, numpy.ediff1d)
def differences(draw, function):
    a = draw.array()
    if function is numpy.ediff1d:
        return function, [a]
    n, axis = draw.number(0, 3), draw.axis(len(a.local().shape))
    options = {name: draw.of(0, 1) for name in ("prepend", "append") if draw.rarely()}
    return lambda a: function(a, n, axis, **options), [a]
