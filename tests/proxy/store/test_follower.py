"""What keeps a mirror like its brokers, against a broker over TCP that may lie or be away."""

import asyncio
import itertools
import sqlite3
import struct
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from proxy.admin import UnsupportedVersion
from proxy.brokers.access import Access
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.store.brokers import follower as follower_module
from proxy.store.brokers.follower import Follower
from proxy.store.interface import Mirror, StoreError
from proxy.store.sqlite.mirror import SETTLES_WITHIN, SqliteMirror, Versions
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import acl
from tests.support.broker_store import (
    ALICE,
    BOB,
    DESCRIBE_ACLS,
    DESCRIBE_QUOTAS,
    LIE,
    NAME,
    PASSWORD,
    PRODUCER,
    Entry,
    Pauses,
    broker,
    followed,
    following,
    hangs_up,
    known,
    quotas_answer,
    settings_of,
    shown,
)
from tests.support.fake_broker import Body, Peer
from tests.support.messages import response, written
from tests.support.processes import PATIENCE_SECONDS, free_ports
from tests.support.tls import AUTHORITY, OURS, Spoken, client_context, server_context
from tests.support.upstream import assert_clean


def acls_answer(
    *operations: int, principal: str = "User:alice", pattern_type: int = 3, permission: int = 3
) -> Body:
    """ACLs of a topic `t` each."""
    entry = {"principal": principal, "host": "*", "permission_type": permission}
    resource = {
        "resource_type": 2,
        "resource_name": "t",
        "pattern_type": pattern_type,
        "acls": [{**entry, "operation": one} for one in operations],
    }
    return lambda version, _: written(response(DESCRIBE_ACLS, version, resources=[resource]))


CREATION = QuotaKey.CONNECTION_CREATION_RATE


# --- what is shown


async def test_it_shows_what_the_brokers_have(mirror: SqliteMirror) -> None:
    peer = broker(acl("a"), acl("b"), passwords={NAME: PASSWORD})
    peer.quotas.quotas = {ALICE: {PRODUCER: 5.0}, QuotaEntity(ip=DEFAULT): {CREATION: 7.0}}
    async with followed(peer, mirror, login=True) as follower:
        await follower.query(10.0)
        assert shown(mirror) == ([acl("a"), acl("b")], peer.quotas.quotas)
        assert known(mirror) == Mirror(asked_at=10.0)

        peer.acl_store.acls = {acl("b"), acl("c")}
        peer.quotas.quotas = {BOB: {PRODUCER: 6.0}}
        await follower.query(20.0)
        assert shown(mirror) == ([acl("b"), acl("c")], {BOB: {PRODUCER: 6.0}})

        versions = mirror.acl_version(), mirror.quota_version()
        await follower.query(30.0)
        assert (mirror.acl_version(), mirror.quota_version()) == versions
        assert known(mirror) == Mirror(asked_at=30.0)
        assert peer.connections == 1


async def test_what_others_wrote_into_the_mirror_is_put_right(mirror: SqliteMirror) -> None:
    """Though the brokers answer as before: it is the mirror that changed."""
    peer = broker(acl("a"))
    peer.quotas.quotas = {ALICE: {PRODUCER: 5.0}}
    async with followed(peer, mirror) as follower:
        await follower.query(10.0)
        mirror.create_acls([acl("more")])
        mirror.alter_quotas({ALICE: {PRODUCER: 6.0}, BOB: {PRODUCER: 6.0}})
        await follower.query(20.0)
        assert shown(mirror) == ([acl("a")], {ALICE: {PRODUCER: 5.0}})


async def test_a_change_meanwhile_is_not_undone(mirror: SqliteMirror) -> None:
    """The store is read again even if the brokers answer as before: the change may be undone."""
    peer = broker(acl("old"))
    async with followed(peer, mirror) as follower:
        await follower.query(10.0)
        mirror.note_acls(20.0, [acl("new")], created=True)
        mirror.create_acls([acl("new")])
        await follower.query(20.5)
        assert shown(mirror)[0] == [acl("new"), acl("old")]
        await follower.query(20.0 + SETTLES_WITHIN)
        assert shown(mirror)[0] == [acl("old")]


