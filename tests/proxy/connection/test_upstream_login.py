"""The proxy's own logins to brokers, as transcripts."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.connection.commands import CloseReason, DeriveKeys
from proxy.connection.connection import Connection, finishing
from proxy.connection.logins import MIN_INTERVAL, PATIENCE, RENEW_AFTER
from sasl.credentials import ScramMechanism
from sasl.login import LoginError, OAuthBearerClient, SaltedPasswords, ScramClient
from sasl.mechanism import Challenge, Success
from sasl.messages import authenticate_token
from sasl.scram import ScramServer
from tests.support.frames import authenticate, bearer, fetch, handshake, produce, response
from tests.support.playbook import OAUTHBEARER, Playbook, everything, logged_in
from tests.support.sasl import FAKE_SECRET, alice
from tests.support.upstream import (
    close_reason,
    connected,
    derived,
    due,
    identified,
    identify,
    lets_in,
    log_in,
    offers,
    waiting_play,
)


def test_a_client_waits_until_the_proxy_is_logged_in() -> None:
    """The first byte that a broker gets is the proxy's."""
    play = waiting_play()
    play.client(fetch(4))
    identify(play)
    assert play.take() == ["to broker: SaslHandshake v1 #0"]
    play.broker(offers("PLAIN"))
    assert play.take() == ["to broker: SaslAuthenticate v2 #0"]
    play.broker(lets_in())
    assert play.take() == ["logged in", "to broker: Fetch v12 #3", "to broker: Fetch v12 #4"]
    play.broker(response(3), response(4))
    assert play.take() == ["to client: #3", "to client: #4"]


def test_answers_in_pieces() -> None:
    play = identified()
    for answer in (offers("PLAIN"), lets_in()):
        for position in range(len(answer)):
            play.broker(answer[position : position + 1])
    assert play.take()[-2:] == ["logged in", "to broker: Fetch v12 #3"]


@pytest.mark.parametrize("lifetime_ms", [5_000, 60_000, 250_000])
def test_the_session_is_renewed_at_the_next_request_behind_most_of_it(lifetime_ms: int) -> None:
    play = connected(lifetime_ms)
    lasts = lifetime_ms / 1000
    renewed_at = play.connection.requests.renew_at
    assert play.now + RENEW_AFTER[0] * lasts <= renewed_at <= play.now + RENEW_AFTER[1] * lasts
    play.now = renewed_at
    play.client(fetch(4))
    assert play.take() == ["to broker: Fetch v12 #4"]
    play.now = renewed_at + 0.125
    play.client(fetch(5), fetch(6))
    assert play.take() == ["GetIdentity"]
    identify(play)
    play.broker(response(4), offers("PLAIN"))
    assert play.take() == [
        "to broker: SaslHandshake v1 #0",
        "to client: #4",
        "to broker: SaslAuthenticate v2 #0",
    ]
    play.broker(lets_in(lifetime_ms))
    assert play.take() == ["logged in again", "to broker: Fetch v12 #5", "to broker: Fetch v12 #6"]
    assert play.connection.requests.renew_at > play.now


def test_a_session_without_end_is_never_renewed() -> None:
    play = connected()
    play.now += 10 * 365 * 86_400.0
    play.connection.stages.expires_at = play.now
    play.client(fetch(4))
    assert play.take() == ["to broker: Fetch v12 #4"]


def test_an_idle_connection_is_left_alone() -> None:
    """Kafka closes an expired one only when it is used, so the login can wait for that."""
    play = connected(1_000)
    play.now += 300.0
    play.connection.stages.expires_at = play.now
    play.call(Connection.timer)
    assert play.take() == []


@pytest.mark.parametrize("lifetime_ms", [1, 100, 1_000])
def test_two_logins_are_more_than_a_second_apart(lifetime_ms: int) -> None:
    """Kafka refuses the second otherwise (KIP-368)."""
    play = connected(lifetime_ms)
    assert play.connection.requests.renew_at == play.now + MIN_INTERVAL


def test_a_login_begins_behind_a_whole_frame() -> None:
    """The broker would read it as a part of the client's request."""
    play = connected(60_000)
    long = produce(4, records=b"x" * 5_000)
    play.client(long[:3_000])
    play.now = play.connection.requests.renew_at + 1
    play.client(long[3_000:4_000])
    assert play.take() == []
    play.client(long[4_000:], fetch(5))
    assert play.take() == ["to broker: Produce v9 #4", "GetIdentity"]


