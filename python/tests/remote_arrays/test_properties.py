"""Compares every operation of remote arrays with NumPy's, with operands of drawn dtypes, shapes and layouts.

The working set is the smallest possible, so that arrays of few elements take many tiles. Each call is compared in two places: in
memory that is mapped into this process, and in memory that is read and written over the network.
"""

import numpy
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import sublet
from sublet import _remote

# Each registers its calls.
from . import elementwise, indexing, products, reducing, shapes, sorting  # noqa: F401
from .comparison import CASES, check
from .operands import Draw

WORKING_BYTES = 1024
# Ufuncs have one implementation, so that few calls of each are enough.
UFUNCS = [operation for operation in CASES if isinstance(operation, numpy.ufunc)]
OTHERS = [operation for operation in CASES if not isinstance(operation, numpy.ufunc)]


@pytest.fixture(scope="module")
def places(platform):
    options = {"client": platform, "working_set": WORKING_BYTES, "initial": "64KiB", "increment": "64KiB"}
    with sublet.remote(fabric="shm", **options) as near, sublet.remote(fabric="tcp", **options) as far:
        yield near, far


def drawn(examples):
    """The same calls in every run, and none to find a smaller one that fails, which takes minutes."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def names(operations):
    return [operation if isinstance(operation, str) else operation.__name__ for operation in operations]


def compare(places, operation, data):
    call, operands = CASES[operation](Draw(data), operation)
    note(f"operands: {operands}")
    check(places, call, operands)


@pytest.mark.parametrize("ufunc", UFUNCS, ids=names(UFUNCS))
@drawn(3)
@given(data=st.data())
def test_ufunc_agrees_with_numpy(places, ufunc, data):
    compare(places, ufunc, data)


@pytest.mark.parametrize("operation", OTHERS, ids=names(OTHERS))
@drawn(7)
@given(data=st.data())
def test_operation_agrees_with_numpy(places, operation, data):
    compare(places, operation, data)


def test_every_operation_is_compared():
    # `numpy.save` is tested with files.
    assert set(_remote.functions.TABLE) - set(CASES) == {numpy.ufunc, numpy.save}
