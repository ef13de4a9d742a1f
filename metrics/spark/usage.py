"""Valid events → what each connection did, by day, in numbers; and whether any event is missing.

Both views of the log are read together: the events proper and the summary rows. Whatever a
connection did is taken as the greatest of what either says, so that a dropped event, a summary
that is still to come, and an order of arrival change nothing.

This is the one pass over all events, so its cost is the report's. What is carried along are
numbers: Spark aggregates them in place, and with text among them would sort all events instead.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import EventKind, IntervalEnd
from metrics.spark.events import MAX_DURATION_MS

DAY_MS = 86_400_000

LEAST = ("connected_ms", "authenticated_ms", "credential_lifetime_ms")
GREATEST = (
    "last_event_ms",
    "last_request_ms",
    "authentications",
    "used_ms",
    "longest_gap_ms",
    "told_ms",
    "outlived_credential_ms",
    "killed",
    "reauth_failures",
    "login_failures",
    "closed",
)
_SUMMED = (
    "told_authentications",
    "summaries",
    "would_be_kills_told",
    "would_be_kills_summed",
    "event_requests",
    "summary_requests",
    "denials",
)
"""What of a connection's rows is kept: the least, the greatest, or the sum."""

_SQUARABLE = 1_000_000
"""Squares of larger numbers could not be added up in 64 bits; such a connection is looked at."""


def usage(events: DataFrame) -> DataFrame:
    """One row per connection and day (of UTC, since 1970), with numbers only."""
    rows = events.select(*_numbers())
    number = f.col("sequence")
    small = number < _SQUARABLE
    return rows.groupBy("connection_id", "day").agg(
        f.count(f.lit(1)).alias("events"),
        f.min(number).alias("first_sequence"),
        f.max(number).alias("last_sequence"),
        f.sum(f.when(small, number)).alias("sequences"),
        f.sum(f.when(small, number * number)).alias("sequence_squares"),
        *(f.min(name).alias(name) for name in LEAST),
        *(f.max(name).alias(name) for name in GREATEST),
        *(f.sum(name).alias(name) for name in _SUMMED),
    )


def sequences(usage_rows: DataFrame) -> DataFrame:
    """One row per connection: how many events, has each a name of its own, is any auth missing?

    A run of distinct numbers is known by its count, its sum and its sum of squares. Whatever is
    not such a run, because of a duplicate or of a dropped event, is `suspect`: an exact look at
    the few suspects is cheaper than one at every event. (Three or more duplicates and as many
    drops in one connection can cancel out; then those duplicates are not found.)

    `untold`: there are authentications that only the summary rows tell of.
    """
    first, last, count = f.col("first_sequence"), f.col("last_sequence"), f.col("events")
    width = last - first + 1
    run = (
        (count == width)
        & (f.col("sequences") * 2 == (first + last) * width)
        & (f.col("sequence_squares") == _sum_of_squares(last) - _sum_of_squares(first - 1))
    )
    untold = (f.col("told_authentications") < f.col("authentications")) & (f.col("summaries") > 0)
    sums = (
        "events",
        "sequences",
        "sequence_squares",
        "told_authentications",
        "summaries",
        "denials",
    )
    return (
        usage_rows.groupBy("connection_id")
        .agg(
            f.min("first_sequence").alias("first_sequence"),
            f.max("last_sequence").alias("last_sequence"),
            f.max("authentications").alias("authentications"),
            *(f.sum(name).alias(name) for name in sums),
        )
        .select(
            "connection_id",
            "events",
            "denials",
            "last_sequence",
            (~f.coalesce(run, f.lit(False))).alias("suspect"),
            untold.alias("untold"),
        )
    )


def sequence_totals(sequence_rows: DataFrame) -> DataFrame:
    """One row: how many events there are, how many there should be, and what to look at."""
    zero = f.lit(0).cast("long")
    return sequence_rows.agg(
        f.coalesce(f.sum("events"), zero).alias("events"),
        f.coalesce(f.sum(f.col("last_sequence") + 1), zero).alias("numbered"),
        f.coalesce(f.sum("denials"), zero).alias("denials"),
        f.count_if("suspect").alias("suspects"),
        f.count_if("untold").alias("untold"),
    )


def proper(events: DataFrame) -> DataFrame:
    """Keep the events proper."""
    return events.where(f.col("kind") != EventKind.SUMMARY.value)


def summaries(events: DataFrame) -> DataFrame:
    """Keep the summary rows."""
    return events.where(f.col("kind") == EventKind.SUMMARY.value)


def when_kind(column: str, *kinds: EventKind) -> Column:
    """Give the column on events of these kinds, else null."""
    return f.when(f.col("kind").isin([kind.value for kind in kinds]), f.col(column))


