"""Apache Kafka's own SASL listener, started as kafka-server-start.sh starts it.

The cluster of the test suite cannot be used: its JVM starts fast but compiles less, so it takes
more CPU time than a real one.
"""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.programs import MeasurementFailed, Unavailable, free_address, running
from benchmarks.targets import OAUTHBEARER, SCRAM, USER, Lab, Target

_SECURITY = "org.apache.kafka.common.security"
_CLUSTER_ID = "BenchmarkClusterAAAAAA"

# As in kafka-run-class.sh and kafka-server-start.sh of Kafka 4.1; no measurement fills the heap.
_JVM_OPTIONS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{plaintext},CONTROLLER://{controller},CLIENTS://{clients}
advertised.listeners=PLAINTEXT://{plaintext},CLIENTS://{clients}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENTS:SASL_PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{controller}
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
log.cleaner.enable=false
offsets.topic.replication.factor=1
sasl.enabled.mechanisms={scram},{oauthbearer}
listener.name.clients.connections.max.reauth.ms={max_reauth_ms}
listener.name.clients.scram-sha-256.sasl.jaas.config={security}.scram.ScramLoginModule required;
{oauth}.sasl.jaas.config={security}.oauthbearer.OAuthBearerLoginModule required;
{oauth}.sasl.server.callback.handler.class={security}.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwt.validator.class={security}.oauthbearer.BrokerJwtValidator
sasl.oauthbearer.jwks.endpoint.url={jwks}
sasl.oauthbearer.expected.audience={audience}
sasl.oauthbearer.expected.issuer={issuer}
"""


def class_path() -> str:
    """Return Kafka's class path: $KAFKA_JARS, or the jars that the test suite fetches."""
    from tests.support.kafka import java

    try:
        return java.class_path()
    except java.KafkaUnavailable as unavailable:
        raise Unavailable(str(unavailable)) from None


@contextmanager
def kafka(lab: Lab, *, max_reauth_ms: int = 3_600_000) -> Iterator[Target]:
    """Run one KRaft node with default threads, and SCRAM and OAUTHBEARER on one listener.

    `max_reauth_ms` is the lifetime that it announces; 0: none.
    """
    path = class_path()
    directory = Path(tempfile.mkdtemp(prefix="kafka-", dir=lab.directory))
    address = free_address()
    properties = directory / "server.properties"
    properties.write_text(
        _PROPERTIES.format(
            plaintext=free_address(),
            controller=free_address(),
            clients=address,
            data=directory / "data",
            max_reauth_ms=max_reauth_ms,
            scram=SCRAM,
            oauthbearer=OAUTHBEARER,
            security=_SECURITY,
            oauth="listener.name.clients.oauthbearer",
            jwks=lab.credentials.jwks_file.as_uri(),
            audience=lab.credentials.audience,
            issuer=lab.credentials.issuer,
        )
    )
    _format_storage(lab, path, properties)
    allowed = (
        f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={lab.credentials.jwks_file.as_uri()}"
    )
    command = ["java", *_JVM_OPTIONS, allowed, "-cp", path, "kafka.Kafka", str(properties)]
    log = directory / "kafka.log"
    with running(command, log=log, address=address, cpus=lab.cpus) as process:
        yield Target(address=address, pid=process.pid)


def _format_storage(lab: Lab, path: str, properties: Path) -> None:
    # The tool takes the password from its command line only; it is generated for one run.
    password = lab.credentials.password_file.read_text().strip()
    user = f"{SCRAM}=[name={USER},iterations=8192,password={password}]"
    command = ["java", "-cp", path, "kafka.tools.StorageTool", "format", "--add-scram", user]
    done = subprocess.run(
        [*command, "--cluster-id", _CLUSTER_ID, "--config", str(properties)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise MeasurementFailed(f"formatting Kafka's storage: {done.stdout}{done.stderr}")
