"""The readiness report as a job: read events, call the analysis, write the report.

    reauth-proxy report --events events --out report
    spark-submit --py-files kafka_reauth_proxy.whl report.py --events s3a://… --out report

Exit status: 0 done (and everything required is so), 1 not ready, 2 an error in one line.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from metrics.events import schema_ddl
from metrics.report.facts import Collected, build_facts
from metrics.report.write import write_report
from metrics.spark import analysis
from metrics.spark import events as log
from metrics.spark.gate import Requirement, duration_ms, requirement
from metrics.spark.ingest import EventTable, ingest_batch, ingest_new
from metrics.spark.session import SMALL_BYTES, make_session
from metrics.spark.sources import (
    FolderSource,
    KafkaSource,
    LineSource,
    SourceError,
    local_bytes,
    looks_like_parquet,
)
from metrics.spark.what_if import DEFAULT_LIFETIMES_MS

MAX_ROWS = 5_000
"""Clients and principals that are collected for the page; the tables hold all of them."""

BUSIEST = 20
"""Minutes that are listed as storms."""

FAILURES = (SourceError, OSError, PySparkException, Py4JError)
"""What `run` raises when events cannot be read or the report not be written."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to report on."""

    events: str
    """Folder of event files or Parquet, or `kafka:topic` with `bootstrap_servers`."""
    out: Path
    lifetimes_ms: tuple[int, ...] = DEFAULT_LIFETIMES_MS
    requirements: tuple[Requirement, ...] = ()
    as_of_ms: int
    """Now, as the report is to understand it, epoch ms."""
    master: str | None = "local[*]"
    state: str | None = None
    """Where a table of events is kept from one run to the next; None: read everything anew."""
    bootstrap_servers: str | None = None
    kafka_options: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def all_lifetimes_ms(self) -> tuple[int, ...]:
        """Give the lifetimes of the report and those of the requirements, in order."""
        asked = [each.lifetime_ms for each in self.requirements if each.lifetime_ms is not None]
        return tuple(sorted({*self.lifetimes_ms, *asked}))


