"""Changes of Kafka's nodes: by compare-and-set, each with its notification.

A node and its notification are one transaction, so that brokers and other proxies are notified of
each change. A change of many nodes is several transactions, each as large as ZooKeeper accepts by
default.

A transaction that conflicts with another change, or whose outcome is unknown, is repeated with the
current content: changes are idempotent.
"""

import logging
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Final, NoReturn, Protocol

from proxy.acl.model import Acl, AclFilter
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.store.interface import CredentialKey, StoreError, StoreRefused
from proxy.store.zookeeper.content import Node, Tree, Unanswered
from proxy.store.zookeeper.nodes import (
    CONTROLLER,
    SECRET,
    SECRET_BYTES,
    SECRET_PARENT,
    BadNode,
    Notification,
    Resource,
    acl_change,
    config_change,
    config_path,
    is_led_by_kraft,
    is_valid_path,
    read_acls,
    read_config,
    with_credentials,
    with_quotas,
    write_acls,
    write_config,
)
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import ScramCredential, ScramMechanism

log = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 10
"""Maximum number of attempts at a transaction that conflicts with others: Kafka's
`maxUpdateRetries`."""
BACKOFF_S: Final = 0.1
"""Pause in seconds before the next attempt, randomly increased by up to half: Kafka's
`retryBackoffMs` and `retryBackoffJitterMs`."""
CHANGE_TIMEOUT_S: Final = 30.0
"""Limit in seconds of a whole change: the default of Kafka's `request.timeout.ms`."""
MAX_TRANSACTION_BYTES: Final = 262_144
"""Maximum size of a transaction's paths and contents in bytes, except that a single node may have
more. ZooKeeper accepts 1 MiB by default."""
_OVERTAKEN: Final = "Others keep changing the same nodes in ZooKeeper."
_NOT_KNOWN: Final = "It is not known whether ZooKeeper made the change, or a part of it."
_OPERATION_BYTES: Final = 256
"""Size in bytes of an operation without its path and content, but with its access control list."""


class Overtaken(Exception):
    """A node is not as the transaction expected, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Create:
    """Creation of a node."""

    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Replace:
    """Replacement of a node's content."""

    path: str
    data: bytes
    version: int
    """Version that the node must have."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletion of a node."""

    path: str
    version: int
    """Version that the node must have."""


Operation = Create | Replace | Delete | Notification


class WritableTree(Tree, Protocol):
    """Tree of nodes that can be read and written."""

    def commit(self, operations: Sequence[Operation]) -> None:
        """Do all operations or no operation. Raises Overtaken, and StoreError as for reading."""
        ...


@dataclass(frozen=True, slots=True)
class Edit:
    """Change of one node."""

    path: str
    notification: Notification
    apply: Callable[[bytes], bytes | None]
    """Returns the new content of the node, or None to delete it, given the current content, which
    is empty if the node does not exist. Raises BadNode."""
    is_possible: bool = True
    """False if ZooKeeper can have no node of this name."""


def _operations(edit: Edit, node: Node | None) -> list[Operation]:
    """Return the operations of an edit on a node; empty if the node needs no change."""
    before = b"" if node is None else node.data
    after = edit.apply(before)
    if after == before or (after is None and not before):
        return []
    operation: Operation
    if node is None:
        assert after is not None
        operation = Create(edit.path, after)
    elif after is None:
        operation = Delete(edit.path, node.version)
    else:
        operation = Replace(edit.path, after, node.version)
    return [operation, edit.notification]


def _size(operations: Iterable[Operation]) -> int:
    return sum(
        _OPERATION_BYTES
        + len(one.prefix if isinstance(one, Notification) else one.path)
        + (0 if isinstance(one, Delete) else len(one.data))
        for one in operations
    )


