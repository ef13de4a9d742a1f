"""Long requests and responses: judged in steps, in turns, and in a bounded memory."""

import gc
import threading
import tracemalloc
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxy.acl.model import Operation
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.authorization import MAX_LOOKED_UP
from proxy.connection.commands import AwaitTurn, CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.connection.inflight import MAX_KEPT_BYTES
from proxy.connection.life import PauseReason
from proxy.connection.long_work import (
    MAX_AT_ONCE,
    MAX_BYTES_JUDGED_AT_ONCE,
    MAX_IN_A_TURN,
    MAX_JUDGED_AT_ONCE,
    MAX_VALUES,
    takes_long,
)
from proxy.net.read_buffer import BUFFER_BYTES
from proxy.quota.model import QuotaKey
from proxy.scheduling.memory_budget import (
    LONG_BYTES,
    LONG_BYTES_UNAUTHENTICATED,
    WAIT_SECONDS,
    MemoryBudget,
)
from proxy.wire.apis import CREATE_ACLS, FETCH, FIND_COORDINATOR, METADATA, PRODUCE
from proxy.wire.primitives import write_uvarint
from proxy.wire.request import Request, parse_request
from sasl.jwks import KeyCache
from tests.support import messages
from tests.support.authorization import (
    DESCRIBE_GROUPS,
    LITTLE,
    MUCH,
    PADDING,
    Describer,
    Guarded,
    describe,
    described,
    group,
    topic,
)
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    bearer_of_unknown_key,
    handshake,
    produce,
    request,
    response,
)
from tests.support.kio_messages import decode, encode, response_type
from tests.support.messages import fetch_body, metadata_request, produce_body
from tests.support.playbook import OAUTHBEARER, VERSIONS, Offer, Playbook, log_in, logged_in
from tests.support.quotas import Quoted


@pytest.fixture
def one() -> Describer:
    return Describer()


@pytest.mark.parametrize("groups", [LITTLE, MUCH], ids=["long", "in need of memory"])
class TestRequests:
    def test_one_that_is_allowed_passes_as_it_came(self, one: Describer, groups: int) -> None:
        frame = describe(1, more=groups)
        one.play.client(frame)
        assert not one.play.to_broker, "it is being judged"
        assert one.play.paused == {"client"}
        one.play.run_long_tasks()
        assert one.play.to_broker == frame
        assert not one.play.paused

    def test_those_behind_it_wait_for_it(self, one: Describer, groups: int) -> None:
        frames = [describe(1, "mine"), describe(2, more=groups), describe(3, "mine")]
        one.play.client(*frames)
        assert one.play.to_broker == frames[0]
        one.play.run_long_tasks()
        assert one.play.to_broker == b"".join(frames)

    @pytest.mark.parametrize("piece", [1_000, 65_536])
    def test_it_may_come_in_pieces(self, one: Describer, groups: int, piece: int) -> None:
        frames = describe(1, more=groups) + describe(2, "mine")
        for at in range(0, len(frames), piece):
            one.play.client(frames[at : at + piece])
        one.play.run_long_tasks()
        assert one.play.to_broker == frames
        assert one.play.kept_bytes == 0

    def test_one_that_is_denied_is_answered_in_its_turn(self, one: Describer, groups: int) -> None:
        one.play.client(describe(1, "mine"), describe(2, more=groups, hidden=True))
        one.play.client(describe(3, "mine"))
        one.play.run_long_tasks()
        assert [int.from_bytes(frame[:4]) for frame in one.play.received] == []
        one.play.broker(described(1, "mine"), described(3, "mine"))
        assert [int.from_bytes(frame[:4]) for frame in one.play.received] == [1, 2, 3]
        assert {error for _, error in one.groups(1)} == {"group_authorization_failed"}
        assert len(one.rights.denials) == groups

    def test_a_part_passes(self, one: Describer, groups: int) -> None:
        one.play.client(describe(1, "mine", "hidden", more=groups))
        one.play.run_long_tasks()
        frame = bytes(one.play.to_broker)
        assert b"hidden" not in frame
        assert b"mine" in frame
        one.play.broker(described(1, "mine"))
        assert one.groups(0) == [("hidden", "group_authorization_failed"), ("mine", "none")]

    def test_one_that_does_not_parse_closes(self, one: Describer, groups: int) -> None:
        frame = describe(1, more=groups)
        torn = frame[:4] + frame[4:].replace(b"v5.", b"v5\xff")
        one.play.client(torn)
        one.play.run_long_tasks()
        assert one.play.take()[-2:] == ["closed malformed_frame", "close"]
        assert not one.play.to_broker

    def test_a_shutdown_waits_for_it(self, one: Describer, groups: int) -> None:
        frame = describe(1, more=groups)
        one.play.client(frame)
        one.play.call(Connection.drain)
        assert not one.play.connection.closed
        one.play.run_long_tasks()
        assert one.play.to_broker == frame
        one.play.broker(described(1, "mine"))
        assert one.play.take()[-2:] == ["closed drained", "close"]

    def test_a_client_that_says_no_more_is_answered(self, one: Describer, groups: int) -> None:
        one.play.client(describe(1, more=groups))
        one.play.call(Connection.client_finished)
        one.play.run_long_tasks()
        one.play.broker(described(1, "mine"))
        assert one.groups(0) == [("mine", "none")]
        assert one.play.take()[-2:] == ["closed client_closed", "close"]


