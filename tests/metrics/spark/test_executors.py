"""The wait for a cluster's first executor."""

from types import SimpleNamespace
from typing import Any

import pytest

from metrics.readiness.errors import ReportError
from metrics.spark.executors import wait_for_executor


def session(master: str, *sizes: int) -> Any:
    """What is used of a SparkSession: of each look at the executors, how many there are."""
    looks = iter(sizes)
    status = SimpleNamespace(size=lambda: next(looks))
    jvm_context = SimpleNamespace(getExecutorMemoryStatus=lambda: status)
    java_context = SimpleNamespace(sc=lambda: jvm_context)
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, _jsc=java_context))


def test_elsewhere_nothing_is_waited_for() -> None:
    """Nor are executors counted: there is no number to be had."""
    wait_for_executor(session("local[2]"))


def test_the_driver_alone_is_not_enough() -> None:
    wait_for_executor(session("k8s://https://kubernetes.default.svc", 1, 1, 2))


def test_an_executor_that_never_starts_is_one_sentence() -> None:
    with pytest.raises(ReportError, match=r"no executor started in 0 s; `kubectl describe pods"):
        wait_for_executor(session("k8s://https://kubernetes.default.svc", 1, 1, 1), seconds=0)
