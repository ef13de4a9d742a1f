"""ACLs in a SQLite file: the laws of `proxy.store.interface`, kills included."""

import random
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.store import Store, open_store
from proxy.store.sqlite import acls as acls_module
from proxy.store.sqlite.migrations import APPLICATION_ID, STEPS
from tests.support.store import PATIENT_WRITER

TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED


def acl(name: str, principal: str = "User:alice", pattern_type: PatternType = LITERAL) -> Acl:
    return Acl(TOPIC, pattern_type, name, principal, "*", Operation.READ, Permission.ALLOW)


def test_acls_are_kept_in_their_order(store: Store, path: Path) -> None:
    many = [
        acl(name) for name in ("b", "é", "a\0b", "a", "\U0001f600", "\uffff", "A", "' OR 1=1 --")
    ]
    many += [acl("a", pattern_type=PREFIXED), acl("a", "User:bob")]
    store.create_acls(many)
    again = open_store(f"sqlite:{path}")
    assert list(again.acl_snapshot().acls) == sorted(many)
    again.close()


NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "a\0b"])
ACLS = st.lists(
    st.builds(
        acl, NAMES, st.sampled_from(["User:a", "User:b"]), st.sampled_from([LITERAL, PREFIXED])
    ),
    max_size=8,
)
FILTERS = st.lists(
    st.builds(
        AclFilter,
        resource_type=st.sampled_from([ResourceType.ANY, TOPIC, ResourceType.GROUP]),
        pattern_type=st.sampled_from(PatternType),
        name=st.none() | NAMES,
        principal=st.sampled_from([None, "User:a"]),
        host=st.sampled_from([None, "*", "x"]),
        operation=st.sampled_from(Operation),
    ),
    max_size=3,
)


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(ACLS, FILTERS), max_size=4), limit=st.sampled_from([3, 1000]))
def test_the_store_is_a_set_and_its_log_leads_from_any_version_to_the_last(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[list[Acl], list[AclFilter]]],
    limit: int,
) -> None:
    """`limit`: a log that is too short for it returns None, never a part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acls_module, "_MAX_CHANGES", limit)
        path = tmp_path_factory.mktemp("store") / "state.db"
        store = open_store(f"sqlite:{path}")
        known: set[Acl] = set()
        history = {store.acl_version(): frozenset(known)}
        for created, filters in steps:
            store.create_acls(created)
            known |= {*created}
            history[store.acl_version()] = frozenset(known)
            gone = [tuple(sorted(one for one in known if f.matches(one))) for f in filters]
            assert store.delete_acls(filters) == tuple(gone)
            known -= {one for found in gone for one in found}
            history[store.acl_version()] = frozenset(known)
        snapshot = store.acl_snapshot()
        assert list(snapshot.acls) == sorted(known)
        for version, then in history.items():
            changes = store.acl_changes(version)
            if changes is not None:
                assert then - {*changes.deleted} | {*changes.created} == known
                assert changes.version == snapshot.version
            else:
                assert limit == 3
        store.close()


def test_versions_of_another_store_are_not_known(store: Store) -> None:
    """A backup was put in the file's place: versions went back."""
    store.create_acls([acl("a")])
    assert store.acl_changes(store.acl_version() + 5) is None


def test_a_large_request_is_not_in_the_log(store: Store) -> None:
    many = [acl(f"t{number:06}") for number in range(20_001)]
    before = store.acl_version()
    after = store.create_acls(many)
    assert store.acl_changes(before) is None
    assert list(store.acl_snapshot().acls) == many
    store.create_acls([acl("a")])
    changes = store.acl_changes(after)
    assert changes is not None
    assert changes.created == (acl("a"),)


WRITER = """
import sys
from proxy.acl.model import *
from proxy.store import open_store
store = open_store(sys.argv[1])
run = sys.argv[2]
def acl(request, number):
    return Acl(ResourceType.TOPIC, PatternType.LITERAL, f"{run}-{request}-{number}", "User:a", "*",
               Operation.READ, Permission.ALLOW)
print("ready", flush=True)
for request in range(10_000):
    store.create_acls([acl(request, number) for number in range(20)])
    print("created", request, flush=True)
    if request % 2:
        store.delete_acls([AclFilter(name=acl(request, number).name) for number in range(20)])
        print("deleted", request, flush=True)
"""


