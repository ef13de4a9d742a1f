"""Topics that one connection creates, grows and deletes under a controller_mutation_rate."""

import uuid
from dataclasses import replace
from typing import Any

import pytest

from proxy.acl.model import Operation
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection
from proxy.connection.long_work import MAX_VALUES
from proxy.connection.mutation_quota import BY_ID_SINCE, BY_NAME_SINCE, _question
from proxy.quota.model import QuotaEntity, QuotaKey
from proxy.quota.mutation_counts import STRICT_SINCE
from proxy.scheduling.memory_budget import LONG_BYTES, WAIT_SECONDS, MemoryBudget
from proxy.wire.apis import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    METADATA,
    MUTATIONS,
    PRODUCE,
    is_flexible,
)
from proxy.wire.error_codes import ErrorCode
from proxy.wire.primitives import write_uvarint
from tests.support import messages
from tests.support.authorization import LITTLE, MUCH, Describer, Judge, describe, topic
from tests.support.frames import api_versions, handshake, request, response
from tests.support.kio_messages import decode, encode, request_type
from tests.support.messages import produce_body
from tests.support.playbook import OAUTHBEARER
from tests.support.quotas import (
    ALICE,
    EXCEEDED,
    EXISTS,
    MUTATION_RATE,
    NONE,
    PRODUCER,
    T1,
    Limited,
    Quoted,
    created,
    deleted,
    errors,
    throttle_time_ms,
)

BURST = 11
"""Partitions that pass at once with a rate of 1."""


def grown(version: int, *topics: tuple[str, int]) -> Any:
    entries = [{"name": name, "count": count, "assignments": None} for name, count in topics]
    return messages.request(CREATE_PARTITIONS, version, topics=entries)


class TestStrict:
    def test_the_first_may_overdraw_the_next_is_refused_and_held(self) -> None:
        """As observed in Kafka: within one request too, and the refusal has the throttle time."""
        limited = Limited()
        answer = limited.create(("a", 5), ("b", BURST), ("c", 1))
        assert errors(answer) == {"a": NONE, "b": NONE, "c": EXCEEDED}
        assert [one.name for one in answer.topics] == ["a", "b", "c"], "in Kafka's order"
        assert answer.topics[2].error_message == "The throttling quota has been exceeded."
        assert throttle_time_ms(answer) == 5_000
        assert limited.play.paused == {"client"}
        assert limited.play.wakes_at == limited.play.now + 5.0
        _, forwarded = limited.broker.asked[-1]
        assert [one.name for one in forwarded.topics] == ["a", "b"]

    def test_an_overdraft_alone_holds_nobody(self) -> None:
        limited = Limited()
        answer = limited.create(("a", 100))
        assert errors(answer) == {"a": NONE}
        assert throttle_time_ms(answer) == 0
        assert limited.play.paused == set()

    def test_refused_as_a_whole_the_broker_does_not_hear_of_it(self) -> None:
        limited = Limited()
        limited.create(("a", BURST + 2))
        answer = limited.create(("b", 1), ("c", 1))
        assert errors(answer) == {"b": EXCEEDED, "c": EXCEEDED}
        assert throttle_time_ms(answer) == 2_000
        assert limited.forwarded == [CREATE_TOPICS]
        limited.play.wait_for(limited.play.wakes_at)
        assert limited.play.paused == set()
        assert errors(limited.create(("b", 1))) == {"b": NONE}

    @pytest.mark.parametrize("api_key", sorted(MUTATIONS))
    def test_since_the_version_that_knows_the_error(self, api_key: int) -> None:
        version = STRICT_SINCE[api_key]
        for each in (version - 1, version):
            limited = Limited()
            limited.broker.topics = {"t": (T1, 1)}
            limited.create(("a", BURST + 3))
            answer = limited.ask(api_key, each, one_of(api_key, each))
            (error,) = errors(answer).values()
            assert error == (EXCEEDED if each == version else NONE)
            assert throttle_time_ms(answer) == (3_000 if each == version else 4_000)
            assert limited.play.paused == {"client"}

    def test_what_a_client_of_the_same_quota_did_counts(self) -> None:
        first, second = Limited(), Limited()
        first.play.connection.rules = replace(first.play.rules, quotas=second.service)
        first.play.call(Connection.apply_quotas)
        first.create(("a", BURST + 1))
        assert errors(second.create(("b", 1))) == {"b": EXCEEDED}


