"""A connection that is held for its quotas: what happens meanwhile, and when quotas change."""

from typing import Any

from proxy.connection.connection import Connection
from proxy.wire.apis import PRODUCE
from sasl.states import Enforcement
from tests.support.frames import fetch, handshake, produce
from tests.support.playbook import OAUTHBEARER, Playbook, log_in
from tests.support.quotas import (
    ALICE,
    CONSUMER,
    PRODUCER,
    RATE,
    Quoted,
    answer,
    fetched,
)


class TestWhileHeld:
    def held(self, **more: Any) -> Quoted:
        quoted = Quoted({PRODUCER: 1.0}, **more)
        quoted.play.client(produce(3, records=b"r" * 10_000))
        quoted.play.broker(answer(PRODUCE, 9, 3))
        assert quoted.play.paused == {"client"}
        quoted.play.take()
        return quoted

    def test_an_idle_client_is_closed(self) -> None:
        play = self.held().play
        assert play.wakes_at > play.now + 601
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["closed idle", "close"]

    def test_a_drain_does_not_wait_for_it(self) -> None:
        play = self.held().play
        play.call(Connection.drain)
        assert play.take() == ["closed drained", "close"]

    def test_a_session_that_expired_is_killed_when_it_is_used(self) -> None:
        quoted = Quoted({PRODUCER: RATE}, max_reauth_ms=1_000)
        play = quoted.play
        play.client(produce(3, records=b"r" * 12_000))
        play.broker(answer(PRODUCE, 9, 3))
        play.client(produce(4))
        play.take()
        play.wait_for(play.wakes_at)
        assert play.take() == [
            f"expired {Enforcement.ENFORCE} by Produce",
            "closed expired",
            "close",
        ]

    def test_a_session_that_expired_can_be_renewed_after_it(self) -> None:
        quoted = Quoted({PRODUCER: RATE}, max_reauth_ms=1_000)
        play = quoted.play
        play.client(produce(3, records=b"r" * 12_000))
        play.broker(answer(PRODUCE, 9, 3))
        play.client(handshake(4, OAUTHBEARER))
        play.take()
        play.wait_for(play.wakes_at)
        assert play.take() == ["to client: #4 handshake error 0"]

    def test_other_holds_outlast_it(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        play.broker_takes = False
        play.client(produce(3, records=b"r" * 12_000))
        play.wait_for(play.wakes_at)
        assert play.paused == {"client"}
        play.broker_takes = True
        play.call(lambda connection, now: connection.broker_full(False, now))
        assert play.paused == set()

    def test_a_broker_that_goes_takes_the_client_along(self) -> None:
        play = self.held().play
        play.call(Connection.broker_closed)
        assert play.take() == ["closed broker_closed", "close"]


class TestChanges:
    def test_take_effect_on_an_open_connection(self) -> None:
        quoted = Quoted({CONSUMER: 1.0})
        play = quoted.play
        play.client(produce(3, records=b"r" * 50_000))
        assert play.paused == set()
        quoted.store.alter_quotas({ALICE: {PRODUCER: RATE}})
        quoted.tick()
        play.client(produce(4, records=b"r" * 12_000))
        assert play.paused == {"client"}

    def test_the_first_quota_of_all_does_too(self) -> None:
        quoted = Quoted({})
        play = quoted.play
        assert play.connection.throttling is None
        quoted.store.alter_quotas({ALICE: {CONSUMER: RATE}})
        quoted.tick()
        play.client(fetch(3))
        play.broker(fetched(3, 12_000))
        assert play.paused == {"client"}

    def test_a_quota_that_is_gone_holds_nobody_any_more(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        quoted.store.alter_quotas({ALICE: {PRODUCER: None}})
        quoted.tick()
        play.client(produce(3, records=b"r" * 50_000))
        assert play.paused == set()

    def test_they_find_a_connection_that_authenticates_anew(self) -> None:
        quoted = Quoted({CONSUMER: 1.0})
        play = quoted.play
        play.now += 1
        play.client(handshake(3, OAUTHBEARER))
        quoted.store.alter_quotas({ALICE: {PRODUCER: RATE}})
        quoted.tick()
        log_in(play, first_id=3)
        play.client(produce(9, records=b"r" * 12_000))
        assert play.paused == {"client"}

    def test_an_unauthenticated_client_has_no_quota(self) -> None:
        service = Quoted({}).service
        play = Playbook(quotas=service)
        play.call(Connection.apply_quotas)
        assert play.connection.throttling is None
