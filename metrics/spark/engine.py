"""Queries of events on Spark, whose results go to the report's database in DuckDB.

A report queries the events a few times; each result has at most a row per connection and day. The
rest is some forty queries over these few rows. A cluster takes longer to plan each of them and to
send it to the executors than one machine takes to run it.
"""

from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import is_remote
from metrics.spark.files import HadoopFiles
from metrics.spark.lines import literal

_NOT_SHARED: Final = (
    "what Spark's executors write cannot be read here: on several machines --out must be an"
    " address, or a folder that all of them see"
)


class SparkEvents:
    """Events as temporary views of a Spark session; kept results are relations in DuckDB."""

    def __init__(self, spark: SparkSession, report: DuckEngine, shared: str, local: Path) -> None:
        """Pass results to `report`.

        `shared`: a folder or address that Spark's executors and this process can access. `local`:
        a folder of this machine. The caller cleans up both.
        """
        self._spark = spark
        self._report = report
        self._shared = shared
        self._local = local
        self._names: list[str] = []

    def read(self, rows: DataFrame, name: str = "log") -> None:
        """Name rows; `log` has the fields of the event log."""
        rows.createOrReplaceTempView(name)
        self._names.append(name)

    def view(self, name: str, query: str) -> None:
        """Name a query of events."""
        self.read(self._spark.sql(query), name)

    def keep(self, name: str, query: str) -> None:
        """Run a query of events, and pass the result to DuckDB.

        Raises ReportError if this process cannot read everything that Spark wrote."""
        path = f"{self._shared}/{name}"
        written = self._write(name, query, path)
        folder = Path(path)
        if is_remote(path):
            folder = self._local / name
            HadoopFiles(self._spark, path).download(path, folder)
        if not any(folder.glob("*.parquet")):
            raise ReportError(_NOT_SHARED)
        self._report.view_parquet(name, folder)
        counted = f"SELECT count(*) AS found FROM {name}"  # noqa: S608 - a name of `Analysis`
        if self._report.rows(counted) != [{"found": written}]:
            raise ReportError(_NOT_SHARED)

    def give(self, name: str) -> None:
        """Make a relation of the report's database available to queries of events."""
        folder = str(self._local / f"given-{name}")
        self._report.write(f"SELECT * FROM {name}", folder)  # noqa: S608 - a name of `Analysis`
        if is_remote(self._shared):
            local, folder = folder, f"{self._shared}/given-{name}"
            HadoopFiles(self._spark, self._shared).upload(local, folder)
        self.read(self._spark.read.parquet(literal(folder)), name)

    def close(self) -> None:
        """Drop all temporary views."""
        for name in self._names:
            self._spark.catalog.dropTempView(name)

    def _write(self, name: str, query: str, path: str) -> int:
        """Write the result of a query to a folder or address; return the number of rows."""
        observation = Observation(f"rows of {name}")
        rows = self._spark.sql(query).observe(observation, f.count(f.lit(1)).alias("rows"))
        rows.write.parquet(path)
        return int(observation.get["rows"])
