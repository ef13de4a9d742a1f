"""Pods of many shapes, and the admission policies' results."""

from typing import Any, Final

from tests.support import deploy
from tests.support.kubernetes.injection import shipped

Object = dict[str, Any]

INJECT: Final = "reauth-proxy.io/inject"
CONFIG: Final = "reauth-proxy.io/config"
SECRETS: Final = "reauth-proxy.io/secrets"
BROKER_PORTS: Final = "reauth-proxy.io/broker-ports"
HTTP_PORT: Final = "reauth-proxy.io/http-port"

CONTAINER: Final[Object] = {"name": "application", "image": "docker.io/library/machine:1"}
TEMPLATE: Final = deploy.of_kind(shipped(), "SidecarTemplate")["spec"]
SIDECAR: Final[Object] = TEMPLATE["sidecar"]
UNMOUNTED: Final = SIDECAR | {"volumeMounts": []}


def pod(annotations: Object | None = None, labels: Object | None = None, **spec: Any) -> Object:
    """A pod of one container."""
    metadata: Object = {"name": "shape"}
    if annotations is not None:
        metadata["annotations"] = annotations
    if labels is not None:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [CONTAINER], **spec},
    }


EGRESS: Final = {INJECT: "egress"}
TRANSPARENT: Final = {INJECT: "transparent"}

INJECTED: Final[dict[str, Object]] = {
    "an annotation": pod(EGRESS),
    "a label": pod(labels=EGRESS),
    "label and annotation alike": pod(EGRESS, EGRESS),
    "beside a broker": pod({INJECT: "ingress", SECRETS: "kafka-tls:/etc/reauth-proxy-tls"}),
    "a configuration by name": pod(EGRESS | {CONFIG: "orders-proxy"}),
    "two Secrets": pod(EGRESS | {SECRETS: "a:/etc/a, b:/etc/b"}),
    "redirected": pod(TRANSPARENT),
    "redirected from other ports": pod(TRANSPARENT | {BROKER_PORTS: "9092,9094"}),
    "init containers of its own": pod(EGRESS, initContainers=[CONTAINER | {"name": "first"}]),
    "another native sidecar": pod(
        EGRESS, initContainers=[CONTAINER | {"name": "mesh", "restartPolicy": "Always"}]
    ),
    "volumes of its own": pod(EGRESS, volumes=[{"name": "data", "emptyDir": {}}]),
    "a job's pod": pod(EGRESS, restartPolicy="Never"),
    "a long end": pod(EGRESS, terminationGracePeriodSeconds=300),
    "ports of its own": pod(EGRESS, containers=[CONTAINER | {"ports": [{"containerPort": 8080}]}]),
    "the proxy's usual port of its own": pod(
        EGRESS | {HTTP_PORT: "9405"}, containers=[CONTAINER | {"ports": [{"containerPort": 9404}]}]
    ),
    "a shared process namespace": pod(EGRESS, shareProcessNamespace=True),
    "Linux, by name": pod(EGRESS, os={"name": "linux"}),
}
"""Pods that get the sidecar."""

UNCHANGED: Final[dict[str, Object]] = {
    "nothing asked for": pod(),
    "labels of others": pod(labels={"app": "orders"}),
    "switched off": pod({INJECT: "false"}),
}
"""Pods that are not changed."""

REFUSED: Final[dict[str, tuple[Object, str]]] = {
    "the node's network": (pod(EGRESS, hostNetwork=True), "run a gateway in front instead"),
    "Windows": (pod(EGRESS, os={"name": "windows"}), "the proxy runs on Linux alone"),
    "a node with Windows": (
        pod(EGRESS, nodeSelector={"kubernetes.io/os": "windows"}),
        "the proxy runs on Linux alone",
    ),
    "no such mode": (
        pod({INJECT: "sidecar"}),
        "reauth-proxy.io/inject: must be one of egress, ingress, transparent, got 'sidecar'",
    ),
    "label and annotation differ": (pod(EGRESS, TRANSPARENT), "label and annotation differ"),
    "a misspelt annotation": (
        pod(EGRESS | {"reauth-proxy.io/secret": "a:/b"}),
        "'reauth-proxy.io/secret': no such annotation; known are reauth-proxy.io/broker-ports,",
    ),
    "no name": (pod(EGRESS | {CONFIG: "My Config"}), "must be the name of a ConfigMap, got 'My"),
    "no path": (pod(EGRESS | {SECRETS: "tls"}), "must be NAME:PATH,NAME:PATH, got 'tls'"),
    "ports that are none": (
        pod(TRANSPARENT | {BROKER_PORTS: "9092;9093"}),
        "must be ports, with commas in between, got '9092;9093'",
    ),
    "no port": (
        pod(EGRESS | {HTTP_PORT: "metrics"}),
        "http-port: must be a port from 1 to 65535, got 'metrics'",
    ),
    "a port that is too large": (
        pod(EGRESS | {HTTP_PORT: "65536"}),
        "http-port: must be a port from 1 to 65535, got '65536'",
    ),
    "ports that nothing redirects": (
        pod(EGRESS | {BROKER_PORTS: "9092"}),
        "goes with reauth-proxy.io/inject: transparent alone",
    ),
    "a container of that name": (
        pod(EGRESS, containers=[CONTAINER | {"name": "reauth-proxy"}]),
        "a container is named reauth-proxy or reauth-redirect already, and is not the template's",
    ),
    "its port is taken": (
        pod(EGRESS, containers=[CONTAINER | {"ports": [{"containerPort": 9404}]}]),
        "has a port of the proxy's, 9094 or 9404: move it, or the proxy's second one with reauth-p",
    ),
    "the proxy's own user": (
        pod(TRANSPARENT, securityContext={"runAsUser": 60092}),
        "runs as user 60092, the proxy's own, whose connections are not redirected",
    ),
    "a container that runs something else": (
        pod(EGRESS, initContainers=[UNMOUNTED | {"command": ["sleep"]}]),
        "a container is named reauth-proxy or reauth-redirect already, and is not the template's",
    ),
    "a sidecar with another library": (
        pod(EGRESS, initContainers=[UNMOUNTED | {"env": [{"name": "LD_PRELOAD", "value": "/x"}]}]),
        "a container is named reauth-proxy or reauth-redirect already, and is not the template's",
    ),
    "a volume of that name": (
        pod(EGRESS, volumes=[{"name": "reauth-proxy-state", "emptyDir": {}}]),
        "a volume is named reauth-proxy-state already: rename it",
    ),
}
"""Refused pods, and words of the reason."""
