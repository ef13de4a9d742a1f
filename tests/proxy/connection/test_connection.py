"""The life of a connection, as transcripts: log in, relay, and when it goes wrong."""

import struct
from dataclasses import replace

import pytest

from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.wire.api_versions import BrokerIdentity
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    fetch,
    handshake,
    meaning,
    metadata,
    request,
    response,
    sized,
)
from tests.support.playbook import (
    NOTHING,
    OAUTHBEARER,
    SCRAM,
    Playbook,
    everything,
    log_in,
    log_in_by_scram,
    logged_in,
)

IDENTIFIED = replace(everything(), identity=BrokerIdentity(cluster_id="c", node_ids=frozenset({1})))
HERE = [("c", 1), (None, -1)]
"""Without ids nothing is checked."""
ELSEWHERE = [("c", 2), ("c", -2), ("other", 1), ("", 1), ("k" * 32_767, 1)]


def test_a_whole_life() -> None:
    play = Playbook()
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
    play.call(finishing(CloseReason.CLIENT_CLOSED))
    assert play.take() == ["closed client_closed", "close"]
    assert play.connection.next_deadline() is None


@pytest.mark.parametrize("version", [0, 1, 2, None])
def test_scram_in_every_version(version: int | None) -> None:
    """KIP-368: from v1 on the lifetime is announced; it also applies to older clients."""
    play = Playbook(max_reauth_ms=5_000)
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
    assert play.session.lifetime_announced is bool(version)


def test_a_raw_token_login_ends_in_an_empty_frame() -> None:
    """OAUTHBEARER has nothing to say at success (RFC 7628)."""
    play = Playbook()
    play.client(handshake(1, OAUTHBEARER, 0))
    play.raw = True
    play.client(sized(bearer()))
    assert play.take() == [
        "to client: #1 handshake error 0",
        "to client: raw nothing",
        "authenticated User:alice",
    ]


def test_a_raw_failure_closes_without_bytes() -> None:
    play = Playbook()
    play.client(handshake(1, SCRAM, 0), sized(b"nonsense"))
    assert play.take() == [
        "to client: #1 handshake error 0",
        "failed bad_message",
        "closed authentication_failed",
        "close after 0.1 s",
    ]


def test_everything_in_one_read() -> None:
    """A client that does not wait for answers is served all the same."""
    play = Playbook()
    play.client(api_versions(1), handshake(2, OAUTHBEARER), authenticate(3, bearer()), fetch(4))
    assert play.take()[-1] == "to broker: Fetch v12 #4"


def test_a_failed_login_is_answered_after_the_delay() -> None:
    play = Playbook()
    log_in_by_scram(play, version=1, secret="wrong")
    assert play.take()[1:] == [
        "to client: #2 token error 0 lifetime 0",
        "failed bad_credentials",
        "closed authentication_failed",
        "close after 0.1 s",
        "to client: #3 token error 58 lifetime 0",
    ]


