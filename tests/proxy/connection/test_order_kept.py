"""Waits and reports of a connection belong to one request, whatever happens meanwhile."""

import pytest

from proxy.acl.model import Operation
from proxy.connection.connection import Connection
from proxy.quota.model import QuotaEntity
from proxy.scheduling.memory_budget import LONG_BYTES, WAIT_SECONDS, MemoryBudget
from proxy.wire.apis import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    PRODUCE,
)
from tests.support.authorization import LITTLE, MUCH, Describer, Judge, describe, topic
from tests.support.frames import api_versions, handshake, request, response
from tests.support.kio_messages import encode
from tests.support.messages import produce_body
from tests.support.playbook import OAUTHBEARER
from tests.support.quotas import (
    ALICE,
    MUTATION_RATE,
    NONE,
    PRODUCER,
    T1,
    Limited,
    Quoted,
    created,
    deleted,
    errors,
)


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
    """A connection whose requests are taken only because of a quota."""
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