def one_of(api_key: int, version: int) -> Any:
    """A request for one partition."""
    if api_key == CREATE_TOPICS:
        return created(version, ("new", 1))
    return grown(version, ("t", 2)) if api_key == CREATE_PARTITIONS else deleted(version, "t")


class TestPermissive:
    def test_is_done_and_then_throttled(self) -> None:
        limited = Limited()
        answer = limited.create(("a", BURST + 4), ("b", 1), version=5)
        assert errors(answer) == {"a": NONE, "b": NONE}
        assert throttle_time_ms(answer) == 5_000
        assert limited.play.paused == {"client"}
        assert limited.count.used == BURST + 5

    def test_that_did_nothing_is_not_throttled(self) -> None:
        limited = Limited()
        limited.create(("a", BURST + 4), version=5)
        limited.play.wait_for(limited.play.wakes_at)
        limited.create(("b", BURST + 4))
        limited.broker.topics = {"t": (T1, 1)}
        limited.broker.fails = {"t": EXISTS}
        assert throttle_time_ms(limited.create(("t", 1), version=5)) == 0


CONFIG, PARTITIONS, REQUEST = (
    ErrorCode.INVALID_CONFIG,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.INVALID_REQUEST,
)


class TestWhatCounts:
    def test_topics_that_exist_do_not_and_are_not_refused(self) -> None:
        limited = Limited()
        limited.broker.topics = {"t": (T1, 3)}
        limited.broker.fails = {"t": EXISTS}
        limited.create(("a", BURST + 1))
        assert errors(limited.create(("t", 3), ("b", 1))) == {"t": EXISTS, "b": EXCEEDED}

    def test_a_refusal_says_what_kafka_says_of_the_topic(self) -> None:
        limited = Limited()
        limited.broker.topics = {"t": (T1, 6)}
        limited.create(("a", BURST + 1))
        (result,) = limited.ask(DELETE_TOPICS, 6, deleted(6, T1)).responses
        assert (result.name, result.topic_id, result.error_code) == ("t", T1, EXCEEDED)

    @pytest.mark.parametrize(
        ("request_", "fails", "counted"),
        [
            pytest.param(
                created(7, ("a", 10), ("b", 2)), {"a": CONFIG}, 2, id="what failed does not"
            ),
            pytest.param(created(7, ("a", 4), validate=True), {}, 4, id="only validated"),
            pytest.param(created(7, ("a", -1)), {}, 7, id="the broker's default"),
            *(
                pytest.param(
                    created(7, ("a", number)), {"a": PARTITIONS}, 0, id="an impossible number"
                )
                for number in (0, -2, -(2**31))
            ),
            pytest.param(
                created(7, ("a", 9), ("a", 9), ("b", 1)), {"a": REQUEST}, 1, id="duplicates"
            ),
            pytest.param(
                grown(3, ("t", 7), ("u", 5), ("v", 50)),
                {"u": PARTITIONS, "v": REQUEST},
                4,
                id="what is added",
            ),
            pytest.param(deleted(6, "t"), {}, 3, id="what was there"),
            pytest.param(deleted(6, T1), {}, 3, id="what was there, by its id"),
            pytest.param(deleted(6, "u", T1), {}, 8, id="by name and by id"),
            pytest.param(deleted(6, T1, "t"), {"t": REQUEST, "": REQUEST}, 0, id="named twice"),
            # just made, and the broker that was asked has not heard of it
            pytest.param(deleted(6, "new"), {}, 1, id="unknown to the broker"),
        ],
    )
    def test_partitions_that_are_done(
        self, request_: Any, fails: dict[str, ErrorCode], counted: int
    ) -> None:
        limited = Limited()
        limited.broker.topics = {"t": (T1, 3), "u": (uuid.UUID(int=2), 5)}
        limited.broker.fails = fails
        limited.broker.default = 7
        limited.ask(request_.__api_key__, request_.__version__, request_)
        assert limited.tokens == pytest.approx(BURST - counted)


