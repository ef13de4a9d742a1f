"""Mirror of the brokers' ACLs and quotas, as of when they were last asked.

What is written through the proxy is in the mirror at once. An answer that a broker gave before, or
soon after, may not have it yet: what was written lately applies on top of such an answer. Nothing
else is held on to, so that whoever may change something keeps no right by changing it again.
"""

import sqlite3
from collections.abc import Collection
from time import monotonic
from typing import Final, NamedTuple

from proxy.acl.model import Acl
from proxy.quota.model import Quotas
from proxy.quota.store import Changes
from proxy.store.interface import Begun, Mirror, StoreError
from proxy.store.sqlite import SqliteStore, acls, quotas

SETTLES_WITHIN: Final = 1.0
"""Seconds in which every broker learns of a change, as a rule: it is a record that they all fetch
(KIP-631)."""
_NO_MIRROR: Final = "is no copy of what brokers have: a proxy with sqlite: has taken it over"


class Versions(NamedTuple):
    """Versions of a mirror that shows one response, and nothing else."""

    acls: int
    quotas: int


class SqliteMirror(SqliteStore):
    """Mirror, a `proxy.store.Store` whose ACLs and quotas are copies."""

    def begin(self) -> Begun:
        """The proxy starts: what the mirror shows is known no more. Raises StoreError."""
        with self.writing() as connection:
            if not _is_mirror(connection) and _has_its_own(connection):
                raise StoreError(
                    "holds ACLs or quotas of its own, which the brokers' would replace: use"
                    " another file, or have them at the brokers and delete them here"
                )
            connection.execute("INSERT OR REPLACE INTO mirror (id) VALUES (0)")
            # monotonic seconds begin anew with the machine
            connection.execute("DELETE FROM recent_acls")
            connection.execute("DELETE FROM recent_quotas")
        return Begun(identity=self._identity, at=monotonic())

    def mirror(self) -> Mirror:
        """Return how well ACLs and quotas are known: not at all by a copy of before the start."""
        found = super().mirror()
        if found is None:
            return Mirror(problem=f"{self._path}: {_NO_MIRROR}")
        at, begun = found.asked_at, self._begun
        if at is not None and begun is not None and not begun.at <= at <= monotonic():
            return Mirror(problem=found.problem)
        return found

    def take_over(
        self, *, asked_at: float, new_acls: Collection[Acl] | None, new_quotas: Quotas | None
    ) -> Versions | None:
        """Show what brokers answered to a query of `asked_at`, monotonic seconds.

        None in place of a response: it is unchanged. Return None if something that was written
        lately is shown as well.
        """
        settled = asked_at - SETTLES_WITHIN
        with self.writing() as connection:
            if not _is_mirror(connection):
                raise StoreError(_NO_MIRROR)
            if new_acls is not None:
                acls.replace(connection, acls.with_recent(connection, new_acls, settled))
            if new_quotas is not None:
                quotas.replace(connection, quotas.with_recent(connection, new_quotas, settled))
            connection.execute("UPDATE mirror SET asked_at = ?, problem = NULL", (asked_at,))
            if _has_recent(connection):
                return None
            return Versions(acls.version(connection), quotas.version(connection))

    def note_problem(self, problem: str) -> None:
        """Record that brokers could not be queried, or did not answer."""
        with self.writing() as connection:
            connection.execute("UPDATE mirror SET problem = ?", (problem,))

    def note_acls(self, at: float, done: Collection[Acl], *, created: bool) -> None:
        """Brokers created, or deleted, these at `at`, monotonic seconds."""
        with self.writing() as connection:
            acls.note_recent(connection, at, done, created=created)

    def note_quotas(self, at: float, done: Changes) -> None:
        """Brokers did this at `at`, monotonic seconds."""
        with self.writing() as connection:
            quotas.note_recent(connection, at, done)


def _is_mirror(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM mirror").fetchone() is not None


def _has_its_own(connection: sqlite3.Connection) -> bool:
    return _has_rows(connection, "acls") or _has_rows(connection, "quotas")


def _has_recent(connection: sqlite3.Connection) -> bool:
    return _has_rows(connection, "recent_acls") or _has_rows(connection, "recent_quotas")


def _has_rows(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None  # noqa: S608
