"""Requests and responses that are long: judged in steps, in order, within a bounded memory."""

import uuid
from typing import Any

import pytest
from kio.static.primitive import i32

from proxy.acl.model import Operation
from proxy.connection.authorization import MAX_LOOKED_UP
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.connection.long_work import MAX_AT_ONCE, MAX_VALUES
from proxy.scheduling.memory_budget import LONG_BYTES, MemoryBudget
from proxy.wire.apis import METADATA, PRODUCE
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import write_uvarint
from tests.support.authorization import (
    DESCRIBE_GROUPS,
    LITTLE,
    MUCH,
    PADDING,
    Describer,
    Guarded,
    describe,
    described,
    topic,
)
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, request_type, response_type
from tests.support.kio_messages.entities import NOT_THROTTLED, item_type, make


@pytest.mark.parametrize("groups", [LITTLE, MUCH], ids=["long", "in need of memory"])
class TestRequests:
    def test_one_that_is_allowed_passes_as_it_came(self, groups: int) -> None:
        one = Describer()
        frame = describe(1, more=groups)
        one.play.client(frame)
        assert not one.play.to_broker, "it is being judged"
        assert one.play.paused == {"client"}
        one.play.run_long_tasks()
        assert one.play.to_broker == frame
        assert not one.play.paused

    def test_those_behind_it_wait_for_it(self, groups: int) -> None:
        one = Describer()
        frames = [describe(1, "mine"), describe(2, more=groups), describe(3, "mine")]
        one.play.client(*frames)
        assert one.play.to_broker == frames[0]
        one.play.run_long_tasks()
        assert one.play.to_broker == b"".join(frames)

    @pytest.mark.parametrize("piece", [1_000, 65_536])
    def test_it_may_come_in_pieces(self, groups: int, piece: int) -> None:
        one = Describer()
        frames = describe(1, more=groups) + describe(2, "mine")
        for at in range(0, len(frames), piece):
            one.play.client(frames[at : at + piece])
        one.play.run_long_tasks()
        assert one.play.to_broker == frames
        assert one.play.kept_bytes == 0

    def test_one_that_is_denied_is_answered_in_its_turn(self, groups: int) -> None:
        one = Describer()
        one.play.client(describe(1, "mine"), describe(2, more=groups, hidden=True))
        one.play.client(describe(3, "mine"))
        one.play.run_long_tasks()
        assert [int.from_bytes(frame[:4]) for frame in one.play.received] == []
        one.play.broker(described(1, "mine"), described(3, "mine"))
        assert [int.from_bytes(frame[:4]) for frame in one.play.received] == [1, 2, 3]
        assert {error for _, error in one.groups(1)} == {"group_authorization_failed"}
        assert len(one.rights.denials) == groups

    def test_a_part_passes(self, groups: int) -> None:
        one = Describer()
        one.play.client(describe(1, "mine", "hidden", more=groups))
        one.play.run_long_tasks()
        frame = bytes(one.play.to_broker)
        assert b"hidden" not in frame
        assert b"mine" in frame
        one.play.broker(described(1, "mine"))
        assert one.groups(0) == [("hidden", "group_authorization_failed"), ("mine", "none")]

    def test_one_that_does_not_parse_closes(self, groups: int) -> None:
        one = Describer()
        frame = describe(1, more=groups)
        torn = frame[:4] + frame[4:].replace(b"v5.", b"v5\xff")
        one.play.client(torn)
        one.play.run_long_tasks()
        assert one.play.take()[-2:] == ["closed malformed_frame", "close"]
        assert not one.play.to_broker

    def test_a_client_that_is_gone_is_not_thought_about(self, groups: int) -> None:
        one = Describer()
        one.play.client(describe(1, more=groups))
        one.play.call(finishing(CloseReason.CLIENT_CLOSED))
        one.play.run_long_tasks()
        assert not one.play.to_broker

    def test_a_shutdown_waits_for_it(self, groups: int) -> None:
        one = Describer()
        frame = describe(1, more=groups)
        one.play.client(frame)
        one.play.call(Connection.drain)
        assert not one.play.connection.closed
        one.play.run_long_tasks()
        assert one.play.to_broker == frame
        one.play.broker(described(1, "mine"))
        assert one.play.take()[-2:] == ["closed drained", "close"]

    def test_a_client_that_says_no_more_is_answered(self, groups: int) -> None:
        one = Describer()
        one.play.client(describe(1, more=groups))
        one.play.call(Connection.client_finished)
        one.play.run_long_tasks()
        one.play.broker(described(1, "mine"))
        assert one.groups(0) == [("mine", "none")]
        assert one.play.take()[-2:] == ["closed client_closed", "close"]


