"""The client logs in, and again before its session ends (KIP-368)."""

import asyncio
from pathlib import Path

import pytest

from proxy.admin import (
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


async def test_a_session_is_renewed_on_its_connection() -> None:
    """KIP-368: the fresh token is used, and nothing is asked on the session that ends."""
    tokens = iter(["first", "second", "third"])
    peer = Peer(passwords={}, tokens={"first", "second", "third"}, lifetime_ms=1)
    async with against(peer, login=OAuthBearer(token=lambda: next(tokens))) as client:
        for _ in range(3):
            await client.describe_acls()
            await asyncio.sleep(0.002)
    assert peer.connections == 1
    keys = [key for key, _ in peer.requests if key != 18]
    assert keys == [SASL_HANDSHAKE, SASL_AUTHENTICATE, DESCRIBE] * 3


async def test_a_long_session_is_not_renewed() -> None:
    peer = Peer(passwords={"alice": "alice-secret"}, lifetime_ms=3_600_000)
    async with against(peer, login=ALICE) as client:
        await client.describe_acls()
        await client.describe_acls()
    assert peer.seen(SASL_HANDSHAKE) == 1


async def test_a_session_that_may_not_be_renewed_yet_is_replaced() -> None:
    """Two authentications must lie a second apart; a session may be shorter."""
    peer = Peer(passwords={}, tokens={"good"}, lifetime_ms=1)
    async with against(peer, login=OAuthBearer(token="good")) as client:
        await client.describe_acls()
        peer.handshake_errors.append(ErrorCode.ILLEGAL_SASL_STATE)
        await asyncio.sleep(0.002)
        await client.describe_acls()
    assert peer.connections == 2


async def test_a_failed_renewal_is_told_and_the_connection_given_up() -> None:
    peer = Peer(passwords={}, tokens={"good"}, lifetime_ms=1)
    async with against(peer, login=OAuthBearer(token="good")) as client:
        await client.describe_acls()
        peer.tokens.clear()
        await asyncio.sleep(0.002)
        with pytest.raises(AuthenticationFailed):
            await client.describe_acls()
        peer.tokens.add("good")
        await client.describe_acls()
    assert peer.connections == 2
