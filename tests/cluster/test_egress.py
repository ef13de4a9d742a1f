"""The egress and transparent overlays on a cluster, as shipped."""

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
from tests.support.sasl import Issuer

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)


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
