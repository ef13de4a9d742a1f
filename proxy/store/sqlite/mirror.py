"""ACLs and quotas that brokers keep, as they were when the brokers were last asked.

What is written through the proxy is in the mirror at once. An answer that a broker gave before,
or soon after, may not have it yet, and is not taken over: it would undo the change until the next
answer.
"""

import sqlite3
from collections.abc import Collection
from typing import Final

from proxy.acl.model import Acl
from proxy.quota.model import Quotas
from proxy.store.interface import StoreError
from proxy.store.sqlite import SqliteStore, acls, quotas

SETTLES_WITHIN: Final = 1.0
"""Seconds in which every broker has learnt of a change, as a rule: it is a record that they all
fetch (KIP-631)."""


class SqliteMirror(SqliteStore):
    """A `proxy.store.Store` whose ACLs and quotas are copies."""

    def begin(self) -> None:
        """The proxy starts: what the mirror shows is known no more. Raises StoreError."""
        with self.writing() as connection:
            if not _is_mirror(connection) and _has_its_own(connection):
                raise StoreError(
                    "holds ACLs or quotas of its own, which the brokers' would replace: use"
                    " another file, or have them at the brokers and delete them here"
                )
            connection.execute("INSERT OR REPLACE INTO mirror (id) VALUES (0)")

    def take_over(
        self, *, asked_at: float, new_acls: Collection[Acl] | None, new_quotas: Quotas | None
    ) -> bool:
        """Show what brokers answered when they were asked at `asked_at`, monotonic seconds.

        None: they were asked for no such thing, or answered as before. False: not shown, because
        it may be older than what was written since.
        """
        with self.writing() as connection:
            (altered_at,) = connection.execute("SELECT altered_at FROM mirror").fetchone()
            if altered_at is not None and asked_at < altered_at + SETTLES_WITHIN:
                return False
            if new_acls is not None:
                acls.replace(connection, new_acls)
            if new_quotas is not None:
                quotas.replace(connection, new_quotas)
            connection.execute("UPDATE mirror SET asked_at = ?, problem = NULL", (asked_at,))
        return True

    def note_problem(self, problem: str) -> None:
        """Brokers could not be asked, or did not answer."""
        with self.writing() as connection:
            connection.execute("UPDATE mirror SET problem = ?", (problem,))

    def altered(self, at: float) -> None:
        """Brokers did at `at`, monotonic seconds, what is written here next."""
        with self.writing() as connection:
            connection.execute("UPDATE mirror SET altered_at = ?", (at,))


def _is_mirror(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM mirror").fetchone() is not None


def _has_its_own(connection: sqlite3.Connection) -> bool:
    return any(
        connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()  # noqa: S608
        for table in ("acls", "quotas")
    )
