"""Results of the queries: rows for the page, and Parquet tables."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from metrics.spark import analysis
from metrics.spark.cleaning import Cleaned
from metrics.spark.clients import CLIENT_KEY
from metrics.spark.denials import denials, denied_resources
from metrics.spark.readiness import breaking_software, principals, rank
from metrics.spark.sources import literal
from metrics.spark.spark_session import another_session, tune_for_little

MAX_ROWS = 5_000
"""The number of clients, and of principals, on the page; the tables hold all."""

BUSIEST = 20
"""The number of minutes that are listed as storms."""

_SHOWN = ("sessions", "clients")
"""The DataFrames that most tables are made from and that are tables of the report themselves."""

FEW_CONNECTIONS = 200_000
"""The number of connections up to which queries are not compiled, as that takes longer."""


Progress = Callable[[str], None]


class Results:
    """Rows for the page, in `rows`, and Parquet tables below `out`.

    `small`: what is used several times is kept by Spark; else in files, so that memory does not
    grow with the input. A context manager: what is kept in between goes at its end.
    """

    def __init__(self, spark: SparkSession, out: Path, progress: Progress, *, small: bool) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._reader = spark if small else another_session(spark)
        self._progress = progress
        self._small = small
        self._tables = (out / "tables").absolute()
        self._out = out

    def __enter__(self) -> Self:
        shutil.rmtree(self._tables, ignore_errors=True)
        self._tables.mkdir(parents=True)
        self._scratch = Path(tempfile.mkdtemp(prefix=".kept-", dir=self._out.absolute()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def scratch(self, name: str, frame: DataFrame) -> DataFrame:
        """Compute a table once; what comes after it need not know how it was made.

        Not by `persist`: the whole plan would be gone through again for each use.
        """
        return (
            frame.localCheckpoint() if self._small else self._written(self._scratch / name, frame)
        )

    def table(self, name: str, frame: DataFrame) -> DataFrame:
        """Keep a DataFrame in the same way, as a table of the report."""
        if self._small:
            frame = frame.localCheckpoint()
            frame.coalesce(1).write.parquet(str(self._tables / name))
            return frame
        return self._written(self._tables / name, frame)

    def _written(self, path: Path, frame: DataFrame) -> DataFrame:
        frame.write.mode("overwrite").parquet(str(path))
        return self._reader.read.schema(frame.schema).parquet(literal(str(path)))

    def collect(
        self, read: Cleaned, lifetimes_ms: tuple[int, ...], asked_for: Sequence[str]
    ) -> None:
        """Run the queries, a few at a time: each by itself leaves processors idle.

        `asked_for` are principals to look for among all of them.
        """
        if read.connections <= FEW_CONNECTIONS:
            tune_for_little(self._reader)
        known = analysis.base_tables(
            read.events,
            read.usage,
            lambda name, frame: (self.table if name in _SHOWN else self.scratch)(name, frame),
            connections=read.connections,
            open_ms=read.open_ms,
            incomplete=read.incomplete,
        )
        steps: list[Callable[[], None]] = [
            lambda: self._what_if(known, lifetimes_ms),
            lambda: self._clients(known),
            lambda: self._principals(known, asked_for),
            *(self._step(name, known) for name in analysis.TABLES),
        ]
        self.rows |= {"denied_resources": [], "denied_count": [{"resources": 0}]}
        if read.denied:
            steps.append(lambda: self._denials(known))
        with ThreadPoolExecutor(max_workers=3) as pool:
            for running in [pool.submit(step) for step in steps]:
                running.result()

    def _what_if(self, known: analysis.BaseTables, lifetimes_ms: tuple[int, ...]) -> None:
        table = analysis.what_if_table(known, lifetimes_ms, self.scratch)
        self._keep("what_if", self.table("what_if", table))

    def _clients(self, known: analysis.BaseTables) -> None:
        self._keep("clients", known.clients.orderBy(rank(), *CLIENT_KEY))
        self._keep("upgrades", known.clients.transform(breaking_software))
        verdicts = known.clients.groupBy("verdict").agg(
            f.count(f.lit(1)).alias("clients"),
            f.sum("connections").alias("connections"),
            f.min("first_seen_ms").alias("from_ms"),
            f.max("last_seen_ms").alias("to_ms"),
        )
        self._keep("clients_by_verdict", verdicts)

    def _principals(self, known: analysis.BaseTables, asked_for: Sequence[str]) -> None:
        rows = self.table("principals", known.clients.transform(principals))
        self._keep("principals", rows.orderBy(rank(), "principal"))
        enforceable = rows.where("enforceable").select("principal", "listeners")
        self._keep("enforceable", enforceable.orderBy("principal"))
        counts = rows.groupBy("verdict").agg(f.count(f.lit(1)).alias("principals"))
        self._keep("principals_by_verdict", counts)
        if asked_for:
            self._keep("asked_for", rows.where(f.col("principal").isin(*asked_for)))

    def _denials(self, known: analysis.BaseTables) -> None:
        resources = self.table("denials", known.events.transform(denials)).transform(
            denied_resources
        )
        # by turns: who was denied a great deal pushes out nobody else
        self._keep("denied_resources", resources.orderBy("place", "principal"))
        counts = resources.agg(f.count(f.lit(1)).alias("resources"))
        self._keep("denied_count", counts)

    def _step(self, name: str, known: analysis.BaseTables) -> Callable[[], None]:
        def step() -> None:
            frame = self.table(name, analysis.TABLES[name](known))
            if name == "storms":
                self._keep("storm_profile", analysis.storm_plot(frame))
                frame = frame.orderBy(f.desc("authentications"), "minute_ms", "mechanism").limit(
                    BUSIEST
                )
            self._keep(name, frame)

        return step

    def _keep(self, name: str, frame: DataFrame) -> None:
        self.rows[name] = [row.asDict(recursive=True) for row in frame.limit(MAX_ROWS).collect()]
        self._progress(f"{name.replace('_', ' ')} done")
