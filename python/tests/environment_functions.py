"""Functions that tests call in environments: their module is imported there, so it imports nothing but the standard library."""

import importlib.util
import os
import sys


def look():
    import importlib.metadata
    import sys

    import alpha
    import beta

    with open(os.path.join(os.path.dirname(alpha.__file__), "data.txt")) as file:
        text = file.read()
    return alpha.value, beta.__file__, text, importlib.metadata.version("alpha"), sys.prefix


def find(name):
    return importlib.util.find_spec(name) is not None


def write():
    import beta

    errors = []
    for path in (beta.__file__, os.path.join(os.path.dirname(beta.__file__), "new.py")):
        try:
            with open(path, "a"):
                pass
        except OSError as error:
            errors.append(error.errno)
    return len(errors)


def started():
    import sys

    import deep

    return deep.value, "paths_started" in sys.modules


def beta():
    import beta

    return beta.value


def binary():
    import binary

    return binary.value


def tag():
    import many

    return many.tag


def name():
    return os.environ["NAME"]


def alpha_and_name():
    import alpha

    return alpha.value, name()


def is_imported(module):
    return module in sys.modules