class TestProduce:
    def produce(self, *topics: str) -> bytes:
        schema = request_type(PRODUCE, 9)
        entry = item_type(schema, "topic_data")
        partition = item_type(entry, "partition_data")
        body = make(
            schema,
            transactional_id=None,
            acks=-1,
            timeout=NOT_THROTTLED,
            topic_data=tuple(
                entry(
                    name=name, partition_data=(partition(index=i32(0), records=bytes(LONG_BYTES)),)
                )
                for name in topics
            ),
        )
        return request(PRODUCE, 9, 1, encode(body))

    def test_what_is_allowed_is_forwarded_at_once(self) -> None:
        guarded = Guarded(topic(Operation.WRITE, "a", "b"))
        guarded.play.runs_long_tasks_at_once = False
        frame = self.produce("a", "b")
        guarded.play.client(frame)
        assert guarded.play.to_broker == frame

    def test_in_part_it_is_judged_in_steps_and_needs_no_room(self) -> None:
        """Records are not looked at: there may be many producers, and none waits for another."""
        memory = MemoryBudget()
        guarded = Guarded(topic(Operation.WRITE, "a"), memory=memory)
        assert memory.take(str(guarded.play.connection.principal), LONG_BYTES)
        guarded.play.runs_long_tasks_at_once = False
        guarded.play.client(self.produce("a", "hidden"))
        assert not guarded.play.to_broker
        guarded.play.run_long_tasks()
        assert guarded.play.to_broker == self.produce("a")


