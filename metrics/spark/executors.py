"""Wait for the first executor of a cluster: Spark itself would wait for ever."""

import time
from typing import Any, Final

from pyspark.sql import SparkSession

from metrics.readiness.errors import ReportError

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
