"""The life of a connection, as transcripts: how it begins, relays and ends."""

import itertools
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection, finishing
from proxy.connection.fingerprints import MAX_FINGERPRINTED_BYTES
from proxy.connection.frames import MAX_BYTES_OF_A_LOOK, MAX_TAGS_OF_A_LOOK
from proxy.connection.interfaces import AuthorizedConnection, NoAuthorizer
from proxy.connection.life import HELD_OPEN, NEXT, Input, Life, next_life
from proxy.wire.api_versions import BrokerIdentity
from proxy.wire.apis import APIS, PRODUCE
from sasl.identity import Identity
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from sasl.states import Enforcement
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    bearer_of_unknown_key,
    fetch,
    handshake,
    meaning,
    metadata,
    produce,
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
    log_in_by_scram,
    logged_in,
    refused,
)

Ending = Callable[[Connection, float], None]

IDENTIFIED = replace(everything(), identity=BrokerIdentity(cluster_id="c", node_ids=frozenset({1})))
ELSEWHERE = [("c", 2), ("other", 1), ("k" * 32_767, 1)]


def test_a_whole_life() -> None:
    play = Playbook()
    play.client(api_versions(1, 3))
    assert play.connection.authentication.client_software_name == "java"
    assert play.connection.authentication.client_software_version == "4.1.0"
    play.client(handshake(2, OAUTHBEARER))
    play.client(authenticate(3, bearer(), 2))
    assert play.take() == [
        "to client: #1 versions error 0",
        "to client: #2 handshake error 0",
        "to client: #3 token error 0 lifetime 300000",
        "authenticated User:alice",
    ]
    play.client(metadata(4), fetch(5))
    assert play.take() == ["connect", "to broker: Metadata v12 #4", "to broker: Fetch v12 #5"]
    play.broker(response(4, b"all topics"), response(5, b"records"))
    assert play.take() == ["to client: #4 all topics<rewritten>", "to client: #5 records"]
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
    assert play.take() == ["to client: #1 handshake error 0", *answers, "authenticated User:alice"]
    assert play.session.deadline == play.now + 5.0
    assert play.session.lifetime_announced is bool(version)


def test_a_raw_failure_closes_without_bytes() -> None:
    play = Playbook()
    play.client(handshake(1, SCRAM, 0), sized(b"nonsense"))
    assert play.take() == ["to client: #1 handshake error 0", *refused("bad_message")]


def test_a_failed_login_is_answered_after_the_delay() -> None:
    play = Playbook()
    log_in_by_scram(play, version=1, secret="wrong")
    assert play.take()[1:] == [
        "to client: #2 token error 0 lifetime 0",
        *refused("bad_credentials", "to client: #3 token error 58 lifetime 0"),
    ]


def test_an_unknown_mechanism_is_answered_with_those_there_are() -> None:
    play = Playbook()
    play.client(handshake(1, "PLAIN"))
    assert play.take() == refused("unsupported_mechanism", "to client: #1 handshake error 33")
    assert SCRAM.encode() in play.received[0]


class TestApiVersions:
    def test_is_answered_once_before_the_handshake(self) -> None:
        play = Playbook()
        play.client(api_versions(1), api_versions(2))
        assert play.take() == ["to client: #1 versions error 0", "closed illegal_state", "close"]

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
        assert play.take()[1:] == refused("illegal_state", "to client: #2 versions error 34")

    def test_with_a_name_that_is_none_says_so_first(self) -> None:
        """As Kafka, which looks at the software before the ids."""
        play = Playbook(offer=IDENTIFIED)
        play.client(request(18, 5, 1, b"\x02?\x02?\x02x\0\0\0\x05\0"))
        assert play.take() == ["to client: #1 versions error 42"]

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
        answers = ["to client: #3 records", "to client: #4 handshake error 0"]
        end = refused("bad_message", "to client: #5 token error 58 lifetime 0")
        assert play.take() == [*answers, *end[1:]]


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

    @pytest.mark.parametrize(
        ("asked", "bad"),
        [
            (fetch(3), response(4, b"of another request")),
            (fetch(3), struct.pack(">ii", 3, 3)),
            (fetch(3), struct.pack(">ii", -1, 3)),
            (fetch(3), struct.pack(">ii", -2147483648, 3)),
            (metadata(3), struct.pack(">ii", 104_857_601, 3)),
        ],
    )
    def test_answers_out_of_turn_or_with_an_impossible_size(self, asked: bytes, bad: bytes) -> None:
        play = logged_in()
        play.client(asked)
        play.take()
        play.broker(bad)
        assert play.take() == ["closed broker_fault", "close"]
        assert play.kept_bytes == 0

    def test_answers_what_nobody_asked(self) -> None:
        play = logged_in()
        play.client(fetch(3))
        play.broker(response(3))
        play.take()
        play.broker(response(3))
        assert play.take() == ["closed broker_fault", "close"]


# Frames that begin like one that passed are forwarded at a first look: what else must they be?


