"""A broker that is away, or lies, changes nothing that was known; what is told of it is ours."""

import asyncio
import struct

import pytest

from proxy.store.sqlite.mirror import SqliteMirror
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import acl
from tests.support.broker_store import (
    ALICE,
    DESCRIBE_ACLS,
    DESCRIBE_QUOTAS,
    LIE,
    NAME,
    PASSWORD,
    PRODUCER,
    Pauses,
    broker,
    followed,
    following,
    hangs_up,
    known,
    quotas_answer,
    shown,
)
from tests.support.fake_broker import Body
from tests.support.processes import PATIENCE_SECONDS
from tests.support.upstream import assert_clean

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
def test_what_was_known_stays_when_brokers_lie(
    mirror: SqliteMirror, lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`/readyz` and the log say why, in our words, and once."""
    peer = broker(acl("a"), passwords={NAME: PASSWORD})
    peer.quotas.quotas = {ALICE: {PRODUCER: 5.0}}

    async def run() -> None:
        async with followed(peer, mirror, login=True) as follower:
            await follower.query(10.0)
            peer.acl_store.acls = set()
            peer.handlers[DESCRIBE_QUOTAS] = LIES[lie]
            await Pauses(3).run(follower)
            assert shown(mirror) == ([acl("a")], {ALICE: {PRODUCER: 5.0}})
            assert known(mirror).asked_at == 10.0
            problem = str(known(mirror).problem)
            assert problem.startswith("what the brokers keep is not known: ")
            assert [one.getMessage() for one in caplog.records] == [problem]
            assert_clean(problem)
            del peer.handlers[DESCRIBE_QUOTAS]
            await Pauses(1).run(follower)
            assert shown(mirror) == ([], {ALICE: {PRODUCER: 5.0}})
            assert known(mirror).problem is None

    asyncio.run(run())
    assert PASSWORD not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("api_key", [17, 18, 36, DESCRIBE_ACLS, DESCRIBE_QUOTAS])
def test_silence_changes_nothing_and_ends(mirror: SqliteMirror, api_key: int) -> None:
    peer = broker(acl("a"), passwords={NAME: PASSWORD})

    async def run() -> None:
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

    asyncio.run(run())


@pytest.mark.parametrize(
    ("sent", "reported"),
    [
        (struct.pack(">i", -1), "the response claims -1 bytes"),
        (struct.pack(">i", -(2**31)), "the response claims -2147483648 bytes"),
        (struct.pack(">i", 104_857_601), "the response claims 104857601 bytes"),
        (struct.pack(">i", 0), "the response claims 0 bytes"),
        (struct.pack(">ii", 104_857_600, 1) + bytes(9), "closed the connection instead"),
        (LIE.encode(), "the response claims"),
    ],
)
def test_sizes_that_cannot_be(mirror: SqliteMirror, sent: bytes, reported: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(sent)
        writer.close()

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await Pauses(1).run(following(mirror, address))
            server.close()
        problem = str(known(mirror).problem)
        assert f"{address}: {reported}" in problem
        assert_clean(problem)

    asyncio.run(run())
    assert known(mirror).asked_at is None


def test_a_login_that_is_refused_is_told_in_our_words(
    mirror: SqliteMirror, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_version: int, _body: bytes) -> bytes:
        said = LIE.encode()
        return b"\0\x3a" + bytes([len(said) + 1]) + said + b"\x01" + bytes(8) + b"\0"

    peer = broker(passwords={NAME: PASSWORD}, handlers={36: refuse})

    async def run() -> list[float]:
        async with followed(peer, mirror, login=True) as follower:
            return await Pauses(9).run(follower)

    pauses = asyncio.run(run())
    assert pauses[-2:] == [10.0, 10.0], "a broker may lock out who keeps trying"
    problem = str(known(mirror).problem)
    assert problem.startswith("what the brokers keep is not known: the proxy's login failed: ")
    assert_clean(problem)
    assert [one.getMessage() for one in caplog.records] == [problem]
