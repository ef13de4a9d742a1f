"""Readiness report as a job: read events, run the analysis, write the report.

    reauth-proxy report --events events --out report
    spark-submit --py-files dist/kafka_reauth_proxy-….whl submit.py --events s3a://… --out report

Exit status: 0 done (and everything required is so), 1 not ready, 2 an error in one line.
"""

import argparse
import atexit
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from metrics.readiness.analysis import Analysis, Progress
from metrics.readiness.errors import Interrupted, ReportError, explained
from metrics.readiness.folder import event_files, is_remote
from metrics.readiness.output import (
    RUN_NAME,
    Staging,
    add_to_history,
    prune_history,
    publish,
    staging,
)
from metrics.readiness.settings import EngineName, Settings
from metrics.readiness.state import held
from metrics.readiness.what_if import DEFAULT_LIFETIMES_MS
from metrics.report.facts import Collected, build_facts
from metrics.report.requirements import duration_ms, judged, requirement
from metrics.report.write import write_report

if TYPE_CHECKING:
    from metrics.readiness.duckdb_engine import DuckEngine

FAILURES = (ReportError, OSError)
"""The exceptions of `run` when events cannot be read or the report cannot be written."""


def run(settings: Settings, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Make the report; return its facts, and the requirements that are not met with the reason.

    Raises `FAILURES`.
    """
    settings.check()
    engine = settings.choose_engine()
    moment = datetime.fromtimestamp(settings.as_of_ms / 1000, UTC)
    run_id = f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    with _place(settings.out) as place, staging(place, run_id) as made:
        progress("reading events" if engine is EngineName.DUCKDB else "starting Spark")
        ask = _by_duckdb if engine is EngineName.DUCKDB else _with_spark
        analysis, answered_by = ask(settings, made, progress)
        collected = Collected(
            as_of_ms=settings.as_of_ms,
            source=settings.events,
            lines=analysis.lines,
            rows=analysis.rows,
            run_id=run_id,
            engine=answered_by,
            files_aside=analysis.files_aside,
        )
        facts = build_facts(collected)
        found = judged(settings.requirements, facts, analysis.rows.get("asked_for", []))
        facts["requirements"] = found
        progress("writing the report")
        write_report(facts, made.folder)
        (made.tables / RUN_NAME).write_text(f"{run_id}\n", encoding="ascii")
        if is_remote(settings.out):
            from metrics.spark.remote_output import RemoteRun

            RemoteRun(settings.out, run_id).publish(made)
        else:
            publish(made, place)
        if settings.history is not None:
            add_to_history(place, settings.history, run_id, settings.as_of_ms)
            if settings.history_days is not None:
                prune_history(settings.history, settings.history_days, settings.as_of_ms)
    return facts, [f"{each['require']} ({each['found']})" for each in found if not each["met"]]


@contextmanager
def _place(out: str) -> Iterator[Path]:
    """Give the folder of the report; for an address one that goes at the end."""
    if is_remote(out):
        with tempfile.TemporaryDirectory(prefix="reauth-report-") as folder:
            yield Path(folder)
    else:
        yield Path(out)


def _by_duckdb(settings: Settings, made: Staging, progress: Progress) -> tuple[Analysis, str]:
    try:
        from metrics.readiness.duckdb_engine import answered
    except ImportError:
        needed = "pip install 'kafka-reauth-proxy[report]'"
        raise ReportError(f"this report needs DuckDB: {needed}") from None

    def read(engine: "DuckEngine", broken: Mapping[Path, str]) -> None:
        if settings.topic is not None:
            _read_topic(settings, settings.topic, engine, made)
        else:
            engine.read(event_files(settings.events, broken))

    analysis = answered(read, settings.question, progress, made)
    return analysis, EngineName.DUCKDB.value


def _read_topic(settings: Settings, topic: str, engine: "DuckEngine", made: Staging) -> None:
    """Read a topic, or what is new in it since the last run with its state."""
    try:
        from metrics.readiness.topic import TopicReader
    except ImportError:
        problem = "kafka: needs confluent-kafka: pip install 'kafka-reauth-proxy[kafka]'"
        raise ReportError(problem) from None
    from metrics.readiness.topic_table import TopicTable

    with ExitStack() as until_read:
        place, since_ms = made.scratch, settings.since_ms
        if settings.state is not None:
            place, since_ms = Path(settings.state), None  # a later run may ask for what was before
            until_read.enter_context(held(place))
        table = TopicTable(place / "topic", topic)
        reader = TopicReader(topic, settings.kafka)
        until_read.callback(reader.close)
        table.add(engine, reader, since_ms)
        engine.read(table.folder())


def _with_spark(settings: Settings, made: Staging, progress: Progress) -> tuple[Analysis, str]:
    try:
        from metrics.spark.run import analysed
    except ImportError:
        from metrics.spark import SPARK_PACKAGES

        needed = f"pip install {SPARK_PACKAGES}"
        raise ReportError(f"this report needs PySpark and DuckDB: {needed}") from None
    return analysed(settings, made, progress, now_ms())


@contextmanager
def sigterm_as_sigint() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does: what was kept in between goes. Raises Interrupted.

    One that comes while Python and Spark end changes nothing: the exit status tells of the report.
    """

    def interrupt(*_: object) -> NoReturn:
        raise Interrupted

    was = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, was)
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)


