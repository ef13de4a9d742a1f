"""Nodes in which Kafka keeps users, quotas and ACLs: their paths and contents.

    /config/users/<user>                    SCRAM verifiers and quotas of a user
    /config/users/<user>/clients/<client>   quotas of a user's client
    /config/clients/<client>, /config/ips/<address>
    /config/changes/config_change_          notifications of changes of these
    /kafka-acl/<Type>/<name>                literal ACLs; /kafka-acl-changes
    /kafka-acl-extended/prefixed/<Type>/<name>     prefixed ones; /kafka-acl-extended-changes

Sources: KIP-55 (quotas, notifications, encoding of names), KIP-140 and KIP-290 (ACLs), KIP-612
(addresses), and the nodes that Kafka 3.9 writes (`kafka.zk.ZkData`).

All functions are pure. They raise BadNode for a node that Kafka does not write in this form.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.acl.validation import acl_refusal
from proxy.errors import ProxyError
from proxy.quota.model import (
    BadEntity,
    QuotaEntity,
    QuotaKey,
    format_limit,
    key_of,
    value_problem,
)
from sasl.credentials import (
    NoVerifier,
    ScramCredential,
    ScramMechanism,
    read_verifier,
    verifier_text,
)
from sasl.untrusted import fit_for_log, read_object

CONFIG: Final = "/config"
USERS: Final = f"{CONFIG}/users"
CLIENTS: Final = f"{CONFIG}/clients"
ADDRESSES: Final = f"{CONFIG}/ips"
CONFIG_CHANGES: Final = f"{CONFIG}/changes"
ACL_ROOTS: Final = {
    PatternType.LITERAL: "/kafka-acl",
    PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}
"""Parents of the nodes of resource types, by pattern type."""
ACL_CHANGES: Final = {
    PatternType.LITERAL: "/kafka-acl-changes",
    PatternType.PREFIXED: "/kafka-acl-extended-changes",
}
CONTROLLER: Final = "/controller"
SECRET_PARENT: Final = "/kafka-reauth-proxy"  # noqa: S105 - the path of a node
SECRET: Final = f"{SECRET_PARENT}/scram-secret"
SECRET_BYTES: Final = 32
MAX_NODE_BYTES: Final = 1_048_576
"""Maximum size of a node that is read, in bytes: ZooKeeper's default of `jute.maxbuffer`."""

_VERSION: Final = 1
"""Version of the content of configurations, ACLs and extended notifications."""
_WHOLE: Final = frozenset(
    {
        QuotaKey.PRODUCER_BYTE_RATE,
        QuotaKey.CONSUMER_BYTE_RATE,
        QuotaKey.CONNECTION_CREATION_RATE,
    }
)
_MAX_LONG: Final = 2**63 - 1
_ENTITY_KINDS: Final = ("users", "clients", "ips")
_CONFIG_CHANGE: Final = f"{CONFIG_CHANGES}/config_change_"
_INVALID_IN_PATHS: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]|(^|/)(\\.{1,2})?(/|$)"
)
"""Characters and names that ZooKeeper refuses in a path (`PathUtils.validatePath`). In Java, a
character above U+FFFF is two surrogates."""

_Code = TypeVar("_Code", bound=IntEnum)


class BadNode(ProxyError):
    """The node does not have the form in which Kafka writes it."""


class Resource(NamedTuple):
    """Resource pattern, whose ACLs are one node."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str

    @property
    def path(self) -> str:
        """Path of the node with the ACLs."""
        root = ACL_ROOTS[self.pattern_type]
        return f"{root}/{_pascal(self.resource_type)}/{self.name}"

    @property
    def is_possible(self) -> bool:
        """False if ZooKeeper cannot have a node of this name, so that Kafka refuses its ACLs."""
        return "/" not in self.name and is_valid_path(self.path)

    @classmethod
    def of(cls, acl: Acl) -> "Resource":
        """Return the resource pattern of an ACL."""
        return cls(acl.resource_type, acl.pattern_type, acl.name)


class Notification(NamedTuple):
    """Notification of a change, which is a sequential node."""

    prefix: str
    """Path of the node, without the number that ZooKeeper appends."""
    data: bytes


def is_valid_path(path: str) -> bool:
    """Return whether ZooKeeper can have a node at this absolute path."""
    return _INVALID_IN_PATHS.search(path[1:]) is None


def _object(path: str, data: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a node. Raises BadNode."""
    if len(data) > MAX_NODE_BYTES:
        raise BadNode(f"{path} has {len(data)} bytes, more than {MAX_NODE_BYTES}")
    found = read_object(data)
    if found is None:
        raise BadNode(f"{path} does not hold a JSON object")
    return found


def _content(path: str, data: bytes, key: str, kind: type) -> Any:
    found = _object(path, data)
    if found.get("version") != _VERSION:
        raise BadNode(f"{path} has an unknown version, this program knows {_VERSION}")
    if not isinstance(content := found.get(key), kind):
        raise BadNode(f"{path} has no {key}")
    return content


