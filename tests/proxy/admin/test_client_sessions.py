"""The client logs in, and again before its session ends (KIP-368)."""

import asyncio
from pathlib import Path

import pytest

from proxy.admin import (
    AdminClient,
    AuthenticationFailed,
    BrokerUnavailable,
    Login,
    OAuthBearer,
    Scram,
)
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import ScramMechanism
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.support.fake_broker import ALICE, DESCRIBE, Peer, against


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("version", range(3))
def test_scram(mechanism: ScramMechanism, version: int) -> None:
    peer = Peer(passwords={"alice": "alice-secret"})
    peer.versions[SASL_AUTHENTICATE] = (0, version)

    async def work(client: AdminClient) -> None:
        assert (await client.describe_acls()).values() == ()

    login = Scram(username="alice", password="alice-secret", mechanism=mechanism)
    against(peer, work, login=login)
    assert (SASL_AUTHENTICATE, version) in peer.requests


@pytest.mark.parametrize(
    ("login", "reported"),
    [
        (Scram(username="alice", password="wrong"), "SASL_AUTHENTICATION_FAILED"),
        (None, "closed the connection instead of answering; does it want a login?"),
    ],
    ids=["a wrong password", "none"],
)
def test_a_login_that_is_refused(login: Login | None, reported: str) -> None:
    async def work(client: AdminClient) -> None:
        with pytest.raises((AuthenticationFailed, BrokerUnavailable)) as caught:
            await client.describe_acls()
        assert "wrong" not in str(caught.value)
        assert reported in str(caught.value)

    against(Peer(passwords={"alice": "alice-secret"}), work, login=login)


def test_a_broker_that_does_not_know_the_password_is_not_believed() -> None:
    """It took our proof unseen: it may be anybody."""

    async def work(client: AdminClient) -> None:
        with pytest.raises(AuthenticationFailed, match="signature"):
            await client.describe_acls()

    peer = Peer(passwords={}, lying=True)
    against(peer, work, login=ALICE)
    assert peer.seen(DESCRIBE) == 0


def test_a_mechanism_that_is_not_offered() -> None:
    async def work(client: AdminClient) -> None:
        with pytest.raises(AuthenticationFailed, match="UNSUPPORTED_SASL_MECHANISM"):
            await client.describe_acls()

    peer = Peer(passwords={}, handshake_errors=[ErrorCode.UNSUPPORTED_SASL_MECHANISM])
    against(peer, work, login=ALICE)


def test_tokens(tmp_path: Path) -> None:
    """Given, from a file, from a callable."""
    file = tmp_path / "token"
    file.write_text("good\n")
    for token in ("good", file, lambda: "good"):
        peer = Peer(passwords={}, tokens={"good"})

        async def work(client: AdminClient) -> None:
            assert (await client.describe_acls()).values() == ()

        against(peer, work, login=OAuthBearer(token=token))


def test_a_refused_token() -> None:
    """The reason comes first, the error when it was acknowledged (RFC 7628)."""

    async def work(client: AdminClient) -> None:
        with pytest.raises(AuthenticationFailed) as caught:
            await client.describe_acls()
        assert "bad-token" not in str(caught.value)

    peer = Peer(passwords={}, tokens={"good"})
    against(peer, work, login=OAuthBearer(token="bad-token"))
    assert peer.seen(SASL_AUTHENTICATE) == 2


def test_secrets_are_masked() -> None:
    assert "secret" not in repr(Scram(username="alice", password="secret"))
    assert "secret" not in repr(OAuthBearer(token="secret"))


# ---------------------------------------------------------------------- sessions


def test_a_session_is_renewed_on_its_connection() -> None:
    """KIP-368: the fresh token is used, and nothing is asked on the session that ends."""
    tokens = iter(["first", "second", "third"])
    peer = Peer(passwords={}, tokens={"first", "second", "third"}, lifetime_ms=1)

    async def work(client: AdminClient) -> None:
        for _ in range(3):
            await client.describe_acls()
            await asyncio.sleep(0.002)

    against(peer, work, login=OAuthBearer(token=lambda: next(tokens)))
    assert peer.connections == 1
    keys = [key for key, _ in peer.requests if key != 18]
    assert keys == [SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE] * 3


def test_a_long_session_is_not_renewed() -> None:
    peer = Peer(passwords={"alice": "alice-secret"}, lifetime_ms=3_600_000)

    async def work(client: AdminClient) -> None:
        await client.describe_acls()
        await client.describe_acls()

    against(peer, work, login=ALICE)
    assert peer.seen(SASL_HANDSHAKE) == 1


def test_a_session_that_may_not_be_renewed_yet_is_replaced() -> None:
    """Two authentications must lie a second apart; a session may be shorter."""
    peer = Peer(passwords={}, tokens={"good"}, lifetime_ms=1)

    async def work(client: AdminClient) -> None:
        await client.describe_acls()
        peer.handshake_errors.append(ErrorCode.ILLEGAL_SASL_STATE)
        await asyncio.sleep(0.002)
        await client.describe_acls()

    against(peer, work, login=OAuthBearer(token="good"))
    assert peer.connections == 2


def test_a_failed_renewal_is_told_and_the_connection_given_up() -> None:
    peer = Peer(passwords={}, tokens={"good"}, lifetime_ms=1)

    async def work(client: AdminClient) -> None:
        await client.describe_acls()
        peer.tokens.clear()
        await asyncio.sleep(0.002)
        with pytest.raises(AuthenticationFailed):
            await client.describe_acls()
        peer.tokens.add("good")
        await client.describe_acls()

    against(peer, work, login=OAuthBearer(token="good"))
    assert peer.connections == 2
