"""One Spark session for all tests here; starting it takes longer than most of them together."""

import os
import shutil
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from metrics.spark.spark_session import make_session

_HINT = "Spark needs Java 17 or later on PATH (Debian: openjdk-17-jre-headless)"


@pytest.fixture(scope="session")
def java() -> None:
    """Skips on a machine without Java; in CI such a machine is a fault."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(_HINT)


@pytest.fixture(scope="session")
def spark(
    java: None,  # noqa: ARG001 - Spark is a program of the JVM
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = make_session(master="local[2]", input_bytes=0, log=log)
    yield session
    session.stop()
