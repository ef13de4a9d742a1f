"""Quotas on a connection, as transcripts: delays, holds, changes, and listeners without SASL."""

from typing import Any

import pytest

from proxy.acl.model import Operation
from proxy.config import Quotas
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.wire.apis import FETCH, METADATA, PRODUCE
from proxy.wire.codec import decode as strict_decode
from proxy.wire.messages import FetchResponse
from proxy.worker.quota_service import QuotaService
from sasl.identity import Identity
from tests.support.authorization import Judge, topic
from tests.support.frames import fetch, handshake, metadata, produce, request
from tests.support.kio_messages import decode, response_type
from tests.support.messages import produce_body
from tests.support.playbook import OAUTHBEARER, Playbook, everything, log_in, logged_in
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
    counts = {key: count.throttles for (key, _), count in quoted.service._quotas.counts.items()}
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

APP = QuotaEntity(client_id="app")


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
    play = Reconnecting({PRODUCER: RATE}, entity=APP).connect(sasl=False)
    play.client(first, produce(3, records=b"r" * 12_000, client_id=client_id))
    assert (play.paused == {"client"}) is is_held


def test_each_client_id_has_a_default_of_its_own() -> None:
    given = Reconnecting({PRODUCER: RATE}, entity=QuotaEntity(client_id=DEFAULT))
    for name in ("one", "two", "three"):
        play = given.connect(sasl=False)
        play.client(versions(1, name), produce(3, records=b"r" * 9_000, client_id=name))
        assert play.paused == set()
    again = given.connect(sasl=False)
    again.client(produce(3, records=b"r" * 9_000, client_id="one"))
    assert again.paused == {"client"}


@pytest.mark.parametrize("at", range(1, 18))
def test_it_is_learnt_wherever_the_request_is_split(at: int) -> None:
    play = Reconnecting({PRODUCER: RATE}, entity=APP).connect(sasl=False)
    frame = produce(3, records=b"r" * 12_000)
    play.client(frame[:at])
    play.client(frame[at:])
    assert play.paused == {"client"}
    assert bytes(play.to_broker) == frame


def test_one_that_ends_behind_its_request_is_not_waited_for() -> None:
    play = Reconnecting({PRODUCER: RATE}, entity=APP).connect(sasl=False)
    frame = bytes.fromhex("0000000c 0003 0000 00000001 7fff 6161")
    play.client(frame)
    assert play.connection.authentication.client_id is None
    assert play.kept_bytes == 0 or play.connection.closed


# Reconnecting escapes no quota: requests of a new connection wait for the debt of the old one


REQUEST = QuotaKey.REQUEST_PERCENTAGE
WINDOW_SECONDS = 11.0


class Reconnecting:
    """The quotas of one worker, and connections that come one after the other."""

    def __init__(
        self, limits: dict[QuotaKey, float], *, mode: str = "enforce", entity: QuotaEntity = ALICE
    ) -> None:
        store = MemoryStore()
        store.alter_quotas({entity: limits})
        self.now = 1_000.0
        self.steps_ns = 0
        """Step of the stopwatches' clock at each reading."""
        self._ns = 0
        self.service = QuotaService(
            Quotas.model_validate({"mode": mode}),
            store,
            UsageTable(1, WindowConfig(), rows=64),
            0,
            clock=self._clock,
        )

    def _clock(self) -> int:
        self._ns += self.steps_ns
        return self._ns

    def connect(self, *, sasl: bool = True) -> Playbook:
        """Open one more connection of alice, or of an unauthenticated client."""
        play = Playbook(quotas=self.service, offer=everything(rewritten=PLAIN, metered=True))
        play.now = self.now
        if sasl:
            return logged_in(play)
        play.call(lambda connection, now: connection.admit(Identity("User:ANONYMOUS"), now))
        return play

    def close(self, play: Playbook) -> None:
        self.now = play.now
        play.call(finishing(CloseReason.CLIENT_CLOSED))


