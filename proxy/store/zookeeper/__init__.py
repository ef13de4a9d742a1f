"""Store of users, quotas and ACLs that are in ZooKeeper: read from a mirror, changed there.

The mirror is a file on this host, which `follower` keeps up to date; nothing else writes to it. A
change returns when the mirror has it.
"""

import logging
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic, sleep
from typing import Final

from proxy.acl.model import Acl, AclFilter
from proxy.config.model import Store as StoreSettings
from proxy.net.tls_contexts import Tls
from proxy.quota.model import Changes
from proxy.store.interface import CredentialKey, StoreStart
from proxy.store.sqlite.mirror import SqliteMirror
from proxy.store.zookeeper.direct import Zookeeper
from sasl.credentials import ScramCredential

log = logging.getLogger(__name__)

MAX_WAIT_S: Final = 5.0
"""Maximum time in seconds that a change waits until the mirror has it."""
_CHECK_EVERY_S: Final = 0.01


class ZookeeperMirror(SqliteMirror):
    """Mirror of users, quotas and ACLs in ZooKeeper."""

    mirrors_users = True


class ZookeeperStore(ZookeeperMirror):
    """Store of what is in ZooKeeper, a `proxy.store.Store`."""

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
        """Return when the mirror has what was changed before."""
        changed_at = monotonic()
        while monotonic() < changed_at + MAX_WAIT_S:
            asked_at = self.mirror().asked_at
            if asked_at is not None and asked_at >= changed_at:
                return
            sleep(_CHECK_EVERY_S)
        log.warning("a change in ZooKeeper is not in %s yet", self._path)
