"""Producing applications in pods, and checks of their messages."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import yaml

from tests.support.deploy import ROOT, verifying_tokens
from tests.support.kubernetes import images
from tests.support.kubernetes.broker import BOOTSTRAP
from tests.support.kubernetes.cluster import Cluster, Document
from tests.support.sasl import ISSUER, Issuer

TOKEN: Final = "token"
BOOTSTRAPS: Final = {"egress": "127.0.0.1:9094", "transparent": BOOTSTRAP}
"""Bootstrap servers of an application: the sidecar, or the redirected brokers."""


class Broker(Protocol):
    """A broker with a topic for messages."""

    def create_topic(self, name: str) -> None:
        """Create a topic of one partition."""

    def records(self, topic: str) -> list[tuple[str, str]]:
        """Return keys and values of all records in a topic."""
        ...


def container(topic: str, bootstrap: str, *, authority: str | None = None) -> Document:
    """Container of an application; its pod's name is the key of messages.

    It mounts the volume `application` with the token. With `authority`, a file there, it uses TLS.
    """
    _, mounts = images.mounts()
    tls = [{"name": "AUTHORITY", "value": f"/etc/application/{authority}"}] if authority else []
    pod = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    program = [images.python(), "-m", "tests.support.kubernetes.application"]
    return {
        "name": "application",
        "image": images.MACHINE,
        "command": [*program, topic, "$(POD)", f"/etc/application/{TOKEN}"],
        "workingDir": str(ROOT),
        "env": [pod, {"name": "KAFKA_BOOTSTRAP_SERVERS", "value": bootstrap}, *tls],
        "securityContext": {
            "runAsUser": 1000,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [
            *mounts,
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of the pod
            {"name": "application", "mountPath": "/etc/application"},
        ],
        "readinessProbe": {
            "exec": {"command": ["/busybox/cat", "/tmp/delivered"]},  # noqa: S108
            "periodSeconds": 1,
        },
    }


def volumes(config_map: str) -> list[Document]:
    """Volumes of the container."""
    machine, _ = images.mounts()
    config = {"name": "application", "configMap": {"name": config_map}}
    return [*machine, {"name": "tmp", "emptyDir": {}}, config]


def files_of(settings: Document, issuer: Issuer) -> dict[str, str]:
    """A proxy's configuration that takes the issuer's tokens, its keys, and a token of alice."""
    verifying_tokens(settings, "file:///etc/reauth-proxy/jwks.json", ISSUER)
    return {
        "proxy.yaml": yaml.safe_dump(settings),
        "jwks.json": json.dumps(issuer.jwks()),
        TOKEN: issuer.mint("alice"),
    }


def config_map(name: str, **files: str) -> Document:
    """A ConfigMap of these files."""
    data = {key.replace("_", "."): value for key, value in files.items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


@dataclass(frozen=True, slots=True)
class Producer:
    """An application in its own pod."""

    cluster: Cluster
    broker: Broker
    namespace: str
    topic: str
    name: str

    def delivered(self) -> int:
        """Number of its messages at the broker."""
        return sum(key == self.name for key, _ in self.broker.records(self.topic))

    def goes_on(self, messages: int = 100) -> None:
        """Wait until it has delivered more messages."""
        target = self.delivered() + messages
        self.cluster.wait(
            lambda: self.delivered() >= target,
            what="the application delivers nothing",
            namespace=self.namespace,
        )

    def end(self) -> int:
        """Delete it; assert that no message is lost, and return their number."""
        return end(self.cluster, self.broker, self.namespace, self.topic, self.name)


def end(cluster: Cluster, broker: Broker, namespace: str, topic: str, name: str) -> int:
    """Delete an application's pod; assert that no message is lost, and return their number."""
    cluster.kubectl("delete", "pod", name, "--namespace", namespace)
    return ended(broker, topic, name)


def ended(broker: Broker, topic: str, name: str) -> int:
    """Assert that an application that has ended lost no message; return their number."""
    mine = [value for key, value in broker.records(topic) if key == name]
    count = len(mine) - 1
    assert mine[-1] == f"last {count} of {count}", f"the last one is {mine[-1]!r}"
    assert mine[:-1] == [str(number) for number in range(count)]
    return count


@contextmanager
def producing(
    cluster: Cluster,
    broker: Broker,
    namespace: str,
    issuer: Issuer,
    bootstrap: str,
    authority: bytes,
) -> Iterator[Producer]:
    """Run an application that produces through a separate proxy and must lose nothing."""
    name = f"client-{uuid.uuid4().hex[:6]}"
    broker.create_topic(name)
    files = {TOKEN: issuer.mint("alice"), "ca_crt": authority.decode()}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 180,  # it waits twice for up to a minute
            "containers": [container(name, bootstrap, authority="ca.crt")],
            "volumes": volumes(name),
        },
    }
    cluster.apply(config_map(name, **files), pod, namespace=namespace)
    producer = Producer(cluster, broker, namespace, name, name)
    wait_ready(cluster, f"pod/{name}", namespace)
    yield producer
    producer.goes_on()
    producer.end()


def wait_ready(cluster: Cluster, what: str, namespace: str) -> float:
    """Wait for a pod or a Deployment's rollout; return the seconds that it took."""
    started = time.monotonic()
    if what.startswith("pod/"):
        arguments = ("wait", what, "--for=condition=Ready", "--timeout=1s")
    else:
        arguments = ("rollout", "status", what, "--timeout=1s")
    cluster.wait(
        lambda: cluster.try_kubectl(*arguments, f"--namespace={namespace}").exit_status == 0,
        what=f"{what} does not get ready",
        namespace=namespace,
    )
    return time.monotonic() - started
