"""SQLite file of the store: connections, transactions, and errors.

Rules:

- Reading never writes, so it works with a full or read-only disk and while a writer waits. The file
  therefore has a rollback journal and not a WAL: readers of a WAL write to its index, and SQLite
  would apply the WAL of a replaced file to the new one.
- A replacement of the file is detected at the next read or write.
- A store opened with a `StoreStart` never creates a file or changes its schema, and never reads
  another store.

Each write has its own connection, so that readers never wait for a sync of the disk, except while
the changes are copied to the file.
"""

import logging
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import quote

from proxy.scheduling.file_signature import Signature, signature_of
from proxy.store.interface import StoreError, StoreStart
from proxy.store.sqlite.migrations import STEPS, is_current, migrate, schema_version

log = logging.getLogger(__name__)

_WRITE_WAIT_S: Final = 5.0
"""Maximum time in seconds that a writer waits for another writer, and for readers."""
_READ_WAIT_S: Final = 5.0
"""Maximum time in seconds that a reader waits for a writer that is copying its changes to the file,
or is waiting to do so."""
_FILE_MODE: Final = 0o600
"""Mode of the file. Verifiers allow guessing passwords offline, so only the owner may read them.
SQLite creates its journal with the same mode."""
_VERSION_STEP_BITS: Final = 32
"""Number of low bits of a 63-bit version that count changes, enough for four billion."""
_OTHER_STORE: Final = (
    "is another store than the one that was opened: restore that one, or restart the proxy to use"
    " this one"
)

_File = tuple[int, int]
"""Pair of device and inode."""


class _Seen(NamedTuple):
    """State of the file at the last read."""

    file: _File
    change: int
    """Number of the store's last change."""