class TestProduce:
    def produce(self, *topics: str) -> bytes:
        body = produce_body(9, [(name, [0]) for name in topics], records=bytes(LONG_BYTES))
        return request(PRODUCE, 9, 1, body)

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
    def test_more_values_than_anybody_asks_for_close(self, one: Describer) -> None:
        body = write_uvarint(MAX_VALUES + 2) + b"\x01" * (MAX_VALUES + 1) + b"\0\0"
        one.play.client(request(DESCRIBE_GROUPS, 5, 1, body))
        one.play.run_long_tasks()
        assert one.play.take()[-2:] == ["closed oversize_frame", "close"]

    def test_a_length_that_lies_costs_nothing(self, one: Describer) -> None:
        body = write_uvarint(0x7FFF_FFFF) + b"\x01" * MAX_AT_ONCE
        one.play.client(request(DESCRIBE_GROUPS, 5, 1, body))
        one.play.run_long_tasks()
        assert one.play.take()[-2:] == ["closed malformed_frame", "close"]

    def test_tagged_fields_without_end_close(self, one: Describer) -> None:
        """Each costs two bytes, and time in which nobody else is served."""
        header = request(DESCRIBE_GROUPS, 5, 1)[4:-1]
        tags = write_uvarint(500_000) + b"\x07\0" * 500_000
        one.play.client((len(header + tags)).to_bytes(4), header, tags)
        assert one.play.take()[-2:] == ["closed malformed_frame", "close"]

    def test_ids_are_looked_up_in_parts(self) -> None:
        """One answer about all of them would keep others waiting while it is read."""
        count = 2 * MAX_LOOKED_UP + 500
        ids = tuple(uuid.UUID(int=number + 1) for number in range(count))
        known = {one.bytes: f"t{number}" for number, one in enumerate(ids)}
        guarded = Guarded(topic(Operation.DESCRIBE, *known.values()))
        asked = metadata_request(12, ids=ids, allow_auto_topic_creation=False)
        frame = request(METADATA, 12, 7, encode(asked))
        guarded.play.client(frame)
        seen = 0
        sizes = []
        while bytes(guarded.play.to_broker[seen:]) not in (b"", frame):
            question = guarded.play.to_broker[seen:]
            seen = len(guarded.play.to_broker)
            body = decode(type(asked), bytes(question), 4 + 8 + 2 + len("reauth-proxy") + 1)
            sizes.append(len(body.topics))
            guarded.play.broker(names_of(body, known))
        assert sizes == [MAX_LOOKED_UP, MAX_LOOKED_UP, 500]
        assert bytes(guarded.play.to_broker[seen:]) == frame


