"""Warnings that name the program's own line."""

import sys
import warnings


def warn(text):
    """Warns at the first frame that is not of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)
