"""The admission policies: the same from both tools, and the sidecar that the manifests have."""

import copy
from typing import Any

from tests.support import deploy
from tests.support.deploy import Document, kustomized
from tests.support.kubernetes.injection import shipped

VALUES: Document = {
    "name": "reauth-proxy",
    "mode": "report",
    "report": {"events": "kafka:events", "bootstrapServers": "kafka:9092"},
    "injection": {"enabled": True},
}


def template() -> Document:
    spec: Document = deploy.of_kind(shipped(), "SidecarTemplate")["spec"]
    return spec


def test_the_template_is_the_manifests() -> None:
    """One sidecar, whether an overlay or a policy adds it."""
    found, egress = template(), deploy.pod(kustomized("egress"))
    assert [found["sidecar"]] == egress["initContainers"]
    assert found["redirect"] == deploy.pod(kustomized("transparent"))["initContainers"][0]
    volumes = {one["name"]: one for one in egress["volumes"]}
    assert all(volumes.pop(one["name"]) == one for one in found["volumes"])
    assert "reauth-proxy-config" in volumes
    assert found["terminationGracePeriodSeconds"] == egress["terminationGracePeriodSeconds"]


def test_positions_that_the_policy_replaces_are_the_templates() -> None:
    """CEL finds a port and variables by their places."""
    found = template()
    assert found["sidecar"]["ports"][1]["name"] == "reauth-metrics"
    names = [one["name"] for one in found["redirect"]["env"]]
    assert names[1:3] == ["PROXY_UID", "BROKER_PORTS"]


def test_the_chart_makes_the_same() -> None:
    def by_name(documents: list[Document]) -> dict[tuple[str, str], Any]:
        kinds = {one["kind"] for one in shipped()}
        made = {}
        for one in copy.deepcopy(documents):
            if one["kind"] in kinds:
                one["metadata"].pop("annotations", None)
                made[one["kind"], one["metadata"]["name"]] = one
        return made

    rendered = deploy.of_text(deploy.templated(VALUES))
    assert by_name(rendered) == by_name(shipped())
    without = deploy.of_text(deploy.templated(VALUES | {"injection": {"enabled": False}}))
    assert by_name(without) == {}


def test_the_chart_names_its_own_images() -> None:
    values = VALUES | {"image": {"repository": "registry.example/proxy", "tag": "1.2.3"}}
    rendered = deploy.of_text(deploy.templated(values))
    spec = deploy.of_kind(rendered, "SidecarTemplate")["spec"]
    assert spec["sidecar"]["image"] == "registry.example/proxy:1.2.3"


def test_a_failure_refuses_the_pod() -> None:
    for one in shipped():
        if one["kind"].endswith("AdmissionPolicy"):
            assert one["spec"]["failurePolicy"] == "Fail"
