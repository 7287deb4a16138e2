"""Tables of pandas and Arrow in applications: their columns are handed on where they are."""

import numpy
import pytest

import sublet


pytestmark = pytest.mark.usefixtures("default")


def run(function, *args):
    """Runs an application that waits for the cores of other tests; returns its value, and the bytes that its memory components had."""
    outcome = sublet.app(function).options(patience=60).run(*args)
    return outcome.value, {part["component"]: part["used_bytes"] for part in outcome.components}


def test_columns_of_pandas_are_handed_on_without_a_copy():
    pandas = pytest.importorskip("pandas")

    def counts(n):
        import pandas

        frame = pandas.DataFrame({"a": numpy.arange(n), "b": numpy.arange(n) * 1.5})
        sublet.split()
        frame.loc[1, "b"] = 9
        total = frame.a.sum()
        sublet.split()
        text = str(frame.dtypes["a"])
        sublet.split()
        return frame, total, text

    count = 200_000
    (frame, total, text), used = run(counts, count)
    expected = pandas.DataFrame({"a": numpy.arange(count), "b": numpy.arange(count) * 1.5})
    expected.loc[1, "b"] = 9
    pandas.testing.assert_frame_equal(frame, expected)
    assert (total, text) == (expected.a.sum(), str(expected.dtypes["a"]))
    # A copy by each of three components would be three times as much.
    assert 16 * count <= used["frame"] < 20 * count


def test_frames_are_arguments():
    pandas = pytest.importorskip("pandas")

    def doubled(frame):
        frame["c"] = frame.a * 2
        sublet.split()
        return frame

    given = pandas.DataFrame({"a": numpy.arange(100_000), "b": [str(number) for number in range(100_000)]})
    found, _ = run(doubled, given)
    assert list(given) == ["a", "b"]
    given["c"] = given.a * 2
    pandas.testing.assert_frame_equal(found, given)


def test_columns_of_arrow_are_handed_on_without_a_copy():
    arrow = pytest.importorskip("pyarrow")

    def counts(n):
        import pyarrow
        import pyarrow.compute

        table = pyarrow.table({"a": numpy.arange(n), "b": [str(number) for number in range(n)]})
        sublet.split()
        total = pyarrow.compute.sum(table["a"]).as_py()
        sublet.split()
        names = table.column_names
        sublet.split()
        return table, total, names

    count = 100_000
    (table, total, names), used = run(counts, count)
    assert table.equals(arrow.table({"a": numpy.arange(count), "b": [str(number) for number in range(count)]}))
    assert (total, names) == (count * (count - 1) // 2, ["a", "b"])
    assert table.nbytes <= used["table"] < 1.5 * table.nbytes
