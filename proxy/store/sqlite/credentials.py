"""SCRAM verifiers and secrets in the database."""

import sqlite3
from collections.abc import Collection, Mapping

from proxy.store.interface import CredentialKey, CredentialSnapshot
from proxy.store.sqlite.database import Database, version_step
from proxy.store.sqlite.migrations import SCRAM_FAKE_SECRET
from sasl.credentials import ScramCredential, ScramMechanism


class SqliteCredentials(Database):
    """Credentials in a SQLite file, a `proxy.store.UserStore`."""

    def version(self) -> int:
        """Return the number of the last change."""
        with self.reading() as connection:
            return _version(connection)

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
