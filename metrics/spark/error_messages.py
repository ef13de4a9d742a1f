"""One-line explanations of errors from Spark and its JVM."""

import re
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from metrics.readiness.errors import BROKEN_FILE, GONE_FILE

SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""The exceptions of Spark, and of the bridge to its JVM."""

_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s:'`\"]+")

_KNOWN: Final = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (
            r"JAVA_GATEWAY_EXITED",
            "Spark did not start: spark.log below --out says why (is there a Java 17 or later, and"
            " can the jars be had that --packages names?)",
        ),
        (
            r"is forbidden: User|Forbidden.{0,20}! *Configured service account",
            "the driver's account lacks rights in its namespace: deploy/spark/rights.yaml has them",
        ),
        (
            r"invalid null input: name",
            "the user that runs this has no name in /etc/passwd; the image's user is 65532",
        ),
        (
            r"Spark context stopped while waiting for backend|SparkContext was shut down",
            "Spark gave up, as its executors failed one after the other; the log above says why, or"
            " `kubectl describe pods -l spark-role=executor`",
        ),
        (r"bucket is null/empty", "the address names no bucket"),
        (
            r"Class \S+FileSystem not found|No FileSystem for scheme",
            "Spark has no jar for such addresses; docs/readiness.md says where to get it",
        ),
        (
            r"KAFKA_DATA_SOURCE_NOT_ENABLED",
            "Spark has no connector for Kafka; docs/readiness.md says where to get it",
        ),
        (r"UnknownStoreException|NoSuchBucket", "there is no such bucket"),
        (
            r"NoAuthWithAWSException|NoAwsCredentialsException|CredentialInitializationException",
            "no credentials were found",
        ),
        (
            r"AccessDeniedException|AccessControlException",
            "access is denied; check the credentials, and what they allow",
        ),
        (
            r"UnknownHostException|ConnectException|NoRouteToHostException|SocketTimeoutException",
            "nobody answers there; check the address and the endpoint",
        ),
        (r"FAILED_READ_FILE\.FILE_NOT_EXIST", GONE_FILE),
        (r"FAILED_READ_FILE", f"this file cannot be read: {BROKEN_FILE}; move it away"),
    )
)
"""Patterns of the JVM's messages, with explanations; the first match applies."""


def known_cause(error: Exception) -> str | None:
    """Return the explanation of an exception from Spark or the JVM; None if it is unknown."""
    if not isinstance(error, SPARK_ERRORS):
        return None
    text = str(error)
    return next((sentence for pattern, sentence in _KNOWN if pattern.search(text)), None)


def explained(error: Exception) -> str:
    """Return an explanation of an error in one line."""
    text = str(error).strip()
    if (cause := known_cause(error)) is not None:
        address = _ADDRESS.search(text)
        return f"{address.group().rstrip('.')}: {cause}" if address else cause
    lines = [line.strip(": ") for line in text.splitlines() if line.strip()]
    if isinstance(error, Py4JError) and len(lines) > 1:
        return lines[1]  # the first line is about the bridge to Java
    return lines[0] if lines else type(error).__name__
