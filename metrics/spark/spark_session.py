"""Spark session, configured for the size of the input, and its first executor."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from metrics.readiness.errors import ReportError

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_SQL = {
    "spark.sql.session.timeZone": "UTC",
    # checking every sum for overflow doubles its cost; values that could overflow have been set
    # aside (`events`), and no content of the log may be fatal
    "spark.sql.ansi.enabled": "false",
    # grouping by client keeps small objects; sorting instead costs half as much again
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # inferring further filters grows exponentially with columns derived from one another
    # (minutes to plan a query here), and no query here benefits
    "spark.sql.constraintPropagation.enabled": "false",
    # no query here can skip a row group, and finding that out takes time
    "spark.sql.parquet.filterPushdown": "false",
    # comparing with a dozen names is faster than a lookup in a set
    "spark.sql.optimizer.inSetConversionThreshold": "16",
    # recording where each expression was written takes half of the planning time
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""The settings of Spark SQL, for inputs of any size."""

SMALL_BYTES = 64 * 1024 * 1024
"""The input size in bytes up to which starting the JVM takes most of the time."""

_METASPACE = "-XX:MetaspaceSize=256m"
"""The initial metaspace: Spark's classes exceed the default, which causes four full GCs."""

_SMALL = {
    JAVA_OPTIONS: f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_METASPACE} -Xmn256m",
    "spark.sql.shuffle.partitions": "1",
    # compiling a query takes longer than interpreting it over a few thousand rows
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # adaptive execution runs a job per stage and replans after each, without benefit
    "spark.sql.adaptive.enabled": "false",
}

_COLLECTOR = "-XX:+UseParallelGC"
"""The garbage collector: pauses do not matter in a batch job, and it costs half of the default."""

_LARGE = {
    JAVA_OPTIONS: f"{_COLLECTOR} {_METASPACE}",
    # the last event of each connection is looked up in a table of connections
    "spark.sql.autoBroadcastJoinThreshold": str(64 * 1024 * 1024),
    # small partitions, so that no processor is idle while another still has a large one
    "spark.sql.files.maxPartitionBytes": str(32 * 1024 * 1024),
}

_EXECUTORS = f"{_COLLECTOR} {_METASPACE} -XX:TieredStopAtLevel=1"
"""JVM options of separate executors (`local-cluster`), which start cold in each run: with them they
take half the CPU time for a million events, and three quarters for five million."""


def make_session(
    *,
    master: str | None,
    input_bytes: int | None,
    log: Path | None = None,
) -> SparkSession:
    """Start Spark, or use the session that spark-submit started.

    `master` None: the setting of spark-submit. `input_bytes`: the size of the input as lines; None:
    unknown, perhaps large. `log`: the file for the JVM's stderr.
    """
    builder = SparkSession.builder.appName("reauth-proxy report").config(
        "spark.ui.showConsoleProgress", "false"
    )
    for name, value in _SQL.items():
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.master(master).config("spark.ui.enabled", "false")
    if master is not None and master.startswith("local"):
        builder = (
            builder.config("spark.sql.shuffle.partitions", "8")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.executor.extraJavaOptions", _EXECUTORS)
        )
        for name, value in local_options(input_bytes).items():
            builder = builder.config(name, value)
    with _stderr_to(log):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def local_options(input_bytes: int | None) -> dict[str, str]:
    """Return the settings of Spark and its JVM for an input of this size on one machine."""
    return dict(_SMALL if input_bytes is not None and input_bytes <= SMALL_BYTES else _LARGE)


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Redirect the stderr of processes started in this context to a file: the JVM's is verbose."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


START_SECONDS: Final = 300.0
"""Time limit in seconds for a cluster to start one executor: it may have to pull an image."""
_POLL_SECONDS: Final = 0.2

_NONE_STARTED: Final = (
    "no executor started in {seconds:.0f} s; `kubectl describe pods -l spark-role=executor` says"
    " why (image, quota, Pod Security, nodes that are full); are there no such pods, the driver's"
    " account may not make them: deploy/spark/rights.yaml"
)


def wait_for_executor(spark: SparkSession, seconds: float = START_SECONDS) -> None:
    """Return once an executor has registered. Raises ReportError after `seconds` without one.

    It waits only on Kubernetes: on other clusters, executors are not pods that may never start.
    """
    context: Any = spark.sparkContext
    if not str(context.master).startswith("k8s://"):
        return
    jvm_context = context._jsc.sc()  # noqa: SLF001 - PySpark has no other way
    deadline = time.monotonic() + seconds
    while jvm_context.getExecutorMemoryStatus().size() < 2:  # the driver is one of them
        if time.monotonic() > deadline:
            raise ReportError(_NONE_STARTED.format(seconds=seconds))
        time.sleep(_POLL_SECONDS)