def names_of(question: Any, known: dict[bytes, str]) -> bytes:
    topics = [
        {"name": known[one.topic_id.bytes], "topic_id": one.topic_id} for one in question.topics
    ]
    answer = messages.response(METADATA, 12, controller_id=1, topics=topics)
    return response(0, b"\0" + encode(answer))


LONG_NAMES = [f"v{number}".ljust(PADDING, ".") for number in range(LITTLE)]


class TestResponses:
    def given(self) -> tuple[Describer, bytes]:
        """Two requests that were cut, and the long response to the first."""
        one = Describer()
        one.play.client(describe(1, "mine", "hidden"), describe(2, "mine", "hidden"))
        return one, described(1, *LONG_NAMES)

    def test_two_that_are_changed_keep_their_places(self) -> None:
        """And so do own answers behind them."""
        one, long = self.given()
        one.play.client(describe(3, "hidden"))
        one.play.broker(long, described(2, *LONG_NAMES))
        one.play.client(describe(4, "hidden"), describe(5, "mine"))
        one.play.broker(described(5, "mine"))
        for changed in range(2):
            assert len(one.play.received) == changed
            assert one.play.paused == {"broker"}, "one is being changed"
            one.play.run_long_tasks()
        assert not one.play.paused
        assert [int.from_bytes(frame[:4]) for frame in one.play.received] == [1, 2, 3, 4, 5]
        for frame in (0, 1):
            groups = one.groups(frame)
            assert groups[:2] == [("hidden", "group_authorization_failed"), ("v0", "none")]
            assert len(groups) == LITTLE + 1

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


# Memory reservations of connections: taken, waited for and released


LONG = describe(1, more=MUCH)


def sharing(count: int) -> list[Describer]:
    """Connections of one principal with a common memory budget."""
    memory = MemoryBudget()
    return [Describer(memory) for _ in range(count)]


def test_the_second_of_a_principal_waits_for_the_first() -> None:
    """A thousand connections of one attacker hold one request, not a thousand."""
    first, *others = sharing(4)
    first.play.client(LONG[:-1])
    for one in others:
        one.play.client(LONG)
        assert one.play.paused == {"client"}
        assert one.play.kept_bytes <= len(LONG)
        assert one.play.long_tasks == []
    first.play.client(LONG[-1:])
    first.play.run_long_tasks()
    for number, one in enumerate(others):
        assert [len(each.play.long_tasks) for each in others[number:]] == [1, 0, 0][: 3 - number]
        one.play.run_long_tasks()
        assert one.play.to_broker == LONG


@pytest.mark.parametrize(
    "ends",
    [
        finishing(CloseReason.CLIENT_CLOSED),
        finishing(CloseReason.INTERNAL_ERROR),
        finishing(CloseReason.KILLED),
        Connection.broker_closed,
    ],
)
@pytest.mark.parametrize("sent", [100, -1, None], ids=["its head", "most", "all"])
def test_a_connection_that_ends_leaves_its_room(ends: Any, sent: int | None) -> None:
    """And one that ends while it waits does not keep others waiting."""
    first, second, third = sharing(3)
    first.play.client(LONG[:sent])
    second.play.client(LONG)
    third.play.client(LONG)
    second.play.call(ends)
    first.play.call(ends)
    third.play.run_long_tasks()
    assert third.play.to_broker == LONG


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_connection_that_ends_keeps_nothing(steps: int) -> None:
    """It is a cycle, and some collector finds it late: its megabytes must not wait for that."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        one = Describer()
        before, _ = tracemalloc.get_traced_memory()
        one.play.client(describe(1, more=MUCH))
        for _ in range(steps):
            next(one.play.long_tasks[0].steps)
        assert tracemalloc.get_traced_memory()[0] - before > LONG_BYTES
        one.play.call(finishing(CloseReason.CLIENT_CLOSED))
        for thread in threading.enumerate():
            if thread.name == "in-steps":
                thread.join(60)
        assert tracemalloc.get_traced_memory()[0] - before < LONG_BYTES // 4
    finally:
        tracemalloc.stop()
        gc.enable()


def test_it_is_left_when_the_broker_has_taken_the_request() -> None:
    """Until then the bytes lie in the proxy's memory."""
    first, second = sharing(2)
    first.play.broker_takes = False
    first.play.client(LONG)
    second.play.client(LONG)
    first.play.run_long_tasks()
    assert second.play.long_tasks == []
    first.play.call(lambda connection, now: connection.broker_full(False, now))
    assert len(second.play.long_tasks) == 1


