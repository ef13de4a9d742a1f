"""The session alone: lifetimes, and states that no connection should reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.identity import Identity
from sasl.mechanism import FailureReason
from sasl.messages import MalformedMessage, client_initial_response
from sasl.oauthbearer import OAuthBearerServer
from sasl.session import MAX_SESSION_LIFETIME_MS, Session, session_lifetime_ms
from sasl.states import Authenticated, AwaitHandshake, Enforcement, Failed, Terms
from tests.support.sasl import ALICE, NOW, SETTINGS, WALL, cache_of, claims, only, rsa_key, token

ENFORCED = Terms(enforcement=Enforcement.ENFORCE, max_reauth_ms=0)


@given(
    max_reauth_ms=st.integers(0, 2**62),
    remaining_ms=st.none() | st.integers(0, 2**62),
    enforcement=st.sampled_from(Enforcement),
    enforces_token_expiry=st.booleans(),
)
def test_a_lifetime_is_the_smallest_bound_and_never_0_by_rounding(
    max_reauth_ms: int,
    remaining_ms: int | None,
    enforcement: Enforcement,
    enforces_token_expiry: bool,
) -> None:
    terms = Terms(
        enforcement=enforcement,
        max_reauth_ms=max_reauth_ms,
        enforces_token_expiry=enforces_token_expiry,
    )
    bounds = []
    if max_reauth_ms and enforcement is not Enforcement.OBSERVE:
        bounds.append(max_reauth_ms)
    if remaining_ms is not None and (
        enforces_token_expiry or enforcement is not Enforcement.OBSERVE
    ):
        bounds.append(remaining_ms)
    lifetime_ms = session_lifetime_ms(terms, remaining_ms)
    if bounds:  # a credential has 0 left when it has expired
        assert lifetime_ms == min(*bounds, MAX_SESSION_LIFETIME_MS)
    else:
        assert lifetime_ms == 0


def session() -> Session:
    return Session({}, lambda _principal, _mechanism: ENFORCED)


def test_a_session_has_the_groups_of_its_last_token() -> None:
    """A newer token may bring other ones, without another principal (KIP-368)."""
    server = OAuthBearerServer(
        issuers=only(cache_of(rsa_key()), SETTINGS._replace(groups_claim_name="groups")),
        wall_clock=lambda: WALL,
    )
    one = Session({"OAUTHBEARER": server}, lambda _principal, _mechanism: ENFORCED)
    for groups in (["a", "b"], ["b", "c"]):
        one.handshake(1, b"\0\x0bOAUTHBEARER", NOW)
        message = client_initial_response(token(claims(groups=groups)))
        one.authenticate(1, len(message).to_bytes(4) + message, NOW)
        assert isinstance(one.state, Authenticated)
        expected = Identity(ALICE.principal, (f"Group:{name}" for name in groups))
        assert one.state.identity == expected


@pytest.mark.parametrize("raw", [False, True])
def test_tokens_before_a_handshake_fail(raw: bool) -> None:
    one = session()
    outcome = one.raw_token(b"", NOW) if raw else one.authenticate(1, b"\0\0\0\0", NOW)
    assert outcome.reply is None
    assert isinstance(one.state, Failed)
    assert one.state.reason is FailureReason.ILLEGAL_STATE


@pytest.mark.parametrize("body", [b"", b"\xff\xff", b"\0\x05ab"])
def test_a_malformed_handshake_fails_without_an_answer(body: bytes) -> None:
    one = session()
    assert one.handshake(1, body, NOW).reply is None
    assert isinstance(one.state, Failed)
    assert one.state.reason is FailureReason.BAD_MESSAGE


def test_who_is_known_without_sasl_has_a_session_that_nothing_ends_or_renews() -> None:
    one = session()
    admitted = one.admit(Identity("User:CN=alice"), NOW)
    assert one.state is admitted
    assert (admitted.mechanism, admitted.deadline, admitted.session_lifetime_ms) == (None, None, 0)
    assert not one.may_begin_reauthentication(NOW + 10**9)
    assert not admitted.lifetime_announced


def test_what_is_out_of_place_must_parse_all_the_same() -> None:
    """Kafka reads a request before it rejects it as out of order."""
    one = session()
    one.admit(Identity("User:ANONYMOUS"), NOW)
    with pytest.raises(MalformedMessage):
        one.handshake(1, b"\0\x20SCRAM", NOW)
    with pytest.raises(MalformedMessage):
        one.authenticate(1, b"\0\0\0\x20n,,", NOW)
    assert isinstance(one.state, Authenticated)


def test_nothing_follows_a_failure() -> None:
    one = session()
    one.illegal_request()
    one.raw_token(b"token", NOW)
    one.api_versions_answered()
    assert isinstance(one.state, Failed)


def test_it_begins_knowing_nobody() -> None:
    state = session().state
    assert isinstance(state, AwaitHandshake)
    assert not state.api_versions_answered
    assert not session().may_begin_reauthentication(NOW)