class TestAmongOtherRequests:
    def test_others_wait_their_turn_and_are_not_touched(self) -> None:
        limited = Limited()
        limited.send(CREATE_TOPICS, 7, created(7, ("a", 1)))
        assert limited.play.paused == {"client"}
        limited.play.client(request(METADATA, 0, 5, b"\0\0\0\0"))
        assert "to broker: Metadata v0 #5" not in limited.play.take()
        limited.broker.answer()
        order = [line for line in limited.play.take() if line.startswith("to broker")]
        assert order == ["to broker: CreateTopics v7 #10", "to broker: Metadata v0 #5"]

    def test_many_at_once_do_not_pass_for_one(self) -> None:
        limited = Limited()
        frames = [
            request(CREATE_TOPICS, 7, n, encode(created(7, (f"t{n}", 6)))) for n in range(10, 14)
        ]
        limited.play.client(*frames)
        limited.broker.answer()
        assert limited.forwarded == [CREATE_TOPICS] * 2
        assert limited.play.paused == {"client"}, "behind the third"

    @pytest.mark.parametrize("version", range(BY_NAME_SINCE, BY_ID_SINCE + 1))
    def test_the_question_is_a_request_of_every_version(self, version: int) -> None:
        keys = ["a", "ü" * 100] if version < BY_ID_SINCE else [T1, uuid.UUID(int=2)]
        frame = _question(version, [one if isinstance(one, str) else one.bytes for one in keys])
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        at = 14 + int.from_bytes(frame[12:14]) + is_flexible(METADATA, version)
        kind = request_type(METADATA, version)
        body = decode(kind, frame, at)
        assert encode(body) == frame[at:], "nothing behind it"
        asked = [one.name if version < BY_ID_SINCE else one.topic_id for one in body.topics]
        assert asked == keys
        assert body.allow_auto_topic_creation is False

    def test_what_does_not_parse_ends_the_connection(self) -> None:
        limited = Limited()
        limited.play.client(request(CREATE_TOPICS, 7, 10, b"\xff\xff\xff\xff"))
        assert limited.play.connection.closed


