"""Intervals from each authentication of a connection to the next one or to its end.

For the connections that a lifetime may kill: what would have happened depends on when, between two
authentications, each was used.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import MAX_INT64, MAX_INTERVALS, EventKind
from metrics.period import MINUTE_MS
from metrics.spark.event_rows import MAX_DURATION_MS, MAX_EPOCH_MS, at_most
from metrics.spark.usage import interval_start, is_kind, used_ms

_MINUTES_OF_A_ROW = 63


def intervals(events: DataFrame) -> DataFrame:
    """One row per connection and authentication, with the last use and the minutes of use.

    `runs` are those of the summary rows that touch the interval (`active_runs`), so their first
    and last ones may belong to its neighbours; in no order.
    """
    summary, each = f.col("is_summary"), f.col("each")
    return _one_each(
        # an event proper belongs to one interval, a summary row to each that it touches
        _with_latest(events.select("*", f.explode_outer("intervals").alias("each"))).select(
            "connection_id",
            f.when(summary, each["number"]).otherwise(f.col("latest")).alias("number"),
            f.when(summary, each["authenticated_ms"])
            .otherwise(f.col("begin_ms"))
            .alias("authenticated_ms"),
            f.when(summary, each["last_request_since_auth_ms"])
            .otherwise(used_ms(f.col("begin_ms")))
            .alias("used_ms"),
            _runs_of_row(),
        )
    )


def intervals_if_complete(events: DataFrame, last: DataFrame) -> DataFrame:
    """Return the same for connections with an event for each authentication.

    The lists of their summary rows say nothing new, and reading them takes more time than all else.
    Nor does a checkpoint, but the one that is the last event of its connection: what it knows of an
    interval, the next event knows too. So `events` are all but the
    checkpoints (`adds_to_intervals`), and `last` the last event of each connection.
    """
    latest, number = f.col("latest"), f.col("number")
    earlier = f.least(f.col("reauthentications"), f.lit(MAX_INTERVALS - 1))
    earlier = f.when(f.col("is_summary") & (earlier > 0), earlier).otherwise(0)
    is_latest = number == latest
    each = (
        _with_latest(events)
        .select("*", f.explode(f.sequence(latest - earlier, latest)).alias("number"))
        .select(
            "connection_id",
            "number",
            f.when(is_latest, f.col("begin_ms")).alias("authenticated_ms"),
            f.when(is_latest, used_ms(f.col("begin_ms"))).alias("used_ms"),
            _runs_of_row(),
        )
    )
    at_the_end = _with_latest(last.where(~adds_to_intervals())).select(
        "connection_id",
        latest.alias("number"),
        f.col("begin_ms").alias("authenticated_ms"),
        used_ms(f.col("begin_ms")).alias("used_ms"),
    )
    return _one_each(each.unionByName(at_the_end, allowMissingColumns=True))


def adds_to_intervals() -> Column:
    """Return whether an event says more of an interval than the next one will."""
    return ~is_kind(EventKind.CHECKPOINT)


def _with_latest(events: DataFrame) -> DataFrame:
    """Add the number and the begin of the interval of an event."""
    ended = is_kind(EventKind.REAUTHENTICATED).cast("int")
    return (
        events.withColumn("is_summary", is_kind(EventKind.SUMMARY))
        .withColumn("latest", f.col("authentications") - ended)
        .withColumn("begin_ms", interval_start())
    )


def _runs_of_row() -> Column:
    return f.when(f.col("is_summary") & (_active_bits() != 0), active_runs()).alias("runs")


def _one_each(rows: DataFrame) -> DataFrame:
    begun = f.coalesce(f.col("authenticated_ms"), f.lit(0)) <= MAX_EPOCH_MS
    return (
        rows.where((f.col("number") > 0) & begun)
        .groupBy("connection_id", "number")
        .agg(
            f.min("authenticated_ms").alias("authenticated_ms"),
            at_most(f.max("used_ms"), MAX_DURATION_MS).alias("used_ms"),
            f.flatten(f.collect_list("runs")).alias("runs"),
        )
        .where(f.col("authenticated_ms").isNotNull())
    )


def begin_of_minute(time_ms: Column) -> Column:
    """Give the begin of the minute that a time is in."""
    return time_ms - f.pmod(time_ms, f.lit(MINUTE_MS).cast("long"))


def active_runs() -> Column:
    """Runs of minutes in which a connection was used, of a summary row with any.

    `first_ms` and `last_ms` are the begins of a run's first and last minute.
    """
    bits, start = _active_bits(), f.col("active_from_ms")
    lowest = bits.bitwiseAND(-bits)
    count = f.bit_count(bits)
    # moved down to bit 0, one run is as many ones as there are
    ones = f.call_function("shiftrightunsigned", f.lit(-1).cast("long"), 64 - count)
    whole = f.call_function("div", bits, lowest) == ones
    first = f.round(f.log2(lowest)).cast("int")
    one_run = f.array(_run(start, first, first + count - 1))
    each_minute = f.transform(
        f.filter(
            f.sequence(f.lit(0), f.lit(_MINUTES_OF_A_ROW - 1)),
            lambda minute: f.getbit(bits, minute) == 1,
        ),
        lambda minute: _run(start, minute, minute),
    )
    return f.when(whole, one_run).otherwise(each_minute)


def _active_bits() -> Column:
    return f.col("active_minutes").bitwiseAND(f.lit(MAX_INT64))


def _run(start: Column, first: Column, last: Column) -> Column:
    return f.struct(
        (start + first * MINUTE_MS).alias("first_ms"), (start + last * MINUTE_MS).alias("last_ms")
    )
