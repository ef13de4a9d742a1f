"""One Spark session for all tests here; starting it takes longer than most of them together."""

import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HINT = "Spark needs Java 17 or later on PATH (Debian: openjdk-17-jre-headless), and pyspark"


def _unavailable() -> str | None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return _HINT
    return None if shutil.which("java") or os.environ.get("JAVA_HOME") else _HINT


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    reason = _unavailable()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from metrics.spark.session import make_session

    os.environ["PYSPARK_PYTHON"] = sys.executable
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = make_session(master="local[2]", input_bytes=0, log=log)
    yield session
    session.stop()
