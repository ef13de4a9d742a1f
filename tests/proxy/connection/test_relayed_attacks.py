"""Attacks of unauthenticated clients and of brokers on relayed logins: only SASL gets through."""

import struct
from collections.abc import Callable

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.connection.commands import OpenSideConnection
from proxy.connection.connection import Connection
from proxy.connection.inflight import Question
from proxy.wire.apis import API_VERSIONS, APIS
from sasl.messages import MAX_RESPONSE_BYTES, SASL_AUTHENTICATE, SASL_HANDSHAKE
from sasl.relayed import MAX_MESSAGES
from sasl.states import Authenticated, Enforcement
from tests.support.frames import (
    api_versions,
    authenticate,
    fetch,
    handshake,
    metadata,
    produce,
    request,
    response,
    sized,
)
from tests.support.playbook import SCRAM, Playbook, refused
from tests.support.relayed_logins import (
    CHALLENGE,
    PROOF,
    Login,
    answered,
    logged_in,
    raw,
    relaying,
    settings,
    shaken,
    shaken_hands,
)
from tests.support.sasl import NOW

BEFORE = {SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS}


def challenged() -> Playbook:
    play = shaken_hands()
    play.client(authenticate(2, b"n,,n=alice,r=nonce"))
    play.broker(answered(2, CHALLENGE % b"nonceserver"))
    play.take()
    return play


def renewing() -> Playbook:
    """A re-authentication that waits for its side connection."""
    play = logged_in()
    play.now += 100
    play.client(handshake(10, SCRAM))
    play.take()
    return play


def aside() -> Playbook:
    """A re-authentication whose handshake the broker has yet to answer."""
    play = renewing()
    play.side_connects()
    play.take()
    return play


def half_way() -> Playbook:
    """The client owes the first message of its re-authentication."""
    play = aside()
    play.side(shaken(10))
    play.take()
    return play


def unreachable(connection: Connection, now: float) -> None:
    connection.relayed_login.side_unreachable(now)


def side_closed(connection: Connection, now: float) -> None:
    connection.relayed_login.side_closed(now)


def one_by_one(play: Playbook, data: bytes) -> None:
    for byte in data:
        play.broker(bytes([byte]))


