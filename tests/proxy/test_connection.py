"""The life of a connection, as transcripts: log in, relay, end."""

import struct

import pytest

from proxy.connection import Connection
from sasl.session import Enforcement
from tests.proxy.frames_given import (
    api_versions,
    authenticate,
    bearer,
    bearer_of_unknown_key,
    fetch,
    handshake,
    metadata,
    produce,
    request,
    response,
    sized,
)
from tests.proxy.playbook import (
    NOTHING,
    OAUTHBEARER,
    SCRAM,
    Play,
    log_in,
    log_in_by_scram,
    logged_in,
)


def test_a_whole_life() -> None:
    play = Play()
    play.client(api_versions(1, 3))
    play.client(handshake(2, OAUTHBEARER))
    play.client(authenticate(3, bearer(), 2))
    assert play.take() == [
        "to client: #1 versions error 0",
        "to client: #2 handshake error 0",
        "to client: #3 token error 0 lifetime 300000",
        "authenticated User:alice",
    ]
    play.client(metadata(4), fetch(5))
    assert play.take() == [
        "connect",
        "to broker: Metadata v12 #4",
        "to broker: Fetch v12 #5",
    ]
    play.broker(response(4, b"all topics"), response(5, b"records"))
    assert play.take() == [
        "to client: #4 all topics<rewritten>",
        "to client: #5 records",
    ]
    play.tell(Connection.client_closed)
    assert play.take() == ["closed client_closed", "close"]
    assert play.connection.next_deadline() is None


@pytest.mark.parametrize("version", [0, 1, 2, None])
def test_scram_in_every_version(version: int | None) -> None:
    """KIP-368: from v1 on the lifetime is told; older clients are held to it nevertheless."""
    play = Play(max_reauth_ms=5_000)
    log_in_by_scram(play, version=version)
    lifetime = "" if version == 0 else " lifetime 5000"
    begun = "" if version == 0 else " lifetime 0"
    answers = [f"to client: #2 token error 0{begun}", f"to client: #3 token error 0{lifetime}"]
    if version is None:
        answers = [f"to client: raw {len(frame)} bytes" for frame in play.received[1:]]
        assert play.received[2].startswith(b"v=")
    assert play.take() == [
        "to client: #1 handshake error 0",
        *answers,
        "authenticated User:alice",
    ]
    assert play.session.deadline == play.now + 5.0
    assert play.session.told_of_lifetime is bool(version)


def test_a_raw_token_login_ends_in_an_empty_frame() -> None:
    """OAUTHBEARER has nothing to say at success (RFC 7628)."""
    play = Play()
    play.client(handshake(1, OAUTHBEARER, 0))
    play.raw = True
    play.client(sized(bearer()))
    assert play.take() == [
        "to client: #1 handshake error 0",
        "to client: raw nothing",
        "authenticated User:alice",
    ]


def test_a_raw_failure_closes_without_bytes() -> None:
    play = Play()
    play.client(handshake(1, SCRAM, 0), sized(b"nonsense"))
    assert play.take() == [
        "to client: #1 handshake error 0",
        "failed bad_message",
        "closed authentication_failed",
        "close after 0.1 s",
    ]


def test_everything_in_one_read() -> None:
    """A client that does not wait for answers is served all the same."""
    play = Play()
    play.client(api_versions(1), handshake(2, OAUTHBEARER), authenticate(3, bearer()), fetch(4))
    assert play.take()[-1] == "to broker: Fetch v12 #4"


def test_a_failed_login_is_answered_after_the_delay() -> None:
    play = Play()
    log_in_by_scram(play, version=1, secret="wrong")
    assert play.take()[1:] == [
        "to client: #2 token error 0 lifetime 0",
        "failed bad_credentials",
        "closed authentication_failed",
        "close after 0.1 s",
        "to client: #3 token error 58 lifetime 0",
    ]


def test_an_unknown_mechanism_is_answered_with_those_there_are() -> None:
    play = Play()
    play.client(handshake(1, "PLAIN"))
    assert play.take() == [
        "failed unsupported_mechanism",
        "closed authentication_failed",
        "close after 0.1 s",
        "to client: #1 handshake error 33",
    ]
    assert SCRAM.encode() in play.received[0]


