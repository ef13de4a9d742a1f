"""The first look at a Produce request: acks=0 gets no answer, in every version."""

import struct

import pytest

from proxy.connection.frames import MAX_BYTES_OF_A_LOOK, MAX_TAGS_OF_A_LOOK
from proxy.wire.apis import APIS, PRODUCE
from tests.support.frames import fetch, produce, request, response
from tests.support.playbook import logged_in

VERSIONS = range(APIS[PRODUCE].min_version, APIS[PRODUCE].max_version + 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 0, 1, 256])
@pytest.mark.parametrize("transactional_id", [None, "", "transaction"])
@pytest.mark.parametrize("client_id", ["", "app", "é" * 20, "x" * 300])
def test_acks_0_is_owed_no_answer(
    version: int, acks: int, transactional_id: str | None, client_id: str
) -> None:
    play = logged_in()
    frame = produce(
        3, version=version, acks=acks, transactional_id=transactional_id, client_id=client_id
    )
    play.client(frame, fetch(4))
    assert bytes(play.to_broker) == frame + fetch(4)
    assert play.owed == ([3, 4] if acks else [4])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 0])
def test_acks_are_found_however_the_frame_is_cut(version: int, acks: int) -> None:
    frame = produce(3, version=version, acks=acks, transactional_id="tx", records=b"r" * 20)
    for cut in range(1, len(frame)):
        play = logged_in()
        play.client(frame[:cut])
        play.client(frame[cut:], fetch(4))
        play.broker(*[response(3)] if acks else [], response(4))
        assert play.take()[-1] == "to client: #4", cut
        assert play.connection.responses.settled


@pytest.mark.parametrize("version", [9, 13])
def test_tags_in_the_header_are_skipped(version: int) -> None:
    """KIP-482: nobody sends them today; a later client may."""
    for acks in (0, -1):
        head = struct.pack(">hhih", PRODUCE, version, 3, 3) + b"app"
        tags = b"\x02" + b"\x05\x03abc" + b"\x81\x01\x02xy"
        body = b"\0" + struct.pack(">hi", acks, 30_000)
        content = head + tags + body
        play = logged_in()
        play.client(struct.pack(">i", len(content)) + content)
        assert len(play.connection.inflight) == (1 if acks else 0)


@pytest.mark.parametrize(
    "body", [b"", b"\0", b"\x80", b"\xff" * 40, b"\x7f" * 60, b"\x01\x00\xff\xff\xff\xff\x7f"]
)
def test_a_produce_that_does_not_parse_is_refused_by_somebody(body: bytes) -> None:
    """It is closed here, or forwarded for the broker to close: it is never waited for."""
    for version in VERSIONS:
        play = logged_in()
        play.client(request(PRODUCE, version, 3, body))
        assert play.connection.closed or play.to_broker
        assert play.kept_bytes == 0


def test_nobody_is_led_on_by_tags_without_end() -> None:
    """The examined part is bounded, for any announced length."""
    play = logged_in()
    content = struct.pack(">hhih", PRODUCE, 9, 3, -1) + b"\x01\x00\xff\xff\xff\x7f"
    play.client(struct.pack(">i", 1_000_000) + content + b"\0" * (MAX_BYTES_OF_A_LOOK + 10))
    assert play.take() == ["connect", "closed malformed_frame", "close"]
    assert play.kept_bytes == 0


@pytest.mark.parametrize(("more", "end"), [(0, []), (1, ["closed malformed_frame", "close"])])
def test_tags_that_are_passed_over_at_each_look_are_few(more: int, end: list[str]) -> None:
    """64 KiB of empty ones, sent byte by byte, cost 20 ms of everybody's time per byte."""
    tags = MAX_TAGS_OF_A_LOOK + more
    head = struct.pack(">hhih", PRODUCE, 9, 3, -1) + bytes([tags]) + tags * b"\x00\x00"
    content = head + b"\0" + struct.pack(">hi", 0, 30_000)
    play = logged_in()
    play.client(struct.pack(">i", len(content)) + content)
    assert [line for line in play.take() if "clos" in line] == end
