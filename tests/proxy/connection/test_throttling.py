"""Quotas on a connection, as transcripts: delays, holds, changes, and listeners without SASL."""

from typing import Any

import pytest

from proxy.acl.model import Operation
from proxy.config import Quotas
from proxy.connection.connection import Connection
from proxy.quota.model import DEFAULT, QuotaEntity
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.wire.apis import FETCH, METADATA, PRODUCE
from proxy.worker.quota_service import QuotaService
from sasl.identity import Identity
from tests.support.authorization import Judge, topic
from tests.support.frames import fetch, handshake, metadata, produce, request
from tests.support.messages import produce_body
from tests.support.playbook import OAUTHBEARER, Offer, Playbook, everything, log_in, logged_in
from tests.support.quotas import (
    ALICE,
    CONSUMER,
    PLAIN,
    PRODUCER,
    RATE,
    MemoryStore,
    Quoted,
    answer,
    fetched,
)

FETCH_BODIES = {"short": 100, "long": 300_000}


class TestAProducer:
    def test_is_told_at_once_and_held_then(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        play.client(produce(3, records=b"r" * 12_000))
        assert play.take()[-1] == "to broker: Produce v9 #3"
        held = play.wakes_at - play.now
        assert 1.9 < held < 2.2
        assert play.paused == {"client"}
        play.broker(answer(PRODUCE, 9, 3))
        assert quoted.throttle_time_ms == round(held * 1_000)
        play.client(produce(4))
        play.take()
        play.wait_for(play.wakes_at - 0.001)
        assert play.take() == []
        play.wait_for(play.wakes_at)
        assert play.take() == ["to broker: Produce v9 #4"]

    def test_is_not_held_within_its_quota(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        quoted.play.client(produce(3, records=b"r" * 9_000))
        quoted.play.broker(answer(PRODUCE, 9, 3))
        assert quoted.play.paused == set()
        assert quoted.throttle_time_ms == 0

    def test_counts_each_of_many_in_one_read_and_what_is_between_them(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        frames = [produce(3 + 2 * n, records=b"r" * 3_000) for n in range(4)]
        between = [metadata(4 + 2 * n, b"m" * 50_000) for n in range(3)]
        play.client(frames[0], between[0], frames[1], between[1], frames[2], between[2], frames[3])
        size = sum(len(frame) - 4 for frame in frames)
        assert round(play.wakes_at - play.now, 3) == round(size / RATE - 10, 3)
        for n in range(4):
            play.broker(answer(PRODUCE, 9, 3 + 2 * n))
            if n < 3:
                assert quoted.throttle_time_ms == 0
                play.broker(answer(METADATA, 12, 4 + 2 * n))
        assert quoted.throttle_time_ms == round(size / RATE * 1_000) - 10_000

    def test_is_held_behind_the_whole_of_a_frame(self) -> None:
        """Or the broker could not answer, and the client would wait twice as long."""
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        frame = produce(3, records=b"r" * 200_000)
        play.client(frame[:50_000])
        assert play.paused == set()
        play.client(frame[50_000:-1])
        assert play.paused == set()
        play.client(frame[-1:], produce(4))
        assert play.paused == {"client"}
        assert play.take() == ["connect", "to broker: Produce v9 #3"]
        assert bytes(play.to_broker) == frame

    def test_has_its_response_rewritten_as_well(self) -> None:
        quoted = Quoted({PRODUCER: RATE}, rewritten=frozenset({PRODUCE}))
        quoted.play.client(produce(3, records=b"r" * 12_000))
        quoted.play.broker(answer(PRODUCE, 9, 3))
        assert quoted.throttle_time_ms > 1_900
        assert quoted.play.received[-1].endswith(b"<rewritten>")

    def test_what_was_read_with_it_waits(self) -> None:
        """Of one read: an API that the proxy answers itself, behind the frame that is too much."""
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        play.client(produce(3, records=b"r" * 12_000), request(18, 0, 4))
        assert play.take() == ["connect", "to broker: Produce v9 #3"]
        play.broker(answer(PRODUCE, 9, 3))
        play.take()
        play.wait_for(play.wakes_at)
        assert play.take() == ["to client: #4 versions error 0"]


class TestAConsumer:
    @pytest.mark.parametrize("size", FETCH_BODIES.values(), ids=FETCH_BODIES)
    @pytest.mark.parametrize("rewritten", [PLAIN, frozenset({FETCH})], ids=["plain", "rewritten"])
    def test_is_told_and_held_by_what_it_is_sent(
        self, size: int, rewritten: frozenset[int]
    ) -> None:
        rate = size / 12
        quoted = Quoted({CONSUMER: rate}, rewritten=rewritten)
        play = quoted.play
        play.client(fetch(3))
        frame = fetched(3, size)
        play.broker(frame)
        held_ms = round((play.wakes_at - play.now) * 1_000)
        assert held_ms == round((len(frame) - 4) / rate * 1_000) - 10_000
        assert play.paused == {"client"}
        reported = play.received[-1].removesuffix(b"<rewritten>")
        assert reported == frame[4:9] + held_ms.to_bytes(4) + frame[13:]

    def test_is_told_wherever_the_response_is_split(self) -> None:
        frame = fetched(3, 70_000)
        for at in (*range(1, 30), 40_000, len(frame) - 1):
            quoted = Quoted({CONSUMER: 5_000.0})
            quoted.play.client(fetch(3))
            quoted.play.broker(frame[:at])
            quoted.play.broker(frame[at:])
            held_ms = round((quoted.play.wakes_at - quoted.play.now) * 1_000)
            expected = frame[4:9] + held_ms.to_bytes(4) + frame[13:]
            assert quoted.play.received[-1] == expected, at
            assert held_ms == round((len(frame) - 4) / 5) - 10_000, at

    def test_counts_once_what_needs_a_second_look(self) -> None:
        """Behind others in one read, the response is looked at twice."""
        quoted = Quoted({CONSUMER: 1_000.0})
        play = quoted.play
        play.client(produce(3), fetch(4), metadata(5))
        play.broker(answer(PRODUCE, 9, 3), fetched(4, 11_000), answer(METADATA, 12, 5))
        held_ms = round((play.wakes_at - play.now) * 1_000)
        assert held_ms == len(fetched(4, 11_000)) - 4 - 10_000
        assert [int.from_bytes(frame[:4]) for frame in play.received[-3:]] == [3, 4, 5]

    def test_is_not_looked_at_within_its_quota(self) -> None:
        quoted = Quoted({CONSUMER: 1_000_000.0})
        frame = fetched(3, 300_000)
        quoted.play.client(fetch(3))
        for at in range(0, len(frame), 40_000):
            quoted.play.broker(frame[at : at + 40_000])
            assert quoted.play.kept_bytes == 0
        assert quoted.play.received[-1] == frame[4:]
        assert quoted.play.paused == set()

    def test_is_held_behind_what_it_is_sending(self) -> None:
        quoted = Quoted({CONSUMER: 1_000.0})
        play = quoted.play
        frame = produce(4, records=b"r" * 50_000)
        play.client(fetch(3), frame[:30_000])
        play.broker(fetched(3, 12_000))
        assert play.paused == set()
        play.client(frame[30_000:])
        assert play.paused == {"client"}

    def test_the_hold_grows_with_what_was_under_way(self) -> None:
        quoted = Quoted({CONSUMER: 1_000.0, PRODUCER: 1_000.0})
        play = quoted.play
        play.client(fetch(3), produce(4, records=b"r" * 12_000))
        first = play.wakes_at
        play.broker(fetched(3, 15_000))
        play.wait_for(first)
        assert play.paused == {"client"}
        assert play.wakes_at > first + 2.9
        play.wait_for(play.wakes_at)
        assert play.paused == set()


def test_audit_holds_nobody_and_tells_nothing() -> None:
    quoted = Quoted({PRODUCER: RATE, CONSUMER: RATE}, mode="audit")
    play = quoted.play
    play.client(produce(3, records=b"r" * 50_000), fetch(4))
    play.broker(answer(PRODUCE, 9, 3), fetched(4, 50_000))
    assert play.paused == set()
    assert play.received[-2] == answer(PRODUCE, 9, 3)[4:]
    assert play.received[-1] == fetched(4, 50_000)[4:]
    counts = {key: count.throttles for (key, _), count in quoted.service.counts.items()}
    assert counts == {PRODUCER: 1, CONSUMER: 1}, "each by itself"


@pytest.mark.parametrize("allowed", [[], ["mine"]], ids=["none", "a part"])
def test_a_producer_is_held_for_what_is_denied_as_well(allowed: list[str]) -> None:
    """As in Kafka: refused bytes count; the proxy's refusal announces the throttle time."""
    quoted = Quoted({PRODUCER: 1.0}, rights=Judge(topic(Operation.WRITE, *allowed)))
    body = produce_body(9, [("mine", [0]), ("theirs", [0])], records=bytes(1_000))
    quoted.play.client(request(PRODUCE, 9, 3, body))
    assert (b"mine" in quoted.play.to_broker, b"theirs" in quoted.play.to_broker) == (
        bool(allowed),
        False,
    )
    if allowed:
        quoted.play.broker(answer(PRODUCE, 9, 3))
    assert quoted.play.paused == {"client"}
    assert quoted.throttle_time_ms > 1_000


def test_without_quotas_nothing_is_measured() -> None:
    play = logged_in(Playbook(offer=Offer(routes=everything().routes, api_versions=None)))
    assert play.connection.throttling is None
    assert not any(route.transform for route in everything(rewritten=PLAIN).routes.values())


# A connection that is held for its quotas: what happens meanwhile, and when quotas change


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

    @pytest.mark.parametrize(
        ("frame", "lines"),
        [
            (produce(4), ["expired enforce by Produce", "closed expired", "close"]),
            (handshake(4, OAUTHBEARER), ["to client: #4 handshake error 0"]),
        ],
    )
    def test_a_session_that_expired_is_killed_when_it_is_used_or_renewed(
        self, frame: bytes, lines: list[str]
    ) -> None:
        play = Quoted({PRODUCER: RATE}, max_reauth_ms=1_000).play
        play.client(produce(3, records=b"r" * 12_000))
        play.broker(answer(PRODUCE, 9, 3))
        play.client(frame)
        play.take()
        play.wait_for(play.wakes_at)
        assert play.take() == lines

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


# A client that logs in nowhere falls under the quotas of the client id that its requests have

APP, EVERY = QuotaEntity(client_id="app"), QuotaEntity(client_id=DEFAULT)


def service(entity: QuotaEntity) -> QuotaService:
    store = MemoryStore()
    store.alter_quotas({entity: {PRODUCER: RATE}})
    table = UsageTable(1, WindowConfig(), rows=64)
    return QuotaService(Quotas.model_validate({"mode": "enforce"}), store, table, 0)


def admitted(quotas: QuotaService) -> Playbook:
    play = Playbook(quotas=quotas, offer=everything(rewritten=PLAIN, metered=True))
    play.now = float(int(play.now))
    play.call(lambda connection, now: connection.admit(Identity("User:ANONYMOUS"), now))
    return play


def versions(correlation_id: int, client_id: str) -> bytes:
    return request(18, 0, correlation_id, client_id=client_id)


NAMELESS = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


@pytest.mark.parametrize(
    ("first", "client_id", "is_held"),
    [
        pytest.param(b"", "app", True, id="forwarded"),
        pytest.param(versions(1, "app"), "app", True, id="answered"),
        pytest.param(NAMELESS, "app", True, id="without one"),
        pytest.param(versions(1, "app"), "other", True, id="a later one"),
        pytest.param(b"", "other", False, id="another"),
    ],
)
def test_its_first_request_that_has_one_tells_it(
    first: bytes, client_id: str, is_held: bool
) -> None:
    play = admitted(service(APP))
    play.client(first, produce(3, records=b"r" * 12_000, client_id=client_id))
    assert (play.paused == {"client"}) is is_held


def test_each_client_id_has_a_default_of_its_own() -> None:
    quotas = service(EVERY)
    for name in ("one", "two", "three"):
        play = admitted(quotas)
        play.client(versions(1, name), produce(3, records=b"r" * 9_000, client_id=name))
        assert play.paused == set()
    again = admitted(quotas)
    again.client(produce(3, records=b"r" * 9_000, client_id="one"))
    assert again.paused == {"client"}


@pytest.mark.parametrize("at", range(1, 18))
def test_it_is_learnt_wherever_the_request_is_split(at: int) -> None:
    play = admitted(service(APP))
    frame = produce(3, records=b"r" * 12_000)
    play.client(frame[:at])
    play.client(frame[at:])
    assert play.paused == {"client"}
    assert bytes(play.to_broker) == frame


def test_one_that_ends_behind_its_request_is_not_waited_for() -> None:
    play = admitted(service(APP))
    frame = bytes.fromhex("0000000c 0003 0000 00000001 7fff 6161")
    play.client(frame)
    assert play.connection.authentication.client_id is None
    assert play.kept_bytes == 0 or play.connection.closed