def test_an_unknown_mechanism_is_answered_with_those_there_are() -> None:
    play = Playbook()
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
        play = Playbook()
        play.client(api_versions(1), api_versions(2))
        assert play.take() == [
            "to client: #1 versions error 0",
            "closed illegal_state",
            "close",
        ]

    def test_may_be_asked_again_after_an_error(self) -> None:
        """A client that is too new, or whose software name Kafka refuses, tries once more."""
        play = Playbook()
        play.client(request(18, 9, 1), request(18, 3, 2, b"\x02?\x02?\0"), api_versions(3))
        assert play.take() == [
            "to client: #1 versions error 35",
            "to client: #2 versions error 42",
            "to client: #3 versions error 0",
        ]

    def test_is_refused_while_no_broker_was_ever_reached(self) -> None:
        play = Playbook(offer=NOTHING)
        play.client(api_versions(1))
        assert play.take() == ["closed broker_unreachable", "close"]

    def test_in_the_middle_of_an_authentication_is_answered_and_fails_it(self) -> None:
        play = Playbook()
        play.client(handshake(1, SCRAM), api_versions(2, 3))
        assert play.take() == [
            "to client: #1 handshake error 0",
            "failed illegal_state",
            "closed authentication_failed",
            "close after 0.1 s",
            "to client: #2 versions error 34",
        ]

    @pytest.mark.parametrize(("cluster_id", "node_id"), HERE)
    def test_for_who_is_where_he_means_to_be(self, cluster_id: str | None, node_id: int) -> None:
        play = Playbook(offer=IDENTIFIED)
        play.client(meaning(1, cluster_id, node_id), handshake(2, OAUTHBEARER))
        assert play.take() == ["to client: #1 versions error 0", "to client: #2 handshake error 0"]

    @pytest.mark.parametrize(("cluster_id", "node_id"), ELSEWHERE)
    def test_tells_who_means_another_broker(self, cluster_id: str, node_id: int) -> None:
        """A second attempt may be valid; a second valid one after it is refused, as usual."""
        play = Playbook(offer=IDENTIFIED)
        shown = f"misrouted: means node {node_id} of {cluster_id}"
        play.client(meaning(1, cluster_id, node_id), meaning(2, cluster_id, node_id))
        told = ["to client: #1 versions error 129", "to client: #2 versions error 129"]
        assert play.take() == [shown, told[0], shown, told[1]]
        play.client(meaning(3, "c", 1), meaning(4, "c", 1))
        assert play.take() == ["to client: #3 versions error 0", "closed illegal_state", "close"]

    @pytest.mark.parametrize(("cluster_id", "node_id"), ELSEWHERE)
    def test_tells_it_to_who_has_logged_in(self, cluster_id: str, node_id: int) -> None:
        """The connection stays open: to close it is the client's affair, as with Kafka."""
        play = logged_in(Playbook(offer=IDENTIFIED))
        play.take()
        play.client(meaning(7, "c", 1), meaning(8, cluster_id, node_id), meaning(9, "c", 1))
        assert play.take() == [
            "connect",
            "to client: #7 versions error 0",
            f"misrouted: means node {node_id} of {cluster_id}",
            "to client: #8 versions error 129",
            "to client: #9 versions error 0",
        ]

    @pytest.mark.parametrize(("cluster_id", "node_id"), [("c", -1), (None, 1)])
    def test_with_one_id_alone_is_invalid(self, cluster_id: str | None, node_id: int) -> None:
        play = Playbook(offer=IDENTIFIED)
        play.client(meaning(1, cluster_id, node_id))
        assert play.take() == ["to client: #1 versions error 42"]

    def test_passes_on_what_cannot_be_known(self) -> None:
        play = Playbook()
        play.client(meaning(1, "any", 7))
        assert play.take() == ["to client: #1 versions error 0"]

    def test_with_a_name_that_is_none_says_so_first(self) -> None:
        """As Kafka, which looks at the software before the ids."""
        play = Playbook(offer=IDENTIFIED)
        play.client(request(18, 5, 1, b"\x02?\x02?\x02x\0\0\0\x05\0"))
        assert play.take() == ["to client: #1 versions error 42"]

    def test_tells_who_the_client_is(self) -> None:
        play = Playbook()
        play.client(api_versions(1, 3))
        connection = play.connection
        assert connection.authentication.client_id == "app"
        assert connection.authentication.client_software_name == "java"
        assert connection.authentication.client_software_version == "4.1.0"


class TestTime:
    def test_an_authentication_has_ten_seconds(self) -> None:
        play = Playbook()
        assert play.connection.next_deadline() == play.now + 10.0
        play.client(api_versions(1))
        play.take()
        play.now += 9.999
        play.call(Connection.timer)
        assert play.take() == []
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["closed authentication_timeout", "close"]

    def test_an_exchange_that_was_begun_counts_as_failed(self) -> None:
        play = Playbook()
        play.client(handshake(1, SCRAM))
        play.take()
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["failed timeout", "closed authentication_timeout", "close"]

    def test_bytes_do_not_prolong_the_authentication(self) -> None:
        """A client that sends a byte a second is still unauthenticated."""
        play = Playbook()
        for byte in handshake(1, SCRAM)[:9]:
            play.now += 1.0
            play.client(bytes([byte]))
        assert play.connection.next_deadline() == play.connection.connected_at + 10.0

    def test_idle_connections_are_closed_from_both_sides_last_byte(self) -> None:
        play = logged_in(exp=10**10)
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
        play.call(Connection.timer)
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
        play.call(Connection.broker_closed)
        assert play.take() == ["closed broker_closed", "close"]
        assert play.to_client.endswith(b"r" * 42)

    def test_cannot_be_reached(self) -> None:
        play = Playbook(connects=False)
        logged_in(play)
        play.client(fetch(3))
        play.call(finishing(CloseReason.BROKER_UNREACHABLE))
        assert play.take() == ["connect", "closed broker_unreachable", "close"]

    def test_requests_wait_until_it_is_connected(self) -> None:
        play = Playbook(connects=False)
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


def test_a_mistake_of_the_proxy_closes() -> None:
    play = logged_in()
    play.call(finishing(CloseReason.INTERNAL_ERROR))
    assert play.take() == ["closed internal_error", "close"]
    log_in(play)
    assert play.take() == []
