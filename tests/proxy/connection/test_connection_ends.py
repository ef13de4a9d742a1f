"""How connections end, as transcripts: drained, or half closed by the client."""

import pytest

from proxy.connection.connection import Connection
from proxy.connection.life import HELD_OPEN, NEXT, Input, Life, next_life
from sasl.states import Enforcement
from tests.support.frames import (
    authenticate,
    bearer_of_unknown_key,
    fetch,
    handshake,
    produce,
    request,
    response,
)
from tests.support.playbook import (
    OAUTHBEARER,
    Playbook,
    logged_in,
)


def test_a_connection_only_moves_towards_its_end() -> None:
    assert all(life <= after for (life, _), after in NEXT.items())
    assert {after for (_, event), after in NEXT.items() if event == Input.CLOSE} == {Life.CLOSED}
    assert {life for life, _ in HELD_OPEN} == {Life.FINISHING, Life.DRAINING, Life.ENDING}


@pytest.mark.parametrize(
    ("life", "event"),
    [(Life.ENDING, Input.END), (Life.CLOSED, Input.CLOSE), (Life.CLOSED, Input.DRAIN)],
)
def test_an_input_that_is_not_in_the_table_is_illegal(life: int, event: int) -> None:
    with pytest.raises(AssertionError, match=f"input {event} in state {life}"):
        next_life(life, event)


def test_drained_connections_answer_what_is_under_way() -> None:
    play = logged_in()
    play.client(fetch(3))
    play.take()
    play.call(Connection.drain)
    play.client(fetch(4))
    assert play.take() == []
    play.broker(response(3, b"records"))
    assert play.take() == ["to client: #3 records", "closed drained", "close"]


@pytest.mark.parametrize("acks", [0, -1])
def test_a_frame_that_the_broker_has_in_part_is_finished_before_the_drain(acks: int) -> None:
    """With acks=0 nothing will come back: the frame's last byte is the end."""
    play = logged_in()
    frame = produce(3, acks=acks, records=b"r" * 100)
    play.client(frame[:60])
    play.call(Connection.drain)
    play.take()
    play.client(frame[60:], fetch(4))
    log = play.take()
    assert log[0] == "to broker: Produce v9 #3"
    if acks:
        play.broker(response(3))
        log += play.take()
    assert log[-2:] == ["closed drained", "close"]
    assert "to broker: Fetch v12 #4" not in log


def test_a_client_that_sends_on_while_draining_fills_no_buffer() -> None:
    play = logged_in()
    play.client(fetch(3))
    play.call(Connection.drain)
    for number in range(100):
        play.client(produce(4 + number, records=b"r" * 10_000))
    assert play.kept_bytes <= 10_100


@pytest.mark.parametrize("enforcement", Enforcement)
def test_idle_and_unauthenticated_connections_are_drained_at_once(
    enforcement: Enforcement,
) -> None:
    for play in (logged_in(Playbook(enforcement=enforcement)), Playbook(enforcement=enforcement)):
        play.call(Connection.drain)
        assert play.take() == ["closed drained", "close"]


def test_a_drain_waits_for_the_store() -> None:
    play = logged_in()
    play.client(request(50, 0, 3, b"\0\0"))
    play.call(Connection.drain)
    assert play.take() == ["connect", "consult DescribeUserScramCredentials"]
    play.call(lambda connection, now: connection.store_answered(b"nobody", now))
    assert play.take() == ["to client: #3 \0nobody", "closed drained", "close"]


class TestHalfClosedClients:
    def test_are_answered_then_closed(self) -> None:
        play = logged_in()
        play.client(fetch(3), fetch(4))
        play.take()
        play.call(Connection.client_finished)
        play.broker(response(3, b"a"))
        assert play.take() == ["to client: #3 a"]
        play.broker(response(4, b"b"))
        assert play.take() == ["to client: #4 b", "closed client_closed", "close"]

    def test_are_closed_at_once_when_nothing_is_owed(self) -> None:
        for play in (Playbook(), logged_in()):
            play.call(Connection.client_finished)
            assert play.take() == ["closed client_closed", "close"]

    def test_have_their_waiting_requests_made(self) -> None:
        play = Playbook(connects=False)
        logged_in(play)
        play.client(fetch(3), fetch(4))
        play.take()
        play.call(Connection.client_finished)
        assert play.take() == []
        play.broker_connects()
        play.broker(response(3), response(4))
        assert play.take() == [
            "to broker: Fetch v12 #3",
            "to broker: Fetch v12 #4",
            "to client: #3",
            "to client: #4",
            "closed client_closed",
            "close",
        ]

    @pytest.mark.parametrize("acks", [0, -1])
    def test_never_finish_a_frame(self, acks: int) -> None:
        """The broker cannot answer a part: what was whole is answered, then it is over."""
        play = logged_in()
        play.client(fetch(3), produce(4, acks=acks, records=b"r" * 100)[:60])
        play.call(Connection.client_finished)
        play.take()
        play.broker(response(3))
        assert play.take() == ["to client: #3", "closed client_closed", "close"]

    def test_never_finish_a_frame_that_the_broker_has_answered_already(self) -> None:
        """No honest broker answers a part of a request."""
        play = logged_in()
        play.client(produce(4, records=b"r" * 100)[:60])
        play.broker(response(4))
        assert play.take()[-1] == "to client: #4"
        play.call(Connection.client_finished)
        assert play.take() == ["closed client_closed", "close"]

    def test_the_unauthenticated_do_not_linger_while_keys_are_fetched(self) -> None:
        play = Playbook()
        play.now += 11.0  # the keys were read just before
        play.connection.connected_at = play.now
        play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer_of_unknown_key()))
        assert play.take()[-1] == "seek keys"
        play.call(Connection.client_finished)
        assert play.take() == ["closed client_closed", "close"]

    def test_wait_for_the_store(self) -> None:
        play = logged_in()
        play.client(request(50, 0, 3, b"\0\0"))
        play.take()
        play.call(Connection.client_finished)
        assert play.take() == []
        play.call(lambda connection, now: connection.store_answered(b"", now))
        assert play.take() == ["to client: #3 \0", "closed client_closed", "close"]

    def test_an_acks_0_request_reaches_a_broker_that_is_full(self) -> None:
        """Closing would throw away what the broker has not taken yet."""
        play = logged_in()
        play.broker_takes = False
        play.client(produce(3, acks=0))
        play.call(Connection.client_finished)
        assert play.take()[-1] == "to broker: Produce v9 #3"
        play.call(lambda connection, now: connection.broker_full(False, now))
        assert play.take() == ["closed client_closed", "close"]

    def test_being_told_twice_changes_nothing(self) -> None:
        play = logged_in()
        play.client(fetch(3), fetch(4)[:15])
        play.call(Connection.client_finished)
        play.call(Connection.client_finished)
        play.take()
        play.broker(response(3))
        assert play.take()[-1] == "close"


@pytest.mark.parametrize("acks", [0, -1])
def test_nothing_follows_a_frame_that_will_not_be_whole(acks: int) -> None:
    """The broker would take it for the rest."""
    play = logged_in()
    play.client(fetch(2), produce(3, acks=acks, records=b"r" * 100)[:60])
    sent = bytes(play.to_broker)
    play.call(Connection.client_finished)
    play.client(fetch(4))
    assert play.to_broker == sent
    play.broker(response(2))
    assert play.take()[-2:] == ["closed client_closed", "close"]
