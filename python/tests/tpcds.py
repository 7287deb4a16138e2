"""TPC-DS: its tables as Parquet, its queries, and the answers of DuckDB, which the tests of frames are compared with."""

import decimal

import pytest

# Queries that are executed as a whole, by the reason. `test_frame.py` asserts that no other is.
WHOLE = {
    "the function ListFunction.Length": [45],
    "the function fill_null_with_strategy": [51],
    "row_encode": [47, 57],
}
# Queries that Polars' SQL cannot parse, by its message: version 2.1 parses all.
NOT_PARSED = {}


class Benchmark:
    """The tables of a scale in a folder, and a database over them."""

    def __init__(self, folder, scale):
        duckdb = pytest.importorskip("duckdb")
        pytest.importorskip("duckdb_extension_tpcds")
        from duckdb_extensions import import_extension

        import_extension("tpcds")
        self._database = duckdb.connect()
        self._database.execute("LOAD tpcds")
        self._database.execute(f"CALL dsdgen(sf={scale})")
        self.files = {}
        for (table,) in self._database.execute("SHOW TABLES").fetchall():
            self.files[table] = folder / f"{table}.parquet"
            self._database.execute(f"COPY {table} TO '{self.files[table]}' (FORMAT parquet, ROW_GROUP_SIZE 20480)")
        #: Texts of the queries by their numbers.
        self.queries = dict(self._database.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall())

    def tables(self):
        """Lazy frames of the tables, by their names."""
        import polars

        return {name: polars.scan_parquet(file) for name, file in self.files.items()}

    def lazy(self, number):
        """A query as a lazy frame."""
        import polars

        return polars.SQLContext(self.tables()).execute(self.queries[number])

    def answer(self, number):
        """The rows that DuckDB finds."""
        return self._database.execute(self.queries[number]).fetchall()


def _comparable(value):
    if value is None:
        return 0, 0.0, ""
    if isinstance(value, (int, float, decimal.Decimal)):
        return 1, float(value), ""
    return 2, 0.0, str(value)


def _is_close(one, other):
    return one[0] == other[0] and one[2] == other[2] and abs(one[1] - other[1]) <= 1e-6 * max(1.0, abs(one[1]), abs(other[1]))


def _ordered(rows):
    made = [[_comparable(value) for value in row] for row in rows]
    return sorted(made, key=lambda row: [(kind, round(number, 3), text) for kind, number, text in row])


def are_equal(rows, others):
    """Whether two results have the same rows, in any order. Numbers may differ in the last digits: they are added in another order."""
    rows, others = _ordered(rows), _ordered(others)
    return len(rows) == len(others) and all(len(a) == len(b) and all(map(_is_close, a, b)) for a, b in zip(rows, others))