class TestStrangers:
    @pytest.mark.parametrize("begin", [relaying, shaken_hands, challenged])
    def test_no_other_request_reaches_a_broker(self, begin: Callable[[], Playbook]) -> None:
        for key in {*APIS, 999, -1} - BEFORE:
            play = begin()
            before = bytes(play.to_broker)
            play.client(request(key, 0, 9, b"\0" * 40), fetch(10))
            assert play.connection.closed, key
            assert play.to_broker == before, key

    def test_api_versions_is_answered_here_and_costs_the_broker_nothing(self) -> None:
        play = relaying()
        play.client(api_versions(1))
        assert play.take() == ["to client: #1 versions error 0"]
        play.wait_for(NOW + 10)
        assert play.take() == ["closed authentication_timeout", "close"]
        assert not play.to_broker

    def test_a_login_is_bounded_in_time(self) -> None:
        play = shaken_hands()
        play.wait_for(NOW + 10)
        assert play.take() == ["failed timeout", "closed authentication_timeout", "close"]

    def test_a_hanging_broker_is_waited_for_as_long(self) -> None:
        play = relaying()
        play.client(handshake(1, SCRAM))
        play.wait_for(NOW + 10)
        assert play.take()[-1] == "close"
        assert play.connection.closed

    def test_a_login_is_bounded_in_messages(self) -> None:
        play = shaken_hands("X-OWN")
        for number in range(2, MAX_MESSAGES + 2):
            play.client(authenticate(number, b"token"))
            play.broker(answered(number, b"more"))
        sent = bytes(play.to_broker)
        play.client(authenticate(99, b"token"))
        assert play.connection.closed
        assert play.to_broker == sent

    def test_a_frame_is_bounded_and_not_begun_to_be_relayed(self) -> None:
        play = shaken_hands()
        sent = bytes(play.to_broker)
        play.client(struct.pack(">i", 524_289) + b"\0" * 10)
        assert play.take() == ["closed oversize_frame", "close"]
        assert play.to_broker == sent

    def test_half_a_frame_is_not_relayed(self) -> None:
        play = relaying()
        play.client(handshake(1, SCRAM)[:-1])
        assert play.take() == []

    @pytest.mark.parametrize(
        "frame",
        [
            handshake(1, SCRAM)[:4] + handshake(1, SCRAM)[4:-3],
            request(SASL_HANDSHAKE, 1, 1, b"\x7f\xff"),
            request(SASL_HANDSHAKE, 2, 1, b"\0\1a"),
            request(SASL_AUTHENTICATE, 1, 1, b"\0\0\0\1a"),
        ],
    )
    def test_what_does_not_parse_is_not_relayed(self, frame: bytes) -> None:
        play = relaying()
        play.client(sized(frame[4:]))
        assert play.connection.closed
        assert not play.to_broker

    def test_raw_tokens_that_are_sent_ahead_end_the_login(self) -> None:
        play = shaken_hands("GSSAPI", version=0)
        play.client(raw(b"\x60one"), raw(b"\x60two"))
        assert play.take()[-2:] == ["to broker: raw 4 bytes", "failed illegal_state"]
        play.broker(raw(b"an answer"))
        assert play.take() == ["closed authentication_failed", "close after 0.1 s"]

    def test_the_next_message_waits_for_the_answer_to_the_one_before(self) -> None:
        play = relaying()
        play.client(handshake(1, SCRAM), authenticate(2, b"n,,n=alice,r=nonce"), produce(3))
        assert play.take() == ["connect", "to broker: SaslHandshake v1 #1"]
        play.broker(shaken(1))
        assert play.take()[-1] == "to broker: SaslAuthenticate v1 #2"
        play.broker(answered(2, CHALLENGE % b"nonceserver"))
        assert play.connection.closed  # for the Produce
        assert "Produce" not in "".join(play.take())

    def test_two_handshakes_are_the_brokers_to_refuse(self) -> None:
        play = shaken_hands()
        play.client(handshake(2, SCRAM))
        assert play.take() == ["to broker: SaslHandshake v1 #2"]
        play.broker(shaken(2, 34, ()))
        assert play.take() == refused(
            "illegal_state", "to client: #2 handshake error 34", close="close"
        )

    def test_a_mechanism_that_is_left_out_is_refused_without_the_broker(self) -> None:
        play = relaying(relays=settings("SCRAM-SHA-512"))
        play.client(handshake(1, "PLAIN"))
        assert play.take() == refused("unsupported_mechanism", "to client: #1 handshake error 33")
        assert not play.to_broker

    def test_a_principal_that_was_refused_is_nobodys(self) -> None:
        """Nor believed before the verdict, and a lifetime beside an error grants nothing."""
        play = challenged()
        play.client(authenticate(3, b"c=biws,r=nonceserver,p=cHJvb2Y="))
        assert play.connection.principal is None
        play.broker(answered(3, error_code=58, lifetime_ms=5_000))
        answer = "to client: #3 token error 58 lifetime 5000"
        assert play.take()[-4:] == refused("refused_by_broker", answer, close="close")
        assert play.connection.principal is None
        assert not play.connection.authentication.ever_succeeded


