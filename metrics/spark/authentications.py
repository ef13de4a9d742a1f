"""Counts and latencies of authentications, by minute and by latency bucket.

A connection may be recorded in three ways: by an event for each authentication; by some events and
summary rows that have the rest; or by summary rows alone. Each way gives the same table, and the
less there is to compare, the less it costs.
"""

import math

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import EventKind
from metrics.period import LATENCY_GAMMA, latency_bucket
from metrics.spark.event_rows import MAX_DURATION_MS, at_most, counted
from metrics.spark.intervals import begin_of_minute

AUTHENTICATIONS = (EventKind.AUTHENTICATED.value, EventKind.REAUTHENTICATED.value)

_MAX_BUCKET = latency_bucket(MAX_DURATION_MS * 1000)
"""The last latency bucket: a longer latency is garbage, and beyond the range of a double."""


def authentication_counts(events: DataFrame) -> DataFrame:
    """Authentications and failures, counted twice in one pass: by minute, and by latency.

    One row per minute, mechanism, kind and reason (`minute_ms` is set), and one per mechanism,
    kind and `bucket` of the latency (`minute_ms` is null). `busy_us` is the sum of the latencies.
    """
    failed = f.col("kind") == EventKind.FAILED.value
    again = (f.col("kind") == EventKind.REAUTHENTICATED.value) | (
        failed & (f.col("authentications") > 0)
    )
    latency = f.greatest(f.col("auth_latency_us"), f.lit(1)).cast("double")
    bucket = f.when(
        ~failed & f.col("auth_latency_us").isNotNull(),
        f.ceil(f.log(latency) / math.log(LATENCY_GAMMA)).cast("long"),
    )
    by_minute = ("mechanism", "kind", "minute_ms", "failure_reason", "reauthentication")
    by_latency = ("mechanism", "kind", "bucket")
    return (
        events.where(f.col("kind").isin(*AUTHENTICATIONS, EventKind.FAILED.value))
        .select(
            "mechanism",
            "kind",
            "failure_reason",
            "auth_latency_us",
            begin_of_minute(f.col("timestamp_ms")).alias("minute_ms"),
            again.alias("reauthentication"),
            bucket.alias("bucket"),
        )
        .groupingSets([by_minute, by_latency], *dict.fromkeys(by_minute + by_latency))
        .agg(
            f.count(f.lit(1)).alias("count"),
            f.sum("auth_latency_us").alias("busy_us"),
            f.max("auth_latency_us").alias("slowest_us"),
        )
        .where(f.col("minute_ms").isNotNull() | f.col("bucket").isNotNull())
    )


def authentication_counts_of_either_view(events: DataFrame) -> DataFrame:
    """Count the same for connections some of whose authentications only summary rows record.

    An authentication that is in several rows, or in an event too, is counted once.
    """
    each = f.col("each")
    told = events.where(f.col("kind").isin(*AUTHENTICATIONS)).select(
        "connection_id",
        "mechanism",
        f.col("authentications").alias("number"),
        f.col("timestamp_ms"),
        "auth_latency_us",
    )
    summed = _summaries(events).select(
        "connection_id", "mechanism", f.explode("intervals").alias("each")
    )
    summed = summed.select(
        "connection_id",
        "mechanism",
        each["number"].alias("number"),
        each["authenticated_ms"].alias("timestamp_ms"),
    )
    once = (
        told.unionByName(summed, allowMissingColumns=True)
        .groupBy("connection_id", "mechanism", "number")
        .agg(
            f.min("timestamp_ms").alias("timestamp_ms"),
            f.max("auth_latency_us").alias("auth_latency_us"),
        )
        .withColumn("kind", _kind(f.col("number")))
        .withColumn("failure_reason", f.lit(None).cast("string"))
        .withColumnRenamed("number", "authentications")
    )
    failed = events.where(f.col("kind") == EventKind.FAILED.value).select(*once.columns)
    first = events.where(f.col("kind") != EventKind.REAUTHENTICATED.value)
    return (
        authentication_counts(once.unionByName(failed))
        .where(f.col("minute_ms").isNotNull())
        .unionByName(authentication_counts(first).where(f.col("bucket").isNotNull()))
        .unionByName(_summed_latencies(events), allowMissingColumns=True)
    )


def authentication_counts_of_summaries(events: DataFrame) -> DataFrame:
    """Count the same for connections of which no event records any authentication.

    Each is counted in the row of the period that it was in, so that rows need not be compared.
    """
    each, number = f.col("each"), f.col("each")["number"]
    login, again = AUTHENTICATIONS
    is_first = number == 1
    begun = f.when(is_first, each["authenticated_ms"] >= f.col("period_start_ms")).otherwise(
        number > f.col("authentications") - f.col("reauthentications")
    )
    by_minute = (
        _summaries(events)
        .select(
            "mechanism",
            "period_start_ms",
            "authentications",
            "reauthentications",
            f.explode("intervals").alias("each"),
        )
        .where(begun)
        .groupBy(
            "mechanism",
            begin_of_minute(each["authenticated_ms"]).alias("minute_ms"),
            (~is_first).alias("reauthentication"),
        )
        .agg(f.count(f.lit(1)).alias("count"))
        .withColumn("kind", f.when(f.col("reauthentication"), again).otherwise(login))
    )
    failed = events.where(f.col("kind") == EventKind.FAILED.value)
    return (
        authentication_counts(failed)
        .unionByName(by_minute, allowMissingColumns=True)
        .unionByName(_summed_latencies(events), allowMissingColumns=True)
    )


def _summed_latencies(events: DataFrame) -> DataFrame:
    """Latencies of re-authentications: summary rows hold them, but not when each of them was."""
    buckets = _summaries(events).select("mechanism", f.explode("reauth_latencies").alias("each"))
    return (
        buckets.groupBy("mechanism", at_most(f.col("each.bucket"), _MAX_BUCKET).alias("bucket"))
        .agg(f.sum(counted(f.col("each.count"))).alias("count"))
        .withColumn("kind", f.lit(EventKind.REAUTHENTICATED.value))
    )


def _summaries(events: DataFrame) -> DataFrame:
    return events.where(f.col("kind") == EventKind.SUMMARY.value)


def _kind(number: Column) -> Column:
    """Return the kind of the authentication of this number."""
    login, again = EventKind.AUTHENTICATED.value, EventKind.REAUTHENTICATED.value
    return f.when(number == 1, login).otherwise(again)
