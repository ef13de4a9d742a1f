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
    # asking of every sum whether it overflows takes as long as all else of it together;
    # what could has been set aside (`events`), and nothing that is in the log may be fatal
    "spark.sql.ansi.enabled": "false",
    # Grouping by a client keeps small objects; sorting instead costs half as much again.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    # finding out what else follows from a filter grows exponentially with columns derived
    # from one another (minutes to plan a query here), and nothing here gains from it
    "spark.sql.constraintPropagation.enabled": "false",
    # no row group can be skipped by what is asked here, and finding that out takes time
    "spark.sql.parquet.filterPushdown": "false",
    # a set of a dozen names is compared with faster than it is looked up in
    "spark.sql.optimizer.inSetConversionThreshold": "16",
    # where each expression was written, asked for at every call: half of the time to plan
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""The settings of the planner, for inputs of any size."""

SMALL_BYTES = 64 * 1024 * 1024
"""The size in bytes up to which the JVM's start takes most of the time."""

_SMALL_SQL = {
    "spark.sql.shuffle.partitions": "1",
    # compiling a query takes longer than interpreting it over a few thousand rows
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # a job per stage, to replan after each, for nothing
    "spark.sql.adaptive.enabled": "false",
}

_METASPACE = "-XX:MetaspaceSize=256m"
"""The metaspace at the start: Spark's classes exceed the default, with four full GCs."""

_SMALL = _SMALL_SQL | {
    JAVA_OPTIONS: f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_METASPACE} -Xmn256m",
}

MEDIUM_BYTES = 256 * 1024 * 1024
"""The size in bytes of lines up to which the JVM's second compiler takes longer than its code
saves: parsing lines is mostly Java's own code, and much of it."""

_COLLECTOR = "-XX:+UseParallelGC"
"""The collector: a batch job minds no pauses, and it costs half of the default."""

_LARGE = {
    JAVA_OPTIONS: f"{_COLLECTOR} {_METASPACE}",
    # the last event of each connection is looked up in a table of connections
    "spark.sql.autoBroadcastJoinThreshold": str(64 * 1024 * 1024),
    # portions of this size, so that no processor is left with nothing while another has a whole one
    "spark.sql.files.maxPartitionBytes": str(32 * 1024 * 1024),
}

_FIRST_COMPILER = f"{_COLLECTOR} {_METASPACE} -XX:TieredStopAtLevel=1"

_MEDIUM = _LARGE | {
    JAVA_OPTIONS: _FIRST_COMPILER,
}

_EXECUTORS = _FIRST_COMPILER
"""The options of executors in JVMs of their own (`local-cluster`), which are cold at each run: they
take half the CPU time for a million events, and three quarters for five."""


def make_session(
    *,
    master: str | None,
    input_bytes: int | None,
    log: Path | None = None,
) -> SparkSession:
    """Start Spark, or take the session that spark-submit began.

    `master` None: as spark-submit says. `input_bytes`: of lines, or of what would be as many; None:
    unknown, perhaps large. `log`: where the JVM writes what it would write to stderr.
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
    """Say how Spark and its JVM are set for an input of this size, on this machine alone."""
    if input_bytes is not None and input_bytes <= SMALL_BYTES:
        return dict(_SMALL)
    return dict(_LARGE if input_bytes is None or input_bytes > MEDIUM_BYTES else _MEDIUM)


@contextmanager
def _stderr_to(log: Path | None) -> Iterator[None]:
    """Let what is started here write its stderr to a file: the JVM greets at length."""
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
"""The time in seconds that a cluster has to start one executor: an image may have to be fetched."""
_POLL_SECONDS: Final = 0.2

_NONE_STARTED: Final = (
    "no executor started in {seconds:.0f} s; `kubectl describe pods -l spark-role=executor` says"
    " why (image, quota, Pod Security, nodes that are full); are there no such pods, the driver's"
    " account may not make them: deploy/spark/rights.yaml"
)


def wait_for_executor(spark: SparkSession, seconds: float = START_SECONDS) -> None:
    """Return once an executor has registered; raises ReportError if none does in time.

    Of Kubernetes alone: elsewhere executors are not pods that may never start.
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
