"""Covariances and correlations, which are products of a table and its transpose."""

import numpy

from .array import is_array
from .functions import implements
from .products import dot


@implements(numpy.cov)
def cov(m, y=None, rowvar=True, bias=False, ddof=None, fweights=None, aweights=None, *, dtype=None):
    m, y = (array if array is None or is_array(array) else numpy.asarray(array) for array in (m, y))
    given = [array for array in (m, y) if array is not None]
    if any(array.ndim > 2 for array in given):
        raise ValueError("m and y have at most 2 dimensions")
    if ddof is not None and ddof != int(ddof):
        raise ValueError("ddof must be integer")
    dtype = numpy.result_type(*(array.dtype for array in given), float) if dtype is None else dtype
    table = numpy.atleast_2d(m.astype(dtype))
    if not rowvar and m.ndim != 1:
        table = table.T
    if table.shape[0] == 0:
        return numpy.zeros((0, 0))
    if y is not None:
        more = numpy.atleast_2d(y.astype(dtype))
        table = numpy.concatenate([table, more if rowvar or more.shape[0] == 1 else more.T], 0)
    weights = _weights(fweights, aweights, table.shape[1])
    mean, total = numpy.average(table, 1, weights, returned=True)
    total = total[0]
    ddof = (0 if bias else 1) if ddof is None else ddof
    if weights is None:
        count = table.shape[1] - ddof
    elif ddof == 0 or aweights is None:
        count = total - ddof
    else:
        count = total - ddof * numpy.sum(weights * aweights) / total
    table = table - mean[:, None]
    other = table.T if weights is None else (table * weights).T
    made = dot(table, numpy.conjugate(other))
    made *= numpy.true_divide(1, max(count, 0.0))
    return numpy.squeeze(made)


def _weights(fweights, aweights, length):
    """The product of both kinds of weights, None without any."""
    weights = None
    for name, one in (("fweights", fweights), ("aweights", aweights)):
        if one is None:
            continue
        one = (one if is_array(one) else numpy.asarray(one)).astype(float)
        if name == "fweights" and not numpy.all(one == numpy.round(one)):
            raise TypeError("fweights must be integer")
        if one.ndim > 1 or one.shape != (length,):
            raise RuntimeError(f"{name} of shape {one.shape} for {length} observations")
        if numpy.any(one < 0):
            raise ValueError(f"{name} cannot be negative")
        weights = one if weights is None else weights * one
    return weights


@implements(numpy.corrcoef)
def corrcoef(x, y=None, rowvar=True, *_, dtype=None):
    made = cov(x, y, rowvar, dtype=dtype)
    if made.ndim == 0:
        return made / made
    deviations = numpy.sqrt(numpy.diagonal(made).real)
    made /= deviations[:, None]
    made /= deviations[None, :]
    for part in (made.real, made.imag) if made.dtype.kind == "c" else (made,):
        numpy.clip(part, -1, 1, out=part)
    return made
