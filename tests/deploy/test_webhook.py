"""The webhook's own manifests, and its sidecar beside that of the others."""

import os
import re
from pathlib import Path

import pytest
import yaml

from proxy.kubernetes.injection import HTTP_PORT, INJECTED, patch
from proxy.kubernetes.template import Images, load
from tests.support import deploy
from tests.support.deploy import DEPLOY, ROOT
from tests.support.kubernetes import shapes
from tests.support.kubernetes.shapes import patched
from tests.support.kubernetes.webhooks import shipped


def test_the_template_is_the_manifests() -> None:
    """One meaning for kustomize and the webhook."""
    package = DEPLOY.parent / "proxy" / "kubernetes"
    base, transparent = DEPLOY / "kustomize/base", DEPLOY / "kustomize/overlays/transparent"
    assert (package / "sidecar.yaml").read_text() == (base / "sidecar.yaml").read_text()
    assert (package / "redirect.yaml").read_text() == (transparent / "redirect.yaml").read_text()
    injected = patched(shapes.pod(shapes.EGRESS), patch(shapes.pod(shapes.EGRESS), load(Images())))
    sidecar = deploy.container(deploy.kustomized("egress"))
    assert injected["spec"]["initContainers"] == [sidecar]


def test_the_webhooks_manifests_know_what_the_program_knows() -> None:
    """Paths, names and ports by which the API server, the Service and the program meet."""
    documents = shipped("webhook")
    configuration = deploy.of_kind(documents, "MutatingWebhookConfiguration")
    (webhook,) = configuration["webhooks"]
    service = deploy.of_kind(documents, "Service")
    asked = webhook["clientConfig"]["service"]
    assert (asked["name"], asked["namespace"]) == (
        service["metadata"]["name"],
        service["metadata"]["namespace"],
    )
    assert webhook["failurePolicy"] == "Fail"
    assert "reauth-proxy.io/inject" in webhook["matchConditions"][0]["expression"]


def test_with_cert_manager_it_has_no_rights() -> None:
    """The Certificate, its Secret, the arguments and the annotation name the same."""
    documents = shipped("webhook-cert-manager")
    kinds = {one["kind"] for one in documents}
    assert not kinds & {"Secret", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    names = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    service = deploy.of_kind(documents, "Service")["metadata"]
    certificate = names["Certificate", "reauth-proxy-webhook"]["spec"]
    assert certificate["dnsNames"] == [f"{service['name']}.{service['namespace']}.svc"]
    assert ("Issuer", certificate["issuerRef"]["name"]) in names
    authority = names["Issuer", certificate["issuerRef"]["name"]]["spec"]["ca"]["secretName"]
    assert names["Certificate", "reauth-proxy-webhook-authority"]["spec"]["secretName"] == authority
    pod = deploy.pod(documents)
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    secrets = {one["name"]: one["secret"] for one in pod["volumes"] if "secret" in one}
    (mount,) = (one for one in container["volumeMounts"] if one["name"] in secrets)
    assert secrets[mount["name"]]["secretName"] == certificate["secretName"]
    assert container["args"][-2:] == [
        f"--certificate={mount['mountPath']}/tls.crt",
        f"--key={mount['mountPath']}/tls.key",
    ]
    annotations = deploy.of_kind(documents, "MutatingWebhookConfiguration")["metadata"]
    source = f"{service['namespace']}/reauth-proxy-webhook"
    assert annotations["annotations"]["cert-manager.io/inject-ca-from"] == source


@pytest.mark.parametrize("directory", ["webhook", "webhook-cert-manager"])
def test_both_variants_run_the_same(directory: str) -> None:
    """Images, and their names in the arguments."""
    (container,) = deploy.pod(shipped(directory))["containers"]
    (other,) = deploy.pod(shipped("webhook"))["containers"]
    assert container["args"][:4] == other["args"][:4]
    assert container["image"] == other["image"]


def documented(kind: str) -> deploy.Document:
    """The only example of a kind in docs/kubernetes.md."""
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    blocks = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (found,) = (one for one in blocks if one["kind"] == kind)
    made: deploy.Document = found
    return made


def test_the_documented_monitor_finds_what_is_injected() -> None:
    """By label, port and annotation, and its job is one that the alerts know."""
    monitor = documented("PodMonitor")["spec"]
    pod = patched(shapes.pod(shapes.EGRESS), patch(shapes.pod(shapes.EGRESS), load(Images())))
    (label,) = monitor["selector"]["matchExpressions"]
    assert label["key"] in pod["metadata"]["labels"]
    (scrape,) = monitor["podMetricsEndpoints"]
    (sidecar,) = pod["spec"]["initContainers"]
    assert scrape["port"] in {port["name"] for port in sidecar["ports"]}
    kept, job = scrape["relabelings"]
    (source,) = kept["sourceLabels"]
    annotation = re.sub("[^a-z]", "_", INJECTED)  # as Prometheus names it
    assert source == f"__meta_kubernetes_pod_annotationpresent_{annotation}"
    assert INJECTED in pod["metadata"]["annotations"]
    assert deploy.JOBS_OF_PROXIES.fullmatch(job["replacement"].replace("$1", "shop"))


def test_images_of_a_registry_are_both_pulled_and_added(tmp_path: Path) -> None:
    """The documented overlay changes nothing else."""
    overlay = documented("Kustomization")
    (resource,) = overlay["resources"]
    overlay["resources"] = [os.path.relpath(ROOT / resource, tmp_path.resolve())]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    made = deploy.run("kustomize", "build", tmp_path)
    plain = deploy.run("kustomize", "build", ROOT / resource)
    registry = "registry.example.com/"
    assert made.count(registry) == 3
    assert deploy.of_text(made.replace(registry, "")) == deploy.of_text(plain)


def test_the_guide_for_strimzi_is_about_what_there_is() -> None:
    """A pod with its annotations, and with Strimzi's port of metrics, gets the sidecar."""
    connect = documented("KafkaConnect")
    annotations = connect["spec"]["template"]["pod"]["metadata"]["annotations"]
    metrics = shapes.CONTAINER | {"ports": [{"name": "tcp-prometheus", "containerPort": 9404}]}
    pod = shapes.pod(annotations, containers=[metrics])
    (sidecar,) = patched(pod, patch(pod, load(Images())))["spec"]["initContainers"]
    ports = [one["containerPort"] for one in sidecar["ports"]]
    assert ports == [9094, int(annotations[HTTP_PORT])]
    assert connect["spec"]["bootstrapServers"] == f"127.0.0.1:{ports[0]}"
