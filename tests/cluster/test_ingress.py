"""Exposure of the gateway to clients outside of the cluster."""

import copy
import json
import logging
import shutil
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from tests.support import deploy
from tests.support.certificates import Authority
from tests.support.deploy import kustomized
from tests.support.kafka import java
from tests.support.kubernetes import broker, images, producing
from tests.support.kubernetes.broker import Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.kubernetes.node import ADDRESS, NEIGHBOUR
from tests.support.kubernetes.release import Gateway, gateway_values
from tests.support.sasl import ISSUER, Issuer

pytestmark = pytest.mark.cluster

log = logging.getLogger(__name__)

BROKERS = range(3)
VOLUMES = Path("/run/node/volumes")

#: Converts the environment to properties like Kafka's image.
SETTINGS = """
env | while IFS='=' read -r name value; do case $name in KAFKA_*)
    echo "$(echo "${name#KAFKA_}" | tr A-Z_ a-z.)=$value" ;;
esac; done >/tmp/server.properties
set -- /tmp/server.properties
"""


def shipped(issuer: Issuer, authority: Authority) -> list[Document]:
    """The overlay with this machine's Kafka and smaller resource requests."""
    documents = copy.deepcopy(kustomized("ingress"))
    config = deploy.of_kind(documents, "ConfigMap")
    settings = yaml.safe_load(config["data"]["proxy.yaml"])
    settings["listeners"][0] |= {
        "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/reauth-proxy/jwks.json",
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    config["data"] = {
        "proxy.yaml": yaml.safe_dump(settings),
        "jwks.json": json.dumps(issuer.jwks()),
    }
    pod = deploy.pod(documents)
    volumes, mounts = images.mounts()
    pod["volumes"] += [*volumes, {"name": "tmp", "emptyDir": {}}]
    (container,) = pod["containers"]
    more = [one for one in broker.environment() if one["name"] != "CLUSTER_ID"]
    replicated = {"OFFSETS_TOPIC_NUM_PARTITIONS": "1", "DEFAULT_REPLICATION_FACTOR": "3"}
    more += [{"name": f"KAFKA_{name}", "value": value} for name, value in replicated.items()]
    container["env"] += more
    container |= {
        "image": images.MACHINE,
        "command": ["/busybox/sh", "-ec", SETTINGS + broker.START],
        "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}},
    }
    container["volumeMounts"] += [*mounts, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    names = tuple(f"kafka-{number}.kafka" for number in BROKERS)
    certificate = authority.issue(hosts=names)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "kafka-tls"},
        "stringData": {
            "tls.crt": certificate.certificate.decode(),
            "tls.key": certificate.key.decode(),
        },
    }
    return [secret, *documents]


def volume(cluster: Cluster, number: int) -> Document:
    """A directory of the node for one broker."""
    path = VOLUMES / uuid.uuid4().hex
    cluster.node.run("install", "--directory", "--mode=0777", path)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"kafka-{number}-{path.name[:6]}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(path)},
        },
    }


class Brokers:
    """Kafka's tools in a broker's container."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace

    def _run(self, tool: str, *arguments: str) -> str:
        path = java.class_path()
        program = [str(images.java_home() / "bin/java"), *java.FAST_START, "-cp", path]
        program.append(java.TOOLS[tool])
        inside = ("exec", "kafka-0", "--container=broker", f"--namespace={self._namespace}")
        bootstrap = ",".join(f"kafka-{number}.kafka:9095" for number in BROKERS)
        return self._cluster.kubectl(
            *(*inside, "--", *program, "--bootstrap-server", bootstrap, *arguments)
        )

    def create_topic(self, name: str) -> None:
        """Create a topic of one partition, on all brokers."""
        self._run("kafka-topics", "--create", "--topic", name, "--replication-factor=3")

    def records(self, topic: str) -> list[tuple[str, str]]:
        """Keys and values of all records in a topic."""
        end = int(self._run("kafka-get-offsets", "--topic", topic).strip().rpartition(":")[2])
        shown = ("--from-beginning", "--property", "print.key=true", f"--max-messages={end}")
        lines = self._run("kafka-console-consumer", "--topic", topic, *shown).splitlines()
        pairs = [line.split("\t", 1) for line in lines if "\t" in line]
        assert len(pairs) == end
        return [(key, value) for key, value in pairs]


def test_brokers_are_replaced_one_by_one_and_nothing_is_lost(
    cluster: Cluster, namespace: str, issuer: Issuer
) -> None:
    """Each sidecar starts before its broker and ends after it; clients know only the sidecars."""
    assert shutil.which("java") is not None
    authority = Authority()
    documents = shipped(issuer, authority)
    volumes = [volume(cluster, number) for number in BROKERS]
    cluster.apply(*volumes)
    try:
        cluster.apply(*documents, namespace=namespace)
        took = producing.wait_ready(cluster, "statefulset/kafka", namespace)
        listed = cluster.kubectl("get", "pods", "--no-headers", f"--namespace={namespace}")
        log.info("ready after %.1f s:\n%s", took, listed)
        assert [line.split()[1] for line in listed.splitlines()] == ["2/2"] * 3
        brokers = Brokers(cluster, namespace)
        client = producing.producing(
            cluster, brokers, namespace, issuer, "kafka-0.kafka:9094", authority.certificate
        )
        with client as producer:
            cluster.kubectl("rollout", "restart", "statefulset/kafka", f"--namespace={namespace}")
            took = producing.wait_ready(cluster, "statefulset/kafka", namespace)
            log.info("replaced after %.1f s", took)
            producer.goes_on()
        restarts = [sidecar_restarts(pod) for pod in pods(cluster, namespace)]
        assert restarts == [0, 0, 0]
    finally:
        names = [one["metadata"]["name"] for one in volumes]
        cluster.kubectl("delete", "persistentvolume", *names, "--wait=false")


def pods(cluster: Cluster, namespace: str) -> list[Any]:
    found: list[Any] = cluster.get("pods", "-l", "app=kafka", f"--namespace={namespace}")["items"]
    return found


def sidecar_restarts(pod: Any) -> int:
    (status,) = pod["status"]["initContainerStatuses"]
    count: int = status["restartCount"]
    return count


# The chart's gateway for clients outside the cluster: node ports and a load balancer

BALANCER = "198.51.100.10"
"""Address of a load balancer; the client's machine routes it to the node."""
MESSAGES = 100