def test_a_re_authentication_of_the_clients_own_waits_as_well() -> None:
    play = due()
    play.client(handshake(4, OAUTHBEARER))
    assert play.take() == ["GetIdentity"]
    log_in(play)
    assert play.take()[-1] == "to client: #4 handshake error 0"
    play.client(authenticate(5, bearer()))
    assert "authenticated User:alice again (1)" in play.take()


def test_a_refusal_ends_the_connection_before_the_client_reached_the_broker() -> None:
    """The broker's error is logged in one line, and not sent to the client."""
    play = identified()
    play.broker(offers("PLAIN"), lets_in(error_code=58))
    assert play.take()[2:] == [
        "login failed: no such \\x1b[31muser\\n",
        "closed broker_login_failed",
        "close",
    ]
    assert close_reason(play) is CloseReason.BROKER_LOGIN_FAILED


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (offers("SCRAM-SHA-256", error_code=33), "PLAIN is refused; offered: SCRAM-SHA-256"),
        (offers(error_code=33), "PLAIN is refused; offered: none"),
        (offers(error_code=34), "the server does not ask for a login"),
        (response(0, b"\0"), "the server's response does not parse"),
        (response(0), "the server's response does not parse"),
    ],
)
def test_a_handshake_that_fails(answer: bytes, reason: str) -> None:
    play = identified()
    play.broker(answer)
    assert play.take()[1:] == [f"login failed: {reason}", "closed broker_login_failed", "close"]


def test_what_the_broker_sends_behind_a_refusal_means_nothing() -> None:
    play = identified()
    play.broker(offers(error_code=33), lets_in(), response(3, b"stolen"))
    assert "login failed: PLAIN is refused; offered: none" in play.take()
    assert b"stolen" not in play.to_client


def test_an_answer_that_comes_before_its_question_is_none() -> None:
    play = waiting_play()
    play.broker(offers("PLAIN"))
    assert play.take() == ["closed broker_fault", "close"]


def test_a_broker_without_sasl_is_not_asked() -> None:
    play = logged_in(Playbook(logs_in=True, offer=replace(everything(), sasl_version=-1)))
    play.client(fetch(3))
    play.take()
    identify(play)
    assert play.take()[0] == "login failed: the server does not know SaslAuthenticate"


def test_without_an_identity_there_is_no_login() -> None:
    """The token's server does not answer, say."""
    play = waiting_play()
    play.call(lambda connection, now: connection.upstream_login.failed(LoginError("no token"), now))
    assert play.take() == ["login failed: no token", "closed broker_login_failed", "close"]


def test_a_broker_that_hangs_up_in_a_login_refuses_it() -> None:
    play = identified()
    play.call(Connection.broker_closed)
    assert play.take()[1:] == [
        "login failed: it closed the connection instead of answering",
        "closed broker_login_failed",
        "close",
    ]


def test_a_broker_that_hangs_up_later_has_only_gone() -> None:
    play = connected(60_000)
    play.call(Connection.broker_closed)
    assert play.take() == ["closed broker_closed", "close"]


def test_silence_is_waited_for_so_long() -> None:
    play = identified()
    play.wait_for(play.now + 1)
    play.wait_for(play.now + PATIENCE - 0.125)
    play.broker(offers("PLAIN"))  # the timeout starts again
    play.wait_for(play.now + 1)
    assert play.take() == ["to broker: SaslHandshake v1 #0", "to broker: SaslAuthenticate v2 #0"]
    play.wait_for(play.now + PATIENCE)
    assert play.take()[0] == "login failed: no answer within 10 s"


def test_a_trickle_is_silence() -> None:
    play = identified()
    answer = offers(*["PLAIN"] * 20)
    for position in range(20):
        play.broker(answer[position : position + 1])
        if not play.connection.closed:
            play.wait_for(play.now + 1)
    assert "login failed: no answer within 10 s" in play.take()


def test_requests_before_a_renewal_may_take_their_time() -> None:
    """A JoinGroup is answered when all members are there, minutes later perhaps."""
    play = connected(60_000)
    play.client(fetch(4))
    play.now = play.connection.requests.renew_at + 1
    play.client(fetch(5))
    identify(play)
    play.take()
    for _ in range(5):
        play.wait_for(play.now + 20)
    play.broker(response(4), offers("PLAIN"), lets_in())
    assert play.take()[-2:] == ["logged in again", "to broker: Fetch v12 #5"]


def test_a_client_that_does_not_read_is_not_the_brokers_silence() -> None:
    play = due()
    play.client(fetch(4))
    identify(play)
    play.call(lambda connection, now: connection.client_full(True, now))
    for _ in range(5):
        play.wait_for(play.now + PATIENCE)
    assert "close" not in play.take()


