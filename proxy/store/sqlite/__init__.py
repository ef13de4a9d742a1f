"""Store in one SQLite file, shared by the workers and the command line."""

import logging
import sqlite3
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Final

from proxy.store.interface import CredentialKey, CredentialSnapshot, Mirror, StoreError, StoreStart
from proxy.store.sqlite.acls import SqliteAcls
from proxy.store.sqlite.database import Database, version_step
from proxy.store.sqlite.migrations import SCRAM_FAKE_SECRET
from proxy.store.sqlite.quotas import SqliteQuotas
from sasl.credentials import ScramCredential, ScramMechanism


class SqliteCredentials(Database):
    """Credentials in a SQLite file, a `proxy.store.UserStore`."""

    def version(self) -> int:
        """Return the number of the last change."""
        with self.reading() as connection:
            return _version(connection)

    def mechanisms(self) -> frozenset[str]:
        """Return the SCRAM mechanisms that any user has a credential for."""
        with self.reading() as connection:
            rows = connection.execute("SELECT DISTINCT mechanism FROM scram_credentials").fetchall()
        return frozenset(mechanism for (mechanism,) in rows)

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential, with the version of the snapshot."""
        with self.reading() as connection:
            version = _version(connection)
            rows = connection.execute(
                "SELECT user, mechanism, salt, stored_key, server_key, iterations"
                " FROM scram_credentials"
            ).fetchall()
        with self.explained():
            credentials = {
                (user, ScramMechanism(mechanism)): ScramCredential(
                    salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations
                )
                for user, mechanism, salt, stored_key, server_key, iterations in rows
            }
        return CredentialSnapshot(version=version, credentials=credentials)

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> frozenset[CredentialKey]:
        """Delete, then insert or replace; return the keys in `delete` that did not exist."""
        with self.writing() as connection:
            missing = frozenset(
                (user, mechanism)
                for user, mechanism in delete
                if not connection.execute(
                    "DELETE FROM scram_credentials WHERE user = ? AND mechanism = ?",
                    (user, mechanism.value),
                ).rowcount
            )
            connection.executemany(
                "INSERT OR REPLACE INTO scram_credentials"
                " (user, mechanism, salt, stored_key, server_key, iterations)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (
                        user,
                        mechanism.value,
                        one.salt,
                        one.stored_key,
                        one.server_key,
                        one.iterations,
                    )
                    for (user, mechanism), one in upsert.items()
                ),
            )
            if upsert or len(missing) < len(delete):
                connection.execute("UPDATE change_counter SET value = value + ?", (version_step(),))
        return missing

    def scram_fake_secret(self) -> bytes:
        """Return the 32 random bytes from which salts of users that do not exist are derived."""
        with self.reading() as connection:
            row = connection.execute(
                "SELECT value FROM secrets WHERE name = ?", (SCRAM_FAKE_SECRET,)
            ).fetchone()
            return bytes(row[0])


def _version(connection: sqlite3.Connection) -> int:
    """Return the number of the last change."""
    value = connection.execute("SELECT value FROM change_counter").fetchone()[0]
    return int(value)


log = logging.getLogger(__name__)

_NEVER_KNOWN: Final = (
    "has a copy of brokers' ACLs and quotas that was not updated since the last start: use broker:"
    " until the proxy is ready, or another file"
)

USED_OTHERWISE: Final = (
    "the proxy that runs uses it with another kind of `store.url`: restart it instead"
)


class Store(SqliteCredentials, SqliteAcls, SqliteQuotas):
    """Store in a SQLite file, with the rules of `proxy.store.interface`."""

    def begin(self) -> StoreStart:
        """Start the proxy with this store. A mirror becomes the proxy's own store.

        Call it once, before any worker opens the store. Raises StoreError.
        """
        if (mirror := self.mirror()) is not None:
            self._make_its_own(mirror)
        return StoreStart(identity=self._identity, at=monotonic())

    def join(self) -> StoreStart:
        """Start the proxy while another proxy uses this store as its own.

        Call it in place of `begin`; the content does not change. Raises StoreError.
        """
        if self.mirror() is not None:
            raise StoreError(f"{self._path}: {USED_OTHERWISE}")
        return StoreStart(identity=self._identity, at=monotonic())

    def _make_its_own(self, mirror: Mirror) -> None:
        if mirror.asked_at is None:
            raise StoreError(f"{self._path}: {_NEVER_KNOWN}")
        with self.writing() as connection:
            connection.execute("DELETE FROM mirror")
        log.warning("%s: the copy of brokers' ACLs and quotas is now this proxy's own", self._path)

    def mirror(self) -> Mirror | None:
        """Return the state of the copy of ACLs and quotas; None if they are this file's own.

        Requests must not be judged by a copy before its first answer, because a missing ACL may be
        a DENY.
        """
        with self.reading() as connection:
            row = connection.execute("SELECT asked_at, problem FROM mirror").fetchone()
        return None if row is None else Mirror(asked_at=row[0], problem=row[1])

    def brokers(self, cluster: str) -> dict[int, tuple[str, int]]:
        """Return host and port of each stored broker of a cluster, by id."""
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT id, host, port FROM brokers WHERE cluster = ?", (cluster,)
            ).fetchall()
        return {broker_id: (host, port) for broker_id, host, port in rows}

    def keep_brokers(self, cluster: str, brokers: Mapping[int, tuple[str, int]]) -> None:
        """Add brokers of a cluster, or replace their addresses, all in one transaction."""
        with self.writing() as connection:
            connection.executemany(
                "INSERT INTO brokers VALUES (?, ?, ?, ?) ON CONFLICT (cluster, id)"
                " DO UPDATE SET host = excluded.host, port = excluded.port"
                " WHERE host != excluded.host OR port != excluded.port",
                [(cluster, broker_id, host, port) for broker_id, (host, port) in brokers.items()],
            )

    def rollout_rows(self, since: int) -> tuple[int, dict[str, str]]:
        """Return the version of the evidence, and its rows that changed since another version."""
        with self.reading() as connection:
            return _rollout_rows(connection, since)

    def change_rollout(
        self, since: int, change: Callable[[dict[str, str]], Mapping[str, str | None]]
    ) -> int:
        """Write the rows that `change` makes of those that changed since a version; None deletes a
        row. Return the new version."""
        with self.writing() as connection:
            version, rows = _rollout_rows(connection, since)
            changed = change(rows)
            version += version_step()
            connection.executemany(
                "DELETE FROM rollout WHERE name = ?",
                [(name,) for name, value in changed.items() if value is None],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO rollout VALUES (?, ?, ?)",
                [(name, version, value) for name, value in changed.items() if value is not None],
            )
        return version


def _rollout_rows(connection: sqlite3.Connection, since: int) -> tuple[int, dict[str, str]]:
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM rollout").fetchone()
    known = since if since <= version else 0  # a restored copy is older
    rows = connection.execute("SELECT name, value FROM rollout WHERE version > ?", (known,))
    return version, dict(rows.fetchall())