class Change:
    """Change of several nodes."""

    def __init__(
        self,
        tree: WritableTree,
        *,
        now: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._tree = tree
        self._now = now
        self._pause = pause
        self._deadline = now() + CHANGE_TIMEOUT_S
        self._attempts = 0
        self.may_be_made = False
        """True if a transaction was made, or if its outcome is unknown."""

    def make(self, edits: Sequence[Edit]) -> None:
        """Make all edits. Raises StoreRefused, and StoreError if nothing was changed."""
        if not all(edit.is_possible for edit in edits):
            raise StoreRefused(
                ErrorCode.INVALID_REQUEST, "ZooKeeper cannot have a node of this name."
            )
        left: Sequence[Edit] | None = None
        while left is None or left:
            try:
                if left is None:
                    self._refuse_during_migration()
                    left = edits
                left = self._step(left)
                self._attempts = 0
            except (Overtaken, Unanswered) as error:
                self._wait(error)
            except BadNode as bad:
                self._give_up(StoreError(f"ZooKeeper was not changed: {bad}"))

    def _wait(self, error: Overtaken | Unanswered) -> None:
        """Wait until it is time for the next attempt, or raise StoreError."""
        self._attempts += 1
        if isinstance(error, Unanswered):
            if self._now() > self._deadline:
                self._give_up(error)
        elif self._attempts == MAX_ATTEMPTS:
            self._give_up(StoreRefused(ErrorCode.REQUEST_TIMED_OUT, _OVERTAKEN))
        self._pause(BACKOFF_S * (1 + random.random() / 2))  # noqa: S311 - no secret

    def _give_up(self, problem: StoreError) -> NoReturn:
        if self.may_be_made:
            log.warning("a change may have been made in part in ZooKeeper: %s", problem)
            raise StoreRefused(ErrorCode.REQUEST_TIMED_OUT, _NOT_KNOWN)
        raise problem

    def _refuse_during_migration(self) -> None:
        self._tree.sync()
        found = self._tree.nodes([CONTROLLER])
        if CONTROLLER in found and is_led_by_kraft(found[CONTROLLER].data):
            raise StoreRefused(
                ErrorCode.POLICY_VIOLATION,
                "The cluster is led by a KRaft controller, which ZooKeeper's changes do not reach:"
                " make the change at the brokers.",
            )

    def _step(self, edits: Sequence[Edit]) -> Sequence[Edit]:
        """Make one transaction; return the remaining edits."""
        batch = edits[:_MAX_READ]
        nodes = self._tree.nodes({path for edit in batch for path in (edit.path, *_above(edit))})
        operations: dict[str, Operation] = {}
        notifications: list[Operation] = []
        size = 0
        for done, edit in enumerate(batch):
            if not (wanted := _operations(edit, nodes.get(edit.path))):
                continue
            parents = [Create(path) for path in _above(edit) if path not in nodes]
            size += _size(wanted) + _size(parents)
            if operations and size > MAX_TRANSACTION_BYTES:
                self._commit([*operations.values(), *notifications])
                return edits[done:]
            for operation in (*parents, wanted[0]):
                _add(operations, operation)
            notifications.append(wanted[1])
        self._commit([*operations.values(), *notifications])
        return edits[len(batch) :]

    def _commit(self, operations: Sequence[Operation]) -> None:
        if not operations:
            return
        try:
            self._tree.commit(operations)
        except Unanswered:
            self.may_be_made = True
            raise
        self.may_be_made = True


_MAX_READ: Final = 500
"""Maximum number of edits whose nodes are read at once."""
_NAMES_OF_ROOTS: Final = {"config": 1, "kafka-acl": 1, "kafka-acl-extended": 2}
"""Number of names in the paths of the nodes that every Kafka creates, by the first name. Older
versions do not create the other parents of a node, such as those of new resource types."""


def _above(edit: Edit) -> list[str]:
    """Return the paths of the parents of an edit's node, from the top, except those that Kafka
    creates."""
    names = edit.path.split("/")
    root = _NAMES_OF_ROOTS[names[1]]
    return ["/".join(names[:length]) for length in range(root + 2, len(names))]


def _add(operations: dict[str, Operation], operation: Operation) -> None:
    """Add an operation on a node. A parent of several edits' nodes is created only once."""
    assert not isinstance(operation, Notification)
    before = operations.get(operation.path)
    if before is None:
        operations[operation.path] = operation
    elif isinstance(operation, Create) and operation.data:
        operations[operation.path] = operation  # in its place, before its children


# Edits of ACLs, quotas and users


def creation(resource: Resource, acls: Iterable[Acl]) -> Edit:
    """Return the edit that adds ACLs to a resource pattern."""
    new = frozenset(acls)

    def apply(data: bytes) -> bytes:
        present = read_acls(resource, data)
        if new <= present.acls:
            return data
        return write_acls(present.acls | new, present.unknown)

    return Edit(resource.path, acl_change(resource), apply, resource.is_possible)


@dataclass(slots=True)
class Deletion:
    """Edit that deletes the ACLs of a resource pattern that any filter matches."""

    resource: Resource
    filters: Sequence[AclFilter]
    deleted: set[Acl] = field(default_factory=set)
    """ACLs that existed and matched."""

    def edit(self) -> Edit:
        """Return the edit."""
        resource = self.resource
        return Edit(resource.path, acl_change(resource), self._apply, resource.is_possible)

    def _apply(self, data: bytes) -> bytes | None:
        present = read_acls(self.resource, data)
        matched = {acl for acl in present.acls if any(one.matches(acl) for one in self.filters)}
        self.deleted |= matched
        left = present.acls - matched
        if not matched:
            return data
        return write_acls(left, present.unknown) if left or present.unknown else None


def quota_edits(changes: Mapping[QuotaEntity, Mapping[QuotaKey, float | None]]) -> list[Edit]:
    """Return the edits that set and remove quotas."""

    def edit(entity: QuotaEntity, limits: Mapping[QuotaKey, float | None]) -> Edit:
        return _config_edit(entity, lambda config: with_quotas(config, limits))

    return [edit(entity, limits) for entity, limits in changes.items()]


class CredentialChange:
    """Edits that delete and set verifiers."""

    def __init__(
        self,
        delete: Iterable[CredentialKey],
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> None:
        self._changes: dict[str, dict[ScramMechanism, ScramCredential | None]] = {}
        self._found: set[CredentialKey] = set()
        self._deleted = frozenset(delete)
        for user, mechanism in self._deleted:
            self._changes.setdefault(user, {})[mechanism] = None
        for (user, mechanism), credential in upsert.items():
            self._changes.setdefault(user, {})[mechanism] = credential

    def edits(self) -> list[Edit]:
        """Return the edits, one for each user."""
        return [self._edit(user) for user in self._changes]

    @property
    def missing(self) -> frozenset[CredentialKey]:
        """Keys to delete that did not exist."""
        return self._deleted - self._found

    def _edit(self, user: str) -> Edit:
        def apply(config: Mapping[str, str]) -> Mapping[str, str]:
            self._found |= {(user, one) for one in ScramMechanism if one.value in config}
            return with_credentials(config, self._changes[user])

        return _config_edit(QuotaEntity(user=user), apply)


def _config_edit(
    entity: QuotaEntity, alter: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> Edit:
    path = config_path(entity)

    def apply(data: bytes) -> bytes:
        before = read_config(path, data)
        after = alter(before)
        return data if after == before else write_config(after)

    return Edit(path, config_change(entity), apply, is_valid_path(path))


def shared_secret(tree: WritableTree) -> bytes:
    """Return the secret of all proxies of the ensemble, creating it if needed.

    The salts of users that do not exist are derived from these 32 random bytes. Different salts
    from different proxies would reveal that the user does not exist. Raises StoreError.
    """
    for _ in range(MAX_ATTEMPTS):
        tree.sync()
        nodes = tree.nodes([SECRET_PARENT, SECRET])
        if SECRET in nodes:
            secret = nodes[SECRET].data
            if len(secret) != SECRET_BYTES:
                raise StoreError(f"{SECRET} in ZooKeeper does not have {SECRET_BYTES} bytes")
            return secret
        parents = [] if SECRET_PARENT in nodes else [Create(SECRET_PARENT)]
        with suppress(Overtaken):
            tree.commit([*parents, Create(SECRET, secrets.token_bytes(SECRET_BYTES))])
    raise StoreError(f"{SECRET} in ZooKeeper cannot be created")
