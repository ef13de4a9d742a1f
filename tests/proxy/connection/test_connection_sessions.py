"""KIP-368 on a connection, as transcripts: lifetimes, re-authentication, expiry."""

import pytest

from proxy.connection.life import BACK_PRESSURE, PauseReason
from sasl.identity import MAX_PRINCIPAL_CHARACTERS
from sasl.states import Enforcement
from tests.support.frames import (
    api_versions,
    authenticate,
    bearer,
    fetch,
    handshake,
    metadata,
    produce,
    request,
    response,
    sized,
)
from tests.support.playbook import (
    HOUR_MS,
    OAUTHBEARER,
    SCRAM,
    Playbook,
    log_in,
    log_in_by_scram,
    logged_in,
    refused,
)
from tests.support.sasl import NOW, WALL

OBSERVE, PROBE, ENFORCE = Enforcement.OBSERVE, Enforcement.PROBE, Enforcement.ENFORCE
ILLEGAL = "handshake error 34"


def expired(play: Playbook) -> Playbook:
    play.expire()
    return play


@pytest.mark.parametrize(
    ("enforcement", "max_reauth_ms", "token_seconds", "lifetime_ms"),
    [
        (ENFORCE, HOUR_MS, 300, 300_000),  # the token is the shorter: KAFKA-13848
        (ENFORCE, 60_000, 300, 60_000),
        (ENFORCE, 0, 300, 300_000),
        (PROBE, 60_000, 300, 60_000),
        (PROBE, 0, 300, 300_000),
        (OBSERVE, 60_000, 300, 300_000),
        (OBSERVE, 0, 300, 300_000),
        (ENFORCE, 1, 300, 1),
    ],
)
def test_the_lifetime_that_is_announced(
    enforcement: Enforcement, max_reauth_ms: int, token_seconds: float, lifetime_ms: int
) -> None:
    play = Playbook(enforcement=enforcement, max_reauth_ms=max_reauth_ms)
    log_in(play, exp=WALL + token_seconds)
    assert play.take()[1] == f"to client: #2 token error 0 lifetime {lifetime_ms}"
    deadline = NOW + lifetime_ms / 1000 if lifetime_ms else None
    assert play.session.deadline == deadline


@pytest.mark.parametrize(("enforcement", "lifetime_ms"), [(OBSERVE, 0), (PROBE, 300_000)])
def test_a_tokens_end_is_that_of_any_session_where_it_is_not_enforced(
    enforcement: Enforcement, lifetime_ms: int
) -> None:
    play = Playbook(enforcement=enforcement, enforces_token_expiry=False)
    log_in(play, exp=WALL + 300)
    assert play.take()[1] == f"to client: #2 token error 0 lifetime {lifetime_ms}"
    play.now += 10_000_000.0
    play.client(fetch(3))
    counted = ["expired probe by Fetch"] if enforcement is PROBE else []
    assert play.take() == [*counted, "connect", "to broker: Fetch v12 #3"]


def test_a_lifetime_is_never_rounded_to_0() -> None:
    """To the client 0 would mean a session without an end."""
    play = Playbook()
    play.now += 0.9996
    log_in(play, exp=WALL + 1)
    assert play.take()[1] == "to client: #2 token error 0 lifetime 1"
    assert play.session.deadline == play.now + 0.001


@pytest.mark.parametrize(("enforcement", "max_reauth_ms"), [(ENFORCE, 0), (OBSERVE, HOUR_MS)])
def test_a_password_has_no_end_of_its_own(enforcement: Enforcement, max_reauth_ms: int) -> None:
    play = Playbook(enforcement=enforcement, max_reauth_ms=max_reauth_ms)
    log_in_by_scram(play, version=1)
    assert play.take()[2] == "to client: #3 token error 0 lifetime 0"
    play.now += 10 * 365 * 86_400.0
    play.client(fetch(4), handshake(5, SCRAM))
    play.broker(response(4))
    assert play.take() == [
        "connect",
        "to broker: Fetch v12 #4",
        "to client: #4",
        f"to client: #5 {ILLEGAL}",
    ]


