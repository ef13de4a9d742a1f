"""State at an address: one run at a time adds to it, as long as its lock is there.

The lock is an object that is made only if there is none, by one request where the file system has
such a one (S3A, HDFS). A run writes it anew every `RENEW_SECONDS`, and removes it at its end,
failed or not. What a killed run left is taken over when it is `LOCK_SECONDS` old, by one run: the
one that made an object named after its age.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final

from pyspark.sql import SparkSession

from metrics.readiness.errors import ReportError
from metrics.spark.error_messages import SPARK_ERRORS
from metrics.spark.files import HadoopFiles

LOCK_SECONDS: Final = 3600
"""The age in seconds from which on a lock is that of a run that was killed."""
RENEW_SECONDS: Final = 600.0
"""The time in seconds after which a run writes its lock anew; the rest of `LOCK_SECONDS` is for
requests that fail and for clocks that are apart."""
_NAME: Final = ".lock"


@contextmanager
def held_at(
    spark: SparkSession, state: str, now_ms: int, renew_seconds: float = RENEW_SECONDS
) -> Iterator[None]:
    """Hold the state at an address for this run alone. Raises ReportError and `SPARK_ERRORS`."""
    files, lock = HadoopFiles(spark, state), f"{state.rstrip('/')}/{_NAME}"
    if not files.create(lock):
        left_ms = files.modified_ms(lock)
        is_left = left_ms is not None and now_ms - left_ms > LOCK_SECONDS * 1000
        if not is_left or not take_over(files, lock, left_ms):
            raise ReportError(
                f"{state}: another run uses this --state; wait for its end. If it was killed,"
                f" remove {_NAME} there, or wait for {LOCK_SECONDS // 60} minutes"
            )
    ended = Event()
    written_ms = files.modified_ms(lock)
    keeper = Thread(target=_keep, args=(files, lock, written_ms, ended, renew_seconds), daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def take_over(files: HadoopFiles, lock: str, left_ms: int | None) -> bool:
    """Make the lock in place of the one that was left then; False: another run has, or does."""
    claim = f"{lock}.{left_ms}"
    if not files.create(claim):
        return False
    try:
        # another run may have claimed it, taken it over and removed its claim in the meantime
        if files.modified_ms(lock) != left_ms:
            return False
        files.delete(lock)
        return files.create(lock)
    finally:
        files.delete(claim)


def _keep(
    files: HadoopFiles, lock: str, written_ms: int | None, ended: Event, renew_seconds: float
) -> None:
    """Write a lock anew until the run has ended, then remove it; leave another run's alone."""
    has_ended = False
    while not has_ended:
        has_ended = ended.wait(renew_seconds)
        with suppress(*SPARK_ERRORS):  # of a run that cannot go on, its own error says more
            if files.modified_ms(lock) != written_ms:
                return
            if has_ended:
                files.delete(lock)
            else:
                files.empty(lock)
                written_ms = files.modified_ms(lock)
