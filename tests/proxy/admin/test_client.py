"""The admin client: requests, and logins and their renewals, with and without TLS."""

import asyncio
import socket
import ssl
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from proxy.acl.model import AclFilter, PatternType
from proxy.admin import (
    AdminClient,
    AuthenticationFailed,
    AuthorizationFailed,
    BrokerUnavailable,
    InvalidRequest,
    Login,
    OAuthBearer,
    Scram,
    UnsupportedVersion,
)
from proxy.admin.client import parse_servers
from proxy.errors import ConfigError
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import ScramMechanism
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.support.acls import acl
from tests.support.certificates import HOUR, Authority, Issued
from tests.support.fake_broker import ALICE, CREATE, DELETE, DESCRIBE, Peer, against
from tests.support.processes import PATIENCE_SECONDS, turns
from tests.support.tls import AUTHORITY, OURS, client_context, server_context


@pytest.mark.parametrize("version", range(4))
async def test_acls_go_there_and_back(version: int) -> None:
    """In the highest version that both sides know, v0 included."""
    peer = Peer()
    peer.versions |= dict.fromkeys((DESCRIBE, CREATE, DELETE), (0, version))
    both = [acl("a"), acl("b", "User:bob", host="10.0.0.0/8")]
    async with against(peer) as client:
        (await client.create_acls(both)).all()
        assert (await client.describe_acls()).values() == tuple(both)
        assert (await client.describe_acls(AclFilter(principal="User:bob"))).values() == (both[1],)
        result = await client.delete_acls([AclFilter(name="a"), AclFilter(name="none")])
        assert result.all() == (both[0],)
        assert [one.values() for one in result.values().values()] == [(both[0],), ()]
    assert peer.acl_store.acls == {both[1]}
    assert {(DESCRIBE, version), (CREATE, version), (DELETE, version)} <= {*peer.requests}
    assert peer.connections == 1


async def test_each_item_has_its_own_result() -> None:
    good, bad = acl("a"), acl("")
    peer = Peer()
    async with against(peer) as client:
        result = await client.create_acls([good, bad])
        assert result.values()[good] is None
        error = result.values()[bad]
        assert isinstance(error, InvalidRequest)
        assert error.code == ErrorCode.INVALID_REQUEST
        assert error.message == "Invalid empty resource name"
        with pytest.raises(InvalidRequest, match="Invalid empty resource name"):
            result.all()
    assert peer.acl_store.acls == {good}


async def test_what_is_denied() -> None:
    async with against(Peer(rights=False)) as client:
        described = await client.describe_acls()
        with pytest.raises(AuthorizationFailed, match="CLUSTER_AUTHORIZATION_FAILED"):
            described.values()
        created = await client.create_acls([acl()])
        with pytest.raises(AuthorizationFailed):
            created.all()
        deleted = await client.delete_acls([AclFilter()])
        with pytest.raises(AuthorizationFailed):
            deleted.all()


async def test_many_go_in_several_requests() -> None:
    """Kafka refuses more than 10,000 at once."""
    many = [acl(str(number)) for number in range(2_500)]
    peer = Peer()
    async with against(peer) as client:
        result = await client.create_acls(many)
        result.all()
        assert [*result.values()] == many
    assert peer.seen(CREATE) == 3
    assert peer.acl_store.acls == {*many}


async def test_version_0_has_no_prefixed_patterns() -> None:
    """As Java's client: better an error than another ACL than was meant."""
    peer = Peer()
    peer.versions |= dict.fromkeys((DESCRIBE, CREATE, DELETE), (0, 0))
    prefixed = acl(pattern_type=PatternType.PREFIXED)
    async with against(peer) as client:
        with pytest.raises(UnsupportedVersion):
            await client.create_acls([prefixed])
        described = await client.describe_acls(AclFilter(pattern_type=PatternType.MATCH, name="t"))
        with pytest.raises(UnsupportedVersion):
            described.values()
    assert peer.acl_store.acls == set()


async def test_an_older_broker_is_asked_as_it_says() -> None:
    peer = Peer()
    peer.versions[18] = (0, 2)
    async with against(peer) as client:
        assert (await client.describe_acls()).values() == ()
    assert [version for key, version in peer.requests if key == 18] == [5, 2]