class TestOwnDelay:
    """A request is late by when it arrived, not by when a busy loop reads it."""

    HANDSHAKE = handshake(9, OAUTHBEARER)

    def delayed(self, seconds: float, *in_socket: bytes, play: Playbook | None = None) -> Playbook:
        """The loop comes to its timer that long after the end, with these bytes in the socket."""
        play = play or logged_in()
        assert play.session.deadline is not None
        play.in_socket = len(b"".join(in_socket))
        play.wait_for(play.session.deadline + seconds)
        return play

    @pytest.mark.parametrize(
        ("seconds", "lines"),
        [
            (1.0, ["connect", "to broker: Fetch v12 #3"]),
            (1.125, ["expired enforce by Fetch", "closed expired", "close"]),
        ],
    )
    def test_what_is_read_before_the_loop_comes_to_its_timer_is_on_time(
        self, seconds: float, lines: list[str]
    ) -> None:
        """The loop is waited for no longer than a second."""
        play = logged_in()
        play.now = NOW + 300.0 + seconds
        play.client(fetch(3))
        assert play.take() == lines

    def test_what_lay_in_the_socket_at_the_end_is_on_time_and_no_more(self) -> None:
        """However it is cut: the last request that counts began within it."""
        piece = produce(3) + produce(4)
        play = self.delayed(0.25, piece[:-1])
        play.now += 0.5
        play.client(produce(3), produce(4)[:9])
        play.client(produce(4)[9:], produce(5))
        assert play.take() == [
            "connect",
            "to broker: Produce v9 #3",
            "expired enforce by Produce",  # the third
            "to broker: Produce v9 #4",
        ]

    def test_a_second_after_the_end_nothing_is_on_time(self) -> None:
        play = self.delayed(0.25, produce(3), produce(4))
        play.now = NOW + 301.0
        play.client(produce(3))
        play.now += 0.125
        play.client(produce(4))
        assert play.take() == ["connect", "to broker: Produce v9 #3", "expired enforce by Produce"]

    def test_a_handshake_behind_it_renews_the_session(self) -> None:
        play = self.delayed(0.5, produce(3), produce(4), self.HANDSHAKE)
        play.client(produce(3), produce(4), self.HANDSHAKE)
        play.client(authenticate(10, bearer(exp=WALL + 900)))
        assert "authenticated User:alice again (1)" in play.take()
        play.now = NOW + 899.0
        play.client(fetch(11))
        assert play.take() == ["to broker: Fetch v12 #11"]

    def test_nothing_is_on_time_at_the_end_of_the_next_session_for_that(self) -> None:
        play = self.delayed(0.25, produce(3))
        log_in(play, first_id=4, exp=play.now - NOW + WALL + 300)
        play.take()
        play.in_socket = 0
        play.expire()
        play.client(produce(6))
        assert play.take()[0] == "expired enforce by Produce"

    def test_bytes_that_were_read_wait_as_in_the_socket(self) -> None:
        play = logged_in(Playbook(connects=False))
        play.client(fetch(3), fetch(4))
        self.delayed(0.25, play=play)
        play.broker_connects()
        play.client(fetch(5))
        assert play.take() == [
            "connect",
            "to broker: Fetch v12 #3",
            "to broker: Fetch v12 #4",
            "expired enforce by Fetch",
        ]

    @pytest.mark.parametrize("reason", [1 << bit for bit in range(11) if 1 << bit & BACK_PRESSURE])
    @pytest.mark.parametrize("begins_after", [True, False])
    def test_back_pressure_is_no_delay(self, reason: int, begins_after: bool) -> None:
        """At the end of the session, or between it and the read."""
        play = logged_in()
        if begins_after:
            self.delayed(0.5, fetch(3), play=play)
        play.connection.hold(reason)
        if not begins_after:
            self.delayed(0.5, fetch(3), play=play)
        play.call(lambda connection, now: connection.release(reason, now))
        play.client(fetch(3))
        assert play.take() == ["expired enforce by Fetch", "closed expired", "close"]

    def test_back_pressure_that_ended_before_the_loop_came_to_look_is_its_delay(self) -> None:
        play = logged_in()
        play.connection.hold(PauseReason.BROKER_FULL)
        play.now = NOW + 300.25
        play.call(lambda connection, now: connection.broker_full(False, now))
        self.delayed(0.25, fetch(3), play=play)
        play.client(fetch(3))
        assert play.take() == ["connect", "to broker: Fetch v12 #3"]

    def test_a_session_that_began_expired_has_no_delay(self) -> None:
        play = logged_in(exp=WALL - 5)
        assert play.connection.next_deadline() == NOW + 600.0
        play.client(fetch(3))
        assert play.take() == ["closed expired_at_login", "close"]

    def test_a_would_be_kill_is_judged_alike(self) -> None:
        play = logged_in(Playbook(enforcement=PROBE, max_reauth_ms=60_000))
        self.delayed(0.5, fetch(3), play=play)
        play.client(fetch(3), fetch(4))
        assert play.take() == [
            "connect",
            "expired probe by Fetch",  # the second
            "to broker: Fetch v12 #3",
            "to broker: Fetch v12 #4",
        ]
        assert play.connection.next_deadline() == NOW + 300.0  # the token's own end