class TestBrokers:
    """Answers that break the protocol end the connection, and grant nothing."""

    @pytest.mark.parametrize(
        "answer",
        [
            shaken(7),  # another correlation id
            shaken(1)[:-1] + b"\xff",
            sized(shaken(1)[4:10]),
            sized(b"\0\0\0\1"),
            struct.pack(">i", -1) + b"\0\0\0\1",
            struct.pack(">ii", MAX_RESPONSE_BYTES + 1, 1) + b"\0" * 40,
            shaken(1, offered=("PLAIN",)),  # it accepts what it does not offer
            shaken(1) + response(2, b"more"),
        ],
    )
    def test_to_a_handshake(self, answer: bytes) -> None:
        play = relaying()
        play.client(handshake(1, SCRAM))
        play.take()
        play.broker(answer)
        assert play.take()[-2:] == ["closed broker_fault", "close"]

    @pytest.mark.parametrize(
        "answer",
        [
            answered(7, PROOF),
            answered(3, PROOF, lifetime_ms=-1),
            answered(3, b""),  # code 0 without a proof
            answered(3, b"x=unknown"),
            sized(answered(3, PROOF)[4:] + b"\0"),  # more bytes
            sized(answered(3, PROOF)[4:-1]),
            answered(3, PROOF, version=0),
        ],
    )
    def test_to_a_proof(self, answer: bytes) -> None:
        play = challenged()
        play.client(authenticate(3, b"c=biws,r=nonceserver,p=cHJvb2Y="))
        play.take()
        play.broker(answer)
        assert play.take() == ["closed broker_fault", "close"]
        assert play.connection.principal is None

    def test_a_lifetime_in_the_middle_of_an_exchange(self) -> None:
        play = shaken_hands()
        play.client(authenticate(2, b"n,,n=alice,r=nonce"))
        play.broker(answered(2, CHALLENGE % b"nonceserver", lifetime_ms=5_000))
        assert play.take()[-2:] == ["closed broker_fault", "close"]

    def test_a_lifetime_of_a_thousand_years_is_bounded(self) -> None:
        play = logged_in(relaying(max_reauth_ms=0), lifetime_ms=2**62)
        assert play.session.deadline == NOW + 10 * 365 * 24 * 3600

    def test_a_success_without_a_handshake(self) -> None:
        play = logged_in()
        play.client(authenticate(9, b"token"))
        play.broker(answered(9))
        assert play.take()[-2:] == ["closed broker_fault", "close"]

    def test_an_error_without_a_handshake_is_passed_on(self) -> None:
        play = logged_in()
        play.client(authenticate(9, b"token"), fetch(10))
        play.broker(answered(9, error_code=34))
        assert play.take()[-2:] == [
            "to client: #9 token error 34 lifetime 0",
            "to broker: Fetch v12 #10",
        ]

    def test_an_answer_to_a_raw_token_is_bounded(self) -> None:
        play = shaken_hands("PLAIN", version=0)
        play.client(raw(b"\0alice\0secret"))
        play.take()
        play.broker(struct.pack(">i", MAX_RESPONSE_BYTES + 1))
        assert play.take() == ["closed broker_fault", "close"]

    def test_each_byte_of_an_answer_may_come_alone(self) -> None:
        play = relaying()
        login = Login(play, lambda data: one_by_one(play, data))
        login.run()
        assert play.take()[-1] == "authenticated User:alice"