def until_forwarded(play: Playbook, size: int) -> None:
    """Run the timer of a held client until the broker has this many bytes."""
    while len(play.to_broker) < size:
        play.wait_for(play.wakes_at)


@pytest.mark.parametrize("sasl", [True, False])
@pytest.mark.parametrize("acks", [1, 0])
def test_a_connection_for_each_produce_gets_its_quota_and_no_more(sasl: bool, acks: int) -> None:
    entity = ALICE if sasl else APP
    given = Reconnecting({PRODUCER: RATE}, entity=entity)
    began, produced = given.now, 0
    while given.now < began + 120.0:
        play = given.connect(sasl=sasl)
        frame = produce(3, acks=acks, records=b"r" * 5_000)
        play.client(frame)
        until_forwarded(play, len(frame))
        assert play.to_broker == frame
        produced += len(frame) - 4
        play.now += 0.01
        given.close(play)
    assert RATE * 120 <= produced <= RATE * (given.now - began + WINDOW_SECONDS) + 5_200


def test_many_at_once_get_no_more_but_for_one_request_each() -> None:
    given, size, many = Reconnecting({PRODUCER: RATE}), 5_000, 10
    began, produced, seconds = given.now, 0, 120.0
    plays: list[Playbook] = []
    while given.now < began + seconds:
        plays += [given.connect() for _ in range(many - len(plays))]
        for play in plays:
            play.client(produce(3, records=b"r" * size))
        given.now = min([play.wakes_at for play in plays if not play.to_broker], default=given.now)
        for play in plays:
            play.wait_for(given.now)
        for play in [play for play in plays if play.to_broker]:
            produced += len(play.to_broker) - 4
            given.now += 0.01
            play.now = given.now
            given.close(play)
            plays.remove(play)
    most = RATE * (given.now - began + WINDOW_SECONDS) + many * (size + 100)
    assert RATE * seconds * 0.9 <= produced <= most


def test_what_was_not_settled_outlasts_the_connection() -> None:
    """Far from the limit, use is written down ten times a second; a client may be gone by then."""
    given = Reconnecting({PRODUCER: 1_000_000.0})
    play = given.connect()
    play.client(produce(3), produce(4, records=b"r" * 80_000))
    (count,) = given.service._quotas.counts.values()
    assert count.used < 1_000
    given.close(play)
    assert count.used == len(play.to_broker) - 8


