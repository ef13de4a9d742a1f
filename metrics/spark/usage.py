"""Usage of each connection by day, in numbers, with its missing events.

Both views of the log are read together: the events proper and the summary rows. Whatever a
connection did is taken as the greatest of what either says, so that a dropped event, a summary
that is still to come, and an order of arrival change nothing.

This is the one pass over all events, so its cost is the report's. What is carried along are
numbers: Spark aggregates them in place, and with text among them would sort all events instead.
And where no event of a connection is missing, one view is enough (`usage_if_whole`).
"""

from collections.abc import Mapping
from enum import IntFlag
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import EventKind, IntervalEnd
from metrics.spark.event_rows import MAX_DURATION_MS, counted

DAY_MS = 86_400_000

LEAST = ("authenticated_ms", "credential_lifetime_ms")
GREATEST = (
    "last_event_ms",
    "authentications",
    "used_ms",
    "longest_gap_ms",
    "told_ms",
    "outlived_credential_ms",
)
_SUMMED = ("would_be_kills_in_summaries", "event_requests", "summary_requests")
"""The columns of which the least, the greatest, or the sum is kept."""


class Occurrence(IntFlag):
    """Occurrences of which a connection had at least one: a bit each in the column `saw`."""

    KILLED = 1
    REAUTH_FAILURE = 2
    LOGIN_FAILURE = 4
    CLOSED = 8
    DENIAL = 16
    SUMMARY = 32
    OUTLASTED = 64
    """A session was used past its announced lifetime: only looked for where an event is missing,
    which may be the one that recorded the kill."""


_ROUNDING_MS = 1
"""The error in milliseconds that rounding may add to the difference of two times."""

_SQUARABLE = 1_000_000
"""The largest number whose squares add up in 64 bits; larger ones make suspects."""


def usage(events: DataFrame) -> DataFrame:
    """One row per connection and day (of UTC, since 1970), with numbers only."""
    # in a step of its own, too: the list would be gone through wherever the greatest is named
    longest = f.array_max(f.col("intervals")["last_request_since_auth_ms"])
    return _added_up(events.withColumn("longest_ms", longest), _from_both_views())


def usage_if_whole(events: DataFrame) -> DataFrame:
    """Return the same for connections of which every event is there (`sequences`), else too little.

    What the intervals of a summary row say was then said by the events before it, and reading
    them, a list of rows in a row, takes more time than all else.
    """
    none = f.lit(0).cast("long")
    return _added_up(events, _from_events()).withColumn("would_be_kills_in_summaries", none)


