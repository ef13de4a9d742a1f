"""The chart's gateway on a cluster: what happens to it under a client that goes on."""

import copy
import json
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import deploy
from tests.support.certificates import Authority
from tests.support.deploy import CHART
from tests.support.kubernetes.broker import BOOTSTRAP, Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.kubernetes.producing import Producer, config_map, producing, wait_ready
from tests.support.sasl import ISSUER, Issuer

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)


def values() -> Document:
    """Those of the gateway overlay, with signing keys of our own from an extra volume."""
    made = copy.deepcopy(deploy.values("gateway"))
    (listener,) = made["config"]["listeners"]
    del listener["advertised.host"]  # the chart's own Service
    listener |= {
        "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/idp/jwks.json",
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    made["config"]["upstream"]["bootstrap.servers"] = BOOTSTRAP
    made["volumes"] = [{"name": "idp", "configMap": {"name": "idp"}}]
    made["volumeMounts"] = [{"name": "idp", "mountPath": "/etc/idp"}]
    more = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    return made | more | {"service": {"brokers": [0]}, "name": "front"}


class Gateway:
    """A release of the chart in a namespace."""

    def __init__(self, cluster: Cluster, namespace: str, authority: bytes) -> None:
        self.cluster = cluster
        self.authority = authority
        self.namespace = namespace
        self.bootstrap = f"front.{namespace}.svc:9094"

    def upgrade(self, given: Document) -> None:
        """Install or upgrade; return when Helm does, before the pods are replaced."""
        done = self.helm("upgrade", "--install", "front", CHART, values=given)
        assert done.exit_status == 0, done.stderr

    def rollback(self) -> None:
        """Bring back what was before."""
        done = self.helm("rollback", "front")
        assert done.exit_status == 0, done.stderr

    def helm(self, *arguments: Any, values: Document | None = None) -> Any:
        """Run Helm in the namespace."""
        namespace = f"--namespace={self.namespace}"
        return self.cluster.helm(*arguments, namespace, values=values)

    def wait(self) -> float:
        """Wait for the roll-out; return the seconds that it took."""
        return wait_ready(self.cluster, "deployment/front", self.namespace)

    def pods(self) -> dict[str, Any]:
        """The proxy's pods by name, but for those that are ending."""
        found = self.cluster.get("pods", f"--namespace={self.namespace}", "-l", "reauth-proxy")
        return {
            one["metadata"]["name"]: one
            for one in found["items"]
            if "deletionTimestamp" not in one["metadata"]
        }


@pytest.fixture
def gateway(cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer) -> Gateway:
    """Two proxies behind one Service."""
    del broker  # is there before the proxies
    authority = Authority()
    made = Gateway(cluster, namespace, authority.certificate)
    certificate = authority.issue(hosts=(f"front.{namespace}.svc",))
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "kafka-tls"},
        "stringData": {
            "tls.crt": certificate.certificate.decode(),
            "tls.key": certificate.key.decode(),
            "ca.crt": authority.certificate.decode(),
        },
    }
    keys = config_map("idp", jwks_json=json.dumps(issuer.jwks()))
    cluster.apply(secret, keys, namespace=namespace)
    made.upgrade(values())
    log.info("two gateways are ready after %.1f s", made.wait())
    return made


@pytest.fixture
def client(gateway: Gateway, broker: Broker, issuer: Issuer) -> Iterator[Producer]:
    """A client that produces all the while; nothing of it may be lost."""
    arguments = (gateway.namespace, issuer, gateway.bootstrap, gateway.authority)
    with producing(gateway.cluster, broker, *arguments) as producer:
        yield producer
    log.info("nothing of %s was lost", producer.name)


def test_helm_tests_the_ports(gateway: Gateway) -> None:
    """And notes say where clients connect."""
    tested = gateway.helm("test", "front", "--timeout=5m")
    assert tested.exit_status == 0, tested.stdout + tested.stderr
    notes = gateway.helm("get", "notes", "front").stdout
    assert f"front.{gateway.namespace}.svc:9094 (listener clients: observe)" in notes
    assert "no Prometheus operator" not in notes