class TestTokenThatExpiredWithinTheSkew:
    """Kafka's answers; a refusal would be fatal to programs that come with a newer token."""

    @pytest.mark.parametrize("enforcement", list(Enforcement))
    @pytest.mark.parametrize("version", [0, 1])
    @pytest.mark.parametrize(
        "frame",
        [fetch(3), api_versions(3), authenticate(3, b"\x01"), request(50, 0, 3)],
        ids=["Fetch", "ApiVersions", "SaslAuthenticate", "DescribeUserScramCredentials"],
    )
    def test_its_session_is_used_for_nothing(
        self, enforcement: Enforcement, version: int, frame: bytes
    ) -> None:
        """Not even by a request in the same read, and the close is not a kill."""
        play = Playbook(enforcement=enforcement)
        play.client(
            handshake(1, OAUTHBEARER), authenticate(2, bearer(exp=WALL - 5), version), frame
        )
        assert play.take()[1:] == [
            "to client: #2 token error 0" + " lifetime 0" * version,
            "authenticated User:alice",
            "closed expired_at_login",
            "close",
        ]
        assert not play.to_broker
        session = play.session
        assert (session.credential_lifetime_ms, session.announced_lifetime_ms) == (0, 0)
        assert (session.deadline, session.killed_after) == (NOW, None)

    def test_it_is_renewed_by_a_newer_token(self) -> None:
        play = logged_in(exp=WALL - 5)
        log_in(play, first_id=3)
        assert play.take()[1] == "to client: #4 token error 0 lifetime 300000"
        play.client(fetch(5))
        assert play.take() == ["connect", "to broker: Fetch v12 #5"]

    def test_it_ends_a_session_that_it_renews(self) -> None:
        play = logged_in()
        play.client(fetch(3))
        play.now += 2
        log_in(play, first_id=4, exp=WALL - 5)
        play.take()
        play.client(fetch(6))
        play.broker(response(3, b"records"))  # asked for before
        assert play.take()[-2:] == ["closed expired_at_login", "close"]
        assert b"records" in play.to_client
        assert play.to_broker == fetch(3)

    @pytest.mark.parametrize("enforcement", [OBSERVE, PROBE])
    def test_it_is_refused_where_nothing_would_end_it(self, enforcement: Enforcement) -> None:
        play = Playbook(enforcement=enforcement, enforces_token_expiry=False)
        log_in(play, exp=WALL - 5)
        assert play.take()[1:] == refused("expired", "to client: #2 token error 58 lifetime 0")


