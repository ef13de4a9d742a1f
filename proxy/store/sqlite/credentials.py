"""SCRAM verifiers and secrets in the database."""

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from proxy.store.interface import CredentialKey, CredentialSnapshot
from proxy.store.sqlite.database import Database, version_step
from proxy.store.sqlite.migrations import SCRAM_FAKE_SECRET
from sasl.credentials import ScramCredential, ScramMechanism

_Row = tuple[Any, ...]


class SqliteCredentials(Database):
    """Credentials in a SQLite file, a `proxy.store.UserStore`."""

    def version(self) -> int:
        """Return the number of the last change."""
        with self.reading() as connection:
            return version(connection)

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential, with the version of the snapshot."""
        with self.reading() as connection:
            at, rows = version(connection), _rows(connection)
        with self.explained():
            return CredentialSnapshot(version=at, credentials=_credentials(rows))

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> frozenset[CredentialKey]:
        """Delete, then insert or replace; return the keys in `delete` that did not exist."""
        with self.writing() as connection:
            return alter(connection, delete, upsert)

    def scram_fake_secret(self) -> bytes:
        """Return the 32 random bytes from which salts of users that do not exist are derived."""
        with self.reading() as connection:
            row = connection.execute(
                "SELECT value FROM secrets WHERE name = ?", (SCRAM_FAKE_SECRET,)
            ).fetchone()
            return bytes(row[0])


def replace(
    connection: sqlite3.Connection, credentials: Mapping[CredentialKey, ScramCredential]
) -> None:
    """Replace all credentials with these, inside the caller's write transaction."""
    present = _credentials(_rows(connection))
    changed = {key: one for key, one in credentials.items() if present.get(key) != one}
    alter(connection, present.keys() - credentials.keys(), changed)


def replace_secret(connection: sqlite3.Connection, secret: bytes) -> None:
    """Replace the secret from which salts are derived, inside the caller's write transaction."""
    connection.execute(
        "UPDATE secrets SET value = ? WHERE name = ? AND value != ?",
        (secret, SCRAM_FAKE_SECRET, secret),
    )


def _rows(connection: sqlite3.Connection) -> list[_Row]:
    return connection.execute(
        "SELECT user, mechanism, salt, stored_key, server_key, iterations FROM scram_credentials"
    ).fetchall()


def _credentials(rows: Iterable[_Row]) -> dict[CredentialKey, ScramCredential]:
    return {
        (user, ScramMechanism(mechanism)): ScramCredential(
            salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations
        )
        for user, mechanism, salt, stored_key, server_key, iterations in rows
    }


def alter(
    connection: sqlite3.Connection,
    delete: Collection[CredentialKey],
    upsert: Mapping[CredentialKey, ScramCredential],
) -> frozenset[CredentialKey]:
    """Delete, then insert or replace, inside the caller's write transaction; return the keys in
    `delete` that did not exist."""
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
            (user, mechanism.value, one.salt, one.stored_key, one.server_key, one.iterations)
            for (user, mechanism), one in upsert.items()
        ),
    )
    if upsert or len(missing) < len(delete):
        connection.execute("UPDATE change_counter SET value = value + ?", (version_step(),))
    return missing


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the last change."""
    value = connection.execute("SELECT value FROM change_counter").fetchone()[0]
    return int(value)
