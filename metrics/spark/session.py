"""The Spark session: made once, for the size of what it will read."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

SMALL_BYTES = 64 * 1024 * 1024
"""Up to here the JVM's start is most of the time, and its first compiler is enough."""

_SMALL_SQL = {
    "spark.sql.shuffle.partitions": "1",
    # compiling a query takes longer than interpreting it over a few thousand rows
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # a job per stage, to replan after each, for nothing
    "spark.sql.adaptive.enabled": "false",
}

_SMALL = _SMALL_SQL | {
    # the classes of Spark fill the JVM's first guess of them four times, each time for a full GC
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:MetaspaceSize=256m -Xmn256m",
}

MEDIUM_BYTES = 256 * 1024 * 1024
MEDIUM_PARQUET_BYTES = 8 * 1024 * 1024 * 1024
"""Up to here, of lines and of what would be as many lines, the JVM's second compiler takes longer
than its code saves: parsing lines is mostly Java's own code, and a great deal of it."""

_COLLECTOR = "-XX:+UseParallelGC"
"""Nobody waits for an answer, so pauses do not count, and it costs half as much as the default."""

# the code that Spark makes of a wide aggregation is longer than what the JVM compiles by itself
# (8000 bytes), and runs at half the speed when interpreted
_COMPILE_ALL = "-XX:-DontCompileHugeMethods"

_LARGE = {
    "spark.driver.extraJavaOptions": f"{_COLLECTOR} {_COMPILE_ALL}",
    # the last event of each connection is looked up in a table of connections
    "spark.sql.autoBroadcastJoinThreshold": str(64 * 1024 * 1024),
}

_MEDIUM = _LARGE | {
    "spark.driver.extraJavaOptions": f"{_COLLECTOR} {_COMPILE_ALL} -XX:TieredStopAtLevel=1",
}


def make_session(
    *,
    master: str | None,
    input_bytes: int | None,
    parquet: bool = False,
    log: Path | None = None,
) -> SparkSession:
    """Start Spark, or take the session that spark-submit began.

    `master` None: as spark-submit says. `input_bytes`: of lines, or of what would be as many; None:
    unknown, perhaps large. `log`: where the JVM writes what it would write to stderr.
    """
    builder = (
        SparkSession.builder.appName("reauth-proxy report")
        .config("spark.sql.session.timeZone", "UTC")
        # Grouping by a client keeps small objects; sorting instead costs half as much again.
        .config("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", "100000")
        # finding out what else follows from a filter grows exponentially with columns derived
        # from one another (minutes to plan a query here), and nothing here gains from it
        .config("spark.sql.constraintPropagation.enabled", "false")
        # no row group can be skipped by what is asked here, and finding that out takes time
        .config("spark.sql.parquet.filterPushdown", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # where each expression was written, asked for at every call: half of the time to plan
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        .config("spark.sql.dataFrameQueryContext.enabled", "false")
    )
    if master is not None:
        builder = builder.master(master).config("spark.ui.enabled", "false")
    if master is not None and master.startswith("local"):
        builder = (
            builder.config("spark.sql.shuffle.partitions", "8")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
        )
        for name, value in _options(input_bytes, parquet=parquet).items():
            builder = builder.config(name, value)
    with _stderr_to(log):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def tune_for_little(spark: SparkSession) -> None:
    """Change what can still be changed, if the input turned out to be small."""
    for name, value in _SMALL_SQL.items():
        spark.conf.set(name, value)


def _options(input_bytes: int | None, *, parquet: bool) -> dict[str, str]:
    if input_bytes is not None and input_bytes <= SMALL_BYTES:
        return _SMALL
    medium = MEDIUM_PARQUET_BYTES if parquet else MEDIUM_BYTES
    return _LARGE if input_bytes is None or input_bytes > medium else _MEDIUM


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
