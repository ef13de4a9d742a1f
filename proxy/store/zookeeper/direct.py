"""Users, quotas and ACLs in ZooKeeper, without a copy of them."""

import ssl
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from proxy.acl.model import Acl, AclFilter, PatternType, ResourceType
from proxy.config.model import Store as StoreSettings
from proxy.quota.model import Changes, QuotaSnapshot
from proxy.store.interface import (
    AclSnapshot,
    CredentialInfo,
    CredentialKey,
    CredentialSnapshot,
)
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


class Zookeeper:
    """Users, quotas and ACLs as they are in ZooKeeper now; each call has its own connection.

    Reading and changing raise StoreError, changing also StoreRefused. Versions are always 0.
    """

    def __init__(
        self, settings: StoreSettings, context: Callable[[], ssl.SSLContext] | None
    ) -> None:
        """`context` returns the present context of TLS; None: connections are without TLS."""
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

    def credential_infos(self) -> tuple[CredentialInfo, ...]:
        """Return the public part of every credential, by user, then mechanism."""
        infos = (
            CredentialInfo(user=user, mechanism=mechanism, iterations=one.iterations)
            for (user, mechanism), one in self.credential_snapshot().credentials.items()
        )
        return tuple(sorted(infos, key=lambda info: (info.user, info.mechanism.value)))

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential."""
        credentials = self._content(wants_acls=False).credentials()
        return CredentialSnapshot(version=0, credentials=credentials)

    def scram_fake_secret(self) -> bytes:
        """Return the secret of all proxies, which is made if there is none."""
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
