"""What-if analysis: KIP-368's rule for a lifetime L, applied to what was recorded.

A connection is killed if it is used more than L after its last successful authentication. A client
that keeps the lifetimes it is told would have re-authenticated; so a long session counts against
a connection only if no lifetime could be announced to it, or one was and was not kept
(docs/events.md, "Who is concerned?"). Sessions of clients that speak v1 but were never told a
lifetime are counted apart, as `unproven`: nobody has seen yet what these clients do. So are, as
`cut_short`, connections that were killed or failed to re-authenticate before they were as old as L:
nobody has seen what they would have done by then.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import IntervalEnd
from metrics.period import MINUTE_MS
from metrics.report.verdicts import Verdict
from metrics.spark.clients import CLIENT_KEY
from metrics.spark.intervals import begin_of_minute
from metrics.spark.usage import DAY_MS

HOUR_MS = 3_600_000

DEFAULT_LIFETIMES_MS = tuple(minutes * MINUTE_MS for minutes in (5, 15, 30, 60, 240))

_CONCERNED = (Verdict.NOT_CAPABLE.value, Verdict.FAILING.value)

_CUT_SHORT = (IntervalEnd.EXPIRED_KILLED.value, IntervalEnd.FAILED.value)
"""The ends that the proxy caused, and not the client."""

_COUNTS = (
    "killed_connections",
    "killed_clients",
    "killed_principals",
    "unproven_connections",
    "unproven_clients",
    "cut_short_connections",
    "cut_short_clients",
)


def concerned(session_rows: DataFrame, lifetimes_ms: tuple[int, ...]) -> DataFrame:
    """Keep the connections for which a session past its end means a kill, if any was that long."""
    standing = f.col("standing").isin(*_CONCERNED)
    return session_rows.where(standing & (f.col("used_ms") > min(lifetimes_ms)))


def what_if(
    session_rows: DataFrame, kill_rows: DataFrame, lifetimes_ms: tuple[int, ...]
) -> DataFrame:
    """One row per lifetime: who would be killed, how often, how late.

    `kill_rows` is what `kills` gives for the same lifetimes. `kills_per_day_*` is null if less
    than an hour was observed: too little to speak of days.
    """
    observed = session_rows.agg(
        f.count("principal").alias("connections"),
        (f.max("last_event_ms") - f.min("connected_ms")).alias("observed_ms"),
    )
    totals = kill_rows.groupBy("lifetime_ms").agg(
        f.sum("kills_least").alias("kills_least"), f.sum("kills_most").alias("kills_most")
    )
    days = f.when(f.col("observed_ms") >= HOUR_MS, f.col("observed_ms") / DAY_MS)
    return (
        observed.where(f.col("connections") > 0)
        .select("*", _each(lifetimes_ms))
        .join(f.broadcast(_counted(session_rows, lifetimes_ms)), "lifetime_ms", "left")
        .join(f.broadcast(totals), "lifetime_ms", "left")
        .fillna(0, [*_COUNTS, "kills_least", "kills_most"])
        .select(
            "lifetime_ms",
            "connections",
            *_COUNTS,
            "late_median_ms",
            "late_max_ms",
            "kills_least",
            "kills_most",
            "observed_ms",
            (f.col("kills_least") / days).alias("kills_per_day_least"),
            (f.col("kills_most") / days).alias("kills_per_day_most"),
        )
        .orderBy("lifetime_ms")
    )


def _counted(session_rows: DataFrame, lifetimes_ms: tuple[int, ...]) -> DataFrame:
    """One row per lifetime that any session outlasted, or did not live to see: whose they are."""
    unproven = f.col("standing") == Verdict.UNPROVEN.value
    outlasted = f.coalesce(f.col("used_ms") > f.col("lifetime_ms"), f.lit(False))
    ended_ms = f.coalesce(f.col("ended_since_auth_ms"), f.lit(0))
    cut_short = f.col("ended_by").isin(*_CUT_SHORT) & (ended_ms <= f.col("lifetime_ms"))
    found = (
        f.when(outlasted, f.when(unproven, "unproven").otherwise("killed"))
        .when(cut_short, "cut_short")
        .alias("found")
    )
    killed, client = f.col("found") == "killed", f.struct(*CLIENT_KEY)
    late = f.when(killed, f.col("used_ms") - f.col("lifetime_ms"))
    counts = [
        count
        for each in ("killed", "unproven", "cut_short")
        for count in (
            f.count_if(f.col("found") == each).alias(f"{each}_connections"),
            f.count_distinct(f.when(f.col("found") == each, client)).alias(f"{each}_clients"),
        )
    ]
    return (
        session_rows.where(f.col("standing").isin(*_CONCERNED, Verdict.UNPROVEN.value))
        .select("*", _each(lifetimes_ms))
        .select(*CLIENT_KEY, "used_ms", "lifetime_ms", found)
        .where(f.col("found").isNotNull())
        .groupBy("lifetime_ms")
        .agg(
            *counts,
            f.count_distinct(f.when(killed, f.col("principal"))).alias("killed_principals"),
            f.median(late).cast("long").alias("late_median_ms"),
            f.max(late).alias("late_max_ms"),
        )
    )


def kills(interval_rows: DataFrame, lifetimes_ms: tuple[int, ...]) -> DataFrame:
    """Return how often each interval would have been killed under each lifetime: at least, at most.

    A killed client comes back, and its next session expires L later. Walking through the active
    minutes: one that begins more than L after the session did is surely a kill, and the next
    session begins at the latest at its end; one that ends more than L after may be one, and the
    next session begins at the earliest at its begin. Where the minutes of the last use are not
    known (no summary row yet), only what follows from the age at the last use is said.
    """
    used = interval_rows.where(f.col("used_ms") > min(lifetimes_ms))
    until = f.col("authenticated_ms") + f.col("used_ms")
    rows = (
        used.withColumn("runs", f.sort_array("runs"))
        .withColumn("last_minute_ms", begin_of_minute(until))
        .withColumn("known", f.array_max(f.col("runs")["last_ms"]) + 2 * MINUTE_MS > until)
        .select("*", _each(lifetimes_ms))
        .where(f.col("used_ms") > f.col("lifetime_ms"))
        .withColumn("walked", f.transform(f.array(*_walks()), _kills))
    )
    most = f.floor((f.col("used_ms") - 1) / f.col("lifetime_ms"))
    long_enough = f.col("lifetime_ms") >= 2 * MINUTE_MS
    walked_most = f.when(f.col("known") & long_enough, f.least(most, f.col("walked")[1]))
    return rows.select(
        "connection_id",
        "number",
        "lifetime_ms",
        f.greatest(f.lit(1), f.least(most, f.col("walked")[0])).alias("kills_least"),
        f.greatest(f.lit(1), f.coalesce(walked_most, most)).alias("kills_most"),
    )


def _walks() -> list[Column]:
    """Say how to walk for the kills that are sure, and for those that may be.

    `due_ms` is the first minute in which a use is a kill. The period is from one kill to where the
    next is due: from the end of its minute to the first minute that begins after the expiry, or
    from the begin of its minute to the first that ends after it.
    """
    expiry = f.col("authenticated_ms") + f.col("lifetime_ms")
    whole = begin_of_minute(f.col("lifetime_ms"))
    sure = (begin_of_minute(expiry) + MINUTE_MS, whole + 2 * MINUTE_MS)
    # less than a minute is no whole one, and nothing to divide by; nobody asks then
    least = f.greatest(whole, f.lit(MINUTE_MS))
    perhaps = (begin_of_minute(expiry - MINUTE_MS) + MINUTE_MS, least)
    return [
        f.struct(due.alias("due_ms"), period.alias("period_ms")) for due, period in (sure, perhaps)
    ]


def _kills(walk: Column) -> Column:
    """Count the kills in `runs`, greedily; within a run of active minutes they are periodic."""

    def step(state: Column, run: Column) -> Column:
        first = f.greatest(state["due_ms"], run["first_ms"])
        last = f.least(run["last_ms"], f.col("last_minute_ms"))
        count = f.call_function("div", last - first, walk["period_ms"]) + 1
        after = f.struct(
            (first + count * walk["period_ms"]).alias("due_ms"),
            (state["kills"] + count).alias("kills"),
        )
        return f.when(first <= last, after).otherwise(state)

    start = f.struct(walk["due_ms"].alias("due_ms"), f.lit(0).cast("long").alias("kills"))
    return f.aggregate("runs", start, step)["kills"]


def _each(lifetimes_ms: tuple[int, ...]) -> Column:
    values = [f.lit(lifetime).cast("long") for lifetime in sorted(set(lifetimes_ms))]
    return f.explode(f.array(*values)).alias("lifetime_ms")
