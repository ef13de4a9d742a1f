"""The laws of `proxy.store.interface`, on real files."""

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.store import CachedCredentials, Store, open_store
from proxy.store.interface import StoreError
from proxy.store.sqlite.migrations import STEPS
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.acls import acl
from tests.support.processes import PATIENCE_SECONDS
from tests.support.store import PATIENT_WRITER

SHA_256 = ScramMechanism.SCRAM_SHA_256
SHA_512 = ScramMechanism.SCRAM_SHA_512


def credential(seed: int = 1, iterations: int = 4096) -> ScramCredential:
    return ScramCredential(
        salt=bytes([seed]) * 16,
        stored_key=bytes([seed]) * 32,
        server_key=bytes([seed + 1]) * 32,
        iterations=iterations,
    )


def test_credentials_are_kept_and_replaced(store: Store, path: Path) -> None:
    bob = {("bob", SHA_512): credential(3)}
    store.alter_credentials(upsert={("alice", SHA_256): credential(1)} | bob)
    replaced = {("alice", SHA_256): credential(5, 8192)}
    store.alter_credentials(upsert=replaced)
    with closing(open_store(f"sqlite:{path}")) as again:
        assert again.credential_snapshot().credentials == replaced | bob
        assert again.mechanisms() == {SHA_256.value, SHA_512.value}


def test_a_missing_deletion_keeps_nothing_else_from_being_done(store: Store) -> None:
    store.alter_credentials(upsert={("alice", SHA_256): credential()})

    missing = store.alter_credentials(
        delete=[("alice", SHA_256), ("alice", SHA_512), ("nobody", SHA_256)],
        upsert={("carol", SHA_256): credential()},
    )

    assert missing == {("alice", SHA_512), ("nobody", SHA_256)}
    assert store.credential_snapshot().credentials.keys() == {("carol", SHA_256)}


WEAK_VERIFIER = "scram_credentials VALUES ('eve', 'SCRAM-SHA-256', x'01', x'02', x'03', 1)"
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
BAD_QUOTAS = {QuotaEntity(user="u"): {PRODUCER: 5.0, CONSUMER: float("nan")}}  # SQLite's NULL


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.alter_credentials(
            upsert={("good", SHA_256): credential(), ("bad\ud800", SHA_256): credential()}
        ),
        lambda store: store.create_acls([acl("good"), acl("bad\ud800")]),
        lambda store: store.alter_quotas(BAD_QUOTAS),
    ],
    ids=["credentials", "ACLs", "quotas"],
)
def test_a_write_that_fails_leaves_nothing_behind(
    store: Store, change: Callable[[Store], object]
) -> None:
    """The second item cannot be stored, so the first must not be either."""

    def state() -> object:
        acls, quotas = store.acl_snapshot(), store.quota_snapshot()
        return store.version(), store.credential_snapshot(), acls.version, [*acls.acls], quotas

    before = state()
    with pytest.raises(StoreError):
        change(store)
    assert state() == before


def test_the_version_grows_with_changes_only(store: Store) -> None:
    """Each growth makes every worker read all credentials again."""
    first = store.version()
    store.alter_credentials(delete=[("nobody", SHA_256)], upsert={})
    assert store.version() == first
    store.alter_credentials(upsert={("alice", SHA_256): credential()})
    second = store.version()
    assert second > first
    store.alter_credentials(delete=[("alice", SHA_256)], upsert={})
    assert store.version() > second


def test_what_one_process_writes_the_others_see(store: Store, path: Path) -> None:
    """Workers poll the version; the command line is another process."""
    cached = CachedCredentials(store)
    assert cached.find("alice", SHA_256) is None
    assert not cached.refresh_if_changed()
    with closing(open_store(f"sqlite:{path}")) as other:
        other.alter_credentials(upsert={("alice", SHA_256): credential()})
    assert cached.refresh_if_changed()
    assert not cached.refresh_if_changed()
    assert cached.find("alice", SHA_256) == credential()
    assert cached.find("alice", SHA_512) is None


