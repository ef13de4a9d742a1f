"""Content of Kafka's nodes, first read as a whole and then updated from notifications of changes.

Rules:

- A read that fails does not change the content.
- A node with ACLs in an unexpected format fails the read, because it may deny something. A node
  with an unexpected configuration is left out and reported; its user cannot log in.
- Notifications that arrive during a read are processed before its content is used. After a
  notification that cannot be parsed, or that was deleted before it was read, everything is read
  again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol, TypeVar

from proxy.acl.model import Acl, PatternType
from proxy.quota.model import QuotaEntity, QuotaKey, Quotas
from proxy.store.interface import CredentialKey, StoreError
from proxy.store.sqlite.mirror import Difference
from proxy.store.zookeeper.nodes import (
    ACL_CHANGES,
    ACL_ROOTS,
    ADDRESSES,
    CLIENTS,
    CONFIG,
    CONFIG_CHANGES,
    NO_ACLS,
    RESOURCE_TYPES,
    USERS,
    BadNode,
    Config,
    Resource,
    ResourceAcls,
    changed_entity,
    changed_resource,
    config_path,
    entity_at,
    parse_config,
    read_acls,
    read_config,
)
from sasl.credentials import ScramCredential

MAX_ROUNDS: Final = 10
"""Maximum number of rounds of new notifications that are processed before the content is used."""

_NO_CONFIG: Final = Config(credentials={}, quotas={})

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Unanswered(StoreError):
    """ZooKeeper did not answer. The outcome of a transaction is unknown."""


class Node(NamedTuple):
    """Content of a node."""

    data: bytes
    version: int
    """Number of the last change of its data, for compare-and-set."""


class Tree(Protocol):
    """Tree of nodes that can be read. Raises StoreError, which is Unanswered if the connection was
    lost."""

    def sync(self) -> None:
        """Wait until the server is up to date, so that later reads return data no older than this
        call."""
        ...

    def nodes(self, paths: Collection[str]) -> Mapping[str, Node]:
        """Return the nodes at these paths, without those that do not exist."""
        ...

    def children(
        self, paths: Collection[str], *, watched: bool = False
    ) -> Mapping[str, Collection[str]]:
        """Return the names of the nodes below these paths, without paths that do not exist.

        With `watched`, the owner of the tree is notified when the names change.
        """
        ...


@dataclass(frozen=True, slots=True)
class Content:
    """Users, quotas and ACLs."""

    configs: Mapping[QuotaEntity, Config] = field(default_factory=dict)
    resources: Mapping[Resource, ResourceAcls] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    """Sentences about nodes that are left out, by path."""

    def credentials(self) -> dict[CredentialKey, ScramCredential]:
        """Return every user's verifiers."""
        return {
            (entity.user, mechanism): credential
            for entity, config in self.configs.items()
            if isinstance(entity.user, str)
            for mechanism, credential in config.credentials.items()
        }

    def quotas(self) -> Quotas:
        """Return every quota."""
        return {entity: one.quotas for entity, one in self.configs.items() if one.quotas}

    def acls(self) -> frozenset[Acl]:
        """Return every ACL."""
        return frozenset(acl for one in self.resources.values() for acl in one.acls)

    def all_problems(self) -> Iterator[str]:
        """Yield a sentence about each node or value that is left out."""
        yield from self.problems.values()
        for config in self.configs.values():
            yield from config.problems
        for resource, acls in self.resources.items():
            if acls.unknown:
                yield f"{resource.path}: {len(acls.unknown)} ACLs are unknown to this version"


