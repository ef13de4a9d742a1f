"""In-memory copy of the ACLs, so that a decision never waits for a store."""

import threading

from proxy.acl.index import AclIndex
from proxy.store.interface import AclStore, StoreError


class CachedAcls:
    """ACLs of the store as of the last refresh."""

    def __init__(
        self,
        store: AclStore,
        *,
        allow_everyone_if_no_acl_found: bool = False,
        super_users: frozenset[str] = frozenset(),
    ) -> None:
        """Read all ACLs. Raises StoreError: nothing is open then."""
        self._store = store
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._super_users = super_users
        self._lock = threading.Lock()
        self.index = self._read()
        """The ACLs in force; replaced as a whole."""
        self.error: str | None = None
        """The reason why the last read of the store failed; None: it succeeded."""

    def refresh_if_changed(self) -> bool:
        """Take over what changed in the store, and say whether anything did.

        Called about once a second and after writes of one's own, on any thread but best beside
        the event loop: many changes take some tenths of a second. When it raises `StoreError`,
        the last known ACLs stay in force.
        """
        with self._lock:
            try:
                index = self._next()
            except StoreError as error:
                self.error = str(error)
                raise
            changed = index is not self.index
            self.index = index
            self.error = None
            return changed

    def replace_super_users(self, super_users: frozenset[str]) -> None:
        """Go on with other super users. The index is another one, of the same version."""
        with self._lock:
            self._super_users = super_users
            self.index = self.index.with_super_users(super_users)

    def _next(self) -> AclIndex:
        if self._store.acl_version() == self.index.version:
            return self.index
        changes = self._store.acl_changes(self.index.version)
        if changes is None:
            return self._read()
        return self.index.with_changes(
            created=changes.created, deleted=changes.deleted, version=changes.version
        )

    def _read(self) -> AclIndex:
        snapshot = self._store.acl_snapshot()
        return AclIndex(
            snapshot.acls,
            allow_everyone_if_no_acl_found=self._allow_everyone,
            super_users=self._super_users,
            version=snapshot.version,
        )