async def test_the_followers_of_two_proxies_keep_one_mirror(
    mirror: SqliteMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As during a take-over, when the answer to the earlier query may be written last."""
    peer = broker(acl("a"))
    with closing(SqliteMirror(mirror._path)) as late:
        take_over = late.take_over

        def overtaken(**answer: Any) -> Versions | None:
            mirror.take_over(asked_at=30.0, new_acls=[acl("b")], new_quotas={})
            return take_over(**answer)

        async with followed(peer, late) as old:
            with monkeypatch.context() as patched:
                patched.setattr(late, "take_over", overtaken)
                await old.query(20.0)
            assert shown(mirror)[0] == [acl("b")]
            new = following(mirror, peer.address)
            await new.query(40.0)
            await new._admin.close()
            assert shown(mirror)[0] == [acl("a")]
            peer.acl_store.acls = {acl("c")}
            await old.query(50.0)
            assert shown(mirror)[0] == [acl("c")]


async def test_a_change_just_after_an_answer_was_shown_is_looked_at_anew(
    mirror: SqliteMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker wrote it before the follower looked at the versions, and the brokers undo it."""
    async with followed(broker(acl("a")), mirror) as follower:
        take_over = mirror.take_over

        def interrupted(**answer: Any) -> Versions | None:
            versions = take_over(**answer)
            mirror.create_acls([acl("x")])
            return versions

        with monkeypatch.context() as patched:
            patched.setattr(mirror, "take_over", interrupted)
            await follower.query(10.0)
        assert shown(mirror)[0] == [acl("a"), acl("x")]
        await follower.query(20.0)
        assert shown(mirror)[0] == [acl("a")]


async def test_without_an_authorizer_nobody_asks_for_acls(mirror: SqliteMirror) -> None:
    """Brokers may lack an authorizer too, and refuse."""
    peer = broker(acl("a"))
    peer.quotas.quotas = {ALICE: {PRODUCER: 5.0}}
    async with followed(peer, mirror, authorizer="off") as follower:
        await follower.query(10.0)
    assert shown(mirror) == ([], peer.quotas.quotas)
    assert peer.seen(DESCRIBE_ACLS) == 0


# --- what a newer broker has


async def test_what_is_unknown_here_is_left_out_and_told_once(
    mirror: SqliteMirror, caplog: pytest.LogCaptureFixture
) -> None:
    producer = PRODUCER.value
    odd: list[Entry] = [
        ([("user", "alice")], {producer: 5.0, "future_rate": 1.0}),
        ([("user", "bob"), ("team", LIE)], {producer: 1.0}),
        ([("user", "")], {producer: 1.0}),
        ([], {producer: 1.0}),
        ([("ip", "a.host.name")], {CREATION.value: 1.0}),
        ([("user", "nan")], {producer: float("nan")}),
        ([("user", "less")], {producer: -1.0, LIE: 1.0}),
    ]
    peer = broker(
        handlers={DESCRIBE_ACLS: acls_answer(3, 99, -1, 1), DESCRIBE_QUOTAS: quotas_answer(*odd)}
    )
    async with followed(peer, mirror) as follower:
        for _ in range(3):
            await follower.query(10.0)
    assert shown(mirror) == ([acl("t")], {ALICE: {PRODUCER: 5.0}})
    reported = [record.getMessage() for record in caplog.records]
    assert [one.partition(", such as ")[0] for one in reported] == [
        "3 ACLs of the brokers are unknown to this version, and skipped",
        "8 quotas of the brokers are unknown to this version, and skipped",
    ]
    assert "such as future_rate=1.0 of {'user': 'alice'}" in reported[1]


async def test_an_empty_host_that_an_older_broker_accepted_is_shown(
    mirror: SqliteMirror, caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(broker(acl("a", host="")), mirror) as follower:
        await follower.query(10.0)
    assert shown(mirror) == ([acl("a", host="")], {})
    assert not caplog.records


@pytest.mark.parametrize(
    "answer",
    [acls_answer(3, pattern_type=2), acls_answer(3, pattern_type=9), acls_answer(3, principal="x")],
    ids=["a pattern of filters", "an unknown pattern", "a principal without a type"],
)
async def test_no_answer_makes_the_mirror_unreadable(mirror: SqliteMirror, answer: Body) -> None:
    async with followed(broker(handlers={DESCRIBE_ACLS: answer}), mirror) as follower:
        await follower.query(10.0)
    assert shown(mirror) == ([], {})


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        (99, {"permission": 2}),
        (3, {"permission": 9}),
        (3, {"principal": "x", "permission": 2}),
        (3, {"pattern_type": 9, "permission": 2}),
    ],
)
async def test_an_acl_that_may_deny_and_is_unknown_fails_the_query(
    mirror: SqliteMirror, operation: int, fields: dict[str, Any]
) -> None:
    """The copy stays as it was: without a denial it would allow too much."""
    peer = broker(acl("a"))
    async with followed(peer, mirror) as follower:
        await follower.query(10.0)
        peer.handlers[DESCRIBE_ACLS] = acls_answer(operation, **fields)
        with pytest.raises(StoreError, match="may deny is unknown to this version"):
            await follower.query(11.0)
    assert shown(mirror) == ([acl("a")], {})


# --- brokers without quotas, before KIP-546


