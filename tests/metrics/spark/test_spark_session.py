"""How Spark is configured for the size of its input, and the wait for the first executor."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from metrics.readiness.errors import ReportError
from metrics.spark.spark_session import JAVA_OPTIONS, SMALL_BYTES, local_options, wait_for_executor

PATIENCE = 600.0
"""Seconds for a JVM that prints its version, or starts a Spark: beyond, it hangs."""


@pytest.mark.parametrize("size", [0, 584 * 800, SMALL_BYTES])
def test_a_small_input_is_neither_compiled_for_nor_divided(size: int) -> None:
    """The JVM's start and the making of code take longer than anything that they could save."""
    options = local_options(size)
    assert "-XX:TieredStopAtLevel=1" in options[JAVA_OPTIONS].split()
    assert options["spark.sql.codegen.wholeStage"] == "false"
    assert options["spark.sql.shuffle.partitions"] == "1"


@pytest.mark.parametrize("size", [SMALL_BYTES + 1, None])
def test_a_large_input_and_an_unknown_one_have_both_compilers(size: int | None) -> None:
    """Code of the first compiler alone takes three times as long for each event."""
    options = local_options(size)
    assert "TieredStopAtLevel" not in options[JAVA_OPTIONS]
    assert not any(name.startswith("spark.sql.codegen") for name in options)


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("size", [0, None])
def test_java_knows_its_options(size: int | None) -> None:
    """A JVM that is given an option that it does not know does not start."""
    flags = local_options(size)[JAVA_OPTIONS].split()
    command = ["java", *flags, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


SHOW = """
import sys
from metrics.spark.spark_session import make_session
spark = make_session(master="local[2]", input_bytes=int(sys.argv[1]))
runtime = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
print(*runtime.getInputArguments(), sep="\\n")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("size", [0, SMALL_BYTES + 1])
def test_the_jvm_is_started_with_what_was_chosen(size: int) -> None:
    """In a process of its own: a JVM that runs already keeps the options that it has."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(size)],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert set(local_options(size)[JAVA_OPTIONS].split()) <= set(done.stdout.splitlines())


def session(master: str, *sizes: int) -> Any:
    """What is used of a SparkSession: of each look at the executors, how many there are."""
    looks = iter(sizes)
    status = SimpleNamespace(size=lambda: next(looks))
    jvm_context = SimpleNamespace(getExecutorMemoryStatus=lambda: status)
    java_context = SimpleNamespace(sc=lambda: jvm_context)
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, _jsc=java_context))


def test_elsewhere_nothing_is_waited_for() -> None:
    """Nor are executors counted: their number is unknown."""
    wait_for_executor(session("local[2]"))


def test_the_driver_alone_is_not_enough() -> None:
    wait_for_executor(session("k8s://https://kubernetes.default.svc", 1, 1, 2))


def test_an_executor_that_never_starts_is_one_sentence() -> None:
    with pytest.raises(ReportError, match=r"no executor started in 0 s; `kubectl describe pods"):
        wait_for_executor(session("k8s://https://kubernetes.default.svc", 1, 1, 1), seconds=0)
