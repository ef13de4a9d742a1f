"""Valid events → what each connection did, by day → one row per connection.

Both views of the log are read together: the events proper and the summary rows. Whatever a
connection did is taken as the greatest of what either says, so that a dropped event, a summary
that is still to come, and an order of arrival change nothing.

Grouping is done in two steps because of its cost: first by connection, day and everything that is
text, so that what is carried along are numbers; then by connection, over far fewer rows.
"""

from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from metrics.events import EventKind, IntervalEnd

DAY_MS = 86_400_000

IDENTITY = (
    "principal",
    "client_id",
    "client_software_name",
    "client_software_version",
    "mechanism",
    "client_host",
    "listener",
    "enforcement",
    "handshake_version",
    "authenticate_version",
)
"""What is known of a client; it grows while a connection is young, so the latest is valid."""


class Standing(StrEnum):
    """What a connection says about its client's ability to re-authenticate."""

    READY = "ready"
    """It has re-authenticated, and never outlived a session."""
    UNPROVEN = "unproven"
    """SaslAuthenticate v1 or later; it was given no lifetime, or ended before it was over."""
    NOT_CAPABLE = "not_capable"
    """SaslAuthenticate v0 or raw tokens: no lifetime can be announced to it (KIP-368)."""
    FAILING = "failing"
    """It was killed, would have been, or failed to re-authenticate."""
    UNKNOWN = "unknown"
    """It never authenticated."""


def standing() -> Column:
    """Judge a session, or a client of which the same columns are known."""
    capable = f.coalesce(f.col("authenticate_version") >= 1, f.lit(False))
    failed = (f.col("killed") + f.col("would_be_kills") + f.col("reauth_failures")) > 0
    return (
        f.when(f.col("principal").isNull(), Standing.UNKNOWN.value)
        .when(~capable, Standing.NOT_CAPABLE.value)
        .when(failed, Standing.FAILING.value)
        .when(f.col("reauthentications") > 0, Standing.READY.value)
        .otherwise(Standing.UNPROVEN.value)
    )


def usage(events: DataFrame) -> DataFrame:
    """One row per connection, day (of UTC, since 1970) and identity, with numbers only."""
    rows = _from_events(events).unionByName(_from_summaries(events))
    return rows.groupBy("connection_id", "day", *IDENTITY).agg(
        f.count(f.lit(1)).alias("rows"),
        f.max("sequence").alias("last_sequence"),
        f.min("connected_ms").alias("connected_ms"),
        f.max("timestamp_ms").alias("last_event_ms"),
        f.min("first_authenticated_ms").alias("authenticated_ms"),
        f.max("last_request_ms").alias("last_request_ms"),
        f.max("authentications").alias("authentications"),
        f.max("used_ms").alias("used_ms"),
        f.max("gap_ms").alias("longest_gap_ms"),
        f.max("told_ms").alias("told_ms"),
        f.min("credential_lifetime_ms").alias("credential_lifetime_ms"),
        f.max("outlived_credential_ms").alias("outlived_credential_ms"),
        f.max("reauthenticated").alias("reauthenticated"),
        f.max("killed").alias("killed"),
        f.sum("would_be_kill").alias("would_be_kills_told"),
        f.sum("would_be_kills").alias("would_be_kills_summed"),
        f.max("reauth_failed").alias("reauth_failures"),
        f.max("login_failed").alias("login_failures"),
        f.max("closed").alias("closed"),
        f.sum("event_requests").alias("event_requests"),
        f.sum("summary_requests").alias("summary_requests"),
    )