class TestApiVersions:
    def test_is_answered_once_before_the_handshake(self) -> None:
        play = Play()
        play.client(api_versions(1), api_versions(2))
        assert play.take() == [
            "to client: #1 versions error 0",
            "closed illegal_state",
            "close",
        ]

    def test_may_be_asked_again_after_an_error(self) -> None:
        """A client that is too new, or says who it is in a way Kafka refuses, tries once more."""
        play = Play()
        play.client(request(18, 9, 1), request(18, 3, 2, b"\x02?\x02?\0"), api_versions(3))
        assert play.take() == [
            "to client: #1 versions error 35",
            "to client: #2 versions error 42",
            "to client: #3 versions error 0",
        ]

    def test_is_refused_while_no_broker_was_ever_reached(self) -> None:
        play = Play(offer=NOTHING)
        play.client(api_versions(1))
        assert play.take() == ["closed broker_unreachable", "close"]

    def test_in_the_middle_of_an_authentication_is_answered_and_fails_it(self) -> None:
        play = Play()
        play.client(handshake(1, SCRAM), api_versions(2, 3))
        assert play.take() == [
            "to client: #1 handshake error 0",
            "failed illegal_state",
            "closed authentication_failed",
            "close after 0.1 s",
            "to client: #2 versions error 34",
        ]

    def test_tells_who_the_client_is(self) -> None:
        play = Play()
        play.client(api_versions(1, 3))
        connection = play.connection
        assert connection.client_id == "app"
        assert connection.client_software_name == "java"
        assert connection.client_software_version == "4.1.0"


class TestTime:
    def test_an_authentication_has_ten_seconds(self) -> None:
        play = Play()
        assert play.connection.next_deadline() == play.now + 10.0
        play.client(api_versions(1))
        play.take()
        play.now += 9.999
        play.tell(Connection.timer)
        assert play.take() == []
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["closed authentication_timeout", "close"]

    def test_an_exchange_that_was_begun_counts_as_failed(self) -> None:
        play = Play()
        play.client(handshake(1, SCRAM))
        play.take()
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["failed timeout", "closed authentication_timeout", "close"]

    def test_bytes_do_not_prolong_the_authentication(self) -> None:
        """A client that sends a byte a second is a stranger still."""
        play = Play()
        for byte in handshake(1, SCRAM)[:9]:
            play.now += 1.0
            play.client(bytes([byte]))
        assert play.connection.next_deadline() == play.connection.connected_at + 10.0

    def test_idle_connections_are_closed_from_both_sides_last_byte(self) -> None:
        play = logged_in()
        play.client(fetch(4))
        play.now += 100.0
        play.broker(response(4))
        assert play.connection.next_deadline() == play.now + 600.0
        play.take()
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["closed idle", "close"]

    def test_a_failed_reauthentication_waits_for_answers_longer_than_a_login_may_take(self) -> None:
        """The login's time is over by then; it is the idle time that bounds this wait."""
        play = logged_in()
        play.client(fetch(3))
        play.now += 60.0
        play.client(handshake(4, OAUTHBEARER), authenticate(5, b"nonsense"))
        play.take()
        play.tell(Connection.timer)
        assert play.take() == []
        play.broker(response(3, b"records"))
        assert play.take() == [
            "to client: #3 records",
            "to client: #4 handshake error 0",
            "closed authentication_failed",
            "close after 0.1 s",
            "to client: #5 token error 58 lifetime 0",
        ]


class TestTheBroker:
    def test_closes_in_the_middle_of_a_response(self) -> None:
        """Half an answer is not passed off as a whole one: the client sees a close."""
        play = logged_in()
        play.client(fetch(3))
        play.take()
        play.broker(response(3, b"r" * 100)[:50])
        play.tell(Connection.broker_closed)
        assert play.take() == ["closed broker_closed", "close"]
        assert play.to_client.endswith(b"r" * 42)

    def test_cannot_be_reached(self) -> None:
        play = Play(connects=False)
        logged_in(play)
        play.client(fetch(3))
        play.tell(Connection.broker_unreachable)
        assert play.take() == ["connect", "closed broker_unreachable", "close"]

    def test_requests_wait_until_it_is_connected(self) -> None:
        play = Play(connects=False)
        logged_in(play)
        play.client(fetch(3), metadata(4))
        play.client(fetch(5))
        assert play.take() == ["connect"]
        play.broker_connects()
        assert play.take() == [
            "to broker: Fetch v12 #3",
            "to broker: Metadata v12 #4",
            "to broker: Fetch v12 #5",
        ]

    @pytest.mark.parametrize(
        "bad",
        [
            response(4, b"of another request"),
            struct.pack(">ii", 3, 3),
            struct.pack(">ii", -1, 3),
            struct.pack(">ii", -2147483648, 3),
        ],
    )
    def test_answers_out_of_turn_or_with_an_impossible_size(self, bad: bytes) -> None:
        play = logged_in()
        play.client(fetch(3))
        play.take()
        play.broker(bad)
        assert play.take() == ["closed broker_fault", "close"]

    def test_answers_what_nobody_asked(self) -> None:
        play = logged_in()
        play.client(fetch(3))
        play.broker(response(3))
        play.take()
        play.broker(response(3))
        assert play.take() == ["closed broker_fault", "close"]

    def test_makes_a_metadata_response_that_is_too_large(self) -> None:
        play = logged_in()
        play.client(metadata(3))
        play.take()
        play.broker(struct.pack(">ii", 104_857_601, 3))
        assert play.take() == ["closed broker_fault", "close"]
        assert play.kept_bytes == 0


