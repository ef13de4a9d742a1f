"""Events on Spark: what is asked of them, handed over to the report's database in DuckDB.

A report looks at the events a few times, and each answer has a row for a connection and day at
most. All that follows is some forty queries over these few rows: a cluster takes longer to plan
each of them, and to hand it to its executors, than one machine to answer it.
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
    """Events as temporary views of a session; what is worked out is a table of DuckDB's."""

    def __init__(self, spark: SparkSession, report: DuckEngine, shared: str, local: Path) -> None:
        """Hand over to `report`.

        `shared`: the folder, or address, that Spark's executors and this process reach. `local`:
        a folder of this machine. The caller empties both.
        """
        self._spark = spark
        self._report = report
        self._shared = shared
        self._local = local
        self._names: list[str] = []

    def read(self, rows: DataFrame, name: str = "log") -> None:
        """Give rows a name; `log` has the fields of the log."""
        rows.createOrReplaceTempView(name)
        self._names.append(name)

    def view(self, name: str, query: str) -> None:
        """Give a query of events a name."""
        self.read(self._spark.sql(query), name)

    def keep(self, name: str, query: str) -> None:
        """Work a query of events out, and hand the result over. Raises ReportError if what Spark
        wrote is not all here."""
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
        """Let queries of events use a relation of the report's database."""
        folder = str(self._local / f"given-{name}")
        self._report.write(f"SELECT * FROM {name}", folder)  # noqa: S608 - a name of `Analysis`
        if is_remote(self._shared):
            local, folder = folder, f"{self._shared}/given-{name}"
            HadoopFiles(self._spark, self._shared).upload(local, folder)
        self.read(self._spark.read.parquet(literal(folder)), name)

    def close(self) -> None:
        """Forget all names that Spark knows."""
        for name in self._names:
            self._spark.catalog.dropTempView(name)

    def _write(self, name: str, query: str, path: str) -> int:
        """Write the answer to a query into a folder or address; return the number of its rows."""
        observation = Observation(f"rows of {name}")
        rows = self._spark.sql(query).observe(observation, f.count(f.lit(1)).alias("rows"))
        rows.write.parquet(path)
        return int(observation.get["rows"])
