"""Fetches under a consumer_byte_rate: what the broker is asked for, and who gets the answer."""

import struct
from dataclasses import replace
from datetime import timedelta

import pytest
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from proxy.acl.model import Operation
from proxy.connection.connection import Connection
from proxy.wire.apis import FETCH, SHARE_FETCH
from proxy.wire.error_codes import ErrorCode
from tests.support.authorization import Judge, topic
from tests.support.frames import fetch, metadata, request, response
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.messages import fetch_body, large, request_body
from tests.support.playbook import Playbook, everything, logged_in
from tests.support.quotas import ALICE, CONSUMER, PLAIN, RATE, Quoted, answer, fetched

WINDOW = 10 * int(RATE)


def another(
    quoted: Quoted, *, rewritten: frozenset[int] = PLAIN, rights: Judge | None = None
) -> Playbook:
    """A second connection of alice."""
    offer = everything(rewritten=rewritten, metered=True)
    play = Playbook(quotas=quoted.service, offer=offer, rights=rights)
    play.now = quoted.play.now
    return logged_in(play)


def filled(correlation_id: int, api_key: int, version: int, size: int = 100) -> bytes:
    """A response with topics, and more behind it than anybody decodes."""
    body = encode(large(response_type(api_key, version)))
    return response(correlation_id, b"\0" + body + b"r" * size)


def asked(play: Playbook) -> list[int]:
    """The max_bytes of all Fetches of v12 that the broker received."""
    sent = bytes(play.to_broker)
    most: list[int] = []
    while sent:
        size, key, _, _, length = struct.unpack_from(">ihhih", sent)
        if key == FETCH:
            most += struct.unpack_from(">i", sent, 14 + length + 1 + 12)
        sent = sent[4 + size :]
    return most


class TestWhatTheBrokerIsAskedFor:
    @pytest.mark.parametrize("pieces", [1, 7, 25, 1_000])
    def test_is_no_more_than_passes_at_once_however_it_is_sent(self, pieces: int) -> None:
        play = Quoted({CONSUMER: RATE}).play
        sent = fetch(3, b"topics" * 30)
        for at in range(0, len(sent), pieces):
            play.client(sent[at : at + pieces])
        assert bytes(play.to_broker) == fetch(3, b"topics" * 30, max_bytes=WINDOW)
        assert play.kept_bytes == 0

    def test_is_less_only_where_it_is_too_much(self) -> None:
        play = Quoted({CONSUMER: RATE}).play
        play.client(fetch(3, max_bytes=WINDOW))
        play.broker(fetched(3, 10))
        play.client(fetch(4, max_bytes=WINDOW + 1))
        assert asked(play) == [WINDOW, WINDOW]

    def test_is_next_to_nothing_while_the_quota_is_exceeded(self) -> None:
        quoted = Quoted({CONSUMER: RATE})
        quoted.play.client(fetch(3))
        quoted.play.broker(fetched(3, 15_000))
        other = another(quoted)
        other.client(fetch(3))
        assert asked(other) == [1]

    def test_is_one_fetch_at_a_time(self) -> None:
        """Thirty at once would be answered with thirty times what the quota lets pass."""
        play = Quoted({CONSUMER: RATE}).play
        play.client(*(fetch(number) for number in range(3, 33)))
        assert play.take() == ["connect", "to broker: Fetch v12 #3"]
        assert play.paused == {"client"}
        for number in range(3, 32):
            play.broker(fetched(number, 10))
            assert play.take()[1:] == [f"to broker: Fetch v12 #{number + 1}"]
        assert play.paused == set()

    @pytest.mark.parametrize(
        ("api_key", "version", "rights"),
        [(SHARE_FETCH, 1, None), (FETCH, 12, Judge(topic(Operation.READ, "mine")))],
        ids=["a share group", "a client that must be authorized"],
    )
    def test_of_others_is_bounded_as_well(
        self, api_key: int, version: int, rights: Judge | None
    ) -> None:
        sent, bounded = (
            request(api_key, version, 3, request_body(api_key, version, max_bytes=most))
            for most in (50_000_000, WINDOW)
        )
        play = Quoted({CONSUMER: RATE}, rights=rights).play
        play.client(sent, sent)
        assert bytes(play.to_broker) == bounded

    def test_is_bounded_as_soon_as_there_is_a_quota(self) -> None:
        """Though a Fetch that began like this passed unseen."""
        quoted = Quoted({})
        play = quoted.play
        for number in (3, 4):
            play.client(fetch(number))
            play.broker(fetched(number, 10))
        quoted.store.alter_quotas({ALICE: {CONSUMER: RATE}})
        quoted.tick()
        play.client(fetch(5))
        play.broker(fetched(5, 10))
        quoted.store.alter_quotas({ALICE: {CONSUMER: None}})
        quoted.tick()
        play.client(fetch(6), fetch(7))
        free = 52_428_800
        assert asked(play) == [free, free, WINDOW, free, free]

    @pytest.mark.parametrize("limits", [{CONSUMER: RATE}, {}])
    def test_is_what_the_client_asks_for_where_nobody_is_held(
        self, limits: dict[object, float]
    ) -> None:
        play = Quoted(limits, mode="audit").play  # type: ignore[arg-type]
        play.client(fetch(3), fetch(4))
        assert bytes(play.to_broker) == fetch(3) + fetch(4)

    def test_that_cannot_be_read_ends_the_connection(self) -> None:
        play = Quoted({CONSUMER: RATE}).play
        play.client(request(FETCH, 12, 3, b"short"))
        assert play.take()[-2:] == ["closed malformed_frame", "close"]


