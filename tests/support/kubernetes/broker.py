"""Apache Kafka in a pod: one broker from the jars of this machine, and a Service."""

from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Partition

from tests.support.deploy import ROOT
from tests.support.kafka import java, properties
from tests.support.kafka.cluster import kafka_uuid
from tests.support.kafka.wire_client import Address, ask
from tests.support.kubernetes import images
from tests.support.kubernetes.cluster import Cluster, Document

NAMESPACE: Final = "kafka"
BOOTSTRAP: Final = "kafka.kafka.svc:9092"
"""Address for pods, as in the egress overlay."""
_READ_SECONDS: Final = 60.0
_CREATE_TOPICS: Final = 19

START: Final = """
java="$JAVA -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
$java -Xmx128m kafka.tools.StorageTool format --ignore-formatted \
    --cluster-id "$CLUSTER_ID" --config "$1" >/dev/null
exec $java -Xmx512m -Dlog4j2.configurationFile="$LOG4J" kafka.Kafka "$1"
"""
"""Shell code that formats the storage and starts a broker with a properties file."""


def environment() -> list[Document]:
    """Environment for `START`."""
    return [
        {"name": "CLASSPATH", "value": java.class_path()},
        {"name": "CLUSTER_ID", "value": kafka_uuid()},
        {"name": "LOG4J", "value": str(ROOT / "tests/support/kafka/log4j2.properties")},
        {"name": "JAVA", "value": str(images.java_home() / "bin/java")},
    ]


class Broker:
    """The broker of all tests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def start(self) -> None:
        """Start the broker; return when it is ready."""
        self._cluster.kubectl("create", "namespace", NAMESPACE)
        self._cluster.apply(*_documents(), namespace=NAMESPACE)
        ready = ("wait", "pod/kafka", "--for=condition=Ready", "--timeout=1s", "-n", NAMESPACE)
        self._cluster.wait(
            lambda: self._cluster.try_kubectl(*ready).exit_status == 0,
            what="the broker does not get ready",
            namespace=NAMESPACE,
        )

    @property
    def address(self) -> Address:
        """Address for the tests themselves, which do not use the cluster's DNS."""
        pod = self._cluster.get("pod", "kafka", "--namespace", NAMESPACE)
        return Address(pod["status"]["podIP"], 9095)

    def create_topic(self, name: str) -> None:
        """Create a topic of one partition."""
        topic = {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        fields = {"topics": [topic], "timeout": 60_000, "validate_only": False}
        (answer,) = ask(self.address, _CREATE_TOPICS, 7, fields).topics
        assert answer.error_code == 0, answer

    def records(self, topic: str) -> list[tuple[str, str]]:
        """Keys and values of all records in a topic."""
        settings = {"bootstrap.servers": str(self.address), "group.id": "tests"}
        consumer = Consumer(settings | {"enable.partition.eof": True})
        try:
            partition = Partition(topic, 0, OFFSET_BEGINNING)
            consumer.assign([partition])
            found: list[tuple[str, str]] = []
            end = 0
            while True:
                message: Any = consumer.poll(_READ_SECONDS)
                assert message is not None, f"{len(found)} messages, and no end of them"
                if message.error() is None:
                    found.append((message.key().decode(), message.value().decode()))
                    # A fetch never reaches the end while messages arrive.
                    end = end or consumer.get_watermark_offsets(partition, cached=True)[1]
                    if message.offset() + 1 >= end:
                        return found
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(message.error())
        finally:
            consumer.close()


def _documents() -> list[Document]:
    listeners = {"PLAINTEXT": 9092, "CONTROLLER": 9093, "TESTS": 9095}
    settings = properties.common(1) | {
        "process.roles": "broker,controller",
        "node.id": "0",
        "controller.quorum.voters": "0@localhost:9093",
        "listeners": ",".join(f"{name}://:{port}" for name, port in listeners.items()),
        "advertised.listeners": f"PLAINTEXT://{BOOTSTRAP},TESTS://${{POD_IP}}:9095",
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "log.dirs": "/tmp/data",  # noqa: S108 - of the pod
        # Its controller would fence it if it is late on a busy machine.
        "broker.session.timeout.ms": "600000",
    }
    text = "".join(f"{key}={value}\n" for key, value in settings.items())
    script = f"cat >/tmp/server.properties <<END\n{text}END\nset -- /tmp/server.properties\n{START}"
    volumes, mounts = images.mounts()
    ip = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kafka", "labels": {"app": "kafka"}},
        "spec": {
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "broker",
                    "image": images.MACHINE,
                    "command": ["/busybox/sh", "-ec", script],
                    "env": [*environment(), ip],
                    # Otherwise other pods could starve the broker.
                    "resources": {"requests": {"cpu": "250m"}},
                    "readinessProbe": {"tcpSocket": {"port": 9092}, "periodSeconds": 1},
                    "volumeMounts": [*mounts, {"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
                }
            ],
            "volumes": [*volumes, {"name": "tmp", "emptyDir": {}}],
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kafka"},
        "spec": {"selector": {"app": "kafka"}, "ports": [{"name": "clients", "port": 9092}]},
    }
    return [pod, service]
