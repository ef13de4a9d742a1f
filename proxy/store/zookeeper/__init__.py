"""Store of users, quotas and ACLs in ZooKeeper: reads use a mirror, changes go to ZooKeeper.

The mirror is a file on this host, which only `follower` writes. A change returns when the mirror
has it.
"""

import logging
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from time import monotonic, sleep
from typing import Final

from proxy.acl.model import Acl, AclFilter, PatternType, ResourceType
from proxy.config.model import Store as StoreSettings
from proxy.net.tls_contexts import Tls
from proxy.quota.model import Changes, QuotaSnapshot
from proxy.store.interface import (
    AclSnapshot,
    CredentialKey,
    CredentialSnapshot,
    StoreStart,
)
from proxy.store.sqlite.mirror import SqliteMirror
from proxy.store.zookeeper.changes import (
    Change,
    CredentialChange,
    Deletion,
    Edit,
    creation,
    quota_edits,
    shared_secret,
)
from proxy.store.zookeeper.client import ZookeeperTree
from proxy.store.zookeeper.content import Content, read_all, read_resources
from proxy.store.zookeeper.nodes import Resource
from sasl.credentials import ScramCredential

log = logging.getLogger(__name__)

MAX_WAIT_S: Final = 5.0
"""Maximum time in seconds that a change waits for the mirror."""
_CHECK_EVERY_S: Final = 0.01


class ZookeeperMirror(SqliteMirror):
    """Mirror of users, quotas and ACLs in ZooKeeper."""

    mirrors_users = True


class ZookeeperStore(ZookeeperMirror):
    """Store of ZooKeeper's data, a `proxy.store.Store`."""

    def __init__(
        self, settings: StoreSettings, tls: Tls | None = None, start: StoreStart | None = None
    ) -> None:
        """With `start`, the mirror must be that of the start. Raises StoreError."""
        super().__init__(settings.path(), start)
        context: Callable[[], ssl.SSLContext] | None = None if tls is None else lambda: tls.context
        self._zookeeper = Zookeeper(settings, context)

    def create_acls(self, acls: Collection[Acl]) -> int:
        """Add ACLs. Raises StoreError."""
        if self._zookeeper.create_acls(acls):
            self._wait()
        return self.acl_version()

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        """Delete the ACLs that any filter matches; return those of each filter."""
        deleted = self._zookeeper.delete_acls(filters)
        if any(deleted):
            self._wait()
        return deleted

    def alter_quotas(self, changes: Changes) -> None:
        """Set and remove limits. Raises StoreError."""
        if self._zookeeper.alter_quotas(changes):
            self._wait()

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> frozenset[CredentialKey]:
        """Delete, then insert or replace; return the keys in `delete` that did not exist."""
        missing = self._zookeeper.alter_credentials(delete=delete, upsert=upsert)
        if upsert or len(missing) < len(delete):
            self._wait()
        return missing

    def _wait(self) -> None:
        """Wait until the mirror has the change."""
        changed_at = monotonic()
        while monotonic() < changed_at + MAX_WAIT_S:
            asked_at = self.mirror().asked_at
            if asked_at is not None and asked_at >= changed_at:
                return
            sleep(_CHECK_EVERY_S)
        log.warning("a change in ZooKeeper is not in %s yet", self._path)


class Zookeeper:
    """Users, quotas and ACLs that are in ZooKeeper now. Each call has its own connection.

    Reading and changing raise StoreError; changing also raises StoreRefused. Versions are always 0.
    """

    def __init__(
        self, settings: StoreSettings, context: Callable[[], ssl.SSLContext] | None
    ) -> None:
        """`context` returns the current TLS context; pass None for connections without TLS."""
        self._settings = settings
        self._context = context

    @contextmanager
    def _connected(self) -> Iterator[ZookeeperTree]:
        context = None if self._context is None else self._context()
        with closing(ZookeeperTree(self._settings, context)) as tree:
            tree.connect()
            yield tree

    def _content(self, *, wants_acls: bool) -> Content:
        with self._connected() as tree:
            tree.sync()
            return read_all(tree, wants_acls=wants_acls)

    def _make(self, edits: Sequence[Edit]) -> bool:
        """Make a change; return whether anything may have been changed."""
        with self._connected() as tree:
            change = Change(tree)
            change.make(edits)
            return change.may_be_made

    # ACLs

    def acl_snapshot(self) -> AclSnapshot:
        """Return all ACLs."""
        acls = self._content(wants_acls=True).acls()
        return AclSnapshot(version=0, acls=tuple(sorted(acls)))

    def create_acls(self, acls: Collection[Acl]) -> bool:
        """Add ACLs; return whether anything may have been changed."""
        by_resource: dict[Resource, list[Acl]] = {}
        for acl in acls:
            by_resource.setdefault(Resource.of(acl), []).append(acl)
        return self._make([creation(*one) for one in by_resource.items()])

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        """Delete the ACLs that any filter matches; return those of each filter."""
        with self._connected() as tree:
            resources = {_only_resource(one) for one in filters}
            if None in resources:
                tree.sync()
                resources |= {*read_resources(tree)}
            deletions = [Deletion(one, filters) for one in resources if one is not None]
            Change(tree).make([one.edit() for one in deletions])
        deleted = sorted(acl for one in deletions for acl in one.deleted)
        return tuple(tuple(acl for acl in deleted if one.matches(acl)) for one in filters)

    # Quotas

    def quota_snapshot(self) -> QuotaSnapshot:
        """Return all quotas."""
        return QuotaSnapshot(version=0, quotas=self._content(wants_acls=False).quotas())

    def alter_quotas(self, changes: Changes) -> bool:
        """Set and remove limits; return whether anything may have been changed."""
        return self._make(quota_edits(changes))

    # Users

    def version(self) -> int:
        """Return 0."""
        return 0

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential."""
        credentials = self._content(wants_acls=False).credentials()
        return CredentialSnapshot(version=0, credentials=credentials)

    def scram_fake_secret(self) -> bytes:
        """Return the secret of all proxies, creating it if needed."""
        with self._connected() as tree:
            return shared_secret(tree)

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> frozenset[CredentialKey]:
        """Delete, then insert or replace; return the keys in `delete` that did not exist."""
        change = CredentialChange(delete, upsert)
        self._make(change.edits())
        return change.missing


def _only_resource(wanted: AclFilter) -> Resource | None:
    """Return the only resource pattern whose ACLs a filter can match; None if there are several."""
    if (
        wanted.name is None
        or wanted.resource_type is ResourceType.ANY
        or wanted.pattern_type in (PatternType.ANY, PatternType.MATCH)
    ):
        return None
    return Resource(wanted.resource_type, wanted.pattern_type, wanted.name)
