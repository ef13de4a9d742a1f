"""Tables of the report from valid events: DataFrames in and out; only `keep` runs a job."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from pyspark.sql import DataFrame

from metrics.spark import event_rows
from metrics.spark.authentications import (
    authentication_counts,
    authentication_counts_of_either_view,
    authentication_counts_of_summaries,
)
from metrics.spark.clients import clients
from metrics.spark.intervals import adds_to_intervals, intervals, intervals_if_complete
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
"""The number of points of the storm plot: more than a screen shows apart."""

Keep = Callable[[str, DataFrame], DataFrame]
"""Function that returns the rows of a DataFrame, kept under a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteEvents:
    """Connections with authentications that only summary rows record."""

    rows: DataFrame
    """The columns `connection_id` and `without_events` (no event records any authentication)."""
    others: bool
    """True if there are other connections, with an event for each authentication."""
    partly: bool
    """True if events record some authentications of any of these connections."""

    @classmethod
    def among(cls, sequence_rows: DataFrame, totals: Mapping[str, int], keep: Keep) -> Self:
        """Take them from what `sequences` and `sequence_totals` gave."""
        rows = sequence_rows.where("incomplete").select("connection_id", "without_events")
        return cls(
            rows=keep("incomplete", rows),
            others=totals["incomplete"] < totals["connections"],
            partly=totals["without_events"] < totals["incomplete"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTables:
    """DataFrames that most tables are made from; each is used several times, and kept."""

    events: DataFrame
    """The valid events of the past, each once."""
    incomplete: IncompleteEvents | None
    """The connections whose events are incomplete; None: there is none."""
    usage: DataFrame
    last: DataFrame
    """The last event of each connection."""
    sessions: DataFrame
    clients: DataFrame
    """The clients with their verdicts."""
    authentication_counts: DataFrame


def base_tables(
    events: DataFrame,
    usage_rows: DataFrame,
    keep: Keep,
    *,
    connections: int,
    open_ms: int | None,
    incomplete: IncompleteEvents | None = None,
) -> BaseTables:
    """Derive what most tables are made from, looking at all events for two of them at a time."""
    counted = _authentication_counts(events, incomplete)
    with ThreadPoolExecutor(max_workers=1) as pool:
        kept = pool.submit(keep, "authentication_counts", counted)
        last = keep("last", last_events(events.where(may_be_last(open_ms)), usage_rows))
        if last.count() < connections:
            last = keep("last_of_all", last_events(events, usage_rows))
        session_rows = keep("sessions", sessions(usage_rows, identities(last)))
        judged = session_rows.transform(clients).transform(client_readiness)
        return BaseTables(
            events=events,
            incomplete=incomplete,
            usage=usage_rows,
            last=last,
            sessions=session_rows,
            clients=keep("clients", judged),
            authentication_counts=kept.result(),
        )


def _authentication_counts(events: DataFrame, incomplete: IncompleteEvents | None) -> DataFrame:
    """Count by the events alone, except for connections whose events are incomplete."""
    if incomplete is None:
        return authentication_counts(events)
    if not incomplete.others and not incomplete.partly:
        return authentication_counts_of_summaries(events)
    counted = authentication_counts_of_summaries(
        event_rows.of_connections(events, incomplete.rows.where("without_events"))
    )
    if incomplete.partly:
        partly = event_rows.of_connections(events, incomplete.rows.where("NOT without_events"))
        counted = counted.unionByName(authentication_counts_of_either_view(partly))
    if incomplete.others:
        counted = counted.unionByName(
            authentication_counts(event_rows.without_connections(events, incomplete.rows))
        )
    return counted


def what_if_table(rows: BaseTables, lifetimes_ms: tuple[int, ...], keep: Keep) -> DataFrame:
    """Apply each lifetime to what was recorded."""
    long_used = concerned(rows.sessions, lifetimes_ms)
    if rows.incomplete is None:
        used = _complete_intervals(rows, long_used)
    else:
        used = intervals(
            event_rows.of_connections(
                rows.events, event_rows.of_connections(long_used, rows.incomplete.rows)
            )
        )
        if rows.incomplete.others:
            complete = event_rows.without_connections(long_used, rows.incomplete.rows)
            used = used.unionByName(_complete_intervals(rows, complete))
    kill_rows = keep("kills", kills(used, lifetimes_ms))
    return what_if(by_their_clients(rows.sessions, rows.clients), kill_rows, lifetimes_ms)


def _complete_intervals(rows: BaseTables, connections: DataFrame) -> DataFrame:
    """Give the intervals of connections with an event for each authentication."""
    events = event_rows.of_connections(rows.events.where(adds_to_intervals()), connections)
    return intervals_if_complete(events, event_rows.of_connections(rows.last, connections))


TABLES: Mapping[str, Callable[[BaseTables], DataFrame]] = {
    "storms": lambda rows: rows.authentication_counts.transform(storms),
    "latencies": lambda rows: rows.authentication_counts.transform(latencies),
    "by_day": lambda rows: by_day(rows.usage, rows.sessions),
    "short_tokens": lambda rows: rows.clients.transform(short_tokens),
    "session_lengths": lambda rows: session_lengths(by_their_clients(rows.sessions, rows.clients)),
    "failures": lambda rows: rows.authentication_counts.transform(failures),
}
"""The other tables, by the name that they have in the report."""


def storm_plot(storm_rows: DataFrame) -> DataFrame:
    """Thin the storms out to what a plot can show."""
    return storm_profile(storm_rows, points=STORM_POINTS)