def test_an_upgrade_and_a_change_of_mode_lose_nothing(gateway: Gateway, client: Producer) -> None:
    """Both replace the pods one by one; the Service stays the same."""
    before = gateway.pods()
    changed = values()
    changed["config"]["listeners"][0]["reauth.enforcement"] = "enforce"
    gateway.upgrade(changed)
    log.info("the roll-out took %.1f s", gateway.wait())
    after = gateway.pods()
    assert not before.keys() & after.keys()
    assert len(after) == 2
    client.goes_on()


def test_a_config_map_is_followed_without_a_restart(gateway: Gateway, client: Producer) -> None:
    """Both proxies take up another mode; what needs a restart, and a mistake, change nothing."""
    cluster, namespace = gateway.cluster, f"--namespace={gateway.namespace}"
    live = values() | {"liveConfig": True}
    (listener,) = live["config"]["listeners"]
    gateway.upgrade(live)
    gateway.wait()
    before = gateway.pods()

    def reported(words: str) -> None:
        for name in before:  # the kubelet looks at a pod's volumes when the pod changes
            cluster.kubectl(
                "annotate", "pod", name, f"seen={uuid.uuid4()}", "--overwrite", namespace
            )
        cluster.wait(
            lambda: all(words in cluster.kubectl("logs", name, namespace) for name in before),
            what=f"not every proxy says: {words}",
            namespace=gateway.namespace,
        )

    listener["reauth.enforcement"] = "enforce"
    gateway.upgrade(live)
    reported("reloaded: listeners[clients].reauth.enforcement")
    client.goes_on()
    listener["ssl.keystore.location"] = "/etc/reauth-proxy-tls/no.crt"
    gateway.upgrade(live)
    reported("not reloaded, needs a restart: listeners[clients].ssl.keystore.location")
    client.goes_on()
    cluster.apply(config_map("front", proxy_yaml="listeners: ["), namespace=gateway.namespace)
    reported("not reloaded, the old configuration stays: line 1: is not YAML")
    client.goes_on()
    after = gateway.pods()
    assert after.keys() == before.keys()
    statuses = [pod["status"]["containerStatuses"][0] for pod in after.values()]
    assert [one["restartCount"] for one in statuses] == [0, 0]


def test_a_broken_configuration_stops_at_the_first_pod(gateway: Gateway, client: Producer) -> None:
    """The pods that serve stay, the mistake is in the pod's status, and a rollback mends it."""
    before = gateway.pods()
    broken = values()
    broken["config"]["listeners"][0]["ssl.keystore.location"] = "/etc/reauth-proxy-tls/no.crt"
    gateway.upgrade(broken)

    def message() -> str:
        (new,) = (pod for name, pod in gateway.pods().items() if name not in before)
        for status in new["status"].get("containerStatuses", ()):
            for state in (status["state"], status["lastState"]):
                if "terminated" in state:
                    return str(state["terminated"]["message"])
        return ""

    gateway.cluster.wait(
        lambda: "no.crt" in message(),
        what="the mistake is not told",
        namespace=gateway.namespace,
    )
    log.info("the pod's status says: %s", message().strip())
    client.goes_on()
    assert before.keys() <= gateway.pods().keys()
    gateway.rollback()
    gateway.wait()
    assert gateway.pods().keys() == before.keys()
    statuses = [pod["status"]["containerStatuses"][0] for pod in gateway.pods().values()]
    assert [one["restartCount"] for one in statuses] == [0, 0]


def test_a_drain_evicts_one_at_a_time(gateway: Gateway, client: Producer) -> None:
    """The disruption budget holds the second until the first has a replacement."""
    cluster = gateway.cluster
    before = gateway.pods()
    options = ("--pod-selector=reauth-proxy", "--delete-emptydir-data", "--timeout=8s")
    try:
        drained = cluster.try_kubectl("drain", "node", *options)
        assert drained.exit_status != 0
        assert "disruption budget" in drained.stderr
        log.info("drain: %s", drained.stderr.strip().splitlines()[-1])
        assert len(before.keys() & gateway.pods().keys()) == 1
        client.goes_on()
    finally:
        cluster.kubectl("uncordon", "node")
    gateway.wait()
    client.goes_on()
