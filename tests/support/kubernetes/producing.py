"""Producing applications in pods, and the checks of their messages."""

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
"""What an application connects to: the sidecar, or the brokers as if there were none."""


class Broker(Protocol):
    """Where the messages go."""

    def create_topic(self, name: str) -> None:
        """Create a topic of one partition."""

    def records(self, topic: str) -> list[tuple[str, str]]:
        """Return all that a topic holds, as keys and values."""
        ...


def container(topic: str, bootstrap: str, *, authority: str | None = None) -> Document:
    """The container of an application, whose key is its pod's name.

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
    """What the container mounts."""
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
    """An application that runs in a pod of its own."""

    cluster: Cluster
    broker: Broker
    namespace: str
    topic: str
    name: str

    def delivered(self) -> int:
        """The messages that the broker has of it."""
        return sum(key == self.name for key, _ in self.broker.records(self.topic))

    def goes_on(self, messages: int = 100) -> None:
        """Return when it has delivered that many more."""
        target = self.delivered() + messages
        self.cluster.wait(
            lambda: self.delivered() >= target,
            what="the application delivers nothing",
            namespace=self.namespace,
        )

    def end(self) -> int:
        """Delete it; return the number of its messages, none of which may be lost."""
        return end(self.cluster, self.broker, self.namespace, self.topic, self.name)


def end(cluster: Cluster, broker: Broker, namespace: str, topic: str, name: str) -> int:
    """Delete an application's pod; return the number of its messages, none of which may be lost."""
    cluster.kubectl("delete", "pod", name, "--namespace", namespace)
    return ended(broker, topic, name)


def ended(broker: Broker, topic: str, name: str) -> int:
    """Return the number of messages of an application that is gone, none of which may be lost."""
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
    """An application that produces through a proxy elsewhere; at the end nothing may be lost."""
    name = f"client-{uuid.uuid4().hex[:6]}"
    broker.create_topic(name)
    files = {TOKEN: issuer.mint("alice"), "ca_crt": authority.decode()}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 180,  # twice it waits for a minute at most
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
    """Wait for a pod, or for a Deployment's roll-out; return the seconds that it took."""
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
