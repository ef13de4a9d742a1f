"""Store of SCRAM verifiers, ACLs, quotas and secrets, and copies in memory for decisions."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.acl.index import AclIndex
from proxy.store.interface import CredentialKey, CredentialStore, StoreError, StoreStart, UserStore
from proxy.store.sqlite import Store as Store
from proxy.store.sqlite.acls import SqliteAcls
from sasl.credentials import NO_USERS, ScramCredential, ScramMechanism, ShapeShares

if TYPE_CHECKING:
    from proxy.store.brokers import Administration


def open_store(
    url: str,
    brokers: "Callable[[], Administration] | None" = None,
    start: StoreStart | None = None,
) -> Store:
    """Open the store at `sqlite:PATH` or `broker:PATH`.

    With `start`, which workers pass, the file must be the store of that start. Without it, the file
    is created if it does not exist, and its schema is brought up to date.

    `brokers` returns the brokers that `broker:` mirrors, and is required for changes of ACLs and
    quotas. Open a store only after a fork, because SQLite connections must not be used across one.
    Raises StoreError.
    """
    scheme, _, path = url.partition(":")
    if not path or scheme not in ("sqlite", "broker"):
        raise StoreError(f"{url}: must be sqlite:PATH or broker:PATH")
    if scheme == "sqlite":
        return Store(Path(path), start)
    if brokers is None:
        from proxy.store.sqlite.mirror import SqliteMirror

        return SqliteMirror(Path(path), start)
    from proxy.store.brokers import BrokerStore  # loads 16 MiB of schemas

    return BrokerStore(Path(path), brokers(), start)


def open_users(file: Path | None, store: Store) -> UserStore:
    """Return the SCRAM users: those in the file if one is configured, otherwise those in the
    store."""
    if file is None:
        return store
    from proxy.store.users_file import UsersFile

    return UsersFile(file)


class CachedAcls:
    """ACLs of the store as of the last refresh."""

    def __init__(
        self,
        store: SqliteAcls,
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
        """Reason why the last read of the store failed; None if it succeeded."""

    def refresh_if_changed(self) -> bool:
        """Read the changes in the store; return whether there were any. Raises StoreError.

        Call it about once a second, and after each write by this process, on any thread except that
        of the event loop, because many changes take some tenths of a second. After an error the
        last known ACLs stay in force.
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
        """Replace the super users. The new index has the same version."""
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


class CachedCredentials:
    """Credentials of the store as of the last refresh; a `sasl.credentials.CredentialSource`."""

    def __init__(self, store: CredentialStore) -> None:
        self._store = store
        self.version = -1
        """Number of the last change that was read."""
        self._credentials: Mapping[CredentialKey, ScramCredential] = {}
        self._shares: Mapping[ScramMechanism, ShapeShares] = {}
        self.refresh_if_changed()

    def refresh_if_changed(self) -> bool:
        """Read the credentials again if they changed; return whether they did. Raises StoreError.

        Call it about once a second, on any thread. After an error the last known credentials stay
        in use.
        """
        if self._store.version() == self.version:
            return False
        snapshot = self._store.credential_snapshot()
        self._shares = _shares(snapshot.credentials)
        self._credentials, self.version = snapshot.credentials, snapshot.version
        return True

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the user's verifier for this mechanism; None if it does not exist."""
        return self._credentials.get((user, mechanism))

    def shape_shares(self, mechanism: ScramMechanism) -> ShapeShares:
        """Return the distribution of the shapes of this mechanism's verifiers."""
        return self._shares.get(mechanism, NO_USERS)


def _shares(
    credentials: Mapping[CredentialKey, ScramCredential],
) -> Mapping[ScramMechanism, ShapeShares]:
    by_mechanism: dict[ScramMechanism, list[ScramCredential]] = {}
    for (_, mechanism), credential in credentials.items():
        by_mechanism.setdefault(mechanism, []).append(credential)
    return {mechanism: ShapeShares.of(group) for mechanism, group in by_mechanism.items()}
