"""A store's file that is replaced, restored, lost, or left by a writer that was killed."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest

from proxy.acl.model import AclFilter
from proxy.quota.model import CachedQuotas, QuotaEntity, QuotaKey
from proxy.store import CachedAcls, CachedCredentials, Store, open_store
from proxy.store.interface import StoreError, StoreInUse, StoreStart
from proxy.store.sqlite.migrations import STEPS
from proxy.store.sqlite.mirror import SqliteMirror
from tests.support.acls import acl
from tests.support.store import SHA_256, verifier

ALICE, BOB = ("alice", SHA_256), ("bob", SHA_256)
USER = QuotaEntity(user="u")
PRODUCER = QuotaKey.PRODUCER_BYTE_RATE

Restore = Callable[[Path, Path], None]


@pytest.fixture
def backup(path: Path) -> Path:
    return path.with_name("backup.db")


@pytest.fixture
def written(path: Path) -> Iterator[Store]:
    """The store as the command line has it open."""
    with closing(open_store(f"sqlite:{path}")) as opened:
        opened.create_acls([acl("a")])
        opened.alter_credentials(upsert={ALICE: verifier()})
        yield opened


@pytest.fixture
def read(path: Path, written: Store) -> Iterator[Store]:
    """What a worker has open."""
    with closing(open_store(f"sqlite:{path}", start=written.begin())) as opened:
        yield opened


def moved(backup: Path, path: Path) -> None:
    shutil.copy(backup, path.with_name("moved.db"))
    path.with_name("moved.db").rename(path)


def copied_by_sqlite(backup: Path, path: Path) -> None:
    """As `.restore` of its shell does: the file is the same one, with other content."""
    with closing(sqlite3.connect(backup)) as source, closing(sqlite3.connect(path)) as target:
        source.backup(target)


RESTORES = pytest.mark.parametrize("restore", [moved, copied_by_sqlite])


@RESTORES
def test_a_restore_is_what_applies_whatever_was_changed_before_and_after(
    written: Store,
    read: Store,
    path: Path,
    backup: Path,
    restore: Restore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As many changes after it as before it: counted one by one, nothing would seem to be new."""
    shutil.copy(path, backup)
    written.create_acls([acl("lost")])
    written.alter_credentials(upsert={BOB: verifier()})
    written.alter_quotas({USER: {PRODUCER: 5.0}})
    acls, users, quotas = CachedAcls(read), CachedCredentials(read), CachedQuotas(read)

    restore(backup, path)
    written.create_acls([acl("new")])
    written.alter_credentials(upsert={("carol", SHA_256): verifier()})
    written.alter_quotas({USER: {PRODUCER: 6.0}})

    acls.refresh_if_changed()
    users.refresh_if_changed()
    quotas.refresh_if_changed()
    assert {one.name for one in acls.index.matching(AclFilter())} == {"a", "new"}
    known = [name for name in ("alice", "bob", "carol") if users.find(name, SHA_256)]
    assert known == ["alice", "carol"]
    assert quotas.quotas == {USER: {PRODUCER: 6.0}}
    if restore is moved:
        assert caplog.text.count("was replaced or restored") == 1, "by who reads"


def test_an_older_state_is_told_where_the_file_is_the_same(
    written: Store, read: Store, path: Path, backup: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(path, backup)
    for number in range(3):
        written.create_acls([acl(str(number))])
    before = read.acl_version()
    copied_by_sqlite(backup, path)
    assert read.acl_version() < before
    assert read.acl_version() < before
    (reported,) = caplog.messages
    assert reported == (
        f"{path}: was replaced or restored: it is at change 2 of the store now, and was at 5"
    )


@RESTORES
def test_another_store_is_neither_read_nor_written(
    written: Store, read: Store, path: Path, backup: Path, restore: Restore
) -> None:
    """Nobody's ACLs would apply, or somebody else's."""
    open_store(f"sqlite:{backup}").close()
    shutil.copy(path, path.with_name("own.db"))
    restore(backup, path)
    before = path.read_bytes()
    for use in (
        read.acl_version,
        read.acl_snapshot,
        lambda: read.create_acls([acl("b")]),
        lambda: written.alter_credentials(upsert={BOB: verifier()}),
        lambda: open_store(f"sqlite:{path}", start=written.begin()),
    ):
        with pytest.raises(StoreError, match="is another store than the one that was opened"):
            use()
    assert path.read_bytes() == before
    restore(path.with_name("own.db"), path)
    assert read.acl_snapshot().acls == (acl("a"),)


def test_a_worker_never_makes_a_store(read: Store, path: Path) -> None:
    start = StoreStart(identity="0", at=monotonic())
    path.unlink()
    for use in (
        read.version,
        read.acl_snapshot,
        lambda: read.create_acls([acl("b")]),
        lambda: open_store(f"sqlite:{path}", start=start),
        lambda: open_store(f"broker:{path}", start=start),
    ):
        with pytest.raises(StoreError, match="No such file or directory"):
            use()
    assert not path.exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty, or the database of another program"),
        (b"no database" * 1000, "is not a SQLite database"),
    ],
)
def test_what_is_no_store_is_told(read: Store, path: Path, content: bytes, says: str) -> None:
    other = path.with_name("other")
    other.write_bytes(content)
    other.rename(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=says):
            read.version()
    assert path.read_bytes() == content


