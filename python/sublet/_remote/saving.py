"""Arrays in files of NumPy's format: the header, then the elements tile by tile."""

import contextlib
import os

import numpy

from . import stream
from .functions import implements


@implements(numpy.save)
def save(file, arr, allow_pickle=True, fix_imports=True):
    """`numpy.save`. `numpy.load(path, mmap_mode="r")` reads it, and `asarray` of a place copies that by tiles."""
    if hasattr(file, "write"):
        opened = contextlib.nullcontext(file)
    else:
        name = os.fspath(file)
        opened = open(name if name.endswith(".npy") else name + ".npy", "wb")  # noqa: SIM115
    with opened as written:
        _write(written, arr)


def _write(file, array):
    header = numpy.lib.format.header_data_from_array_1_0(array._shadow)
    try:
        numpy.lib.format.write_array_header_1_0(file, header)
    except ValueError:
        # A description of more than 64 KiB.
        numpy.lib.format.write_array_header_2_0(file, header)
    array = array.T if header["fortran_order"] else array
    for _, (values,) in stream.in_order([array], array.shape, array.place.working_bytes):
        file.write(numpy.ascontiguousarray(values).reshape(-1).view("u1"))
