"""One SQLite file: connections, transactions, and what is told when it fails.

Readers and the writer do not wait for each other (WAL). A write uses a connection of its own, so
that the event loop, which only reads, never waits for a disk to sync.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from proxy.store.interface import StoreError
from proxy.store.sqlite.migrations import migrate

_WRITE_WAIT_S: Final = 5.0
"""How long a writer waits for another one."""
_READ_WAIT_S: Final = 0.1
"""Readers wait only while another process recovers the log, and may be on an event loop."""
_FILE_MODE: Final = 0o600
"""Verifiers can be guessed at offline: nobody else may read them. SQLite gives its side files
the same mode."""


class Database:
    """What the tables of one file are reached through."""

    def __init__(self, path: Path) -> None:
        """Open the file, make it if there is none, and bring its schema up to date."""
        self._path = path
        self._lock = threading.Lock()
        with self.explained():
            _create_private(path)
            with closing(self._connect(_WRITE_WAIT_S)) as connection:
                _prepare(connection)
            self._reader = self._connect(_READ_WAIT_S)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._reader.close()

    def _connect(self, wait_s: float) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=wait_s, isolation_level=None, check_same_thread=False
        )
        try:
            # WAL's default would lose the last writes with the power: answers must be kept
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One moment's view of the data: the lock is held for the time of a read."""
        with self._lock, self.explained(), _transaction(self._reader, "BEGIN"):
            yield self._reader

    @contextmanager
    def viewing(self) -> Iterator[sqlite3.Connection]:
        """One moment's view for a long read, on a connection of its own: it holds up nobody."""
        with (
            self.explained(),
            closing(self._connect(_READ_WAIT_S)) as connection,
            _transaction(connection, "BEGIN"),
        ):
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is durable when it ends, or nothing of it was done."""
        with (
            self.explained(),
            closing(self._connect(_WRITE_WAIT_S)) as connection,
            _transaction(connection, "BEGIN IMMEDIATE"),
        ):
            yield connection

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Whatever goes wrong is one sentence."""
        try:
            yield
        except StoreError as error:
            raise StoreError(f"{self._path}: {error}") from None
        except OSError as error:
            raise StoreError(f"{self._path}: cannot be opened: {error.strerror}") from error
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise StoreError(f"{self._path}: {_reason(error)}") from error


def _create_private(path: Path) -> None:
    """Make the file before SQLite does, so that it is never readable by others."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE))


def _prepare(connection: sqlite3.Connection) -> None:
    with _transaction(connection, "BEGIN IMMEDIATE"):
        migrate(connection)
    # Outside a transaction, and after the check that the file is ours to change
    connection.execute("PRAGMA journal_mode = WAL")
    if (found := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise StoreError(f"is damaged: {str(found).splitlines()[0]}")


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
        case "SQLITE_FULL":
            return "cannot be written: the disk is full"
        case name if name.startswith("SQLITE_READONLY"):
            return "cannot be written: read-only"
        case name if name.startswith("SQLITE_CORRUPT"):
            return "is damaged"
        case _ if isinstance(error, sqlite3.Error):
            return f"cannot be used: {error}"
        case _:
            return f"holds a value that it must not: {error}"