class TestSideConnections:
    @pytest.mark.parametrize(
        ("begin", "happens", "reason"),
        [
            # the time that KIP-368 leaves, and never a free extension
            (renewing, lambda play: play.wait_for(NOW + 3_600), "timeout"),
            (renewing, lambda play: play.call(unreachable), "broker_unavailable"),
            (aside, lambda play: play.wait_for(NOW + 110), "timeout"),
            (aside, lambda play: play.call(side_closed), "broker_unavailable"),
            (half_way, lambda play: play.wait_for(NOW + 110), "timeout"),
            (half_way, lambda play: play.side(b"\0"), "broker_fault"),
        ],
    )
    def test_one_that_fails_ends_the_session(
        self, begin: Callable[[], Playbook], happens: Callable[[Playbook], None], reason: str
    ) -> None:
        play = begin()
        happens(play)
        assert play.take() == [f"failed {reason}", "closed authentication_failed", "close"]

    @pytest.mark.parametrize(("at", "ends"), [(3_595, 3_605), (3_700, 3_710)])
    def test_one_that_waits_for_its_turn_has_the_time_of_the_session(
        self, at: int, ends: int
    ) -> None:
        """Never a free extension; that of a login if the session has expired."""
        play = logged_in()
        play.now = NOW + at
        play.client(handshake(10, SCRAM))
        assert OpenSideConnection(until=max(play.now, NOW + 3_600)) in play.commands
        play.wait_for(NOW + ends)
        assert play.take()[-3:] == refused("timeout", close="close")

    @pytest.mark.parametrize(
        "answer",
        [
            shaken(7),
            sized(b"\0"),
            struct.pack(">i", MAX_RESPONSE_BYTES + 1),
            shaken(10) + shaken(10),
            shaken(10)[:-2] + b"\xff\xff",
        ],
    )
    def test_a_broken_answer_ends_the_session(self, answer: bytes) -> None:
        play = aside()
        play.side(answer)
        assert play.take() == ["failed broker_fault", "closed authentication_failed", "close"]

    @pytest.mark.parametrize(
        "then",
        [
            lambda play: play.call(side_closed),
            lambda play: play.side(answered(11)),
            lambda play: play.wait_for(NOW + 110),
        ],
    )
    def test_a_refusal_waits_for_requests_in_flight_and_is_the_only_one(
        self, then: Callable[[Playbook], None]
    ) -> None:
        """Whatever becomes of the side connection then."""
        play = logged_in()
        play.client(fetch(9))
        play.now += 100
        play.client(handshake(10, SCRAM))
        play.side_connects()
        play.side(shaken(10))
        play.client(authenticate(11, b"n,,n=alice,r=nonce"))
        play.take()
        play.side(answered(11, error_code=58))
        assert play.take() == ["failed refused_by_broker", "close side"]
        then(play)
        assert play.take() == []
        deadline = play.connection.next_deadline()
        assert deadline is not None
        assert deadline > play.now
        play.broker(response(9, b"records"))
        assert play.take() == [
            "to client: #9 records",
            "to client: #10 handshake error 0",
            "closed authentication_failed",
            "close",
            "to client: #11 token error 58 lifetime 0",
        ]

    def test_requests_wait_and_reach_the_broker_on_their_own_connection_alone(self) -> None:
        play = aside()
        play.client(fetch(20))
        assert play.take() == []
        play.side(shaken(10))
        assert play.connection.closed  # a Fetch in the middle of a re-authentication
        assert b"\0\1\0\x0c" not in play.to_side

    def test_its_end_after_a_success_does_not_matter(self) -> None:
        play = logged_in()
        play.now += 100
        Login(play, play.side, first_id=10).run()
        play.take()
        play.call(side_closed)
        play.side(b"late")
        play.client(metadata(20))
        assert play.take() == ["to broker: Metadata v12 #20"]

    def test_the_brokers_own_connection_may_end_meanwhile(self) -> None:
        play = aside()
        play.call(Connection.broker_closed)
        assert play.take() == ["closed broker_closed", "close"]


# Any order of events: no internal error, and only SASL reaches brokers


Event = Callable[[Playbook], None]

IDS = st.integers(0, 3)
MECHANISMS = st.sampled_from(["SCRAM-SHA-256", "PLAIN", "OAUTHBEARER", "GSSAPI", "X-OWN", "NONE"])
TOKENS = st.sampled_from(
    [b"n,,n=alice,r=nonce", b"c=biws,r=nonceserver,p=cHJvb2Y=", b"\0alice\0pw", b"", b"\x60gss"]
)
DATA = st.sampled_from([CHALLENGE % b"nonceserver", PROOF, b"", b'{"status":"no"}', b"e=no"])


@st.composite
def client_frames(draw: st.DrawFn) -> bytes:
    number = draw(IDS)
    return draw(
        st.one_of(
            st.builds(lambda m, v: handshake(number, m, v), MECHANISMS, st.integers(0, 1)),
            st.builds(lambda t, v: authenticate(number, t, v), TOKENS, st.integers(0, 2)),
            st.builds(sized, TOKENS),
            st.sampled_from([fetch(number), produce(number), api_versions(number)]),
            st.binary(max_size=12).map(sized),
        )
    )


