"""Manifests of `deploy/`, and the programs that check them."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from metrics.metric import Metric, MetricType
from metrics.registry import METRICS
from tests.support.certificates import HOSTS, Authority

# Programs that check deploy/

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RUN_SECONDS = 600

_HINTS = {
    "promtool": "apt-get install prometheus",
    "prometheus": "apt-get install prometheus",
    "helm": "go install helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kustomize": "go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1",
    "go": "apt-get install golang",
    "debootstrap": "apt-get install debootstrap",
    "nginx": "apt-get install nginx-light",
}


def find(program: str) -> str:
    """Return a program's path; if it is missing, skip with a hint, or fail in CI."""
    go = os.environ.get("GOBIN") or str(Path.home() / "go/bin")
    path = shutil.which(program, path=os.environ["PATH"] + os.pathsep + go)
    return path or missing(f"no {program} here: {_HINTS[program]}")


def missing(words: str) -> Any:
    """Skips, or fails in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(words)
    pytest.skip(words)


def run(program: str, *arguments: str | Path, check: bool = True) -> str:
    """Run a program; return stdout and stderr. It may fail only with `check=False`."""
    done = subprocess.run(
        [find(program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert (done.returncode == 0) is check, f"{program} {arguments}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


OPERATOR = (
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
"""Go module with the definitions of custom resources, its version and checksum."""


def operator_definition(plural: str) -> Path:
    """File with the definition of a custom resource."""
    directory = _module(*OPERATOR) / "example" / "prometheus-operator-crd"
    return directory / f"monitoring.coreos.com_{plural}.yaml"


def _module(name: str, version: str, digest: str) -> Path:
    found = json.loads(run("go", "mod", "download", "-json", f"{name}@{version}"))
    assert found["Sum"] == digest
    return Path(found["Dir"])


def operator_schema(plural: str) -> dict[str, Any]:
    """Schema of a custom resource of the Prometheus operator that rejects unknown fields."""
    return strict_schema(load(operator_definition(plural)))


def strict_schema(definition: dict[str, Any]) -> dict[str, Any]:
    """Schema of a custom resource that rejects unknown fields."""
    (of_version,) = definition["spec"]["versions"]
    schema: dict[str, Any] = of_version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {}  # Kubernetes' own, as in every object
    strict: dict[str, Any] = _strict(schema)
    return strict


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return made


def newest(kubernetes: ModuleType) -> list[str]:
    """The three newest versions of Kubernetes whose schemas kubernetes-validate has."""
    schemas = Path(str(kubernetes.__file__)).parent / "kubernetes-json-schema"
    found = {re.fullmatch(r"v1\.(\d+)\.0-local-strict", path.name) for path in schemas.iterdir()}
    return [f"1.{minor}" for minor in sorted(int(one[1]) for one in found if one)[-3:]]


def load(path: Path) -> Any:
    """Load a YAML file with one document."""
    return yaml.load(path.read_text(), yaml.CSafeLoader)  # ten times as fast as `safe_load`


def metric_names(promql: str) -> set[str]:
    """Metrics and recorded series that a query reads."""
    return set(re.findall(r"\bkafka_reauth_proxy[:_][a-z0-9_:]+", promql))


# Output of kustomize and Helm, to be compared

Document = dict[str, Any]

CHART = DEPLOY / "helm" / "kafka-reauth-proxy"
OVERLAYS = ("ingress", "egress", "transparent", "gateway")
SHARED = {"ConfigMap", "StatefulSet", "Deployment", "NetworkPolicy"} | {
    "PodDisruptionBudget",
    "PodMonitor",
}
"""Kinds that chart and overlays both create; only overlays create a workload's own Service."""
WORKLOADS = ("StatefulSet", "Deployment")

NO_PRIVILEGE = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The securityContext of every container except the redirecting one."""

_WAYS_OUT = [
    {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
    {"ports": [{"port": 9092}]},
]
_TLS = {"name": "tls", "secretName": "kafka-tls", "mountPath": "/etc/reauth-proxy-tls"}

_VALUES: dict[str, dict[str, Any]] = {
    "ingress": {"secrets": [{**_TLS, "keys": ["tls.crt", "tls.key"]}]},
    "egress": {"networkPolicy": {"egress": _WAYS_OUT}},
    "transparent": {"networkPolicy": {"egress": _WAYS_OUT}, "redirect": {"enabled": True}},
}
"""Chart values that match an overlay's patches."""


def verifying_tokens(config: Document, jwks: str, issuer: str) -> None:
    """Make the proxy authenticate clients in front of brokers without SASL."""
    config["upstream"].pop("security.protocol", None)
    (listener,) = config["listeners"]
    listener |= {
        "sasl.termination": "proxy",
        "sasl.enabled.mechanisms": ["OAUTHBEARER"],
        "sasl.oauthbearer.jwks.endpoint.url": jwks,
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": issuer,
    }


