"""Peers that do not read, or send too much: buffered bytes stay bounded."""

import struct

import pytest

from proxy.connection.inflight import MAX_IN_FLIGHT
from proxy.net.read_buffer import BUFFER_BYTES
from tests.support.frames import (
    api_versions,
    fetch,
    handshake,
    metadata,
    produce,
    request,
    response,
    sized,
)
from tests.support.playbook import OAUTHBEARER, Playbook, logged_in


class TestSizes:
    @pytest.mark.parametrize(
        "frame",
        [struct.pack(">i", -1), struct.pack(">i", -(2**31)), *map(sized, map(bytes, (0, 1, 7, 9)))],
    )
    @pytest.mark.parametrize("authenticated", [False, True])
    def test_negative_or_too_small_for_a_header(self, frame: bytes, authenticated: bool) -> None:
        play = logged_in() if authenticated else Playbook()
        play.client(frame)
        assert play.take() == ["closed malformed_frame", "close"]

    @pytest.mark.parametrize(
        ("size", "end"), [(1000, []), (1001, ["closed oversize_frame", "close"])]
    )
    def test_the_limit_before_authentication_is_judged_by_four_bytes(
        self, size: int, end: list[str]
    ) -> None:
        """A frame that will be refused is not buffered."""
        play = Playbook(sasl_max_receive_size=1000)
        play.client(struct.pack(">i", size))
        assert play.take() == end

    def test_the_limit_of_a_relayed_frame(self) -> None:
        play = logged_in(Playbook(request_max_bytes=1000))
        play.client(sized(fetch(3)[4:].ljust(1000, b"\0")))
        assert play.take()[-1] == "to broker: Fetch v12 #3"
        play.client(sized(fetch(4)[4:].ljust(1001, b"\0")))
        assert play.take() == []  # the answer to the first one is still owed
        play.broker(response(3))
        assert play.take() == ["to client: #3", "closed oversize_frame", "close"]

    @pytest.mark.parametrize(
        "frames",
        [
            [handshake(3, OAUTHBEARER), struct.pack(">i", 1001)],
            [sized(request(17, 1, 3)[4:].ljust(1001, b"\0"))],
        ],
        ids=["in a re-authentication", "its beginning"],
    )
    def test_what_belongs_to_sasl_has_the_smaller_limit_at_any_time(
        self, frames: list[bytes]
    ) -> None:
        play = logged_in(Playbook(sasl_max_receive_size=1000))
        play.client(*frames)
        assert play.take()[-2:] == ["closed oversize_frame", "close"]


def test_an_unauthenticated_client_costs_at_most_one_frame_of_memory() -> None:
    play = Playbook(sasl_max_receive_size=100_000)
    play.client(struct.pack(">i", 100_000))
    for _ in range(200):
        play.client(b"x" * 1000)
        assert play.kept_bytes <= 100_000


def test_a_long_body_is_never_gathered() -> None:
    play = logged_in()
    frame = produce(3, records=b"r" * 3_000_000)
    for at in range(0, len(frame), 50_000):
        play.client(frame[at : at + 50_000])
        assert play.kept_bytes == 0
    answer = response(3, b"r" * 3_000_000)
    for at in range(0, len(answer), 50_000):
        play.broker(answer[at : at + 50_000])
        assert play.kept_bytes == 0
    assert play.connection.responses.settled