class TestOverTheQuota:
    def exceeded(self) -> Quoted:
        quoted = Quoted({CONSUMER: RATE})
        quoted.play.client(fetch(3))
        quoted.play.broker(fetched(3, 15_000))
        return quoted

    @pytest.mark.parametrize(("api_key", "version"), [(FETCH, 12), (FETCH, 18)])
    @pytest.mark.parametrize("size", [100, 300_000])
    @pytest.mark.parametrize("rewritten", [PLAIN, frozenset({FETCH, SHARE_FETCH})])
    def test_a_fetch_is_answered_without_topics_and_told_to_wait(
        self, api_key: int, version: int, size: int, rewritten: frozenset[int]
    ) -> None:
        """On whichever connection, as in Kafka: or each new one would be worth a Fetch."""
        play = another(self.exceeded(), rewritten=rewritten)
        body = request_body(api_key, version, max_bytes=50_000_000)
        play.client(request(api_key, version, 3, body))
        play.broker(filled(3, api_key, version, size), b"")
        reported = play.received[-1].removesuffix(b"<rewritten>")
        assert len(reported) < 30
        held_ms = round((play.wakes_at - play.now) * 1_000)
        assert int.from_bytes(reported[5:9]) == held_ms > 4_900
        assert play.paused == {"client"}
        assert play.connection.responses.settled
        assert play.kept_bytes == 0

    @pytest.mark.parametrize("rewritten", [PLAIN, frozenset({SHARE_FETCH})])
    @pytest.mark.parametrize("pieces", [1, 13, 1 << 20])
    def test_a_share_group_is_told_of_its_acknowledgements(
        self, pieces: int, rewritten: frozenset[int]
    ) -> None:
        """It would count them as failed, because no later response corrects it."""
        play = another(self.exceeded(), rewritten=rewritten)
        play.client(request(SHARE_FETCH, 1, 3, request_body(SHARE_FETCH, 1)))
        whole = large(response_type(SHARE_FETCH, 1))
        sent = response(3, b"\0" + encode(whole))
        for at in range(0, len(sent), pieces):
            play.broker(sent[at : at + pieces])
        reported = decode(type(whole), play.received[-1], 5)
        assert reported.throttle_time > timedelta(seconds=4.9)
        for here, there in zip(reported.responses, whole.responses, strict=True):
            assert here.topic_id == there.topic_id
            for got, owed in zip(here.partitions, there.partitions, strict=True):
                assert got.acknowledge_error_code == owed.acknowledge_error_code
                assert (got.records, got.acquired_records) == (b"", ())
        assert play.paused == {"client"}
        assert play.connection.responses.settled

    @pytest.mark.parametrize("version", [7, 12, 18])
    def test_what_is_left_out_begins_no_session_at_the_broker(self, version: int) -> None:
        """The client asks for everything again: each time would leave one behind."""
        play = another(self.exceeded())
        sent, lean = (
            request(
                FETCH, version, 3, request_body(FETCH, version, session_epoch=epoch, max_bytes=most)
            )
            for epoch, most in ((0, 50_000_000), (-1, 1))
        )
        for at in range(len(sent)):
            play.client(sent[at : at + 1])
        assert bytes(play.to_broker) == lean

    def test_a_response_is_dropped_wherever_it_is_split(self) -> None:
        frame = filled(3, FETCH, 12, 70_000)
        seen = set()
        for at in (*range(1, 30), 40_000, len(frame) - 1):
            play = another(self.exceeded())
            play.client(fetch(3), metadata(4))
            play.broker(frame[:at])
            play.broker(frame[at:], response(4, b"m"))
            assert play.received[-1][:4] == b"\0\0\0\4", at
            seen.add(play.received[-2])
        assert [len(frame) < 30 for frame in seen] == [True]

    def test_what_is_left_out_does_not_count(self) -> None:
        quoted = self.exceeded()
        for _ in range(5):
            play = another(quoted)
            play.client(fetch(3))
            play.broker(fetched(3, 50_000))
        quoted.play.wait_for(quoted.play.now + 30.0)
        quoted.play.client(fetch(4))
        quoted.play.broker(fetched(4, 100))
        assert len(quoted.play.received[-1]) > 100
        assert quoted.play.paused == set()

    def test_a_fetch_session_goes_on(self) -> None:
        """Its records come with a later Fetch: they are at the same offsets."""
        play = another(self.exceeded())
        play.client(fetch(3))
        whole = large(response_type(FETCH, 12))
        play.broker(response(3, b"\0" + encode(whole)))
        assert play.received[-1][9:] == encode(whole)[4:10] + b"\1\0"

    @pytest.mark.parametrize("allowed", [1, 2])
    def test_a_fetch_that_was_authorized_is_answered_so_as_well(self, allowed: int) -> None:
        """The same if all of it was allowed and if the response lists denied topics."""
        rights = Judge(topic(Operation.READ, *("mine", "theirs")[:allowed]))
        play = another(self.exceeded(), rights=rights)
        topics = [("mine", [0]), ("theirs", [0])]
        body = fetch_body(12, topics, session_id=0, session_epoch=0, max_bytes=50_000_000)
        play.client(request(FETCH, 12, 3, body))
        whole = replace(large(response_type(FETCH, 12)), error_code=ErrorCode.NONE)
        play.broker(response(3, b"\0" + encode(whole)))
        reported = decode(response_type(FETCH, 12), play.received[-1], 5)
        assert [one.topic for one in reported.responses] == ["theirs"] * (2 - allowed)
        assert reported.throttle_time > timedelta(seconds=4.9)
        assert play.paused == {"client"}

    def test_whoever_waits_is_not_idle(self) -> None:
        """Closed for idleness, it would come back at once."""
        quoted = Quoted({CONSUMER: RATE})
        play = quoted.play
        play.client(fetch(3))
        play.broker(fetched(3, 15_000))
        until, idle = play.wakes_at, play.rules.max_idle
        assert until > play.now + 4.9
        assert play.connection.next_deadline() == until
        play.wait_for(until)
        assert play.paused == set()
        assert play.connection.next_deadline() == until + idle
        play.wait_for(until + idle - 1)
        assert not play.connection.closed
        play.call(Connection.timer)
        play.wait_for(until + idle)
        assert play.connection.closed

    def test_nobody_waits_for_longer_than_a_window_at_a_time(self) -> None:
        quoted = Quoted({CONSUMER: RATE})
        play = quoted.play
        play.client(fetch(3))
        play.broker(fetched(3, 1_000_000))
        assert play.wakes_at == play.now + 11.0
        play.wait_for(play.wakes_at)
        play.client(fetch(4))
        play.broker(fetched(4, 100))
        assert len(play.received[-1]) < 30, "what is owed beyond it is owed still"

    def test_a_share_group_counts_as_well(self) -> None:
        quoted = Quoted({CONSUMER: RATE})
        play = quoted.play
        play.client(request(SHARE_FETCH, 1, 3, request_body(SHARE_FETCH, 1)))
        play.broker(filled(3, SHARE_FETCH, 1, 15_000))
        held_ms = round((play.wakes_at - play.now) * 1_000)
        assert int.from_bytes(play.received[-1][5:9]) == held_ms > 4_900


@pytest.mark.parametrize(("api_key", "version"), [(FETCH, 12), (SHARE_FETCH, 1)])
def test_what_is_denied_as_a_whole_counts_as_well(api_key: int, version: int) -> None:
    """By the size of the answer, though it is the proxy's own."""
    quoted = Quoted({CONSUMER: 1.0}, rights=Judge())
    play = quoted.play
    asks = large(request_type(api_key, version))
    if api_key == FETCH:
        asks = replace(asks, replica_id=BrokerId(-1), session_id=i32(0), session_epoch=i32(-1))
    play.client(request(api_key, version, 3, encode(asks)))
    assert play.to_broker == b""
    assert play.paused == {"client"}
    beyond_window, window = len(play.received[-1]) - 10, 11
    assert quoted.throttle_time_ms == min(beyond_window, window) * 1_000
    assert play.wakes_at == play.now + quoted.throttle_time_ms / 1_000


def test_a_share_group_without_a_quota_passes_as_it_came() -> None:
    play = Quoted({}).play
    play.client(request(SHARE_FETCH, 1, 3, request_body(SHARE_FETCH, 1)))
    play.broker(answer(SHARE_FETCH, 1, 3))
    assert play.received[-1] == answer(SHARE_FETCH, 1, 3)[4:]
