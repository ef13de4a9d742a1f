"""A request for all topics by a client that may see some: the proxy asks for their names first."""

from typing import Any

from proxy.acl.model import Operation
from proxy.wire.apis import METADATA
from tests.support import messages
from tests.support.authorization import Guarded, topic
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, request_type, response_type

API = 75
VISIBLE = topic(Operation.DESCRIBE, "a", "c")
TOPICS = ("c", "secret", "a", "b")
LISTED = "to broker: Metadata v12 #0"


def asking(correlation_id: int) -> bytes:
    body = messages.request(API, 0, response_partition_limit=10)
    return request(API, 0, correlation_id, encode(body))


def metadata(*names: str) -> bytes:
    body = messages.response(METADATA, 12, topics=[{"name": name} for name in names])
    return response(0, b"\0" + encode(body))


def described(correlation_id: int, *names: str) -> bytes:
    body = messages.response(API, 0, topics=[{"name": name} for name in names])
    return response(correlation_id, b"\0" + encode(body))


def asked(frame: bytes) -> Any:
    """Return the proxy's question to the broker, in a frame of the client `app`."""
    return decode(request_type(API, 0), frame[4 + 8 + 2 + len("app") + 1 :])


def reported(guarded: Guarded) -> list[str]:
    """The topics of the answer that the client got last."""
    answer = decode(response_type(API, 0), guarded.play.received[-1], 5)
    return [one.name for one in answer.topics]


def test_the_broker_is_asked_for_all_names_then_for_what_may_be_described() -> None:
    guarded = Guarded(VISIBLE)
    frames = asking(1), asking(2)
    guarded.play.client(*frames)
    assert guarded.play.take() == ["connect", LISTED]
    assert guarded.play.paused == {"client"}
    before = len(guarded.play.to_broker)
    assert not asked(frames[0]).topics
    guarded.play.broker(metadata(*TOPICS))
    sent = bytes(guarded.play.to_broker[before:])
    size = 4 + int.from_bytes(sent[:4])
    assert [one.name for one in asked(sent[:size]).topics] == ["a", "c"]
    guarded.play.broker(described(1, "a", "c"))
    assert reported(guarded) == ["a", "c"]


def test_names_are_asked_for_each_time() -> None:
    """An earlier list of topics is not reused."""
    guarded = Guarded(VISIBLE)
    guarded.play.client(asking(1), asking(2))
    guarded.play.broker(metadata("secret"))
    assert reported(guarded) == [], "answered without the broker"
    assert guarded.play.to_broker.count(b"reauth-proxy") == 2
    guarded.play.broker(metadata("secret", "c"))
    guarded.play.broker(described(2, "c"))
    assert reported(guarded) == ["c"]
    assert not guarded.play.paused


def test_names_are_read_and_judged_beside_other_connections() -> None:
    """However few they are: how many there are is nothing that the client should feel."""
    guarded = Guarded(VISIBLE)
    guarded.play.runs_long_tasks_at_once = False
    guarded.play.client(asking(1))
    guarded.play.take()
    guarded.play.broker(metadata(*TOPICS))
    guarded.play.run_long_tasks()
    guarded.play.run_long_tasks()
    assert guarded.play.take() == [
        "run long task",
        "run long task",
        "to broker: DescribeTopicPartitions v0 #1",
    ]
    assert not guarded.play.paused


def test_a_list_that_cannot_be_read_is_the_brokers_fault() -> None:
    guarded = Guarded(VISIBLE)
    guarded.play.client(asking(1))
    guarded.play.broker(response(0, metadata("a")[8:-3]))
    assert guarded.play.take()[-2:] == ["closed broker_fault", "close"]


def test_who_may_see_all_costs_the_broker_no_list() -> None:
    guarded = Guarded(topic(Operation.DESCRIBE, "*"))
    guarded.play.client(asking(1))
    assert bytes(guarded.play.to_broker) == asking(1)
