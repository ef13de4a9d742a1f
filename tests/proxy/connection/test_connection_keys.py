"""Signing keys that are looked for while a token waits for them, as transcripts."""

from sasl.jwks import KeyCache
from sasl.states import Authenticating
from tests.support.frames import authenticate, bearer_of_unknown_key, fetch, handshake
from tests.support.playbook import OAUTHBEARER, Playbook
from tests.support.sasl import NOW, document, ed_key, rsa_key


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
        assert play.take() == [
            "to client: #2 token error 0 lifetime 0",
            "failed illegal_state",
            "closed authentication_failed",
            "close after 0.1 s",
        ]

    def test_until_the_time_for_authentication_is_over(self) -> None:
        play, _ = self.asking()
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["failed timeout", "closed authentication_timeout", "close"]
        play.call(lambda connection, now: connection.resume_login(now))
        assert play.take() == []
        assert isinstance(play.connection.session.state, Authenticating) is False
