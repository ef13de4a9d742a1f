"""ACLs in the database, with a log of their latest changes.

After a request that changed a few ACLs, workers read only the log. The log is bounded; a worker
whose version is older than the log reads all ACLs.
"""

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.store.interface import AclChanges, AclSnapshot
from proxy.store.sqlite.database import Database, version_step

_MAX_CHANGES: Final = 20_000
"""Number of changes that the log keeps, which need some megabytes. It may have more until the next
request."""
_COLUMNS: Final = tuple(Acl.__dataclass_fields__)
_LIST: Final = ", ".join(_COLUMNS)
_MARKS: Final = ", ".join("?" * len(_COLUMNS))
_EXACT: Final = " AND ".join(f"{column} = ?" for column in _COLUMNS)
_RESOURCE_TYPES: Final = {one.value: one for one in ResourceType if one > ResourceType.ANY}
_PATTERN_TYPES: Final = {one.value: one for one in PatternType if one > PatternType.MATCH}
_OPERATIONS: Final = {one.value: one for one in Operation if one > Operation.ANY}
_PERMISSIONS: Final = {one.value: one for one in Permission if one > Permission.ANY}

_Row = tuple[Any, ...]


class SqliteAcls(Database):
    """ACLs in a SQLite file, the ACLs of a `Store`."""

    def acl_version(self) -> int:
        """Return the number of the last change of ACLs."""
        with self.reading() as connection:
            return _versions(connection)[0]

    def acl_snapshot(self) -> AclSnapshot:
        """Return all ACLs, sorted, with the version of the snapshot."""
        with self.viewing() as connection:
            version, _ = _versions(connection)
            # The primary key has this order, and SQLite compares texts as Python does
            rows = connection.execute(f"SELECT {_LIST} FROM acls ORDER BY {_LIST}")  # noqa: S608
            return AclSnapshot(version=version, acls=tuple(_acls(rows)))

    def acl_changes(self, since: int) -> AclChanges | None:
        """Return the changes since a version; None if they are no longer known."""
        with self.viewing() as connection:
            version, changes_after = _versions(connection)
            if since not in (version, changes_after) and not _is_logged(connection, since):
                return None
            rows = connection.execute(
                f"SELECT created, {_LIST} FROM acl_changes WHERE version > ? ORDER BY id",  # noqa: S608
                (since,),
            ).fetchall()
        with self.explained():
            last = {
                acl: bool(row[0]) for row, acl in zip(rows, _acls(r[1:] for r in rows), strict=True)
            }
        return AclChanges(
            version=version,
            created=tuple(acl for acl, created in last.items() if created),
            deleted=tuple(acl for acl, created in last.items() if not created),
        )

    def create_acls(self, acls: Collection[Acl]) -> int:
        """Add ACLs; existing ones do not change. Return the version afterwards.

        Codes of filters (ANY, MATCH) are not allowed.
        """
        with self.writing() as connection:
            new = [
                acl
                for acl in acls
                if connection.execute(
                    f"INSERT OR IGNORE INTO acls ({_LIST}) VALUES ({_MARKS})",  # noqa: S608
                    _row(acl),
                ).rowcount
            ]
            return _log(connection, new, created=True)

    def delete_acls(self, filters: Sequence[AclFilter]) -> tuple[tuple[Acl, ...], ...]:
        """Delete the ACLs that any filter matches; return those of each filter, sorted.

        An ACL may be in several results.
        """
        with self.writing() as connection:
            found: dict[AclFilter, tuple[Acl, ...]] = {}
            for wanted in filters:
                if wanted not in found:
                    found[wanted] = tuple(_matching(connection, wanted))
            deleted = list(dict.fromkeys(acl for acls in found.values() for acl in acls))
            connection.executemany(f"DELETE FROM acls WHERE {_EXACT}", map(_row, deleted))  # noqa: S608
            _log(connection, deleted, created=False)
        return tuple(found[wanted] for wanted in filters)


def replace(connection: sqlite3.Connection, acls: Collection[Acl]) -> None:
    """Replace all ACLs with these, inside the caller's write transaction."""
    rows = connection.execute(f"SELECT {_LIST} FROM acls")  # noqa: S608
    present, wanted = {*_acls(rows)}, {*acls}
    old, new = sorted(present - wanted), sorted(wanted - present)
    connection.executemany(f"DELETE FROM acls WHERE {_EXACT}", map(_row, old))  # noqa: S608
    connection.executemany(f"INSERT INTO acls ({_LIST}) VALUES ({_MARKS})", map(_row, new))  # noqa: S608
    _log(connection, old, created=False)
    _log(connection, new, created=True)


def note_recent(
    connection: sqlite3.Connection, at: float, acls: Collection[Acl], *, created: bool
) -> None:
    """Record that brokers created or deleted ACLs at `at`, monotonic seconds, inside the caller's
    write transaction."""
    connection.executemany(
        f"INSERT INTO recent_acls (at, created, {_LIST}) VALUES (?, ?, {_MARKS})",  # noqa: S608
        ((at, created, *_row(acl)) for acl in acls),
    )


