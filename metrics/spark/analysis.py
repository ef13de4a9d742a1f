"""Valid events → the tables of the report. DataFrames in, DataFrames out; only `keep` runs any."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from pyspark.sql import DataFrame

from metrics.spark import events as log
from metrics.spark.clients import clients
from metrics.spark.happenings import (
    happenings,
    happenings_of_either_view,
    happenings_of_summaries,
)
from metrics.spark.intervals import intervals, intervals_if_told, says_more
from metrics.spark.readiness import by_their_clients, client_readiness
from metrics.spark.sessions import identities, last_events, may_be_last, sessions
from metrics.spark.trends import (
    by_day,
    failures,
    latencies,
    session_lengths,
    short_tokens,
    storm_profile,
    storms,
)
from metrics.spark.what_if import concerned, kills, what_if

STORM_POINTS = 480
"""Stretches of the storm plot; more than a screen shows apart."""

Keep = Callable[[str, DataFrame], DataFrame]
"""Takes a name and gives a DataFrame of the same rows that is not computed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """Connections of which only summary rows tell every authentication."""

    rows: DataFrame
    """`connection_id`; `unsaid`: no event tells of any authentication."""
    others: bool
    """Are there other connections?"""
    partly: bool
    """Are there any of which events tell some?"""

    @classmethod
    def among(cls, sequence_rows: DataFrame, totals: Mapping[str, int], keep: Keep) -> Self:
        """Take them from what `sequences` and `sequence_totals` gave."""
        rows = sequence_rows.where("untold").select("connection_id", "unsaid")
        return cls(
            rows=keep("untold", rows),
            others=totals["untold"] < totals["connections"],
            partly=totals["unsaid"] < totals["untold"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What most tables are made from; each is used several times, and worth keeping."""

    events: DataFrame
    """Valid, of the past, each once."""
    untold: Untold | None
    """None: there is none."""
    usage: DataFrame
    last: DataFrame
    """The last event of each connection."""
    sessions: DataFrame
    clients: DataFrame
    """With their verdicts."""
    happenings: DataFrame


def known(
    events: DataFrame,
    usage_rows: DataFrame,
    keep: Keep,
    *,
    connections: int,
    open_ms: int | None,
    untold: Untold | None = None,
) -> Known:
    """Derive what most tables are made from, looking at all events for two of them at a time."""
    counted = _happenings(events, untold)
    with ThreadPoolExecutor(max_workers=1) as pool:
        kept = pool.submit(keep, "happenings", counted)
        last = keep("last", last_events(events.where(may_be_last(open_ms)), usage_rows))
        if last.count() < connections:
            last = keep("last_of_all", last_events(events, usage_rows))
        session_rows = keep("sessions", sessions(usage_rows, identities(last)))
        judged = session_rows.transform(clients).transform(client_readiness)
        return Known(
            events=events,
            untold=untold,
            usage=usage_rows,
            last=last,
            sessions=session_rows,
            clients=keep("clients", judged),
            happenings=kept.result(),
        )


def _happenings(events: DataFrame, untold: Untold | None) -> DataFrame:
    """Count by the events alone, except for those connections where they do not tell all."""
    if untold is None:
        return happenings(events)
    if not untold.others and not untold.partly:
        return happenings_of_summaries(events)
    counted = happenings_of_summaries(log.of(events, untold.rows.where("unsaid")))
    if untold.partly:
        partly = log.of(events, untold.rows.where("NOT unsaid"))
        counted = counted.unionByName(happenings_of_either_view(partly))
    if untold.others:
        counted = counted.unionByName(happenings(log.others(events, untold.rows)))
    return counted


def what_if_table(rows: Known, lifetimes_ms: tuple[int, ...], keep: Keep) -> DataFrame:
    """Apply each lifetime to what was recorded."""
    long_used = concerned(rows.sessions, lifetimes_ms)
    if rows.untold is None:
        used = _told(rows, long_used)
    else:
        used = intervals(log.of(rows.events, log.of(long_used, rows.untold.rows)))
        if rows.untold.others:
            told = log.others(long_used, rows.untold.rows)
            used = used.unionByName(_told(rows, told))
    kill_rows = keep("kills", kills(used, lifetimes_ms))
    return what_if(by_their_clients(rows.sessions, rows.clients), kill_rows, lifetimes_ms)


def _told(rows: Known, connections: DataFrame) -> DataFrame:
    """Give the intervals of connections of which events tell every authentication."""
    told = log.of(rows.events.where(says_more()), connections)
    return intervals_if_told(told, log.of(rows.last, connections))


TABLES: Mapping[str, Callable[[Known], DataFrame]] = {
    "storms": lambda rows: rows.happenings.transform(storms),
    "latencies": lambda rows: rows.happenings.transform(latencies),
    "by_day": lambda rows: by_day(rows.usage, rows.sessions),
    "short_tokens": lambda rows: rows.clients.transform(short_tokens),
    "session_lengths": lambda rows: session_lengths(by_their_clients(rows.sessions, rows.clients)),
    "failures": lambda rows: rows.happenings.transform(failures),
}
"""The other tables, by the name that they have in the report."""


def storm_plot(storm_rows: DataFrame) -> DataFrame:
    """Thin the storms out to what a plot can show."""
    return storm_profile(storm_rows, points=STORM_POINTS)
