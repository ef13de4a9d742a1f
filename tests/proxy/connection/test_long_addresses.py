"""Responses of a gateway with an address for each of the many things that a client asked for."""

from typing import Any

from proxy.brokers.broker_view import BrokerView
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.long_work import MAX_AT_ONCE
from proxy.wire.apis import FIND_COORDINATOR
from proxy.wire.error_codes import ErrorCode
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, response_type
from tests.support.kio_messages.entities import NOT_THROTTLED, item_type, make
from tests.support.playbook import VERSIONS, Offer, Playbook, logged_in

VERSION = 4
"""The first one that asks for several keys (KIP-699)."""
KIND = response_type(FIND_COORDINATOR, VERSION)


def gateway() -> Playbook:
    """A client behind a gateway, who has asked for coordinators twice."""
    target = DiscoveredBroker(1, "broker", 9092, versions=VERSIONS)
    view = BrokerView(target, lambda node_id, _, __: ("gate", 9100 + node_id))
    play = logged_in(Playbook(offer=Offer(routes=view.routes, api_versions=view.api_versions)))
    play.received.clear()
    play.runs_long_tasks_at_once = False
    play.client(*(request(FIND_COORDINATOR, VERSION, number, b"\0\1\0") for number in (1, 2)))
    return play


def coordinators(correlation_id: int, count: int) -> bytes:
    entry = item_type(KIND, "coordinators")
    found = tuple(
        make(
            entry,
            key=f"group-{number}",
            node_id=number % 3,
            host="kafka",
            port=9092,
            error_code=ErrorCode.NONE,
            error_message=None,
        )
        for number in range(count)
    )
    body = make(KIND, throttle_time=NOT_THROTTLED, coordinators=found)
    return response(correlation_id, b"\0" + encode(body))


def addresses(frame: bytes) -> list[tuple[str, int]]:
    body: Any = decode(KIND, frame, 5)
    return [(one.host, one.port) for one in body.coordinators]


def test_a_client_that_asks_for_thousands_of_coordinators_keeps_no_other_waiting() -> None:
    """A request of megabytes has an answer of as many addresses, at some microseconds each."""
    play, count = gateway(), 2_000
    play.broker(coordinators(1, count), coordinators(2, 1))
    assert play.received == []
    play.run_long_tasks()
    first, second = play.received
    assert addresses(first) == [("gate", 9100 + number % 3) for number in range(count)]
    assert addresses(second) == [("gate", 9100)]


def test_a_few_are_rewritten_at_once() -> None:
    play = gateway()
    frames = coordinators(1, 10), coordinators(2, 1)
    assert sum(map(len, frames)) < MAX_AT_ONCE
    play.broker(*frames)
    assert [len(addresses(frame)) for frame in play.received] == [10, 1]