def test_what_was_acknowledged_outlives_a_kill(path: Path) -> None:
    """SIGKILL at any moment: acknowledged requests are there, and each is there whole or not."""
    seed = random.Random(1)  # noqa: S311 - moments to kill at, not secrets
    acknowledged = 0
    for run in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, f"sqlite:{path}", str(run)],
            stdout=subprocess.PIPE,
            text=True,
        ) as writer:
            assert writer.stdout
            assert writer.stdout.readline() == "ready\n"
            first = [writer.stdout.readline() for _ in range(seed.randrange(4, 24))]
            killer = threading.Timer(seed.uniform(0.0, 0.05), writer.kill)
            killer.start()
            reported = [line.split() for line in [*first, *writer.stdout.read().splitlines()]]
            killer.join()
        _assert_whole(path, run, [(line[0], int(line[1])) for line in reported if len(line) == 2])
        acknowledged += len(reported)
    assert acknowledged > 20


def _assert_whole(path: Path, run: int, reported: list[tuple[str, int]]) -> None:
    store = open_store(f"sqlite:{path}")
    counts: dict[int, int] = {}
    snapshot = store.acl_snapshot()
    for one in snapshot.acls:
        of_run, request, _ = one.name.split("-")
        if int(of_run) == run:
            counts[int(request)] = counts.get(int(request), 0) + 1
    assert set(counts.values()) <= {20}
    deleted = {request for did, request in reported if did == "deleted"}
    created = {request for did, request in reported if did == "created"}
    assert not deleted & counts.keys()
    # The last may have been deleted without an acknowledgement
    last = max(created, default=0)
    assert created - deleted - {last} <= counts.keys()
    assert last % 2 or last in counts or not created
    # The log was cut in the same transactions as the ACLs
    changes = store.acl_changes(0)
    assert changes is not None
    assert {*changes.created} == {*snapshot.acls}
    store.close()


def test_several_processes_write_at_once(path: Path) -> None:
    """None is lost, and none waits forever."""
    open_store(f"sqlite:{path}").close()
    program = PATIENT_WRITER + WRITER.replace("10_000", "10").replace("request % 2", "False")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", program, f"sqlite:{path}", str(run)], stdout=subprocess.DEVNULL
        )
        for run in range(2)
    ]
    assert [writer.wait(180) for writer in writers] == [0, 0]
    store = open_store(f"sqlite:{path}")
    assert len(store.acl_snapshot().acls) == 2 * 10 * 20
    store.close()


def test_a_database_of_the_first_release_is_brought_up_to_date(path: Path) -> None:
    """Its verifiers and its version stay, and it is not a copy of brokers' ACLs."""
    old = sqlite3.connect(path)
    old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    STEPS[0](old)
    old.execute(
        "INSERT INTO scram_credentials VALUES"
        " ('alice', 'SCRAM-SHA-256', zeroblob(16), zeroblob(32), zeroblob(32), 4096)"
    )
    old.execute("UPDATE change_counter SET value = 7")
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()

    store = open_store(f"sqlite:{path}")
    assert [user for user, _ in store.credential_snapshot().credentials] == ["alice"]
    assert store.version() == 7
    assert list(store.acl_snapshot().acls) == []
    assert store.quota_snapshot().quotas == {}
    assert store.mirror() is None
    store.create_acls([acl("a")])
    store.close()
    store = open_store(f"sqlite:{path}")
    assert list(store.acl_snapshot().acls) == [acl("a")]
    store.close()


def test_a_long_read_does_not_hold_up_a_short_one(store: Store) -> None:
    """Of the version, say, while a thread reads everything."""
    with store.viewing() as connection:
        connection.execute("SELECT * FROM acls").fetchone()
        done = threading.Thread(target=store.acl_version)
        done.start()
        done.join(60)
        assert not done.is_alive()


def test_what_could_not_be_read_again_is_not_written(store: Store) -> None:
    """Callers refuse it with the right error; this is a check of our own."""
    for wrong in (ResourceType.ANY, ResourceType.UNKNOWN):
        with pytest.raises(AssertionError):
            store.create_acls([replace(acl("a"), resource_type=wrong)])
    assert list(store.acl_snapshot().acls) == []
