"""Readiness report as a job: read events, run the analysis, write the report.

    reauth-proxy report --events events --out report
    spark-submit --py-files dist/kafka_reauth_proxy-….whl submit.py --events s3a://… --out report

Exit status: 0 done (and everything required is so), 1 not ready, 2 an error in one line.
"""

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from metrics.report.facts import Collected, build_facts
from metrics.report.requirements import Requirement, duration_ms, judged, requirement
from metrics.report.write import write_report
from metrics.spark import event_rows
from metrics.spark.cleaning import Rows, cleaned
from metrics.spark.error_messages import SPARK_ERRORS, explained
from metrics.spark.ingest import EventTable, ingest_batch, ingest_new
from metrics.spark.results import Results
from metrics.spark.sources import (
    FolderSource,
    KafkaSource,
    LineSource,
    SourceError,
    holds_parquet,
    holds_parquet_here,
    is_remote,
    literal,
    local_bytes,
)
from metrics.spark.spark_session import SMALL_BYTES, make_session, tune_for_little
from metrics.spark.what_if import DEFAULT_LIFETIMES_MS

_TOPIC = "kafka:"

_LINE_BYTES = 800
"""The usual length of a line, in bytes."""

FAILURES = (SourceError, OSError, *SPARK_ERRORS)
"""The exceptions of `run` when events cannot be read or the report cannot be written."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Input and output of one report."""

    events: str
    """The folder of event files or Parquet, or `kafka:topic` with `bootstrap_servers`."""
    out: Path
    lifetimes_ms: tuple[int, ...] = DEFAULT_LIFETIMES_MS
    requirements: tuple[Requirement, ...] = ()
    as_of_ms: int
    """The present time for the report, epoch ms."""
    master: str | None = "local[*]"
    state: str | None = None
    """The folder of the table that later runs add to; None: everything is read anew."""
    bootstrap_servers: str | None = None
    kafka_options: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_topic(self) -> bool:
        """Return True if the events are read from a Kafka topic."""
        return self.events.startswith(_TOPIC)

    @property
    def all_lifetimes_ms(self) -> tuple[int, ...]:
        """Give the lifetimes of the report and those of the requirements, in order."""
        asked = [each.lifetime_ms for each in self.requirements if each.lifetime_ms is not None]
        return tuple(sorted({*self.lifetimes_ms, *asked}))

    @property
    def required_principals(self) -> list[str]:
        """Give the principals that the requirements name."""
        return [each.principal for each in self.requirements if each.principal is not None]


def run(settings: Settings, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Make the report; return its facts, and the requirements that are not met with the reason.

    Raises `FAILURES`.
    """
    if is_remote(str(settings.out)):
        raise SourceError(f"{settings.out}: the report is written to a folder of this machine")
    size = None if settings.is_topic else local_bytes(settings.events)
    _refuse_within(settings)
    progress("starting Spark")
    log_file = None if settings.master is None else settings.out / "spark.log"
    parquet = size is not None and holds_parquet_here(settings.events)
    spark = make_session(master=settings.master, input_bytes=size, parquet=parquet, log=log_file)
    # executors of a cluster may go, and what Spark keeps in them with them
    one_machine = re.match(r"local(\[|$)", str(spark.sparkContext.master)) is not None
    small = one_machine and size is not None and size <= SMALL_BYTES
    with ExitStack() as stack:
        progress("reading events")
        rows = stack.enter_context(_read(spark, settings, small=small))
        if one_machine and rows.counts is not None:
            small = rows.counts["lines"] * _LINE_BYTES <= SMALL_BYTES
            if small:
                tune_for_little(spark)
        results = stack.enter_context(Results(spark, settings.out, progress, small=small))
        progress("judging clients")
        read = cleaned(rows, as_of_ms=settings.as_of_ms, keep=results.scratch)
        results.collect(read, settings.all_lifetimes_ms, settings.required_principals)
    collected = Collected(
        as_of_ms=settings.as_of_ms, source=settings.events, lines=read.lines, rows=results.rows
    )
    facts = build_facts(collected)
    found = judged(settings.requirements, facts, results.rows.get("asked_for", []))
    facts["requirements"] = found
    progress("writing the report")
    write_report(facts, settings.out)
    return facts, [f"{each['require']} ({each['found']})" for each in found if not each["met"]]


def _refuse_within(settings: Settings) -> None:
    """Raise SourceError if what this writes would be among the events of the next time."""
    if settings.is_topic or is_remote(settings.events):
        return
    for option, path in (("--out", str(settings.out)), ("--state", settings.state)):
        if path is None or is_remote(path):
            continue
        if Path(path).resolve().is_relative_to(Path(settings.events).resolve()):
            raise SourceError(f"{path}: {option} is within --events; give it a place elsewhere")


@contextmanager
def _read(spark: SparkSession, settings: Settings, *, small: bool) -> Iterator[Rows]:
    """Give what was read."""
    if not settings.is_topic and holds_parquet(spark, settings.events):
        reader = spark.read.schema(event_rows.FIELDS).option("pathGlobFilter", "*.parquet")
        raw = reader.option("recursiveFileLookup", True).parquet(literal(settings.events))
        yield Rows(classified=event_rows.classified(raw))
    elif small and settings.state is None:
        lines = event_rows.parsed(_source(settings).batch(spark))
        yield Rows(classified=event_rows.classified(lines).localCheckpoint())
    else:
        settings.out.mkdir(parents=True, exist_ok=True)
        root = settings.state or tempfile.mkdtemp(prefix=".events-", dir=settings.out)
        table = EventTable(root)
        try:
            (ingest_new if settings.state else ingest_batch)(spark, _source(settings), table)
            counts = table.counts(spark)
            yield Rows(classified=table.classified(spark), counts=counts)
        finally:
            if settings.state is None:
                shutil.rmtree(root, ignore_errors=True)


def _source(settings: Settings) -> LineSource:
    if not settings.is_topic:
        return FolderSource(settings.events)
    if settings.bootstrap_servers is None:
        raise SourceError("kafka: needs --bootstrap-server HOST:PORT")
    return KafkaSource(
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.events.removeprefix(_TOPIC),
        options=settings.kafka_options,
    )


@contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: Spark's jobs end, and what they kept in between goes."""
    was = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, was)


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
    parser.add_argument(
        "--kafka-option", type=_option, action="append", default=[], metavar="NAME=VALUE"
    )
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


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{name!r} is no NAME=VALUE")
    return name, value


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
        kafka_options=dict(options.kafka_option),
    )
    try:
        with sigterm_as_sigint():
            _, unmet = run(settings, _say)
    except KeyboardInterrupt:
        sys.stderr.write("report: told to end\n")
        return 2
    except FAILURES as error:
        sys.stderr.write(f"report: {explained(error)}\n")
        return 2
    for text in unmet:
        sys.stderr.write(f"not met: {text}\n")
    return 1 if unmet else 0


if __name__ == "__main__":
    raise SystemExit(main())
