"""Admission reviews, by what is answered to bytes."""

import base64
import json
from typing import Any

import pytest

from proxy.kubernetes.admission import NotAReviewError, answer
from proxy.kubernetes.template import Images, load
from tests.support.kubernetes import shapes

TEMPLATE = load(Images(proxy="registry.example.com/proxy:7"))


def response(body: bytes) -> Any:
    answered = json.loads(answer(body, TEMPLATE))
    assert answered["apiVersion"] == "admission.k8s.io/v1"
    assert answered["kind"] == "AdmissionReview"
    assert answered["response"]["uid"] == "705ab4f5"
    return answered["response"]


def test_a_pod_is_patched() -> None:
    given = response(shapes.review(shapes.pod(shapes.EGRESS)))
    assert given["allowed"] is True
    assert given["patchType"] == "JSONPatch"
    (inits,) = (
        one["value"]
        for one in json.loads(base64.b64decode(given["patch"]))
        if one["path"] == "/spec/initContainers"
    )
    assert inits[0]["image"] == "registry.example.com/proxy:7"


def test_a_pod_that_asks_for_nothing_is_let_through() -> None:
    assert response(shapes.review(shapes.pod())) == {"uid": "705ab4f5", "allowed": True}


def test_a_refusal_is_a_sentence() -> None:
    given = response(shapes.review(shapes.pod(shapes.EGRESS, hostNetwork=True)))
    assert given["allowed"] is False
    assert given["status"]["code"] == 422
    assert given["status"]["message"].startswith("reauth-proxy: hostNetwork: the proxy's ports")


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"subResource": "ephemeralcontainers"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": None},
    ],
)
def test_nothing_but_new_pods_is_looked_at(request_: dict[str, Any]) -> None:
    """As of an ephemeral container that joins a pod which runs."""
    pod = shapes.pod(shapes.EGRESS, hostNetwork=True)
    assert response(shapes.review(pod, **request_)) == {"uid": "705ab4f5", "allowed": True}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"apiVersion": "admission.k8s.io/v1"}',
        b'{"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "a"}}',
        b'{"apiVersion": "admission.k8s.io/v1", "request": {"uid": 7}}',
    ],
)
def test_anything_else_is_no_review(body: bytes) -> None:
    with pytest.raises(NotAReviewError):
        answer(body, TEMPLATE)


@pytest.mark.parametrize(
    "pod",
    [
        [],
        "pod",
        {"metadata": 7},
        {"metadata": {"labels": []}},
        shapes.pod(shapes.EGRESS, containers=[{"name": []}]),
        shapes.pod(shapes.EGRESS, containers=[{"ports": [{"containerPort": {}}]}]),
        shapes.pod(shapes.EGRESS, initContainers=[{"name": {}}]),
        shapes.pod(shapes.EGRESS, volumes=[{"name": []}]),
        shapes.pod(shapes.EGRESS, terminationGracePeriodSeconds="long"),
        shapes.pod({"reauth-proxy.io/inject": "egress", "reauth-proxy.io/secrets": 7}),
    ],
)
def test_what_is_no_pod_is_refused(pod: Any) -> None:
    assert response(shapes.review(pod))["allowed"] is False
