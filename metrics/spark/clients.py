"""Clients from sessions: one row per principal, client id, software, version and mechanism."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

CLIENT_KEY = (
    "principal",
    "client_id",
    "client_software_name",
    "client_software_version",
    "mechanism",
)
"""The columns that identify a client. Its hosts are listed, not kept apart: a deployment moves
between them."""

HOSTS_SHOWN = 5


def clients(session_rows: DataFrame) -> DataFrame:
    """One row per client, with the sums and extremes of its sessions as evidence."""
    sums = ("reauthentications", "killed", "would_be_kills", "reauth_failures", "login_failures")
    return session_rows.groupBy(*CLIENT_KEY).agg(
        f.count(f.lit(1)).alias("connections"),
        f.count_if(f.col("ended_by").isNull()).alias("open_connections"),
        f.sort_array(f.collect_set("client_host")).alias("hosts"),
        f.sort_array(f.collect_set("listener")).alias("listeners"),
        f.min("authenticate_version").alias("authenticate_version"),
        f.count_if(f.col("standing") == "not_capable").alias("not_capable_connections"),
        f.count_if(f.col("authenticate_version").isNull() & f.col("principal").isNotNull()).alias(
            "raw_token_connections"
        ),
        f.max("told_ms").alias("told_ms"),
        f.max("used_ms").alias("used_ms"),
        f.max("longest_gap_ms").alias("longest_gap_ms"),
        f.min("credential_lifetime_ms").alias("credential_lifetime_ms"),
        f.max("outlived_credential_ms").alias("outlived_credential_ms"),
        f.min("connected_ms").alias("first_seen_ms"),
        f.max("last_event_ms").alias("last_seen_ms"),
        *(f.sum(name).alias(name) for name in sums),
        f.sum("requests").alias("requests"),
    )