def run(settings: Settings, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Make the report; return its facts and the requirements that are not met.

    Raises `FAILURES`.
    """
    from_kafka = settings.events.startswith("kafka:")
    size = None if from_kafka else local_bytes(settings.events)
    progress("starting Spark")
    log_file = None if settings.master is None else settings.out / "spark.log"
    spark = make_session(master=settings.master, input_bytes=size, log=log_file)
    small = size is not None and size <= SMALL_BYTES
    with _read(spark, settings, small=small, progress=progress) as (rows, counts):
        collected = _analysed(rows, counts, settings, progress, small=small)
    facts = build_facts(collected)
    unmet = [each.text for each in settings.requirements if not each.is_met(facts)]
    facts["requirements"] = [
        {"require": each.text, "met": each.text not in unmet} for each in settings.requirements
    ]
    progress("writing the report")
    write_report(facts, settings.out)
    return facts, unmet


@contextmanager
def _read(
    spark: SparkSession, settings: Settings, *, small: bool, progress: Progress
) -> Iterator[tuple[DataFrame, dict[str, int]]]:
    """Give the valid events, and what was counted when they were read."""
    progress("reading events")
    if looks_like_parquet(settings.events):
        reader = spark.read.schema(schema_ddl()).option("pathGlobFilter", "*.parquet")
        raw = reader.parquet(settings.events)
        rows = log.classified(raw)
        yield log.valid_events(rows), _counted(rows)
    elif small and settings.state is None:
        rows = log.classified(log.parsed(_source(settings).batch(spark))).localCheckpoint()
        yield log.valid_events(rows), _counted(rows)
    else:
        root = settings.state or tempfile.mkdtemp(prefix=".events-", dir=_made(settings.out))
        table = EventTable(root)
        try:
            (ingest_new if settings.state else ingest_batch)(spark, _source(settings), table)
            yield table.events(spark), table.counts(spark)
        finally:
            if settings.state is None:
                shutil.rmtree(root, ignore_errors=True)


def _counted(rows: DataFrame) -> dict[str, int]:
    return rows.agg(*log.problem_counts()).collect()[0].asDict()


def _source(settings: Settings) -> LineSource:
    if not settings.events.startswith("kafka:"):
        return FolderSource(settings.events)
    if settings.bootstrap_servers is None:
        raise SourceError("kafka: needs --bootstrap-server HOST:PORT")
    return KafkaSource(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.events.removeprefix("kafka:"),
        options=settings.kafka_options,
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _analysed(
    rows: DataFrame,
    counts: dict[str, int],
    settings: Settings,
    progress: Progress,
    *,
    small: bool,
) -> Collected:
    progress("looking for duplicates")
    future = log.is_future(settings.as_of_ms)
    events = rows.where(~future)
    totals = log.sequence_totals(events).localCheckpoint()
    summed = totals.agg(
        f.coalesce(f.sum("count"), f.lit(0)).alias("events"),
        f.count_if("suspect").alias("suspects"),
    ).collect()[0]
    lines = counts | {
        log.Problem.FUTURE.value: counts["lines"]
        - summed["events"]
        - sum(counts[problem.value] for problem in log.AT_READING),
        "duplicate": 0,
        "missing": 0,
    }
    if summed["suspects"]:
        suspects = totals.where("suspect")
        lines |= log.duplicates(events, suspects).collect()[0].asDict()
        events = log.without_duplicates(events, suspects)
    progress("judging clients")
    results = _Results(settings, progress, small=small)
    known = analysis.known(events, results.kept)
    results.collect(known)
    return Collected(
        as_of_ms=settings.as_of_ms, source=settings.events, lines=lines, rows=results.rows
    )


class _Results:
    """What the queries bring back, and the tables that they write."""

    def __init__(self, settings: Settings, progress: Progress, *, small: bool) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._settings = settings
        self._progress = progress
        self._small = small
        self._tables = (settings.out / "tables").absolute()
        shutil.rmtree(self._tables, ignore_errors=True)

    def kept(self, name: str, frame: DataFrame) -> DataFrame:
        """Compute a table once; what comes after it need not know how it was made.

        Not by `persist`: the whole plan would be gone through again for each use.
        """
        if self._small:
            return frame.localCheckpoint()
        path = self._write(name, frame)
        return frame.sparkSession.read.schema(frame.schema).parquet(path)

    def collect(self, known: analysis.Known) -> None:
        """Run the queries, a few at a time: each by itself leaves processors idle."""
        if self._small:
            self._write("sessions", known.sessions)
            self._write("clients", known.clients)
        steps = [self._what_if, self._clients, *(self._table(name) for name in analysis.TABLES)]
        with ThreadPoolExecutor(max_workers=3) as pool:
            for running in [pool.submit(step, known) for step in steps]:
                running.result()

    def _what_if(self, known: analysis.Known) -> None:
        frame = analysis.what_if_table(known, self._settings.all_lifetimes_ms)
        self._keep("what_if", self.kept("what_if", frame))

    def _clients(self, known: analysis.Known) -> None:
        clients = known.clients.orderBy(f.col("verdict") == "ready", "principal", "client_id")
        self._keep("clients", clients)
        verdicts = known.clients.groupBy("verdict").agg(f.count(f.lit(1)).alias("clients"))
        self._keep("clients_by_verdict", verdicts)
        span = known.sessions.agg(
            f.count(f.lit(1)).alias("connections"),
            f.min("connected_ms").alias("from_ms"),
            f.max("last_event_ms").alias("to_ms"),
        )
        self._keep("observed", span)

    def _table(self, name: str) -> Callable[[analysis.Known], None]:
        def step(known: analysis.Known) -> None:
            frame = self.kept(name, analysis.TABLES[name](known))
            if self._small:
                self._write(name, frame)
            if name == "storms":
                self._keep("storm_profile", analysis.storm_plot(frame))
                frame = frame.orderBy(f.desc("authentications"), "minute_ms").limit(BUSIEST)
            if name == "by_day":
                self._keep("projection", analysis.projection_table(frame))
            self._keep(name, frame)

        return step

    def _keep(self, name: str, frame: DataFrame) -> None:
        self.rows[name] = [row.asDict(recursive=True) for row in frame.limit(MAX_ROWS).collect()]
        self._progress(f"{name.replace('_', ' ')} done")

    def _write(self, name: str, frame: DataFrame) -> str:
        path = str(self._tables / name)
        if self._small:
            frame = frame.coalesce(1)
        frame.write.mode("overwrite").parquet(path)
        return path


def arg_parser() -> argparse.ArgumentParser:
    """Return the options of the job, for spark-submit and for `python -m metrics.spark.job`."""
    parser = argparse.ArgumentParser(
        prog="python -m metrics.spark.job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--events", required=True, metavar="PATH", help="folder, or kafka:TOPIC")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--lifetime", type=_duration, action="append", default=[], metavar="15m")
    parser.add_argument("--require", type=_requirement, action="append", default=[])
    parser.add_argument("--as-of-ms", type=int, help="epoch ms (default: now)")
    parser.add_argument("--master", help="Spark master (default: as spark-submit says)")
    parser.add_argument("--state", metavar="DIR", help="go on from the last run")
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT")
    parser.add_argument("--kafka-option", action="append", default=[], metavar="NAME=VALUE")
    return parser


def lifetimes(texts: Sequence[str]) -> tuple[int, ...]:
    """Give the default candidates and further ones, such as `90s`, in order; raises ValueError."""
    return tuple(sorted({*DEFAULT_LIFETIMES_MS, *map(duration_ms, texts)}))


def _duration(text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _requirement(text: str) -> Requirement:
    try:
        return requirement(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def explained(error: Exception) -> str:
    """Say in one line what went wrong."""
    lines = [line.strip(": ") for line in str(error).strip().splitlines() if line.strip()]
    if isinstance(error, Py4JError) and len(lines) > 1:
        return lines[1]  # the first one tells of the bridge to Java
    return lines[0] if lines else type(error).__name__


def _say(step: str) -> None:
    sys.stderr.write(f"{step}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    options = arg_parser().parse_args(argv)
    now_ms = time.time_ns() // 1_000_000
    settings = Settings(
        events=options.events,
        out=options.out,
        lifetimes_ms=tuple(sorted({*DEFAULT_LIFETIMES_MS, *options.lifetime})),
        requirements=tuple(options.require),
        as_of_ms=now_ms if options.as_of_ms is None else options.as_of_ms,
        master=options.master,
        state=options.state,
        bootstrap_servers=options.bootstrap_server,
        kafka_options=dict(option.split("=", 1) for option in options.kafka_option),
    )
    try:
        _, unmet = run(settings, _say)
    except FAILURES as error:
        sys.stderr.write(f"report: {explained(error)}\n")
        return 2
    for text in unmet:
        sys.stderr.write(f"not met: {text}\n")
    return 1 if unmet else 0


if __name__ == "__main__":
    raise SystemExit(main())
