"""Releases of the chart, as a gateway and as a sidecar."""

import copy
import json
from pathlib import Path
from typing import Any, Final

from tests.support import deploy
from tests.support.certificates import Authority
from tests.support.deploy import CHART
from tests.support.kubernetes import producing
from tests.support.kubernetes.broker import BOOTSTRAP
from tests.support.kubernetes.cluster import Cluster, Document, Finished
from tests.support.sasl import ISSUER, Issuer

PREVIOUS: Final = Path(__file__).with_name("kafka-reauth-proxy-before-gateway.tgz")
"""Package of the previous chart."""


class Release:
    """A release of the chart in a namespace, and its Deployment."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.name = name

    def upgrade(self, given: Document | None, *options: str, chart: Path = CHART) -> None:
        """Install or upgrade; return before the pods are replaced."""
        done = self.try_upgrade(given, *options, chart=chart)
        assert done.exit_status == 0, done.stderr

    def try_upgrade(self, given: Document | None, *options: str, chart: Path = CHART) -> Finished:
        """The same, but it may fail; None for no values."""
        return self.helm("upgrade", "--install", self.name, chart, *options, values=given)

    def rollback(self) -> None:
        """Roll back to the previous revision."""
        done = self.helm("rollback", self.name)
        assert done.exit_status == 0, done.stderr

    def uninstall(self) -> None:
        """Uninstall; return while the pods are ending."""
        done = self.helm("uninstall", self.name)
        assert done.exit_status == 0, done.stderr

    def helm(self, *arguments: str | Path, values: Document | None = None) -> Finished:
        """Run Helm in the namespace."""
        namespace = f"--namespace={self.namespace}"
        return self.cluster.helm(*arguments, namespace, values=values)

    def wait(self) -> float:
        """Wait for the rollout; return the seconds that it took."""
        return producing.wait_ready(self.cluster, f"deployment/{self.name}", self.namespace)

    def pods(self) -> dict[str, Any]:
        """The proxy's pods by name, without ending ones."""
        label = f"reauth-proxy={self.name}"
        found = self.cluster.get("pods", f"--namespace={self.namespace}", "--selector", label)
        return {
            one["metadata"]["name"]: one
            for one in found["items"]
            if "deletionTimestamp" not in one["metadata"]
        }

    def wait_for_message(self, words: str, *, besides: dict[str, Any]) -> str:
        """Wait until the only other pod's status contains these words; return the message."""

        def message() -> str:
            (new,) = (pod for name, pod in self.pods().items() if name not in besides)
            return message_of(new)

        self.cluster.wait(
            lambda: words in message(),
            what=f"the status does not say: {words}",
            namespace=self.namespace,
        )
        return message().strip()


def message_of(pod: Any) -> str:
    """Termination message of a pod's last ended container; empty without one."""
    status = pod["status"]
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        for state in (one["state"], one["lastState"]):
            if "message" in state.get("terminated", ()):
                return str(state["terminated"]["message"])
    return ""


def restarts(pods: dict[str, Any]) -> int:
    """Number of restarts of their containers."""
    return sum(
        one["restartCount"]
        for pod in pods.values()
        for key in ("initContainerStatuses", "containerStatuses")
        for one in pod["status"].get(key, ())
    )


def keys(issuer: Issuer) -> Document:
    """The Secret `idp` with the keys of tokens."""
    return secret("idp", **{"jwks.json": json.dumps(issuer.jwks())})


def secret(name: str, **data: str) -> Document:
    """A Secret with these keys."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def gateway_values() -> Document:
    """Values of the gateway overlay, with the tests' keys and brokers."""
    made = copy.deepcopy(deploy.values("gateway"))
    (listener,) = made["config"]["listeners"]
    del listener["advertised.host"]  # the chart's own Service
    listener |= {
        "sasl.oauthbearer.jwks.endpoint.url": "file:///etc/idp/jwks.json",
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    made["config"]["upstream"]["bootstrap.servers"] = BOOTSTRAP
    made["volumes"] = [{"name": "idp", "secret": {"secretName": "idp"}}]
    made["volumeMounts"] = [{"name": "idp", "mountPath": "/etc/idp"}]
    more = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
    return made | more | {"service": {"brokers": [0]}, "name": "front", "liveConfig": False}


def sidecar_values(topic: str) -> Document:
    """Values of the egress overlay, with an application that produces to a topic.

    The application's own volume comes from the ConfigMap `application`.
    """
    made = copy.deepcopy(deploy.values("egress"))
    deploy.verifying_tokens(made["config"], "file:///etc/idp/jwks.json", ISSUER)
    del made["config"]["listeners"][0]["sasl.termination"]  # as by default, and as ever
    made["secrets"] = [
        {"name": "idp", "secretName": "idp", "mountPath": "/etc/idp", "keys": ["jwks.json"]}
    ]
    spec = made["workload"]["spec"]
    spec["replicas"] = 1
    spec["template"]["spec"]["containers"] = [producing.container(topic, "127.0.0.1:9094")]
    spec["template"]["spec"]["volumes"] = producing.volumes("application")
    return made | {"name": "orders", "liveConfig": False}


class Gateway(Release):
    """Two proxies behind one Service, and their certificate's authority."""

    def __init__(self, cluster: Cluster, namespace: str, issuer: Issuer, *hosts: str) -> None:
        super().__init__(cluster, namespace, "front")
        authority = Authority()
        self.authority = authority.certificate
        self.host = f"front.{namespace}.svc"
        self.bootstrap = f"{self.host}:9094"
        issued = authority.issue(hosts=(self.host, *hosts))
        files = {
            "tls.crt": issued.certificate.decode(),
            "tls.key": issued.key.decode(),
            "ca.crt": authority.certificate.decode(),
        }
        cluster.apply(secret("kafka-tls", **files), keys(issuer), namespace=namespace)
