"""Fetches under a consumer_byte_rate: what the broker is asked for, and who gets the answer."""

import struct
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.types import BrokerId
from kio.static.primitive import i32

from proxy.acl.model import Operation
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.quota.model import QuotaKey
from proxy.wire.apis import DESCRIBE_USER_SCRAM_CREDENTIALS, FETCH, METADATA, SHARE_FETCH
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import int32
from proxy.wire.throttle_times import place
from tests.support.authorization import LITTLE, Judge, describe, group, topic
from tests.support.frames import api_versions, fetch, metadata, produce, request, response
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.messages import fetch_body, large, request_body
from tests.support.playbook import Playbook, everything, logged_in
from tests.support.quotas import ALICE, CONSUMER, PLAIN, PRODUCER, RATE, Quoted, answer, fetched

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


# A request_percentage: when time is charged, and where it is announced


HEARTBEAT, OFFSET_FETCH = 12, 9
MUCH_NS = 1_100_000_000
"""More than a tenth of a thread's time, in a window of ten seconds."""
MAX_MS = 1_000
"""The length of a sample, for which a client is held at most."""


class Timed(Quoted):
    """A connection with a tenth of a thread's time; each look at the clock is `step` later."""

    def __init__(self, **more: Any) -> None:
        self.step = self.clock = 0
        super().__init__({QuotaKey.REQUEST_PERCENTAGE: 10.0}, clock=self._look, **more)

    def _look(self) -> int:
        self.clock += self.step
        return self.clock


def timed(step: int = MUCH_NS, **more: Any) -> tuple[Timed, Playbook]:
    """It is logged in."""
    quoted = Timed(**more)
    quoted.step = step
    return quoted, quoted.play


def asking(api_key: int, version: int) -> bytes:
    return request(api_key, version, 3, encode(large(request_type(api_key, version))))


def heartbeat(correlation_id: int) -> bytes:
    return request(HEARTBEAT, 4, correlation_id, request_body(HEARTBEAT, 4))


def announced_ms(play: Playbook) -> int | None:
    """Return the throttle time of the last response; None: its version lacks the field."""
    frame = play.received[-1]
    at = place(*play.asked[int.from_bytes(frame[:4])], frame)
    return None if at is None else int32(frame, at)[0]


def held_ms(play: Playbook) -> int:
    assert play.paused == {"client"}
    return round((play.wakes_at - play.now) * 1_000)


class TestWhatIsForwarded:
    def test_is_told_in_whatever_response_is_owed(self) -> None:
        quoted, play = timed()
        play.client(metadata(3))
        assert held_ms(play) == MAX_MS
        play.broker(answer(METADATA, 12, 3))
        assert quoted.throttle_time_ms == MAX_MS

    def test_is_told_though_it_waited_for_its_broker(self) -> None:
        """The first of a connection: held in front of it, its client would wait untold."""
        quoted, play = timed(connects=False)
        play.client(metadata(3))
        assert play.wakes_at == 0.0
        play.broker_connects()
        assert play.take() == ["connect", "to broker: Metadata v12 #3"]
        assert held_ms(play) == MAX_MS
        play.broker(answer(METADATA, 12, 3))
        assert quoted.throttle_time_ms == MAX_MS

    def test_is_held_without_being_told_if_nobody_answers(self) -> None:
        _, play = timed()
        play.client(produce(3, acks=0))
        assert held_ms(play) == MAX_MS

    def test_of_the_brokers_bytes_counts_with_the_next_request(self) -> None:
        _, play = timed(400_000_000)
        play.client(fetch(3))
        play.broker(fetched(3, 10))
        assert play.paused == set()
        play.client(fetch(4))
        assert play.paused == {"client"}
        play.broker(fetched(4, 10))
        assert announced_ms(play) == held_ms(play) > 0

    def test_is_charged_for_once(self) -> None:
        """That a hold is over is no request, even while an answer is owed."""
        _, play = timed()
        play.client(fetch(3))
        play.wait_for(play.wakes_at)
        assert play.paused == set()