class TestANewConnection:
    """Another connection of the client exceeded the quota by two seconds."""

    def indebted(self, key: QuotaKey = PRODUCER, mode: str = "enforce") -> Reconnecting:
        given = Reconnecting({key: RATE}, mode=mode)
        play = given.connect()
        if key is CONSUMER:
            play.client(fetch(3))
            play.broker(fetched(3, 12_000 - 9))
        else:
            frame = produce(3)
            play.client(produce(3, records=b"r" * (12_004 - len(frame))))
        given.close(play)
        return given

    def test_has_its_first_produce_wait_as_long_as_others_do(self) -> None:
        play = self.indebted().connect()
        play.client(produce(3))
        assert (play.paused, play.take()) == ({"client"}, [])
        assert play.wakes_at == play.now + 2.0
        play.wait_for(play.wakes_at - 0.001)
        assert play.take() == []
        play.wait_for(play.wakes_at)
        assert play.take() == ["connect", "to broker: Produce v9 #3"]
        play.broker(answer(PRODUCE, 9, 3))
        assert len(play.received) == 3

    def test_is_told_what_its_produce_exceeds(self) -> None:
        play = self.indebted().connect()
        frame = produce(3, records=b"r" * 3_000)
        play.client(frame)
        play.wait_for(play.wakes_at)
        held = play.wakes_at - play.now
        assert held == pytest.approx((12_000 + len(frame) - 4) / RATE - 10, abs=0.001)
        play.broker(answer(PRODUCE, 9, 3))
        reported = decode(response_type(PRODUCE, 9), play.received[-1][5:]).throttle_time
        assert reported.total_seconds() == pytest.approx(held, abs=0.001)

    def test_logs_in_and_asks_for_other_things_meanwhile(self) -> None:
        """`connect` has logged in."""
        play = self.indebted().connect()
        play.client(metadata(3), fetch(4))
        assert play.take() == ["connect", "to broker: Metadata v12 #3", "to broker: Fetch v12 #4"]
        play.client(produce(5))
        assert play.paused == {"client"}

    def test_is_let_alone_once_it_has_waited(self) -> None:
        play = self.indebted().connect()
        play.client(produce(3))
        play.wait_for(play.wakes_at)
        play.wait_for(play.wakes_at)
        play.take()
        play.client(produce(4))
        assert play.take() == ["to broker: Produce v9 #4"]

    def test_may_go_without_being_charged(self) -> None:
        given = self.indebted()
        play = given.connect()
        play.client(produce(3, records=b"r" * 50_000))
        assert not play.to_broker
        given.close(play)
        play = given.connect()
        play.client(produce(3))
        assert play.wakes_at == play.now + 2.0

    def test_that_says_all_and_ends_its_sending_is_answered(self) -> None:
        play = self.indebted().connect()
        play.client(produce(3))
        play.call(Connection.client_finished)
        play.take()
        play.wait_for(play.wakes_at)
        assert play.take() == ["connect", "to broker: Produce v9 #3"]

    def test_of_another_name_falls_under_the_same_quota_of_its_user(self) -> None:
        play = self.indebted().connect()
        play.client(produce(3, client_id="renamed"))
        assert play.paused == {"client"}

    def test_in_audit_is_held_by_nothing(self) -> None:
        play = self.indebted(mode="audit").connect()
        play.client(produce(3))
        assert play.take() == ["connect", "to broker: Produce v9 #3"]

    def test_gets_nothing_fetched_and_is_told_to_come_again(self) -> None:
        play = self.indebted(CONSUMER).connect()
        play.client(fetch(3))
        play.broker(fetched(3, 5_000))
        reported = strict_decode(FetchResponse, 12, play.received[-1][5:])
        assert (reported.responses, reported.throttle_time_ms) == ((), 2_000)
        assert play.paused == {"client"}


class TestTheTimeOfRequests:
    """The clock goes a second on: a hundred percent of a thread's, where one is allowed."""

    def indebted(self, *, sasl: bool = True) -> Reconnecting:
        entity = ALICE if sasl else QuotaEntity(client_id=DEFAULT)
        given = Reconnecting({REQUEST: 1.0}, entity=entity)
        play = given.connect(sasl=sasl)
        given.steps_ns = 1_000_000_000
        play.client(metadata(3))
        given.steps_ns = 0
        given.close(play)
        return given

    @pytest.mark.parametrize("sasl", [True, False])
    def test_a_first_request_waits_for_a_sample_at_most(self, sasl: bool) -> None:
        play = self.indebted(sasl=sasl).connect(sasl=sasl)
        play.take()
        play.client(metadata(3))
        assert (play.paused, play.take()) == ({"client"}, [])
        assert play.wakes_at == play.now + 1.0
        play.wait_for(play.wakes_at)
        assert play.take() == ["connect", "to broker: Metadata v12 #3"]

    @pytest.mark.parametrize("sasl", [True, False])
    def test_what_a_client_is_offered_is_answered_and_tells_it(self, sasl: bool) -> None:
        """ApiVersions: the next request does not wait a second time."""
        play = self.indebted(sasl=sasl).connect(sasl=sasl)
        play.client(request(18, 1, 3), metadata(4))
        reported = decode(response_type(18, 1), play.received[-1][4:]).throttle_time
        assert (reported.total_seconds(), play.paused) == (1.0, {"client"})
        assert ("connect" in play.take()) == sasl
        play.wait_for(play.now + 1.0)
        assert play.take()[-1] == "to broker: Metadata v12 #4"

    def test_nobody_waits_to_authenticate_anew(self) -> None:
        play = self.indebted().connect()
        play.now += 1.5
        log_in(play, first_id=4)
        assert play.session.reauthentications == 1
        play.client(metadata(9))
        assert play.paused == {"client"}