@pytest.mark.parametrize(
    "reason", [PauseReason.THROTTLED, PauseReason.CLIENT_FULL, PauseReason.IN_FLIGHT]
)
def test_a_client_that_is_held_for_another_reason_does_not_keep_it(reason: int) -> None:
    first, second = sharing(2)
    first.play.client(LONG)
    second.play.client(LONG)
    first.play.call(lambda connection, _: connection.hold(reason))
    first.play.run_long_tasks()
    assert first.play.to_broker == LONG
    assert first.play.paused == {"client"}
    assert len(second.play.long_tasks) == 1


def test_who_is_held_when_there_is_room_asks_for_it_again() -> None:
    first, second, third = sharing(3)
    for one in (first, second, third):
        one.play.client(LONG)
    second.play.call(lambda connection, _: connection.hold(PauseReason.THROTTLED))
    first.play.run_long_tasks()
    third.play.run_long_tasks()
    assert third.play.to_broker == LONG, "it does not wait for who is held"
    second.play.call(lambda connection, now: connection.release(PauseReason.THROTTLED, now))
    second.play.run_long_tasks()
    assert second.play.to_broker == LONG


def test_a_slow_client_is_closed_for_those_who_wait() -> None:
    slow, second = sharing(2)
    slow.play.client(LONG[:-1])
    slow.play.wait_for(slow.play.now + WAIT_SECONDS + 1)
    assert not slow.play.connection.closed, "nobody waits"
    second.play.client(LONG)
    slow.play.call(Connection.timer)
    assert slow.play.take()[-2:] == ["closed idle", "close"]
    second.play.run_long_tasks()
    assert second.play.to_broker == LONG


def test_what_takes_long_to_be_judged_is_not_the_clients_fault() -> None:
    first, second = sharing(2)
    first.play.client(LONG)
    second.play.client(LONG)
    first.play.wait_for(first.play.now + WAIT_SECONDS + 1)
    assert not first.play.connection.closed


def test_other_requests_need_none_but_what_the_proxy_answers_itself_does() -> None:
    holder, other = sharing(2)
    holder.play.client(LONG[:-1])
    frames = describe(1, "mine"), describe(2, more=LITTLE)
    other.play.client(*frames)
    other.play.run_long_tasks()
    assert other.play.to_broker == b"".join(frames)
    other.play.broker(described(1, "mine"), described(2, "mine"))
    other.play.client(request(CREATE_ACLS, 3, 3, bytes(LONG_BYTES)))
    assert other.play.paused == {"client"}
    assert not any(line.startswith("consult") for line in other.play.take())
    holder.play.call(finishing(CloseReason.CLIENT_CLOSED))
    assert other.play.take() == ["consult CreateAcls"]


# Responses of a gateway with an address for each of the many things that a client asked for

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
    found = [
        {"key": f"group-{number}", "node_id": number % 3, "host": "kafka", "port": 9092}
        for number in range(count)
    ]
    body = messages.response(FIND_COORDINATOR, VERSION, coordinators=found)
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


# What waits for other answers takes a bounded memory, however few requests it is for

DESCRIBE_CONFIGS = 32
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
    body = fetch_body(12, [("mine", [0])], session_id=0, session_epoch=-1)
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
    answered = [int.from_bytes(frame[:4]) for frame in one.play.received[-number:]]
    assert answered == [*range(1, number + 1)]
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


