"""Answers questions about sales by lazy frames of Polars: in this process, and divided among leased cores.

    python examples/python/frames.py [--rows N] [--shops N]

The queries are the same. The example also prints the stages of the second form.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import sublet
import sublet.frame

try:
    import polars
except ImportError:
    sys.exit("this example needs polars: pip install 'polars==2.1.*'")


def write(folder, rows, shops):
    """Writes a table of sales, and one of shops."""
    number = polars.arange(0, rows, eager=True)
    sales = polars.DataFrame({"shop": number * 7919 % shops, "item": number * 104_729 % 5003, "price": number % 9973 * 0.25})
    sales.write_parquet(folder / "sales.parquet", row_group_size=max(1, rows // 16))
    names = polars.DataFrame({"shop": range(shops), "city": [f"city {shop % 11}" for shop in range(shops)]})
    names.write_parquet(folder / "shops.parquet")


def queries(folder):
    """The questions, each as a lazy frame."""
    sales, shops = polars.scan_parquet(folder / "sales.parquet"), polars.scan_parquet(folder / "shops.parquet")
    price = polars.col("price")
    by_city = sales.join(shops, on="shop").group_by("city").agg(price.sum().alias("total"), polars.len().alias("sales")).sort("city")
    dear = sales.group_by("shop", "item").agg(price.max().alias("most")).filter(polars.col("most") > 2400).sort("shop", "item")
    sql = "SELECT item, AVG(price) AS mean FROM sales GROUP BY item HAVING COUNT(*) > 1 ORDER BY mean DESC, item LIMIT 10"
    return {"by city": by_city, "dear items": dear, "best items": polars.SQLContext(sales=sales).execute(sql)}


def are_equal(one, other):
    """Whether two frames are equal, but for the last digits: sums of parts are added in another order."""
    from polars.testing import assert_frame_equal

    try:
        assert_frame_equal(one, other, rel_tol=1e-9)
    except AssertionError:
        return False
    return True


def platform():
    """Returns the platform of $SUBLET_MANAGER, or starts one for this program."""
    return contextlib.nullcontext() if "SUBLET_MANAGER" in os.environ else sublet.local()


def main():
    parser = argparse.ArgumentParser(description="Answers questions about sales by frames that are divided among leased cores.")
    parser.add_argument("--rows", type=int, default=5_000_000, help="sales [%(default)s]")
    parser.add_argument("--shops", type=int, default=200, help="shops [%(default)s]")
    parser.add_argument("--partitions", type=int, default=None, help="parts of the sales [the cores of the nodes]")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    options = parser.parse_args()

    figures = {"queries": {}, "equal": True}
    with tempfile.TemporaryDirectory() as name, platform():
        folder = Path(name)
        write(folder, options.rows, options.shops)
        for question, lazy in queries(folder).items():
            begun = time.perf_counter()
            local = lazy.collect()
            between = time.perf_counter()
            found = sublet.frame.run(lazy, partitions=options.partitions, patience=60)
            ended = time.perf_counter()
            figures["queries"][question] = {"local_s": between - begun, "leased_s": ended - between, "rows": found.height}
            figures["equal"] &= are_equal(found, local)
            if not options.json:
                print(f"{question}: {found.height} rows, {between - begun:.3f} s here, {ended - between:.3f} s on leased cores")
                print(sublet.frame.explain(lazy, partitions=options.partitions))
    if options.json:
        print(json.dumps(figures))
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