def too_old(peer: Peer) -> None:
    del peer.versions[DESCRIBE_QUOTAS]


def says_too_old(peer: Peer) -> None:
    peer.handlers[DESCRIBE_QUOTAS] = quotas_answer(error=ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("make", [too_old, says_too_old])
async def test_brokers_without_quotas_are_good_enough_where_none_is_enforced(
    mirror: SqliteMirror, make: Callable[[Peer], None]
) -> None:
    peer = broker(acl("a"))
    make(peer)
    async with followed(peer, mirror, quotas="off") as follower:
        await follower.query(10.0)
    assert shown(mirror) == ([acl("a")], {})
    assert known(mirror) == Mirror(asked_at=10.0)


@pytest.mark.parametrize("make", [too_old, says_too_old])
@pytest.mark.parametrize("mode", ["enforce", "audit"])
async def test_quotas_that_cannot_be_known_are_not_taken_for_none(
    mirror: SqliteMirror, mode: str, make: Callable[[Peer], None]
) -> None:
    """ACLs neither: they are one step."""
    peer = broker(acl("a"))
    make(peer)
    async with followed(peer, mirror, quotas=mode) as follower:
        with pytest.raises(UnsupportedVersion):
            await follower.query(10.0)
        await Pauses(1).run(follower)
    assert shown(mirror) == ([], {})
    assert known(mirror).asked_at is None
    assert "UNSUPPORTED_VERSION: the brokers are too old" in str(known(mirror).problem)


# --- how often


async def test_pauses_grow_while_nobody_answers_and_are_short_again_then(
    mirror: SqliteMirror,
) -> None:
    (nobody,) = free_ports(1)
    follower = following(mirror, f"127.0.0.1:{nobody}")
    assert await Pauses(6).run(follower) == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert "Connection refused" in str(known(mirror).problem)

    peer = broker()
    peer.handlers[DESCRIBE_ACLS] = hangs_up

    def mend(taken: int) -> None:
        peer.handlers[DESCRIBE_ACLS] = acls_answer(3) if taken == 2 else hangs_up

    async with followed(peer, mirror, refresh_ms=7_000) as one:
        assert await Pauses(5, meanwhile=mend).run(one) == [0.2, 0.4, 7.0, 0.2, 0.4]


@pytest.mark.parametrize("quotas", [quotas_answer(), hangs_up], ids=["shown", "read in vain"])
async def test_a_tenth_of_a_core_is_spent_on_reading_at_most(
    mirror: SqliteMirror, quotas: Body
) -> None:
    """However often the operator wants it; to wait for a broker costs nothing."""
    waits, reads = 0.2, 0.1

    def answer(version: int, body: bytes) -> bytes | None:
        began = time.process_time()
        time.sleep(waits)
        while time.process_time() - began < reads:
            pass
        return acls_answer(3)(version, body)

    peer = broker(handlers={DESCRIBE_ACLS: answer, DESCRIBE_QUOTAS: quotas})
    async with followed(peer, mirror, refresh_ms=100) as follower:
        (pause,) = await Pauses(1).run(follower)
    assert 9 * reads * 0.99 <= pause < 9 * (reads + waits)


async def test_rights_that_were_taken_away_apply_for_half_a_minute_at_most(
    mirror: SqliteMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a machine may take minutes to read what there is."""
    moments = itertools.count(step=1_000)
    monkeypatch.setattr(follower_module, "process_time", lambda: float(next(moments)))
    async with followed(broker(acl("a")), mirror) as follower:
        assert await Pauses(1).run(follower) == [follower_module.MAX_PAUSE]


# --- this host


async def test_a_file_that_cannot_be_written_is_told_and_tried_again(
    mirror: SqliteMirror, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.store.sqlite.database._WRITE_WAIT_S", 0.01)
    async with followed(broker(acl("a")), mirror) as follower:
        with closing(sqlite3.connect(mirror._path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await Pauses(2).run(follower)
        assert shown(mirror)[0] == []
        await Pauses(1).run(follower)
        assert shown(mirror)[0] == [acl("a")]
    (line,) = [one.getMessage() for one in caplog.records]
    assert "state.db: is locked by another program" in line
    assert "Traceback" not in caplog.text


async def test_another_certificate_is_shown_on_another_connection(mirror: SqliteMirror) -> None:
    """The broker would continue to serve the old one until it ends."""

    @dataclass
    class Replaced:
        now: Spoken
        expires_at: float | None = None

        @property
        def context(self) -> Any:
            return self.now.context

    tls = Replaced(Spoken(client_context(AUTHORITY)))
    peer = broker(acl("a"), tls=server_context(OURS))
    async with asyncio.timeout(2 * PATIENCE_SECONDS), peer:
        settings = settings_of(peer.address, mirror._path.parent)
        access = Access(timeout_s=PATIENCE_SECONDS, tls=tls)
        follower = Follower(mirror, settings, access)
        await follower.query(10.0)
        await follower.query(20.0)
        assert peer.connections == 1
        tls.now = Spoken(client_context(AUTHORITY))
        await follower.query(30.0)
        assert peer.connections == 2
        await follower._admin.close()
    assert known(mirror) == Mirror(asked_at=30.0)


LIES: dict[str, Body] = {
    "hangs up": hangs_up,
    "says nothing": lambda _version, _body: b"",
    "garbage": lambda _version, _body: b"\xff" * 100,
    "billions": lambda _version, _body: bytes(7) + b"\xff\xff\xff\xff\x07",
    "much": lambda _version, _body: b"\xff" * 60_000_000,
    "refuses": quotas_answer(error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    "fails": quotas_answer(error=ErrorCode.UNKNOWN_SERVER_ERROR),
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_was_known_stays_when_brokers_lie(
    mirror: SqliteMirror, lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`/readyz` and the log have the reason, in our words and once."""
    peer = broker(acl("a"), passwords={NAME: PASSWORD})
    peer.quotas.quotas = {ALICE: {PRODUCER: 5.0}}
    async with followed(peer, mirror, login=True) as follower:
        await follower.query(10.0)
        peer.acl_store.acls = set()
        peer.handlers[DESCRIBE_QUOTAS] = LIES[lie]
        await Pauses(3).run(follower)
        assert shown(mirror) == ([acl("a")], {ALICE: {PRODUCER: 5.0}})
        assert known(mirror).asked_at == 10.0
        problem = str(known(mirror).problem)
        assert problem.startswith("the brokers' ACLs and quotas are unknown: ")
        assert [one.getMessage() for one in caplog.records] == [problem]
        assert_clean(problem)
        del peer.handlers[DESCRIBE_QUOTAS]
        await Pauses(1).run(follower)
        assert shown(mirror) == ([], {ALICE: {PRODUCER: 5.0}})
        assert known(mirror).problem is None
    assert PASSWORD not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("api_key", [17, 18, 36, DESCRIBE_ACLS, DESCRIBE_QUOTAS])
async def test_silence_changes_nothing_and_ends(mirror: SqliteMirror, api_key: int) -> None:
    peer = broker(acl("a"), passwords={NAME: PASSWORD})
    async with followed(peer, mirror, login=True) as follower:
        await follower.query(10.0)
        peer.silent, peer.acl_store.acls = {api_key}, set()
        impatient = following(mirror, peer.address, login=True, timeout_ms=300)
        await Pauses(1).run(impatient)
        assert shown(mirror)[0] == [acl("a")]
        assert "no answer within 0.3 s" in str(known(mirror).problem)
        peer.silent = set()
        await follower.query(20.0)
        assert shown(mirror)[0] == []
        await impatient._admin.close()


@pytest.mark.parametrize(
    ("sent", "reported"),
    [
        (struct.pack(">i", -1), "a response of -1 bytes"),
        (struct.pack(">i", -(2**31)), "a response of -2147483648 bytes"),
        (struct.pack(">i", 104_857_601), "a response of 104857601 bytes"),
        (struct.pack(">i", 0), "a response of 0 bytes"),
        (struct.pack(">ii", 104_857_600, 1) + bytes(9), "closed the connection instead"),
        (LIE.encode(), "a response of"),
    ],
)
async def test_sizes_that_cannot_be(mirror: SqliteMirror, sent: bytes, reported: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(sent)
        writer.close()

    async with asyncio.timeout(PATIENCE_SECONDS):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await Pauses(1).run(following(mirror, address))
        server.close()
    problem = str(known(mirror).problem)
    assert f"{address}: {reported}" in problem
    assert_clean(problem)
    assert known(mirror).asked_at is None


async def test_a_login_that_is_refused_is_told_in_our_words(
    mirror: SqliteMirror, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_version: int, _body: bytes) -> bytes:
        said = LIE.encode()
        return b"\0\x3a" + bytes([len(said) + 1]) + said + b"\x01" + bytes(8) + b"\0"

    peer = broker(passwords={NAME: PASSWORD}, handlers={36: refuse})
    async with followed(peer, mirror, login=True) as follower:
        pauses = await Pauses(9).run(follower)
    assert pauses[-2:] == [10.0, 10.0], "a broker may lock out who keeps trying"
    problem = str(known(mirror).problem)
    assert problem.startswith(
        "the brokers' ACLs and quotas are unknown: the proxy's login failed: "
    )
    assert_clean(problem)
    assert [one.getMessage() for one in caplog.records] == [problem]