@st.composite
def broker_frames(draw: st.DrawFn) -> bytes:
    number = draw(IDS)
    return draw(
        st.one_of(
            st.builds(lambda e: shaken(number, e), st.sampled_from([0, 0, 0, 33, 34])),
            st.builds(
                lambda d, v, e, ms: answered(number, d, version=v, error_code=e, lifetime_ms=ms),
                DATA,
                st.integers(0, 2),
                st.sampled_from([0, 0, 0, 58, 34]),
                st.sampled_from([0, 0, 5_000]),
            ),
            st.builds(sized, DATA),
            st.just(response(0, b"\0\0" + bytes(4))),
            st.binary(max_size=12).map(sized),
        )
    )


def answer(play: Playbook, data: bytes) -> None:
    """The broker answers what it owes next, as a broker does."""
    queue = play.connection.inflight.queue
    if not queue:
        return
    number, owed = queue[0]
    if isinstance(owed, Question) and owed.is_raw:
        play.broker(sized(data))
    elif owed.api_key == SASL_HANDSHAKE:
        play.broker(shaken(number))
    elif owed.api_key == SASL_AUTHENTICATE:
        play.broker(answered(number, data, version=owed.api_version))
    else:
        play.broker(response(number, b"\0\0" + bytes(4)))


def shake_hands(play: Playbook, mechanism: str, version: int) -> None:
    """A handshake that the broker accepts, if it is owed nothing else."""
    play.client(handshake(1, mechanism, version))
    if not play.connection.closed:
        answer(play, b"")


EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.tuples(MECHANISMS, st.integers(0, 1)).map(lambda how: lambda play: shake_hands(play, *how)),
    DATA.map(lambda data: lambda play: answer(play, data)),
    DATA.map(lambda data: lambda play: answer(play, data)),
    TOKENS.map(lambda token: lambda play: play.client(sized(token))),
    st.tuples(TOKENS, st.integers(0, 2)).map(
        lambda how: lambda play: play.client(authenticate(2, *how))
    ),
    client_frames().map(lambda data: lambda play: play.client(data)),
    broker_frames().map(lambda data: lambda play: play.broker(data)),
    broker_frames().map(lambda data: lambda play: play.broker(data)),
    broker_frames().map(lambda data: lambda play: play.side(data)),
    st.sampled_from([0.5, 2.0, 3_000.0, 4_000.0]).map(
        lambda seconds: lambda play: wait(play, seconds)
    ),
    st.sampled_from(
        [
            Connection.broker_closed,
            lambda connection, now: connection.relayed_login.side_closed(now),
            lambda connection, now: connection.relayed_login.side_unreachable(now),
            Connection.client_finished,
            Connection.drain,
        ]
    ).map(lambda what: lambda play: play.call(what)),
    st.just(lambda play: play.side_connects()),
)


def wait(play: Playbook, seconds: float) -> None:
    play.now += seconds
    play.call(Connection.timer)


class Watched(Playbook):
    """Notes what reaches a broker of a client that is not let in."""

    def _write_to_broker(self, data: bytes | memoryview) -> None:
        state = self.connection.session.state
        if not (isinstance(state, Authenticated) or owes_raw(self)):
            key = int.from_bytes(data[4:6])
            assert key in {SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS}
        super()._write_to_broker(data)


def owes_raw(play: Playbook) -> bool:
    return bool(getattr(play.connection.session.state, "raw", False))


@hypothesis.settings(max_examples=300, deadline=None)
@given(
    st.tuples(MECHANISMS, st.integers(0, 1)),
    st.lists(EVENTS, max_size=20),
    st.sampled_from(list(Enforcement)),
)
def test_no_order_of_events_is_a_mistake_of_the_proxy(
    begin: tuple[str, int], events: list[Event], enforcement: Enforcement
) -> None:
    play = relaying(enforcement=enforcement, kind=Watched)
    play.raw = True  # frames in the transcript are not read
    shake_hands(play, *begin)
    for event in events:
        if not play.connection.closed:
            event(play)
    assert play.log.count("closed internal_error") == 0
