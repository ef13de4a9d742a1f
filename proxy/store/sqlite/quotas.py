"""Quotas in the database, by entity path (KIP-55) and key."""

import sqlite3

from proxy.quota.model import (
    BadEntity,
    Changes,
    QuotaEntity,
    QuotaKey,
    Quotas,
    QuotaSnapshot,
    altered,
)
from proxy.store.sqlite.database import Database, version_step


class SqliteQuotas(Database):
    """Quotas in a SQLite file, a `proxy.quota.model.QuotaStore`."""

    def quota_version(self) -> int:
        """Return the number of the last change of quotas."""
        with self.reading() as connection:
            return version(connection)

    def quota_snapshot(self) -> QuotaSnapshot:
        """Return every quota, with the version of the snapshot."""
        with self.viewing() as connection:
            return QuotaSnapshot(version=version(connection), quotas=_all(connection))

    def alter_quotas(self, changes: Changes) -> None:
        """Set and remove quotas, all in one transaction."""
        with self.writing() as connection:
            alter(connection, changes)


def replace(connection: sqlite3.Connection, quotas: Quotas) -> None:
    """Replace all quotas with these, inside the caller's write transaction."""
    changes: dict[QuotaEntity, dict[QuotaKey, float | None]] = {
        entity: dict.fromkeys(limits) for entity, limits in _all(connection).items()
    }
    for entity, limits in quotas.items():
        changes.setdefault(entity, {}).update(limits)
    alter(connection, changes)


def note_recent(connection: sqlite3.Connection, at: float, changes: Changes) -> None:
    """Record that brokers changed quotas at `at`, monotonic seconds, inside the caller's write
    transaction."""
    connection.executemany(
        "INSERT INTO recent_quotas (at, entity_path, key, value) VALUES (?, ?, ?, ?)",
        (
            (at, entity.entity_path, key.value, value)
            for entity, ops in changes.items()
            for key, value in ops.items()
        ),
    )


def with_recent(connection: sqlite3.Connection, quotas: Quotas, since: float) -> Quotas:
    """Return these quotas with the recorded changes after `since` applied.

    Earlier records are deleted.
    """
    connection.execute("DELETE FROM recent_quotas WHERE at <= ?", (since,))
    rows = connection.execute(
        "SELECT entity_path, key, value FROM recent_quotas ORDER BY at, rowid"
    )
    changes: dict[QuotaEntity, dict[QuotaKey, float | None]] = {}
    for path, key, value in rows:
        changes.setdefault(_entity(path), {})[QuotaKey(key)] = value
    return altered(quotas, changes) if changes else quotas


def _all(connection: sqlite3.Connection) -> dict[QuotaEntity, dict[QuotaKey, float]]:
    quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}
    rows = connection.execute(
        "SELECT entity_path, key, value FROM quotas ORDER BY entity_path, key"
    )
    for path, key, value in rows:
        quotas.setdefault(_entity(path), {})[QuotaKey(key)] = value
    return quotas


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the last change of quotas."""
    return int(connection.execute("SELECT value FROM quota_version").fetchone()[0])


def _entity(path: str) -> QuotaEntity:
    try:
        return QuotaEntity.from_entity_path(path)
    except BadEntity as bad:
        raise ValueError(str(bad)) from None


def alter(connection: sqlite3.Connection, changes: Changes) -> None:
    """Set and remove quotas, inside the caller's write transaction."""
    changed = sum(
        _alter(connection, entity.entity_path, key, value)
        for entity, ops in changes.items()
        for key, value in ops.items()
    )
    if changed:
        connection.execute("UPDATE quota_version SET value = value + ?", (version_step(),))


def _alter(connection: sqlite3.Connection, path: str, key: QuotaKey, value: float | None) -> int:
    """Set or remove one limit; return the number of rows changed, 0 or 1."""
    if value is None:
        return connection.execute(
            "DELETE FROM quotas WHERE entity_path = ? AND key = ?", (path, key.value)
        ).rowcount
    return connection.execute(
        "INSERT INTO quotas (entity_path, key, value) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET value = excluded.value WHERE value != excluded.value",
        (path, key.value, value),
    ).rowcount
