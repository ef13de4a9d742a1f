"""Engine of two: Spark answers what is asked of the events, DuckDB what is made of its answers.

A report looks at the events a few times, and each answer has a row for a connection and day at
most. All that follows is some forty queries over these few rows: a cluster takes longer to plan
each of them, and to hand it to its executors, than one machine to answer it.
"""

import re
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.engine import Row
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import is_remote
from metrics.spark.engine import SparkDialect, SparkEngine
from metrics.spark.files import HadoopFiles
from metrics.spark.sources import literal

_NOT_SHARED: Final = (
    "what Spark's executors write cannot be read here: on several machines --out must be an"
    " address, or a folder that all of them see"
)
_RELATION: Final = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)")


class DividedEngine:
    """Spark for relations that have rows for events, DuckDB for those that were worked out.

    Only what is asked of events is spelled in more than one way, so the spellings are Spark's.
    """

    dialect = SparkDialect()

    def __init__(self, spark: SparkSession, here: DuckEngine, shared: str, local: Path) -> None:
        """Divide the queries.

        `shared`: the folder, or address, that Spark's executors and this process reach. `local`:
        a folder of this machine. Who gives them empties them.
        """
        self._spark = spark
        self._there = SparkEngine(spark)
        self._here = here
        self._shared = shared
        self._local = local
        self._of_events = {"log"}
        """The relations that only Spark has."""
        self._of_answers: set[str] = set()
        """The relations that only DuckDB has."""

    def read(self, rows: DataFrame) -> None:
        """Give rows the name `log`."""
        self._there.read(rows)

    def view(self, name: str, query: str) -> None:
        """Give a query a name."""
        if self._asks_events(query):
            self._there.view(name, query)
            self._of_events.add(name)
        else:
            self._here.view(name, query)
            self._of_answers.add(name)

    def keep(self, name: str, query: str) -> None:
        """Work a query out once. Raises ReportError if what Spark wrote is not all here."""
        if not self._asks_events(query):
            self._here.keep(name, query)
            self._of_answers.add(name)
            return
        path = f"{self._shared}/{name}"
        written = self._there.store(name, query, path)
        folder = Path(path)
        if is_remote(path):
            folder = self._local / name
            HadoopFiles(self._spark, path).download(path, folder)
        if not any(folder.glob("*.parquet")):
            raise ReportError(_NOT_SHARED)
        self._here.view_parquet(name, folder)
        counted = f"SELECT count(*) AS found FROM {name}"  # noqa: S608 - a name of `Analysis`
        if self._here.rows(counted) != [{"found": written}]:
            raise ReportError(_NOT_SHARED)

    def rows(self, query: str) -> list[Row]:
        """Answer a query."""
        return (self._there if self._asks_events(query) else self._here).rows(query)

    def write(self, query: str, folder: str | Path) -> None:
        """Write the answer to a query, which asks no events, as a Parquet file."""
        self._here.write(query, folder)

    def close(self) -> None:
        """Forget all names that Spark knows."""
        self._there.close()

    def _asks_events(self, query: str) -> bool:
        """Return whether a query is Spark's, which is then given what it lacks."""
        names = set(_RELATION.findall(query))
        if not names & self._of_events:
            return False
        for name in names & self._of_answers:
            self._give(name)
        return True

    def _give(self, name: str) -> None:
        """Let Spark have a relation of DuckDB's, too."""
        folder = str(self._local / f"given-{name}")
        self._here.write(f"SELECT * FROM {name}", folder)  # noqa: S608 - a name of `Analysis`
        if is_remote(self._shared):
            local, folder = folder, f"{self._shared}/given-{name}"
            HadoopFiles(self._spark, self._shared).upload(local, folder)
        self._there.read(self._spark.read.parquet(literal(folder)), name)
        self._of_answers.remove(name)
