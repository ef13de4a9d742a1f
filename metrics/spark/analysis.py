"""Valid events → the tables of the report. DataFrames in, DataFrames out; nothing is run here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from metrics.spark.clients import clients
from metrics.spark.readiness import client_readiness, principals
from metrics.spark.sessions import intervals, sessions, usage
from metrics.spark.trends import (
    by_day,
    failures,
    latencies,
    projection,
    session_lengths,
    short_tokens,
    storm_profile,
    storms,
)
from metrics.spark.what_if import active_runs, concerned, kills, what_if

STORM_POINTS = 480
"""Stretches of the storm plot; more than a screen shows apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What most tables are made from; each is used several times, and worth keeping."""

    events: DataFrame
    """Valid, of the past, each once."""
    usage: DataFrame
    sessions: DataFrame
    clients: DataFrame
    """With their verdicts."""


def known(events: DataFrame, keep: Callable[[str, DataFrame], DataFrame]) -> Known:
    """Derive what most tables are made from; `keep` is called on what is used several times.

    `keep` takes a name and gives a DataFrame of the same rows that is not computed again.
    """
    usage_rows = keep("usage", events.transform(usage))
    session_rows = keep("sessions", usage_rows.transform(sessions))
    judged = session_rows.transform(clients).transform(client_readiness)
    client_rows = keep("clients", judged)
    return Known(events=events, usage=usage_rows, sessions=session_rows, clients=client_rows)


def what_if_table(rows: Known, lifetimes_ms: tuple[int, ...]) -> DataFrame:
    """Apply each lifetime to what was recorded."""
    ids = rows.sessions.transform(concerned).select("connection_id")
    theirs = rows.events.join(ids, "connection_id", "left_semi")
    kill_rows = kills(theirs.transform(intervals), theirs.transform(active_runs), lifetimes_ms)
    return what_if(rows.sessions, kill_rows, lifetimes_ms)


TABLES: Mapping[str, Callable[[Known], DataFrame]] = {
    "principals": lambda rows: rows.clients.transform(principals),
    "storms": lambda rows: rows.events.transform(storms),
    "latencies": lambda rows: rows.events.transform(latencies),
    "by_day": lambda rows: rows.usage.transform(by_day),
    "short_tokens": lambda rows: rows.clients.transform(short_tokens),
    "session_lengths": lambda rows: rows.sessions.transform(session_lengths),
    "failures": lambda rows: rows.events.transform(failures),
}
"""The other tables, by the name that they have in the report."""


def projection_table(day_rows: DataFrame) -> DataFrame:
    """Say when the trend is ready."""
    return day_rows.transform(projection)


def storm_plot(storm_rows: DataFrame) -> DataFrame:
    """Thin the storms out to what a plot can show."""
    return storm_profile(storm_rows, points=STORM_POINTS)