def difference(before: Content, after: Content) -> Difference:
    """Return the difference. Objects that were not read again are identical, and cheap to
    compare."""
    created: set[Acl] = set()
    deleted: set[Acl] = set()
    for _, old, new in _different(before.resources, after.resources, NO_ACLS):
        created |= new.acls - old.acls
        deleted |= old.acls - new.acls
    quotas: dict[QuotaEntity, dict[QuotaKey, float | None]] = {}
    users: dict[CredentialKey, ScramCredential] = {}
    deleted_users: list[CredentialKey] = []
    for entity, old_config, new_config in _different(before.configs, after.configs, _NO_CONFIG):
        quotas[entity] = dict.fromkeys(old_config.quotas) | dict(new_config.quotas)
        if isinstance(user := entity.user, str):
            is_, was = new_config.credentials, old_config.credentials
            users |= {(user, key): one for key, one in is_.items() if was.get(key) != one}
            deleted_users += [(user, key) for key in was.keys() - is_.keys()]
    return Difference(created, deleted, quotas, users, deleted_users)


def _different(
    before: Mapping[_Key, _Value], after: Mapping[_Key, _Value], nothing: _Value
) -> Iterator[tuple[_Key, _Value, _Value]]:
    """Yield the keys whose values differ, with both values. `nothing` is the value of a missing
    key."""
    if after is before:
        return
    for key, value in after.items():
        if (old := before.get(key, nothing)) is not value and old != value:
            yield key, old, value
    for key in before.keys() - after.keys():
        yield key, before[key], nothing


class _Change(NamedTuple):
    """Nodes that notifications refer to."""

    entities: Collection[QuotaEntity]
    resources: Collection[Resource]


class Reader:
    """Reader of the tree that follows its notifications."""

    def __init__(self, tree: Tree, *, wants_acls: bool) -> None:
        """`wants_acls` is False if the ACLs are not needed, and perhaps do not exist."""
        self._tree = tree
        self._wants_acls = wants_acls
        self._directories = (CONFIG_CHANGES, *(ACL_CHANGES.values() if wants_acls else ()))
        self._seen: Mapping[str, frozenset[str]] | None = None
        """Notifications that the content includes, by directory; None if everything must be
        read."""
        self._content = Content()
        self._losses = self._losses_seen = 0

    def forget(self) -> None:
        """Make the next read read everything, because notifications may have been missed.

        May be called on another thread, during a read.
        """
        self._losses += 1

    def read(self) -> Content:
        """Return the current content. Raises StoreError; the next call then reads everything."""
        losses = self._losses
        seen, self._seen = self._seen, None
        if losses != self._losses_seen:
            seen, self._losses_seen = None, losses
        content = self._content
        for _ in range(MAX_ROUNDS):
            listed = self._notifications()
            if seen is None:
                content = read_all(self._tree, wants_acls=self._wants_acls)
            elif not (new := _new(seen, listed)):
                break
            else:
                content = self._followed(content, new)
            seen = listed
        self._content, self._seen = content, seen
        return content

    def _notifications(self) -> Mapping[str, frozenset[str]]:
        self._tree.sync()
        found = self._tree.children(self._directories, watched=True)
        return {directory: frozenset(names) for directory, names in found.items()}

    def _followed(self, content: Content, new: Collection[str]) -> Content:
        nodes = self._tree.nodes(new)
        change = _change(nodes) if len(nodes) == len(new) else None
        if change is None:
            return read_all(self._tree, wants_acls=self._wants_acls)
        return _read_again(self._tree, content, change)


def _new(seen: Mapping[str, frozenset[str]], listed: Mapping[str, frozenset[str]]) -> list[str]:
    """Return the paths of notifications that were not seen."""
    return [
        f"{directory}/{name}"
        for directory, names in listed.items()
        for name in sorted(names - seen.get(directory, frozenset()))
    ]


def _change(notifications: Mapping[str, Node]) -> _Change | None:
    """Return the nodes of notifications; None if one of them cannot be parsed."""
    pattern_types = {directory: pattern_type for pattern_type, directory in ACL_CHANGES.items()}
    entities: set[QuotaEntity] = set()
    resources: set[Resource] = set()
    for path, node in notifications.items():
        directory = path.rpartition("/")[0]
        try:
            if (pattern_type := pattern_types.get(directory)) is not None:
                resources.add(changed_resource(pattern_type, path, node.data))
            elif (entity := changed_entity(path, node.data)) is not None:
                entities.add(entity)
        except BadNode:
            return None
    return _Change(entities, resources)