async def test_a_broker_without_acls() -> None:
    peer = Peer()
    del peer.versions[DESCRIBE]
    async with against(peer) as client:
        with pytest.raises(UnsupportedVersion):
            await client.describe_acls()


# ---------------------------------------------------------------------- brokers that fail


async def test_a_broken_connection_is_replaced() -> None:
    peer = Peer()
    async with against(peer) as client:
        await client.describe_acls()
        peer.drop_connections()
        await turns()
        await client.describe_acls()
    assert peer.connections == 2


async def test_the_next_server_is_tried() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), Peer() as peer:
        servers = ["127.0.0.1:1", peer.address]
        async with AdminClient(servers, request_timeout_s=PATIENCE_SECONDS) as client:
            assert (await client.describe_acls()).values() == ()


async def test_a_server_that_was_silent_is_not_waited_for_again() -> None:
    """While there is one that answered last."""
    async with asyncio.timeout(PATIENCE_SECONDS), Peer() as peer:
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            silent.settimeout(0)
            servers = [f"127.0.0.1:{silent.getsockname()[1]}", peer.address]
            client = AdminClient(servers, request_timeout_s=3)
            for _ in range(3):
                assert (await client.describe_acls()).values() == ()
                await client.close()
            silent.accept()[0].close()
            with pytest.raises(BlockingIOError):
                silent.accept()


async def test_no_server_at_all() -> None:
    async with AdminClient("127.0.0.1:1,127.0.0.1:2") as client:
        with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "):
            await client.describe_acls()


async def test_silence_ends() -> None:
    """And a late answer is not taken for that to the next request: the connection is given up."""

    peer = Peer(silent={DESCRIBE})
    async with against(peer, timeout_s=3) as client:
        with pytest.raises(BrokerUnavailable, match=r"no answer within 3 s"):
            await client.describe_acls()
        peer.silent.clear()
        assert (await client.describe_acls()).values() == ()
    assert peer.connections == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"handlers": {DESCRIBE: lambda _version, _body: None}},
        {"handlers": {DESCRIBE: lambda _version, _body: b""}},
        {"handlers": {DESCRIBE: lambda _version, _body: bytes(7) + b"\xff\xff\xff\xff\x07"}},
        {"handlers": {18: lambda _version, _body: b"\x00"}},
        {"correlation_shift": 1},
    ],
)
async def test_answers_that_cannot_be(fields: dict[str, Any]) -> None:
    async with against(Peer(**fields)) as client:
        with pytest.raises(BrokerUnavailable):
            await client.describe_acls()


async def test_fewer_results_than_items() -> None:
    """It would be unknown which ACL is missing."""
    async with against(
        Peer(handlers={CREATE: lambda _version, _body: bytes(4) + b"\x01\x00"})
    ) as client:
        with pytest.raises(BrokerUnavailable, match="the response has 0 results for 1 items"):
            await client.create_acls([acl()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", (("a", 1),)),
        (" a:1 , b:65535", (("a", 1), ("b", 65535))),
        ("[::1]:9092", (("::1", 9092),)),
        (["a:1", "b:2"], (("a", 1), ("b", 2))),
    ],
)
def test_servers(text: str | list[str], expected: object) -> None:
    assert parse_servers(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a", "a:", ":1", "a:0", "a:65536", "a:1,", "::1:9", "a b:1", []]
)
def test_servers_that_are_none(text: str | list[str]) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        parse_servers(text)


# The client logs in, and again before its session ends (KIP-368)


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("version", range(3))
async def test_scram(mechanism: ScramMechanism, version: int) -> None:
    peer = Peer(passwords={"alice": "alice-secret"})
    peer.versions[SASL_AUTHENTICATE] = (0, version)
    login = Scram(username="alice", password="alice-secret", mechanism=mechanism)
    async with against(peer, login=login) as client:
        assert (await client.describe_acls()).values() == ()
    assert (SASL_AUTHENTICATE, version) in peer.requests