# Memory bound of frames of unauthenticated clients, for any number of them

SIZE = 100_000
MOST = 3 * SIZE
REFUSED = ["closed oversize_frame", "close"]


def unauthenticated(memory: MemoryBudget, number: int = 0, **more: Any) -> Playbook:
    """A client that has chosen its mechanism."""
    play = Playbook(**more)
    play.connection.connection_id = f"c{number}"
    play.connection.rules = replace(play.rules, unauthenticated_memory=memory)
    play.client(handshake(1, OAUTHBEARER))
    play.take()
    return play


def long(message: bytes) -> bytes:
    """The frame with a token, made long by the blanks in front of it."""
    return authenticate(2, message.replace(b"Bearer ", b"Bearer" + b" " * SIZE))


def test_a_thousand_unauthenticated_clients_hold_what_a_few_may() -> None:
    memory = MemoryBudget(MOST)
    plays = [unauthenticated(memory, number) for number in range(20)]
    for play in plays:
        play.client(long(bearer())[:-1])
    assert sum(play.kept_bytes for play in plays) <= MOST
    assert [play.take() for play in plays] == [[]] * 2 + [REFUSED] * 18


def test_frames_as_most_clients_send_them_need_no_room() -> None:
    memory = MemoryBudget(MOST)
    assert memory.take("somebody", MOST)
    play = unauthenticated(memory)
    frame = authenticate(2, bearer())
    assert len(frame) < LONG_BYTES_UNAUTHENTICATED
    play.client(frame)
    assert play.session.principal == "User:alice"


@pytest.mark.parametrize(
    "ends",
    [
        finishing(CloseReason.CLIENT_CLOSED),
        finishing(CloseReason.INTERNAL_ERROR),
        finishing(CloseReason.KILLED),
        None,
    ],
)
def test_who_goes_or_is_let_in_leaves_room(ends: Any) -> None:
    memory = MemoryBudget(SIZE)
    first, second = unauthenticated(memory, 1), unauthenticated(memory, 2)
    first.client(long(bearer())[: -1 if ends else None])
    if ends:
        first.call(ends)
    second.client(long(bearer()))
    assert second.session.principal == "User:alice"


def test_who_waits_for_keys_still_has_it() -> None:
    """Its token is kept until they are there."""
    memory = MemoryBudget(SIZE)
    first, second = unauthenticated(memory, 1, keys=KeyCache()), unauthenticated(memory, 2)
    first.client(long(bearer_of_unknown_key()))
    assert first.take() == ["seek keys"]
    second.client(long(bearer()))
    assert second.take() == REFUSED
    first.call(lambda c, now: c.resume_login(now))
    third = unauthenticated(memory, 3)
    third.client(long(bearer()))
    assert third.session.principal == "User:alice"


def test_who_is_known_needs_none() -> None:
    """A session must not end because unauthenticated clients send much."""
    memory = MemoryBudget(MOST)
    assert memory.take("somebody", MOST)
    play = logged_in()
    play.connection.rules = replace(play.rules, unauthenticated_memory=memory)
    log_in(play, first_id=3)
    play.now += 5
    play.client(handshake(5, OAUTHBEARER), long(bearer()))
    assert play.session.reauthentications == 2


# A client that sends many cheap requests waits now and then: others have their turn


FLOOD = 1_000


def one_turn(play: Playbook) -> None:
    play.waiting.pop(0)()


def in_turns(play: Playbook) -> Playbook:
    play.turns_come_at_once = False
    return play


def test_a_flood_of_what_the_proxy_answers_is_answered_in_turns() -> None:
    """The turns of a principal are its own."""
    play = in_turns(logged_in())
    play.client(*(api_versions(number) for number in range(FLOOD)))
    assert AwaitTurn("User:alice") in play.commands
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
    """The limit of a turn depends on the length of the requests."""
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
