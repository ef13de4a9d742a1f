"""Injection of the sidecar into a pod; pure.

A pod asks for it by a label or an annotation, and may say more by annotations:

    reauth-proxy.io/inject: egress | ingress | transparent
    reauth-proxy.io/config: the ConfigMap with proxy.yaml, in the pod's namespace (reauth-proxy)
    reauth-proxy.io/secrets: Secrets and where they are mounted, NAME:PATH,NAME:PATH
    reauth-proxy.io/broker-ports: ports of brokers that are redirected (9092; `transparent` only)
    reauth-proxy.io/http-port: port of http.address in proxy.yaml (9404)
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from proxy.errors import ProxyError
from proxy.kubernetes.template import HTTP, SIDECAR, Object, Template

PREFIX: Final = "reauth-proxy.io/"
INJECT: Final = f"{PREFIX}inject"
CONFIG: Final = f"{PREFIX}config"
SECRETS: Final = f"{PREFIX}secrets"
BROKER_PORTS: Final = f"{PREFIX}broker-ports"
HTTP_PORT: Final = f"{PREFIX}http-port"
INJECTED: Final = f"{PREFIX}injected"
"""Annotation with the digest of the template that a pod was made from."""

NOT_WANTED: Final = frozenset({"false", "disabled", ""})
"""Values of `reauth-proxy.io/inject` of pods that stay as they are."""
_MIRROR: Final = "kubernetes.io/config.mirror"
_KNOWN: Final = frozenset({INJECT, CONFIG, SECRETS, BROKER_PORTS, HTTP_PORT, INJECTED})
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._-]+)+")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")
_PORTS: Final = re.compile(r"[0-9]{1,5}(,[0-9]{1,5})*")
_LARGEST_PORT: Final = 65_535
_OWN_SECONDS: Final = 55
"""Seconds that the sidecar's own end takes at most: preStop, and by default `shutdown.drain.ms` and
`events.deliver.drain.ms`, each with 5 s on top."""


class Mode(StrEnum):
    """Position of the sidecar, as the overlays have them."""

    INGRESS = "ingress"
    EGRESS = "egress"
    TRANSPARENT = "transparent"


class RefusedError(ProxyError):
    """The pod cannot have the sidecar; the text says why, and what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a pod asks for."""

    mode: Mode
    config: str
    """Name of the ConfigMap with `proxy.yaml`."""
    secrets: tuple[tuple[str, str], ...]
    """Names of Secrets, and the directories that they are mounted at."""
    broker_ports: str | None
    """Ports of brokers, with commas in between; None: those of the template."""
    http_port: int | None
    """Port of probes and metrics, for pods whose own is the template's; None: the template's."""


def wish_of(pod: Object) -> Wish | None:
    """Read what a pod asks for; None: nothing, or it is a static pod, which cannot be changed."""
    annotations = mapping(mapping(pod, "metadata"), "annotations")
    labels = mapping(mapping(pod, "metadata"), "labels")
    if _MIRROR in annotations:
        return None
    wanted = annotations.get(INJECT, labels.get(INJECT, ""))
    if isinstance(wanted, str) and wanted in NOT_WANTED:
        return None
    if INJECT in annotations and INJECT in labels and annotations[INJECT] != labels[INJECT]:
        raise RefusedError(f"{INJECT}: label and annotation differ; keep one of them")
    for name in annotations:
        if name.startswith(PREFIX) and name not in _KNOWN:
            raise RefusedError(f"{_shown(name)}: no such annotation; known are {_listed(_KNOWN)}")
    if not isinstance(wanted, str) or wanted not in tuple(Mode):
        raise RefusedError(f"{INJECT}: must be one of {_listed(Mode)}, got {_shown(wanted)}")
    mode = Mode(wanted)
    if BROKER_PORTS in annotations and mode is not Mode.TRANSPARENT:
        raise RefusedError(f"{BROKER_PORTS}: goes with {INJECT}: transparent alone")
    return Wish(
        mode=mode,
        config=_matching(annotations, CONFIG, _NAME, "the name of a ConfigMap") or "reauth-proxy",
        secrets=tuple(_secrets(annotations.get(SECRETS, ""))),
        broker_ports=_matching(annotations, BROKER_PORTS, _PORTS, "ports, with commas in between"),
        http_port=_http_port(annotations),
    )


def _http_port(annotations: Mapping[str, Any]) -> int | None:
    what = "a port from 1 to 65535"
    text = _matching(annotations, HTTP_PORT, _PORT, what)
    if text is None:
        return None
    if int(text) > _LARGEST_PORT:
        raise RefusedError(f"{HTTP_PORT}: must be {what}, got {_shown(text)}")
    return int(text)


def _matching(
    annotations: Mapping[str, Any], name: str, pattern: re.Pattern[str], what: str
) -> str | None:
    value = annotations.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise RefusedError(f"{name}: must be {what}, got {_shown(value)}")
    return value


def _secrets(text: object) -> Iterator[tuple[str, str]]:
    if not isinstance(text, str):
        raise RefusedError(f"{SECRETS}: must be NAME:PATH,NAME:PATH, got {_shown(text)}")
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, path = part.partition(":")
        if not _NAME.fullmatch(name) or not _PATH.fullmatch(path):
            raise RefusedError(f"{SECRETS}: must be NAME:PATH,NAME:PATH, got {_shown(part)}")
        yield name, path


def patch(pod: Object, template: Template) -> list[Object]:
    """Return the JSON patch (RFC 6902) that adds the sidecar; empty: the pod stays as it is."""
    wish = wish_of(pod)
    if wish is None:
        return []
    spec = mapping(pod, "spec")
    _refuse_pod(spec)
    added = containers(wish, template)
    volumes = _volumes(wish, template)
    if _is_injected(spec, added, volumes):
        return []
    _refuse_conflicts(spec, wish, added, volumes)
    operations = _prepended(spec, "/spec/initContainers", "initContainers", added)
    operations += _prepended(spec, "/spec/volumes", "volumes", volumes)
    given = spec.get("terminationGracePeriodSeconds", 30)
    seconds = max(template.grace_seconds, given + _OWN_SECONDS)
    operations.append(_add("/spec/terminationGracePeriodSeconds", seconds))
    metadata = mapping(pod, "metadata")
    labels = dict(template.labels) | mapping(metadata, "labels")
    annotations = mapping(metadata, "annotations") | {INJECTED: template.digest}
    operations.append(_add("/metadata/labels", labels))
    operations.append(_add("/metadata/annotations", annotations))
    return operations


def containers(wish: Wish, template: Template) -> list[Object]:
    """Return the init containers for a wish, in the order in which they start."""
    sidecar = copy.deepcopy(template.sidecar)
    sidecar["volumeMounts"] += [
        {"name": _volume_name(number), "mountPath": path, "readOnly": True}
        for number, (_, path) in enumerate(wish.secrets)
    ]
    if wish.http_port is not None:
        for port in sidecar["ports"]:
            if port["name"] == HTTP:
                port["containerPort"] = wish.http_port
    if wish.mode is not Mode.TRANSPARENT:
        return [sidecar]
    redirect = copy.deepcopy(template.redirect)
    for variable in redirect["env"]:
        if variable["name"] == "PROXY_UID":
            sidecar["securityContext"]["runAsUser"] = int(variable["value"])
        if variable["name"] == "BROKER_PORTS" and wish.broker_ports is not None:
            variable["value"] = wish.broker_ports
    return [redirect, sidecar]


def _volumes(wish: Wish, template: Template) -> list[Object]:
    volumes = copy.deepcopy(template.volumes)
    for volume in volumes:
        if "configMap" in volume:
            volume["configMap"]["name"] = wish.config
    return volumes + [
        {"name": _volume_name(number), "secret": {"secretName": name}}
        for number, (name, _) in enumerate(wish.secrets)
    ]


def _volume_name(number: int) -> str:
    return f"{SIDECAR}-secret-{number}"


def _refuse_pod(spec: Object) -> None:
    """Refuse what no sidecar can work in."""
    if spec.get("hostNetwork"):
        raise RefusedError(
            "hostNetwork: the proxy's ports would be the node's; run a gateway in front instead"
        )
    system = mapping(spec, "os").get("name")
    selected = mapping(spec, "nodeSelector").get("kubernetes.io/os")
    if "windows" in (system, selected):
        raise RefusedError("the proxy runs on Linux alone: not on nodes with Windows")


def _refuse_conflicts(spec: Object, wish: Wish, added: list[Object], volumes: list[Object]) -> None:
    """Refuse what somebody else has in the pod already."""
    names = {one["name"] for one in added}
    ports = {port["containerPort"]: port["name"] for port in added[-1]["ports"]}
    user = added[-1]["securityContext"]["runAsUser"]
    for one in _all_containers(spec):
        name = one.get("name")
        if name in names:
            raise RefusedError(
                f"a container is named {name} already, and is not this one: rename or remove it"
            )
        for port in objects(one, "ports"):
            number = port.get("containerPort")
            if number in ports:
                other = f", or the proxy's, by {HTTP_PORT}" if ports[number] == HTTP else ""
                raise RefusedError(
                    f"container {_shown(name)} has port {number}, which the proxy listens on: "
                    f"move it{other}"
                )
        runs_as = mapping(one, "securityContext").get(
            "runAsUser", mapping(spec, "securityContext").get("runAsUser")
        )
        if wish.mode is Mode.TRANSPARENT and runs_as == user:
            raise RefusedError(
                f"container {_shown(name)} runs as user {user}, the proxy's own, whose connections "
                f"are not redirected: give it another one"
            )
    taken = {one.get("name") for one in objects(spec, "volumes")}
    for volume in volumes:
        if volume["name"] in taken:
            raise RefusedError(f"a volume is named {volume['name']} already: rename it")


def _is_injected(spec: Object, added: list[Object], volumes: list[Object]) -> bool:
    """Return whether everything is there; the API server has filled in defaults since."""
    present = {one.get("name"): one for one in objects(spec, "initContainers")}
    held = {one.get("name"): one for one in objects(spec, "volumes")}
    return all(_is_container(one, present.get(one["name"])) for one in added) and all(
        _within(one, held.get(one["name"])) for one in volumes
    )


_AS_GIVEN: Final = ("image", "command", "args", "env", "envFrom", "lifecycle", "volumeDevices")
"""Fields of a container that decide what it runs; the API server fills in none of them."""


def _is_container(wanted: Object, found: Object | None) -> bool:
    """Return whether a container is the wanted one, and runs nothing else."""
    return (
        found is not None
        and _within(wanted, found)
        and all(found.get(key) == wanted.get(key) for key in _AS_GIVEN)
    )


def _within(wanted: Any, found: Any) -> bool:
    """Return whether all that is wanted is found; a list may have got more at its end."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            _within(value, found.get(key)) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) >= len(wanted)
            and all(_within(one, other) for one, other in zip(wanted, found, strict=False))
        )
    return bool(wanted == found)


def is_current(pod: Object, template: Template) -> bool | None:
    """Return whether a pod has the sidecar of this template; None: it asks for none."""
    wish = wish_of(pod)
    if wish is None:
        return None
    spec = mapping(pod, "spec")
    return _is_injected(spec, containers(wish, template), _volumes(wish, template))


def _all_containers(spec: Object) -> Iterator[Object]:
    for key in ("initContainers", "containers"):
        yield from objects(spec, key)


def _prepended(spec: Object, path: str, key: str, added: list[Object]) -> list[Object]:
    present = objects(spec, key)
    return [_add(path, [*added, *present])]


def _add(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}  # replaces what is there (section 4.1)


def mapping(parent: Object, key: str) -> Object:
    """Return an object within another; empty if there is none."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RefusedError(f"{key}: must be an object")
    return value


def objects(parent: Object, key: str) -> list[Object]:
    """Return a list of objects within another; empty if there is none."""
    value = parent.get(key) or []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise RefusedError(f"{key}: must be a list of objects")
    return value


def _shown(value: object) -> str:
    return repr(str(value)[:63])


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
