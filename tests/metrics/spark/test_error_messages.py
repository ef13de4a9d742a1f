"""Errors of object stores and the JVM become one sentence."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from metrics.readiness import errors
from metrics.readiness.errors import ReportError
from metrics.readiness.folder import is_remote
from metrics.readiness.settings import Settings
from metrics.spark.error_messages import explained
from metrics.spark.lines import holds_parquet

ACCESS = "access is denied; check the credentials, and what they allow"
NO_JAR = "Spark has no jar for such addresses; docs/readiness.md says where to get it"


def of_jvm(text: str) -> Exception:
    """As the bridge reports it: its own line, the exception, where it was thrown."""
    error: Exception = Py4JError(
        f"An error occurred while calling o40.text.\n: {text}\n\tat org.apache.spark.A.b(A.scala:1)"
    )
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [  # as Hadoop 3.5 said it of a store that runs here, with the numbers of requests left out
        (
            of_jvm(
                "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://nobucket/events':"
                " getFileStatus on s3a://nobucket/events:"
                " software.amazon.awssdk.services.s3.model.NoSuchBucketException: The specified"
                " bucket does not exist (Service: S3, Status Code: 404):NoSuchBucket"
            ),
            "s3a://nobucket/events: there is no such bucket",
        ),
        (
            of_jvm(
                "java.nio.file.AccessDeniedException: s3a://fleet/events: getFileStatus on"
                " s3a://fleet/events: software.amazon.awssdk.services.s3.model.S3Exception:"
                " FORBIDDEN (Service: S3, Status Code: 403):null"
            ),
            f"s3a://fleet/events: {ACCESS}",
        ),
        (
            of_jvm(
                "java.nio.file.AccessDeniedException: s3a://fleet/events:"
                " org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided"
                " by TemporaryAWSCredentialsProvider SimpleAWSCredentialsProvider"
            ),
            "s3a://fleet/events: no credentials were found",
        ),
        (
            of_jvm(
                "org.apache.spark.SparkException: External scheduler cannot be instantiated\n"
                "Caused by: io.fabric8.kubernetes.client.KubernetesClientException: Failure"
                " executing: GET at: https://10.96.0.1/api/v1/namespaces/fleet/pods/a. Message:"
                ' pods "a" is forbidden: User "system:serviceaccount:fleet:default" cannot get'
                ' resource "pods"'
            ),
            "https://10.96.0.1/api/v1/namespaces/fleet/pods/a: the driver's account lacks rights in"
            " its namespace: deploy/spark/rights.yaml has them",
        ),
        (  # as of a pod template that the API server refuses
            of_jvm(
                "java.lang.IllegalStateException: Spark context stopped while waiting for backend"
            ),
            "Spark gave up, as its executors failed one after the other; the log above says why, or"
            " `kubectl describe pods -l spark-role=executor`",
        ),
        (
            of_jvm(
                "org.apache.hadoop.security.KerberosAuthException: failure to login:"
                " javax.security.auth.login.LoginException: java.lang.NullPointerException:"
                " invalid null input: name"
            ),
            "the user that runs this has no name in /etc/passwd; the image's user is 65532",
        ),
        (  # when reading has begun
            PySparkException(
                "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent"
                " failure: java.nio.file.AccessDeniedException: s3a://fleet/events/e-0.jsonl: open"
                " s3a://fleet/events/e-0.jsonl at 0"
            ),
            f"s3a://fleet/events/e-0.jsonl: {ACCESS}",
        ),
        (
            PySparkException(
                "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
            ),
            "Spark did not start: spark.log below --out says why (is there a Java 17 or later, and"
            " can the jars be had that --packages names?)",
        ),
        (
            of_jvm("java.lang.IllegalStateException: nobody knows"),
            "java.lang.IllegalStateException: nobody knows",
        ),
        (PySparkException(""), "PySparkException"),
    ],
)
def test_what_the_jvm_says_is_one_sentence(error: Exception, said: str) -> None:
    assert explained(error) == said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(13, "Permission denied", "/var/report"),
            "/var/report: permission denied",
        ),
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
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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
