"""Reconnecting escapes no quota: requests of a new connection wait for the debt of the old one."""

import pytest

from proxy.config import Quotas
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.quota.shared_memory import UsageTable, WindowConfig
from proxy.wire.apis import PRODUCE
from proxy.wire.codec import decode as strict_decode
from proxy.wire.messages import FetchResponse
from proxy.worker.quota_service import QuotaService
from sasl.identity import Identity
from tests.support.frames import fetch, metadata, produce, request
from tests.support.kio_messages import decode, response_type
from tests.support.playbook import Playbook, everything, log_in, logged_in
from tests.support.quotas import (
    ALICE,
    CONSUMER,
    PLAIN,
    PRODUCER,
    RATE,
    MemoryStore,
    answer,
    fetched,
)

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
    entity = ALICE if sasl else QuotaEntity(client_id="app")
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
    (count,) = given.service.counts.values()
    assert count.used < 1_000
    given.close(play)
    assert count.used == len(play.to_broker) - 8


class TestANewConnection:
    """Of a client whose quota was exceeded on another one, by two seconds."""

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