def test_drained_connections_answer_what_is_under_way() -> None:
    play = logged_in()
    play.client(fetch(3))
    play.take()
    play.tell(Connection.drain)
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
    play.tell(Connection.drain)
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
    play.tell(Connection.drain)
    for number in range(100):
        play.client(produce(4 + number, records=b"r" * 10_000))
    assert play.kept_bytes <= 10_100


@pytest.mark.parametrize("enforcement", Enforcement)
def test_idle_and_unauthenticated_connections_are_drained_at_once(
    enforcement: Enforcement,
) -> None:
    for play in (logged_in(Play(enforcement=enforcement)), Play(enforcement=enforcement)):
        play.tell(Connection.drain)
        assert play.take() == ["closed drained", "close"]


def test_a_drain_waits_for_the_store() -> None:
    play = logged_in()
    play.client(request(50, 0, 3, b"\0\0"))
    play.tell(Connection.drain)
    assert play.take() == ["consult DescribeUserScramCredentials"]
    play.tell(lambda connection, now: connection.consulted(b"nobody", now))
    assert play.take() == ["to client: #3 \0nobody", "closed drained", "close"]


class TestHalfClosedClients:
    def test_are_answered_then_closed(self) -> None:
        play = logged_in()
        play.client(fetch(3), fetch(4))
        play.take()
        play.tell(Connection.client_finished)
        play.broker(response(3, b"a"))
        assert play.take() == ["to client: #3 a"]
        play.broker(response(4, b"b"))
        assert play.take() == ["to client: #4 b", "closed client_closed", "close"]

    def test_are_closed_at_once_when_nothing_is_owed(self) -> None:
        for play in (Play(), logged_in()):
            play.tell(Connection.client_finished)
            assert play.take() == ["closed client_closed", "close"]

    def test_have_their_waiting_requests_made(self) -> None:
        play = Play(connects=False)
        logged_in(play)
        play.client(fetch(3), fetch(4))
        play.take()
        play.tell(Connection.client_finished)
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

    def test_never_finish_a_frame(self) -> None:
        """The broker cannot answer a part: what was whole is answered, then it is over."""
        play = logged_in()
        play.client(fetch(3), produce(4, records=b"r" * 100)[:60])
        play.tell(Connection.client_finished)
        play.take()
        play.broker(response(3))
        assert play.take() == ["to client: #3", "closed client_closed", "close"]

    def test_strangers_do_not_linger_while_keys_are_sought(self) -> None:
        play = Play()
        play.now += 11.0  # the keys were read just before
        play.connection.connected_at = play.now
        play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer_of_unknown_key()))
        assert play.take()[-1] == "seek keys"
        play.tell(Connection.client_finished)
        assert play.take() == ["closed client_closed", "close"]

    def test_wait_for_the_store(self) -> None:
        play = logged_in()
        play.client(request(50, 0, 3, b"\0\0"))
        play.take()
        play.tell(Connection.client_finished)
        assert play.take() == []
        play.tell(lambda connection, now: connection.consulted(b"", now))
        assert play.take() == ["to client: #3 \0", "closed client_closed", "close"]

    def test_an_acks_0_request_reaches_a_broker_that_is_full(self) -> None:
        """Closing would throw away what the broker has not taken yet."""
        play = logged_in()
        play.broker_takes = False
        play.client(produce(3, acks=0))
        play.tell(Connection.client_finished)
        assert play.take()[-1] == "to broker: Produce v9 #3"
        play.tell(lambda connection, now: connection.broker_full(False, now))
        assert play.take() == ["closed client_closed", "close"]

    def test_being_told_twice_changes_nothing(self) -> None:
        play = logged_in()
        play.client(fetch(3), fetch(4)[:15])
        play.tell(Connection.client_finished)
        play.tell(Connection.client_finished)
        play.take()
        play.broker(response(3))
        assert play.take()[-1] == "close"


def test_a_mistake_of_the_proxy_closes() -> None:
    play = logged_in()
    play.tell(Connection.broke)
    assert play.take() == ["closed internal_error", "close"]
    log_in(play)
    assert play.take() == []
