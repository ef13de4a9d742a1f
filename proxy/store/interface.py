"""Protocols of a store, one per concern.

Rules of every store:

- A write is durable when it returns. If it raises any error except `StoreRefused`, nothing was
  changed.
- Any method may be called on any thread, and several processes may share a store.
- Each concern has a version, which increases with every visible change and is cheap to read. A
  store that is restored from a copy and then changed never gets a version that it had before with
  other content.
- Every failure is a `StoreError` with a message of one sentence for the operator.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from proxy.acl.model import Acl
from proxy.errors import ProxyError
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import ScramCredential, ScramMechanism

log = logging.getLogger(__name__)

CredentialKey = tuple[str, ScramMechanism]
"""Name of a user, and one of the user's mechanisms."""


class StoreError(ProxyError):
    """The store cannot be opened, read or written."""


class StoreRefused(StoreError):
    """The backend rejected the change or a part of it, or its outcome is unknown. If brokers made
    the change, the mirror has it after the next query."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        """Error code of the response to the client."""
        self.message = message
        """Error message of the response to the client."""


def refusal_of(problem: StoreError) -> tuple[ErrorCode, str]:
    """Return the error code and message for a change that could not be made.

    The reason is logged for the operator. It may contain paths, which clients must not see.
    """
    if isinstance(problem, StoreRefused):
        return problem.code, problem.message
    log.warning("a change was not made: %s", problem)
    return ErrorCode.KAFKA_STORAGE_ERROR, "The store cannot be read or written at the moment."


class CredentialSnapshot(NamedTuple):
    """All credentials as they were at one moment."""

    version: int
    credentials: Mapping[CredentialKey, ScramCredential]


def by_user(
    credentials: Mapping[CredentialKey, ScramCredential],
) -> list[tuple[CredentialKey, ScramCredential]]:
    """Return verifiers with their keys, by user, then mechanism."""
    return sorted(credentials.items(), key=lambda each: (each[0][0], each[0][1].value))


class CredentialStore(Protocol):
    """Store of SCRAM verifiers."""

    def version(self) -> int:
        """Return the number of the last change of credentials."""

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential, with the version of the snapshot."""

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> frozenset[CredentialKey]:
        """Delete, then insert or replace, all in one transaction.

        Return the keys in `delete` that did not exist. They do not prevent the other changes.
        """


class AclSnapshot(NamedTuple):
    """All ACLs as they were at one moment."""

    version: int
    acls: Sequence[Acl]
    """ACLs, sorted, without duplicates."""


class AclChanges(NamedTuple):
    """ACLs added and removed between two versions. An ACL that was both added and removed is in at
    most one of `created` and `deleted`."""

    version: int
    """Later of the two versions."""
    created: Collection[Acl]
    deleted: Collection[Acl]


class UserStore(CredentialStore, Protocol):
    """Store of SCRAM users, and of the deployment's secret, which all workers share and which
    survives a restart."""

    def scram_fake_secret(self) -> bytes:
        """Return the 32 random bytes from which salts of users that do not exist are derived."""


class Mirror(NamedTuple):
    """State of a store that mirrors another."""

    asked_at: float | None = None
    """Time in monotonic seconds of the query whose answer the mirror contains; None before the
    first answer since the start."""
    problem: str | None = None
    """Reason why the last query failed, as a sentence; None if it succeeded."""


class StoreStart(NamedTuple):
    """Start of the proxy with a store. The proxy's workers open only this store."""

    identity: str
    """Identity of the store. Copies of it have the same identity."""
    at: float
    """Time of the start in monotonic seconds."""


class StoreInUse(NamedTuple):
    """Store that a proxy started with, and the file that it finds at the store's path now."""

    path: str
    """Path as the proxy sees it, possibly inside a container."""
    identity: str
    """Identity of the store that the proxy started with."""
    device: int | None
    """Device of the file at the path; None if the file does not exist."""
    inode: int | None
    """Inode of the file at the path; None if the file does not exist."""

    @classmethod
    def of(cls, path: Path, start: StoreStart) -> Self:
        """Return the store of this start, with the file that is at `path` now."""
        return cls(str(path.absolute()), start.identity, *_device_and_inode(path))

    @classmethod
    def read(cls, sent: Any) -> Self:
        """Return the store in the answer of a proxy. Raises ValueError if the answer has no
        store."""
        try:
            return cls(*sent)
        except TypeError:
            raise ValueError("the answer has no store") from None

    def refuse_others(self, path: Path) -> None:
        """Raise StoreError unless the proxy reads the store in this file."""
        from proxy.store.sqlite.database import identity_of

        there = _device_and_inode(path)
        if there == (None, None):
            raise StoreError(f"{path}: was removed while a proxy runs with it: restore it")
        if there != (self.device, self.inode):
            raise StoreError(f"{path}: the running proxy reads another file, {self.path}")
        if identity_of(path) != self.identity:
            raise StoreError(
                f"{path}: is another store than the one that the running proxy started with:"
                " restore that one, or restart the proxy"
            )


def _device_and_inode(path: Path) -> tuple[int, int] | tuple[None, None]:
    try:
        found = path.stat()
    except OSError:
        return None, None
    return found.st_dev, found.st_ino
