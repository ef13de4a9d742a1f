"""Where SCRAM verifiers, ACLs, quotas and the deployment's secrets live."""

from pathlib import Path

from proxy.store.credentials import CachedCredentials
from proxy.store.interface import (
    AclChanges,
    AclSnapshot,
    AclStore,
    CredentialInfo,
    CredentialKey,
    CredentialSnapshot,
    CredentialStore,
    SecretStore,
    Store,
    StoreError,
)

__all__ = (
    "AclChanges",
    "AclSnapshot",
    "AclStore",
    "CachedCredentials",
    "CredentialInfo",
    "CredentialKey",
    "CredentialSnapshot",
    "CredentialStore",
    "SecretStore",
    "Store",
    "StoreError",
    "open_store",
)


def open_store(url: str) -> Store:
    """Open the store at `sqlite:PATH`, making it if it does not exist.

    A process that is to be forked opens it afterwards: SQLite's files must not cross a fork.
    """
    from proxy.store.sqlite import SqliteStore

    scheme, _, path = url.partition(":")
    if scheme != "sqlite" or not path:
        raise StoreError(f"{url}: is not the URL of a store")
    return SqliteStore(Path(path))