def sessions(usage_rows: DataFrame) -> DataFrame:
    """One row per connection: who, since when, how it was kept up, how it ended."""
    latest = f.max_by(f.struct(*IDENTITY), "last_sequence")
    last, largest = "last_event_ms", "used_ms longest_gap_ms told_ms outlived_credential_ms"
    one_each = "killed reauth_failures login_failures closed"
    by_connection = usage_rows.groupBy("connection_id").agg(
        latest.alias("identity"),
        f.min("connected_ms").alias("connected_ms"),
        f.min("authenticated_ms").alias("authenticated_ms"),
        f.min("credential_lifetime_ms").alias("credential_lifetime_ms"),
        f.max("authentications").alias("authentications"),
        *(f.max(name).alias(name) for name in (last, "last_request_ms", *largest.split())),
        *(f.max(name).alias(name) for name in one_each.split()),
        f.greatest(f.sum("would_be_kills_told"), f.sum("would_be_kills_summed")).alias(
            "would_be_kills"
        ),
        f.greatest(f.sum("event_requests"), f.sum("summary_requests")).alias("requests"),
    )
    return (
        by_connection.select("identity.*", *by_connection.columns)
        .drop("identity")
        .withColumn("reauthentications", f.greatest(f.col("authentications") - 1, f.lit(0)))
        .withColumn("ended_by", _ended_by())
        .withColumn("standing", standing())
    )


def intervals(events: DataFrame) -> DataFrame:
    """One row per connection and authentication: from it to the next one or to the end."""
    number = f.col("authentications") - (f.col("kind") == EventKind.REAUTHENTICATED).cast("int")
    told = _proper(events).where(number > 0)
    from_events = told.select(
        "connection_id",
        number.alias("number"),
        _interval_start().alias("authenticated_ms"),
        _used_ms().alias("used_ms"),
        _when_kind("since_auth_ms", EventKind.REAUTHENTICATED).alias("reauthenticated_ms"),
    )
    each = f.col("each")
    reauthenticated = each["ended_by"] == IntervalEnd.REAUTHENTICATED.value
    from_summaries = _summaries(events).select(
        "connection_id", f.explode("intervals").alias("each")
    )
    from_summaries = from_summaries.select(
        "connection_id",
        each["number"].alias("number"),
        each["authenticated_ms"].alias("authenticated_ms"),
        each["last_request_since_auth_ms"].alias("used_ms"),
        f.when(reauthenticated, each["ended_since_auth_ms"]).alias("reauthenticated_ms"),
    )
    return (
        from_events.unionByName(from_summaries)
        .groupBy("connection_id", "number")
        .agg(
            f.min("authenticated_ms").alias("authenticated_ms"),
            f.max("used_ms").alias("used_ms"),
            f.max("reauthenticated_ms").alias("reauthenticated_ms"),
        )
    )


def _proper(events: DataFrame) -> DataFrame:
    return events.where(f.col("kind") != EventKind.SUMMARY.value)


def _summaries(events: DataFrame) -> DataFrame:
    return events.where(f.col("kind") == EventKind.SUMMARY.value)


def _when_kind(column: str, *kinds: EventKind) -> Column:
    return f.when(f.col("kind").isin([kind.value for kind in kinds]), f.col(column))


def _is_kind(*kinds: EventKind) -> Column:
    return f.col("kind").isin([kind.value for kind in kinds])


def _interval_start() -> Column:
    """When the interval began that ends with, or goes on through, this event."""
    ended = f.col("kind") == EventKind.REAUTHENTICATED.value
    before = f.col("timestamp_ms") - f.col("since_auth_ms")
    return f.when(ended, before).otherwise(f.col("authenticated_ms"))


def _used_ms() -> Column:
    """Age of the session at its last use; null: not used since it began.

    The request that meets an expired session is a use of it, though it is refused in `enforce`.
    """
    killed = f.when(
        _is_kind(EventKind.EXPIRED_KILLED, EventKind.WOULD_BE_KILLED), f.col("since_auth_ms")
    )
    age = f.col("last_request_ms") - _interval_start()
    return f.greatest(f.when(age >= 0, age), killed)


