"""Errors of object stores and the JVM become one sentence."""

from pathlib import Path

import pytest
import yaml
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metrics.readiness import errors
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import is_remote
from metrics.readiness.settings import Settings
from metrics.spark.error_messages import explained
from metrics.spark.lines import holds_parquet

NO_JAR = "Spark has no jar for such addresses; docs/readiness.md says where to get it"


def of_jvm(text: str) -> Exception:
    """As the bridge reports it: its own line, the exception, where it was thrown."""
    error: Exception = Py4JError(
        f"An error occurred while calling o40.text.\n: {text}\n\tat org.apache.spark.A.b(A.scala:1)"
    )
    return error


ERRORS = yaml.safe_load(Path(__file__).with_name("errors.yaml").read_text())


@pytest.mark.parametrize("one", ERRORS, ids=lambda one: one["said"][:40])
def test_what_the_jvm_says_is_one_sentence(one: dict[str, str]) -> None:
    error = of_jvm(one["jvm"]) if "jvm" in one else PySparkException(one["spark"])
    assert explained(error) == one["said"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/var/report"), "/var/report: permission denied"),
        (OSError("the disk is gone"), "the disk is gone"),
        (OSError("s3a://fleet: AccessDeniedException"), "s3a://fleet: AccessDeniedException"),
        (ReportError("one\ntwo"), "one"),
        (ReportError(""), "ReportError"),
    ],
)
def test_what_this_machine_says_is_one_sentence(error: Exception, said: str) -> None:
    assert errors.explained(error) == said


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("s3a://fleet/events", NO_JAR),
        ("nosuch://fleet/events", NO_JAR),
        ("file:/nowhere/at/all", "there is no such folder"),
    ],
)
def test_an_address_that_cannot_be_read_is_one_sentence(
    spark: SparkSession, address: str, problem: str
) -> None:
    """PySpark comes without the jars of object stores."""
    with pytest.raises(ReportError) as refused:
        holds_parquet(spark, address)
    assert str(refused.value) == f"{address}: {problem}"


@pytest.mark.parametrize(
    "address", ["s3a://fleet/events", "S3A://fleet", "file:/events", "hdfs:/e"]
)
def test_an_address_is_no_local_folder(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its permissions are not looked at here, and no folder of such a name is made."""
    monkeypatch.chdir(tmp_path)
    assert is_remote(address)
    assert is_remote(str(Path(address)))
    out = str(tmp_path / "report")
    given = Settings(events=str(tmp_path), out=out, as_of_ms=0, history=Path(address))
    with pytest.raises(ReportError, match="a local folder"):
        given.check()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["events", "/events", "./a:b/c", "kafka:events", "a:/x", "../s3a"])
def test_a_path_is_no_address(path: str) -> None:
    """A single letter is a drive elsewhere, but no file system that Hadoop knows."""
    assert not is_remote(path)
