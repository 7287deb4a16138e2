"""Sizes in bytes, as users write them."""

import re

from . import _errors

_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(size):
    """Converts a size to bytes: a number, or text as `512MiB`."""
    if isinstance(size, int):
        return size
    matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", str(size))
    if matched is None:
        raise _errors.InvalidArgument(f"{size!r} is not a size: give a number of bytes, or text as '512MiB'")
    return int(float(matched[1]) * _UNITS[matched[2]])
