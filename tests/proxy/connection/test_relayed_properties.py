"""Relayed logins in any order of events: no internal error, and only SASL reaches brokers."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.connection.connection import Connection
from proxy.connection.inflight import Question
from proxy.wire.apis import API_VERSIONS
from sasl.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
from sasl.states import Authenticated, Enforcement
from tests.support.frames import (
    api_versions,
    authenticate,
    fetch,
    handshake,
    produce,
    response,
    sized,
)
from tests.support.playbook import Playbook
from tests.support.relayed_logins import CHALLENGE, PROOF, answered, relaying, shaken

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
        if not (isinstance(state, Authenticated) or raw(self)):
            key = int.from_bytes(data[4:6])
            assert key in {SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS}
        super()._write_to_broker(data)


def raw(play: Playbook) -> bool:
    return bool(getattr(play.connection.session.state, "raw", False))


@settings(max_examples=300, deadline=None)
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
