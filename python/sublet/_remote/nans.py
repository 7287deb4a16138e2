"""Reductions and accumulations that ignore NaNs."""

import numpy

from . import scans
from .functions import implements
from .reductions import UNSET, fold, reduced_axes
from .statistics import folded, is_said, mask_of, mean, var


def _has_nans(array):
    return array.dtype.kind in "fc"


def _instead(value):
    """A function that replaces NaNs by a value."""
    return lambda values: numpy.where(numpy.isnan(values), values.dtype.type(value), values)


def _are_numbers(array, where):
    """A mask of the elements that another mask selects and that are not NaN."""
    numbers = ~numpy.isnan(array)
    return numbers if where is True else numpy.logical_and(numbers, where)


def _folding(ufunc, instead):
    def reduce(a, axis=None, dtype=None, out=None, keepdims=UNSET, initial=UNSET, where=UNSET):
        if not _has_nans(a):
            return folded(ufunc, a, axis, dtype, out, keepdims, initial, where)
        options = {"initial": UNSET if initial is None else initial, "where": mask_of(where)}
        return fold(ufunc, [a], axis, prepare=_instead(instead), dtype=dtype, out=out, keepdims=is_said(keepdims), **options)

    return reduce


implements(numpy.nansum)(_folding(numpy.add, 0))
implements(numpy.nanprod)(_folding(numpy.multiply, 1))


def _choosing(ufunc):
    def reduce(a, axis=None, out=None, keepdims=UNSET, initial=UNSET, where=UNSET):
        return folded(ufunc, a, axis, None, out, keepdims, initial, where)

    return reduce


implements(numpy.nanmin)(_choosing(numpy.fmin))
implements(numpy.nanmax)(_choosing(numpy.fmax))


@implements(numpy.nanmean)
def nanmean(a, axis=None, dtype=None, out=None, keepdims=UNSET, *, where=UNSET):
    if not _has_nans(a):
        return mean(a, axis, dtype, out, keepdims, where=where)
    _check_inexact(dtype)
    axis = _axis_of(a, axis)
    return mean(a, axis, dtype, out, keepdims, where=_are_numbers(a, mask_of(where)))


def _axis_of(array, axis):
    """The axis for `numpy.mean`. Only the functions that ignore NaNs accept an axis of an array without dimensions."""
    return None if array.ndim == 0 and reduced_axes(axis, 0) == () else axis


def _check_inexact(dtype):
    if dtype is not None and numpy.dtype(dtype).kind not in "fc":
        raise TypeError("If a is inexact, then dtype must be inexact")


@implements(numpy.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0, keepdims=UNSET, *, where=UNSET, mean=UNSET, correction=UNSET):
    options = {"mean": mean, "correction": correction}
    if not _has_nans(a):
        return var(a, axis, dtype, out, ddof, keepdims, where=where, **options)
    _check_inexact(dtype)
    axis = _axis_of(a, axis)
    numbers = _are_numbers(a, mask_of(where))
    made = var(a, axis, dtype, None, ddof, keepdims, where=numbers, **options)
    ddof = ddof if correction is UNSET else correction
    count = numpy.sum(numbers, axis, numpy.intp, keepdims=is_said(keepdims))
    made = numpy.where(count > ddof, made, made.dtype.type(numpy.nan))
    if out is None:
        return made[()] if isinstance(made, numpy.ndarray) else made
    numpy.copyto(out, made, casting="unsafe")
    return out


@implements(numpy.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0, keepdims=UNSET, **more):
    return numpy.sqrt(nanvar(a, axis, dtype, None, ddof, keepdims, **more), out=out)


def _finding(choose, instead):
    def find(a, axis=None, out=None, *, keepdims=UNSET):
        if not _has_nans(a):
            return scans.argument(choose, a, axis, out, is_said(keepdims))
        if a.size and numpy.any(fold(numpy.logical_and, [a], axis, prepare=numpy.isnan, dtype=bool)):
            raise ValueError("All-NaN slice encountered")
        return scans.argument(choose, a, axis, out, is_said(keepdims), prepare=_instead(instead))

    return find


implements(numpy.nanargmin)(_finding(numpy.argmin, numpy.inf))
implements(numpy.nanargmax)(_finding(numpy.argmax, -numpy.inf))


def _accumulating(ufunc, instead):
    def accumulate(a, axis=None, dtype=None, out=None):
        return scans.running(ufunc, a, axis, dtype, out, prepare=_instead(instead) if _has_nans(a) else None)

    return accumulate


implements(numpy.nancumsum)(_accumulating(numpy.add, 0))
implements(numpy.nancumprod)(_accumulating(numpy.multiply, 1))