def with_recent(
    connection: sqlite3.Connection, acls: Collection[Acl], since: float
) -> Collection[Acl]:
    """Return these ACLs with the recorded changes after `since` applied.

    Earlier records are deleted.
    """
    connection.execute("DELETE FROM recent_acls WHERE at <= ?", (since,))
    rows = connection.execute(
        f"SELECT created, {_LIST} FROM recent_acls ORDER BY at, rowid"  # noqa: S608
    ).fetchall()
    if not rows:
        return acls
    present = {*acls}
    for (created, *_), acl in zip(rows, _acls(row[1:] for row in rows), strict=True):
        (present.add if created else present.discard)(acl)
    return present


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the last change of ACLs."""
    return _versions(connection)[0]


def _versions(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the current version, and the version after which all changes are in the log."""
    present, changes_after = connection.execute(
        "SELECT present, changes_after FROM acl_versions"
    ).fetchone()
    return int(present), int(changes_after)


def _log(connection: sqlite3.Connection, acls: Sequence[Acl], *, created: bool) -> int:
    """Log changes, if there are any, under a new version; return the version."""
    version, _ = _versions(connection)
    if not acls:
        return version
    version += version_step()
    connection.execute("UPDATE acl_versions SET present = ?", (version,))
    if len(acls) <= _MAX_CHANGES:
        connection.executemany(
            f"INSERT INTO acl_changes (version, created, {_LIST}) VALUES (?, ?, {_MARKS})",  # noqa: S608
            ((version, created, *_row(acl)) for acl in acls),
        )
    else:
        _forget_changes(connection, version)
    last = connection.execute("SELECT max(id) FROM acl_changes").fetchone()[0]
    beyond = connection.execute(
        "SELECT max(version) FROM acl_changes WHERE id <= ?", ((last or 0) - _MAX_CHANGES,)
    ).fetchone()[0]
    if beyond is not None:
        _forget_changes(connection, beyond)
    return version


def _is_logged(connection: sqlite3.Connection, version: int) -> bool:
    """Return whether the log has this version. After the restore of a backup it may not."""
    return (
        connection.execute(
            "SELECT 1 FROM acl_changes WHERE version = ? LIMIT 1", (version,)
        ).fetchone()
        is not None
    )


def _forget_changes(connection: sqlite3.Connection, version: int) -> None:
    """Remove the changes up to this version from the log, which keeps the changes of a version as a
    whole."""
    connection.execute("DELETE FROM acl_changes WHERE version <= ?", (version,))
    connection.execute("UPDATE acl_versions SET changes_after = ?", (version,))


def _matching(connection: sqlite3.Connection, wanted: AclFilter) -> Iterator[Acl]:
    """Yield the ACLs that a filter matches. The database preselects by equal columns."""
    columns: dict[str, object] = {}
    if wanted.resource_type is not ResourceType.ANY:
        columns["resource_type"] = wanted.resource_type.value
    if wanted.pattern_type not in (PatternType.ANY, PatternType.MATCH):
        columns["pattern_type"] = wanted.pattern_type.value
    if wanted.name is not None and wanted.pattern_type is not PatternType.MATCH:
        columns["name"] = wanted.name
    if wanted.principal is not None:
        columns["principal"] = wanted.principal
    if wanted.host is not None:
        columns["host"] = wanted.host
    where = " AND ".join(f"{column} = ?" for column in columns) or "TRUE"
    rows = connection.execute(
        f"SELECT {_LIST} FROM acls WHERE {where} ORDER BY {_LIST}",  # noqa: S608
        tuple(columns.values()),
    )
    return (acl for acl in _acls(rows) if wanted.matches(acl))


def _row(acl: Acl) -> _Row:
    # An ACL that cannot be read back would make the whole store unusable
    assert acl.resource_type.value in _RESOURCE_TYPES, acl
    assert acl.pattern_type.value in _PATTERN_TYPES, acl
    assert acl.operation.value in _OPERATIONS, acl
    assert acl.permission.value in _PERMISSIONS, acl
    return (
        acl.resource_type.value,
        acl.pattern_type.value,
        acl.name,
        acl.principal,
        acl.host,
        acl.operation.value,
        acl.permission.value,
    )


def _acls(rows: Iterable[_Row]) -> Iterator[Acl]:
    """Yield the ACLs in rows. Equal texts share an object. Raises ValueError for unknown codes."""
    texts: dict[str, str] = {}
    for resource_type, pattern_type, name, principal, host, operation, permission in rows:
        try:
            yield Acl(
                _RESOURCE_TYPES[resource_type],
                _PATTERN_TYPES[pattern_type],
                texts.setdefault(name, name),
                texts.setdefault(principal, principal),
                texts.setdefault(host, host),
                _OPERATIONS[operation],
                _PERMISSIONS[permission],
            )
        except KeyError as error:
            raise ValueError(f"the code {error.args[0]} in an ACL") from None