def known(*frames: bytes) -> Playbook:
    """A connection on which frames passed, and were answered."""
    play = logged_in()
    for frame in frames:
        play.client(frame)
        (correlation_id,) = struct.unpack_from(">i", frame, 8)
        play.broker(response(correlation_id, b"done"))
    play.take()
    return play


@pytest.mark.parametrize("name", ["app", "b" * 3, "a" * 2, "a" * 4, ""])
def test_one_that_begins_alike_passes_and_so_does_another_client_id(name: str) -> None:
    play = known(produce(10))
    play.client(produce(11, client_id=name, records=b"others"), produce(12, records=b"and more"))
    assert play.take() == ["to broker: Produce v9 #11", "to broker: Produce v9 #12"]
    play.broker(response(11), response(12))
    assert play.take() == ["to client: #11", "to client: #12"]


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 9, 10, 12, 15])
def test_one_that_ends_before_its_beginning_does_closes(size: int) -> None:
    """Bytes after its end belong to the next frame and would be taken for its own."""
    play = known(produce(10))
    play.client(struct.pack(">i", size) + produce(11)[4:])
    assert play.take() == ["closed malformed_frame", "close"]


def test_on_an_expired_session_nothing_passes() -> None:
    play = known(produce(10))
    play.expire()
    play.client(produce(11))
    assert play.take() == ["expired enforce by Produce", "closed expired", "close"]


def test_what_is_remembered_is_bounded() -> None:
    play = known(produce(10, client_id="x" * MAX_FINGERPRINTED_BYTES))
    assert len(play.connection.pipe.fingerprints) == 0


# How connections end, as transcripts: drained, or half closed by the client


def test_a_connection_only_moves_towards_its_end() -> None:
    assert all(life <= after for (life, _), after in NEXT.items())
    assert {after for (_, event), after in NEXT.items() if event == Input.CLOSE} == {Life.CLOSED}
    assert {life for life, _ in HELD_OPEN} == {Life.FINISHING, Life.DRAINING, Life.ENDING}
    with pytest.raises(AssertionError, match=f"input {Input.END} in state {Life.ENDING}"):
        next_life(Life.ENDING, Input.END)


ENDS = pytest.mark.parametrize(
    ("end", "reason"),
    [(Connection.drain, "drained"), (Connection.client_finished, "client_closed")],
)


@ENDS
def test_what_is_under_way_is_answered_first(end: Ending, reason: str) -> None:
    play = logged_in()
    play.client(fetch(3), fetch(4))
    play.take()
    play.call(end)
    if end is Connection.drain:
        play.client(fetch(5))
    play.broker(response(3, b"records"))
    assert play.take() == ["to client: #3 records"]
    play.broker(response(4))
    assert play.take() == ["to client: #4", f"closed {reason}", "close"]


@ENDS
@pytest.mark.parametrize("enforcement", Enforcement)
def test_idle_and_unauthenticated_connections_are_closed_at_once(
    end: Ending, reason: str, enforcement: Enforcement
) -> None:
    for play in (logged_in(Playbook(enforcement=enforcement)), Playbook(enforcement=enforcement)):
        play.call(end)
        assert play.take() == [f"closed {reason}", "close"]


@ENDS
def test_the_store_is_waited_for(end: Ending, reason: str) -> None:
    play = logged_in()
    play.client(request(50, 0, 3, b"\0\0"))
    play.call(end)
    assert play.take() == ["connect", "consult DescribeUserScramCredentials"]
    play.call(lambda connection, now: connection.store_answered(b"nobody", now))
    assert play.take() == ["to client: #3 \0nobody", f"closed {reason}", "close"]


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


class TestHalfClosedClients:
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

    def test_an_acks_0_request_reaches_a_broker_that_is_full(self) -> None:
        """Closing would throw away what the broker has not taken yet."""
        play = logged_in()
        play.broker_takes = False
        play.client(produce(3, acks=0))
        play.call(Connection.client_finished)
        assert play.take()[-1] == "to broker: Produce v9 #3"
        play.call(lambda connection, now: connection.broker_full(False, now))
        assert play.take() == ["closed client_closed", "close"]


@pytest.mark.parametrize("acks", [0, -1])
def test_nothing_follows_a_frame_that_will_not_be_whole(acks: int) -> None:
    """The broker would take it for the rest; it cannot answer a part. Told twice, or once."""
    play = logged_in()
    play.client(fetch(2), produce(3, acks=acks, records=b"r" * 100)[:60])
    sent = bytes(play.to_broker)
    for _ in range(2):
        play.call(Connection.client_finished)
        play.client(fetch(4))
    assert play.to_broker == sent
    play.take()
    play.broker(response(2))
    assert play.take() == ["to client: #2", "closed client_closed", "close"]


# Clients that are known without SASL: nothing ends, nothing is renewed. Kafka answers the same:
# tests/kafka/test_without_sasl.py


