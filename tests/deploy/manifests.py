"""What kustomize and Helm make of deploy/, as documents to be compared and judged."""

import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import DEPLOY, load, run

Document = dict[str, Any]

CHART = DEPLOY / "helm" / "kafka-reauth-proxy"
OVERLAYS = ("ingress", "egress", "transparent")
SHARED = {"ConfigMap", "StatefulSet", "Deployment", "NetworkPolicy"} | {
    "PodDisruptionBudget",
    "PodMonitor",
}
"""Kinds that both make; the workload's own Service is nobody's but the overlay's."""
WORKLOADS = ("StatefulSet", "Deployment")
_HASH = re.compile(r"reauth-proxy-[0-9a-z]{10}")

_WAYS_OUT = [
    {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
    {"ports": [{"port": 9092}]},
    {"ports": [{"port": 443}]},
]
_TLS = {"name": "tls", "secretName": "kafka-tls", "mountPath": "/etc/reauth-proxy-tls"}

_VALUES: dict[str, dict[str, Any]] = {
    "ingress": {"secrets": [{**_TLS, "keys": ["tls.crt", "tls.key"]}]},
    "egress": {"networkPolicy": {"egress": _WAYS_OUT}},
    "transparent": {"networkPolicy": {"egress": _WAYS_OUT}, "redirect": {"enabled": True}},
}
"""What an overlay's patches say, as the chart's values."""


def of_text(text: str) -> list[Document]:
    """The documents of what a tool wrote."""
    return [document for document in yaml.safe_load_all(text) if document]


@cache
def kustomized(overlay: str) -> list[Document]:
    """What `kubectl apply -k` would send."""
    return of_text(run("kustomize", "build", DEPLOY / "kustomize" / "overlays" / overlay))


def values(overlay: str) -> dict[str, Any]:
    """The chart's values for the same workload and the same configuration."""
    directory = DEPLOY / "kustomize" / "overlays"
    source = directory / ("ingress" if overlay == "ingress" else "egress")
    files = source.glob("*.yaml")
    documents = [document for file in files for document in _of_any_kind(file)]
    (workload,) = (
        one for one in documents if one.get("kind") in WORKLOADS and "labels" in one["metadata"]
    )
    return {
        "config": load(directory / overlay / "proxy.yaml"),
        "workload": {
            "kind": workload["kind"],
            "name": workload["metadata"]["name"],
            "spec": workload["spec"],
        },
        **_VALUES[overlay],
    }


def _of_any_kind(file: Path) -> list[Document]:
    return [one for one in yaml.safe_load_all(file.read_text()) if isinstance(one, dict)]


def templated(given: dict[str, Any], *, check: bool = True) -> str:
    """What `helm template` writes for these values."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(given, file)
        file.flush()
        # A Helm that was not built as a release takes the cluster for an ancient one.
        options = ["--values", file.name, "--kube-version", "1.34.0"]
        return run("helm", "template", "release", CHART, *options, check=check)


@cache
def helm(overlay: str) -> list[Document]:
    """What `helm install` would send."""
    return of_text(templated(values(overlay)))


def normal(documents: list[Document]) -> dict[str, Document]:
    """By kind, without what may differ: the hash of a ConfigMap's name, the layout of its YAML."""
    found = {}
    for document in documents:
        document = yaml.safe_load(_HASH.sub("reauth-proxy-HASH", yaml.safe_dump(document)))
        if document["kind"] == "ConfigMap":
            document["metadata"].pop("annotations", None)  # kustomize's are never deleted
            document["data"] = {"proxy.yaml": yaml.safe_load(document["data"]["proxy.yaml"])}
        found[document["kind"]] = document
    return {kind: found[kind] for kind in sorted(found) if kind in SHARED}


def of_kind(documents: list[Document], *kinds: str) -> Document:
    """The only document of a kind."""
    (document,) = (one for one in documents if one["kind"] in kinds)
    return document


def pod(documents: list[Document]) -> Document:
    """The workload's pod spec."""
    spec: Document = of_kind(documents, *WORKLOADS)["spec"]["template"]["spec"]
    return spec


def container(documents: list[Document], name: str = "reauth-proxy") -> Document:
    """One of the pod's init containers."""
    (found,) = (one for one in pod(documents)["initContainers"] if one["name"] == name)
    assert isinstance(found, dict)
    return found


def configuration(documents: list[Document]) -> str:
    """The text of the proxy's configuration file."""
    text: str = of_kind(documents, "ConfigMap")["data"]["proxy.yaml"]
    return text
