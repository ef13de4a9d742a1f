"""The sidecar, network policies and pod security."""

import copy
import logging
import uuid
from typing import Any

import pytest
import yaml

from tests.support import deploy
from tests.support.deploy import kustomized
from tests.support.kubernetes import producing
from tests.support.kubernetes.broker import Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.kubernetes.producing import Producer
from tests.support.kubernetes.release import (
    PREVIOUS,
    Gateway,
    Release,
    gateway_values,
    keys,
    restarts,
    sidecar_values,
)
from tests.support.sasl import Issuer

pytestmark = pytest.mark.cluster

log = logging.getLogger(__name__)


class Sidecar(Release):
    """An application with the chart's sidecar, and its topic."""

    def __init__(self, cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer) -> None:
        super().__init__(cluster, namespace, "orders")
        self.broker = broker
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self.topic)
        token = {producing.TOKEN: issuer.mint("alice")}
        application = producing.config_map("application", **token)
        cluster.apply(keys(issuer), application, namespace=namespace)

    @property
    def application(self) -> Producer:
        """The application in the only pod that serves."""
        ((name, pod),) = self.pods().items()
        assert restarts({name: pod}) == 0
        return Producer(self.cluster, self.broker, self.namespace, self.topic, name)

    def lost_nothing(self, application: Producer) -> int:
        """Wait for an application's end; assert that it lost nothing; return its messages."""
        self.cluster.wait(
            lambda: (
                self.cluster.try_kubectl(
                    "get", "pod", application.name, f"--namespace={self.namespace}"
                ).exit_status
                != 0
            ),
            what=f"{application.name} does not end",
            namespace=self.namespace,
        )
        count = producing.ended(self.broker, self.topic, application.name)
        log.info("%s: %d of %d messages", application.name, count, count)
        return count


@pytest.fixture
def sidecar(cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer) -> Sidecar:
    """Not installed yet."""
    return Sidecar(cluster, namespace, broker, issuer)


def test_an_upgrade_from_the_previous_chart_loses_nothing(sidecar: Sidecar) -> None:
    """With the old values, then with new ones; each upgrade replaces the pod."""
    values = sidecar_values(sidecar.topic)
    sidecar.upgrade({k: v for k, v in values.items() if k != "liveConfig"}, chart=PREVIOUS)
    sidecar.wait()
    first = sidecar.application
    refused = sidecar.try_upgrade(None, "--reuse-values")
    assert "upgrade with --reset-then-reuse-values in place of --reuse-values" in refused.stderr
    sidecar.upgrade(None, "--reset-then-reuse-values")
    log.info("the upgrade took %.1f s", sidecar.wait())
    sidecar.lost_nothing(first)
    second = sidecar.application
    values["config"]["listeners"][0]["reauth.enforcement"] = "enforce"
    sidecar.upgrade(values)
    notes = sidecar.helm("get", "notes", "orders").stdout
    assert "with the listeners\n  127.0.0.1:9094 (application: enforce)" in notes
    log.info("the change of mode took %.1f s", sidecar.wait())
    sidecar.lost_nothing(second)
    third = sidecar.application
    third.goes_on()
    sidecar.uninstall()
    sidecar.lost_nothing(third)


