"""The egress overlay on a cluster: an application's sidecar as it is shipped."""

import copy
import json
import logging
import uuid
from typing import Any

import pytest
import yaml

from tests.support import deploy
from tests.support.deploy import kustomized
from tests.support.kubernetes import images
from tests.support.kubernetes.broker import Broker
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.sasl import ISSUER, Issuer

pytestmark = pytest.mark.cluster
log = logging.getLogger(__name__)


def shipped(topic: str, issuer: Issuer) -> list[Document]:
    """The overlay with an application, signing keys and a token of our own."""
    documents = copy.deepcopy(kustomized("egress"))
    config = deploy.of_kind(documents, "ConfigMap")
    settings = yaml.safe_load(config["data"]["proxy.yaml"])
    settings["listeners"][0]["sasl.oauthbearer.expected.issuer"] = ISSUER
    settings["listeners"][0]["sasl.oauthbearer.jwks.endpoint.url"] = (
        "file:///etc/reauth-proxy/jwks.json"
    )
    config["data"] = {
        "proxy.yaml": yaml.safe_dump(settings),
        "jwks.json": json.dumps(issuer.jwks()),
        "token": issuer.mint("alice"),
    }
    deploy.of_kind(documents, "Deployment")["spec"]["replicas"] = 1
    pod = deploy.pod(documents)
    volumes, mounts = images.mounts()
    pod["volumes"] += [*volumes, {"name": "tmp", "emptyDir": {}}]
    (application,) = pod["containers"]
    application |= {
        "image": images.MACHINE,
        "command": [
            *(images.python(), "-m", "tests.support.kubernetes.application"),
            *(topic, "$(POD)", "/etc/application/token"),
        ],
        "workingDir": str(deploy.ROOT),
        "securityContext": {"runAsUser": 0},  # who may read this machine's Python
        "volumeMounts": [
            *mounts,
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the pod
            {"name": "reauth-proxy-config", "mountPath": "/etc/application"},
        ],
        "readinessProbe": {
            "exec": {"command": ["/busybox/cat", "/tmp/delivered"]},  # noqa: S108
            "periodSeconds": 1,
        },
    }
    application["env"].append(
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    )
    return documents


def only_pod(cluster: Cluster, namespace: str) -> Any:
    (pod,) = cluster.get("pods", "--namespace", namespace)["items"]
    return pod


def is_ready(pod: Any) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True"
        for one in pod["status"].get("conditions", ())
    )


def test_an_application_that_is_deleted_delivers_its_last_messages(
    cluster: Cluster, namespace: str, broker: Broker, issuer: Issuer
) -> None:
    """What it sends after SIGTERM, too: the sidecar ends after it."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic)
    cluster.apply(*shipped(topic, issuer), namespace=namespace)
    took = cluster.wait(
        lambda: any(map(is_ready, cluster.get("pods", "-n", namespace)["items"])),
        what="the application does not get ready",
        namespace=namespace,
    )
    log.info("ready after %.1f s", took)
    pod = only_pod(cluster, namespace)
    (sidecar,) = pod["status"]["initContainerStatuses"]
    assert sidecar["ready"]
    assert sidecar["restartCount"] == 0
    name = pod["metadata"]["name"]
    cluster.kubectl("delete", "pod", name, "--namespace", namespace)
    mine = [value for key, value in broker.records(topic) if key == name]
    count = len(mine) - 1
    assert mine[-1] == f"last {count} of {count}"
    assert mine[:-1] == [str(number) for number in range(count)]
    log.info("%d of %d messages", count, count)
