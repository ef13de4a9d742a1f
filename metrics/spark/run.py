"""Analysis on Spark: starts or takes a session, reads the events, and asks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from metrics.readiness.analysis import Analysis, Progress
from metrics.readiness.errors import ReportError
from metrics.readiness.events import DDL
from metrics.readiness.folder import event_files, is_remote
from metrics.readiness.output import Staging
from metrics.readiness.settings import Settings
from metrics.readiness.state import held
from metrics.spark.engine import SparkEngine
from metrics.spark.error_messages import SPARK_ERRORS, explained
from metrics.spark.ingest import EventTable, ingest_batch, ingest_new, parsed
from metrics.spark.remote_output import RemoteRun
from metrics.spark.sources import FolderSource, KafkaSource, LineSource, holds_parquet, literal
from metrics.spark.spark_session import SMALL_BYTES, make_session, tune_for_little

if TYPE_CHECKING:
    from metrics.spark.hybrid import HybridEngine

_LINE_BYTES = 800
"""The usual length of a line, in bytes."""


def analysed(settings: Settings, made: Staging, progress: Progress) -> Analysis:
    """Answer everything; raises ReportError, with Spark's errors explained."""
    folder = None
    if settings.topic is None and not is_remote(settings.events):
        folder = event_files(settings.events)
    size = None if folder is None else folder.line_bytes
    master = settings.master or (None if settings.submitted else "local[*]")
    try:
        spark = make_session(
            master=master,
            input_bytes=size,
            parquet=folder is not None and folder.parquet,
            log=None if master is None else made.folder.parent / "spark.log",
        )
        with _state(settings):
            return _ask(spark, settings, made, progress, size=size)
    except SPARK_ERRORS as error:
        raise ReportError(explained(error)) from error


def _ask(
    spark: SparkSession,
    settings: Settings,
    made: Staging,
    progress: Progress,
    *,
    size: int | None,
) -> Analysis:
    # executors of a cluster may go, and what Spark keeps in them with them
    one_machine = re.match(r"local(\[|$)", str(spark.sparkContext.master)) is not None
    small = one_machine and size is not None and size <= SMALL_BYTES
    scratch, tables = str(made.scratch), str(made.tables)
    if is_remote(settings.out):
        run = RemoteRun(settings.out, made.run_id)
        run.begin(spark)
        if not one_machine:
            scratch, tables = run.scratch, run.tables
    counts = None
    if settings.topic is None and holds_parquet(spark, settings.events):
        if settings.state is not None:
            raise ReportError("--state takes lines (.jsonl): Parquet is read as fast as a state")
        reader = spark.read.schema(DDL).option("pathGlobFilter", "*.parquet")
        rows = reader.option("recursiveFileLookup", True).parquet(literal(settings.events))
    elif small and settings.state is None:
        rows = parsed(_source(settings).batch(spark)).localCheckpoint()
    else:
        table = EventTable(settings.state or f"{scratch}/events")
        (ingest_new if settings.state else ingest_batch)(spark, _source(settings), table)
        counts, rows = table.counts(spark), table.events(spark)
        small = one_machine and counts["lines"] * _LINE_BYTES <= SMALL_BYTES
    if small:
        tune_for_little(spark)
    engine = _engine(spark, scratch, small=small)
    engine.read(rows)
    analysis = Analysis(engine, settings.question, progress, tables, made.run_id)
    try:
        analysis.run(counts)
    finally:
        engine.close()
    return analysis


def _engine(spark: SparkSession, scratch: str, *, small: bool) -> "SparkEngine | HybridEngine":
    """Leave what is not about events to DuckDB, if the driver has it, and the scratch folder."""
    on_spark = SparkEngine(spark, None if small else scratch)
    if is_remote(scratch):
        return on_spark
    try:
        from metrics.spark.hybrid import HybridEngine
    except ImportError:
        return on_spark
    return HybridEngine(spark, Path(scratch))


@contextmanager
def _state(settings: Settings) -> Iterator[None]:
    """Hold the state for this run alone; of an address, Spark's checkpoint has to see to it."""
    if settings.state is None or is_remote(settings.state):
        yield
        return
    with held(Path(settings.state)):
        yield


def _source(settings: Settings) -> LineSource:
    if settings.topic is None:
        return FolderSource(settings.events)
    assert settings.bootstrap_servers is not None
    return KafkaSource(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.topic,
        options=settings.kafka_options,
    )