def test_a_broken_configuration_leaves_the_pod_that_serves(sidecar: Sidecar) -> None:
    """The application beside the new sidecar does not start, and a rollback fixes it."""
    values = sidecar_values(sidecar.topic)
    sidecar.upgrade(values)
    sidecar.wait()
    application = sidecar.application
    before = sidecar.pods()
    (listener,) = values["config"]["listeners"]
    listener["sasl.oauthbearer.jwks.endpoint.url"] = "file:///etc/idp/none.json"
    sidecar.upgrade(values)
    message = sidecar.wait_for_message("/etc/idp/none.json", besides=before)
    log.info("the pod's status says: %s", message)
    application.goes_on()
    (new,) = (pod for name, pod in sidecar.pods().items() if name not in before)
    (status,) = new["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "PodInitializing"
    sidecar.rollback()
    sidecar.wait()
    assert sidecar.application == application
    application.end()


def test_a_gateway_takes_the_place_of_a_sidecar(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, sidecar: Sidecar
) -> None:
    """The gateway is a separate release, because the sidecar's would delete the application."""
    sidecar.upgrade(sidecar_values(sidecar.topic))
    sidecar.wait()
    beside = sidecar.application
    refused = sidecar.try_upgrade(gateway_values() | {"name": "orders"})
    assert "the release orders is a sidecar, and the upgrade would delete deployment/orders" in (
        refused.stderr
    )
    gateway = Gateway(cluster, namespace, issuer)
    gateway.upgrade(gateway_values())
    gateway.wait()
    arguments = (namespace, issuer, gateway.bootstrap, gateway.authority)
    with producing.producing(cluster, broker, *arguments) as moved:
        sidecar.uninstall()
        sidecar.lost_nothing(beside)
        moved.goes_on()
    refused = gateway.try_upgrade(sidecar_values(sidecar.topic))
    assert "the release front is a gateway, and the upgrade would delete deployment/front" in (
        refused.stderr
    )


# The egress and transparent overlays on a cluster, as shipped


def shipped(overlay: str, topic: str, issuer: Issuer) -> list[Document]:
    """The overlay with the tests' application, keys and token."""
    documents = copy.deepcopy(kustomized(overlay))
    config = deploy.of_kind(documents, "ConfigMap")
    config["data"] = producing.files_of(yaml.safe_load(config["data"]["proxy.yaml"]), issuer)
    deploy.of_kind(documents, "Deployment")["spec"]["replicas"] = 1
    pod = deploy.pod(documents)
    pod["volumes"] += producing.volumes(config["metadata"]["name"])
    pod["containers"] = [producing.container(topic, producing.BOOTSTRAPS[overlay])]
    return documents


def only_pod(cluster: Cluster, namespace: str) -> Any:
    (pod,) = cluster.get("pods", "--namespace", namespace)["items"]
    return pod


@pytest.mark.parametrize("overlay", producing.BOOTSTRAPS)
def test_an_application_that_is_deleted_delivers_its_last_messages(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer, overlay: str
) -> None:
    """The sidecar ends after the application, so messages after SIGTERM are delivered."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic)
    cluster.apply(*shipped(overlay, topic, issuer), namespace=namespace)
    took = producing.wait_ready(cluster, "deployment/orders", namespace)
    log.info("ready after %.1f s", took)
    pod = only_pod(cluster, namespace)
    statuses = {one["name"]: one for one in pod["status"]["initContainerStatuses"]}
    sidecar = statuses["reauth-proxy"]
    assert sidecar["ready"]
    assert sidecar["restartCount"] == 0
    name = pod["metadata"]["name"]
    count = producing.end(cluster, broker, namespace, topic, name)
    log.info("%d of %d messages", count, count)


# Pod Security levels of the manifests, checked by the API server


def warnings(cluster: Cluster, namespace: str, level: str, overlay: str) -> str:
    """Warnings of the API server about the workload in a namespace with this level."""
    label = f"pod-security.kubernetes.io/warn={level}"
    cluster.kubectl("label", "namespace", namespace, label, "--overwrite")
    documents = deploy.kustomized(overlay)
    workloads = [one for one in documents if one["kind"] in {*deploy.WORKLOADS, "CronJob"}]
    for workload in workloads:
        workload["metadata"].pop("namespace", None)
    options = ("--dry-run=server", "--filename=-", f"--namespace={namespace}")
    done = cluster.try_kubectl("create", *options, stdin=yaml.safe_dump_all(workloads))
    assert done.exit_status == 0, done.stderr
    return done.stderr


RESTRICTED = ("gateway", "ingress", "egress", "report")


@pytest.mark.parametrize("overlay", RESTRICTED)
def test_what_needs_no_capability_passes_restricted(
    cluster: Cluster, namespace: str, overlay: str
) -> None:
    assert warnings(cluster, namespace, "restricted", overlay) == ""


def test_redirection_needs_a_privileged_namespace(cluster: Cluster, namespace: str) -> None:
    """Only because of NET_ADMIN in one init container."""
    said = warnings(cluster, namespace, "baseline", "transparent")
    assert 'container "reauth-redirect" must not include "NET_ADMIN"' in said
    assert said.count("container ") == 1
    assert warnings(cluster, namespace, "privileged", "transparent") == ""