def _added_up(events: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
    # each in a step of its own, or Spark would work it out wherever it is named
    rows = events.withColumn("begin_ms", interval_start()).withColumn(
        "is_summary", is_kind(EventKind.SUMMARY)
    )
    rows = rows.withColumn("age_ms", used_ms(f.col("begin_ms")))
    rows = rows.select(*_numbers(), *(each.alias(name) for name, each in columns.items()))
    number = f.col("sequence")
    small = number < _SQUARABLE
    return rows.groupBy("connection_id", "day").agg(
        f.count(f.lit(1)).alias("events"),
        f.min(number).alias("first_sequence"),
        f.max(number).alias("last_sequence"),
        f.sum(f.when(small, number)).alias("sequences"),
        f.sum(f.when(small, number * number)).alias("sequence_squares"),
        f.bit_or("saw").alias("saw"),
        f.count_if("is_authentication").alias("authentication_events"),
        f.count_if("would_be_kill").alias("would_be_kill_events"),
        *(f.min(name).alias(name) for name in LEAST),
        *(f.max(name).alias(name) for name in GREATEST),
        *(f.sum(name).alias(name) for name in _SUMMED if name in rows.columns),
    )


def occurred(what: Occurrence) -> Column:
    """Return whether it occurred, for the column `saw` of any table here."""
    return f.col("saw").bitwiseAND(f.lit(what.value)) != 0


def sequences(usage_rows: DataFrame) -> DataFrame:
    """Return one row per connection: its number of events, and whether any is missing or doubled.

    A run of distinct numbers is known by its count, its sum and its sum of squares. Whatever is
    not such a run, because of a duplicate or of a dropped event, is `suspect`: an exact look at
    the few suspects is cheaper than one at every event. (Three or more duplicates and as many
    drops in one connection can cancel out; then those duplicates are not found.)

    `whole`: its first event is there too, and so all of them up to the last one. `incomplete`:
    some authentications are in summary rows only; `without_events`: all of them are. `open_ms`:
    when a connection that has not ended was last heard of.
    """
    first, last, count = f.col("first_sequence"), f.col("last_sequence"), f.col("events")
    width = last - first + 1
    run = (
        (count == width)
        & (f.col("sequences") * 2 == (first + last) * width)
        & (f.col("sequence_squares") == _sum_of_squares(last) - _sum_of_squares(first - 1))
    )
    has_fewer_events = f.col("authentication_events") < f.col("authentications")
    sums = ("events", "sequences", "sequence_squares", "authentication_events")
    return (
        usage_rows.groupBy("connection_id")
        .agg(
            f.min("first_sequence").alias("first_sequence"),
            f.max("last_sequence").alias("last_sequence"),
            f.max("last_event_ms").alias("last_event_ms"),
            f.max("authentications").alias("authentications"),
            f.bit_or("saw").alias("saw"),
            *(f.sum(name).alias(name) for name in sums),
        )
        .select(
            "connection_id",
            "events",
            "last_sequence",
            f.when(~occurred(Occurrence.CLOSED), f.col("last_event_ms")).alias("open_ms"),
            occurred(Occurrence.DENIAL).alias("denied"),
            (~f.coalesce(run, f.lit(False))).alias("suspect"),
            (f.coalesce(run, f.lit(False)) & (first == 0)).alias("whole"),
            (has_fewer_events & occurred(Occurrence.SUMMARY)).alias("incomplete"),
            (f.col("authentication_events") == 0).alias("without_events"),
        )
    )


def sequence_totals(sequence_rows: DataFrame) -> DataFrame:
    """One row: how many connections and events there are, and should be, and what to look at."""
    zero = f.lit(0).cast("long")
    return sequence_rows.agg(
        f.count(f.lit(1)).alias("connections"),
        f.coalesce(f.sum("events"), zero).alias("events"),
        f.coalesce(f.sum(f.col("last_sequence") + 1), zero).alias("numbered"),
        f.min("open_ms").alias("open_ms"),
        f.count_if("denied").alias("denied"),
        f.count_if("suspect").alias("suspects"),
        f.count_if(~f.col("whole")).alias("parts"),
        f.count_if("incomplete").alias("incomplete"),
        f.count_if(f.col("incomplete") & f.col("without_events")).alias("without_events"),
    )


def is_kind(*kinds: EventKind) -> Column:
    """Return whether the event is of one of these kinds."""
    return f.col("kind").isin([kind.value for kind in kinds])


def interval_start() -> Column:
    """Return the begin of the interval that ends with, or goes on through, this event."""
    ended = f.col("kind") == EventKind.REAUTHENTICATED.value
    before = f.col("timestamp_ms") - f.col("since_auth_ms")
    return f.when(ended, before).otherwise(f.col("authenticated_ms"))


def used_ms(begin: Column) -> Column:
    """Age of the session that began then, at its last use; null: not used since it began.

    The request that meets an expired session is a use of it, though it is refused in `enforce`.
    """
    killed = f.when(
        is_kind(EventKind.EXPIRED_KILLED, EventKind.WOULD_BE_KILLED), f.col("since_auth_ms")
    )
    age = f.col("last_request_ms") - begin
    return f.greatest(f.when(age >= 0, age), killed)


def _numbers() -> list[Column]:
    """Return the columns that mean the same in events and in summary rows."""
    summary = f.col("is_summary")
    return [
        f.col("connection_id"),
        f.expr(f"cast(timestamp_ms div {DAY_MS} as int)").alias("day"),
        f.col("sequence"),
        f.col("timestamp_ms").alias("last_event_ms"),
        f.col("authentications"),
        f.col("credential_lifetime_ms"),
        is_kind(EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED).alias("is_authentication"),
        is_kind(EventKind.WOULD_BE_KILLED).alias("would_be_kill"),
        f.when(~summary, f.col("requests")).alias("event_requests"),
        f.when(summary, f.col("requests")).alias("summary_requests"),
    ]


def _from_both_views() -> dict[str, Column]:
    events, summaries = _from_events(), _from_summaries()
    either = {
        name: f.when(f.col("is_summary"), summaries[name]).otherwise(events[name])
        for name in events
    }
    outlasted = _bit(_outlasted(), Occurrence.OUTLASTED)
    return either | {
        "would_be_kills_in_summaries": f.when(
            f.col("is_summary"), counted(f.col("would_be_kills"))
        ),
        "saw": either["saw"].bitwiseOR(outlasted),
    }


def _outlasted() -> Column:
    """Return whether a session was used past the lifetime announced at its own beginning.

    On `reauthenticated` the age is that of the session before, and the lifetime that of the new
    one. A summary row counts the kills of its own period; of its list only the first interval, and
    the last, which all rows have, may have been killed in one that is missing.
    """
    intervals = f.col("intervals")
    first_used = intervals["last_request_since_auth_ms"][0]
    first = _is_past(first_used, intervals["announced_lifetime_ms"][0])
    last = _is_past(f.col("age_ms"), f.col("announced_lifetime_ms"))
    return first | (last & ~is_kind(EventKind.REAUTHENTICATED))


def _is_past(used: Column, announced: Column) -> Column:
    sensible = announced.between(1, MAX_DURATION_MS) & (used <= MAX_DURATION_MS)
    return f.coalesce(sensible & (used > announced + _ROUNDING_MS), f.lit(False))


def _from_events() -> dict[str, Column]:
    """Return the columns of an event proper; of a summary row, all but its intervals."""
    again = is_kind(EventKind.REAUTHENTICATED)
    failure = f.when(f.col("authentications") > 0, Occurrence.REAUTH_FAILURE.value).otherwise(
        Occurrence.LOGIN_FAILURE.value
    )
    return {
        "authenticated_ms": f.col("begin_ms"),
        "used_ms": f.col("age_ms"),
        "longest_gap_ms": f.when(again, f.col("since_auth_ms")),
        "told_ms": f.col("announced_lifetime_ms"),
        "outlived_credential_ms": f.when(~again, f.col("age_ms") - f.col("credential_lifetime_ms")),
        "saw": f.when(is_kind(EventKind.CLOSED), Occurrence.CLOSED.value)
        .when(is_kind(EventKind.EXPIRED_KILLED), Occurrence.KILLED.value)
        .when(is_kind(EventKind.FAILED), failure)
        .when(is_kind(EventKind.DENIED, EventKind.WOULD_BE_DENIED), Occurrence.DENIAL.value)
        .when(f.col("is_summary"), Occurrence.SUMMARY.value)
        .otherwise(0),
    }


def _from_summaries() -> dict[str, Column]:
    """Return the columns of a summary row: its intervals are read by fields and not one by one.

    That can be compiled.
    """
    intervals = f.col("intervals")
    used, ended_by = intervals["last_request_since_auth_ms"], intervals["ended_by"]
    longest = f.col("longest_ms")
    count = f.size(used)  # not of `intervals`: all of their fields would be read for it
    # the oldest first, so all but the last one ended by a re-authentication
    renewed = f.slice(intervals["ended_since_auth_ms"], f.lit(1), count - 1)
    latest = f.when(count > 0, used[count - 1])
    outlived = f.when(latest < MAX_DURATION_MS, latest - f.col("credential_lifetime_ms"))
    saw = [
        _bit(f.array_contains(ended_by, IntervalEnd.EXPIRED_KILLED.value), Occurrence.KILLED),
        _bit(f.array_contains(ended_by, IntervalEnd.FAILED.value), Occurrence.REAUTH_FAILURE),
        _bit(f.col("final"), Occurrence.CLOSED),
    ]
    return {
        "authenticated_ms": f.array_min(intervals["authenticated_ms"]),
        "used_ms": f.when(longest.between(0, MAX_DURATION_MS), longest),
        "longest_gap_ms": f.when(count > 1, f.array_max(renewed)),
        "told_ms": f.array_max(intervals["announced_lifetime_ms"]),
        "outlived_credential_ms": outlived,
        "saw": reduce(Column.bitwiseOR, saw, f.lit(Occurrence.SUMMARY.value)),
    }


def _bit(happened: Column, what: Occurrence) -> Column:
    return f.when(happened, what.value).otherwise(0)


def _sum_of_squares(last: Column) -> Column:
    exact = last.cast("decimal(20,0)")
    return (exact * (exact + 1) * (exact * 2 + 1)) / 6
