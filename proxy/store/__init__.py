"""Store of SCRAM verifiers, ACLs, quotas and the deployment's secrets."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.store.credential_cache import CachedCredentials
from proxy.store.interface import (
    AclChanges,
    AclSnapshot,
    AclStore,
    Begun,
    CredentialInfo,
    CredentialKey,
    CredentialSnapshot,
    CredentialStore,
    Mirror,
    SecretStore,
    Store,
    StoreError,
    StoreRefused,
    UserStore,
    refusal_of,
)

if TYPE_CHECKING:
    from proxy.store.brokers.administration import Brokers

__all__ = (
    "AclChanges",
    "AclSnapshot",
    "AclStore",
    "Begun",
    "CachedCredentials",
    "CredentialInfo",
    "CredentialKey",
    "CredentialSnapshot",
    "CredentialStore",
    "Mirror",
    "SecretStore",
    "Store",
    "StoreError",
    "StoreRefused",
    "UserStore",
    "open_store",
    "open_users",
    "refusal_of",
)


def open_store(
    url: str, brokers: "Callable[[], Brokers] | None" = None, *, begun: Begun | None = None
) -> Store:
    """Open the store at `sqlite:PATH` or `broker:PATH`.

    `begun`: the start whose store must be there; without it, the file is made if it does not
    exist, and its schema is brought up to date. Workers give it: they never make a store.

    `brokers` gives the way to what `broker:` mirrors; without it, that is to be read only.
    A process that is to be forked opens it afterwards: SQLite's files must not cross a fork.
    """
    scheme, _, path = url.partition(":")
    if not path or scheme not in ("sqlite", "broker"):
        raise StoreError(f"{url}: is not the URL of a store")
    if scheme == "sqlite":
        from proxy.store.sqlite import SqliteStore

        return SqliteStore(Path(path), begun)
    if brokers is None:
        from proxy.store.sqlite.mirror import SqliteMirror

        return SqliteMirror(Path(path), begun)
    from proxy.store.brokers import BrokerStore  # with 16 MiB of schemas

    return BrokerStore(Path(path), brokers(), begun)


def open_users(file: Path | None, store: Store) -> UserStore:
    """Give the users of SCRAM: those of a file, if there is one, and else those of the store."""
    if file is None:
        return store
    from proxy.store.users_file import UsersFile

    return UsersFile(file)