class Outside:
    """A client on a machine outside the cluster."""

    def __init__(self, gateway: Gateway, issuer: Issuer, directory: Path) -> None:
        self._gateway = gateway
        self._token = issuer.mint("alice")
        self._authority = directory / "ca.crt"
        self._authority.write_bytes(gateway.authority)

    def produce(self, bootstrap: str, topic: str) -> str:
        """Deliver messages; return the client's address at the proxy."""
        with self._gateway.cluster.node.neighbour():
            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "security.protocol": "SASL_SSL",
                    "ssl.ca.location": str(self._authority),
                    "sasl.mechanisms": "OAUTHBEARER",
                    "oauth_cb": lambda _: (self._token, time.time() + 3_000),
                    "client.id": topic,
                }
            )
            errors: list[object] = []
            for number in range(MESSAGES):
                producer.produce(
                    topic, str(number), "outside", on_delivery=lambda error, _: errors.append(error)
                )
            assert producer.flush(120) == 0
        assert errors == [None] * MESSAGES
        found = self._sessions(topic)  # while the client is there
        del producer
        (address,) = {one["client_host"] for one in found}
        return str(address)

    def _sessions(self, client_id: str) -> list[Document]:
        inside = ("--container=reauth-proxy", f"--namespace={self._gateway.namespace}", "--")
        command = ("reauth-proxy", "sessions", "list", "--config", "/etc/reauth-proxy/proxy.yaml")
        found: list[Document] = []
        for pod in self._gateway.pods():
            listed = self._gateway.cluster.kubectl(
                *("exec", pod, *inside, *command, "--client-id", client_id, "--output=json")
            )
            found += json.loads(listed)
        return found


def test_node_ports(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, tmp_path: Path
) -> None:
    """Node ports for the listener and each broker; the client's address is preserved."""
    gateway = Gateway(cluster, namespace, issuer, ADDRESS)
    values = gateway_values()
    values["config"]["listeners"][0] |= {
        "address": "0.0.0.0:30094",
        "broker.ports": "30100-30199",
        "advertised.host": ADDRESS,
    }
    values["service"] |= {"type": "NodePort", "externalTrafficPolicy": "Local"}
    gateway.upgrade(values)
    gateway.wait()
    log.info("%s", cluster.kubectl("get", "service", "front", f"--namespace={namespace}"))
    topic = namespace
    broker.create_topic(topic)
    address = Outside(gateway, issuer, tmp_path).produce(f"{ADDRESS}:30094", topic)
    assert address == NEIGHBOUR
    assert len(broker.records(topic)) == MESSAGES


def test_a_load_balancer(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, tmp_path: Path
) -> None:
    """Only the address that the controller writes into the Service is advertised."""
    gateway = Gateway(cluster, namespace, issuer, BALANCER)
    values = gateway_values()
    values["config"]["listeners"][0]["advertised.host"] = BALANCER
    values["service"] |= {"type": "LoadBalancer", "loadBalancerSourceRanges": [f"{NEIGHBOUR}/32"]}
    gateway.upgrade(values)
    gateway.wait()
    status = {"status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}}
    here = f"--namespace={namespace}"
    patch = ("--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    cluster.kubectl("patch", "service", "front", here, *patch)
    log.info("%s", cluster.kubectl("get", "service", "front", here))
    topic = namespace
    broker.create_topic(topic)
    assert Outside(gateway, issuer, tmp_path).produce(f"{BALANCER}:9094", topic)
    assert len(broker.records(topic)) == MESSAGES