class TestLong:
    """What takes long is done in steps, and charged for like what is short."""

    def test_more_topics_than_kafka_changes_at_once(self) -> None:
        limited = Limited()
        topics = {"first": 6, "second": BURST, "third": 1}
        limited.broker.topics = {name: (None, count) for name, count in topics.items()}
        others = [f"t{number}" for number in range(10_000)]
        limited.broker.fails = dict.fromkeys(others, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        answer = limited.ask(DELETE_TOPICS, 5, deleted(5, *others, *topics))
        assert errors(answer) == limited.broker.fails | {
            "first": NONE,
            "second": NONE,
            "third": EXCEEDED,
        }
        assert throttle_time_ms(answer) == 6_000
        assert limited.tokens == pytest.approx(BURST - 6 - BURST)
        assert limited.play.paused == {"client"}
        asked = [len(body.topics) for key, body in limited.broker.asked if key == METADATA]
        assert asked == [1_000] * 10 + [3], "no answer keeps others waiting for long"
        in_steps = limited.play.take().count("run long task")
        assert in_steps == 3, "read, charged for, and settled by the response"

    def test_ids_as_well(self) -> None:
        limited = Limited()
        ids = [uuid.UUID(int=number + 1) for number in range(2_000)]
        limited.broker.topics = {f"t{one}": (one, 1) for one in ids[:3]}
        limited.ask(DELETE_TOPICS, 6, deleted(6, *ids))
        assert [key for key, _ in limited.broker.asked] == [METADATA, METADATA, DELETE_TOPICS]

    @pytest.mark.parametrize("mode", ["enforce", "audit"])
    def test_more_items_than_are_kept_in_memory(self, mode: str) -> None:
        limited = Limited(mode=mode)
        many = write_uvarint(MAX_VALUES + 2) + b"\x01" * (MAX_VALUES + 1) + b"\0\0\0\0\0"
        limited.play.client(request(DELETE_TOPICS, 5, 10, many))
        closed = mode == "enforce"
        assert limited.play.connection.closed is closed
        sent = "to broker: DeleteTopics v5 #10" in limited.play.take()
        assert sent is not closed, "audit refuses nothing"

    def test_a_connection_that_ends_meanwhile(self) -> None:
        limited = Limited()
        limited.play.runs_long_tasks_at_once = False
        limited.send(CREATE_TOPICS, 7, created(7, *((f"t{n}", 1) for n in range(2_000))))
        limited.play.run_long_tasks()
        limited.play.call(lambda connection, now: connection.finish(CloseReason.CLIENT_CLOSED, now))
        limited.broker.answer()
        assert limited.play.connection.closed
        assert limited.tokens == BURST


class TestAuthorized:
    def test_what_is_denied_does_not_count_nor_is_it_told_of_the_quota(self) -> None:
        """Otherwise a throttle would reveal whether a topic exists that may not be described."""
        rights = Judge(topic(Operation.CREATE, "a", "b"))
        limited = Limited(rights=rights)
        answer = limited.create(("a", BURST + 1), ("x", 100))
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert errors(answer) == {"a": NONE, "x": denied}
        answer = limited.create(("b", 1), ("x", 1))
        assert errors(answer) == {"b": EXCEEDED, "x": denied}
        assert throttle_time_ms(answer) == 1_000

    def test_the_same_request_again_is_judged_again(self) -> None:
        """A request that was allowed is remembered by its bytes: not one that counts."""
        limited = Limited(rights=Judge(topic(Operation.CREATE, "*")))
        seen = [errors(limited.create(("a", BURST + 1))) for _ in range(2)]
        assert seen == [{"a": NONE}, {"a": EXCEEDED}]


class TestAudit:
    def test_everything_passes_and_is_told_to_the_operator(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "proxy.throttles")
        limited = Limited(mode="audit")
        assert errors(limited.create(("a", BURST + 2))) == {"a": NONE}
        for version in (7, 5):
            answer = limited.create((f"b{version}", 4), version=version)
            assert errors(answer) == {f"b{version}": NONE}
            assert throttle_time_ms(answer) == 0
        assert limited.play.paused == set()
        assert limited.tokens == pytest.approx(-2), "what would have been refused was not done"
        assert limited.count.throttles == 1, "it would have been silent by then"
        assert limited.count.throttle_time_ms == 2_000
        assert caplog.messages == [
            "user=alice would be throttled for 2000 ms by controller_mutation_rate"
        ]


@pytest.mark.parametrize("other", [{}, {QuotaKey.PRODUCER_BYTE_RATE: 5.0}])
def test_a_quota_that_is_gone_limits_nothing(other: dict[QuotaKey, float]) -> None:
    """And nothing is asked for it."""
    limited = Limited()
    limited.store.alter_quotas({ALICE: {MUTATION_RATE: None, **other}})
    limited.service.read()
    assert limited.service.take_over()
    limited.play.call(Connection.apply_quotas)
    for name in ("a", "b"):
        limited.create((name, 1_000))
    assert [key for key, _ in limited.broker.asked] == [CREATE_TOPICS] * 2


# Waits and reports of a connection belong to one request, whatever happens meanwhile


def deleter() -> Limited:
    one = Limited(rights=Judge(topic(Operation.DELETE, "t"), topic(Operation.DESCRIBE, "t")))
    one.broker.topics["t"] = (T1, 1)
    one.play.received.clear()
    return one


def test_topics_named_by_ids_that_are_asked_for_twice_are_waited_for_twice() -> None:
    """First for their names, to be authorized; then for their partitions, to be counted."""
    one = deleter()
    one.play.client(
        request(DELETE_TOPICS, 6, 1, encode(deleted(6, T1))), api_versions(2), api_versions(3)
    )
    one.broker.answer()
    assert [int.from_bytes(frame[:4]) for frame in one.play.received] == [1, 2, 3]


def test_nothing_is_forwarded_while_the_client_authenticates_again() -> None:
    one = deleter()
    ask = encode(deleted(6, T1))
    one.play.client(request(DELETE_TOPICS, 6, 1, ask), handshake(2, OAUTHBEARER))
    one.broker.answer()
    assert one.forwarded == [DELETE_TOPICS]


@pytest.mark.parametrize("acks", [0, -1])
def test_what_no_answer_can_tell_is_not_told_in_another(acks: int) -> None:
    """Or SaslHandshake would name as many mechanisms as there are milliseconds to wait."""
    one = Quoted({PRODUCER: 1_000.0}, rights=Judge(topic(Operation.WRITE, "a", "b")))
    topics = [("a", [0]), ("b", [0])]
    body = produce_body(9, topics, acks=acks, records=bytes(40_000))
    one.play.client(request(PRODUCE, 9, 1, body))
    if acks:
        one.play.broker(response(1, b"\0\x01\0\0\0\0\0"))
    one.play.wait_for(one.play.wakes_at)
    assert not one.play.paused
    one.play.client(handshake(2, OAUTHBEARER))
    assert one.play.received[-1][4:10] == b"\0\0\0\0\0\x02"


def test_who_becomes_a_super_user_in_the_middle_of_a_produce() -> None:
    rights = Judge(topic(Operation.WRITE, "a"))
    one = Quoted({PRODUCER: 1_000.0}, rights=rights)
    body = produce_body(9, [("a", [0]), ("b", [0])], records=bytes(2_000))
    frame = request(PRODUCE, 9, 1, body)
    one.play.client(frame[:-1])
    rights.admit = lambda *_: None  # type: ignore[assignment,method-assign]
    one.play.call(Connection.rights_changed)
    one.play.client(frame[-1:])
    assert one.play.to_broker == frame


def test_who_is_no_super_user_any_more_in_the_middle_of_a_request() -> None:
    """Only a quota decides about the requests of the connection."""
    rights = Judge()
    admit = rights.admit
    rights.admit = lambda *_: None  # type: ignore[assignment,method-assign]
    one = Limited(rights=rights)
    frame = request(CREATE_TOPICS, 7, 1, encode(created(7, ("t", 1))))
    one.play.client(frame[:-1])
    rights.admit = admit  # type: ignore[method-assign]
    one.play.call(Connection.rights_changed)
    one.play.client(frame[-1:])
    one.broker.answer()
    assert one.forwarded == []


def test_a_rate_that_is_removed_while_topics_are_made() -> None:
    one = Limited()
    one.send(CREATE_TOPICS, 5, created(5, ("t", 100)))
    one.broker.answer(most=1)  # what there is
    one.store.alter_quotas({QuotaEntity(user=ALICE.user): {MUTATION_RATE: None}})
    one.service.read()
    assert one.service.take_over()
    one.play.call(Connection.apply_quotas)
    one.broker.answer()
    assert errors(one.reported(CREATE_TOPICS, 5)) == {"t": NONE}


def test_room_is_left_before_the_next_request_is_judged() -> None:
    """Otherwise a long request, and short ones that are judged in steps, would keep it forever."""
    memory = MemoryBudget()
    one = Describer(memory)
    short = [describe(number, more=LITTLE, hidden=True) for number in range(2, 6)]
    one.play.client(describe(1, more=MUCH, hidden=True), *short)
    found: list[int] = []
    memory.wait("User:alice", LONG_BYTES, lambda: found.append(len(one.play.received)))
    one.play.run_long_tasks()
    one.play.now += 2 * WAIT_SECONDS
    one.play.call(Connection.timer)
    assert found == [1]