def test_several_that_open_a_new_store_at_once_agree(path: Path) -> None:
    """Workers start together and must share one secret: salts would distinguish them."""
    program = PATIENT_WRITER + (
        "import sys; from proxy.store import open_store;"
        "sys.stdin.readline(); print(open_store(sys.argv[1]).scram_fake_secret().hex())"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, f"sqlite:{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    printed = {worker.communicate(timeout=180)[0] for worker in workers}

    assert [worker.returncode for worker in workers] == [0] * 4
    assert len(printed) == 1
    assert len(bytes.fromhex(printed.pop())) == 32


def test_the_secret_is_another_in_another_store(store: Store, tmp_path: Path) -> None:
    other = open_store(f"sqlite:{tmp_path / 'other.db'}")
    assert other.scram_fake_secret() != store.scram_fake_secret()
    other.close()


def test_threads_may_share_a_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are made in threads, while the event loop reads."""
    failures: list[BaseException] = []
    for wait in ("_WRITE_WAIT_S", "_READ_WAIT_S"):
        monkeypatch.setattr(f"proxy.store.sqlite.database.{wait}", PATIENCE_SECONDS)

    def write(seed: int) -> None:
        try:
            for number in range(5):
                store.alter_credentials(upsert={(f"u{seed}-{number}", SHA_256): credential(seed)})
                store.credential_snapshot()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert failures == []
    assert len(store.credential_snapshot().credentials) == 20


def test_nobody_else_may_read_the_files(store: Store, path: Path) -> None:
    """Verifiers can be guessed at offline."""
    store.alter_credentials(upsert={("alice", SHA_256): credential()})
    with store.writing() as connection:
        connection.execute("UPDATE change_counter SET value = value + 1")
        files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert files == {"state.db": 0o600, "state.db-journal": 0o600}


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    Store(path).close()
    path.chmod(0o664)
    Store(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o660, "the group may be meant"


def test_writes_are_synced(path: Path) -> None:
    """An answered AlterUserScramCredentials survives a power cut."""
    store = Store(path)
    with store.writing() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,), "EXTRA"
    store.close()


def _not_a_database(path: Path) -> None:
    path.write_bytes(b"# not a database\n" * 100)


def _damaged(path: Path) -> None:
    open_store(f"sqlite:{path}").close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096)


def _other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def _newer(path: Path) -> None:
    open_store(f"sqlite:{path}").close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (_not_a_database, "is not a SQLite database"),
        (_damaged, "is damaged"),
        (_other_program, "is the database of another program"),
        (_newer, "was written by a newer reauth-proxy"),
        (Path.mkdir, "cannot be opened: Is a directory"),
        (lambda path: path.parent.rmdir(), "cannot be opened: No such file or directory"),
    ],
)
def test_a_store_that_cannot_be_used_is_one_sentence(
    path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StoreError) as caught:
        open_store(f"sqlite:{path}")
    assert str(caught.value).startswith(f"{path}: {says}")
    assert "\n" not in str(caught.value)
    assert before is None or path.read_bytes() == before
    assert path not in [one.resolve() for one in Path("/proc/self/fd").iterdir()], "is left open"


@pytest.mark.parametrize(
    ("row", "read", "problem"),
    [
        (WEAK_VERIFIER, Store.credential_snapshot, "iterations"),
        (
            "acls VALUES (2, 3, 'x', 'User:a', '*', 99, 2)",
            Store.acl_snapshot,
            "the code 99 in an ACL",
        ),
        ("quotas VALUES ('users', 'producer_byte_rate', 1.0)", Store.quota_snapshot, ""),
        ("quotas VALUES ('users/a', 'bytes', 1.0)", Store.quota_snapshot, ""),
        ("quotas VALUES ('users/a/b/c', 'x', 1.0)", Store.quota_snapshot, ""),
    ],
)
def test_a_bad_row_is_one_sentence(
    store: Store, path: Path, row: str, read: Callable[[Store], object], problem: str
) -> None:
    """Somebody wrote by hand: nothing is taken, rather than all but a denial."""
    store.create_acls([acl("a")])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"INSERT INTO {row}")
    with pytest.raises(StoreError, match=f"has an invalid value: .*{problem}"):
        read(store)


def test_names_are_told_apart_exactly(store: Store) -> None:
    """No folding of case or of Unicode forms, no end at a NUL: each would be another's login."""
    names = ["alice", "Alice", "alice ", "alice\0x", "é", "e\u0301", "' OR 1=1 --"]
    store.alter_credentials(
        upsert={(name, SHA_256): credential(seed) for seed, name in enumerate(names, 1)}
    )
    found = store.credential_snapshot().credentials
    assert {name: found[name, SHA_256] for name in names} == {
        name: credential(seed) for seed, name in enumerate(names, 1)
    }


def test_urls_of_other_kinds_are_refused() -> None:
    for url in ("", "sqlite:", "mysql:x", os.devnull):
        with pytest.raises(StoreError):
            open_store(url)