def _written(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


# Users, clients and addresses


def config_path(entity: QuotaEntity) -> str:
    """Return the path of the node with an entity's configuration."""
    return f"{CONFIG}/{_entity_path(entity)}"


def _entity_path(entity: QuotaEntity) -> str:
    # Kafka encodes the names of users and clients, but not addresses
    return f"ips/{entity.ip}" if isinstance(entity.ip, str) else entity.entity_path


def entity_at(path: str) -> QuotaEntity:
    """Return the entity whose configuration is at `path`, below `/config`. Raises BadNode."""
    kind, _, name = path.partition("/")
    if not is_valid_path(f"/{path}"):
        raise BadNode(f"{CONFIG} cannot have the node {path!r}")
    try:
        if kind == "ips" and name != "<default>":
            return QuotaEntity(ip=name)
        return QuotaEntity.from_entity_path(path)
    except BadEntity as bad:
        raise BadNode(f"{CONFIG}/{path}: {bad}") from None


def read_config(path: str, data: bytes) -> dict[str, str]:
    """Return the configuration in an entity's node; empty if the node is only a parent of
    others."""
    if not data:
        return {}
    config = _content(path, data, "config", dict)
    if not all(isinstance(value, str) for value in config.values()):
        raise BadNode(f"{path} has a value that is not text")
    return dict(config)


def write_config(config: Mapping[str, str]) -> bytes:
    """Return the content of an entity's node."""
    return _written({"version": _VERSION, "config": config})


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration of an entity: the values that the proxy knows."""

    credentials: Mapping[ScramMechanism, ScramCredential]
    """SCRAM verifiers, only for users."""
    quotas: Mapping[QuotaKey, float]
    problems: tuple[str, ...] = ()
    """Sentences about values that are left out because they are invalid."""


def parse_config(entity: QuotaEntity, config: Mapping[str, str]) -> Config:
    """Return an entity's verifiers and quotas; other keys are ignored."""
    credentials: dict[ScramMechanism, ScramCredential] = {}
    quotas: dict[QuotaKey, float] = {}
    problems: list[str] = []
    is_user = isinstance(entity.user, str) and entity.client_id is None
    mechanisms = {one.value: one for one in ScramMechanism} if is_user else {}
    for name, text in config.items():
        try:
            if (mechanism := mechanisms.get(name)) is not None:
                credentials[mechanism] = read_verifier(mechanism, text)
            elif (key := key_of(entity, name)) is not None:
                quotas[key] = _limit(key, text)
        except NoVerifier as error:
            problems.append(f"{config_path(entity)}: {name}: {error}")
        except ValueError as error:
            problems.append(f"{config_path(entity)}: {error}")
    return Config(credentials, quotas, tuple(problems))


def _limit(key: QuotaKey, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{key} is not a number") from None
    if problem := value_problem(key, value):
        raise ValueError(problem)
    return value


def with_quotas(
    config: Mapping[str, str], changes: Mapping[QuotaKey, float | None]
) -> dict[str, str]:
    """Return a configuration with these limits set. A limit of None is removed."""
    return _with(
        config,
        {key.value: None if one is None else _limit_text(key, one) for key, one in changes.items()},
    )


def _limit_text(key: QuotaKey, value: float) -> str:
    """Return a limit in the form that brokers parse: limits of bytes and connections as Java's
    long."""
    return str(min(int(value), _MAX_LONG)) if key in _WHOLE else format_limit(value)


def with_credentials(
    config: Mapping[str, str], changes: Mapping[ScramMechanism, ScramCredential | None]
) -> dict[str, str]:
    """Return a configuration with these verifiers set. A verifier of None is removed."""
    return _with(
        config,
        {key.value: None if one is None else verifier_text(one) for key, one in changes.items()},
    )


def _with(config: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    changed = {key: text for key, text in config.items() if key not in changes}
    return changed | {key: text for key, text in changes.items() if text is not None}


def config_change(entity: QuotaEntity) -> Notification:
    """Return the notification of a change of an entity's configuration (KIP-55)."""
    return Notification(
        _CONFIG_CHANGE, _written({"version": 2, "entity_path": _entity_path(entity)})
    )


def changed_entity(path: str, data: bytes) -> QuotaEntity | None:
    """Return the entity of a notification; None if it is about topics, brokers or another type."""
    found = _object(path, data)
    match found.get("version"):
        case 1:
            entity_path = f"{found.get('entity_type')}/{found.get('entity_name')}"
        case 2:
            entity_path = str(found.get("entity_path"))
        case _:
            raise BadNode(f"{path} has an unknown version, this program knows 1 and 2")
    return entity_at(entity_path) if entity_path.partition("/")[0] in _ENTITY_KINDS else None


# ACLs


def _pascal(code: IntEnum) -> str:
    """Return a code's name as Kafka writes it to nodes, such as `TransactionalId`."""
    return "".join(word.capitalize() for word in code.name.split("_"))


def _codes(codes: Iterable[_Code]) -> Mapping[str, _Code]:
    return {_pascal(code): code for code in codes if code.value > 1}


def _in_any_case(codes: Iterable[_Code]) -> Mapping[str, _Code]:
    """Return codes by their names in upper case: brokers read `Deny`, `DENY` and `deny` alike
    (`SecurityUtils.valueFromMap`)."""
    return {name.upper(): code for name, code in _codes(codes).items()}


RESOURCE_TYPES: Final = _codes(ResourceType)
"""Resource types by their names in paths."""
_OPERATIONS: Final = _in_any_case(Operation)
_PERMISSIONS: Final = _in_any_case(Permission)
_UPPER_CASE_TYPES: Final = {code.name: code for code in RESOURCE_TYPES.values()}
_FIELDS: Final = ("principal", "permissionType", "operation", "host")


@dataclass(frozen=True, slots=True)
class ResourceAcls:
    """ACLs of a resource pattern."""

    acls: frozenset[Acl]
    unknown: tuple[Mapping[str, str], ...] = ()
    """Entries that allow something unknown to this version. They are kept when the node is
    changed."""


NO_ACLS: Final = ResourceAcls(frozenset())


def read_acls(resource: Resource, data: bytes) -> ResourceAcls:
    """Return the ACLs in a resource's node.

    Raises BadNode, also for an unknown entry that may deny something.
    """
    if not data:
        return NO_ACLS
    acls: set[Acl] = set()
    unknown: list[Mapping[str, str]] = []
    for entry in _content(resource.path, data, "acls", list):
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in _FIELDS):
            raise BadNode(f"{resource.path} has an entry without text for one of its fields")
        acl = _acl(resource, entry)
        if acl is None:
            if _PERMISSIONS.get(entry["permissionType"].upper()) is not Permission.ALLOW:
                text = fit_for_log(str(entry), ())
                raise BadNode(f"{resource.path} has an unknown entry that may deny: {text}")
            unknown.append(entry)
        else:
            acls.add(acl)
    return ResourceAcls(frozenset(acls), tuple(unknown))


def _acl(resource: Resource, entry: Mapping[str, str]) -> Acl | None:
    operation = _OPERATIONS.get(entry["operation"].upper())
    permission = _PERMISSIONS.get(entry["permissionType"].upper())
    if operation is None or permission is None:
        return None
    acl = Acl(*resource, entry["principal"], entry["host"], operation, permission)
    return None if acl_refusal(acl) is not None else acl


def write_acls(acls: Collection[Acl], unknown: Collection[Mapping[str, str]] = ()) -> bytes:
    """Return the content of a resource's node."""
    entries: list[Mapping[str, str]] = [
        {
            "principal": acl.principal,
            "permissionType": _pascal(acl.permission),
            "operation": _pascal(acl.operation),
            "host": acl.host,
        }
        for acl in sorted(acls)
    ]
    return _written({"version": _VERSION, "acls": [*entries, *unknown]})


def acl_change(resource: Resource) -> Notification:
    """Return the notification of a change of a resource's ACLs."""
    prefix = f"{ACL_CHANGES[resource.pattern_type]}/acl_changes_"
    if resource.pattern_type is PatternType.LITERAL:
        return Notification(prefix, f"{resource.resource_type.name}:{resource.name}".encode())
    content = {
        "version": _VERSION,
        "resourceType": resource.resource_type.name,
        "name": resource.name,
        "patternType": resource.pattern_type.name,
    }
    return Notification(prefix, _written(content))


def changed_resource(pattern_type: PatternType, path: str, data: bytes) -> Resource:
    """Return the resource pattern of a notification below `ACL_CHANGES[pattern_type]`."""
    if pattern_type is PatternType.LITERAL:
        try:
            kind, _, name = data.decode().partition(":")
        except UnicodeDecodeError:
            raise BadNode(f"{path} is not UTF-8 text") from None
        found = _UPPER_CASE_TYPES.get(kind) or RESOURCE_TYPES.get(kind)  # the latter before 2.0
    else:
        name = str(_content(path, data, "name", str))
        change = _object(path, data)
        found = _UPPER_CASE_TYPES.get(str(change.get("resourceType")))
        if change.get("patternType") != pattern_type.name:
            found = None
    if found is None or not name:
        raise BadNode(f"{path} is not the notification of a change of ACLs")
    resource = Resource(found, pattern_type, name)
    if not resource.is_possible:
        raise BadNode(f"{path} is about a node that cannot exist")
    return resource


def is_led_by_kraft(data: bytes) -> bool:
    """Return whether the node `/controller` names a KRaft controller, to which the cluster is being
    migrated (KIP-866)."""
    epoch = (read_object(data) or {}).get("kraftControllerEpoch")
    return isinstance(epoch, int) and epoch >= 0
