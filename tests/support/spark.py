"""DataFrames of session events, and the steps of the analysis as tests call them."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from metrics.events import EventKind, SessionEvent
from metrics.spark import event_rows
from metrics.spark.analysis import BaseTables, IncompleteEvents, base_tables
from metrics.spark.sessions import identities, last_events, sessions
from metrics.spark.usage import sequence_totals, sequences, usage
from tests.support.metrics import EPOCH_MS, event, to_json_line

MINUTE_MS = 60_000
AUTHENTICATED = {
    "authenticated_ms": EPOCH_MS,
    "since_auth_ms": 0,
    "session_lifetime_ms": 0,
    "announced_lifetime_ms": 0,
    "principal": "User:alice",
    "mechanism": "SCRAM-SHA-256",
    "handshake_version": 1,
    "authenticate_version": 2,
    "client_id": "app",
}


def login(**more: Any) -> SessionEvent:
    """A first authentication, with a client that speaks v2."""
    return event(
        **{"kind": EventKind.AUTHENTICATED, "auth_latency_us": 1000, **AUTHENTICATED} | more
    )


def later(kind: EventKind, minutes: float, **more: Any) -> SessionEvent:
    """Something that happened to a login, so many minutes after it."""
    ms = round(minutes * MINUTE_MS)
    fields = {"kind": kind, "timestamp_ms": EPOCH_MS + ms, "since_auth_ms": ms, "sequence": 1}
    return event(**AUTHENTICATED | fields | more)


def lines(spark: SparkSession, given: Iterable[str]) -> DataFrame:
    return spark.createDataFrame([(line,) for line in given], "value STRING")


def frame(spark: SparkSession, given: Iterable[SessionEvent | str]) -> DataFrame:
    """The events, or lines of the log, as the package reads them."""
    text = lines(spark, (each if isinstance(each, str) else to_json_line(each) for each in given))
    # a plan that is short takes less time than it would take to follow a long one about
    return event_rows.valid_events(event_rows.classified(event_rows.parsed(text))).localCheckpoint()


def rows(given: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in given.collect()]


def only(given: DataFrame) -> dict[str, Any]:
    (row,) = rows(given)
    return row


def sessions_of(events: DataFrame) -> DataFrame:
    usage_rows = events.transform(usage).localCheckpoint()
    return sessions(usage_rows, identities(last_events(events, usage_rows))).localCheckpoint()


def base_tables_of(events: DataFrame) -> BaseTables:
    """What the tables are made from, of events without duplicates."""
    usage_rows = events.transform(usage).localCheckpoint()
    sequence_rows = usage_rows.transform(sequences).localCheckpoint()
    totals = only(sequence_rows.transform(sequence_totals))
    return base_tables(
        events,
        usage_rows,
        kept,
        connections=totals["connections"],
        open_ms=totals["open_ms"],
        incomplete=IncompleteEvents.among(sequence_rows, totals, kept)
        if totals["incomplete"]
        else None,
    )


def kept(_: str, each: DataFrame) -> DataFrame:
    """Keep nothing: what is small is computed again."""
    return each
