"""Shapes of arrays, in NumPy's terms. NumPy is optional."""


def _numpy():
    try:
        import numpy
    except ImportError as error:
        raise ImportError("arrays need NumPy: pip install 'sublet[arrays]'") from error
    return numpy


def nbytes_of(shape, dtype):
    """The shape and the dtype of an array in NumPy's own terms, and how many bytes it has."""
    numpy = _numpy()
    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise ValueError(f"objects cannot be shared: an array of dtype {dtype} has them")
    shape = (int(shape),) if isinstance(shape, (int, numpy.integer)) else tuple(int(length) for length in shape)
    if any(length < 0 for length in shape):
        raise ValueError("negative dimensions are not allowed")
    nbytes = dtype.itemsize
    for length in shape:
        nbytes *= length
    return shape, dtype, nbytes