class TestAClientThatDoesNotRead:
    def test_is_not_read_while_it_owes_the_reading_of_own_answers(self) -> None:
        """A flood of ApiVersions, answered a hundred times larger, must not pile up."""
        play = logged_in()
        play.client(metadata(3))
        play.broker(response(3))
        play.take()
        play.client_takes = False
        for _ in range(50):
            play.client(*(api_versions(number) for number in range(1000)))
        assert play.paused == {"client", "broker"}
        assert len(play.take()) == 1
        assert play.kept_bytes <= BUFFER_BYTES
        play.client_takes = True
        play.call(lambda connection, now: connection.client_full(False, now))
        assert len(play.take()) == 50_000 - 1
        assert play.paused == set()

    def test_stops_the_broker_from_being_read(self) -> None:
        play = logged_in()
        play.client(fetch(3), fetch(4))
        play.take()
        play.client_takes = False
        play.broker(response(3, b"records"))
        assert play.paused == {"broker"}
        play.broker(response(4, b"more"))
        assert play.take() == ["to client: #3 records"]
        play.client_takes = True
        play.call(lambda connection, now: connection.client_full(False, now))
        assert play.take() == ["to client: #4 more"]
        assert play.paused == set()

    def test_may_go_on_sending_until_too_many_are_in_flight(self) -> None:
        play = logged_in()
        for number in range(100):
            play.client(*(fetch(number * 100 + at) for at in range(100)))
        assert play.paused == {"client"}
        assert MAX_IN_FLIGHT < len(play.connection.inflight) < MAX_IN_FLIGHT + 110
        assert play.kept_bytes <= BUFFER_BYTES

    def test_is_read_again_when_half_of_them_are_answered(self) -> None:
        play = logged_in()
        play.client(*(fetch(number) for number in range(3, 2003)))
        assert play.paused == {"client"}
        owed = len(play.connection.inflight)
        number = 3
        while play.paused and number < 2003:
            play.broker(response(number))
            number += 1
        assert owed - (number - 3) == MAX_IN_FLIGHT // 2
        play.client(fetch(5000))
        assert play.take()[-1] == "to broker: Fetch v12 #5000"

    def test_cannot_pile_up_own_answers_behind_a_slow_broker(self) -> None:
        """Each waiting ApiVersions holds its answer: they count as in flight."""
        play = logged_in()
        play.client(fetch(3))
        for _ in range(20):
            play.client(*(api_versions(number) for number in range(1000)))
        assert len(play.connection.inflight) <= MAX_IN_FLIGHT + 1
        assert play.paused == {"client"}


def test_a_broker_that_does_not_read_stops_the_client() -> None:
    play = logged_in()
    play.client(fetch(3))
    play.take()
    play.broker_takes = False
    play.client(fetch(4))
    play.client(fetch(5))
    assert play.take() == ["to broker: Fetch v12 #4"]
    assert play.paused == {"client"}
    play.broker_takes = True
    play.call(lambda connection, now: connection.broker_full(False, now))
    assert play.take() == ["to broker: Fetch v12 #5"]
    assert play.paused == set()


def test_holds_are_counted_apart() -> None:
    """A client that is held for two reasons is read when both are gone."""
    play = logged_in()
    play.broker_takes = False
    play.client(fetch(3))
    play.call(lambda connection, now: connection.client_full(True, now))
    assert play.paused == {"client", "broker"}
    play.client(api_versions(4))
    play.broker_takes = True
    play.call(lambda connection, now: connection.client_full(False, now))
    assert play.paused == {"client"}
    play.call(lambda connection, now: connection.broker_full(False, now))
    assert play.paused == set()


def test_what_is_held_survives_a_full_buffer() -> None:
    """A read that fills the whole buffer while the broker is being connected loses nothing."""
    play = Playbook(connects=False)
    logged_in(play)
    frames = b"".join(produce(number, records=b"r" * 5_000) for number in range(3, 103))
    play.client(frames)
    assert play.kept_bytes <= BUFFER_BYTES
    play.broker_connects()
    assert bytes(play.to_broker) == frames


def test_a_gathered_metadata_response_is_let_go() -> None:
    play = logged_in()
    play.client(metadata(3), fetch(4))
    play.broker(response(3, b"m" * 100_000)[:60_000])
    assert 59_000 < play.kept_bytes < 61_000
    play.broker(response(3, b"m" * 100_000)[60_000:], response(4))
    assert play.kept_bytes == 0
