"""What would a session lifetime of L have done? KIP-368's rule, applied to what was recorded.

A connection is killed if it is used more than L after its last successful authentication. A client
that keeps the lifetimes it is told would have re-authenticated; so a long session counts against
a connection only if no lifetime could be announced to it, or one was and was not kept
(docs/events.md, "Who is concerned?"). Sessions of clients that speak v1 but were never told a
lifetime are counted apart, as `unproven`: nobody has seen yet what these clients do.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.spark.clients import CLIENT_KEY
from metrics.spark.intervals import MINUTE_MS
from metrics.spark.sessions import Standing

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

DEFAULT_LIFETIMES_MS = tuple(minutes * MINUTE_MS for minutes in (5, 15, 30, 60, 240))

_CONCERNED = (Standing.NOT_CAPABLE.value, Standing.FAILING.value)


def concerned(session_rows: DataFrame) -> DataFrame:
    """Keep the connections for which a session past its end means a kill."""
    return session_rows.where(f.col("standing").isin(*_CONCERNED))


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


def kills(interval_rows: DataFrame, lifetimes_ms: tuple[int, ...]) -> DataFrame:
    """How often each interval would have been killed under each lifetime: at least, at most.

    A killed client comes back, and its next session expires L later. Walking through the active
    minutes: one that begins more than L after the session did is surely a kill, and the next
    session begins at the latest at its end; one that ends more than L after may be one, and the
    next session begins at the earliest at its begin. Where the minutes of the last use are not
    known (no summary row yet), only what follows from the age at the last use is said.
    """
    used = interval_rows.where(f.col("used_ms") > min(lifetimes_ms))
    until = f.col("authenticated_ms") + f.col("used_ms")
    inside = f.filter(
        "runs",
        lambda run: (
            (run["last_ms"] + MINUTE_MS > f.col("authenticated_ms")) & (run["first_ms"] <= until)
        ),
    )
    cut = f.transform(
        inside,
        lambda run: f.struct(
            run["first_ms"].alias("first_ms"),
            f.least(run["last_ms"], _minute(until)).alias("last_ms"),
        ),
    )
    seen_until = f.array_max(f.transform("runs", lambda run: run["last_ms"])) + 2 * MINUTE_MS
    rows = used.withColumn("runs", f.sort_array(cut)).withColumn("known", seen_until > until)
    rows = rows.select("*", _each(lifetimes_ms)).where(f.col("used_ms") > f.col("lifetime_ms"))
    most = f.floor((f.col("used_ms") - 1) / f.col("lifetime_ms"))
    long_enough = f.col("lifetime_ms") >= 2 * MINUTE_MS
    walked_most = f.when(f.col("known") & long_enough, f.least(most, _walk(sure=False)))
    return rows.select(
        "connection_id",
        "number",
        "lifetime_ms",
        f.greatest(f.lit(1), f.least(most, _walk(sure=True))).alias("kills_least"),
        f.greatest(f.lit(1), f.coalesce(walked_most, most)).alias("kills_most"),
    )


def _walk(*, sure: bool) -> Column:
    """Count the kills in `runs`, greedily; within a run of active minutes they are periodic.

    `due_ms` is the first minute in which a use is a kill, surely or perhaps. The period is from
    one kill to where the next is due: from the end of its minute to the first minute that begins
    after the expiry, or from the begin of its minute to the first that ends after it.
    """
    lifetime = f.col("lifetime_ms")
    period = _minute(lifetime) + (2 * MINUTE_MS if sure else 0)
    due = _minute(f.col("authenticated_ms") + lifetime - (0 if sure else MINUTE_MS)) + MINUTE_MS

    def step(state: Column, run: Column) -> Column:
        first = f.greatest(state["due_ms"], run["first_ms"])
        count = _whole(f.greatest(run["last_ms"] - first + period, f.lit(0)), period)
        return f.struct(
            (first + count * period).alias("due_ms"), (state["kills"] + count).alias("kills")
        )

    start = f.struct(due.alias("due_ms"), f.lit(0).cast("long").alias("kills"))
    return f.aggregate("runs", start, step)["kills"]


def _minute(time_ms: Column) -> Column:
    """Give the begin of the minute."""
    return time_ms - f.pmod(time_ms, f.lit(MINUTE_MS).cast("long"))


def _whole(number: Column, divisor: Column) -> Column:
    return f.call_function("div", number, divisor)


def _each(lifetimes_ms: tuple[int, ...]) -> Column:
    values = [f.lit(lifetime).cast("long") for lifetime in sorted(set(lifetimes_ms))]
    return f.explode(f.array(*values)).alias("lifetime_ms")
