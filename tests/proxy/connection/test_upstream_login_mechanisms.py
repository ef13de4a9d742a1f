"""The proxy's own login to a broker, by mechanism: who must prove what."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.connection.commands import CloseReason, DeriveKeys
from sasl.credentials import ScramCredential, ScramMechanism
from sasl.login import OAuthBearerClient, SaltedPasswords, ScramClient
from sasl.mechanism import Challenge, Success
from sasl.messages import authenticate_token
from sasl.scram import ScramServer
from tests.support.frames import response
from tests.support.playbook import Playbook
from tests.support.sasl import FAKE_SECRET, alice
from tests.support.upstream import (
    close_reason,
    derived,
    identify,
    lets_in,
    offers,
    waiting_play,
)

ASKED = ["SaslHandshake v1 #0", "SaslAuthenticate v2 #0"]


class TestScram:
    """Both sides have to prove that they know the password."""

    def exchange(self, salted: SaltedPasswords | None = None) -> ScramClient:
        return ScramClient(ScramMechanism.SCRAM_SHA_256, "alice", "secret", salted)

    def test_iterations_are_left_to_a_thread_once(self) -> None:
        salted, play = SaltedPasswords(), waiting_play()
        server = ScramServer(
            mechanism=ScramMechanism.SCRAM_SHA_256, credentials=alice(), fake_secret=FAKE_SECRET
        )
        self.log_in(play, server, self.exchange(salted))
        assert [line for line in play.take() if line != "logged in"] == [
            *(f"to broker: {one}" for one in ASKED),
            "DeriveKeys",
            f"to broker: {ASKED[1]}",
            "to broker: Fetch v12 #3",
        ]
        play = waiting_play()
        self.log_in(play, server, self.exchange(salted))
        assert "DeriveKeys" not in play.log
        assert play.log[-1] == "to broker: Fetch v12 #3"

    def log_in(self, play: Playbook, server: ScramServer, exchange: ScramClient) -> None:
        identify(play, exchange)
        play.broker(offers("SCRAM-SHA-256"))
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
        play = waiting_play()
        identify(play, self.exchange())
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
    play = waiting_play()
    identify(play, OAuthBearerClient("token"))
    play.broker(offers("OAUTHBEARER"))
    play.take()
    play.broker(lets_in(token=b'{"status":"invalid_token"}'))
    assert play.take() == ["to broker: SaslAuthenticate v2 #0"]
    play.broker(lets_in(error_code=58))
    assert play.take()[-2:] == ["closed broker_login_failed", "close"]


@given(st.binary(max_size=60), st.binary(max_size=200))
def test_whatever_a_broker_answers_no_client_is_let_through(first: bytes, second: bytes) -> None:
    """But by a login that succeeds, which random bytes do not say."""
    play = waiting_play()
    identify(play, ScramClient(ScramMechanism.SCRAM_SHA_256, "alice", "secret"))
    play.broker(response(0, first))
    if not play.connection.closed:
        play.broker(response(0, second))
    assert "Fetch" not in "".join(play.log)


def test_a_password_is_nowhere_in_what_a_login_says() -> None:
    """But with PLAIN, which is for TLS."""
    credential = ScramCredential.from_password(
        ScramMechanism.SCRAM_SHA_256, "secret", b"salt", 4_096
    )
    play = waiting_play()
    TestScram().log_in(
        play,
        ScramServer(
            mechanism=ScramMechanism.SCRAM_SHA_256, credentials=alice(), fake_secret=FAKE_SECRET
        ),
        TestScram().exchange(),
    )
    assert b"secret" not in play.to_broker
    assert credential.stored_key not in play.to_broker