def arg_parser() -> argparse.ArgumentParser:
    """Return the options of the job, for spark-submit and for `python -m metrics.readiness.job`."""
    parser = argparse.ArgumentParser(
        prog="python -m metrics.readiness.job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--events", required=True, metavar="PATH", help="folder, or kafka:TOPIC")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder, or address")
    parser.add_argument(
        "--lifetime", type=_typed(duration_ms), action="append", default=[], metavar="15m"
    )
    parser.add_argument("--require", type=_typed(requirement), action="append", default=[])
    for name in ("as-of", "since", "until"):
        parser.add_argument(f"--{name}", type=_typed(time_ms), metavar="TIME")
    parser.add_argument("--as-of-ms", type=int, help="epoch ms (default: now)")
    parser.add_argument(
        "--engine", type=EngineName, choices=list(EngineName), default=EngineName.AUTO
    )
    parser.add_argument("--master", help="Spark master (default: as spark-submit says)")
    parser.add_argument("--state", metavar="DIR", help="go on from the last run")
    parser.add_argument("--history", type=Path, metavar="DIR", help="keep all runs' tables")
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT", help="for kafka:TOPIC")
    parser.add_argument(
        "--kafka-option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="option of Spark's connector; without one DuckDB reads a topic",
    )
    return parser


def lifetimes(texts: Sequence[str]) -> tuple[int, ...]:
    """Give the default candidates and further ones, such as `90s`, in order; raises ValueError."""
    return tuple(sorted({*DEFAULT_LIFETIMES_MS, *map(duration_ms, texts)}))


def time_ms(text: str) -> int:
    """Read a time such as `2026-06-01` or `2026-06-01T12:00` (UTC unless it says otherwise).

    Epoch ms; raises ValueError.
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time such as 2026-06-01 or 2026-06-01T12:00") from None
    given = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return round(given.timestamp() * 1000)


def now_ms() -> int:
    """Give the time, epoch ms."""
    return time.time_ns() // 1_000_000


def _typed(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Let argparse say what is wrong with a value."""

    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{name!r} is no NAME=VALUE")
    return name, value


def _print_step(step: str) -> None:
    sys.stderr.write(f"{step}\n")


def main(argv: Sequence[str] | None = None, *, submitted: bool = False) -> int:
    """Run the job; `submitted`: by spark-submit, which has said what Spark's master is."""
    options = arg_parser().parse_args(argv)
    servers = options.bootstrap_server
    as_of_ms = options.as_of if options.as_of_ms is None else options.as_of_ms
    settings = Settings(
        events=options.events,
        out=options.out,
        lifetimes_ms=tuple(sorted({*DEFAULT_LIFETIMES_MS, *options.lifetime})),
        requirements=tuple(options.require),
        as_of_ms=now_ms() if as_of_ms is None else as_of_ms,
        since_ms=options.since,
        until_ms=options.until,
        engine=EngineName.SPARK if submitted else options.engine,
        master=options.master,
        submitted=submitted,
        state=options.state,
        history=options.history,
        kafka={"bootstrap.servers": servers} if servers else {},
        bootstrap_servers=servers,
        kafka_options=dict(options.kafka_option),
    )
    try:
        with sigterm_as_sigint():
            _, unmet = run(settings, _print_step)
    except KeyboardInterrupt:
        sys.stderr.write("report: interrupted\n")
        return 2
    except FAILURES as error:
        sys.stderr.write(f"report: {explained(error)}\n")
        return 2
    for text in unmet:
        sys.stderr.write(f"not met: {text}\n")
    return 1 if unmet else 0


if __name__ == "__main__":
    raise SystemExit(main())
