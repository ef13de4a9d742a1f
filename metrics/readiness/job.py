"""Readiness report: reads events, runs the analysis, writes the report.

The command `reauth-proxy report` chooses the engine.
"""

import atexit
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from metrics.readiness.analysis import Analysis, Events, Progress
from metrics.readiness.errors import BrokenFileError, Interrupted, ReportError
from metrics.readiness.folder import event_files, held, is_remote
from metrics.readiness.output import (
    RUN_NAME,
    Staging,
    add_to_history,
    prune_history,
    publish,
    staging,
    write_tables,
)
from metrics.readiness.published import TABLES
from metrics.readiness.settings import Settings
from metrics.readiness.what_if import DEFAULT_LIFETIMES_MS
from metrics.report.facts import Collected, build_facts
from metrics.report.requirements import duration_ms, judged, requirement
from metrics.report.write import write_report

if TYPE_CHECKING:
    from metrics.readiness.duckdb_engine import DuckEngine

FAILURES = (ReportError, OSError)
"""The exceptions of `run` when events cannot be read or the report cannot be written."""


Read = Callable[["DuckEngine", Mapping[Path, str]], None]
"""Function that reads the events into an engine, except for some files."""


def by_duckdb(settings: Settings, made: Staging, progress: Progress) -> tuple[Analysis, str]:
    """Run the analysis with DuckDB; return it with the engine's name."""
    progress("reading events")

    def read(engine: "DuckEngine", broken: Mapping[Path, str]) -> None:
        if settings.topic is not None:
            _read_topic(settings, settings.topic, engine, made)
        else:
            engine.read(event_files(settings.events, broken))

    return answered(read, settings, made, progress), "duckdb"


def answered(read: Read, settings: Settings, made: Staging, progress: Progress) -> Analysis:
    """Run the analysis; after an unreadable file, set the file aside and start again.

    Raises ReportError.
    """
    from metrics.readiness.duckdb_engine import DuckEngine, duckdb_errors

    broken: dict[Path, str] = {}
    while True:
        with DuckEngine(made.scratch) as engine:
            try:
                with duckdb_errors():
                    read(engine, broken)
                    analysis = analysis_of(engine, engine, settings, made, progress)
                    analysis.files_aside = engine.folder.aside
                    return analysis
            except BrokenFileError as error:
                broken[error.path] = error.reason
            except ReportError:
                more = engine.broken()
                if more.keys() <= broken.keys():
                    raise
                broken |= more
        made.begin_tables()


def analysis_of(
    log: Events, engine: "DuckEngine", settings: Settings, made: Staging, progress: Progress
) -> Analysis:
    """Run the analysis, and write its tables."""
    analysis = Analysis(log, engine, settings, progress)
    analysis.run()
    progress("writing tables")
    write_tables(engine, made, settings.as_of_ms)
    return analysis


def run(
    settings: Settings,
    progress: Progress,
    analysed: Callable[[Settings, Staging, Progress], tuple[Analysis, str]] = by_duckdb,
    put: Callable[[Staging, Path], None] = publish,
) -> tuple[dict[str, Any], list[str]]:
    """Make the report; return its facts, and the unmet requirements with the reasons.

    `analysed` runs the analysis and names its engine; `put` publishes the report.
    Raises `FAILURES`.
    """
    settings.check()
    moment = datetime.fromtimestamp(settings.as_of_ms / 1000, UTC)
    run_id = f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    with _place(settings.out) as place, staging(place, run_id) as made:
        analysis, answered_by = analysed(settings, made, progress)
        collected = Collected(
            as_of_ms=settings.as_of_ms,
            source=settings.events,
            lines=analysis.lines,
            rows=analysis.rows,
            run_id=run_id,
            engine=answered_by,
            tables=tuple(TABLES),
            min_observed_ms=settings.min_observed_ms,
            files_aside=analysis.files_aside,
        )
        facts = build_facts(collected)
        found = judged(settings.requirements, facts, analysis.rows.get("asked_for", []))
        facts["requirements"] = found
        progress("writing the report")
        write_report(facts, made.folder)
        (made.tables / RUN_NAME).write_text(f"{run_id}\n", encoding="ascii")
        put(made, place)
        if settings.history is not None:
            add_to_history(place, settings.history, run_id, settings.as_of_ms)
            if settings.history_days is not None:
                prune_history(settings.history, settings.history_days, settings.as_of_ms)
    return facts, [f"{each['require']} ({each['found']})" for each in found if not each["met"]]


@contextmanager
def _place(out: str) -> Iterator[Path]:
    """Yield the report's folder; a temporary one if `out` is an address."""
    if is_remote(out):
        with tempfile.TemporaryDirectory(prefix="reauth-report-") as folder:
            yield Path(folder)
    else:
        yield Path(out)


def _read_topic(settings: Settings, topic: str, engine: "DuckEngine", made: Staging) -> None:
    """Read a topic; with a state, only the messages since the last run."""
    from metrics.readiness.topic import TopicReader
    from metrics.readiness.topic_table import TopicTable

    with ExitStack() as until_read:
        place, since_ms = made.scratch, settings.since_ms
        if settings.state is not None:
            place, since_ms = Path(settings.state), None  # a later run may need earlier events
            until_read.enter_context(held(place))
        table = TopicTable(place / "topic", topic)
        reader = TopicReader(topic, settings.kafka)
        until_read.callback(reader.close)
        table.add(engine, partial(reader.read, since_ms=since_ms))
        engine.read(table.folder())


@contextmanager
def sigterm_as_sigint(progress: Progress) -> Iterator[Progress]:
    """Treat SIGTERM like Ctrl-C and delete scratch files. Raises Interrupted.

    Yields `progress`, which also raises Interrupted if an earlier one was lost: Python ignores
    exceptions in weakref callbacks, and Spark's client has many of those. SIGTERM is ignored while
    Python and Spark shut down, to keep the report's exit status.
    """
    told = False

    def interrupt(*_: object) -> NoReturn:
        nonlocal told
        told = True
        raise Interrupted

    def step(text: str) -> None:
        if told:
            raise Interrupted
        progress(text)

    was = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield step
    finally:
        signal.signal(signal.SIGTERM, was)
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)


def settings_of(
    *,
    lifetime: Sequence[str],
    require: Sequence[str],
    as_of: str | None,
    since: str | None,
    until: str | None,
    min_observed: str,
    **more: Any,
) -> Settings:
    """Return the settings for texts of a command line; `more`: further settings.

    Raises ValueError.
    """
    as_of_ms, since_ms, until_ms = (
        None if text is None else time_ms(text) for text in (as_of, since, until)
    )
    required = tuple(map(requirement, require))
    asked_ms = [each.lifetime_ms for each in required if each.lifetime_ms is not None]
    return Settings(
        lifetimes_ms=tuple(sorted({*DEFAULT_LIFETIMES_MS, *map(duration_ms, lifetime), *asked_ms})),
        principals=[each.principal for each in required if each.principal is not None],
        requirements=required,
        as_of_ms=time.time_ns() // 1_000_000 if as_of_ms is None else as_of_ms,
        since_ms=since_ms,
        until_ms=until_ms,
        min_observed_ms=duration_ms(min_observed),
        **more,
    )


def time_ms(text: str) -> int:
    """Parse a time such as `2026-06-01` or `2026-06-01T12:00` (UTC by default) into epoch ms.

    Raises ValueError.
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-06-01T12:00") from None
    given = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
    return round(given.timestamp() * 1000)