def read_all(tree: Tree, *, wants_acls: bool) -> Content:
    """Read everything. Raises StoreError, also if the tree is not Kafka's."""
    entities, problems = _all_entities(tree)
    configs, bad = _configs(tree, entities)
    resources = read_resources(tree) if wants_acls else {}
    return Content(configs, resources, problems | bad)


def _read_again(tree: Tree, content: Content, change: _Change) -> Content:
    configs, problems = _configs(tree, change.entities)
    acls = _acls(tree, change.resources)
    paths = [config_path(entity) for entity in change.entities]
    return replace(
        content,
        configs=_updated(content.configs, change.entities, configs),
        resources=_updated(content.resources, change.resources, acls),
        problems=_updated(content.problems, paths, problems),
    )


def _updated(
    before: Mapping[_Key, _Value], read: Collection[_Key], found: Mapping[_Key, _Value]
) -> Mapping[_Key, _Value]:
    if not read:
        return before
    after = dict(before)
    for key in read:
        if key in found:
            after[key] = found[key]
        else:
            after.pop(key, None)
    return after


def _all_entities(tree: Tree) -> tuple[list[QuotaEntity], dict[str, str]]:
    """Return the entities that have a node, and a sentence about each omitted entity, by path."""
    parents = tree.children((USERS, CLIENTS, ADDRESSES))
    if USERS not in parents or CLIENTS not in parents:
        raise StoreError(
            f"ZooKeeper has no {USERS} or no {CLIENTS}: store.url must be the brokers'"
            " zookeeper.connect, with its chroot"
        )
    names = [f"{parent}/{name}" for parent, names in parents.items() for name in names]
    of_users = [f"{path}/clients" for path in names if path.startswith(f"{USERS}/")]
    clients = tree.children(of_users)
    names += [f"{parent}/{name}" for parent, names in clients.items() for name in names]
    entities: list[QuotaEntity] = []
    problems: dict[str, str] = {}
    for path in names:
        try:
            entities.append(entity_at(path.removeprefix(f"{CONFIG}/")))
        except BadNode as bad:
            problems[path] = str(bad)
    return entities, problems


def _configs(
    tree: Tree, entities: Collection[QuotaEntity]
) -> tuple[dict[QuotaEntity, Config], dict[str, str]]:
    by_path = {config_path(entity): entity for entity in entities}
    configs: dict[QuotaEntity, Config] = {}
    problems: dict[str, str] = {}
    for path, node in tree.nodes(by_path).items():
        entity = by_path[path]
        try:
            configs[entity] = parse_config(entity, read_config(path, node.data))
        except BadNode as bad:
            problems[path] = str(bad)
    return configs, problems


def read_resources(tree: Tree) -> dict[Resource, ResourceAcls]:
    """Read all ACLs. Raises StoreError, also if their parent nodes are missing."""
    types = {
        f"{root}/{name}": (resource_type, pattern_type)
        for pattern_type, root in ACL_ROOTS.items()
        for name, resource_type in RESOURCE_TYPES.items()
    }
    found = tree.children(types)
    if not any(path.startswith(f"{ACL_ROOTS[PatternType.LITERAL]}/") for path in found):
        raise StoreError(
            f"ZooKeeper has no {ACL_ROOTS[PatternType.LITERAL]}: the brokers have no authorizer,"
            " so no ACLs"
        )
    return _acls(
        tree, [Resource(*types[path], name) for path, names in found.items() for name in names]
    )


def _acls(tree: Tree, resources: Collection[Resource]) -> dict[Resource, ResourceAcls]:
    by_path = {resource.path: resource for resource in resources}
    try:
        return {
            by_path[path]: read_acls(by_path[path], node.data)
            for path, node in tree.nodes(by_path).items()
        }
    except BadNode as bad:
        raise StoreError(f"ACLs cannot be read: {bad}") from None
