"""What a worker knows of its store: nothing by default, and nobody is let in before it does; and
what clients ask of it: in nobody's way, and not asked for nobody."""

import asyncio
import re
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from proxy import handlers
from proxy.store import Store
from proxy.store.interface import StoreError
from proxy.store.sqlite.mirror import SqliteMirror
from proxy.store.users_file import UsersFile
from proxy.wire.apis import (
    ALTER_USER_SCRAM_CREDENTIALS,
    CREATE_ACLS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
)
from proxy.worker import store_service
from tests.support.acls import acl, create_body, creation
from tests.support.processes import PATIENCE_SECONDS, turns, until
from tests.support.store import (
    NOT_YET,
    SHA_256,
    Reading,
    answered,
    content,
    create_question,
    denied,
    describe_question,
    of,
    put,
    question,
    users_question,
    verifier,
)
from tests.support.store import plain as plain


def test_nothing_is_known_by_default(plain: Store, mirror: SqliteMirror) -> None:
    """Of a store of its own neither, before it was read."""
    for store in (plain, mirror):
        assert Reading(store).keeper.not_ready() == NOT_YET


def test_a_store_of_its_own_is_known_when_it_was_read(plain: Store) -> None:
    plain.create_acls([acl()])
    reading = Reading(plain)
    asyncio.run(asyncio.wait_for(reading.keeper.known(), PATIENCE_SECONDS))
    assert reading.keeper.not_ready() == []
    assert (reading.acls(), reading.store.looks) == (1, 1)


async def test_a_mirror_is_waited_for(mirror: SqliteMirror) -> None:
    """Content from before the start does not count."""
    answered(mirror, acl("of before"))
    mirror.begin()
    reading = Reading(mirror)
    waiting = asyncio.create_task(reading.keeper.known())
    await until(lambda: reading.store.looks >= 2)
    assert not waiting.done()
    assert reading.keeper.not_ready() == NOT_YET
    mirror.note_problem("the brokers are away")
    await until(lambda: reading.keeper.not_ready() == ["the brokers are away"])
    assert not waiting.done()
    answered(mirror, acl("a"), acl("b"))
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert (reading.keeper.not_ready(), reading.acls()) == ([], 2)


@pytest.mark.parametrize("failing", ["mirror", "version", "acl_version", "scram_fake_secret"])
async def test_a_store_that_cannot_be_read_is_not_known(mirror: SqliteMirror, failing: str) -> None:
    """However much of it can: an answer of the brokers is of no use before it is applied."""
    reading = Reading(mirror)
    answered(mirror, acl("a"))
    reading.store.broken = {failing}
    waiting = asyncio.create_task(reading.keeper.known())
    await until(lambda: reading.store.looks >= 2)
    assert not waiting.done()
    assert reading.keeper.not_ready() == ["state.db: is damaged"]
    reading.store.broken.clear()
    await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert (reading.keeper.not_ready(), reading.acls()) == ([], 1)


@pytest.mark.parametrize("after", ["mirror", "version", "acl_version"])
def test_what_is_known_has_been_applied(mirror: SqliteMirror, after: str) -> None:
    """An answer that comes while the store is read: no ACLs would be applied as all of them."""
    reading = Reading(mirror)
    reading.store.then[after] = lambda: answered(mirror, acl("a"))
    reading.refresh()
    assert reading.keeper.not_ready() == NOT_YET
    reading.refresh()
    assert (reading.keeper.not_ready(), reading.acls()) == ([], 1)


