"""Random queries of Polars over small frames, for the tests of frames."""

import math
import random

import polars

col = polars.col


class Queries:
    """Random queries over random frames of at most 40 rows."""

    def __init__(self, seed):
        self._random = random.Random(seed)

    def frame(self):
        count = self._random.randrange(0, 40)
        keys = [self._random.choice([None, *range(5)]) for _ in range(count)]
        words = [self._random.choice([None, "a", "b", "cc"]) for _ in range(count)]
        numbers = [self._random.choice([None, 0.0, -0.0, 1.5, -2.25, 8.0, math.nan]) for _ in range(count)]
        schema = {"key": polars.Int64, "word": polars.String, "number": polars.Float64, "row": polars.Int32}
        return polars.DataFrame({"key": keys, "word": words, "number": numbers, "row": list(range(count))}, schema=schema).lazy()

    def query(self):
        found = self.frame()
        for _ in range(self._random.randrange(1, 6)):
            found = getattr(self, self._random.choice(self.STEPS))(found)
        return found

    STEPS = ["filtered", "projected", "grouped", "joined", "distinct", "united", "aggregated", "windowed", "cut", "shared"]
    STEPS += ["ordered", "conditioned", "kept", "numbered", "grouped_by_number"]

    def predicate(self):
        keys = [col("key") > 1, col("number").is_null() | (col("key") == 2), col("row") % 3 != 0]
        return self._random.choice([*keys, col("word").is_in(["a", "b"]), col("word").str.starts_with("c")])

    def filtered(self, found):
        return found.filter(self.predicate())

    def projected(self, found):
        chosen = polars.when(col("key") > 2).then(col("number")).otherwise(0.5)
        return found.with_columns(number=self._random.choice([col("number") * 2, chosen, col("number").fill_null(1.0)]))

    def keys(self):
        return self._random.sample(["key", "word"], self._random.randrange(1, 3))

    def grouped(self, found):
        keys = self.keys()
        rest = [name for name in ("key", "word") if name not in keys]
        number = self._random.choice(
            [
                col("number").sum(),
                col("number").mean(),
                col("number").max() - col("number").min(),
                col("number").median(),
                col("row").filter(col("key") > 1).sum().cast(polars.Float64) / polars.len(),
            ]
        )
        row = self._random.choice([col("row").count().cast(polars.Int32), col("row").n_unique().cast(polars.Int32), col("row").max()])
        return found.group_by(keys).agg(number.alias("number"), row.alias("row"), *(col(name).max() for name in rest)).select(self.COLUMNS)

    COLUMNS = ["key", "word", "number", "row"]

    def joined(self, found):
        how = self._random.choice(["inner", "left", "semi", "anti", "full"])
        other, keys = self.frame(), self.keys()
        made = found.join(other, on=keys, how=how, nulls_equal=self._random.random() < 0.3, coalesce=True if how == "full" else None)
        return made.select(self.COLUMNS)

    def distinct(self, found):
        return found.select("key", "word").unique().with_columns(number=polars.lit(0.5), row=col("key").fill_null(0).cast(polars.Int32))

    def united(self, found):
        return polars.concat([found, self.frame(), found] if self._random.random() < 0.3 else [found, self.frame()])

    def aggregated(self, found):
        made = found.select(col("key").max(), col("word").min(), col("number").sum(), polars.len().cast(polars.Int32).alias("row"))
        return self.frame().join(made, how="cross", suffix="_all").with_columns(number=col("number_all")).select(self.COLUMNS)

    def windowed(self, found):
        return found.with_columns(number=col("number").sum().over("key"))

    def cut(self, found):
        return found.sort("key", "word", "number", "row").slice(self._random.randrange(0, 5), self._random.randrange(0, 30))

    def sorted(self, found):
        # Rows whose order is not defined have equal values.
        found = found.with_columns(col("number").round(6))
        return found.sort(self.COLUMNS, descending=self._random.random() < 0.5, nulls_last=self._random.random() < 0.5, maintain_order=True)

    def ordered(self, found):
        rest = [col("word").first(), col("number").last(), col("row").filter(col("row") >= col("row").mean()).first()]
        return self.sorted(found).group_by("key", maintain_order=self._random.random() < 0.5).agg(rest)

    def conditioned(self, found):
        conditions = [col("row") > col("row").mean(), col("row") == col("row").max(), polars.len() > 2, col("word").is_null()]
        key = self._random.choice([polars.lit(1).sum(), polars.lit(2).count(), col("row").sum()]).cast(polars.Int64)
        number = self._random.choice([col("row").sum(), col("row").mean(), col("row").count()]).cast(polars.Float64)
        row = col("row").filter(self._random.choice(conditions))
        chosen = [key.alias("key"), number.alias("number"), self._random.choice([row.sum(), row.max(), row.count()]).cast(polars.Int32).alias("row")]
        if self._random.random() < 0.3:
            return found.select(chosen).select(col("key"), polars.lit("a").alias("word"), "number", "row")
        return found.group_by("word").agg(chosen).select(self.COLUMNS)

    def kept(self, found):
        return self.sorted(found).unique(["key", "word"], keep=self._random.choice(["first", "last", "none"]), maintain_order=True)

    def numbered(self, found):
        made = self.sorted(found).with_row_index("index")
        return made.slice(self._random.randrange(-20, 5), 20).with_columns(row=col("index").cast(polars.Int32)).select(self.COLUMNS)

    def grouped_by_number(self, found):
        return found.group_by("number").agg(col("key").max(), col("word").min(), col("row").count().cast(polars.Int32)).select(self.COLUMNS)

    def shared(self, found):
        counts = found.group_by("key").agg(polars.len().alias("count"))
        return found.join(counts, on="key", how="left").with_columns(row=col("count").cast(polars.Int32)).select(self.COLUMNS)
