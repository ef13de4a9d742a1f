"""Valid events → the tables of the report. DataFrames in, DataFrames out; nothing is run here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from metrics.spark import events as log
from metrics.spark.clients import clients
from metrics.spark.intervals import intervals
from metrics.spark.readiness import client_readiness, principals
from metrics.spark.sessions import identities, sessions
from metrics.spark.trends import (
    by_day,
    failures,
    happenings,
    happenings_of_either_view,
    histogram_of_either_view,
    latencies,
    session_lengths,
    short_tokens,
    storm_profile,
    storms,
    told_histogram,
)
from metrics.spark.what_if import concerned, kills, what_if

STORM_POINTS = 480
"""Stretches of the storm plot; more than a screen shows apart."""

Keep = Callable[[str, DataFrame], DataFrame]
"""Takes a name and gives a DataFrame of the same rows that is not computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What most tables are made from; each is used several times, and worth keeping."""

    events: DataFrame
    """Valid, of the past, each once."""
    untold: DataFrame | None
    """Connections (`connection_id`) of which only summary rows tell every authentication."""
    usage: DataFrame
    sessions: DataFrame
    clients: DataFrame
    """With their verdicts."""
    happenings: DataFrame


def known(
    events: DataFrame, usage_rows: DataFrame, keep: Keep, *, untold: DataFrame | None = None
) -> Known:
    """Derive what most tables are made from."""
    session_rows = keep("sessions", sessions(usage_rows, identities(events, usage_rows)))
    judged = session_rows.transform(clients).transform(client_readiness)
    counted = _of_both(events, untold, happenings, happenings_of_either_view)
    return Known(
        events=events,
        untold=untold,
        usage=usage_rows,
        sessions=session_rows,
        clients=keep("clients", judged),
        happenings=keep("happenings", counted),
    )


def _of_both(
    events: DataFrame,
    untold: DataFrame | None,
    by_events: Callable[[DataFrame], DataFrame],
    by_either_view: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Count by the events alone, except for those connections where they do not tell all."""
    if untold is None:
        return by_events(events)
    rest = by_either_view(log.of(events, untold))
    return by_events(log.others(events, untold)).unionByName(rest)


def latency_table(rows: Known) -> DataFrame:
    """Latencies by mechanism."""
    histogram = _of_both(rows.events, rows.untold, told_histogram, histogram_of_either_view)
    return histogram.transform(latencies)


def what_if_table(rows: Known, lifetimes_ms: tuple[int, ...]) -> DataFrame:
    """Apply each lifetime to what was recorded."""
    theirs = log.of(rows.events, rows.sessions.transform(concerned))
    return what_if(rows.sessions, kills(theirs.transform(intervals), lifetimes_ms), lifetimes_ms)


TABLES: Mapping[str, Callable[[Known], DataFrame]] = {
    "principals": lambda rows: rows.clients.transform(principals),
    "storms": lambda rows: rows.happenings.transform(storms),
    "latencies": latency_table,
    "by_day": lambda rows: by_day(rows.usage, rows.sessions),
    "short_tokens": lambda rows: rows.clients.transform(short_tokens),
    "session_lengths": lambda rows: rows.sessions.transform(session_lengths),
    "failures": lambda rows: rows.happenings.transform(failures),
}
"""The other tables, by the name that they have in the report."""


def storm_plot(storm_rows: DataFrame) -> DataFrame:
    """Thin the storms out to what a plot can show."""
    return storm_profile(storm_rows, points=STORM_POINTS)
