"""Template of the sidecar: the pod patches that the manifests have, too."""

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import yaml

Object = dict[str, Any]
"""An object of the Kubernetes API, or a part of one."""

SIDECAR: Final = "reauth-proxy"
"""Name of the sidecar's container."""
HTTP: Final = "reauth-metrics"
"""Name of the sidecar's port for probes and metrics."""
REDIRECT: Final = "reauth-redirect"
"""Name of the init container that redirects connections (`transparent`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images of the containers that are added."""

    proxy: str | None = None
    """Image of the sidecar; None: the template's."""
    redirect: str | None = None
    """Image of the init container that redirects connections; None: the template's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Parts of a pod that the webhook adds."""

    sidecar: Object
    redirect: Object
    volumes: list[Object]
    labels: Mapping[str, str]
    grace_seconds: int
    """Least `terminationGracePeriodSeconds` of the pod, in seconds."""

    @property
    def digest(self) -> str:
        """Identity of the template, by which pods show which one they were made from."""
        whole = [self.sidecar, self.redirect, self.volumes, dict(self.labels), self.grace_seconds]
        text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load(images: Images) -> Template:
    """Return the template of this version, with these images."""
    whole = _read("sidecar.yaml")
    pod = whole["spec"]
    (sidecar,) = pod["initContainers"]
    redirect, _ = _read("redirect.yaml")["spec"]["initContainers"]
    return Template(
        sidecar=sidecar | ({"image": images.proxy} if images.proxy else {}),
        redirect=redirect | ({"image": images.redirect} if images.redirect else {}),
        volumes=pod["volumes"],
        labels=whole["metadata"]["labels"],
        grace_seconds=pod["terminationGracePeriodSeconds"],
    )


def _read(name: str) -> Object:
    text = resources.files(__package__).joinpath(name).read_text()
    template: Object = yaml.safe_load(text)["spec"]["template"]
    return copy.deepcopy(template)
