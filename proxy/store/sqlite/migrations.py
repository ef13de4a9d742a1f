"""Schema of the database, as a list of migrations.

Rules: a released step is never edited; a change is another step at the end. One transaction applies
all missing steps. A database of a newer program is refused.
"""

import secrets
import sqlite3
from collections.abc import Callable
from typing import Final

from proxy.store.interface import StoreError

APPLICATION_ID: Final = 0x6B72_6170
"""Value of `PRAGMA application_id` (`krap`), which identifies this program's databases."""
SCRAM_FAKE_SECRET: Final = "scram-fake"  # noqa: S105 - its name, not the secret
_SECRET_BYTES: Final = 32
_IDENTITY_BYTES: Final = 16


def _credentials_and_secrets(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE change_counter ("
        " id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL) STRICT"
    )
    connection.execute("INSERT INTO change_counter VALUES (0, 0)")
    connection.execute(
        "CREATE TABLE scram_credentials ("
        " user TEXT NOT NULL, mechanism TEXT NOT NULL, salt BLOB NOT NULL,"
        " stored_key BLOB NOT NULL, server_key BLOB NOT NULL, iterations INTEGER NOT NULL,"
        " PRIMARY KEY (user, mechanism)) STRICT, WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID"
    )
    connection.execute(
        "INSERT INTO secrets VALUES (?, ?)", (SCRAM_FAKE_SECRET, secrets.token_bytes(_SECRET_BYTES))
    )


_ACL: Final = (
    "resource_type INTEGER NOT NULL, pattern_type INTEGER NOT NULL, name TEXT NOT NULL,"
    " principal TEXT NOT NULL, host TEXT NOT NULL, operation INTEGER NOT NULL,"
    " permission INTEGER NOT NULL"
)


def _acls(connection: sqlite3.Connection) -> None:
    connection.execute(
        f"CREATE TABLE acls ({_ACL}, PRIMARY KEY (resource_type, pattern_type, name,"
        " principal, host, operation, permission)) STRICT, WITHOUT ROWID"
    )
    connection.execute("CREATE INDEX acls_of_principal ON acls (principal)")
    connection.execute(
        "CREATE TABLE acl_changes (id INTEGER PRIMARY KEY AUTOINCREMENT,"
        f" version INTEGER NOT NULL, created INTEGER NOT NULL, {_ACL}) STRICT"
    )
    connection.execute("CREATE INDEX acl_changes_of_version ON acl_changes (version)")
    connection.execute(
        "CREATE TABLE acl_versions (id INTEGER PRIMARY KEY CHECK (id = 0),"
        " present INTEGER NOT NULL, changes_after INTEGER NOT NULL) STRICT"
    )
    connection.execute("INSERT INTO acl_versions VALUES (0, 0, 0)")


def _quotas(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE quotas (entity_path TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL,"
        " PRIMARY KEY (entity_path, key)) STRICT, WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE quota_version ("
        " id INTEGER PRIMARY KEY CHECK (id = 0), value INTEGER NOT NULL) STRICT"
    )
    connection.execute("INSERT INTO quota_version VALUES (0, 0)")


def _mirror(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE mirror (id INTEGER PRIMARY KEY CHECK (id = 0),"
        " asked_at REAL, problem TEXT) STRICT"
    )
    connection.execute(
        f"CREATE TABLE recent_acls (at REAL NOT NULL, created INTEGER NOT NULL, {_ACL}) STRICT"
    )
    connection.execute(
        "CREATE TABLE recent_quotas (at REAL NOT NULL, entity_path TEXT NOT NULL,"
        " key TEXT NOT NULL, value REAL) STRICT"
    )


def _identity(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE store (id INTEGER PRIMARY KEY CHECK (id = 0),"
        " identity TEXT NOT NULL, changes INTEGER NOT NULL) STRICT"
    )
    connection.execute("INSERT INTO store VALUES (0, ?, 0)", (secrets.token_hex(_IDENTITY_BYTES),))


def _brokers(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE brokers (cluster TEXT NOT NULL, id INTEGER NOT NULL, host TEXT NOT NULL,"
        " port INTEGER NOT NULL, PRIMARY KEY (cluster, id)) STRICT, WITHOUT ROWID"
    )


def _mirrored_users(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE mirror ADD COLUMN users INTEGER NOT NULL DEFAULT 0")


def _rollout(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE rollout (name TEXT PRIMARY KEY, version INTEGER NOT NULL,"
        " value TEXT NOT NULL) STRICT, WITHOUT ROWID"
    )
    connection.execute("CREATE INDEX rollout_of_version ON rollout (version)")


STEPS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (
    _credentials_and_secrets,
    _acls,
    _quotas,
    _mirror,
    _identity,
    _brokers,
    _mirrored_users,
    _rollout,
)
"""Migrations. The step at index N leads from version N to N + 1 (`PRAGMA user_version`)."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database to the current version, inside the caller's write transaction."""
    version = schema_version(connection)
    if not _is_ours(connection):
        _refuse_if_used(connection)
        version = 0
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for step in STEPS[version:]:
        step(connection)
    connection.execute(f"PRAGMA user_version = {len(STEPS)}")


def is_current(connection: sqlite3.Connection) -> bool:
    """Return whether no migration is needed. Raises StoreError for a newer program's database."""
    return schema_version(connection) == len(STEPS) and _is_ours(connection)


def schema_version(connection: sqlite3.Connection) -> int:
    """Return the version of the database. Raises StoreError for a newer program's."""
    version = _pragma(connection, "user_version")
    if version > len(STEPS) and _is_ours(connection):
        raise StoreError(
            f"was written by a newer reauth-proxy (schema {version}, this one knows {len(STEPS)})"
        )
    return version


def _is_ours(connection: sqlite3.Connection) -> bool:
    return _pragma(connection, "application_id") == APPLICATION_ID


def _refuse_if_used(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StoreError("is the database of another program")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value = connection.execute(f"PRAGMA {name}").fetchone()[0]
    assert isinstance(value, int)
    return value