class Database:
    """Connections to the tables of one file."""

    def __init__(self, path: Path, start: StoreStart | None = None) -> None:
        """Open the file. With `start`, it must be the store of that start.

        Without it, the file is created if needed, and its schema is brought up to date. Raises
        StoreError.
        """
        self._path = path
        self._lock = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._reader_file: _File | None = None
        self._seen: _Seen | None = None
        self._is_closed = False
        self._journal: Signature = None
        """Signature of the journal of an interrupted write at the last read; None if the journal
        did not exist."""
        self._start = start
        if start is not None:
            self._identity = start.identity
        else:
            with self.explained():
                self._identity = self._prepared()
        try:
            with self.reading():
                pass
        except StoreError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file permanently: a late reader must not open it again."""
        with self._lock:
            self._is_closed = True
            self._close_reader()

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _connect(self, mode: Literal["ro", "rw"], wait_s: float) -> sqlite3.Connection:
        self._path.stat()  # unlike SQLite's error, its error has the reason
        return sqlite3.connect(
            _uri(self._path, mode),
            uri=True,
            timeout=wait_s,
            isolation_level=None,
            check_same_thread=False,
        )

    def _prepared(self) -> str:
        """Create the store or bring it up to date if needed; return its identity."""
        if not self._path.is_file():
            # Before SQLite creates the file, so that other users can never read it
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))
        else:
            _hide_from_others(self._path)
        with closing(self._connect("rw", _WRITE_WAIT_S)) as connection:
            if not is_current(connection):
                with _transaction(connection, "BEGIN IMMEDIATE"):
                    migrate(connection)
            # Outside a transaction, and only after checking that the file is ours
            if connection.execute("PRAGMA journal_mode").fetchone() != ("delete",):
                connection.execute("PRAGMA journal_mode = DELETE")
            return _identity_and_change(connection)[0]

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection with a consistent view of the data. It excludes other short reads."""
        with self._lock, self.explained():
            reader = self._current_reader()
            try:
                with _transaction(reader, "BEGIN"):
                    self._recognize(reader)
                    yield reader
            except (sqlite3.Error, StoreError):
                self._close_reader()  # an open file would prevent its repair
                raise

    @contextmanager
    def viewing(self) -> Iterator[sqlite3.Connection]:
        """Yield a separate connection with a consistent view, for long reads."""
        with (
            self.explained(),
            closing(self._connect("ro", _READ_WAIT_S)) as connection,
            _transaction(connection, "BEGIN"),
        ):
            self._require_identity(connection)
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection with a transaction, which at the end is either durable or rolled
        back."""
        with self.explained():
            file = _file_at(self._path)
            with closing(self._connect("rw", _WRITE_WAIT_S)) as connection:
                # With FULL, a power failure may lose the end of the journal, and so the write
                connection.execute("PRAGMA synchronous = EXTRA")
                with _transaction(connection, "BEGIN IMMEDIATE"):
                    self._require_identity(connection)
                    before = connection.total_changes
                    yield connection
                    if connection.total_changes > before:
                        connection.execute("UPDATE store SET changes = changes + 1")
            if _file_at(self._path) != file:
                raise StoreError("was replaced while it was written: check its content")

    def _current_reader(self) -> sqlite3.Connection:
        """Return a connection to the file that is at the path now."""
        if self._is_closed:
            raise StoreError("is closed")
        file = _file_at(self._path)
        if self._reader is None or file != self._reader_file:
            self._close_reader()
            self._reader = self._connect("ro", _READ_WAIT_S)
            self._reader_file = file
        return self._reader

    def _recognize(self, reader: sqlite3.Connection) -> None:
        """Check that the file is the same store as before; log a replacement of the file."""
        try:
            change = self._require_identity(reader)
        except sqlite3.Error as error:
            if error.sqlite_errorname == "SQLITE_READONLY_ROLLBACK":
                self._undo_if_abandoned()
            raise
        assert self._reader_file is not None
        now, before = _Seen(self._reader_file, change), self._seen
        if before is None or now.file != before.file or now.change < before.change:
            if (found := reader.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise StoreError(f"is damaged: {str(found).splitlines()[0]}")
            if before is not None:
                log.warning(
                    "%s: was replaced or restored: it is at change %d of the store now, and was at"
                    " %d",
                    self._path,
                    now.change,
                    before.change,
                )
        self._seen = now

    def _require_identity(self, connection: sqlite3.Connection) -> int:
        """Return the number of the store's last change. Raises StoreError for another store."""
        identity, change = _identity_and_change(connection)
        if identity != self._identity:
            raise StoreError(_OTHER_STORE)
        return change

    def _undo_if_abandoned(self) -> None:
        """Roll back an interrupted write if its journal has not changed since the last read.

        SQLite does this on a writable connection. A new journal may belong to a file that was
        replaced meanwhile, and must not be applied to this one.
        """
        found = signature_of(self._path.with_name(f"{self._path.name}-journal"))
        journal = found and found[:-1]  # without its ctime, which SQLite changes by reading it
        if journal is not None and journal == self._journal:
            with closing(self._connect("rw", _READ_WAIT_S)) as connection:
                _identity_and_change(connection)
        self._journal = journal

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert every failure to a StoreError with one sentence."""
        try:
            yield
        except StoreError as error:
            raise StoreError(f"{self._path}: {error}") from None
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be opened: {error.strerror}") from error
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise StoreError(f"{self._path}: {_reason(error)}") from error


def version_step() -> int:
    """Return the random number that a change adds to a version.

    It is not one, because a store that was restored from a copy, and then changed, must not get a
    version that it had before the restore with other content.
    """
    return 1 + secrets.randbits(_VERSION_STEP_BITS)


def identity_of(path: Path) -> str | None:
    """Return the identity of the store in a file; None if the file is not a readable store."""
    try:
        uri = _uri(path, "ro")
        with closing(sqlite3.connect(uri, uri=True, timeout=_READ_WAIT_S)) as connection:
            return _identity_and_change(connection)[0]
    except (sqlite3.Error, StoreError):
        return None


def _uri(path: Path, mode: str) -> str:
    """Return the URI of a store for SQLite (sqlite.org/uri.html).

    `Path.as_uri` loads urllib.request on Python 3.14, for as long as the proxy runs.
    """
    return f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"


def _identity_and_change(connection: sqlite3.Connection) -> tuple[str, int]:
    """Return the store's identity, and the number of its last change."""
    version = schema_version(connection)
    if version < len(STEPS):
        raise StoreError(
            "is empty, or the database of another program"
            if version == 0
            else f"was written by an older reauth-proxy (schema {version}, this one has"
            f" {len(STEPS)}): restart the proxy to update it"
        )
    identity, change = connection.execute("SELECT identity, changes FROM store").fetchone()
    return str(identity), int(change)


def _file_at(path: Path) -> _File:
    found = path.stat()
    return found.st_dev, found.st_ino


def _hide_from_others(path: Path) -> None:
    """Remove access for users outside the file's group, which an earlier version or a copy
    granted."""
    mode = path.stat().st_mode
    if mode & 0o007:
        try:
            path.chmod(mode & 0o770)
        except OSError as error:
            log.warning("%s: other users may read it: %s", path, error.strerror)


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _reason(error: Exception) -> str:
    match getattr(error, "sqlite_errorname", ""):
        case "SQLITE_NOTADB":
            return "is not a SQLite database"
        case "SQLITE_BUSY" | "SQLITE_LOCKED" | "SQLITE_BUSY_RECOVERY" | "SQLITE_BUSY_SNAPSHOT":
            return "is locked by another program"
        case "SQLITE_READONLY_ROLLBACK":
            return "cannot be read: a write was interrupted, which the next reads undo"
        case "SQLITE_FULL":
            return "cannot be written: the disk is full"
        case name if name.startswith("SQLITE_READONLY"):
            return "cannot be written: it is read-only"
        case name if name.startswith("SQLITE_CORRUPT"):
            return "is damaged"
        case _ if isinstance(error, sqlite3.Error):
            return f"cannot be used: {error}"
        case _:
            return f"has an invalid value: {error}"