class TestExpiry:
    def test_the_last_moment_is_still_alive(self) -> None:
        play = logged_in()
        assert play.session.deadline == NOW + 300.0
        play.now = NOW + 300.0
        play.client(fetch(3))
        assert play.take()[-1] == "to broker: Fetch v12 #3"

    @pytest.mark.parametrize("version", [0, 1])
    def test_a_request_after_it_kills(self, version: int) -> None:
        """Clients that were never told are killed like others (KAFKA-9241)."""
        play = expired(logged_in(version=version))
        play.client(fetch(3), fetch(4))
        assert play.take() == ["expired enforce by Fetch", "closed expired", "close"]
        assert not play.to_broker

    @pytest.mark.parametrize(
        ("frame", "name"),
        [
            (api_versions(3), "ApiVersions"),
            (authenticate(3, b"token"), "SaslAuthenticate"),
            (request(50, 0, 3), "DescribeUserScramCredentials"),
            (request(999, 0, 3), "API 999"),
        ],
    )
    def test_any_request_but_a_handshake_kills(self, frame: bytes, name: str) -> None:
        play = expired(logged_in())
        play.client(frame)
        assert play.take() == [f"expired enforce by {name}", "closed expired", "close"]

    def test_an_idle_session_is_left_alone(self) -> None:
        """An expired connection is closed when it is used, not before."""
        play = expired(logged_in())
        play.now += 200.0
        play.call(lambda connection, now: connection.timer(now))
        assert play.take() == []

    def test_the_answer_to_what_was_asked_in_time_is_delivered(self) -> None:
        """A long Fetch that outlives the session is answered, and before the close."""
        play = logged_in()
        play.client(fetch(3))
        play.take()
        expired(play).client(fetch(4))
        assert play.take() == ["expired enforce by Fetch"]
        play.client(fetch(5))
        play.broker(response(3, b"records")[:10])
        assert play.take() == []
        play.broker(response(3, b"records")[10:])
        assert play.take() == ["to client: #3 records", "closed expired", "close"]

    def test_probe_kills_nobody_and_tells_once_per_session(self) -> None:
        play = expired(logged_in(Playbook(enforcement=PROBE, max_reauth_ms=60_000)))
        play.client(fetch(3), fetch(4), metadata(5))
        assert play.take() == [
            "expired probe by Fetch",
            "connect",
            "to broker: Fetch v12 #3",
            "to broker: Fetch v12 #4",
            "to broker: Metadata v12 #5",
        ]
        log_in(play, first_id=6, exp=play.now - NOW + WALL + 300)
        play.broker(response(3), response(4), response(5))
        assert "authenticated User:alice again (1)" in play.take()
        expired(play).client(fetch(8))
        assert play.take() == ["expired probe by Fetch", "to broker: Fetch v12 #8"]

    @pytest.mark.parametrize("version", [0, 1])
    @pytest.mark.parametrize("enforcement", [OBSERVE, PROBE])
    def test_a_use_after_the_tokens_end_kills_in_every_mode(
        self, enforcement: Enforcement, version: int
    ) -> None:
        """As it does at brokers without `connections.max.reauth.ms` (KAFKA-13848)."""
        play = expired(logged_in(Playbook(enforcement=enforcement), version=version))
        play.client(fetch(3))
        assert play.take() == [f"expired {enforcement} by Fetch", "closed token_expired", "close"]

    def test_probe_counts_the_sessions_end_and_kills_at_the_tokens(self) -> None:
        play = expired(logged_in(Playbook(enforcement=PROBE, max_reauth_ms=60_000)))
        play.client(fetch(3))
        assert play.take() == ["expired probe by Fetch", "connect", "to broker: Fetch v12 #3"]
        play.broker(response(3))
        play.now = NOW + 300.0
        play.client(fetch(4))
        assert play.take() == ["to client: #3", "to broker: Fetch v12 #4"]
        play.broker(response(4))
        play.expire()
        play.client(fetch(5))
        assert play.take() == [
            "to client: #4",
            "expired probe by Fetch",
            "closed token_expired",
            "close",
        ]

    def test_a_token_under_observation_may_be_renewed(self) -> None:
        play = logged_in(Playbook(enforcement=OBSERVE))
        log_in(play, first_id=3, exp=WALL + 600)
        assert play.take() == [
            "to client: #3 handshake error 0",
            "to client: #4 token error 0 lifetime 600000",
            "authenticated User:alice again (1)",
        ]


