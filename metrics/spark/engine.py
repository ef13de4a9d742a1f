"""Engine on Spark, for what one machine does not hold, addresses, topics and states."""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from metrics.readiness.engine import Row
from metrics.spark.sources import literal


class SparkDialect:
    """Spark's spellings."""

    def field(self, items: str, name: str) -> str:
        """Give the list of one field of the structs in a list."""
        return f"{items}.{name}"

    def struct(self, fields: Mapping[str, str]) -> str:
        """Give a struct of named expressions."""
        parts = (f"'{name}', {text}" for name, text in fields.items())
        return f"named_struct({', '.join(parts)})"

    def fold(self, items: str, start: str, step: str) -> str:
        """Go through a list from `start`."""
        return f"aggregate({items}, {start}, (state, item) -> {step})"


class SparkEngine:
    """Temporary views of a session.

    `scratch`: the folder (or address) for what is kept in between, so that memory does not grow
    with the input; None: Spark's own memory. Who gives it empties it.
    """

    dialect = SparkDialect()

    def __init__(self, spark: SparkSession, scratch: str | None = None) -> None:
        self._spark = spark
        self._scratch = scratch
        self._names: list[str] = []

    def read(self, rows: DataFrame, name: str = "log") -> None:
        """Give rows a name; `log` has the fields of the log."""
        self._name(name, rows)

    def view(self, name: str, query: str) -> None:
        """Give a query a name."""
        self._name(name, self._spark.sql(query))

    def keep(self, name: str, query: str) -> None:
        """Work a query out once."""
        if self._scratch is None:
            self._name(name, self._spark.sql(query).localCheckpoint())
        else:
            self.store(name, query, f"{self._scratch}/{name}")

    def store(self, name: str, query: str, path: str) -> int:
        """Work a query out once, into a folder or address; return how many rows were written."""
        frame = self._spark.sql(query)
        observation = Observation(f"rows of {name}")
        frame.observe(observation, f.count(f.lit(1)).alias("rows")).write.parquet(path)
        self._name(name, self._spark.read.schema(frame.schema).parquet(literal(path)))
        return int(observation.get["rows"])

    def rows(self, query: str) -> list[Row]:
        """Answer a query."""
        return [row.asDict(recursive=True) for row in self._spark.sql(query).collect()]

    def write(self, query: str, folder: str | Path) -> None:
        """Write the answer to a query as Parquet files."""
        frame = self._spark.sql(query)
        (frame.coalesce(1) if self._scratch is None else frame).write.parquet(str(folder))

    def close(self) -> None:
        """Forget all names."""
        for name in self._names:
            self._spark.catalog.dropTempView(name)

    def _name(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(name)
        self._names.append(name)