class TestWhatIsAnsweredHere:
    @pytest.mark.parametrize(
        "asked",
        [heartbeat(3), asking(OFFSET_FETCH, 8), api_versions(3, 1), api_versions(3, 3)],
        ids=["Heartbeat", "OffsetFetch", "ApiVersions v1", "ApiVersions v3"],
    )
    def test_tells_it_before_it_leaves(self, asked: bytes) -> None:
        _, play = timed(rights=Judge())
        play.client(asked)
        assert announced_ms(play) == held_ms(play) == MAX_MS

    @pytest.mark.parametrize("version", [0, 99], ids=["v0", "of no version"])
    def test_is_held_if_it_cannot_tell(self, version: int) -> None:
        plain, play = timed(0)
        play.client(api_versions(3, version))
        plain.step = MUCH_NS
        play.client(api_versions(3, version))
        assert play.received[-1] == play.received[-2]
        assert held_ms(play) == MAX_MS

    def test_tells_what_the_store_was_asked_for(self) -> None:
        _, play = timed(0)
        play.client(asking(DESCRIBE_USER_SCRAM_CREDENTIALS, 0))
        assert play.paused == {"client"}
        assert play.wakes_at == 0.0
        body = bytes(4) + b"and so on"
        assert is_timed(play.connection)
        play.connection.spent(MUCH_NS, play.now)
        play.call(lambda connection, now: connection.store_answered(body, now))
        assert play.received[-1].endswith(b"and so on")
        assert announced_ms(play) == held_ms(play) == MAX_MS

    @pytest.mark.parametrize("allowed", [[], ["*"]], ids=["answered", "forwarded"])
    def test_tells_the_time_for_a_judgement_in_steps(self, allowed: list[str]) -> None:
        """Otherwise a request for a hundred thousand things would occupy a worker for free."""
        quoted, play = timed(0, rights=Judge(group(Operation.DESCRIBE, *allowed)))
        play.runs_long_tasks_at_once = False
        play.client(describe(3, more=LITTLE))
        quoted.step = MUCH_NS
        play.run_long_tasks()
        assert held_ms(play) == MAX_MS
        if not allowed:
            assert announced_ms(play) == MAX_MS

    def test_is_answered_one_by_one_if_it_came_at_once(self) -> None:
        """Otherwise a thousand requests in one read would all be answered."""
        _, play = timed(rights=Judge())
        play.client(*map(heartbeat, range(3, 6)))
        assert play.take()[0] == "connect"
        for number in range(3, 6):
            assert play.received[-1][:4] == number.to_bytes(4)
            assert announced_ms(play) == held_ms(play) == MAX_MS
            play.wait_for(play.wakes_at)
        assert play.paused == set()

    def test_tells_the_time_for_all_of_its_parts(self) -> None:
        """A single part has no response that could announce it."""
        quoted, play = timed(rights=Judge())
        asked = asking(OFFSET_FETCH, 8)
        play.client(asked[:-1])
        assert play.paused == set()
        quoted.step = 0
        play.client(asked[-1:])
        assert announced_ms(play) == held_ms(play) == MAX_MS


class TestWhoDoesNotWaitForTheAnswer:
    """The time of a costly request counts for the next connection if its client leaves."""

    def comes_after(self, quoted: Timed) -> None:
        quoted.step = 0
        play = Playbook(quotas=quoted.service, offer=everything(rewritten=PLAIN), rights=Judge())
        play.now = quoted.play.now
        logged_in(play).client(heartbeat(3))
        assert (held_ms(play), play.take()) == (MAX_MS, [])
        play.wait_for(play.wakes_at)
        assert announced_ms(play) == held_ms(play) == MAX_MS

    def test_is_charged_for_what_it_had(self) -> None:
        quoted, play = timed(rights=Judge())
        play.client(asking(OFFSET_FETCH, 8)[:-1])
        play.call(finishing(CloseReason.CLIENT_CLOSED))
        self.comes_after(quoted)

    def test_is_charged_for_a_judgement_that_is_given_up(self) -> None:
        quoted, play = timed(0, rights=Judge())
        play.runs_long_tasks_at_once = False
        play.client(describe(3, more=LITTLE))
        quoted.step = MUCH_NS
        next(play.long_tasks[0].steps)
        play.call(finishing(CloseReason.CLIENT_CLOSED))
        self.comes_after(quoted)

    def test_is_charged_for_what_the_store_was_asked_for(self) -> None:
        quoted, play = timed(0)
        play.client(asking(DESCRIBE_USER_SCRAM_CREDENTIALS, 0))
        play.call(finishing(CloseReason.CLIENT_CLOSED))
        assert is_timed(play.connection)
        play.connection.spent(MUCH_NS, play.now)
        self.comes_after(quoted)


def test_audit_tells_nothing() -> None:
    _, play = timed(mode="audit", rights=Judge())
    play.client(heartbeat(3))
    assert (announced_ms(play), play.paused) == (0, set())


def is_timed(connection: Connection) -> bool:
    return connection.throttling is not None and connection.throttling.stopwatch is not None


def test_nothing_is_measured_without_such_a_quota() -> None:
    quoted = Quoted({PRODUCER: 1e9})
    connection = quoted.play.connection
    assert not is_timed(connection)
    quoted.store.alter_quotas({ALICE: {QuotaKey.REQUEST_PERCENTAGE: 1.0}})
    quoted.tick()
    assert is_timed(connection)
    quoted.store.alter_quotas({ALICE: {QuotaKey.REQUEST_PERCENTAGE: None}})
    quoted.tick()
    assert not is_timed(connection)


def test_a_change_of_quotas_loses_no_time() -> None:
    """Time that waits to be charged is not given away by a change, which comes when it likes."""
    quoted, play = timed(rights=Judge())
    asked = asking(OFFSET_FETCH, 8)
    play.client(asked[:-1])
    quoted.step = 0
    quoted.store.alter_quotas({ALICE: {PRODUCER: 1e9}})
    quoted.tick()
    play.client(asked[-1:])
    assert held_ms(play) == MAX_MS