def is_kind(*kinds: EventKind) -> Column:
    """Is the event of one of these kinds?"""
    return f.col("kind").isin([kind.value for kind in kinds])


def interval_start() -> Column:
    """When the interval began that ends with, or goes on through, this event."""
    ended = f.col("kind") == EventKind.REAUTHENTICATED.value
    before = f.col("timestamp_ms") - f.col("since_auth_ms")
    return f.when(ended, before).otherwise(f.col("authenticated_ms"))


def used_ms() -> Column:
    """Age of the session at its last use; null: not used since it began.

    The request that meets an expired session is a use of it, though it is refused in `enforce`.
    """
    killed = f.when(
        is_kind(EventKind.EXPIRED_KILLED, EventKind.WOULD_BE_KILLED), f.col("since_auth_ms")
    )
    age = f.col("last_request_ms") - interval_start()
    return f.greatest(f.when(age >= 0, age), killed)


def _numbers() -> list[Column]:
    """What a row says, of either view: one look at each row costs less than two at half of them."""
    told, summed = _told(), _summed()
    summary = is_kind(EventKind.SUMMARY)
    zero = f.lit(0).cast("long")
    columns = [
        f.col("connection_id"),
        f.floor(f.col("timestamp_ms") / DAY_MS).cast("int").alias("day"),
        f.col("sequence"),
        f.col("timestamp_ms").alias("last_event_ms"),
        *(f.col(name) for name in ("connected_ms", "last_request_ms", "authentications")),
        f.col("credential_lifetime_ms"),
    ]
    for name in (*told, *(name for name in summed if name not in told)):
        by_events, by_summary = told.get(name, zero), summed.get(name, zero)
        columns.append(f.when(summary, by_summary).otherwise(by_events).alias(name))
    return columns


def _told() -> dict[str, Column]:
    """What an event proper says; what is not named here it does not tell."""
    authenticated = f.col("authentications") > 0
    failed = is_kind(EventKind.FAILED)
    again = is_kind(EventKind.REAUTHENTICATED)
    credential = f.when(~again, f.col("credential_lifetime_ms"))
    flags = {
        "told_authentications": is_kind(EventKind.AUTHENTICATED, EventKind.REAUTHENTICATED),
        "killed": is_kind(EventKind.EXPIRED_KILLED),
        "would_be_kills_told": is_kind(EventKind.WOULD_BE_KILLED),
        "reauth_failures": failed & authenticated,
        "login_failures": failed & ~authenticated,
        "closed": is_kind(EventKind.CLOSED),
        "denials": is_kind(EventKind.DENIED, EventKind.WOULD_BE_DENIED),
    }
    return {
        "authenticated_ms": f.when(again, interval_start()).otherwise(f.col("authenticated_ms")),
        "used_ms": used_ms(),
        "longest_gap_ms": f.when(again, f.col("since_auth_ms")),
        "told_ms": f.col("announced_lifetime_ms"),
        "outlived_credential_ms": used_ms() - credential,
        "event_requests": f.col("requests"),
    } | {name: flag.cast("long") for name, flag in flags.items()}


def _summed() -> dict[str, Column]:
    """What a summary row says: its intervals are read by fields and not one by one.

    That can be compiled.
    """
    intervals = f.col("intervals")
    used, ended_by = intervals["last_request_since_auth_ms"], intervals["ended_by"]
    # the oldest first, so all but the last one ended by a re-authentication
    renewed = f.slice(intervals["ended_since_auth_ms"], f.lit(1), f.size(intervals) - 1)
    latest = f.when(f.size(intervals) > 0, used[f.size(intervals) - 1])
    outlived = f.when(latest < MAX_DURATION_MS, latest - f.col("credential_lifetime_ms"))
    return {
        "authenticated_ms": f.array_min(intervals["authenticated_ms"]),
        "used_ms": f.array_max(used),
        "longest_gap_ms": f.when(f.size(intervals) > 1, f.array_max(renewed)),
        "told_ms": f.array_max(intervals["announced_lifetime_ms"]),
        "outlived_credential_ms": outlived,
        "summaries": f.lit(1).cast("long"),
        "killed": _holds(ended_by, IntervalEnd.EXPIRED_KILLED),
        "would_be_kills_summed": f.coalesce(f.col("would_be_kills"), f.lit(0)),
        "reauth_failures": _holds(ended_by, IntervalEnd.FAILED),
        "closed": f.coalesce(f.col("final"), f.lit(False)).cast("long"),
        "summary_requests": f.col("requests"),
    }


def _holds(ends: Column, end: IntervalEnd) -> Column:
    return f.coalesce(f.array_contains(ends, end.value), f.lit(False)).cast("long")


def _sum_of_squares(last: Column) -> Column:
    exact = last.cast("decimal(20,0)")
    return (exact * (exact + 1) * (exact * 2 + 1)) / 6
