"""Engine of two: Spark for what is asked of the events, DuckDB for what is made of the answers.

Planning and starting a query takes Spark longer than answering most of them: of some fifty all but
a handful are about a row per connection and day, or less. Results go from one to the other as
Parquet.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.engine import Row
from metrics.spark.engine import SparkDialect, SparkEngine
from metrics.spark.sources import literal

_RELATION = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)")


class HybridEngine:
    """Names of both; a view of events is Spark's, and whatever is kept both know.

    What is spelled differently stands in queries about events alone, so the dialect is Spark's.
    """

    dialect = SparkDialect()

    def __init__(self, spark: SparkSession, scratch: Path) -> None:
        self._spark = spark
        self._scratch = scratch
        self._far = SparkEngine(spark, str(scratch))
        self._near = DuckEngine(scratch)
        self._of_events = {"log"}
        self._here: set[str] = set()
        """The names that only DuckDB knows."""

    def read(self, rows: DataFrame) -> None:
        """Give rows that have the fields of the log the name `log`."""
        self._far.read(rows)

    def view(self, name: str, query: str) -> None:
        """Give a query a name."""
        if self._asks_events(query):
            self._share(query)
            self._far.view(name, query)
            self._of_events.add(name)
        else:
            self._near.view(name, query)
            self._here.add(name)

    def keep(self, name: str, query: str) -> None:
        """Work a query out once."""
        if self._asks_events(query):
            self._share(query)
            self._far.keep(name, query)
            self._near.view_parquet(name, self._scratch / name)
        else:
            self._near.keep(name, query)
            self._here.add(name)

    def rows(self, query: str) -> list[Row]:
        """Answer a query about what is kept."""
        return self._near.rows(query)

    def write(self, query: str, folder: str | Path) -> None:
        """Write the answer to a query about what is kept as a Parquet file."""
        self._near.write(query, folder)

    def close(self) -> None:
        """Forget all names."""
        self._far.close()
        self._near.close()

    def _asks_events(self, query: str) -> bool:
        return not self._of_events.isdisjoint(_RELATION.findall(query))

    def _share(self, query: str) -> None:
        for name in self._unknown_to_spark(query):
            folder = self._scratch / "shared" / name
            self._near.write(f"FROM {name}", folder)
            self._far.read(self._spark.read.parquet(literal(str(folder))), name)
            self._here.discard(name)

    def _unknown_to_spark(self, query: str) -> Iterator[str]:
        yield from sorted(self._here.intersection(_RELATION.findall(query)))
