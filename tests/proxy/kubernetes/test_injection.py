"""What the webhook makes of pods of many shapes."""

import copy
from typing import Any

import pytest

from proxy.kubernetes.drift import drifted
from proxy.kubernetes.injection import INJECTED, RefusedError, is_current, patch
from proxy.kubernetes.template import HTTP, Images, load
from tests.support.kubernetes import shapes
from tests.support.kubernetes.shapes import patched

TEMPLATE = load(Images())


@pytest.mark.parametrize("shape", shapes.INJECTED)
def test_a_pod_that_asks_for_the_sidecar_has_it(shape: str) -> None:
    before = shapes.INJECTED[shape]
    after = patched(before, patch(before, TEMPLATE))
    inits = after["spec"]["initContainers"]
    added = ["reauth-redirect", "reauth-proxy"] if "redirected" in shape else ["reauth-proxy"]
    assert [one["name"] for one in inits[: len(added)]] == added
    assert inits[len(added) :] == before["spec"].get("initContainers", [])
    sidecar = inits[len(added) - 1]
    user = {"runAsUser": 60092} if "redirected" in shape else {}
    assert sidecar["securityContext"] == TEMPLATE.sidecar["securityContext"] | user
    volumes = {one["name"] for one in after["spec"]["volumes"]}
    assert {one["name"] for one in sidecar["volumeMounts"]} <= volumes
    assert after["metadata"]["labels"]["reauth-proxy"] == "reauth-proxy"
    assert after["metadata"]["annotations"][INJECTED] == TEMPLATE.digest
    own_end = before["spec"].get("terminationGracePeriodSeconds", 30)
    assert after["spec"]["terminationGracePeriodSeconds"] >= max(120, own_end + 55)
    assert after["spec"]["containers"] == before["spec"]["containers"]


@pytest.mark.parametrize("shape", shapes.INJECTED)
def test_a_second_look_changes_nothing(shape: str) -> None:
    """As by a webhook that is registered twice, or is asked again after others."""
    before = shapes.INJECTED[shape]
    after = patched(before, patch(before, TEMPLATE))
    assert patch(after, TEMPLATE) == []
    after["spec"]["initContainers"].insert(0, {"name": "mesh"})
    sidecar = next(one for one in after["spec"]["initContainers"] if one["name"] == "reauth-proxy")
    sidecar["terminationMessagePath"] = "/dev/termination-log"  # as the API server fills in
    sidecar["volumeMounts"].append({"name": "token", "mountPath": "/var/run/secrets"})
    assert patch(after, TEMPLATE) == []


@pytest.mark.parametrize("shape", shapes.UNCHANGED)
def test_other_pods_stay_as_they_are(shape: str) -> None:
    assert patch(shapes.UNCHANGED[shape], TEMPLATE) == []


def test_a_static_pod_stays_as_it_is() -> None:
    """Its mirror is made when it runs already, and a change would be refused."""
    mirror = shapes.pod(shapes.EGRESS | {"kubernetes.io/config.mirror": "1"}, hostNetwork=True)
    assert patch(mirror, TEMPLATE) == []


@pytest.mark.parametrize("shape", shapes.REFUSED)
def test_what_cannot_work_is_refused_with_a_reason(shape: str) -> None:
    pod, words = shapes.REFUSED[shape]
    with pytest.raises(RefusedError) as refused:
        patch(pod, TEMPLATE)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["egress\n", {}, ["egress"], 7, None])
def test_no_value_raises_anything_else(value: Any) -> None:
    """The API server has checked types, but others may reach the port."""
    for place in ("annotations", "labels"):
        with pytest.raises(RefusedError):
            patch({"metadata": {place: {"reauth-proxy.io/inject": value}}}, TEMPLATE)
    with pytest.raises(RefusedError):
        patch({"metadata": {"annotations": shapes.EGRESS}, "spec": value or 1}, TEMPLATE)


def test_annotations_are_put_in_place() -> None:
    def of(shape: str) -> dict[str, Any]:
        pod = shapes.INJECTED[shape]
        spec: dict[str, Any] = patched(pod, patch(pod, TEMPLATE))["spec"]
        return spec

    config = next(v for v in of("a configuration by name")["volumes"] if "configMap" in v)
    assert config["configMap"] == {"name": "orders-proxy"}
    spec = of("two Secrets")
    secrets = {v["name"]: v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
    mounts = {
        secrets[mount["name"]]: mount["mountPath"]
        for mount in spec["initContainers"][0]["volumeMounts"]
        if mount["name"] in secrets
    }
    assert mounts == {"a": "/etc/a", "b": "/etc/b"}
    redirect = of("redirected from other ports")["initContainers"][0]
    assert {"name": "BROKER_PORTS", "value": "9092,9094"} in redirect["env"]
    sidecar = of("the proxy's usual port of its own")["initContainers"][0]
    assert {"name": HTTP, "containerPort": 9405} in sidecar["ports"]


@pytest.mark.parametrize(
    "change",
    [
        {"command": ["sleep"]},
        {"args": [*TEMPLATE.sidecar["args"], "--more"]},
        {"env": [{"name": "LD_PRELOAD", "value": "/x"}]},
        {"envFrom": [{"configMapRef": {"name": "x"}}]},
        {"lifecycle": {**TEMPLATE.sidecar["lifecycle"], "postStart": {"exec": {"command": ["x"]}}}},
        {"image": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_container_that_runs_something_else_is_not_the_sidecar(change: dict[str, Any]) -> None:
    pod = shapes.pod(shapes.EGRESS)
    injected = patched(pod, patch(pod, TEMPLATE))
    injected["spec"]["initContainers"][0] |= change
    assert not is_current(injected, TEMPLATE)
    with pytest.raises(RefusedError):
        patch(injected, TEMPLATE)


def test_drift_is_shown() -> None:
    """Pods of an older template, of none, and with annotations that would be refused now."""
    wanted = shapes.pod(shapes.EGRESS)
    current = patched(wanted, patch(wanted, TEMPLATE))
    older = patched(wanted, patch(wanted, load(Images(proxy="kafka-reauth-proxy:0.0.9"))))
    refused = shapes.REFUSED["no such mode"][0]
    pods = []
    for name, pod in (("new", current), ("old", older), ("none", wanted), ("bad", refused)):
        pods.append(copy.deepcopy(pod))
        pods[-1]["metadata"] |= {"namespace": "shop", "name": name}
    pods.append(shapes.pod())
    assert is_current(current, TEMPLATE)
    found = {(one.namespace, one.name): one.state for one in drifted(pods, TEMPLATE)}
    assert found.keys() == {("shop", "old"), ("shop", "none"), ("shop", "bad")}
    assert found["shop", "old"] == "another one"
    assert found["shop", "none"] == "none"
    assert found["shop", "bad"].startswith("would be refused: reauth-proxy.io/inject: must be")
