"""Input and output of one report, and the choice of its engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from metrics.readiness.analysis import Question
from metrics.readiness.errors import ReportError
from metrics.readiness.events import DAY_MS
from metrics.readiness.folder import event_files, is_remote, is_within
from metrics.readiness.output import CSV, RUNS, TABLES
from metrics.report.requirements import Requirement

_TOPIC = "kafka:"


class EngineName(StrEnum):
    """Engine that answers the report's queries."""

    AUTO = "auto"
    DUCKDB = "duckdb"
    SPARK = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Question):
    """Settings of a report: its events, its questions and its output."""

    events: str
    """The folder of event files or Parquet, or `kafka:topic`."""
    out: str
    """The folder of the report, or an address that Hadoop supports."""
    requirements: tuple[Requirement, ...] = ()
    """The requirements; `lifetimes_ms` and `principals` include theirs."""
    min_observed_ms: int = DAY_MS
    """The time in milliseconds that events must cover before the report advises to enforce."""
    engine: EngineName = EngineName.AUTO
    master: str | None = None
    """Spark's master; None: all processors of this machine, or spark-submit's setting."""
    state: str | None = None
    """The folder of the table to which runs add new events; None: read all events again."""
    history: Path | None = None
    """The folder to which each run adds its tables; None: keep only the last run's."""
    history_days: int | None = None
    """The number of days for which the history is kept; None: forever."""
    kafka: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The settings for a topic of librdkafka, or of Spark's connector (`is_for_spark`)."""

    @property
    def topic(self) -> str | None:
        """The Kafka topic with the events; None if they are in a folder."""
        return self.events.removeprefix(_TOPIC) if self.events.startswith(_TOPIC) else None

    def check(self) -> None:
        """Raise ReportError for invalid options, missing events, or output among the events."""
        for option, path in (
            ("--events", self.events),
            ("--out", self.out),
            ("--state", self.state),
        ):
            if path == "":  # an empty variable in a script would mean the current folder
                raise ReportError(f"{option} is empty")
        since_ms, until_ms = self.since_ms, self.until_ms
        if since_ms is not None and until_ms is not None and since_ms >= until_ms:
            raise ReportError("--until is not after --since")
        if self.history is not None:
            self._check_history(self.history)
        elif self.history_days is not None:
            raise ReportError("--history-days requires --history DIR")
        if self.state is not None:
            self._check_outside_tables("--state", self.state)
        if self.topic is not None:
            if not self.kafka.keys() & {"bootstrap.servers", "kafka.bootstrap.servers"}:
                raise ReportError("kafka: needs --bootstrap-server HOST:PORT")
            return
        if not is_remote(self.events):
            event_files(self.events)
        self.check_outside(self.events)

    def check_outside(self, events: str) -> None:
        """Raise ReportError if the output would be below a folder or address of events."""
        history = None if self.history is None else str(self.history)
        folders = (("--out", self.out), ("--state", self.state), ("--history", history))
        for option, path in folders:
            if path is not None and is_within(path, events):
                raise ReportError(f"{path}: {option} is within --events; choose another folder")

    def _check_history(self, history: Path) -> None:
        if is_remote(str(history)):
            raise ReportError(f"{history}: --history must be a local folder")
        if is_remote(self.out):
            raise ReportError(f"{self.out}: --history requires --out in a local folder")
        self._check_outside_tables("--history", str(history))

    def _check_outside_tables(self, option: str, path: str) -> None:
        for name in (TABLES, CSV, RUNS):
            if is_within(path, f"{self.out.rstrip('/')}/{name}"):
                raise ReportError(
                    f"{path}: {option} is within the {name} of --out, which every run replaces; "
                    "choose another folder"
                )

    @property
    def is_for_spark(self) -> bool:
        """True if Spark reads the events, by choice or because DuckDB cannot.

        Raises ReportError if DuckDB was chosen but cannot.
        """
        state = self.state or ""
        if self.topic is None:
            cannot_read = is_remote(self.events) or bool(state)
        else:
            cannot_read = is_remote(state)
        needed = cannot_read or is_remote(self.out) or self.master is not None
        if needed and self.engine is EngineName.DUCKDB:
            raise ReportError(
                "DuckDB reads a topic or a local folder: for an address, a --state of a folder,"
                " or --master, use --engine spark"
            )
        return needed or self.engine is EngineName.SPARK