def _common() -> list[Column]:
    names = (*IDENTITY, "sequence", "connected_ms", "timestamp_ms", "authentications")
    return [
        f.col("connection_id"),
        f.floor(f.col("timestamp_ms") / DAY_MS).cast("int").alias("day"),
        *(f.col(name) for name in names),
        f.col("last_request_ms"),
        f.col("credential_lifetime_ms"),
    ]


def _from_events(events: DataFrame) -> DataFrame:
    authenticated = f.col("authentications") > 0
    failed = _is_kind(EventKind.FAILED)
    credential = f.when(~_is_kind(EventKind.REAUTHENTICATED), f.col("credential_lifetime_ms"))
    return _proper(events).select(
        *_common(),
        f.col("authenticated_ms").alias("first_authenticated_ms"),
        _used_ms().alias("used_ms"),
        _when_kind("since_auth_ms", EventKind.REAUTHENTICATED).alias("gap_ms"),
        f.col("announced_lifetime_ms").alias("told_ms"),
        (_used_ms() - credential).alias("outlived_credential_ms"),
        _is_kind(EventKind.REAUTHENTICATED).cast("long").alias("reauthenticated"),
        _is_kind(EventKind.EXPIRED_KILLED).cast("long").alias("killed"),
        _is_kind(EventKind.WOULD_BE_KILLED).cast("long").alias("would_be_kill"),
        f.lit(0).cast("long").alias("would_be_kills"),
        (failed & authenticated).cast("long").alias("reauth_failed"),
        (failed & ~authenticated).cast("long").alias("login_failed"),
        _is_kind(EventKind.CLOSED).cast("long").alias("closed"),
        f.col("requests").alias("event_requests"),
        f.lit(0).cast("long").alias("summary_requests"),
    )


def _from_summaries(events: DataFrame) -> DataFrame:
    each = f.col("intervals")
    used = f.array_max(f.transform(each, lambda one: one["last_request_since_auth_ms"]))
    last_used = f.element_at(each, -1)["last_request_since_auth_ms"]
    zero = f.lit(0).cast("long")
    return (
        _summaries(events)
        .where(f.size("intervals") > 0)
        .select(
            *_common(),
            f.array_min(f.transform(each, lambda one: one["authenticated_ms"])).alias(
                "first_authenticated_ms"
            ),
            used.alias("used_ms"),
            f.array_max(f.transform(each, _gap)).alias("gap_ms"),
            f.array_max(f.transform(each, lambda one: one["announced_lifetime_ms"])).alias(
                "told_ms"
            ),
            (last_used - f.col("credential_lifetime_ms")).alias("outlived_credential_ms"),
            (f.col("reauthentications") > 0).cast("long").alias("reauthenticated"),
            _ended(IntervalEnd.EXPIRED_KILLED).alias("killed"),
            zero.alias("would_be_kill"),
            f.coalesce(f.col("would_be_kills"), zero).alias("would_be_kills"),
            _ended(IntervalEnd.FAILED).alias("reauth_failed"),
            zero.alias("login_failed"),
            f.coalesce(f.col("final"), f.lit(False)).cast("long").alias("closed"),
            zero.alias("event_requests"),
            f.col("requests").alias("summary_requests"),
        )
    )


def _gap(interval: Column) -> Column:
    reauthenticated = interval["ended_by"] == IntervalEnd.REAUTHENTICATED.value
    return f.when(reauthenticated, interval["ended_since_auth_ms"])


def _ended(end: IntervalEnd) -> Column:
    ended = f.exists("intervals", lambda one: one["ended_by"] == end.value)
    return f.coalesce(ended, f.lit(False)).cast("long")


def _ended_by() -> Column:
    return (
        f.when(f.col("killed") > 0, IntervalEnd.EXPIRED_KILLED.value)
        .when((f.col("reauth_failures") + f.col("login_failures")) > 0, IntervalEnd.FAILED.value)
        .when(f.col("closed") > 0, IntervalEnd.CLOSED.value)
    )