def test_half_a_copy_is_told(read: Store, written: Store, path: Path) -> None:
    written.create_acls([acl(f"t{number}") for number in range(2_000)])
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[:-20_000])
    other.rename(path)
    with pytest.raises(StoreError, match="is damaged"):
        read.version()


def of_schema(version: int, path: Path) -> None:
    """Make a file of an earlier release, with its log beside it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.execute("PRAGMA journal_mode = WAL")
        old.execute("PRAGMA application_id = 0x6B726170")
        for step in STEPS[:version]:
            step(old)
        old.execute(f"PRAGMA user_version = {version}")


def test_an_earlier_releases_file_is_for_a_restart(read: Store, path: Path, backup: Path) -> None:
    """A worker that changed it would be the one that makes a store, in the end."""
    of_schema(4, backup)
    backup.rename(path)
    with pytest.raises(StoreError, match=r"written by an older reauth-proxy \(schema 4, .*restart"):
        read.version()
    with closing(open_store(f"sqlite:{path}")) as start:
        assert start.version() == 0
        assert [one.name for one in path.parent.glob("state.db*")] == ["state.db"]


def test_a_write_to_a_file_that_is_replaced_meanwhile_is_not_done(path: Path, backup: Path) -> None:
    """A caller that gets a success would find nothing of its change."""
    with closing(Store(path)) as store:
        shutil.copy(path, backup)

        def write() -> None:
            with store.writing() as connection:
                connection.execute("UPDATE change_counter SET value = value + 1")
                backup.rename(path)

        with pytest.raises(StoreError, match="was replaced while it was written"):
            write()
        assert store.version() == 0


KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("DELETE FROM acls")
connection.execute("UPDATE acl_versions SET present = present + 1")
connection.executemany(
    "INSERT INTO quotas VALUES (?, 'x', 1.0)", ((str(number) * 100,) for number in range(1000))
)
os._exit(0)
"""


def test_what_a_killed_writer_left_is_undone_by_who_reads(read: Store, path: Path) -> None:
    """At the second look: what has just come may be of a file that was replaced."""
    before = read.acl_version()
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=True, timeout=180)
    journal = path.with_name("state.db-journal")
    assert journal.stat().st_size
    with pytest.raises(StoreError, match="a write was interrupted"):
        read.acl_version()
    with pytest.raises(StoreError, match="a write was interrupted"):
        read.acl_version()
    assert read.acl_version() == before
    assert read.acl_snapshot().acls == (acl("a"),)
    assert not journal.exists()


def test_the_journal_of_a_file_that_was_replaced_is_not_applied_by_who_reads(
    read: Store, written: Store, path: Path, backup: Path
) -> None:
    written.create_acls([acl(f"t{number}") for number in range(200)])
    shutil.copy(path, backup)
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=True, timeout=180)
    backup.rename(path)
    with pytest.raises(StoreError, match="a write was interrupted"):
        read.acl_version()
    path.with_name("state.db-journal").unlink()
    assert len(read.acl_snapshot().acls) == 201
    assert read.acl_version()


def test_opening_and_reading_wait_for_nobody_who_is_about_to_write(read: Store, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM acls")
        with closing(open_store(f"sqlite:{path}")) as other:
            assert other.acl_snapshot() == read.acl_snapshot()
        writer.execute("ROLLBACK")


def test_commands_are_refused_what_a_running_proxy_does_not_read(
    written: Store, path: Path, backup: Path
) -> None:
    """Their changes would not apply."""
    start = written.begin()
    reported = StoreInUse.read(json.loads(json.dumps(StoreInUse.of(path, start))))
    reported.refuse_others(path)
    shutil.copy(path, backup)
    with pytest.raises(StoreError, match=f"the running proxy reads another file, {path}"):
        reported.refuse_others(backup)
    backup.rename(path)
    StoreInUse.of(path, start).refuse_others(path)
    open_store(f"sqlite:{backup}").close()
    backup.rename(path)
    with pytest.raises(StoreError, match="is another store than the one that the running proxy"):
        StoreInUse.of(path, start).refuse_others(path)
    path.unlink()
    with pytest.raises(StoreError, match="was removed while a proxy runs"):
        StoreInUse.of(path, start).refuse_others(path)
    for answer in (None, [], ["path"], 5):
        with pytest.raises(ValueError, match="the answer has no store"):
            StoreInUse.read(answer)


def test_a_copy_of_before_the_start_shows_nothing_of_what_brokers_have(path: Path) -> None:
    """Its time may be of before the machine was started, and even seem to be to come."""
    with closing(SqliteMirror(path)) as follower:
        start = follower.begin()
        with closing(SqliteMirror(path, start)) as worker:
            for at, known in (
                (start.at - 1, False),
                (monotonic(), True),
                (monotonic() + 99, False),
            ):
                assert follower.take_over(asked_at=at, new_acls=[acl("a")], new_quotas={})
                assert (worker.mirror().asked_at is not None) is known