def of_text(text: str) -> list[Document]:
    """Parse the documents that a tool printed."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def kustomized(overlay: str) -> list[Document]:
    """Documents that `kubectl apply -k` would send."""
    return of_text(run("kustomize", "build", DEPLOY / "kustomize" / "overlays" / overlay))


def values(overlay: str) -> dict[str, Any]:
    """Chart values for the same workload and configuration."""
    directory = DEPLOY / "kustomize" / "overlays"
    config = {"config": load(directory / overlay / "proxy.yaml"), "name": "reauth-proxy"}
    if overlay == "gateway":
        return config | {"mode": "gateway", "secrets": _VALUES["ingress"]["secrets"]}
    source = directory / ("ingress" if overlay == "ingress" else "egress")
    files = source.glob("*.yaml")
    documents = [document for file in files for document in _of_any_kind(file)]
    (workload,) = (
        one for one in documents if one.get("kind") in WORKLOADS and "labels" in one["metadata"]
    )
    return {
        **config,
        "workload": {
            "kind": workload["kind"],
            "name": workload["metadata"]["name"],
            "spec": workload["spec"],
        },
        **_VALUES[overlay],
    }


def _of_any_kind(file: Path) -> list[Document]:
    return [one for one in yaml.safe_load_all(file.read_text()) if isinstance(one, dict)]


def templated(given: dict[str, Any], *, check: bool = True, operator: bool = True) -> str:
    """Output of `helm template` for these values, for a cluster with the Prometheus operator."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(given, file)
        file.flush()
        # A Helm that is not a release build assumes a very old cluster.
        options = ["--values", file.name, "--kube-version", "1.34.0"]
        options += ["--api-versions", "monitoring.coreos.com/v1"] if operator else []
        return run("helm", "template", "release", CHART, *options, check=check)


@cache
def helm(overlay: str) -> list[Document]:
    """Documents that `helm install` would send."""
    return of_text(templated(values(overlay)))


_HASH = re.compile(r"reauth-proxy-[0-9a-z]{10}")


def normal(documents: list[Document], kinds: Collection[str]) -> dict[str, Document]:
    """Normalized documents by kind, without hashes in names and YAML layout."""
    found = {}
    for document in documents:
        document = json.loads(_HASH.sub("reauth-proxy-HASH", json.dumps(document)))
        _drop_standard_labels(document)
        if document["kind"] in {"ConfigMap", "PersistentVolumeClaim"}:
            document["metadata"].pop("annotations", None)  # those of kustomize are never deleted
        if document["kind"] == "ConfigMap":
            document["data"] = {"proxy.yaml": yaml.safe_load(document["data"]["proxy.yaml"])}
        found[document["kind"]] = document
    return {kind: found[kind] for kind in sorted(found) if kind in kinds}


def _drop_standard_labels(document: Document) -> None:
    """Remove Helm's standard labels, also from pods."""
    labels = document["metadata"].pop("labels", {})
    own = {name: value for name, value in labels.items() if "/" not in name}
    if own:
        document["metadata"]["labels"] = own
    for key in ("jobTemplate", "template"):
        spec = document.get("spec", {}).get(key)
        if spec is not None:
            _drop_standard_labels({"metadata": {}} | spec)


def of_kind(documents: list[Document], *kinds: str) -> Document:
    """The only document of a kind."""
    (document,) = (one for one in documents if one["kind"] in kinds)
    return document


def pod(documents: list[Document]) -> Document:
    """The workload's pod spec."""
    spec: Document = of_kind(documents, *WORKLOADS)["spec"]["template"]["spec"]
    return spec


def container(documents: list[Document], name: str = "reauth-proxy") -> Document:
    """One of the pod's containers."""
    spec = pod(documents)
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    (found,) = (one for one in containers if one["name"] == name)
    assert isinstance(found, dict)
    return found


def configuration(documents: list[Document]) -> str:
    """The text of the proxy's configuration file."""
    text: str = of_kind(documents, "ConfigMap")["data"]["proxy.yaml"]
    return text


def laid_out(documents: list[Document], root: Path) -> Path:
    """Create the container's mounts as directories; return the configuration with their paths.

    A path outside of them would be on the read-only root.
    """
    config = configuration(documents)
    for mount in container(documents)["volumeMounts"]:
        directory = root / mount["mountPath"].lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        config = re.sub(rf"(?<=[ :]){mount['mountPath']}(?=[/\n])", str(directory), config)
    assert not re.search(r"[ :]/(etc|var)/", config)
    advertised = re.findall(r"advertised\.host: (\S+)", config)
    certificate = Authority().issue(hosts=(*HOSTS, *advertised))
    for name, pem in (("tls.crt", certificate.certificate), ("tls.key", certificate.key)):
        if (root / "etc/reauth-proxy-tls").exists():
            (root / "etc/reauth-proxy-tls" / name).write_bytes(pem)
    (root / "etc/reauth-proxy/proxy.yaml").write_text(config)
    return root / "etc/reauth-proxy/proxy.yaml"


RULES = sorted((DEPLOY / "prometheus").glob("*.rules.yaml"))


def _rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in load(path)["groups"] for rule in group["rules"]]


RECORDED = {rule["record"] for rule in _rules() if "record" in rule}
(_DOWN,) = (rule["expr"] for rule in _rules() if rule.get("alert") == "ReauthProxyDown")
JOBS_OF_PROXIES = re.compile(_DOWN.split('job=~"')[1].split('"')[0])
"""Job names in the alert for a proxy that is down."""


def series_of(metric: Metric) -> set[str]:
    """Names of a metric's series."""
    if metric.type in (MetricType.HISTOGRAM, MetricType.GAUGE_HISTOGRAM):
        return {f"{metric.name}_{part}" for part in ("bucket", "sum", "count", "gsum", "gcount")}
    return {metric.name}


SERIES = set().union(*map(series_of, METRICS)) | RECORDED