ALICE = "User:CN=alice,O=Acme"
YEAR = 365 * 24 * 3600.0


def admitted(play: Playbook | None = None) -> Playbook:
    play = play or Playbook()
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now))
    assert play.take() == [f"authenticated {ALICE}"]
    return play


def test_the_first_request_that_is_forwarded_opens_the_way_to_the_broker() -> None:
    """A client that sends nothing, or only what the proxy answers, costs the broker nothing."""
    play = admitted()
    play.client(api_versions(1, 3), api_versions(2))
    assert play.take() == ["to client: #1 versions error 0", "to client: #2 versions error 0"]
    play.client(metadata(3), produce(4))
    assert play.take() == ["connect", "to broker: Metadata v12 #3", "to broker: Produce v9 #4"]
    play.broker(response(3, b"m"), response(4, b"p"))
    assert play.take() == ["to client: #3 m<rewritten>", "to client: #4 p"]


def test_there_is_nothing_to_log_in_to() -> None:
    """KIP-368: without a session that ends, a SaslHandshake begins nothing."""
    play = admitted()
    play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer()), handshake(3, "GSSAPI", 0))
    assert play.take() == [
        "to client: #1 handshake error 34",
        "to client: #2 token error 34 lifetime 0",
        "to client: #3 handshake error 34",
    ]
    assert play.session.principal == ALICE
    play.client(metadata(4))
    assert play.take() == ["connect", "to broker: Metadata v12 #4"]


@pytest.mark.parametrize(
    "cut_short",
    [
        request(SASL_HANDSHAKE, 1, 1, b"\0\x20SCRAM"),
        request(SASL_AUTHENTICATE, 1, 1, b"\0\0\0\x20n,,"),
    ],
)
def test_what_does_not_parse_is_closed_not_refused(cut_short: bytes) -> None:
    """As in Kafka; it is not counted as a failed authentication: this listener has no SASL."""
    play = admitted()
    play.client(cut_short)
    assert play.take() == ["closed malformed_frame", "close"]


def test_a_connection_that_is_used_never_ends() -> None:
    play = admitted()
    for _ in range(3):
        play.now += YEAR
        play.client(metadata(1))
        play.broker(response(1))
        play.call(Connection.timer)
    assert [line for line in play.take() if "clos" in line or "expired" in line] == []
    assert play.session.deadline is None
    assert play.session.session_lifetime_ms == 0
    assert not play.connection.session.may_begin_reauthentication(play.now)


def test_silence_ends_it_as_any_other() -> None:
    """And not what bounds the time to authenticate."""
    play = admitted()
    deadline = play.connection.next_deadline()
    assert deadline == play.now + play.rules.max_idle
    play.wait_for(deadline)
    assert play.take() == ["closed idle", "close"]


@pytest.mark.parametrize("super_users", [(), (ALICE,)])
def test_rights_are_asked_for_by_the_principal(super_users: tuple[str, ...]) -> None:
    asked: list[str] = []

    class Rights(NoAuthorizer):
        def admit(self, _connection: AuthorizedConnection, identity: Identity) -> None:
            asked.append(identity.principal)

    play = admitted(Playbook(rights=Rights(super_users)))
    assert asked == [ALICE]
    play.call(Connection.rights_changed)
    assert asked == [ALICE, ALICE]
    assert play.connection.principal == ALICE


def test_a_session_ends_with_its_certificate_after_the_requests_under_way() -> None:
    play = Playbook()
    ends_at = play.now + 100
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now, ends_at))
    assert play.wakes_at == ends_at
    play.client(metadata(1))
    assert play.connection.next_deadline() == ends_at
    play.take()
    play.wait_for(ends_at)
    play.client(metadata(2))
    play.broker(response(1, b"m"))
    assert play.take() == ["to client: #1 m<rewritten>", "closed certificate_expired", "close"]


def test_a_connection_ends_at_its_maximum_age_or_up_to_a_tenth_before() -> None:
    play = Playbook()
    object.__setattr__(play.rules, "max_age", 100.0)
    play.open(play.rules)
    admitted(play)
    began, deadline = play.now, play.connection.next_deadline()
    assert deadline is not None
    assert began + 90 <= deadline <= began + 100
    play.wait_for(deadline)
    assert play.take() == ["closed max_age", "close"]


# The first look at a Produce request: acks=0 gets no answer, in every version


VERSIONS = range(APIS[PRODUCE].min_version, APIS[PRODUCE].max_version + 1)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 0, 1, 256])
def test_acks_0_is_owed_no_answer(version: int, acks: int) -> None:
    client_ids = ("", "app", "é" * 20, "x" * 300)
    for name, client_id in itertools.product((None, "", "transaction"), client_ids):
        play = logged_in()
        frame = produce(3, version=version, acks=acks, transactional_id=name, client_id=client_id)
        play.client(frame, fetch(4))
        assert bytes(play.to_broker) == frame + fetch(4)
        assert play.owed == ([3, 4] if acks else [4]), (name, client_id)


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
