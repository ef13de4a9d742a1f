"""One connection under quotas: when it is held, and which times it announces."""

import pytest

from proxy.acl.model import Operation
from proxy.wire.apis import (
    FETCH,
    METADATA,
    PRODUCE,
)
from tests.support.authorization import Judge, topic
from tests.support.frames import fetch, metadata, produce, request, response
from tests.support.kio_messages import encode, request_type, response_type
from tests.support.messages import large
from tests.support.playbook import Offer, Playbook, everything, logged_in
from tests.support.quotas import CONSUMER, PLAIN, PRODUCER, RATE, Quoted, answer, fetched

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

    def test_of_acks_0_is_held_without_being_told(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        play.client(produce(3, acks=0, records=b"r" * 12_000))
        assert play.paused == {"client"}
        assert len(play.connection.inflight) == 0

    def test_is_told_the_larger_of_the_two_throttle_times(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        quoted.play.client(produce(3, records=b"r" * 12_000))
        broker_says = large(response_type(PRODUCE, 9))
        announced_ms = round(broker_says.throttle_time.total_seconds() * 1_000)
        quoted.play.broker(response(3, b"\0" + encode(broker_says)))
        assert quoted.throttle_time_ms == max(announced_ms, 1_000) >= 2_000 or announced_ms < 2_000

    def test_has_its_response_rewritten_as_well(self) -> None:
        quoted = Quoted({PRODUCER: RATE}, rewritten=frozenset({PRODUCE}))
        quoted.play.client(produce(3, records=b"r" * 12_000))
        quoted.play.broker(answer(PRODUCE, 9, 3))
        assert quoted.throttle_time_ms > 1_900
        assert quoted.play.received[-1].endswith(b"<rewritten>")

    def test_that_ignores_it_stays_held(self) -> None:
        quoted = Quoted({PRODUCER: RATE})
        play = quoted.play
        play.client(produce(3, records=b"r" * 12_000))
        for number in range(4, 50):
            play.client(produce(number, records=b"r" * 1_000))
        assert play.take() == ["connect", "to broker: Produce v9 #3"]
        assert play.kept_bytes == 0

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

    def test_without_a_quota_is_not_measured(self) -> None:
        quoted = Quoted({PRODUCER: 1.0})
        quoted.play.client(fetch(3))
        quoted.play.broker(fetched(3, 1_000_000))
        assert quoted.play.paused == set()

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


class TestAProducerThatIsAuthorized:
    def sent(self, quoted: Quoted, correlation_id: int) -> None:
        filled = encode(large(request_type(PRODUCE, 9)))
        quoted.play.client(request(PRODUCE, 9, correlation_id, filled))

    def test_is_held_for_what_is_denied_as_well(self) -> None:
        """As in Kafka: refused bytes count; the proxy's refusal announces the throttle time."""
        quoted = Quoted({PRODUCER: 1.0}, rights=Judge())
        self.sent(quoted, 3)
        assert quoted.play.paused == {"client"}
        assert quoted.throttle_time_ms > 1_000
        assert quoted.play.to_broker == b""

    def test_is_held_when_a_part_is_denied(self) -> None:
        names = {one.name for one in large(request_type(PRODUCE, 9)).topic_data}
        quoted = Quoted({PRODUCER: 1.0}, rights=Judge(topic(Operation.WRITE, *names)))
        self.sent(quoted, 3)
        quoted.play.broker(answer(PRODUCE, 9, 3))
        assert quoted.play.paused == {"client"}
        assert quoted.throttle_time_ms > 1_000

    def test_is_told_once(self) -> None:
        quoted = Quoted({PRODUCER: 10.0}, rights=Judge())
        self.sent(quoted, 3)
        play = quoted.play
        play.client(request(18, 0, 4))
        play.wait_for(play.wakes_at)
        assert play.take()[-1] == "to client: #4 versions error 0"


def test_without_quotas_nothing_is_measured() -> None:
    play = logged_in(Playbook(offer=Offer(routes=everything().routes, api_versions=None)))
    assert play.connection.throttling is None
    assert not any(route.transform for route in everything(rewritten=PLAIN).routes.values())
