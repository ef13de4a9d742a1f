"""One connection under a request_percentage: when time is charged, and where it is announced."""

from typing import Any

import pytest

from proxy.acl.model import Operation
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.quota.model import QuotaKey
from proxy.wire.apis import DESCRIBE_USER_SCRAM_CREDENTIALS, METADATA
from proxy.wire.primitives import int32
from proxy.wire.throttle_times import place
from tests.support.authorization import LITTLE, Judge, describe, group
from tests.support.frames import api_versions, fetch, metadata, produce, request
from tests.support.kio_messages import encode, request_type
from tests.support.messages import large, request_body
from tests.support.playbook import Playbook, everything, logged_in
from tests.support.quotas import ALICE, PLAIN, PRODUCER, Quoted, answer, fetched

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

    def test_is_told_though_it_was_judged_in_steps(self) -> None:
        """Otherwise a request for a hundred thousand things would occupy a worker for free."""
        quoted, play = timed(0, rights=Judge(group(Operation.DESCRIBE, "*")))
        play.runs_long_tasks_at_once = False
        play.client(describe(3, more=LITTLE))
        assert play.long_tasks
        quoted.step = MUCH_NS
        play.run_long_tasks()
        assert held_ms(play) == MAX_MS

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

    def test_tells_the_time_for_a_judgement_in_steps(self) -> None:
        quoted, play = timed(0, rights=Judge())
        play.runs_long_tasks_at_once = False
        play.client(describe(3, more=LITTLE))
        quoted.step = MUCH_NS
        play.run_long_tasks()
        assert announced_ms(play) == held_ms(play) == MAX_MS

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
