"""Mirror of the brokers' ACLs and quotas as of the last query.

A change through the proxy is in the mirror immediately. A broker's answer to a query before the
change, or soon after it, may not include it yet, so recent changes are applied to such an answer
again. Older changes are dropped, so that a principal with Alter permission cannot keep a revoked
permission by repeating a change.
"""

import sqlite3
from collections.abc import Collection
from time import monotonic
from typing import Final, NamedTuple

from proxy.acl.model import Acl
from proxy.quota.model import Changes, Quotas
from proxy.store.interface import Mirror, StoreError, StoreStart
from proxy.store.sqlite import USED_OTHERWISE, Store, acls, quotas

SETTLES_WITHIN: Final = 1.0
"""Time in seconds after which every broker usually has a change, which is a record that they all
fetch (KIP-631)."""
_NO_MIRROR: Final = (
    "is not a copy of brokers' ACLs and quotas: a proxy with sqlite: made it its own store"
)
_USERS_NEVER_KNOWN: Final = (
    "has a copy of ZooKeeper's users that was not updated since the last start: use the earlier"
    " version until the proxy is ready, or another file"
)


class Versions(NamedTuple):
    """Versions of a mirror whose content is a single answer of the brokers."""

    acls: int
    quotas: int


class SqliteMirror(Store):
    """Mirror in a SQLite file, a `proxy.store.Store` whose ACLs and quotas are copies."""

    def begin(self) -> StoreStart:
        """Start the proxy with this mirror, whose content is unconfirmed. Raises StoreError."""
        with self.writing() as connection:
            if not _has_rows(connection, "mirror") and _has_rows(connection, "acls", "quotas"):
                raise StoreError(
                    "already has ACLs or quotas, which those of the brokers would replace: use"
                    " another file, or create them at the brokers and delete them here"
                )
            if _has_rows(connection, "mirror WHERE users AND asked_at IS NULL"):
                raise StoreError(_USERS_NEVER_KNOWN)
            # Users that an earlier version copied from ZooKeeper become the file's own
            connection.execute("INSERT OR REPLACE INTO mirror (id) VALUES (0)")
            # Their times are monotonic seconds, which restart when the machine boots
            connection.execute("DELETE FROM recent_acls")
            connection.execute("DELETE FROM recent_quotas")
        return StoreStart(identity=self._identity, at=monotonic())

    def join(self) -> StoreStart:
        """Start the proxy while another proxy also keeps this mirror up to date. Raises
        StoreError."""
        with self.reading() as connection:
            if not _has_rows(connection, "mirror WHERE NOT users"):
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
        self, *, asked_at: float, new_acls: Collection[Acl] | None, new_quotas: Quotas | None
    ) -> Versions | None:
        """Replace the content with the answer to a query at `asked_at`, in monotonic seconds.

        Pass None for unchanged data. Returns None if the content afterwards differs from that
        answer, because it also has recent changes, or because another proxy has already stored a
        later answer during a takeover. Raises StoreError.
        """
        settled = asked_at - SETTLES_WITHIN
        with self.writing() as connection:
            if not _has_rows(connection, "mirror"):
                raise StoreError(_NO_MIRROR)
            if _has_later_answer(connection, asked_at):
                return None
            if new_acls is not None:
                acls.replace(connection, acls.with_recent(connection, new_acls, settled))
            if new_quotas is not None:
                quotas.replace(connection, quotas.with_recent(connection, new_quotas, settled))
            connection.execute("UPDATE mirror SET asked_at = ?, problem = NULL", (asked_at,))
            if _has_rows(connection, "recent_acls", "recent_quotas"):
                return None
            return Versions(acls.version(connection), quotas.version(connection))

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


def _has_later_answer(connection: sqlite3.Connection, asked_at: float) -> bool:
    (shown,) = connection.execute("SELECT asked_at FROM mirror").fetchone()
    # Monotonic seconds restart when the machine boots: a future time is from before the boot
    return shown is not None and asked_at < shown <= monotonic()


def _has_rows(connection: sqlite3.Connection, *sources: str) -> bool:
    """Return whether any of these tables, each perhaps with a condition, has a row."""
    return any(
        connection.execute(f"SELECT 1 FROM {source} LIMIT 1").fetchone()  # noqa: S608
        for source in sources
    )
