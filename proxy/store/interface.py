"""What the proxy keeps between starts, as protocols: one per concern, one class may serve all.

Laws of every store:

- A write that returned is durable; one that raised left nothing behind.
- Any method may be called from any thread, and several processes may share a store.
- `version` grows with every change that others can see; polling it is cheap.
- Whatever goes wrong is a `StoreError` with one sentence for the operator.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from proxy.errors import ProxyError
from sasl.credentials import ScramCredential, ScramMechanism

CredentialKey = tuple[str, ScramMechanism]
"""A user's name and one of its mechanisms."""


class StoreError(ProxyError):
    """The store cannot be opened, read or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialInfo:
    """What may be told of a credential."""

    user: str
    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSnapshot:
    """All credentials as they were at one moment."""

    version: int
    credentials: Mapping[CredentialKey, ScramCredential]


class CredentialStore(Protocol):
    """SCRAM verifiers."""

    def version(self) -> int:
        """Return the number of the last change."""
        ...

    def credential_infos(self) -> tuple[CredentialInfo, ...]:
        """Return what may be told of every credential, by user, then mechanism."""
        ...

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential, with the version they belong to."""
        ...

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> frozenset[CredentialKey]:
        """Delete, then insert or replace, all in one transaction.

        Return those to delete that were not there; they keep nothing else from being done.
        """
        ...


class SecretStore(Protocol):
    """Secrets of this deployment, the same for all workers and after a restart."""

    def scram_fake_secret(self) -> bytes:
        """Return the 32 random bytes that the salts of users who do not exist are made from."""
        ...


class Store(CredentialStore, SecretStore, Protocol):
    """Everything that is kept."""

    def close(self) -> None:
        """Let go of the store; no other method may be called after it."""
        ...
