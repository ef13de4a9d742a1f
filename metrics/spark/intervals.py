"""Valid events → the time from each authentication of a connection to the next one or to its end.

For the connections that a lifetime may kill: what would have happened depends on when, between two
authentications, each was used.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import MAX_INT64, EventKind
from metrics.spark.events import MAX_DURATION_MS, MAX_EPOCH_MS
from metrics.spark.usage import interval_start, is_kind, used_ms

MINUTE_MS = 60_000

_MINUTES_OF_A_ROW = 63


def intervals(events: DataFrame) -> DataFrame:
    """One row per connection and authentication, with the last use and the minutes of use.

    `runs` are those of the summary rows that touch the interval (`active_runs`), so their first
    and last ones may belong to its neighbours; in no order.
    """
    summary, each = f.col("is_summary"), f.col("each")
    number = f.col("authentications") - is_kind(EventKind.REAUTHENTICATED).cast("int")
    age = used_ms(f.col("begin_ms"))
    rows = (
        # an event proper tells of one interval, a summary row of each that it touches
        events.select("*", f.explode_outer("intervals").alias("each"))
        .withColumn("is_summary", is_kind(EventKind.SUMMARY))
        .withColumn("begin_ms", interval_start())
        .select(
            "connection_id",
            f.when(summary, each["number"]).otherwise(number).alias("number"),
            f.when(summary, each["authenticated_ms"])
            .otherwise(f.col("begin_ms"))
            .alias("authenticated_ms"),
            f.when(summary, each["last_request_since_auth_ms"]).otherwise(age).alias("used_ms"),
            f.when(summary & (_active_bits() != 0), active_runs()).alias("runs"),
        )
    )
    return (
        rows.where((f.col("number") > 0) & (f.col("authenticated_ms") <= MAX_EPOCH_MS))
        .groupBy("connection_id", "number")
        .agg(
            f.min("authenticated_ms").alias("authenticated_ms"),
            f.least(f.max("used_ms"), f.lit(MAX_DURATION_MS)).alias("used_ms"),
            f.flatten(f.collect_list("runs")).alias("runs"),
        )
    )


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
