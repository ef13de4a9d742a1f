"""Frames that begin like one that passed are forwarded at a first look: what else must they be?"""

import struct

import pytest

from proxy.connection.fingerprints import MAX_FINGERPRINTED_BYTES, MAX_FINGERPRINTS
from proxy.wire.apis import FETCH, METADATA
from tests.support.frames import fetch, produce, request, response
from tests.support.playbook import Playbook, logged_in

LIST_OFFSETS = 2


def known(*frames: bytes, **options: int) -> Playbook:
    """A connection on which frames passed, and were answered."""
    play = logged_in(Playbook(**options))  # type: ignore[arg-type]
    for frame in frames:
        play.client(frame)
        (correlation_id,) = struct.unpack_from(">i", frame, 8)
        play.broker(response(correlation_id, b"done"))
    play.take()
    return play


def resized(frame: bytes, size: int) -> bytes:
    return struct.pack(">i", size) + frame[4:]


def test_one_that_begins_alike_passes() -> None:
    play = known(produce(10))
    play.client(produce(11, records=b"others"), produce(12, records=b"and more"))
    assert play.take() == ["to broker: Produce v9 #11", "to broker: Produce v9 #12"]
    play.broker(response(11), response(12))
    assert play.take() == ["to client: #11", "to client: #12"]


def test_kinds_that_take_turns_keep_their_order() -> None:
    frames = produce(11), fetch(12), produce(13, version=7), fetch(14), produce(15)
    for play in (known(produce(8), fetch(9), produce(10, version=7)), known()):
        play.client(*frames)
        sent = [line for line in play.take() if line != "connect"]
        assert [line.rsplit("#")[1] for line in sent] == ["11", "12", "13", "14", "15"]
        play.broker(*(response(number) for number in range(11, 16)))
        assert [line.rsplit("#")[1] for line in play.take()] == ["11", "12", "13", "14", "15"]


@pytest.mark.parametrize("version", [7, 9])
def test_one_without_acks_is_owed_nothing(version: int) -> None:
    play = known(produce(10, version=version))
    play.client(produce(11, version=version, acks=0), produce(12, version=version))
    play.broker(response(12))
    assert play.take()[-1] == "to client: #12"


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 9, 10, 12, 15])
def test_one_that_ends_before_its_beginning_does_closes(size: int) -> None:
    """Bytes after its end belong to the next frame and would be taken for its own."""
    play = known(produce(10))
    play.client(resized(produce(11), size))
    assert play.take() == ["closed malformed_frame", "close"]


def test_one_that_is_too_large_closes() -> None:
    play = known(produce(10), request_max_bytes=1_000)
    play.client(resized(produce(11), 1_001))
    assert play.take() == ["closed oversize_frame", "close"]


def test_on_an_expired_session_nothing_passes() -> None:
    play = known(produce(10))
    play.expire()
    play.client(produce(11))
    assert play.take() == ["expired enforce by Produce", "closed expired", "close"]


@pytest.mark.parametrize("name", ["b" * 3, "a" * 2, "a" * 4, ""])
def test_another_client_id_passes_too(name: str) -> None:
    play = known(produce(10, client_id="aaa"))
    play.client(produce(11, client_id=name), produce(12, client_id="aaa"))
    assert play.take() == ["to broker: Produce v9 #11", "to broker: Produce v9 #12"]


def test_what_is_remembered_is_bounded() -> None:
    play = known(produce(10, client_id="x" * MAX_FINGERPRINTED_BYTES))
    fingerprints = play.connection.pipe.fingerprints
    assert len(fingerprints) == 0
    remembered = []
    for key in sorted(play.connection.target.routes):
        if key >> 16 in (FETCH, METADATA, LIST_OFFSETS):
            play.client(request(key >> 16, key & 0xFFFF, 11))
            remembered.append(len(fingerprints))
    assert max(remembered) == MAX_FINGERPRINTS
    assert remembered[-1] < MAX_FINGERPRINTS
