"""Protocols of a store, one per concern.

Rules of every store:

- A write that returned is durable; one that raised left nothing behind, unless it is a
  `StoreRefused`.
- Any method may be called from any thread, and several processes may share a store.
- Each concern has a version, which grows with every change of it that others can see; polling it
  is cheap. A store that is restored from a copy, and changed then, never comes to a version that it
  had before with other content.
- Whatever goes wrong is a `StoreError` with one sentence for the operator.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kio.schema.errors import ErrorCode

from proxy.acl.model import Acl, AclFilter
from proxy.errors import ProxyError
from proxy.quota.store import QuotaStore
from sasl.credentials import ScramCredential, ScramMechanism

log = logging.getLogger(__name__)

CredentialKey = tuple[str, ScramMechanism]
"""A user's name and one of its mechanisms."""


class StoreError(ProxyError):
    """The store cannot be opened, read or written."""


class StoreRefused(StoreError):
    """Whoever keeps it does not do what was asked, or only a part of it, or it is not known: if
    brokers do, the mirror shows it when they have answered the next question."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        """The error code of the response to the client."""
        self.message = message


def refusal_of(problem: StoreError) -> tuple[ErrorCode, str]:
    """Return the error response to a change that could not be made.

    The reason is in the log, for the operator: clients learn no paths.
    """
    if isinstance(problem, StoreRefused):
        return problem.code, problem.message
    log.warning("a change was not made: %s", problem)
    return ErrorCode.kafka_storage_error, "The store cannot be read or written at the moment."


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialInfo:
    """Public part of a credential."""

    user: str
    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSnapshot:
    """All credentials as they were at one moment."""

    version: int
    credentials: Mapping[CredentialKey, ScramCredential]


class CredentialStore(Protocol):
    """Store of SCRAM verifiers."""

    def version(self) -> int:
        """Return the number of the last change of credentials."""
        ...

    def credential_infos(self) -> tuple[CredentialInfo, ...]:
        """Return the public part of every credential, by user, then mechanism."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AclSnapshot:
    """All ACLs as they were at one moment."""

    version: int
    acls: Sequence[Acl]
    """The ACLs in their order, each once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclChanges:
    """ACLs added and removed between two versions.

    One that was both is in at most one of the two.
    """

    version: int
    """The later of the two versions."""
    created: Collection[Acl]
    deleted: Collection[Acl]


class AclStore(Protocol):
    """Store of ACLs. They are a set: each is there once."""

    def acl_version(self) -> int:
        """Return the number of the last change of ACLs."""
        ...

    def acl_snapshot(self) -> AclSnapshot:
        """Return all ACLs, with the version they belong to."""
        ...

    def acl_changes(self, since: int) -> AclChanges | None:
        """Return what changed after a version; None if that is not known (any more)."""
        ...

    def create_acls(self, acls: Collection[Acl]) -> int:
        """Add ACLs, all in one transaction; those that are there already stay as they are.

        Return the version after it. Patterns, operations and permissions are concrete ones.
        """
        ...

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        """Delete what any of the filters matches, all in one transaction.

        Return, for each filter, all that it matches, in order: what two of them match is in both.
        """
        ...


class SecretStore(Protocol):
    """Store of the deployment's secrets, the same for all workers and after a restart."""

    def scram_fake_secret(self) -> bytes:
        """Return the 32 random bytes that the salts of users who do not exist are made from."""
        ...


class UserStore(CredentialStore, SecretStore, Protocol):
    """Store of everything that is kept of SCRAM users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """State of a store that mirrors another."""

    asked_at: float | None = None
    """The moment in monotonic seconds that the mirror shows; None: nothing is known since the
    start."""
    problem: str | None = None
    """The reason why nothing newer is known, in one sentence; None: the last query succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Store that a start of the proxy found: its workers open this one, and no other."""

    identity: str
    """The identity of the store; copies of it have the same."""
    at: float
    """The time of the start in monotonic seconds."""


class Store(UserStore, AclStore, QuotaStore, Protocol):
    """Store of users, ACLs, quotas and secrets."""

    def begin(self) -> Begun:
        """Get ready for a start of the proxy; called once, before any worker opens the store."""
        ...

    def mirror(self) -> Mirror | None:
        """Return how well ACLs and quotas are known; None: they are this store's own.

        Nobody may be let in by a mirror that knows nothing: to find no ACL may mean everything.
        """
        ...

    def close(self) -> None:
        """Let go of the store; no other method may be called after it."""
        ...
