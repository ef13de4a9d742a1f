"""What waits for other answers takes a bounded memory, however few requests it is for."""

from kio.static.primitive import i32

from proxy.acl.model import Operation
from proxy.connection.inflight import MAX_KEPT_BYTES
from proxy.net.read_buffer import BUFFER_BYTES
from proxy.wire.primitives import write_uvarint
from tests.support.authorization import Guarded, describe, described, group, topic
from tests.support.frames import request, response
from tests.support.messages import fetch_body

FETCH, DESCRIBE_CONFIGS = 1, 32
ITEMS = 4_000
MAX_OF_ONE = 1_048_576
"""Bytes of a response, or of the state kept for it, in these tests."""


def configs(correlation_id: int) -> bytes:
    """Ask for the configuration of things that there are not: each is answered with a sentence."""
    items = b"\x63\x01\0\0" * ITEMS
    return request(
        DESCRIBE_CONFIGS, 4, correlation_id, write_uvarint(ITEMS + 1) + items + b"\0\0\0"
    )


def test_own_answers_behind_a_slow_one() -> None:
    one = Guarded(topic(Operation.READ, "mine"))
    body = fetch_body(12, [("mine", [0])], session_id=i32(0), session_epoch=i32(-1))
    one.play.client(request(FETCH, 12, 1, body))
    assert one.play.to_broker
    number = 2
    while not one.play.paused:
        one.play.client(configs(number))
        number += 1
        assert number < 50
    assert MAX_KEPT_BYTES < one.play.kept_bytes < MAX_KEPT_BYTES + MAX_OF_ONE
    one.play.client(configs(number))
    assert one.play.kept_bytes < MAX_KEPT_BYTES + MAX_OF_ONE + BUFFER_BYTES
    one.play.broker(response(1, b"\0" * 64))
    assert [int.from_bytes(frame[:4]) for frame in one.play.received[-number:]] == [
        *range(1, number + 1)
    ]
    assert (one.play.paused, one.play.kept_bytes) == (set(), 0)


def test_what_is_denied_of_requests_that_the_broker_has_in_part() -> None:
    one = Guarded(group(Operation.DESCRIBE, "mine"))
    number = 1
    while not one.play.paused:
        one.play.client(describe(number, "mine", *["hidden"] * 500))
        number += 1
        assert number < 50
    answered = 0
    while one.play.paused:
        answered += 1
        one.play.broker(described(answered, "mine"))
    assert number // 2 - 1 <= answered < number - 1, "read on when half of them are answered"
