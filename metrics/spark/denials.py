"""Requests that ACLs denied, or would have denied (`authorizer.mode: audit`)."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from metrics.events import EventKind
from metrics.spark.clients import HOSTS_SHOWN
from metrics.spark.event_rows import counted

DENIALS = (EventKind.DENIED.value, EventKind.WOULD_BE_DENIED.value)


def denials(events: DataFrame) -> DataFrame:
    """One row per principal, resource and operation: how often, from where, since when."""
    times = counted(f.col("denials"), least=1)
    enforced = f.col("kind") == EventKind.DENIED.value
    return (
        events.where(f.col("kind").isin(*DENIALS) & f.col("principal").isNotNull())
        .groupBy("principal", "resource_type", "resource_name", "operation")
        .agg(
            f.sum(f.when(enforced, times).otherwise(0)).alias("denied"),
            f.sum(f.when(enforced, 0).otherwise(times)).alias("would_be_denied"),
            f.slice(f.sort_array(f.collect_set("client_host")), 1, HOSTS_SHOWN).alias("hosts"),
            f.min("timestamp_ms").alias("first_ms"),
            f.max("timestamp_ms").alias("last_ms"),
        )
        .orderBy("principal", "resource_type", "resource_name", "operation")
    )


def denied_resources(denial_rows: DataFrame) -> DataFrame:
    """One row per principal and resource, with the operations and how often, from `denials`.

    `place` is that among the principal's, the most denied first.
    """
    times = f.col("denied") + f.col("would_be_denied")
    resource = ("resource_type", "resource_name")
    of_principal = Window.partitionBy("principal").orderBy(f.desc(times), *resource)
    return (
        denial_rows.groupBy("principal", *resource)
        .agg(
            f.sort_array(f.collect_set("operation")).alias("operations"),
            f.sum("denied").alias("denied"),
            f.sum("would_be_denied").alias("would_be_denied"),
        )
        .withColumn("place", f.row_number().over(of_principal))
    )
