"""Logins that the broker authenticates, as transcripts (`sasl.termination: broker`)."""

import pytest

from sasl.states import Enforcement
from tests.support.frames import fetch, response
from tests.support.relayed_logins import Login, logged_in, relaying, shaken
from tests.support.sasl import NOW

OBSERVE, PROBE, ENFORCE = Enforcement.OBSERVE, Enforcement.PROBE, Enforcement.ENFORCE


class TestFirstLogin:
    def test_each_message_goes_to_the_broker_and_its_answer_to_the_client(self) -> None:
        play = relaying()
        login = Login(play, play.broker)
        login.begin()
        assert play.take() == ["connect", "to broker: SaslHandshake v1 #1"]
        play.broker(shaken(1))
        assert play.take() == ["to client: #1 handshake error 0"]
        login.first()
        assert play.take() == ["to broker: SaslAuthenticate v1 #2"]
        login.challenged()
        assert play.take() == ["to client: #2 token error 0 lifetime 0"]
        login.final()
        login.proven()
        assert play.take() == [
            "to broker: SaslAuthenticate v1 #3",
            "to client: #3 token error 0 lifetime 3600000",
            "authenticated User:alice",
        ]
        play.client(fetch(4))
        assert play.take() == ["to broker: Fetch v12 #4"]

    @pytest.mark.parametrize(
        ("enforcement", "max_reauth_ms", "broker_ms", "told_ms", "deadline"),
        [
            (ENFORCE, 60_000, 0, 60_000, NOW + 60),
            (ENFORCE, 60_000, 5_000, 5_000, NOW + 5),
            (ENFORCE, 5_000, 60_000, 5_000, NOW + 5),
            (ENFORCE, 0, 60_000, 60_000, NOW + 60),
            (ENFORCE, 0, 0, 0, None),
            (PROBE, 60_000, 0, 60_000, NOW + 60),
            (OBSERVE, 60_000, 0, 0, None),
            (OBSERVE, 60_000, 5_000, 5_000, None),  # which the broker keeps
        ],
    )
    @pytest.mark.parametrize("version", [1, 2])
    def test_the_smaller_lifetime_is_announced(
        self,
        enforcement: Enforcement,
        max_reauth_ms: int,
        broker_ms: int,
        told_ms: int,
        deadline: float | None,
        version: int,
    ) -> None:
        play = relaying(enforcement=enforcement, max_reauth_ms=max_reauth_ms)
        Login(play, play.broker, version=version).run(broker_ms)
        assert f"to client: #3 token error 0 lifetime {told_ms}" in play.take()
        assert play.session.deadline == deadline
        assert play.session.announced_lifetime_ms == told_ms


class TestSide:
    def test_a_learned_principal_is_renewed_aside_and_keeps_its_connection(self) -> None:
        play = logged_in()
        play.client(fetch(9))
        play.now += 100
        login = Login(play, play.side, first_id=10)
        login.begin()
        assert play.take() == ["to broker: Fetch v12 #9", "open side until 110"]
        play.side_connects()
        assert play.take() == ["to side: SaslHandshake v1 #10"]
        play.side(shaken(10))
        assert play.take() == []  # behind what is in flight
        play.broker(response(9, b"records"))
        assert play.take() == ["to client: #9 records", "to client: #10 handshake error 0"]
        login.first()
        login.challenged()
        login.final()
        login.proven()
        assert play.take() == [
            "to side: SaslAuthenticate v1 #11",
            "to client: #11 token error 0 lifetime 0",
            "to side: SaslAuthenticate v1 #12",
            "to client: #12 token error 0 lifetime 3600000",
            "authenticated User:alice again (1)",
            "close side",
        ]
        assert play.session.deadline == NOW + 100 + 3600
        play.client(fetch(13))
        assert play.take() == ["to broker: Fetch v12 #13"]
