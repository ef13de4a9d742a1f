"""What would a session lifetime of L have done? KIP-368's rule, applied to what was recorded.

A connection is killed if it is used more than L after its last successful authentication. A client
that keeps the lifetimes it is told would have re-authenticated; so a long session counts against
a connection only if no lifetime could be announced to it, or one was and was not kept
(docs/events.md, "Who is concerned?"). Sessions of clients that speak v1 but were never told a
lifetime are counted apart, as `unproven`: nobody has seen yet what these clients do.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import EventKind
from metrics.spark.clients import CLIENT_KEY
from metrics.spark.sessions import Standing

MINUTE_MS = 60_000
DAY_MS = 86_400_000
HOUR_MS = 3_600_000

DEFAULT_LIFETIMES_MS = tuple(minutes * MINUTE_MS for minutes in (5, 15, 30, 60, 240))

_CONCERNED = (Standing.NOT_CAPABLE.value, Standing.FAILING.value)
_MINUTES_OF_A_ROW = 63


def concerned(session_rows: DataFrame) -> DataFrame:
    """Keep the connections for which a session past its end means a kill."""
    return session_rows.where(f.col("standing").isin(*_CONCERNED))


def only_intervals(session_rows: DataFrame) -> DataFrame:
    """Intervals of connections that authenticated once: what the connection did, it did in it."""
    return session_rows.select(
        "connection_id",
        f.lit(1).cast("long").alias("number"),
        "authenticated_ms",
        "used_ms",
        f.lit(None).cast("long").alias("reauthenticated_ms"),
    )


def what_if(
    session_rows: DataFrame, kill_rows: DataFrame, lifetimes_ms: tuple[int, ...]
) -> DataFrame:
    """One row per lifetime: who would be killed, how often, how late.

    `kill_rows` is what `kills` gives for the same lifetimes. `kills_per_day_*` is null if less
    than an hour was observed: too little to speak of days.
    """
    used = session_rows.where(f.col("principal").isNotNull()).select(
        *CLIENT_KEY, "standing", "used_ms", _each(lifetimes_ms)
    )
    over = f.col("used_ms") > f.col("lifetime_ms")
    killed = over & f.col("standing").isin(*_CONCERNED)
    late = f.when(killed, f.col("used_ms") - f.col("lifetime_ms"))
    unproven = over & (f.col("standing") == Standing.UNPROVEN.value)
    client = f.struct(*CLIENT_KEY)
    by_lifetime = used.groupBy("lifetime_ms").agg(
        f.count(f.lit(1)).alias("connections"),
        f.count_if(killed).alias("killed_connections"),
        f.count_distinct(f.when(killed, client)).alias("killed_clients"),
        f.count_distinct(f.when(killed, f.col("principal"))).alias("killed_principals"),
        f.count_if(unproven).alias("unproven_connections"),
        f.count_distinct(f.when(unproven, client)).alias("unproven_clients"),
        f.median(late).cast("long").alias("late_median_ms"),
        f.max(late).alias("late_max_ms"),
    )
    observed = session_rows.agg(
        (f.max("last_event_ms") - f.min("connected_ms")).alias("observed_ms")
    )
    totals = kill_rows.groupBy("lifetime_ms").agg(
        f.sum("kills_least").alias("kills_least"), f.sum("kills_most").alias("kills_most")
    )
    days = f.when(f.col("observed_ms") >= HOUR_MS, f.col("observed_ms") / DAY_MS)
    return (
        by_lifetime.join(totals, "lifetime_ms", "left")
        .fillna(0, ["kills_least", "kills_most"])
        .crossJoin(f.broadcast(observed))
        .withColumn("kills_per_day_least", f.col("kills_least") / days)
        .withColumn("kills_per_day_most", f.col("kills_most") / days)
        .orderBy("lifetime_ms")
    )


def active_runs(events: DataFrame) -> DataFrame:
    """Runs of minutes in which a connection was used, from its summary rows.

    `first_ms` and `last_ms` are the begins of a run's first and last minute.
    """
    bits = f.col("active_minutes")
    rows = events.where((f.col("kind") == EventKind.SUMMARY.value) & (bits != 0)).select(
        "connection_id", "active_from_ms", bits.alias("bits")
    )
    lowest = f.col("bits").bitwiseAND(-f.col("bits"))
    rows = rows.withColumn("lowest", lowest).withColumn("moved", f.expr("bits div lowest"))
    whole = f.col("moved").bitwiseAND(f.col("moved") + 1) == 0
    first = f.round(f.log2("lowest")).cast("int")
    one_run = f.array(
        f.struct(first.alias("first"), (first + f.bit_count("bits") - 1).alias("last"))
    )
    each_minute = f.transform(
        f.filter(
            f.sequence(f.lit(0), f.lit(_MINUTES_OF_A_ROW - 1)),
            lambda minute: f.getbit(f.col("bits"), minute) == 1,
        ),
        lambda minute: f.struct(minute.alias("first"), minute.alias("last")),
    )
    return rows.select(
        "connection_id",
        "active_from_ms",
        f.explode(f.when(whole, one_run).otherwise(each_minute)).alias("run"),
    ).select(
        "connection_id",
        (f.col("active_from_ms") + f.col("run.first") * MINUTE_MS).alias("first_ms"),
        (f.col("active_from_ms") + f.col("run.last") * MINUTE_MS).alias("last_ms"),
    )


def kills(interval_rows: DataFrame, runs: DataFrame, lifetimes_ms: tuple[int, ...]) -> DataFrame:
    """How often each interval would have been killed under each lifetime: at least, at most.

    A killed client comes back, and its next session expires L later. Walking through the active
    minutes: one that begins more than L after the session did is surely a kill, and the next
    session begins at the latest at its end; one that ends more than L after may be one, and the
    next session begins at the earliest at its begin. Where the minutes of the last use are not
    known (no summary row yet), only what follows from the age at the last use is said.
    """
    used = interval_rows.where(f.col("used_ms") > min(lifetimes_ms))
    until = f.col("authenticated_ms") + f.col("used_ms")
    inside = (f.col("last_ms") + MINUTE_MS > f.col("authenticated_ms")) & (
        f.col("first_ms") <= until
    )
    runs_inside = (
        used.join(runs, "connection_id")
        .where(inside)
        .groupBy("connection_id", "number")
        .agg(
            f.sort_array(
                f.collect_set(
                    f.struct("first_ms", f.least("last_ms", _minute(until)).alias("last_ms"))
                )
            ).alias("runs")
        )
    )
    rows = used.join(runs_inside, ["connection_id", "number"], "left").select(
        "*", _each(lifetimes_ms)
    )
    killed = f.col("used_ms") > f.col("lifetime_ms")
    most = f.floor((f.col("used_ms") - 1) / f.col("lifetime_ms"))
    known = f.array_max(f.transform("runs", lambda run: run["last_ms"])) + 2 * MINUTE_MS > until
    long_enough = f.col("lifetime_ms") >= 2 * MINUTE_MS
    walked_most = f.when(known & long_enough, f.least(most, _walk(sure=False)))
    return rows.where(killed).select(
        "connection_id",
        "number",
        "lifetime_ms",
        f.greatest(f.lit(1), f.least(most, f.coalesce(_walk(sure=True), f.lit(1)))).alias(
            "kills_least"
        ),
        f.greatest(f.lit(1), f.coalesce(walked_most, most)).alias("kills_most"),
    )


def _walk(*, sure: bool) -> Column:
    """Count the kills in `runs`, greedily; within a run of active minutes they are periodic."""
    whole_minutes = f.floor(f.col("lifetime_ms") / MINUTE_MS) * MINUTE_MS
    period = whole_minutes + (2 * MINUTE_MS if sure else 0)
    slack = 0 if sure else MINUTE_MS

    def step(state: Column, run: Column) -> Column:
        # the first minute of the grid that begins (sure) or ends (perhaps) after the expiry
        expiry = state["begin"] + f.col("lifetime_ms")
        first = f.greatest(run["first_ms"], _minute(expiry - slack) + MINUTE_MS)
        count = f.greatest(f.floor((run["last_ms"] - first) / period) + 1, f.lit(0))
        last = first + (count - 1) * period + (MINUTE_MS if sure else 0)
        return f.struct(
            f.when(count > 0, last).otherwise(state["begin"]).cast("long").alias("begin"),
            (state["kills"] + count).cast("long").alias("kills"),
        )

    start = f.struct(
        f.col("authenticated_ms").cast("long").alias("begin"),
        f.lit(0).cast("long").alias("kills"),
    )
    return f.aggregate("runs", start, step)["kills"]


def _minute(time_ms: Column) -> Column:
    return f.floor(time_ms / MINUTE_MS) * MINUTE_MS


def _each(lifetimes_ms: tuple[int, ...]) -> Column:
    values = [f.lit(lifetime).cast("long") for lifetime in sorted(set(lifetimes_ms))]
    return f.explode(f.array(*values)).alias("lifetime_ms")
