"""A client that sends many cheap requests waits now and then: others have their turn."""

from collections.abc import Callable

import pytest

from proxy.acl.model import Operation
from proxy.connection.commands import AwaitTurn, CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.connection.long_work import (
    MAX_BYTES_JUDGED_AT_ONCE,
    MAX_IN_A_TURN,
    MAX_JUDGED_AT_ONCE,
    takes_long,
)
from proxy.quota.model import QuotaKey
from proxy.scheduling.memory_budget import LONG_BYTES
from proxy.wire.apis import FETCH, PRODUCE
from proxy.wire.primitives import write_uvarint
from proxy.wire.request import Request, parse_request
from tests.support.authorization import Describer, Guarded, describe, topic
from tests.support.frames import api_versions, produce, request
from tests.support.messages import fetch_body, produce_body
from tests.support.playbook import Playbook, logged_in
from tests.support.quotas import Quoted

FLOOD = 1_000


def one_turn(play: Playbook) -> None:
    play.waiting.pop(0)()


def in_turns(play: Playbook) -> Playbook:
    play.turns_come_at_once = False
    return play


def test_a_flood_of_what_the_proxy_answers_is_answered_in_turns() -> None:
    play = in_turns(logged_in())
    play.client(*(api_versions(number) for number in range(FLOOD)))
    turns = 1
    while play.waiting:
        assert play.paused == {"client"}
        answered = len(play.received)
        one_turn(play)
        assert len(play.received) - answered <= MAX_IN_A_TURN
        turns += 1
    assert play.paused == set()
    assert [int.from_bytes(frame[:4]) for frame in play.received[-FLOOD:]] == list(range(FLOOD))
    assert turns >= FLOOD // MAX_IN_A_TURN


def test_what_is_judged_is_judged_in_turns() -> None:
    """By its bytes: the longer a request is, the more it may take."""
    names = [f"group-{number}" for number in range(20)]
    one = Describer()
    in_turns(one.play).client(*(describe(number, *names) for number in range(FLOOD)))
    turns = 0
    while one.play.waiting:
        before = len(one.play.received)
        one_turn(one.play)
        assert len(one.play.received) - before <= 11
        turns += 1
    assert len(one.play.received) == FLOOD
    assert turns >= FLOOD // 11


def test_what_is_forwarded_at_a_first_look_waits_for_nobody() -> None:
    play = in_turns(logged_in())
    play.client(*(produce(number) for number in range(500)))
    assert not play.waiting
    assert play.paused == set()


def test_who_is_gone_is_not_waited_for() -> None:
    play = in_turns(logged_in())
    play.client(*(api_versions(number) for number in range(FLOOD)))
    play.call(finishing(CloseReason.CLIENT_CLOSED))
    play.take()
    one_turn(play)
    assert (play.take(), play.waiting) == ([], [])


def test_who_sends_no_more_gets_all_answers_first() -> None:
    play = logged_in()
    before = len(play.received)
    in_turns(play).client(*(api_versions(number) for number in range(FLOOD)))
    play.call(Connection.client_finished)
    while play.waiting:
        one_turn(play)
    assert len(play.received) - before == FLOOD
    assert play.connection.closed


def test_a_drain_does_not_wait_for_a_turn() -> None:
    play = in_turns(logged_in())
    play.client(*(api_versions(number) for number in range(FLOOD)))
    play.call(Connection.drain)
    assert play.connection.closed
    one_turn(play)


def test_the_turns_of_a_principal_are_its_own() -> None:
    play = in_turns(logged_in())
    play.client(*(api_versions(number) for number in range(FLOOD)))
    assert AwaitTurn("User:alice") in play.commands


def test_what_is_done_in_its_turn_counts_as_request_time() -> None:
    """Or who floods would have it for nothing."""
    clock = iter(range(0, 10**12, 10**6))  # a millisecond for each look: for each answer one
    quoted = Quoted({QuotaKey.REQUEST_PERCENTAGE: 1.0}, clock=lambda: next(clock))
    play = in_turns(quoted.play)
    play.client(*(api_versions(number) for number in range(2 * MAX_IN_A_TURN)))
    assert not play.connection.is_throttled
    one_turn(play)
    assert play.connection.is_throttled, "for more than a hundred milliseconds"


def whole(key: int, body: bytes) -> Request:
    return parse_request(request(key, 12, 1, body)[4:])


class TestWhatTakesLong:
    """Not by its bytes alone where bytes say little."""

    @pytest.mark.parametrize(("key", "body_of"), [(PRODUCE, produce_body), (FETCH, fetch_body)])
    @pytest.mark.parametrize(
        ("topics", "partitions", "is_long"),
        [
            (1, 1, False),
            (1, MAX_JUDGED_AT_ONCE - 1, False),
            (1, MAX_JUDGED_AT_ONCE, True),
            (MAX_JUDGED_AT_ONCE // 2, 1, False),
            (MAX_JUDGED_AT_ONCE, 1, True),
            (MAX_JUDGED_AT_ONCE + 1, 0, True),
        ],
    )
    def test_a_bulk_request_of_many_items(
        self, key: int, body_of: Callable[..., bytes], topics: int, partitions: int, is_long: bool
    ) -> None:
        names = [f"{number:03}" for number in range(topics)]
        names[0] += "n" * (MAX_BYTES_JUDGED_AT_ONCE // 3)
        items = [(name, list(range(partitions))) for name in names]
        assert takes_long(whole(key, body_of(12, items))) is is_long

    def test_a_produce_of_long_records(self) -> None:
        """They are not looked at."""
        for size, is_long in ((LONG_BYTES // 2, False), (LONG_BYTES + 1, True)):
            body = produce_body(12, [("mine", [0])], records=bytes(size))
            assert takes_long(whole(PRODUCE, body)) is is_long

    @pytest.mark.parametrize("key", [PRODUCE, FETCH])
    def test_one_that_does_not_parse_is_left_to_its_guard(self, key: int) -> None:
        assert not takes_long(whole(key, b"\xff" * 2 * MAX_BYTES_JUDGED_AT_ONCE))

    def test_a_fetch_that_forgets_much(self) -> None:
        body = fetch_body(12, [("mine", [0])])
        assert body.endswith(b"\x01\x01\0"), "forgets nothing, no rack, no tags"
        forgotten = write_uvarint(MAX_BYTES_JUDGED_AT_ONCE + 1) + b"\x02f\x01\0" * (
            MAX_BYTES_JUDGED_AT_ONCE
        )
        assert takes_long(whole(FETCH, body[:-3] + forgotten + b"\x01\0"))

    def test_others_by_their_bytes(self) -> None:
        for groups, is_long in ((["g" * 100], False), (["g"] * MAX_BYTES_JUDGED_AT_ONCE, True)):
            assert takes_long(parse_request(describe(1, *groups)[4:])) is is_long

    def test_a_produce_of_many_topics_is_judged_in_steps(self) -> None:
        one = Guarded(topic(Operation.WRITE, "mine"))
        one.play.runs_long_tasks_at_once = False
        topics = [(f"hidden-{number}", [0]) for number in range(MAX_JUDGED_AT_ONCE)]
        one.play.client(request(PRODUCE, 12, 1, produce_body(12, topics)))
        assert (len(one.play.long_tasks), one.rights.denials) == (1, [])
        one.play.run_long_tasks()
        assert len(one.rights.denials) == MAX_JUDGED_AT_ONCE
