"""Store of SCRAM verifiers, ACLs, quotas and the deployment's secrets."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.store.caches import CachedCredentials as CachedCredentials
from proxy.store.interface import AclChanges as AclChanges
from proxy.store.interface import AclSnapshot as AclSnapshot
from proxy.store.interface import CredentialKey as CredentialKey
from proxy.store.interface import CredentialStore as CredentialStore
from proxy.store.interface import Mirror as Mirror
from proxy.store.interface import StoreError as StoreError
from proxy.store.interface import StoreRefused as StoreRefused
from proxy.store.interface import StoreStart as StoreStart
from proxy.store.interface import UserStore as UserStore
from proxy.store.interface import by_user as by_user
from proxy.store.interface import refusal_of as refusal_of
from proxy.store.sqlite import Store as Store

if TYPE_CHECKING:
    from proxy.store.brokers import Brokers


def open_store(
    url: str, brokers: "Callable[[], Brokers] | None" = None, *, start: StoreStart | None = None
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
