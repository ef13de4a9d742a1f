"""The chart's gateway for clients outside the cluster: node ports and a load balancer."""

import json
import logging
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.kubernetes.broker import Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.kubernetes.node import ADDRESS, NEIGHBOUR
from tests.support.kubernetes.release import Gateway, gateway_values
from tests.support.sasl import Issuer

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)

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
