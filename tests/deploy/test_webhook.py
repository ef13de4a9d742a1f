"""The webhook's own manifests, and its sidecar beside that of the others."""

from proxy.kubernetes.injection import patch
from proxy.kubernetes.template import Images, load
from tests.support import deploy
from tests.support.deploy import DEPLOY
from tests.support.kubernetes import shapes
from tests.support.kubernetes.shapes import patched


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
    documents = deploy.of_text(deploy.run("kustomize", "build", DEPLOY / "kustomize/webhook"))
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
