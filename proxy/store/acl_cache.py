"""In-memory copy of the ACLs, so that a decision never waits for the store."""

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
        """Read all ACLs. Raises StoreError."""
        self._store = store
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._super_users = super_users
        self._lock = threading.Lock()
        self.index = self._read()
        """ACLs in force; replaced as a whole."""
        self.error: str | None = None
        """Reason for which the last read of the store failed; None if it succeeded."""

    def refresh_if_changed(self) -> bool:
        """Read the changes in the store; return whether there were any. Raises StoreError.

        To be called about once a second, and after each write by this process, on any thread but
        that of the event loop: many changes take some tenths of a second. After an error the last
        known ACLs stay in force.
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
        """Replace the super users: the index becomes another one, of the same version."""
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