@pytest.mark.parametrize(
    ("login", "reported"),
    [
        (Scram(username="alice", password="wrong"), "SASL_AUTHENTICATION_FAILED"),
        (None, "closed the connection instead of answering; does it want a login?"),
    ],
    ids=["a wrong password", "none"],
)
async def test_a_login_that_is_refused(login: Login | None, reported: str) -> None:
    async with against(Peer(passwords={"alice": "alice-secret"}), login=login) as client:
        with pytest.raises((AuthenticationFailed, BrokerUnavailable)) as caught:
            await client.describe_acls()
        assert "wrong" not in str(caught.value)
        assert reported in str(caught.value)


async def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    """It took our proof unseen: it may be anybody."""
    peer = Peer(passwords={}, lying=True)
    async with against(peer, login=ALICE) as client:
        with pytest.raises(AuthenticationFailed, match="signature"):
            await client.describe_acls()
    assert peer.seen(DESCRIBE) == 0


async def test_a_mechanism_that_is_not_offered() -> None:
    peer = Peer(passwords={}, handshake_errors=[ErrorCode.UNSUPPORTED_SASL_MECHANISM])
    async with against(peer, login=ALICE) as client:
        with pytest.raises(AuthenticationFailed, match="UNSUPPORTED_SASL_MECHANISM"):
            await client.describe_acls()


async def test_tokens(tmp_path: Path) -> None:
    """Given, from a file, from a callable."""
    file = tmp_path / "token"
    file.write_text("good\n")
    for token in ("good", file, lambda: "good"):
        peer = Peer(passwords={}, tokens={"good"})
        async with against(peer, login=OAuthBearer(token=token)) as client:
            assert (await client.describe_acls()).values() == ()


async def test_a_refused_token() -> None:
    """The reason comes first, the error when it was acknowledged (RFC 7628)."""
    peer = Peer(passwords={}, tokens={"good"})
    async with against(peer, login=OAuthBearer(token="bad-token")) as client:
        with pytest.raises(AuthenticationFailed) as caught:
            await client.describe_acls()
        assert "bad-token" not in str(caught.value)
    assert peer.seen(SASL_AUTHENTICATE) == 2


def test_secrets_are_masked() -> None:
    assert "secret" not in repr(Scram(username="alice", password="secret"))
    assert "secret" not in repr(OAuthBearer(token="secret"))


# ---------------------------------------------------------------------- sessions


@pytest.fixture
def due_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session with a lifetime is renewed before the next request."""
    monkeypatch.setattr("proxy.admin.client.REAUTHENTICATE_AT", 0.0)


@pytest.mark.usefixtures("due_at_once")
async def test_a_session_is_renewed_on_its_connection() -> None:
    """KIP-368: the fresh token is used, and nothing is asked on the session that ends."""
    tokens = iter(["first", "second", "third"])
    peer = Peer(passwords={}, tokens={"first", "second", "third"}, lifetime_ms=1)
    async with against(peer, login=OAuthBearer(token=lambda: next(tokens))) as client:
        for _ in range(3):
            await client.describe_acls()
    assert peer.connections == 1
    keys = [key for key, _ in peer.requests if key != 18]
    assert keys == [SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE] * 3


async def test_a_long_session_is_not_renewed() -> None:
    peer = Peer(passwords={"alice": "alice-secret"}, lifetime_ms=3_600_000)
    async with against(peer, login=ALICE) as client:
        await client.describe_acls()
        await client.describe_acls()
    assert peer.seen(SASL_HANDSHAKE) == 1


@pytest.mark.usefixtures("due_at_once")
async def test_a_session_that_may_not_be_renewed_yet_is_replaced() -> None:
    """Two authentications must lie a second apart; a session may be shorter."""
    peer = Peer(passwords={}, tokens={"good"}, lifetime_ms=1)
    async with against(peer, login=OAuthBearer(token="good")) as client:
        await client.describe_acls()
        peer.handshake_errors.append(ErrorCode.ILLEGAL_SASL_STATE)
        await client.describe_acls()
    assert peer.connections == 2


@pytest.mark.usefixtures("due_at_once")
async def test_a_failed_renewal_is_told_and_the_connection_given_up() -> None:
    peer = Peer(passwords={}, tokens={"good"}, lifetime_ms=1)
    async with against(peer, login=OAuthBearer(token="good")) as client:
        await client.describe_acls()
        peer.tokens.clear()
        with pytest.raises(AuthenticationFailed):
            await client.describe_acls()
        peer.tokens.add("good")
        await client.describe_acls()
    assert peer.connections == 2


# The client over TLS, and its errors if only one side uses TLS

TRUSTING = client_context(AUTHORITY)
ELSEWHERE = AUTHORITY.issue(hosts=("elsewhere",))
EXPIRED = AUTHORITY.issue(begins=-2 * HOUR, ends=-HOUR)


async def described(client: AdminClient) -> None:
    assert (await client.describe_acls()).values() == ()


async def failing(client: AdminClient, problem: str) -> None:
    """In one line, with the broker's address in front."""
    with pytest.raises(BrokerUnavailable) as caught:
        await client.describe_acls()
    address, _, said = str(caught.value).partition(": ")
    assert address.startswith("127.0.0.1:")
    assert said.startswith(problem)
    assert "\n" not in said