class TestBounds:
    def test_more_values_than_anybody_asks_for_close(self) -> None:
        one = Describer()
        body = write_uvarint(MAX_VALUES + 2) + b"\x01" * (MAX_VALUES + 1) + b"\0\0"
        one.play.client(request(DESCRIBE_GROUPS, 5, 1, body))
        one.play.run_long_tasks()
        assert one.play.take()[-2:] == ["closed oversize_frame", "close"]

    def test_a_length_that_lies_costs_nothing(self) -> None:
        one = Describer()
        body = write_uvarint(0x7FFF_FFFF) + b"\x01" * MAX_AT_ONCE
        one.play.client(request(DESCRIBE_GROUPS, 5, 1, body))
        one.play.run_long_tasks()
        assert one.play.take()[-2:] == ["closed malformed_frame", "close"]

    def test_tagged_fields_without_end_close(self) -> None:
        """Each costs two bytes, and time in which nobody else is served."""
        one = Describer()
        header = request(DESCRIBE_GROUPS, 5, 1)[4:-1]
        tags = write_uvarint(500_000) + b"\x07\0" * 500_000
        one.play.client((len(header + tags)).to_bytes(4), header, tags)
        assert one.play.take()[-2:] == ["closed malformed_frame", "close"]

    def test_ids_are_looked_up_in_parts(self) -> None:
        """One answer about all of them would keep others waiting while it is read."""
        count = 2 * MAX_LOOKED_UP + 500
        ids = [uuid.UUID(int=number + 1) for number in range(count)]
        known = {one.bytes: f"t{number}" for number, one in enumerate(ids)}
        guarded = Guarded(topic(Operation.DESCRIBE, *known.values()))
        schema = request_type(METADATA, 12)
        entry = item_type(schema, "topics")
        asked = schema(
            topics=tuple(entry(topic_id=one, name=None) for one in ids),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        frame = request(METADATA, 12, 7, encode(asked))
        guarded.play.client(frame)
        seen = 0
        sizes = []
        while bytes(guarded.play.to_broker[seen:]) not in (b"", frame):
            question = guarded.play.to_broker[seen:]
            seen = len(guarded.play.to_broker)
            body = decode(schema, bytes(question), 4 + 8 + 2 + len("reauth-proxy") + 1)
            sizes.append(len(body.topics))
            guarded.play.broker(names_of(body, known))
        assert sizes == [MAX_LOOKED_UP, MAX_LOOKED_UP, 500]
        assert bytes(guarded.play.to_broker[seen:]) == frame


def names_of(question: Any, known: dict[bytes, str]) -> bytes:
    schema = response_type(METADATA, 12)
    entry = item_type(schema, "topics")
    answer = make(
        schema,
        throttle_time=NOT_THROTTLED,
        brokers=(),
        cluster_id=None,
        controller_id=1,
        topics=tuple(
            make(
                entry,
                error_code=ErrorCode.NONE,
                name=known[one.topic_id.bytes],
                topic_id=one.topic_id,
                is_internal=False,
                partitions=(),
            )
            for one in question.topics
        ),
    )
    return response(0, b"\0" + encode(answer))


class TestResponses:
    def given(self) -> tuple[Describer, bytes]:
        """A request that was cut, and its long response."""
        one = Describer()
        one.play.client(describe(1, "mine", "hidden"), describe(2, "mine"))
        names = [f"v{number}".ljust(PADDING, ".") for number in range(LITTLE)]
        return one, described(1, *names)

    def test_one_that_is_changed_keeps_its_place(self) -> None:
        one, long = self.given()
        one.play.broker(long, described(2, "mine"))
        assert one.play.received == [], "it is being changed"
        assert one.play.paused == {"broker"}
        one.play.run_long_tasks()
        assert not one.play.paused
        assert one.groups(0)[:2] == [("hidden", "group_authorization_failed"), ("v0", "none")]
        assert one.groups(1) == [("mine", "none")]

    def test_own_answers_keep_theirs_behind_it(self) -> None:
        one, long = self.given()
        one.play.client(describe(3, "hidden"))
        one.play.broker(long, described(2, "mine"))
        one.play.client(describe(4, "hidden"), describe(5, "mine"))
        one.play.broker(described(5, "mine"))
        assert one.play.received == []
        one.play.run_long_tasks()
        order = [int.from_bytes(frame[:4]) for frame in one.play.received]
        assert order == [1, 2, 3, 4, 5]

    def test_two_in_a_row(self) -> None:
        one = Describer()
        one.play.client(describe(1, "mine", "hidden"), describe(2, "hidden", "mine"))
        names = [f"v{number}".ljust(PADDING, ".") for number in range(LITTLE)]
        one.play.broker(described(1, *names), described(2, *names))
        one.play.run_long_tasks()
        assert one.play.paused == {"broker"}, "the second is being changed"
        one.play.run_long_tasks()
        assert [len(one.groups(frame)) for frame in (0, 1)] == [LITTLE + 1] * 2
        assert not one.play.paused

    def test_one_that_does_not_parse_closes(self) -> None:
        one, long = self.given()
        one.play.broker(long[:30] + b"\xff" * 20 + long[50:])
        one.play.run_long_tasks()
        assert one.play.take()[-2:] == ["closed broker_fault", "close"]
        assert one.play.received == []

    def test_the_client_may_be_gone(self) -> None:
        one, long = self.given()
        one.play.broker(long)
        one.play.call(finishing(CloseReason.CLIENT_CLOSED))
        one.play.run_long_tasks()
        assert one.play.received == []
        assert one.play.kept_bytes == 0

    def test_a_client_that_does_not_read_keeps_the_broker_waiting(self) -> None:
        one, long = self.given()
        one.play.client_takes = False
        one.play.broker(long, described(2, "mine"))
        one.play.run_long_tasks()
        assert "broker" in one.play.paused
        one.play.call(lambda connection, now: connection.client_full(False, now))
        assert not one.play.paused