class TestReauthentication:
    def test_begins_at_once_after_the_login_and_prolongs(self) -> None:
        play = logged_in(exp=WALL + 100)
        play.now += 0.25
        play.client(handshake(3, OAUTHBEARER))
        play.now += 0.5
        play.client(authenticate(4, bearer(exp=WALL + 500)))
        assert play.take() == [
            "to client: #3 handshake error 0",
            "to client: #4 token error 0 lifetime 499250",
            "authenticated User:alice again (1)",
        ]
        assert play.session.latency == 0.5
        assert play.session.deadline == NOW + 500.0

    def test_the_second_within_a_second_is_refused_and_harmless(self) -> None:
        play = logged_in()
        play.now += 5.0
        log_in(play, first_id=3)
        play.take()
        play.now += 0.999
        play.client(handshake(5, OAUTHBEARER), handshake(6, OAUTHBEARER), fetch(7))
        assert play.take() == [
            "failed illegal_state",  # once for each session
            f"to client: #5 {ILLEGAL}",
            f"to client: #6 {ILLEGAL}",
            "connect",
            "to broker: Fetch v12 #7",
        ]
        play.now = NOW + 6.0
        play.broker(response(7))
        log_in(play, first_id=8)
        assert play.take()[-1] == "authenticated User:alice again (2)"

    def test_within_a_second_on_an_expired_session_closes(self) -> None:
        play = logged_in()
        play.now += 0.5
        log_in(play, first_id=3, exp=WALL + 1)
        assert play.session.reauthentications == 1
        play.take()
        expired(play).client(handshake(5, OAUTHBEARER))
        assert play.take() == ["expired enforce by SaslHandshake", "closed expired", "close"]

    def test_an_expired_session_may_be_renewed_however_late(self) -> None:
        """The token may come late: the handshake alone is what an expired session may send."""
        play = expired(logged_in())
        play.client(handshake(3, OAUTHBEARER))
        play.now += 499.875
        play.client(authenticate(4, bearer(exp=WALL + play.now - NOW + 60)), fetch(5))
        assert play.take() == [
            "to client: #3 handshake error 0",
            "to client: #4 token error 0 lifetime 60000",
            "authenticated User:alice again (1)",
            "connect",
            "to broker: Fetch v12 #5",
        ]

    def test_raw_tokens_work_too(self) -> None:
        """OAUTHBEARER has nothing to say at success (RFC 7628): the frame is empty."""
        play = logged_in()
        play.client(handshake(3, OAUTHBEARER, 0))
        play.raw = True
        play.client(sized(bearer()))
        assert play.take() == [
            "to client: #3 handshake error 0",
            "to client: raw nothing",
            "authenticated User:alice again (1)",
        ]
        assert play.session.authenticate_version is None

    def test_another_principal_is_refused(self) -> None:
        play = logged_in()
        log_in(play, first_id=3, sub="mallory")
        assert play.take()[1:] == refused(
            "principal_changed", "to client: #4 token error 58 lifetime 0"
        )
        assert b"from User.alice: User.mallory" in play.received[-1]

    @pytest.mark.parametrize("letter", ["n", "\U0001f600"])
    def test_principals_of_any_length_are_refused_in_words(self, letter: str) -> None:
        """The sentence names both; its length must fit an int16."""
        name = letter * (MAX_PRINCIPAL_CHARACTERS - len("User:2"))
        play = logged_in(sub=name)
        log_in(play, first_id=3, sub=name + "2")
        assert play.take()[-1] == "to client: #4 token error 58 lifetime 0"

    def test_another_mechanism_is_closed_at_its_token(self) -> None:
        play = logged_in()
        play.client(handshake(3, SCRAM))
        assert play.take() == ["to client: #3 handshake error 0"]
        play.client(authenticate(4, b"n,,n=alice,r=x"))
        assert play.take() == refused("mechanism_changed")

    @pytest.mark.parametrize("enforcement", [PROBE, ENFORCE])
    def test_a_failure_closes_whatever_the_enforcement(self, enforcement: Enforcement) -> None:
        play = logged_in(Playbook(enforcement=enforcement))
        play.client(handshake(3, OAUTHBEARER), authenticate(4, b"nonsense"), fetch(5))
        assert play.take()[1:] == refused("bad_message", "to client: #4 token error 58 lifetime 0")
        assert not play.to_broker

    @pytest.mark.parametrize(
        ("frames", "reason", "answers"),
        [
            ([handshake(3, "PLAIN")], "unsupported_mechanism", []),
            # between handshake and token nobody is authenticated
            ([handshake(3, OAUTHBEARER), fetch(4)], "illegal_state", []),
            (
                [handshake(3, OAUTHBEARER), handshake(4, OAUTHBEARER)],
                "illegal_state",
                [f"to client: #4 {ILLEGAL}"],
            ),
        ],
    )
    def test_what_does_not_lead_to_its_end_closes(
        self, frames: list[bytes], reason: str, answers: list[str]
    ) -> None:
        play = logged_in()
        play.client(*frames)
        begun = ["to client: #3 handshake error 0"] * (len(frames) - 1)
        assert play.take() == [*begun, *refused(reason, *answers)]
        assert not play.to_broker

    def test_a_token_without_a_handshake_is_refused_and_harmless(self) -> None:
        play = logged_in()
        play.client(authenticate(3, bearer()), fetch(4))
        assert play.take() == [
            "to client: #3 token error 34 lifetime 0",
            "connect",
            "to broker: Fetch v12 #4",
        ]

    def test_in_the_middle_of_traffic_keeps_the_order(self) -> None:
        """Responses to earlier requests arrive in between, and may be waited for."""
        play = logged_in()
        play.client(fetch(3), metadata(4))
        play.take()
        play.client(handshake(5, OAUTHBEARER))
        play.broker(response(3, b"records"), response(4, b"top")[:9])
        assert play.take() == ["to client: #3 records"]
        play.client(authenticate(6, bearer()), fetch(7), metadata(8))
        assert play.take() == [
            "authenticated User:alice again (1)",
            "to broker: Fetch v12 #7",
            "to broker: Metadata v12 #8",
        ]
        play.broker(response(4, b"top")[9:], response(7, b"more"), response(8, b"ics"))
        assert play.take() == [
            "to client: #4 top<rewritten>",
            "to client: #5 handshake error 0",
            "to client: #6 token error 0 lifetime 300000",
            "to client: #7 more",
            "to client: #8 ics<rewritten>",
        ]

    def test_does_not_finish_when_the_client_goes(self) -> None:
        play = logged_in(exp=WALL + 1_000)
        play.client(handshake(3, OAUTHBEARER))
        play.take()
        assert play.connection.next_deadline() == NOW + 600.0
        play.wait_for(play.connection.next_deadline())
        assert play.take() == ["closed idle", "close"]
