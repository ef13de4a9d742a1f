"""Sessions: one row per connection with its identity, from its usage by day.

The numbers come from `usage`; the text from the last event of each connection (`last_events`).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import EventKind, IntervalEnd
from metrics.report.verdicts import Verdict
from metrics.spark.usage import (
    GREATEST,
    LEAST,
    Occurrence,
    is_kind,
    occurred,
)

IDENTITY = (
    "principal",
    "client_id",
    "client_software_name",
    "client_software_version",
    "mechanism",
    "client_host",
    "listener",
    "enforcement",
    "handshake_version",
    "authenticate_version",
    "connected_ms",
    "last_request_ms",
)
"""The columns that identify a connection, of which the latest values are valid."""

INTERVAL = (
    "kind",
    "timestamp_ms",
    "authentications",
    "authenticated_ms",
    "since_auth_ms",
    "last_request_ms",
)
"""The columns about the time since the last authentication."""


def standing() -> Column:
    """Judge a session, or a client of which the same columns are known."""
    capable = f.coalesce(f.col("authenticate_version") >= 1, f.lit(False))
    failed = (f.col("killed") + f.col("would_be_kills") + f.col("reauth_failures")) > 0
    return (
        f.when(f.col("principal").isNull(), Verdict.UNKNOWN.value)
        .when(~capable, Verdict.NOT_CAPABLE.value)
        .when(failed, Verdict.FAILING.value)
        .when(f.col("reauthentications") > 0, Verdict.READY.value)
        .otherwise(Verdict.UNPROVEN.value)
    )


def last_events(events: DataFrame, usage_rows: DataFrame) -> DataFrame:
    """One row per connection: what its last event says, if it is among the events."""
    last = usage_rows.groupBy("connection_id").agg(f.max("last_sequence").alias("sequence"))
    return (
        events.select("connection_id", "sequence", *dict.fromkeys((*IDENTITY, *INTERVAL)))
        .join(last, ["connection_id", "sequence"])
        .drop("sequence")
        .dropDuplicates(["connection_id"])
    )


def may_be_last(open_ms: int | None) -> Column:
    """Return whether an event can be its connection's last: nothing follows its kind, or it is
    recent.

    `open_ms`: when the one of the open connections was last heard of that was so least recently.
    """
    ended = is_kind(EventKind.CLOSED) | f.col("final")
    return ended if open_ms is None else ended | (f.col("timestamp_ms") >= open_ms)


def identities(last: DataFrame) -> DataFrame:
    """One row per connection: whose it is, and how old its session had become."""
    return last.select("connection_id", *IDENTITY, f.col("since_auth_ms").alias("last_age_ms"))


def sessions(usage_rows: DataFrame, identity_rows: DataFrame) -> DataFrame:
    """One row per connection: who, since when, how it was kept up, how it ended.

    `ended_since_auth_ms` is the age of its last session then. A connection without SASL, of which
    only denials are recorded, has no session to judge.
    """
    extremes = (*GREATEST, "last_sequence")
    flags = {
        "killed": Occurrence.KILLED,
        "reauth_failures": Occurrence.REAUTH_FAILURE,
        "login_failures": Occurrence.LOGIN_FAILURE,
        "closed": Occurrence.CLOSED,
    }
    events, in_summaries = f.sum("would_be_kill_events"), f.sum("would_be_kills_in_summaries")
    by_connection = usage_rows.groupBy("connection_id").agg(
        *(f.min(name).alias(name) for name in LEAST),
        *(f.max(name).alias(name) for name in extremes),
        f.bit_or("saw").alias("saw"),
        f.greatest(events, in_summaries).alias("would_be_kills"),
        f.coalesce(events >= in_summaries, f.lit(True)).alias("kills_are_told"),
        f.greatest(f.sum("event_requests"), f.sum("summary_requests")).alias("requests"),
    )
    return (
        by_connection.join(identity_rows, "connection_id")
        .where(f.col("principal").isNull() | (f.col("authentications") > 0))
        .withColumns({name: occurred(what).cast("long") for name, what in flags.items()})
        .withColumn("would_be_kills", f.greatest("would_be_kills", _unrecorded_kills()))
        .drop("saw")
        .withColumn("reauthentications", f.greatest(f.col("authentications") - 1, f.lit(0)))
        .withColumn("ended_by", _ended_by())
        .withColumn(
            "ended_since_auth_ms", f.when(f.col("ended_by").isNotNull(), f.col("last_age_ms"))
        )
        .drop("last_age_ms")
        .withColumn("standing", standing())
    )


def _unrecorded_kills() -> Column:
    """Count a kill that nothing records but the use of a session past its end: one at least."""
    return (occurred(Occurrence.OUTLASTED) & ~occurred(Occurrence.KILLED)).cast("long")


def _ended_by() -> Column:
    return (
        f.when(f.col("killed") > 0, IntervalEnd.EXPIRED_KILLED.value)
        .when((f.col("reauth_failures") + f.col("login_failures")) > 0, IntervalEnd.FAILED.value)
        .when(f.col("closed") > 0, IntervalEnd.CLOSED.value)
    )
