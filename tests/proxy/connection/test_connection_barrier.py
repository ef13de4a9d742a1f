"""What an unauthenticated client may send, and how it is kept waiting for keys."""

from collections.abc import Callable

import pytest

from proxy.wire.apis import API_VERSIONS, APIS, SASL_HANDSHAKE, Kind
from sasl.jwks import KeyCache
from sasl.messages import SASL_AUTHENTICATE
from sasl.states import Authenticating
from tests.support.frames import (
    authenticate,
    bearer,
    bearer_of_unknown_key,
    fetch,
    handshake,
    request,
    response,
)
from tests.support.playbook import OAUTHBEARER, SCRAM, Playbook, logged_in, refused
from tests.support.sasl import NOW, document, ed_key, rsa_key

ALL_KEYS = [*APIS, 4, 5, 6, 7, 999, 0x7FFF, -1]


def offered_versions() -> Playbook:
    play = Playbook()
    play.client(request(API_VERSIONS, 0, 1))
    return play


def handshaken() -> Playbook:
    play = Playbook()
    play.client(handshake(1, SCRAM))
    return play


def owing_a_raw_token() -> Playbook:
    """Each frame is a token, whatever it looks like."""
    play = Playbook()
    play.client(handshake(1, SCRAM, 0))
    return play


def challenged() -> Playbook:
    play = handshaken()
    play.client(authenticate(2, b"n,,n=alice,r=client"))
    return play


def reauthenticating() -> Playbook:
    play = logged_in()
    play.client(handshake(3, OAUTHBEARER))
    return play


def failed() -> Playbook:
    play = handshaken()
    play.client(authenticate(2, b"nonsense"))
    return play


def failed_with_an_answer_owed() -> Playbook:
    """Not closed yet, because an earlier request is still under way."""
    play = logged_in()
    play.client(fetch(3), handshake(4, OAUTHBEARER), authenticate(5, b"nonsense"))
    play.to_broker.clear()
    play._seen_by_broker = 0
    return play


def expired() -> Playbook:
    play = logged_in()
    play.expire()
    return play


def seeking_keys() -> Playbook:
    play = Playbook()
    play.now += 11.0
    play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer_of_unknown_key()))
    assert play.log[-1] == "seek keys"
    return play


STATES: list[Callable[[], Playbook]] = [
    Playbook,
    offered_versions,
    handshaken,
    owing_a_raw_token,
    challenged,
    reauthenticating,
    failed,
    failed_with_an_answer_owed,
    expired,
    seeking_keys,
]


@pytest.mark.parametrize("state", STATES)
def test_nothing_reaches_a_broker_unless_authenticated_and_alive(
    state: Callable[[], Playbook],
) -> None:
    """Every API key in its lowest, highest and a too high version; a second frame follows."""
    for key in ALL_KEYS:
        versions = (APIS[key].min_version, APIS[key].max_version, 99) if key in APIS else (0,)
        for version in versions:
            play = state()
            play.take()
            play.client(request(key, version, 90, b"\0" * 40), fetch(91))
            assert not play.to_broker, (key, version)
            assert "connect" not in play.log, (key, version)
            legal = key in (SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS)
            held = state in (seeking_keys, failed_with_an_answer_owed)
            assert legal or held or play.connection.closed, (key, version)


def test_what_an_authenticated_client_may_send() -> None:
    """Forwarded are the versions that the proxy understands of the APIs it forwards, no others."""
    for key in ALL_KEYS:
        api = APIS.get(key)
        for version in range(-1, 16):
            play = logged_in()
            play.client(request(key, version, 3, b"\0" * 40))
            forwarded = (
                api is not None
                and api.kind is Kind.FORWARDED
                and api.min_version <= version <= api.max_version
            )
            assert bool(play.to_broker) == forwarded, (key, version)
            if not forwarded and (api is None or api.kind is not Kind.ANSWERED):
                assert play.take() == ["closed unsupported_api", "close"]


def test_no_broker_is_contacted_for_the_unauthenticated() -> None:
    """The upstream connection is opened for the first request after the login, not before."""
    play = Playbook()
    play.client(request(API_VERSIONS, 0, 1), handshake(2, OAUTHBEARER), authenticate(3, bearer()))
    play.client(authenticate(4, b""))
    assert "connect" not in play.take()
    play.client(request(API_VERSIONS, 0, 5))
    assert play.take() == ["connect", "to client: #5 versions error 0"]


def test_an_end_lets_nothing_pass_behind_it() -> None:
    """A connection that waits for an answer before it closes takes no request any more."""
    play = logged_in()
    play.client(fetch(3), request(999, 0, 4), fetch(5))
    play.client(fetch(6))
    assert [line for line in play.take() if "broker" in line] == ["to broker: Fetch v12 #3"]
    play.broker(response(3))
    assert play.take() == ["to client: #3", "closed unsupported_api", "close"]


# Signing keys that are looked for while a token waits for them, as transcripts


class TestKeysAreSought:
    def asking(self) -> tuple[Playbook, KeyCache]:
        keys = KeyCache()
        assert keys.loaded(document(ed_key().jwk()), NOW - 100.0)
        play = Playbook(keys=keys)
        play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer_of_unknown_key()), fetch(3))
        assert play.take() == ["to client: #1 handshake error 0", "seek keys"]
        assert play.paused == {"client"}
        return play, keys

    def test_and_found(self) -> None:
        play, keys = self.asking()
        play.client(fetch(4))
        assert play.take() == []
        keys.loaded(document(ed_key().jwk(), rsa_key().jwk()), play.now)
        play.now += 2.0
        play.call(lambda connection, now: connection.resume_login(now))
        assert play.take() == [
            "to client: #2 token error 0 lifetime 298000",
            "authenticated User:alice",
            "connect",
            "to broker: Fetch v12 #3",
            "to broker: Fetch v12 #4",
        ]
        assert play.session.latency == 2.0

    def test_and_not_found(self) -> None:
        """Rejected tokens are answered by RFC 7628's error, then the next message fails."""
        play, keys = self.asking()
        keys.failed("no route", play.now)
        play.call(lambda connection, now: connection.resume_login(now))
        assert play.take() == ["to client: #2 token error 0 lifetime 0", *refused("illegal_state")]

    def test_until_the_time_for_authentication_is_over(self) -> None:
        play, _ = self.asking()
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["failed timeout", "closed authentication_timeout", "close"]
        play.call(lambda connection, now: connection.resume_login(now))
        assert play.take() == []
        assert isinstance(play.connection.session.state, Authenticating) is False