def test_a_client_that_leaves_in_the_middle() -> None:
    play = identified()
    play.call(finishing(CloseReason.CLIENT_CLOSED))
    assert play.take()[1:] == ["closed client_closed", "close"]


def test_a_client_that_has_said_all_is_still_answered() -> None:
    play = waiting_play()
    play.call(Connection.client_finished)
    log_in(play)
    assert "close" not in play.take()
    play.broker(response(3))
    assert play.take() == ["to client: #3", "closed client_closed", "close"]


def test_draining_in_the_middle_ends_the_connection_when_it_is_settled() -> None:
    play = connected(60_000)
    play.client(fetch(4))
    play.now = play.connection.requests.renew_at + 1
    play.client(fetch(5))
    play.take()
    play.call(Connection.drain)
    play.broker(response(4))
    assert play.take() == ["to client: #4", "closed drained", "close"]


# The proxy's own login to a broker, by mechanism: who must prove what

SHA_256 = ScramMechanism.SCRAM_SHA_256
ASKED = ["SaslHandshake v1 #0", "SaslAuthenticate v2 #0"]


class TestScram:
    """Both sides have to prove that they know the password."""

    def test_iterations_are_left_to_a_thread_once(self) -> None:
        """The password is nowhere in what the login says."""
        salted, play = SaltedPasswords(), waiting_play()
        self.log_in(play, salted)
        assert [line for line in play.take() if line != "logged in"] == [
            *(f"to broker: {one}" for one in ASKED),
            "DeriveKeys",
            f"to broker: {ASKED[1]}",
            "to broker: Fetch v12 #3",
        ]
        assert b"secret" not in play.to_broker
        play = waiting_play()
        self.log_in(play, salted)
        assert "DeriveKeys" not in play.log
        assert play.log[-1] == "to broker: Fetch v12 #3"

    def log_in(self, play: Playbook, salted: SaltedPasswords) -> None:
        identify(play, ScramClient(SHA_256, "alice", "secret", salted))
        play.broker(offers("SCRAM-SHA-256"))
        server = ScramServer(mechanism=SHA_256, credentials=alice(), fake_secret=FAKE_SECRET)
        serving = server.exchange()
        for _ in range(2):
            step = serving.step(self.said(play), play.now)
            assert isinstance(step, Challenge | Success)
            play.broker(lets_in(token=step.data))
            if isinstance(play.commands[-1], DeriveKeys):
                derived(play, play.commands[-1])

    @staticmethod
    def said(play: Playbook) -> bytes:
        """The token that the broker was sent last."""
        at, last = 0, b""
        while at < len(play.to_broker):
            (size,) = struct.unpack_from(">i", play.to_broker, at)
            last = bytes(play.to_broker[at + 4 : at + 4 + size])
            at += 4 + size
        return authenticate_token(2, last[11 + len("reauth-proxy") :])

    @pytest.mark.parametrize(
        "final", [b"v=" + b"A" * 43 + b"=", b"e=other-error", b"", b"v=", b"x" * 10_000]
    )
    def test_a_broker_that_cannot_prove_itself_gets_nothing(self, final: bytes) -> None:
        play = identified(ScramClient(SHA_256, "alice", "secret"))
        play.broker(offers("SCRAM-SHA-256"))
        nonce = self.said(play).split(b"r=")[1]
        play.broker(lets_in(token=b"r=" + nonce + b"more,s=c2FsdA==,i=4096"))
        [derive] = [one for one in play.commands if isinstance(one, DeriveKeys)]
        derived(play, derive)
        play.broker(lets_in(token=final))
        assert play.log[-1] == "close"
        assert close_reason(play) is CloseReason.BROKER_LOGIN_FAILED
        assert "Fetch" not in "".join(play.log)


def test_a_refused_token_is_agreed_to_before_the_error_comes() -> None:
    """RFC 7628 section 3.2.3."""
    play = identified(OAuthBearerClient("token"))
    play.broker(offers("OAUTHBEARER"))
    play.take()
    play.broker(lets_in(token=b'{"status":"invalid_token"}'))
    assert play.take() == ["to broker: SaslAuthenticate v2 #0"]
    play.broker(lets_in(error_code=58))
    assert play.take()[-2:] == ["closed broker_login_failed", "close"]


@given(st.binary(max_size=60), st.binary(max_size=200))
def test_whatever_a_broker_answers_no_client_is_let_through(first: bytes, second: bytes) -> None:
    """But by a login that succeeds, which random bytes do not say."""
    play = identified(ScramClient(SHA_256, "alice", "secret"))
    play.broker(response(0, first))
    if not play.connection.closed:
        play.broker(response(0, second))
    assert "Fetch" not in "".join(play.log)
