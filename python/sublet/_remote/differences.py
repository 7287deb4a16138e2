"""Differences along axes."""

import numpy

from .array import is_array
from .functions import implements
from .reductions import normal_axes
from .shapes import concatenate


@implements(numpy.diff)
def diff(array, n=1, axis=-1, prepend=numpy._NoValue, append=numpy._NoValue):
    if n == 0:
        return array
    if n < 0:
        raise ValueError(f"order must be non-negative but got {n!r}")
    if array.ndim == 0:
        raise ValueError("diff requires input that is at least one dimensional")
    (axis,) = normal_axes(axis, array.ndim)
    parts = [part for part in (prepend, array, append) if part is not numpy._NoValue]
    if len(parts) > 1:
        shape = [1 if index == axis else length for index, length in enumerate(array.shape)]
        parts = [part if is_array(part) else numpy.asarray(part) for part in parts]
        array = concatenate([part if part.ndim else numpy.broadcast_to(part, shape) for part in parts], axis)
    subtract = numpy.not_equal if array.dtype == bool else numpy.subtract
    before = (slice(None),) * axis
    for _ in range(n):
        array = subtract(array[(*before, slice(1, None))], array[(*before, slice(None, -1))])
    return array


@implements(numpy.ediff1d)
def ediff1d(array, to_end=None, to_begin=None):
    array = numpy.ravel(array)
    made = numpy.subtract(array[1:], array[:-1])
    ends = [None if end is None else numpy.ravel(end if is_array(end) else numpy.asarray(end)) for end in (to_begin, to_end)]
    for end in ends:
        if end is not None and not numpy.can_cast(end.dtype, array.dtype, "same_kind"):
            raise TypeError(f"dtype of to_begin and to_end must be compatible with {array.dtype!r}")
    parts = [ends[0], made, ends[1]]
    return concatenate([part.astype(made.dtype) for part in parts if part is not None]) if any(end is not None for end in ends) else made


@implements(numpy.gradient)
def gradient(f, *varargs, axis=None, edge_order=1):
    axes = normal_axes(axis, f.ndim)
    spacings = _spacings(f, axes, varargs)
    if edge_order > 2:
        raise ValueError("'edge_order' greater than 2 not supported")
    dtype = f.dtype
    if dtype.kind == "M":
        dtype = numpy.dtype(dtype.str.replace("M8", "m8"))
        f = f.view(dtype)
    elif dtype.kind not in "fcm":
        if dtype.kind in "iu":
            f = f.astype(float)
        dtype = numpy.dtype(float)
    made = []
    for one, spacing in zip(axes, spacings):
        if f.shape[one] < edge_order + 1:
            raise ValueError(f"a gradient of order {edge_order} needs {edge_order + 1} elements, but axis {one} has {f.shape[one]}")
        made.append(_along(f, one, spacing, dtype, edge_order))
    return made[0] if len(made) == 1 else tuple(made)


def _spacings(f, axes, given):
    """The distance between elements along each axis: one number, or one for each two elements."""
    if len(given) == 0:
        return [1.0] * len(axes)
    if len(given) == 1 and numpy.ndim(given[0]) == 0:
        return list(given) * len(axes)
    if len(given) != len(axes):
        raise TypeError("invalid number of arguments")
    spacings = []
    for one, distances in zip(axes, given):
        distances = distances if is_array(distances) else numpy.asarray(distances)
        if distances.ndim == 0:
            spacings.append(distances[()])
            continue
        if distances.ndim != 1:
            raise ValueError("distances must be either scalars or 1d")
        if len(distances) != f.shape[one]:
            raise ValueError("when 1d, distances must match the length of the corresponding dimension")
        distances = distances.astype(float) if distances.dtype.kind in "iu" else distances
        steps = numpy.diff(distances)
        is_even = len(steps) > 0 and bool(numpy.all(steps == steps[0]))
        spacings.append(steps[0] if is_even else steps)
    return spacings


def _along(f, axis, spacing, dtype, edge_order):
    """The gradient along one axis: central differences, and at both edges one-sided differences of the given order."""
    made = f.place.laid_out(f.shape, dtype, [f])

    def at(array, begin, end=None):
        return array[(*(slice(None),) * axis, slice(begin, end))]

    is_even = numpy.ndim(spacing) == 0
    if is_even:
        at(made, 1, -1)[...] = (at(f, 2) - at(f, None, -2)) / (2.0 * spacing)
    else:
        one, other = spacing[:-1], spacing[1:]
        factors = -other / (one * (one + other)), (other - one) / (one * other), one / (other * (one + other))
        a, b, c = (factor[(..., *(None,) * (f.ndim - axis - 1))] for factor in factors)
        at(made, 1, -1)[...] = a * at(f, None, -2) + b * at(f, 1, -1) + c * at(f, 2)
    steps = [spacing] * edge_order if is_even else spacing
    first = [at(f, index, index + 1) for index in range(edge_order + 1)]
    last = [at(f, index, index + 1 or None) for index in range(-edge_order - 1, 0)]
    at(made, 0, 1)[...] = _at_edge(first, steps[:edge_order], is_even, is_last=False)
    at(made, -1)[...] = _at_edge(last, steps[-edge_order:], is_even, is_last=True)
    return made


def _at_edge(values, steps, is_even, is_last):
    """The gradient at the first or the last of a few elements, between which there are steps."""
    if len(values) == 2:
        return (values[1] - values[0]) / steps[0]
    one, other = steps
    if is_even:
        factors = (0.5 / one, -2.0 / one, 1.5 / one) if is_last else (-1.5 / one, 2.0 / one, -0.5 / one)
    elif is_last:
        factors = other / (one * (one + other)), -(other + one) / (one * other), (2.0 * other + one) / (other * (one + other))
    else:
        factors = -(2.0 * one + other) / (one * (one + other)), (one + other) / (one * other), -one / (other * (one + other))
    return factors[0] * values[0] + factors[1] * values[1] + factors[2] * values[2]
