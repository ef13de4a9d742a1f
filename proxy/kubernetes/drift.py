"""Drift of pods: those that have another sidecar than they would get now; pure."""

from collections.abc import Iterable
from typing import NamedTuple

from proxy.kubernetes.injection import RefusedError, is_current, mapping
from proxy.kubernetes.template import Object, Template


class Drifted(NamedTuple):
    """A pod, and what is wrong with its sidecar."""

    namespace: str
    name: str
    state: str


def drifted(pods: Iterable[Object], template: Template) -> list[Drifted]:
    """Return the pods that ask for the sidecar and do not have this one."""
    found = []
    for pod in pods:
        metadata = mapping(pod, "metadata")
        try:
            current = is_current(pod, template)
        except RefusedError as error:
            found.append(_drifted(metadata, f"would be refused: {error}"))
            continue
        if current is False:
            statuses = mapping(pod, "spec").get("initContainers") or []
            has_one = any(one.get("name") == template.sidecar["name"] for one in statuses)
            found.append(_drifted(metadata, "another one" if has_one else "none"))
    return found


def _drifted(metadata: Object, state: str) -> Drifted:
    return Drifted(str(metadata.get("namespace", "")), str(metadata.get("name", "")), state)
