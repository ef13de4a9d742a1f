"""What an unauthenticated client may send, and how it is kept waiting for keys."""

import struct
from collections.abc import Callable

import pytest

from proxy.connection.inflight import MAX_IN_FLIGHT
from proxy.net.read_buffer import BUFFER_BYTES
from proxy.wire.apis import API_VERSIONS, APIS, SASL_HANDSHAKE, Kind
from sasl.jwks import KeyCache
from sasl.messages import SASL_AUTHENTICATE
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer_of_unknown_key,
    fetch,
    handshake,
    metadata,
    produce,
    request,
    response,
    sized,
)
from tests.support.playbook import OAUTHBEARER, SCRAM, Playbook, logged_in, refused
from tests.support.sasl import NOW, document, ed_key, rsa_key

ALL_KEYS = [*APIS, 4, 5, 6, 7, 999, 0x7FFF, -1]


def offered_versions() -> Playbook:
    play = Playbook()
    play.client(request(API_VERSIONS, 0, 1))
    return play


def handshaken() -> Playbook:
    play = Playbook()
    play.client(handshake(1, SCRAM))
    return play


def owing_a_raw_token() -> Playbook:
    """Each frame is a token, whatever it looks like."""
    play = Playbook()
    play.client(handshake(1, SCRAM, 0))
    return play


def challenged() -> Playbook:
    play = handshaken()
    play.client(authenticate(2, b"n,,n=alice,r=client"))
    return play


def reauthenticating() -> Playbook:
    play = logged_in()
    play.client(handshake(3, OAUTHBEARER))
    return play


def failed() -> Playbook:
    play = handshaken()
    play.client(authenticate(2, b"nonsense"))
    return play


def failed_with_an_answer_owed() -> Playbook:
    """Not closed yet, because an earlier request is still under way."""
    play = logged_in()
    play.client(fetch(3), handshake(4, OAUTHBEARER), authenticate(5, b"nonsense"))
    play.to_broker.clear()
    play._seen_by_broker = 0
    return play


def expired() -> Playbook:
    play = logged_in()
    play.expire()
    return play


def seeking_keys() -> Playbook:
    play = Playbook()
    play.now += 11.0
    play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer_of_unknown_key()))
    assert play.log[-1] == "seek keys"
    return play


STATES: list[Callable[[], Playbook]] = [
    Playbook,
    offered_versions,
    handshaken,
    owing_a_raw_token,
    challenged,
    reauthenticating,
    failed,
    failed_with_an_answer_owed,
    expired,
    seeking_keys,
]


@pytest.mark.parametrize("state", STATES)
def test_nothing_reaches_a_broker_unless_authenticated_and_alive(
    state: Callable[[], Playbook],
) -> None:
    """Every API key in its lowest, highest and a too high version; a second frame follows."""
    for key in ALL_KEYS:
        versions = (APIS[key].min_version, APIS[key].max_version, 99) if key in APIS else (0,)
        for version in versions:
            play = state()
            play.take()
            play.client(request(key, version, 90, b"\0" * 40), fetch(91))
            assert not play.to_broker, (key, version)
            assert "connect" not in play.log, (key, version)
            legal = key in (SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS)
            held = state in (seeking_keys, failed_with_an_answer_owed)
            assert legal or held or play.connection.closed, (key, version)


def test_what_an_authenticated_client_may_send() -> None:
    """Forwarded are the versions that the proxy understands of the APIs it forwards, no others."""
    for key in ALL_KEYS:
        api = APIS.get(key)
        for version in range(-1, 16):
            play = logged_in()
            play.client(request(key, version, 3, b"\0" * 40))
            forwarded = (
                api is not None
                and api.kind is Kind.FORWARDED
                and api.min_version <= version <= api.max_version
            )
            assert bool(play.to_broker) == forwarded, (key, version)
            if not forwarded and (api is None or api.kind is not Kind.ANSWERED):
                assert play.take() == ["closed unsupported_api", "close"]


def test_an_end_lets_nothing_pass_behind_it() -> None:
    """A connection that waits for an answer before it closes takes no request any more."""
    play = logged_in()
    play.client(fetch(3), request(999, 0, 4), fetch(5))
    play.client(fetch(6))
    assert [line for line in play.take() if "broker" in line] == ["to broker: Fetch v12 #3"]
    play.broker(response(3))
    assert play.take() == ["to client: #3", "closed unsupported_api", "close"]


# Signing keys that are looked for while a token waits for them, as transcripts


class TestKeysAreSought:
    def asking(self) -> tuple[Playbook, KeyCache]:
        keys = KeyCache()
        assert keys.loaded(document(ed_key().jwk()), NOW - 100.0)
        play = Playbook(keys=keys)
        play.client(handshake(1, OAUTHBEARER), authenticate(2, bearer_of_unknown_key()), fetch(3))
        assert play.take() == ["to client: #1 handshake error 0", "seek keys"]
        assert play.paused == {"client"}
        return play, keys

    def test_and_found(self) -> None:
        play, keys = self.asking()
        play.client(fetch(4))
        assert play.take() == []
        keys.loaded(document(ed_key().jwk(), rsa_key().jwk()), play.now)
        play.now += 2.0
        play.call(lambda connection, now: connection.resume_login(now))
        assert play.take() == [
            "to client: #2 token error 0 lifetime 298000",
            "authenticated User:alice",
            "connect",
            "to broker: Fetch v12 #3",
            "to broker: Fetch v12 #4",
        ]
        assert play.session.latency == 2.0

    def test_and_not_found(self) -> None:
        """Rejected tokens are answered by RFC 7628's error, then the next message fails."""
        play, keys = self.asking()
        keys.failed("no route", play.now)
        play.call(lambda connection, now: connection.resume_login(now))
        assert play.take() == ["to client: #2 token error 0 lifetime 0", *refused("illegal_state")]

    def test_until_the_time_for_authentication_is_over(self) -> None:
        play, _ = self.asking()
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["failed timeout", "closed authentication_timeout", "close"]


# Peers that do not read, or send too much: buffered bytes stay bounded


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