async def test_a_login_and_its_renewal_over_tls() -> None:
    """With a certificate of ours."""
    server = server_context(OURS, clients_of=AUTHORITY)
    peer = Peer(passwords={"alice": "alice-secret"}, tls=server, lifetime_ms=1)
    shown = client_context(AUTHORITY, shown=AUTHORITY.issue("admin"))
    async with against(peer, login=ALICE, tls=shown) as client:
        for _ in range(2):
            await described(client)
    assert peer.seen(29) == 2


@pytest.mark.parametrize(
    ("server", "ours", "problem"),
    [
        (OURS, client_context(Authority("other")), "its certificate is refused: unable to get"),
        (ELSEWHERE, TRUSTING, "its certificate is refused: IP address mismatch"),
        (EXPIRED, TRUSTING, "its certificate is refused: certificate has expired"),
        # the bytes that it reads as a frame's size are too large
        (None, TRUSTING, "it closes the connection in the TLS handshake; does it speak TLS?"),
        (OURS, None, "closed the connection instead of answering; does it speak TLS?"),
    ],
    ids=["untrusted", "wrong host", "expired", "a server without TLS", "a client without TLS"],
)
async def test_tls_that_does_not_fit(
    server: Issued | None, ours: ssl.SSLContext | None, problem: str
) -> None:
    tls = server_context(server) if server else None
    async with against(Peer(tls=tls), tls=ours) as client:
        await failing(client, problem)


async def test_a_handshake_that_does_not_end() -> None:
    """The time for a request bounds it, too."""
    gate: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        server = await asyncio.start_server(lambda _, writer: gate.append(writer), "127.0.0.1")
        port = server.sockets[0].getsockname()[1]
        client = AdminClient(f"127.0.0.1:{port}", ssl_context=TRUSTING, request_timeout_s=0.1)
        await failing(client, "no answer within 0.1 s")
        for writer in gate:
            writer.transport.abort()
        server.close()


@pytest.mark.parametrize(
    ("first", "tls", "problem"),
    [
        (
            "15030300020246",  # the alert of a server that reads no record (RFC 8446 section 6)
            None,
            "it speaks TLS; set security.protocol to SSL or SASL_SSL",
        ),
        ("485454502f312e31", None, "a response of 1213486160 bytes"),
        ("485454502f312e31", TRUSTING, "it does not speak TLS"),
        ("15030300020228", TRUSTING, "the other side refuses the handshake"),
        ("15030300020246", TRUSTING, "no version of TLS in common"),
    ],
)
async def test_an_answer_that_is_not_kafkas(
    first: str, tls: ssl.SSLContext | None, problem: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)
        writer.write(bytes.fromhex(first))
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        served.set()

    served = asyncio.Event()
    async with asyncio.timeout(2 * PATIENCE_SECONDS):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with AdminClient(f"127.0.0.1:{port}", ssl_context=tls) as client:
            await failing(client, problem)
        await served.wait()
        server.close()
