"""Mirror of the brokers' ACLs and quotas as of the last query, and of ZooKeeper's users.

A change through the proxy is in the mirror immediately. A broker's answer to a query before the
change, or soon after it, may not include it yet, so recent changes are applied to such an answer
again. Older changes are dropped, so that a principal with Alter permission cannot keep a revoked
permission by repeating a change.
"""

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple

from proxy.acl.model import Acl
from proxy.quota.model import Changes, Quotas
from proxy.store.interface import CredentialKey, Mirror, StoreError, StoreStart
from proxy.store.sqlite import USED_OTHERWISE, Store, acls, credentials, quotas
from sasl.credentials import ScramCredential

SETTLES_WITHIN: Final = 1.0
"""Time in seconds after which every broker usually has a change, which is a record that they all
fetch (KIP-631)."""
_NO_MIRROR: Final = (
    "is not a copy of brokers' ACLs and quotas: a proxy with sqlite: made it its own store"
)


_OTHER_USERS: Final = {
    True: "already has SCRAM users, which those in ZooKeeper would replace: use another file",
    False: "has a copy of the SCRAM users in ZooKeeper: use another file",
}


class Versions(NamedTuple):
    """Versions of a mirror whose content is a single answer of the brokers."""

    acls: int
    quotas: int
    users: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between one answer and the one before it."""

    created_acls: Collection[Acl] = ()
    deleted_acls: Collection[Acl] = ()
    quotas: Changes = field(default_factory=dict)
    """Limits by entity and key; None for a removed limit."""
    users: Mapping[CredentialKey, ScramCredential] = field(default_factory=dict)
    """New and changed verifiers."""
    deleted_users: Collection[CredentialKey] = ()


class SqliteMirror(Store):
    """Mirror in a SQLite file, a `proxy.store.Store` whose ACLs and quotas are copies."""

    mirrors_users = False
    """True if the SCRAM users are also copies."""

    def begin(self) -> StoreStart:
        """Start the proxy with this mirror, whose content is unconfirmed. Raises StoreError."""
        with self.writing() as connection:
            if not _is_mirror(connection) and _has_rows(connection, "acls", "quotas"):
                raise StoreError(
                    "already has ACLs or quotas, which those of the brokers would replace: use"
                    " another file, or create them at the brokers and delete them here"
                )
            if _mirrors_users(connection) != self.mirrors_users and _has_rows(
                connection, "scram_credentials"
            ):
                raise StoreError(_OTHER_USERS[self.mirrors_users])
            connection.execute(
                "INSERT OR REPLACE INTO mirror (id, users) VALUES (0, ?)", (self.mirrors_users,)
            )
            # Their times are monotonic seconds, which restart when the machine boots
            connection.execute("DELETE FROM recent_acls")
            connection.execute("DELETE FROM recent_quotas")
        return StoreStart(identity=self._identity, at=monotonic())

    def join(self) -> StoreStart:
        """Start the proxy while another proxy also keeps this mirror up to date. Raises
        StoreError."""
        with self.reading() as connection:
            if not _is_mirror(connection) or _mirrors_users(connection) != self.mirrors_users:
                raise StoreError(f"{self._path}: {USED_OTHERWISE}")
        return StoreStart(identity=self._identity, at=monotonic())

    def mirror(self) -> Mirror:
        """Return the state of the copy. An answer from before the start does not count."""
        found = super().mirror()
        if found is None:
            return Mirror(problem=f"{self._path}: {_NO_MIRROR}")
        at, start = found.asked_at, self._start
        if at is not None and start is not None and not start.at <= at <= monotonic():
            return Mirror(problem=found.problem)
        return found

    def take_over(
        self,
        *,
        asked_at: float,
        new_acls: Collection[Acl] | None,
        new_quotas: Quotas | None,
        new_users: Mapping[CredentialKey, ScramCredential] | None = None,
        secret: bytes | None = None,
    ) -> Versions | None:
        """Replace the content with the answer to a query at `asked_at`, in monotonic seconds.

        Pass None for unchanged data. Salts of users that do not exist are derived from `secret`.
        Returns None if the content afterwards differs from that answer, because it also has recent
        changes, or because another proxy has already stored a later answer during a takeover.
        Raises StoreError.
        """
        settled = asked_at - SETTLES_WITHIN
        with self.writing() as connection:
            if not _is_mirror(connection):
                raise StoreError(_NO_MIRROR)
            if _has_later_answer(connection, asked_at):
                return None
            if new_acls is not None:
                acls.replace(connection, acls.with_recent(connection, new_acls, settled))
            if new_quotas is not None:
                quotas.replace(connection, quotas.with_recent(connection, new_quotas, settled))
            if new_users is not None:
                credentials.replace(connection, new_users)
            if secret is not None:
                credentials.replace_secret(connection, secret)
            _confirm(connection, asked_at)
            return (
                None
                if _has_rows(connection, "recent_acls", "recent_quotas")
                else _versions(connection)
            )

    def follow(self, difference: Difference, *, asked_at: float) -> Versions:
        """Apply the difference of an answer to a query at `asked_at`, in monotonic seconds.

        The content must be that of the previous answer. Raises StoreError.
        """
        with self.writing() as connection:
            if not _is_mirror(connection):
                raise StoreError(_NO_MIRROR)
            created, deleted = difference.created_acls, difference.deleted_acls
            acls.change(connection, delete=deleted, create=created)
            quotas.alter(connection, difference.quotas)
            credentials.alter(connection, difference.deleted_users, difference.users)
            _confirm(connection, asked_at)
            return _versions(connection)

    def note_problem(self, problem: str) -> None:
        """Record the reason why brokers could not be queried, or did not answer."""
        with self.writing() as connection:
            connection.execute("UPDATE mirror SET problem = ?", (problem,))

    def note_acls(self, at: float, done: Collection[Acl], *, created: bool) -> None:
        """Record that brokers created or deleted ACLs at `at`, monotonic seconds."""
        with self.writing() as connection:
            acls.note_recent(connection, at, done, created=created)

    def note_quotas(self, at: float, done: Changes) -> None:
        """Record that brokers changed quotas at `at`, monotonic seconds."""
        with self.writing() as connection:
            quotas.note_recent(connection, at, done)


def _is_mirror(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM mirror").fetchone() is not None


def _has_later_answer(connection: sqlite3.Connection, asked_at: float) -> bool:
    (shown,) = connection.execute("SELECT asked_at FROM mirror").fetchone()
    # Monotonic seconds restart when the machine boots: a future time is from before the boot
    return shown is not None and asked_at < shown <= monotonic()


def _mirrors_users(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM mirror WHERE users").fetchone() is not None


def _confirm(connection: sqlite3.Connection, asked_at: float) -> None:
    connection.execute("UPDATE mirror SET asked_at = ?, problem = NULL", (asked_at,))


def _versions(connection: sqlite3.Connection) -> Versions:
    return Versions(
        acls.version(connection), quotas.version(connection), credentials.version(connection)
    )


def _has_rows(connection: sqlite3.Connection, *tables: str) -> bool:
    return any(
        connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()  # noqa: S608
        for table in tables
    )
