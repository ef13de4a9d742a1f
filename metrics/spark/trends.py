"""Storms of authentications, latencies, clients by day, token lifetimes."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from metrics.events import EventKind
from metrics.period import LATENCY_GAMMA, MINUTE_MS
from metrics.report.verdicts import Verdict
from metrics.spark.authentications import AUTHENTICATIONS
from metrics.spark.clients import CLIENT_KEY
from metrics.spark.usage import Occurrence

QUANTILES = (0.5, 0.95, 0.99)

MIN_SENSIBLE_TOKEN_MS = 60_000
"""The lifetime in milliseconds below which a token is renewed more than once a minute."""


def storms(count_rows: DataFrame) -> DataFrame:
    """One row per minute and mechanism: authentications, how many anew, the time they took.

    `busy_us` is the sum of their latencies: an upper bound of the processor time that they took,
    as a client's own delays between two SASL messages are in it. Null if only summary rows are
    left of that minute.
    """
    again = f.when(f.col("kind") == EventKind.REAUTHENTICATED.value, f.col("count")).otherwise(0)
    return (
        count_rows.where(f.col("kind").isin(*AUTHENTICATIONS))
        .where(f.col("minute_ms").isNotNull())
        .groupBy("minute_ms", "mechanism")
        .agg(
            f.sum("count").alias("authentications"),
            f.sum(again).alias("reauthentications"),
            f.sum("busy_us").alias("busy_us"),
            f.max("slowest_us").alias("slowest_us"),
        )
    )


def storm_profile(storm_rows: DataFrame, *, points: int) -> DataFrame:
    """The busiest minute of each of at most `points` stretches of equal length, for a plot."""
    by_minute = storm_rows.groupBy("minute_ms").agg(
        f.sum("authentications").alias("authentications"),
        f.sum("reauthentications").alias("reauthentications"),
        f.sum("busy_us").alias("busy_us"),
    )
    whole = Window.partitionBy()
    first = f.min("minute_ms").over(whole)
    minutes = (f.max("minute_ms").over(whole) - first) / MINUTE_MS + 1
    width = f.ceil(minutes / points) * MINUTE_MS
    stretch = f.floor((f.col("minute_ms") - first) / width) * width + first
    return (
        by_minute.withColumn("stretch_ms", stretch)
        .groupBy(f.col("stretch_ms").alias("minute_ms"))
        .agg(*(f.max(name).alias(name) for name in ("authentications", "reauthentications")))
        .orderBy("minute_ms")
    )


def latencies(count_rows: DataFrame) -> DataFrame:
    """Quantiles of the latency by mechanism and kind of authentication, in microseconds.

    Within 1 % of every latency (docs/events.md, "Latencies of a summary row").
    """
    whole = Window.partitionBy("mechanism", "kind")
    ordered = whole.orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)
    value = f.lit(2 / (LATENCY_GAMMA + 1)) * f.pow(f.lit(LATENCY_GAMMA), f.col("bucket"))
    reached = [
        f.min(f.when(f.col("below") >= f.ceil(f.col("total") * quantile), value)).alias(
            f"p{round(quantile * 100)}_us"
        )
        for quantile in QUANTILES
    ]
    return (
        count_rows.where(f.col("bucket").isNotNull())
        .groupBy("mechanism", "kind", "bucket")
        .agg(f.sum("count").alias("count"))
        .withColumn("below", f.sum("count").over(ordered))
        .withColumn("total", f.sum("count").over(whole))
        .groupBy("mechanism", "kind", "total")
        .agg(*reached, f.max(value).alias("max_us"))
        .withColumnRenamed("total", "count")
        .orderBy("mechanism", "kind")
    )


def by_day(usage_rows: DataFrame, session_rows: DataFrame) -> DataFrame:
    """One row per day: the clients seen on it, by what was known of them at its end.

    Failures and old protocol versions count on the day they were seen, and a failure until a later
    day's re-authentication: a client that was repaired is ready the day after, and one that never
    re-authenticated since is failing still, as its session goes on past its end for days.
    """
    # a summary row records a kill when its hour is over, perhaps on the day after
    kills = f.when(f.col("kills_are_told"), f.col("would_be_kill_events")).otherwise(
        f.col("would_be_kills_in_summaries")
    )
    failed = f.bit_or("saw").bitwiseAND(
        f.lit((Occurrence.KILLED | Occurrence.REAUTH_FAILURE | Occurrence.OUTLASTED).value)
    ) + f.coalesce(f.sum(kills), f.lit(0))
    old = f.coalesce(f.col("authenticate_version"), f.lit(0)) < 1
    who = session_rows.select(
        "connection_id", "authenticate_version", "kills_are_told", *CLIENT_KEY
    )
    before = (
        Window.partitionBy("connection_id")
        .orderBy("day")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    # of the login none was before, which `greatest` passes over
    least = f.greatest(f.max("authentications").over(before), f.lit(1))
    days = (
        usage_rows.withColumn("again", f.col("authentications") > least)
        .join(who.where(f.col("principal").isNotNull()), "connection_id")
        .groupBy("day", *CLIENT_KEY)
        .agg(
            failed.alias("failed"),
            f.max(old.cast("int")).alias("old"),
            f.max(f.when(f.col("again"), f.col("day"))).alias("again_on"),
        )
    )
    failed_on = f.when(f.col("failed") > 0, f.col("day"))
    so_far = (
        Window.partitionBy(*CLIENT_KEY).orderBy("day").rowsBetween(Window.unboundedPreceding, 0)
    )
    state = (
        f.when(f.col("old") > 0, Verdict.NOT_CAPABLE.value)
        .when(f.col("again_on") > f.coalesce("failed_on", f.lit(-1)), Verdict.READY.value)
        .when(f.col("failed_on").isNotNull(), Verdict.FAILING.value)
        .otherwise(Verdict.UNPROVEN.value)
    )
    states = [
        f.count_if(f.col("state") == standing.value).alias(standing.value)
        for standing in Verdict
        if standing is not Verdict.UNKNOWN
    ]
    return (
        days.withColumn("failed_on", f.max(failed_on).over(so_far))
        .withColumn("again_on", f.max("again_on").over(so_far))
        .withColumn("state", state)
        .groupBy("day")
        .agg(f.count(f.lit(1)).alias("clients"), *states)
        .withColumn("ready_share", f.col("ready") / f.col("clients"))
        .orderBy("day")
    )


def short_tokens(verdicts: DataFrame) -> DataFrame:
    """Clients whose tokens are too short for them: used past a token's end, or renewed too often.

    `outlived_ms` is by how much a connection was used past the end of the token it logged in with.
    """
    outlived = f.coalesce(f.col("outlived_credential_ms") > 0, f.lit(False))
    brief = f.col("credential_lifetime_ms") < MIN_SENSIBLE_TOKEN_MS
    return (
        verdicts.where(f.col("credential_lifetime_ms").isNotNull() & (outlived | brief))
        .select(
            *CLIENT_KEY,
            "verdict",
            "credential_lifetime_ms",
            f.when(outlived, f.col("outlived_credential_ms")).alias("outlived_ms"),
            "used_ms",
            "connections",
        )
        .orderBy(f.desc_nulls_last("outlived_ms"), *CLIENT_KEY)
    )


def session_lengths(session_rows: DataFrame) -> DataFrame:
    """Return how long sessions were used at most, in classes that double, by standing.

    A class ends at `up_to_ms`; the first ends at a minute.
    """
    used = session_rows.where(f.col("used_ms").isNotNull())
    doublings = f.ceil(f.log2(f.greatest(f.col("used_ms"), f.lit(MINUTE_MS)) / MINUTE_MS))
    up_to = (f.pow(f.lit(2), doublings) * MINUTE_MS).cast("long")
    return (
        used.groupBy(up_to.alias("up_to_ms"), "standing")
        .agg(f.count(f.lit(1)).alias("connections"))
        .orderBy("up_to_ms", "standing")
    )


def failures(count_rows: DataFrame) -> DataFrame:
    """Failed authentications by reason, first ones and re-authentications apart."""
    return (
        count_rows.where(f.col("kind") == EventKind.FAILED.value)
        .groupBy("mechanism", "failure_reason", "reauthentication")
        .agg(f.sum("count").alias("count"))
        .orderBy(f.desc("count"), "mechanism", "failure_reason", "reauthentication")
    )
