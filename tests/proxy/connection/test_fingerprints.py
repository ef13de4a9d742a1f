"""Requests like one that was allowed pass without being judged again: which are, and until when."""

import struct
from collections.abc import Callable

import pytest

from proxy.acl.model import Operation
from proxy.connection.commands import Verdict
from proxy.connection.fingerprints import MAX_ALIKE, MAX_FINGERPRINTS
from proxy.connection.stages import Stages
from proxy.wire.apis import FETCH, OFFSET_COMMIT, PRODUCE
from proxy.wire.error_codes import ErrorCode
from tests.support import messages
from tests.support.authorization import Guarded, Judge, group, topic
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, response_type
from tests.support.messages import fetch_body, produce_body, request_body, topic_id
from tests.support.playbook import Playbook
from tests.support.quotas import CONSUMER, Quoted

HEARTBEAT, VERSION, SESSION = 12, 13, 77
MINE = topic(Operation.READ, "mine"), topic(Operation.WRITE, "mine")
KNOWN = {topic_id(name).bytes: name for name in ("mine", "more", "theirs")}


class Judging:
    """A connection whose requests are judged: which are, and what is written to its broker."""

    def __init__(self, guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
        self.guarded, self.play = guarded, guarded.play
        self.judged = 0
        self.writes: list[bytes] = []
        # opens the way to the broker
        self.play.client(fetch(1_001, "mine", session_id=0, session_epoch=-1))
        pipe = self.play.connection.pipe
        write, judge = pipe.to_broker, Stages.judge
        assert write is not None

        def noted(data: bytes | memoryview) -> None:
            self.writes.append(bytes(data))
            write(data)

        def counted(stages: Stages, content: bytes, now: float) -> Verdict:
            self.judged += 1
            return judge(stages, content, now)

        pipe.to_broker = noted
        monkeypatch.setattr(Stages, "judge", counted)
        self.play.broker(fetched(1_001, 0))

    def passes(self, *frames: bytes) -> bool:
        """Whether frames are forwarded as they came, in one write, and nothing is judged."""
        self.judged, self.writes[:] = 0, []
        self.play.client(*frames)
        return self.judged == 0 and self.writes == [b"".join(frames)]


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> Judging:
    allowed = (*MINE, topic(Operation.DESCRIBE, "*"), group(Operation.READ, "group"))
    return Judging(Guarded(*allowed, known=dict(KNOWN)), monkeypatch)


def fetch(correlation_id: int, *topics: str, offset: int = 9, **more: int) -> bytes:
    given = {"session_id": SESSION, "session_epoch": correlation_id} | more
    body = fetch_body(VERSION, [(name, [0]) for name in topics], **given)
    return request(FETCH, VERSION, correlation_id, body.replace(_OFFSET, struct.pack(">q", offset)))


_OFFSET = struct.pack(">q", 9)


def fetched(correlation_id: int, session: int = SESSION, size: int = 0) -> bytes:
    body = encode(messages.response(FETCH, VERSION, session_id=session))
    return response(correlation_id, b"\0" + body + bytes(size))


def begin_session(play: Playbook, session: int = SESSION) -> None:
    play.client(fetch(1_000, "mine", session_id=0, session_epoch=0))
    play.broker(fetched(1_000, session))


def heartbeat(correlation_id: int, name: str = "group", member: str = "me") -> bytes:
    body = request_body(HEARTBEAT, 4, group_id=name, generation_id=1, member_id=member)
    return request(HEARTBEAT, 4, correlation_id, body)


def commit(correlation_id: int, name: str, offset: int, *, of: str = "group") -> bytes:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    topics = [{"name": name, "partitions": [partition]}]
    body = request_body(OFFSET_COMMIT, 9, group_id=of, member_id="me", topics=topics)
    return request(OFFSET_COMMIT, 9, correlation_id, body)


def error_of(play: Playbook) -> ErrorCode:
    error: ErrorCode = decode(response_type(FETCH, VERSION), play.received[-1], 5).error_code
    return error


class TestAFetchInItsSession:
    def test_passes_whatever_its_epoch(self, judging: Judging) -> None:
        begin_session(judging.play)
        judging.play.client(fetch(1))
        assert judging.passes(*(fetch(number) for number in (2, 3, 4, 256, 2**31 - 1)))

    def test_passes_whatever_its_offsets(self, judging: Judging) -> None:
        begin_session(judging.play)
        judging.play.client(fetch(1, "mine"))
        assert judging.passes(fetch(2, "mine", offset=300), fetch(3, "mine", offset=2**40))

    @pytest.mark.parametrize(
        ("then", "frame"),
        [
            (lambda _: None, fetch(4, "more")),
            (lambda _: None, fetch(4, session_id=SESSION + 1)),
            (lambda judging: begin_session(judging.play, SESSION + 1), fetch(4)),
            (lambda judging: judging.play.client(fetch(3, "theirs")), fetch(4)),
            (lambda judging: judging.guarded.change(*MINE), fetch(4)),
        ],
        ids=["another topic", "another session", "replaced", "a denial", "other rights"],
    )
    def test_is_judged(
        self, judging: Judging, then: Callable[[Judging], None], frame: bytes
    ) -> None:
        """A session that this connection has no more: it may hold topics that nobody judged."""
        begin_session(judging.play)
        judging.play.client(fetch(1, "mine"), fetch(2))
        judging.play.broker(fetched(1), fetched(2))
        then(judging)
        assert not judging.passes(frame)
        assert judging.writes == []
        assert error_of(judging.play) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    @pytest.mark.parametrize("epoch", [0, -1])
    def test_that_begins_or_ends_a_session_is_judged(self, judging: Judging, epoch: int) -> None:
        begin_session(judging.play)
        judging.play.client(fetch(1), fetch(2))
        passes = judging.passes(fetch(3, session_epoch=epoch))
        assert passes is (epoch == -1), "one that ends it is allowed at a look"


@pytest.mark.parametrize("epoch", [-1, 5])
def test_a_full_fetch_passes_whatever_its_offsets(judging: Judging, epoch: int) -> None:
    session = {"session_id": 0 if epoch < 0 else SESSION, "session_epoch": epoch}
    begin_session(judging.play)
    judging.play.client(fetch(1, "mine", **session))
    assert judging.passes(*(fetch(number, "mine", offset=number, **session) for number in (2, 3)))


class TestAHeartbeat:
    def test_passes_if_it_is_the_same(self, judging: Judging) -> None:
        judging.play.client(heartbeat(1))
        assert judging.passes(heartbeat(2), heartbeat(3))

    @pytest.mark.parametrize(("name", "member"), [("groun", "me"), ("grou", "pme"), ("group", "m")])
    def test_of_another_group_or_member_is_judged(
        self, judging: Judging, name: str, member: str
    ) -> None:
        judging.play.client(heartbeat(1))
        assert not judging.passes(heartbeat(2, name, member))

    def test_is_judged_when_rights_changed(self, judging: Judging) -> None:
        judging.play.client(heartbeat(1))
        judging.guarded.change(*MINE)
        assert not judging.passes(heartbeat(2))
        assert judging.writes == []


class TestACommit:
    def test_passes_whatever_its_offsets(self, judging: Judging) -> None:
        judging.play.client(commit(1, "mine", 5))
        assert judging.passes(commit(2, "mine", 6), commit(3, "mine", 2**40))

    @pytest.mark.parametrize(("name", "of"), [("more", "group"), ("mine", "other")])
    def test_of_another_topic_or_group_is_judged(
        self, judging: Judging, name: str, of: str
    ) -> None:
        judging.play.client(commit(1, "mine", 5))
        assert not judging.passes(commit(2, name, 6, of=of))
        assert judging.writes == []


def test_a_produce_to_several_topics_passes_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("mine", "more")
    judging = Judging(
        Guarded(*MINE, topic(Operation.WRITE, *names), known=dict(KNOWN)), monkeypatch
    )
    for version in (9, 13):
        frames = [
            request(
                PRODUCE,
                version,
                number,
                produce_body(version, [(name, [0, 1]) for name in names], records=bytes(number)),
            )
            for number in (100, 200, 300)
        ]
        assert judging.passes(*frames)


def test_kinds_that_take_turns_leave_in_one_write(judging: Judging) -> None:
    begin_session(judging.play)
    judging.play.client(fetch(1), heartbeat(2), commit(3, "mine", 5))
    produced = request(PRODUCE, 9, 7, produce_body(9, [("mine", [0])]))
    assert judging.passes(
        fetch(4), heartbeat(5), commit(6, "mine", 6), produced, heartbeat(8), fetch(9)
    )
    answers = [fetched(1), *(response(number) for number in (2, 3))]
    judging.play.broker(*answers, fetched(4), *(response(number) for number in (5, 6, 7, 8, 9)))
    assert [int.from_bytes(frame[:4]) for frame in judging.play.received[-9:]] == [*range(1, 10)]


def test_what_is_judged_keeps_its_place_among_what_passes(judging: Judging) -> None:
    frames = [heartbeat(1), heartbeat(2), commit(3, "mine", 5), heartbeat(4), commit(5, "mine", 5)]
    judging.play.client(*frames, heartbeat(6))
    assert b"".join(judging.writes) == b"".join((*frames, heartbeat(6)))


def test_what_is_remembered_is_bounded(judging: Judging) -> None:
    fingerprints = judging.play.connection.pipe.fingerprints
    for number in range(3 * MAX_FINGERPRINTS):
        judging.play.client(heartbeat(number, member="m" * number))
        assert len(fingerprints) <= MAX_FINGERPRINTS
    for number in range(3 * MAX_ALIKE):
        judging.play.client(heartbeat(number, member=f"{number:03}"))
        assert len(fingerprints._found) <= MAX_FINGERPRINTS
        assert max(map(len, fingerprints._found.values())) <= MAX_ALIKE


class TestUnderAConsumersQuota:
    """Fetches pass many at a time as long as together they cannot exceed it."""

    RATE = 1_000_000.0
    """Bytes a second; a worker may use half of its window's limit."""
    AT_ONCE = 5_000_000 // 1_048_576

    def quoted(self) -> Playbook:
        quoted = Quoted({CONSUMER: self.RATE}, rights=Judge(*MINE))
        quoted.play.client(self.fetch(1))
        quoted.play.broker(fetched(1, 0))
        quoted.play.take()
        return quoted.play

    def fetch(self, number: int, most: int = 1_048_576) -> bytes:
        body = fetch_body(12, [("mine", [0])], session_id=0, session_epoch=-1, max_bytes=most)
        return request(FETCH, 12, number, body)

    def sent(self, play: Playbook) -> int:
        return sum(line.startswith("to broker") for line in play.take())

    def test_as_many_as_are_left(self) -> None:
        play = self.quoted()
        play.client(*(self.fetch(number) for number in range(2, 40)))
        assert self.sent(play) == self.AT_ONCE
        assert play.paused == {"client"}
        for number in range(2, 40):
            play.broker(fetched(number, 0))
        assert [int.from_bytes(frame[:4]) for frame in play.received[-38:]] == [*range(2, 40)]
        assert play.paused == set()

    def test_none_that_asks_for_little_alone(self) -> None:
        """A broker answers with a whole batch, whatever it is asked for."""
        play = self.quoted()
        play.client(self.fetch(2, 1))
        play.broker(fetched(2, 0))
        play.take()
        play.client(*(self.fetch(number, 1) for number in range(3, 99)))
        assert self.sent(play) == self.AT_ONCE

    def test_one_at_a_time_when_it_is_nearly_used_up(self) -> None:
        play = self.quoted()
        play.client(self.fetch(2))
        play.broker(fetched(2, 0, 9_500_000))
        play.client(*(self.fetch(number) for number in range(3, 9)))
        assert self.sent(play) == 1 + 1

    def test_none_passes_as_it_came_when_it_is_exceeded(self) -> None:
        play = self.quoted()
        play.client(self.fetch(2))
        play.broker(fetched(2, 0, 11_000_000))
        play.wait_for(play.wakes_at)
        at = len(play.to_broker)
        play.client(self.fetch(3))
        play.broker(fetched(3, 0, 9_000_000))
        play.now += 0.5
        play.client(self.fetch(4))
        assert bytes(play.to_broker[at:]) != self.fetch(3) + self.fetch(4)
