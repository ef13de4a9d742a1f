"""State at an address: one run at a time adds to it, as long as its lock is there.

The lock is an object that is made only if there is none, by one request where the file system has
such a one (S3A, HDFS). A run that ends removes it, failed or not. What a killed run left is taken
over when it is `LOCK_SECONDS` old.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.sql import SparkSession

from metrics.readiness.errors import ReportError
from metrics.spark.error_messages import SPARK_ERRORS
from metrics.spark.files import HadoopFiles

LOCK_SECONDS: Final = 6 * 3600
"""Age in seconds from which on a lock is that of a run that was killed; no run may take longer."""
_NAME: Final = ".lock"


@contextmanager
def held_at(spark: SparkSession, state: str, now_ms: int) -> Iterator[None]:
    """Hold the state at an address for this run alone. Raises ReportError and `SPARK_ERRORS`."""
    files, lock = HadoopFiles(spark, state), f"{state.rstrip('/')}/{_NAME}"
    if not files.create(lock):
        is_left = now_ms - files.modified_ms(lock) > LOCK_SECONDS * 1000
        if is_left:
            files.delete(lock)
        if not is_left or not files.create(lock):
            raise ReportError(
                f"{state}: another run uses this --state; wait for its end. If it was killed,"
                f" remove {_NAME} there, or wait until {LOCK_SECONDS // 3600} hours after its begin"
            )
    try:
        yield
    finally:
        with suppress(*SPARK_ERRORS):  # the run's own error says more
            files.delete(lock)
