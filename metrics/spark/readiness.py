"""Verdicts on clients with their evidence, and on principals.

A verdict says what was seen, not what a library promises: *ready* takes a re-authentication, and
one expired session that was used outweighs any number of good ones.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.report.verdicts import WORST_FIRST, Verdict
from metrics.spark.clients import CLIENT_KEY, HOSTS_SHOWN

BREAKING = (Verdict.FAILING, Verdict.NOT_CAPABLE)
"""The verdicts of clients that break when sessions are enforced."""

PRINCIPALS_NAMED = 500
"""The number of principals that are named for one version of a library."""


def client_readiness(client_rows: DataFrame) -> DataFrame:
    """Add the verdict to each client, and one sentence of evidence."""
    return (
        client_rows.withColumn("verdict", verdict())
        .withColumn("evidence", evidence())
        .withColumn("host_count", f.size("hosts"))
        .withColumn("hosts", f.slice("hosts", 1, HOSTS_SHOWN))
    )


def by_their_clients(session_rows: DataFrame, verdicts: DataFrame) -> DataFrame:
    """Let a connection that shows nothing by itself stand as ready if its client is ready.

    What has re-authenticated elsewhere, always in time, has shown what it does; most of its
    connections were told nothing yet, or ended before they had to.
    """
    ready = verdicts.where(f.col("verdict") == Verdict.READY.value)
    proven = f.col("proven_client")
    standing = f.when(
        (f.col("standing") == Verdict.UNPROVEN.value) & proven.isNotNull(), Verdict.READY.value
    ).otherwise(f.col("standing"))
    return (
        session_rows.join(
            ready.select(f.struct(*CLIENT_KEY).alias("proven_client")),
            f.struct(*CLIENT_KEY).eqNullSafe(proven),
            "left",
        )
        .withColumn("standing", standing)
        .drop("proven_client")
    )


def verdict() -> Column:
    """Judge a client; one connection that is not capable makes the client not capable."""
    failed = f.col("killed") + f.col("would_be_kills") + f.col("reauth_failures")
    some_capable = f.col("not_capable_connections") < f.col("connections")
    return (
        f.when(f.col("principal").isNull(), Verdict.UNKNOWN.value)
        .when((failed > 0) & some_capable, Verdict.FAILING.value)
        .when(f.col("not_capable_connections") > 0, Verdict.NOT_CAPABLE.value)
        .when(f.col("reauthentications") > 0, Verdict.READY.value)
        .otherwise(Verdict.UNPROVEN.value)
    )


def evidence() -> Column:
    """Say in a sentence what the verdict rests on."""
    kills = f.col("killed") + f.col("would_be_kills")
    failing = _phrase(
        _counted(kills, "used once past the end of a session", "used %d times past the end of one"),
        _counted(
            f.col("reauth_failures"), "a re-authentication failed", "%d re-authentications failed"
        ),
        _counted(
            f.col("reauthentications"),
            "a re-authentication succeeded",
            "%d re-authentications succeeded",
        ),
    )
    not_capable = f.when(
        f.col("raw_token_connections") > 0,
        f.format_string(
            "raw SASL tokens (SaslHandshake v0) on %d of %d connections",
            f.col("raw_token_connections"),
            f.col("connections"),
        ),
    ).otherwise(
        f.format_string(
            "SaslAuthenticate v0 on %d of %d connections",
            f.col("not_capable_connections"),
            f.col("connections"),
        )
    )
    never_told = f.coalesce(f.col("told_ms"), f.lit(0)) == 0
    unproven = f.when(never_told, "speaks v1 or later, was never given a lifetime").otherwise(
        "was given a lifetime, but never stayed to its end"
    )
    never_in = _counted(
        f.col("login_failures"),
        "a login failed, none succeeded",
        "%d logins failed, none succeeded",
    )
    judged = f.col("verdict")
    return (
        f.when(judged == Verdict.FAILING.value, failing)
        .when(judged == Verdict.NOT_CAPABLE.value, not_capable)
        .when(
            judged == Verdict.READY.value,
            _counted(
                f.col("reauthentications"),
                "re-authenticated once, in time",
                "%d re-authentications, all in time",
            ),
        )
        .when(judged == Verdict.UNPROVEN.value, unproven)
        .otherwise(f.coalesce(never_in, f.lit("never logged in")))
    )


def rank() -> Column:
    """Place a verdict, the worst first."""
    return f.array_position(f.lit([each.value for each in WORST_FIRST]), f.col("verdict"))


def breaking_software(verdicts: DataFrame) -> DataFrame:
    """One row per library and version of clients that break: how many, whose, the most first."""
    return (
        verdicts.where(f.col("verdict").isin(*BREAKING))
        .groupBy("client_software_name", "client_software_version")
        .agg(
            f.count(f.lit(1)).alias("clients"),
            f.sort_array(f.collect_set("principal")).alias("principals"),
        )
        .withColumn("principal_count", f.size("principals"))
        .withColumn("principals", f.slice("principals", 1, PRINCIPALS_NAMED))
        .orderBy(f.desc("clients"), "client_software_name", "client_software_version")
    )


def principals(verdicts: DataFrame) -> DataFrame:
    """Return one row per principal: its clients by verdict, its worst verdict, `enforceable`."""
    counts = [
        f.count_if(f.col("verdict") == standing.value).alias(standing.value) for standing in Verdict
    ]
    rows = (
        verdicts.where(f.col("principal").isNotNull())
        .groupBy("principal")
        .agg(
            f.count(f.lit(1)).alias("clients"),
            f.sum("connections").alias("connections"),
            *counts,
            f.sort_array(f.array_distinct(f.flatten(f.collect_list("listeners")))).alias(
                "listeners"
            ),
            f.max("last_seen_ms").alias("last_seen_ms"),
        )
    )
    worst = f.lit(None).cast("string")
    for standing in reversed(WORST_FIRST):
        worst = f.when(f.col(standing.value) > 0, standing.value).otherwise(worst)
    return rows.withColumn("verdict", worst).withColumn(
        "enforceable", f.col("verdict") == Verdict.READY.value
    )


def _counted(count: Column, one: str, many: str) -> Column:
    """Say how many; null if none."""
    return f.when(count == 1, one).when(count > 1, f.format_string(many, count))


def _phrase(*parts: Column) -> Column:
    return f.concat_ws(", ", *parts)
