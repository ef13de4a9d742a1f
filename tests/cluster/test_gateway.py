"""Operations on the chart's gateway on a cluster, with a client that keeps producing."""

import json
import logging
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support import deploy
from tests.support.kubernetes.broker import Broker
from tests.support.kubernetes.cluster import OF_THE_OPERATOR, Cluster
from tests.support.kubernetes.producing import Producer, config_map
from tests.support.kubernetes.release import Gateway, gateway_values, restarts, secret
from tests.support.kubernetes.volumes import provide
from tests.support.sasl import Issuer

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)


def test_helm_tests_the_ports(gateway: Gateway) -> None:
    """The notes contain the address for clients."""
    tested = gateway.helm("test", "front", "--timeout=5m")
    assert tested.exit_status == 0, tested.stdout + tested.stderr
    notes = gateway.helm("get", "notes", "front").stdout
    assert f"front.{gateway.namespace}.svc:9094 (listener clients: observe)" in notes
    assert "no Prometheus operator" not in notes


def test_a_cluster_may_have_the_prometheus_operator_or_not(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer
) -> None:
    """Its resources are only created once their definitions exist."""
    del broker
    here = f"--namespace={namespace}"
    definitions = [deploy.operator_definition(plural) for plural in OF_THE_OPERATOR]
    gateway = Gateway(cluster, namespace, issuer)
    cluster.kubectl("delete", *(f"--filename={file}" for file in definitions))
    try:
        cluster.wait(
            lambda: not _offered(cluster), what="the operator is still known", namespace=namespace
        )
        gateway.upgrade(gateway_values())
        notes = gateway.helm("get", "notes", gateway.name).stdout
        assert "This cluster has no Prometheus operator: no PodMonitor and no" in notes
        gateway.wait()
    finally:
        cluster.define(*definitions)
    cluster.wait(
        lambda: _offered(cluster) == {*OF_THE_OPERATOR},
        what="the operator is unknown",
        namespace=namespace,
    )
    gateway.upgrade(gateway_values())
    listed = cluster.kubectl("get", ",".join(OF_THE_OPERATOR), "--output=name", here)
    assert listed.split() == [
        "podmonitor.monitoring.coreos.com/front",
        "prometheusrule.monitoring.coreos.com/front",
    ]


def _offered(cluster: Cluster) -> set[str]:
    """The operator's resources that the API server offers."""
    found = cluster.try_kubectl("get", "--raw", "/apis/monitoring.coreos.com/v1").stdout
    return {one["name"] for one in json.loads(found)["resources"]} if found else set()


def users_of(gateway: Gateway, pod: str) -> set[str]:
    """The SCRAM users that a proxy knows."""
    command = ("reauth-proxy", "users", "list", "--config", "/etc/reauth-proxy/proxy.yaml")
    here = f"--namespace={gateway.namespace}"
    listed = gateway.cluster.kubectl("exec", pod, here, "--", *command, "--output=json")
    return {one["user"] for one in json.loads(listed)}


def test_a_claim_keeps_what_a_pod_knew(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer
) -> None:
    """The proxy can write to a volume of root, and the next pod has the same users."""
    del broker
    provide(cluster, namespace, "state")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "state"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    cluster.apply(claim, namespace=namespace)
    gateway = Gateway(cluster, namespace, issuer)
    state = {"persistentVolumeClaim": {"claimName": "state"}}
    values = gateway_values() | {"replicas": 1, "state": state}
    (listener,) = values["config"]["listeners"]
    listener["sasl.enabled.mechanisms"].append("SCRAM-SHA-256")
    gateway.upgrade(values)
    gateway.wait()
    (first,) = gateway.pods()
    options = ("--mechanism=SCRAM-SHA-256", "--password-file=-")
    add = ("reauth-proxy", "users", "add", "alice", "--config=/etc/reauth-proxy/proxy.yaml")
    inside = ("exec", "--stdin", first, f"--namespace={namespace}", "--")
    cluster.kubectl(*inside, *add, *options, stdin="secret")
    assert users_of(gateway, first) == {"alice"}
    listener["reauth.enforcement"] = "enforce"
    gateway.upgrade(values)
    gateway.wait()
    (second,) = gateway.pods()
    assert second != first
    assert users_of(gateway, second) == {"alice"}


