"""Memory reservations of connections: taken, waited for and released."""

import gc
import threading
import tracemalloc
from typing import Any

import pytest

from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.connection.life import PauseReason
from proxy.scheduling.memory_budget import LONG_BYTES, WAIT_SECONDS, MemoryBudget
from proxy.wire.apis import CREATE_ACLS
from tests.support.authorization import LITTLE, MUCH, Describer, describe
from tests.support.frames import request


def test_the_second_of_a_principal_waits_for_the_first() -> None:
    """A thousand connections of one attacker hold one request, not a thousand."""
    memory = MemoryBudget()
    first, *others = (Describer(memory) for _ in range(4))
    frame = describe(1, more=MUCH)
    first.play.client(frame[:-1])
    for one in others:
        one.play.client(frame)
        assert one.play.paused == {"client"}
        assert one.play.kept_bytes <= len(frame)
        assert one.play.long_tasks == []
    first.play.client(frame[-1:])
    first.play.run_long_tasks()
    for number, one in enumerate(others):
        assert [len(each.play.long_tasks) for each in others[number:]] == [1, 0, 0][: 3 - number]
        one.play.run_long_tasks()
        assert one.play.to_broker == frame


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
    memory = MemoryBudget()
    first, second = Describer(memory), Describer(memory)
    frame = describe(1, more=MUCH)
    first.play.client(frame[:sent])
    second.play.client(frame)
    first.play.call(ends)
    second.play.run_long_tasks()
    assert second.play.to_broker == frame


def test_one_that_ends_while_it_waits_does_not_keep_others_waiting() -> None:
    memory = MemoryBudget()
    first, second, third = (Describer(memory) for _ in range(3))
    frame = describe(1, more=MUCH)
    for one in (first, second, third):
        one.play.client(frame)
    second.play.call(finishing(CloseReason.CLIENT_CLOSED))
    first.play.run_long_tasks()
    third.play.run_long_tasks()
    assert third.play.to_broker == frame


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
    memory = MemoryBudget()
    first, second = Describer(memory), Describer(memory)
    first.play.broker_takes = False
    frame = describe(1, more=MUCH)
    first.play.client(frame)
    second.play.client(frame)
    first.play.run_long_tasks()
    assert second.play.long_tasks == []
    first.play.call(lambda connection, now: connection.broker_full(False, now))
    assert len(second.play.long_tasks) == 1


@pytest.mark.parametrize(
    "reason", [PauseReason.THROTTLED, PauseReason.CLIENT_FULL, PauseReason.IN_FLIGHT]
)
def test_a_client_that_is_held_for_another_reason_does_not_keep_it(reason: int) -> None:
    memory = MemoryBudget()
    first, second = Describer(memory), Describer(memory)
    frame = describe(1, more=MUCH)
    first.play.client(frame)
    second.play.client(frame)
    first.play.call(lambda connection, _: connection.hold(reason))
    first.play.run_long_tasks()
    assert first.play.to_broker == frame
    assert first.play.paused == {"client"}
    assert len(second.play.long_tasks) == 1


def test_who_is_held_when_there_is_room_asks_for_it_again() -> None:
    memory = MemoryBudget()
    first, second, third = Describer(memory), Describer(memory), Describer(memory)
    frame = describe(1, more=MUCH)
    for one in (first, second, third):
        one.play.client(frame)
    second.play.call(lambda connection, _: connection.hold(PauseReason.THROTTLED))
    first.play.run_long_tasks()
    third.play.run_long_tasks()
    assert third.play.to_broker == frame, "it does not wait for who is held"
    second.play.call(lambda connection, now: connection.release(PauseReason.THROTTLED, now))
    second.play.run_long_tasks()
    assert second.play.to_broker == frame


def test_a_slow_client_is_closed_for_those_who_wait() -> None:
    memory = MemoryBudget()
    slow, second = Describer(memory), Describer(memory)
    frame = describe(1, more=MUCH)
    slow.play.client(frame[:-1])
    slow.play.wait_for(slow.play.now + WAIT_SECONDS + 1)
    assert not slow.play.connection.closed, "nobody waits"
    second.play.client(frame)
    slow.play.call(Connection.timer)
    assert slow.play.take()[-2:] == ["closed idle", "close"]
    second.play.run_long_tasks()
    assert second.play.to_broker == frame


def test_what_takes_long_to_be_judged_is_not_the_clients_fault() -> None:
    memory = MemoryBudget()
    first, second = Describer(memory), Describer(memory)
    frame = describe(1, more=MUCH)
    first.play.client(frame)
    second.play.client(frame)
    first.play.wait_for(first.play.now + WAIT_SECONDS + 1)
    assert not first.play.connection.closed


def test_other_requests_need_none() -> None:
    memory = MemoryBudget()
    holder, other = Describer(memory), Describer(memory)
    holder.play.client(describe(1, more=MUCH)[:-1])
    frames = describe(1, "mine"), describe(2, more=LITTLE)
    other.play.client(*frames)
    other.play.run_long_tasks()
    assert other.play.to_broker == b"".join(frames)


def test_what_the_proxy_answers_itself_needs_it_too() -> None:
    memory = MemoryBudget()
    holder, other = Describer(memory), Describer(memory)
    holder.play.client(describe(1, more=MUCH)[:-1])
    other.play.client(request(CREATE_ACLS, 3, 1, bytes(LONG_BYTES)))
    assert other.play.paused == {"client"}
    assert not any(line.startswith("consult") for line in other.play.take())
    holder.play.call(finishing(CloseReason.CLIENT_CLOSED))
    assert "consult CreateAcls" in other.play.take()
    assert other.play.take() == []