def test_what_was_known_goes_on_applying(
    mirror: SqliteMirror, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, although no clients should come."""
    answered(mirror, acl("a"))
    reading = Reading(mirror)
    reading.refresh()
    mirror.note_problem("the brokers are away")
    reading.refresh()
    assert (reading.keeper.not_ready(), reading.acls()) == (["the brokers are away"], 1)
    answered(mirror, acl("a"), acl("b"))
    reading.store.broken = {"acl_version"}
    for _ in range(3):
        reading.refresh()
        assert (reading.keeper.not_ready(), reading.acls()) == (["state.db: is damaged"], 1)
    assert [one.getMessage() for one in caplog.records] == ["state.db: is damaged"]
    reading.store.broken.clear()
    reading.refresh()
    assert (reading.keeper.not_ready(), reading.acls()) == ([], 2)
    assert caplog.messages[1:] == ["the store is read again"]
    reading.store.broken = {"mirror"}
    reading.refresh()
    assert caplog.messages[2:] == ["state.db: is damaged"], "another time is told anew"


def test_a_mistake_of_the_proxy_keeps_clients_away_until_it_has_passed(
    mirror: SqliteMirror, caplog: pytest.LogCaptureFixture
) -> None:
    """Revoked permissions would continue to apply silently."""
    answered(mirror, acl("a"))
    reading = Reading(mirror)
    reading.refresh()
    answered(mirror, acl("a"), acl("b"))
    reading.store.each["acl_version"] = lambda: int("a mistake")
    for _ in range(3):
        reading.refresh()
        assert (reading.keeper.not_ready(), reading.acls()) == ([store_service.FAILED], 1)
    assert len(caplog.records) == 1, "it is told once"
    reading.store.each.clear()
    reading.refresh()
    assert (reading.keeper.not_ready(), reading.acls()) == ([], 2)


@pytest.mark.parametrize("known_then", [True, False])
def test_an_older_copy_of_what_brokers_have_is_not_applied(
    mirror: SqliteMirror, known_then: bool
) -> None:
    """Permissions revoked since then would be allowed again, as long as the brokers are away."""
    backup = mirror._path.with_name("backup.db")
    if known_then:
        answered(mirror, acl("taken away since"), at=monotonic() - 10)
    shutil.copy(mirror._path, backup)
    answered(mirror)
    reading = Reading(mirror)
    reading.refresh()
    assert (reading.keeper.not_ready(), reading.acls()) == ([], 0)
    backup.rename(mirror._path)
    reading.refresh()
    (reason,) = reading.keeper.not_ready()
    assert "is older than the copy in use" in reason
    assert reading.acls() == 0
    answered(mirror, acl("a"), acl("b"))
    reading.refresh()
    assert (reading.keeper.not_ready(), reading.acls()) == ([], 2)


def test_connections_are_judged_anew_when_acls_change(mirror: SqliteMirror) -> None:
    """And not each time that the brokers answer."""
    answered(mirror, acl("a"), at=monotonic() - 10)
    reading = Reading(mirror)
    reading.refresh()
    before = reading.judged_anew
    answered(mirror, acl("a"))
    reading.refresh()
    assert reading.judged_anew == before
    answered(mirror, acl("b"))
    reading.refresh()
    assert reading.judged_anew == before + 1


def test_the_age_counts_from_the_question(mirror: SqliteMirror) -> None:
    """A readable file does not prove that it matches the brokers: the process that keeps it up to
    date may hang, or be unable to write."""
    answered(mirror, acl("a"), at=monotonic() - 1_000)
    reading = Reading(mirror)
    reading.refresh()
    assert 1_000 <= reading.age() < 1_000 + PATIENCE_SECONDS
    (reason,) = reading.keeper.not_ready()
    assert re.fullmatch(r"the brokers' ACLs and quotas were last read 1\d{3} s ago", reason)
    answered(mirror, acl("a"), at=monotonic() - 500)
    reading.store.broken = {"acl_version"}
    reading.refresh()
    assert reading.age() >= 1_000, "an answer that was not read makes nothing younger"
    reading.store.broken.clear()
    reading.refresh()
    assert 500 <= reading.age() < 500 + PATIENCE_SECONDS


def test_what_was_never_known_is_as_old_as_the_start(mirror: SqliteMirror) -> None:
    """No client is let in then, and the alert on the age must fire."""
    reading = Reading(mirror)
    reading.keeper._began -= 1_000
    reading.refresh()
    assert reading.age() >= 1_000
    answered(mirror)
    reading.refresh()
    assert reading.age() < 1_000


def test_the_age_of_a_store_of_its_own_counts_from_its_reading(plain: Store) -> None:
    reading = Reading(plain)
    reading.refresh()
    read_before = monotonic()
    reading.store.broken = {"version"}
    reading.refresh()
    assert reading.keeper._read_at <= read_before, "an attempt is no reading"
    reading.store.broken.clear()
    reading.refresh()
    assert reading.keeper._read_at > read_before


def test_a_file_that_somebody_broke_is_told(mirror: SqliteMirror) -> None:
    """In one sentence; the last known content continues to apply."""
    answered(mirror, acl("a"))
    reading = Reading(mirror)
    reading.refresh()
    with closing(sqlite3.connect(mirror._path)) as other:
        other.execute("DROP TABLE mirror")
        other.commit()
    reading.refresh()
    (reason,) = reading.keeper.not_ready()
    assert "no such table" in reason
    assert reading.acls() == 1


# What clients ask


class Busy:
    """Threads of somebody's, kept busy until the end of the block."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        """Released by each that is busy."""
        self._over = threading.Event()

    def __call__(self) -> None:
        self.began.release()
        assert self._over.wait(PATIENCE_SECONDS)

    async def began_in(self, threads: int) -> None:
        for _ in range(threads):
            assert await asyncio.to_thread(self.began.acquire, timeout=PATIENCE_SECONDS)

    def __enter__(self) -> "Busy":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()


async def test_changes_that_wait_are_in_nobodys_way(plain: Store) -> None:
    """Brokers that keep the ACLs may be silent, and many may ask for changes meanwhile."""
    reading = Reading(plain)
    consult = reading.keeper.consult
    with Busy() as busy:
        reading.store.then["create_acls"] = busy
        changes = [asyncio.create_task(consult(create_question())) for _ in range(41)]
        await busy.began_in(threads=1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            for one in (denied(create_question()), *[describe_question()] * 3):
                await consult(one)
            await reading.keeper.refresh()
        assert not any(one.done() for one in changes)
    await asyncio.gather(*changes)
    assert reading.acls() == 1


async def test_a_change_that_waited_too_long_is_not_made(
    plain: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for it has given up, and may have asked for something else; what is under way by
    then is made all the same."""
    reading = Reading(plain)
    late = question(CREATE_ACLS, create_body(3, [creation(resource_name="late")]))
    with Busy() as busy:
        reading.store.then["create_acls"] = busy
        first = asyncio.create_task(reading.keeper.consult(create_question()))
        await busy.began_in(threads=1)
        monkeypatch.setattr(store_service, "MAX_WAIT", 0.01)
        with pytest.raises(StoreError, match=r"no answer within 0\.01 s"):
            await reading.keeper.consult(late)
        monkeypatch.undo()  # however long the disk takes
        first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(reading.keeper.consult(create_question()), PATIENCE_SECONDS)
    assert reading.acls() == 1, "the first was under way"


async def test_questions_are_in_no_way_of_the_looks_at_the_store(plain: Store) -> None:
    """However many there are, and however long they take: what is removed ends within a second."""
    reading = Reading(plain)
    await reading.keeper.refresh()
    with Busy() as busy:
        reading.store.each["credential_snapshot"] = busy
        asked = [asyncio.create_task(reading.keeper.consult(users_question())) for _ in "x" * 99]
        async with asyncio.timeout(PATIENCE_SECONDS):
            await busy.began_in(threads=2)
            plain.create_acls([acl("a")])
            await reading.keeper.refresh()
            assert not any(one.done() for one in asked)
    await asyncio.gather(*asked)
    assert reading.acls() == 1


async def test_questions_need_none_of_the_threads_of_others(plain: Store) -> None:
    """Nor do they have the store looked at: they change nothing."""
    reading = Reading(plain)
    with Busy() as busy:
        shared = ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(shared)
        looking = asyncio.create_task(asyncio.to_thread(busy))
        async with asyncio.timeout(PATIENCE_SECONDS):
            for one in (users_question(), describe_question(), denied(create_question())):
                await reading.keeper.consult(one)
    await looking
    assert reading.store.looks == 0


async def test_who_has_no_right_is_in_the_way_of_none_who_has(plain: Store) -> None:
    reading = Reading(plain)
    with Busy() as busy:
        asyncio.get_running_loop().run_in_executor(reading.keeper._refusals, busy)
        refused = asyncio.create_task(reading.keeper.consult(denied(users_question())))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await busy.began_in(threads=1)
            for one in (users_question(), create_question()):
                await reading.keeper.consult(one)
            assert not refused.done()
    await refused
    assert reading.acls() == 1, "a change is in force when it is answered"


@pytest.mark.parametrize("given_up", ["late", "gone"])
async def test_a_question_that_is_given_up_is_not_asked(
    plain: Store, monkeypatch: pytest.MonkeyPatch, given_up: str
) -> None:
    """When its time is over, or nobody awaits it any more."""
    reading = Reading(plain)
    asked: list[str] = []
    reading.store.each["acl_version"] = lambda: asked.append("late")
    keeper = reading.keeper
    with Busy() as busy:
        for _ in range(2):
            asyncio.get_running_loop().run_in_executor(keeper._questions, busy)
        await busy.began_in(threads=2)
        if given_up == "late":
            monkeypatch.setattr(store_service, "MAX_WAIT", 0.01)
            with pytest.raises(StoreError, match="no answer within"):
                await keeper.consult(describe_question())
            monkeypatch.undo()
        else:
            question = asyncio.create_task(keeper.consult(describe_question()))
            await turns()
            question.cancel()
            await asyncio.gather(question, return_exceptions=True)
    await asyncio.wait_for(keeper.consult(users_question()), PATIENCE_SECONDS)
    assert asked == []


def test_the_time_of_a_question_is_told(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(plain)
    clock = iter((5, 12))
    monkeypatch.setattr(handlers, "thread_time_ns", lambda: next(clock))
    _, spent_ns = asyncio.run(cast(Any, reading.keeper.consult(users_question())))
    assert spent_ns == 7


def test_acls_that_were_told_are_in_force(plain: Store) -> None:
    """Somebody else changed them; a client that sees the change here can rely on it here."""
    reading = Reading(plain)
    plain.create_acls([acl("a")])
    asyncio.run(cast(Any, reading.keeper.consult(describe_question())))
    assert (reading.acls(), reading.judged_anew) == (1, 1)


async def test_the_store_is_followed(plain: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_service, "REFRESH_EVERY", 0.001)
    reading = Reading(plain)
    plain.create_acls([acl("a")])
    following = asyncio.create_task(reading.keeper.follow())
    await until(lambda: reading.acls() == 1)
    plain.create_acls([acl("b")])
    await until(lambda: reading.acls() == 2)
    following.cancel()


def test_users_of_a_file_are_kept_up_to_date(plain: Store, tmp_path: Path) -> None:
    """And are known as they were while it is broken: but nobody should come then."""
    file = tmp_path / "users.json"
    put(file, content(alice=of(SHA_256)))
    reading = Reading(plain, UsersFile(file))
    reading.refresh()
    assert reading.keeper.not_ready() == []
    put(file, "half a fi")
    reading.refresh()
    assert reading.keeper.not_ready() == [f"{file}: must be a JSON object without duplicate names"]
    assert reading.credentials.find("alice", SHA_256) == verifier()
    put(file, content(bob=of(SHA_256)))
    reading.refresh()
    assert reading.keeper.not_ready() == []
    assert reading.credentials.find("alice", SHA_256) is None


def test_users_of_a_file_are_described_and_not_altered(plain: Store, tmp_path: Path) -> None:
    """Those of the store are not told of, and stay as they are."""
    plain.alter_credentials(upsert={("hidden", SHA_256): verifier()})
    file = tmp_path / "users.json"
    put(file, content(alice=of(SHA_256)))
    keeper = Reading(plain, UsersFile(file)).keeper

    async def ask(api_key: int, body: bytes) -> bytes:
        answer, _ = await keeper.consult(question(api_key, body, version=0))
        assert isinstance(answer, bytes)
        return answer

    reported = asyncio.run(ask(DESCRIBE_USER_SCRAM_CREDENTIALS, b"\0\0"))
    assert b"alice" in reported
    assert b"hidden" not in reported
    removal = b"\2\6alice\1\0" + b"\1\0"
    assert b"in a file" in asyncio.run(ask(ALTER_USER_SCRAM_CREDENTIALS, removal))
    assert [user for user, _ in plain.credential_snapshot().credentials] == ["hidden"]