def test_replicas_take_their_users_from_one_secret(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, tmp_path: Path
) -> None:
    """Both have the same users and reload a changed Secret without a restart."""
    del broker
    file = tmp_path / "users.json"
    here = f"--namespace={namespace}"

    def add(name: str) -> None:
        options = ("--mechanism=SCRAM-SHA-256", "--users-file", str(file), "--password-file=-")
        command = [sys.executable, "-m", "proxy", "users", "add", name, *options]
        subprocess.run(command, input="secret", text=True, check=True, timeout=120)
        cluster.apply(secret("users", **{file.name: file.read_text()}), namespace=namespace)

    add("alice")
    gateway = Gateway(cluster, namespace, issuer)
    values = gateway_values()
    values["config"]["listeners"][0]["sasl.enabled.mechanisms"].append("SCRAM-SHA-256")
    refused = gateway.try_upgrade(values)
    assert "config.store.users.file: without it each replica has SCRAM users" in refused.stderr
    mounted = {"name": "users", "secretName": "users", "mountPath": "/etc/users"}
    values["secrets"].append(mounted | {"keys": [file.name]})
    values["config"]["store"]["users.file"] = f"/etc/users/{file.name}"
    gateway.upgrade(values)
    gateway.wait()
    pods = gateway.pods()
    assert [users_of(gateway, pod) for pod in pods] == [{"alice"}, {"alice"}]
    add("bob")

    def taken_up(pod: str) -> bool:
        cluster.kubectl("annotate", "pod", pod, here, f"seen={uuid.uuid4()}", "--overwrite")
        return "2 verifiers" in cluster.kubectl("logs", pod, here)

    cluster.wait(
        lambda: all(map(taken_up, pods)), what="bob is not known to both", namespace=namespace
    )
    assert gateway.pods().keys() == pods.keys()
    assert restarts(gateway.pods()) == 0


def test_an_upgrade_and_a_change_of_mode_lose_nothing(gateway: Gateway, client: Producer) -> None:
    """Both replace the pods one by one behind the same Service."""
    before = gateway.pods()
    changed = gateway_values()
    changed["config"]["listeners"][0]["reauth.enforcement"] = "enforce"
    gateway.upgrade(changed)
    log.info("the roll-out took %.1f s", gateway.wait())
    after = gateway.pods()
    assert not before.keys() & after.keys()
    assert len(after) == 2
    client.goes_on()


def test_a_config_map_is_followed_without_a_restart(gateway: Gateway, client: Producer) -> None:
    """Both proxies reload the mode; invalid changes and those that need a restart are ignored."""
    cluster, namespace = gateway.cluster, f"--namespace={gateway.namespace}"
    live = gateway_values() | {"liveConfig": True}
    (listener,) = live["config"]["listeners"]
    gateway.upgrade(live)
    gateway.wait()
    before = gateway.pods()

    def reported(words: str) -> None:
        for name in before:  # the kubelet updates a pod's volumes when the pod changes
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
    reported(":1: is not YAML")
    client.goes_on()
    after = gateway.pods()
    assert after.keys() == before.keys()
    assert restarts(after) == 0


def test_a_broken_configuration_stops_at_the_first_pod(gateway: Gateway, client: Producer) -> None:
    """Serving pods stay, the new pod's status has the error, and a rollback fixes it."""
    before = gateway.pods()
    broken = gateway_values()
    broken["config"]["listeners"][0]["ssl.keystore.location"] = "/etc/reauth-proxy-tls/no.crt"
    gateway.upgrade(broken)

    message = gateway.wait_for_message("no.crt", besides=before)
    log.info("the pod's status says: %s", message)
    client.goes_on()
    assert before.keys() <= gateway.pods().keys()
    gateway.rollback()
    gateway.wait()
    assert gateway.pods().keys() == before.keys()
    assert restarts(gateway.pods()) == 0


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
