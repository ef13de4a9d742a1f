"""Analysis that takes Spark: reads what DuckDB cannot, and on a cluster looks at the events.

DuckDB answers the rest, and everything on one machine: to plan most of the queries takes Spark
longer than DuckDB to answer them.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from metrics.readiness.analysis import Analysis, Progress
from metrics.readiness.duckdb_engine import DuckEngine, answered, duckdb_errors
from metrics.readiness.errors import ReportError
from metrics.readiness.events import DDL
from metrics.readiness.folder import Folder, event_files, is_remote
from metrics.readiness.output import Staging
from metrics.readiness.settings import Settings
from metrics.readiness.state import held
from metrics.spark.engine import SparkEvents
from metrics.spark.error_messages import SPARK_ERRORS, explained
from metrics.spark.executors import wait_for_executor
from metrics.spark.files import HadoopFiles
from metrics.spark.ingest import EventTable, ingest_batch, ingest_new
from metrics.spark.remote_output import RemoteRun
from metrics.spark.remote_state import held_at
from metrics.spark.sources import FolderSource, KafkaSource, LineSource, holds_parquet, literal
from metrics.spark.spark_session import make_session

_STATE_OF_PARQUET = "--state takes lines (.jsonl): Parquet is read as fast as a state"


def analysed(
    settings: Settings, made: Staging, progress: Progress, now_ms: int
) -> tuple[Analysis, str]:
    """Answer everything; return the answers, and which engine gave them.

    `now_ms`: the present time, epoch ms. Raises ReportError, with Spark's errors explained.
    """
    folder = None
    if settings.topic is None and not is_remote(settings.events):
        folder = event_files(settings.events)
        if folder.parquet and settings.state is not None:
            raise ReportError(_STATE_OF_PARQUET)
    master = settings.master or (None if settings.submitted else "local[*]")
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
        with _state(spark, settings, now_ms):
            ask = _by_duckdb if is_one_machine(spark) else _by_both
            return ask(spark, settings, made, progress)
    except SPARK_ERRORS as error:
        raise ReportError(explained(error)) from error


def is_one_machine(spark: SparkSession) -> bool:
    """Return True if Spark has this machine alone, and no executors in processes of their own."""
    return re.match(r"local(\[|$)", str(spark.sparkContext.master)) is not None


def _by_duckdb(
    spark: SparkSession, settings: Settings, made: Staging, progress: Progress
) -> tuple[Analysis, str]:
    if is_remote(settings.out):
        RemoteRun(settings.out, made.run_id).begin(spark)
    events, counts, found, place = settings.events, None, None, made.scratch / "fetched"
    if settings.topic is not None or settings.state is not None:
        table = _table(spark, settings, str(made.scratch))
        counts, found = table.counts(spark), _files_of(spark, table, place)
    elif is_remote(events):
        holds_parquet(spark, events)  # says in a sentence what is wrong with the address
        HadoopFiles(spark, events).download(events, place)
        events = str(place)

    def read(engine: DuckEngine, broken: Mapping[Path, str]) -> None:
        engine.read(found or event_files(events, broken))

    analysis = answered(read, settings.question, progress, made, counts)
    return analysis, "duckdb" if counts is None else "spark+duckdb"


def _files_of(spark: SparkSession, table: EventTable, place: Path) -> Folder:
    """Give the files of a table of events, from an address by Hadoop's file system."""
    found: list[Path] = []
    for folder in table.event_folders(spark):
        local = Path(folder)
        if is_remote(folder):
            local = place / local.name
            HadoopFiles(spark, folder).download(folder, local)
        found += sorted(local.glob("*.parquet"))
    return Folder(found, parquet=True)


def _by_both(
    spark: SparkSession, settings: Settings, made: Staging, progress: Progress
) -> tuple[Analysis, str]:
    shared = str(made.scratch)
    if is_remote(settings.out):
        run = RemoteRun(settings.out, made.run_id)
        run.begin(spark)
        shared = run.scratch
    counts, rows = _rows(spark, settings, shared)
    with (
        duckdb_errors(),
        DuckEngine(made.scratch) as here,
        closing(SparkEvents(spark, here, shared, made.scratch)) as log,
    ):
        log.read(rows)
        tables = str(made.tables)
        analysis = Analysis(log, here, settings.question, progress, tables, made.run_id)
        analysis.run(counts)
        return analysis, "spark+duckdb"


def _rows(
    spark: SparkSession, settings: Settings, scratch: str
) -> tuple[dict[str, int] | None, DataFrame]:
    """Read the events; give with them what was counted at reading, if anything was."""
    whole = settings.topic is None and settings.state is None
    if whole and holds_parquet(spark, settings.events):
        reader = spark.read.schema(DDL).option("pathGlobFilter", "*.parquet")
        rows = reader.option("recursiveFileLookup", True).parquet(literal(settings.events))
        return None, rows
    table = _table(spark, settings, scratch)
    return table.counts(spark), table.events(spark)


def _table(spark: SparkSession, settings: Settings, scratch: str) -> EventTable:
    """Read lines into a table: that of the state, or one for this run."""
    table = EventTable(settings.state or f"{scratch}/events")
    if settings.state is None:
        ingest_batch(spark, _source(settings), table)
        return table
    if settings.topic is None and holds_parquet(spark, settings.events):
        raise ReportError(_STATE_OF_PARQUET)
    ingest_new(spark, _source(settings), table)
    table.compact(spark)
    return table


def _state(spark: SparkSession, settings: Settings, now_ms: int) -> AbstractContextManager[None]:
    """Hold the state for this run alone."""
    if settings.state is None:
        return nullcontext()
    if is_remote(settings.state):
        return held_at(spark, settings.state, now_ms)
    return held(Path(settings.state))


def _source(settings: Settings) -> LineSource:
    if settings.topic is None:
        return FolderSource(settings.events)
    assert settings.bootstrap_servers is not None
    return KafkaSource(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.topic,
        options=settings.kafka_options,
    )
