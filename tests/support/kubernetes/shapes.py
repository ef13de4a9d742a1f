"""Pods of many shapes, and the admission policies' results."""

from pathlib import Path
from typing import Any, Final

from tests.support import deploy
from tests.support.kubernetes.injection import shipped

Object = dict[str, Any]

INJECT: Final = "reauth-proxy.io/inject"
CONFIG: Final = "reauth-proxy.io/config"

CONTAINER: Final[Object] = {"name": "application", "image": "docker.io/library/machine:1"}
TEMPLATE: Final = deploy.of_kind(shipped(), "SidecarTemplate")["spec"]
SIDECAR: Final[Object] = TEMPLATE["sidecar"]
UNMOUNTED: Final = SIDECAR | {"volumeMounts": []}


def pod(annotations: Object | None = None, labels: Object | None = None, **spec: Any) -> Object:
    """A pod of one container."""
    metadata: Object = {"name": "shape"}
    if annotations is not None:
        metadata["annotations"] = annotations
    if labels is not None:
        metadata["labels"] = labels
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [CONTAINER], **spec},
    }


EGRESS: Final = {INJECT: "egress"}


def _shaped(*, sidecar: Object | None = None, **given: Any) -> Object:
    """A pod of `shapes.yaml`; `sidecar` is a copy of the proxy's container with other fields."""
    if sidecar is not None:
        given["initContainers"] = [UNMOUNTED | sidecar]
    return pod(**given)


_SHAPES: Final = deploy.load(Path(__file__).with_suffix(".yaml"))
INJECTED: Final[dict[str, Object]] = {k: _shaped(**one) for k, one in _SHAPES["injected"].items()}
"""Pods that get the sidecar."""
UNCHANGED: Final[dict[str, Object]] = {k: _shaped(**one) for k, one in _SHAPES["unchanged"].items()}
"""Pods that are not changed."""
REFUSED: Final[dict[str, tuple[Object, str]]] = {
    name: (_shaped(**one["pod"]), one["words"]) for name, one in _SHAPES["refused"].items()
}
"""Refused pods, and words of the reason."""
