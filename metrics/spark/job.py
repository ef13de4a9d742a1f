"""Readiness report with Spark, on one machine or as the driver that spark-submit starts.

Spark reads the events that DuckDB cannot read, and on a cluster it also runs the queries of events.
DuckDB, in the driver, runs all others: Spark takes longer to plan most of them than DuckDB to run
them.
"""

import os
import re
from collections.abc import Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from metrics.readiness import job
from metrics.readiness.analysis import Analysis, Progress
from metrics.readiness.duckdb_engine import DuckEngine, duckdb_errors
from metrics.readiness.errors import ReportError
from metrics.readiness.events import DDL
from metrics.readiness.folder import Folder, event_files, held, is_remote
from metrics.readiness.output import CSV, RUN_ID, RUNS, TABLES, Staging, publish, run_of
from metrics.readiness.settings import Settings
from metrics.report.write import JSON_NAME, METRICS_NAME, PAGE_NAME
from metrics.spark.error_messages import SPARK_ERRORS, explained
from metrics.spark.files import HadoopFiles
from metrics.spark.lines import event_rows, holds_parquet, literal
from metrics.spark.spark_session import make_session, wait_for_executor

_NOT_SHARED: Final = (
    "what Spark's executors write cannot be read here: on several machines --out must be an"
    " address, or a folder that all of them see"
)


def run(settings: Settings, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Make the report; see `metrics.readiness.job.run`."""
    put = partial(_publish_at, settings.out) if is_remote(settings.out) else publish
    return job.run(settings, progress, analysed, put)


def analysed(settings: Settings, made: Staging, progress: Progress) -> tuple[Analysis, str]:
    """Run the analysis; return it with the name of its engine.

    Raises ReportError, with Spark's errors explained.
    """
    progress("starting Spark")
    folder = None
    if settings.topic is None and not is_remote(settings.events):
        folder = event_files(settings.events)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started the JVM
    master = settings.master or (None if is_submitted else "local[*]")
    try:
        spark = make_session(
            master=master,
            input_bytes=None if folder is None else folder.line_bytes,
            log=None if master is None else made.folder.parent / "spark.log",
        )
        wait_for_executor(spark)
        if settings.topic is None and is_remote(settings.events):
            for each in HadoopFiles(spark, settings.events).matched(settings.events):
                settings.check_outside(each)
        if is_remote(settings.out):  # fails before the work if the address is wrong
            HadoopFiles(spark, settings.out).make(_run_folder(settings.out, made))
        state = settings.state
        with nullcontext() if state is None or is_remote(state) else held(Path(state)):
            ask = _by_duckdb if is_one_machine(spark) else _by_both
            return ask(spark, settings, made, progress)
    except SPARK_ERRORS as error:
        raise ReportError(explained(error)) from error


def is_one_machine(spark: SparkSession) -> bool:
    """Return True if Spark runs only in this process, without separate executors."""
    return re.match(r"local(\[|$)", str(spark.sparkContext.master)) is not None


def _by_duckdb(
    spark: SparkSession, settings: Settings, made: Staging, progress: Progress
) -> tuple[Analysis, str]:
    events, found, place = settings.events, None, made.scratch / "fetched"
    if settings.topic is not None or settings.state is not None:
        found = _files_of(event_rows(spark, settings), settings.state, place)
    elif is_remote(events):
        holds_parquet(spark, events)  # raises a clear error for a wrong address
        HadoopFiles(spark, events).download(events, place)
        events = str(place)

    def read(engine: DuckEngine, broken: Mapping[Path, str]) -> None:
        engine.read(found or event_files(events, broken))

    analysis = job.answered(read, settings, made, progress)
    return analysis, "duckdb" if found is None else "spark+duckdb"


def _files_of(rows: DataFrame, state: str | None, place: Path) -> Folder:
    """Return local Parquet files with the rows: those of a local state, or new ones."""
    if state is not None and not is_remote(state):
        files = [Path(unquote(urlsplit(each).path)) for each in rows.inputFiles()]
    else:
        rows.write.parquet(str(place))
        files = list(place.glob("*.parquet"))
    return Folder(sorted(files), parquet=True)


def _by_both(
    spark: SparkSession, settings: Settings, made: Staging, progress: Progress
) -> tuple[Analysis, str]:
    shared = str(made.scratch)
    if is_remote(settings.out):
        shared = f"{_run_folder(settings.out, made)}/{_SCRATCH}"
    rows = event_rows(spark, settings)
    is_parquet = settings.topic is None and holds_parquet(spark, settings.events)
    if settings.state is None and not is_parquet:
        rows.write.parquet(f"{shared}/rows")  # lines are parsed once
        rows = spark.read.schema(DDL).parquet(literal(f"{shared}/rows"))
    with (
        duckdb_errors(),
        DuckEngine(made.scratch) as here,
        closing(SparkEvents(spark, here, shared, made.scratch)) as log,
    ):
        log.read(rows)
        return job.analysis_of(log, here, settings, made, progress), "spark+duckdb"


_SCRATCH = "scratch"
"""Folder of a run at an address for intermediate results."""


def _run_folder(out: str, made: Staging) -> str:
    return f"{out.rstrip('/')}/{RUNS}/{made.run_id}"


def _publish_at(out: str, made: Staging, _: Path) -> None:
    """Upload a report to an address, and delete the runs before the last one.

        OUT/index.html, report.json, report.prom, csv/…   of the last complete run
        OUT/runs/RUN/…                                    each run, with its tables

    An object store cannot rename folders, so each run writes to its own folder. The files beside
    `runs` are replaced once that folder is complete. Raises ReportError.
    """
    spark, out, folder = SparkSession.active(), out.rstrip("/"), _run_folder(out, made)
    try:
        files, before = HadoopFiles(spark, out), None
        if files.exists(report := f"{out}/{JSON_NAME}"):
            before = run_of(spark.read.text(report, wholetext=True).collect()[0].value)
        files.delete(f"{folder}/{_SCRATCH}")
        for table in sorted(made.tables.iterdir()):
            if table.is_dir():
                files.upload(str(table), f"{folder}/{TABLES}/{table.name}")
        csv = (f"{CSV}/{each.name}" for each in sorted((made.folder / CSV).iterdir()))
        names = (*csv, JSON_NAME, METRICS_NAME, PAGE_NAME)
        for place in (folder, out):
            for name in names:
                files.upload(str(made.folder / name), f"{place}/{name}")
        for run_id in files.names(f"{out}/{RUNS}"):
            if run_id not in {made.run_id, before} and RUN_ID.fullmatch(run_id):
                files.delete(f"{out}/{RUNS}/{run_id}")
    except SPARK_ERRORS as error:
        raise ReportError(explained(error)) from error


class SparkEvents:
    """Events as temporary views of a Spark session; kept results are relations in DuckDB.

    A report queries the events a few times; each result is bounded by clients and days. The rest is
    some forty queries over these few rows. A cluster takes longer to plan each of them and to send
    it to the executors than one machine takes to run it.
    """

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
