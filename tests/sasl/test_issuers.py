"""Several issuers on one listener, and rules for the names in their tokens."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sasl.identity import MAX_GROUP_CHARACTERS, MAX_PRINCIPAL_CHARACTERS, Identity
from sasl.issuers import MAX_UNVERIFIED_BYTES, TrustedIssuers
from sasl.json_web_token import AcceptedToken, TrustedIssuer
from sasl.jwks import KeyCache, KeyMissing
from sasl.mechanism import Challenge, Failure, FailureReason, KeysNeeded, Step, Success
from sasl.oauthbearer import OAuthBearerServer
from sasl.oauthbearer_messages import client_initial_response
from sasl.session import Session
from sasl.states import Authenticated, Enforcement, Terms
from sasl.token_explanation import explain_token
from tests.support.sasl import (
    NOW,
    SETTINGS,
    WALL,
    Key,
    cache_of,
    claims,
    document,
    ec_key,
    judged,
    only,
    rsa_key,
    token,
)

OURS, PARTNERS = "https://issuer.test", "https://partner.test"
OUR_KEY = rsa_key()
PARTNERS_KEY = Key(OUR_KEY.kid, "RS256", rsa_key("other").private)
"""Another key under the same id."""
TERMS = Terms(enforcement=Enforcement.ENFORCE, max_reauth_ms=3_600_000)


def issuers(ours: KeyCache | None = None, partners: KeyCache | None = None) -> TrustedIssuers:
    """Ours without a prefix, and a partner's, whose keys are under the same id."""
    settings = replace(SETTINGS, groups_claim_name="groups")
    return TrustedIssuers(
        [
            TrustedIssuer(
                name=OURS,
                keys=ours or cache_of(OUR_KEY),
                settings=replace(settings, reserved=("partner:",)),
            ),
            TrustedIssuer(
                name=PARTNERS,
                keys=partners or cache_of(PARTNERS_KEY),
                settings=replace(
                    settings,
                    expected_issuer=PARTNERS,
                    expected_audience=frozenset({"for-partners"}),
                    prefix="partner:",
                ),
            ),
        ]
    )


def ours(key: Key = OUR_KEY, **changes: Any) -> str:
    return token(claims(**changes), key=key)


def partners(key: Key = PARTNERS_KEY, **changes: Any) -> str:
    return token(claims(**{"iss": PARTNERS, "aud": "for-partners", **changes}), key=key)


def identity(bearer: str, trusted: TrustedIssuers | None = None) -> Identity:
    accepted = judged(bearer, trusted or issuers())
    assert isinstance(accepted, AcceptedToken), accepted
    return accepted.claims.identity


def test_one_name_from_two_issuers_is_two_principals() -> None:
    """The names of groups, too: neither ACLs nor super groups of one are the other's."""
    one, other = identity(ours(groups=["admins"])), identity(partners(groups=["admins"]))
    assert one.principals == ("User:alice", "Group:admins")
    assert other.principals == ("User:partner:alice", "Group:partner:admins")


@pytest.mark.parametrize(
    ("bearer", "reason"),
    [
        # Of the one, signed by the other: the id of both keys is the same
        (ours(PARTNERS_KEY), FailureReason.BAD_SIGNATURE),
        (partners(OUR_KEY), FailureReason.BAD_SIGNATURE),
        (ours(ec_key()), KeyMissing.UNKNOWN_KID),
        # By neither
        (ours(iss="https://else.test"), FailureReason.WRONG_ISSUER),
        (ours(iss=None), FailureReason.WRONG_ISSUER),
        (ours(iss=""), FailureReason.WRONG_ISSUER),
        (ours(iss=[OURS, PARTNERS]), FailureReason.WRONG_ISSUER),
        (ours(iss={OURS: 1}), FailureReason.WRONG_ISSUER),
        (ours(iss=f"{OURS}/"), FailureReason.WRONG_ISSUER),
        (ours(iss=OURS.upper()), FailureReason.WRONG_ISSUER),
        (ours(iss=OURS.replace("i", "\u0131")), FailureReason.WRONG_ISSUER),
        # What no reader may choose
        (
            token(b'{"iss":"https://issuer.test","iss":"https://partner.test"}'),
            FailureReason.BAD_CLAIMS,
        ),
        (token(b"[]"), FailureReason.BAD_CLAIMS),
        (token(b"{" + b" " * MAX_UNVERIFIED_BYTES + b"}"), FailureReason.BAD_CLAIMS),
        (token(b'{"iss":' + b"[" * 40 + b"]" * 40 + b"}"), FailureReason.BAD_CLAIMS),
        # The audience is that of the issuer
        (ours(aud="for-partners"), FailureReason.WRONG_AUDIENCE),
        (partners(aud="kafka"), FailureReason.WRONG_AUDIENCE),
        # Names that are the other's
        (ours(sub="partner:alice"), FailureReason.NO_PRINCIPAL),
        (ours(sub=" partner:alice"), FailureReason.NO_PRINCIPAL),
        (ours(groups="partner:admins"), FailureReason.BAD_GROUPS),
        (ours(groups=["admins", "partner:admins"]), FailureReason.BAD_GROUPS),
        (partners(groups="x" * (MAX_GROUP_CHARACTERS - 7)), FailureReason.BAD_GROUPS),
        (partners(sub="x" * (MAX_PRINCIPAL_CHARACTERS - 12)), FailureReason.NO_PRINCIPAL),
        (partners(groups="*"), FailureReason.BAD_GROUPS),
    ],
)
def test_a_token_is_judged_by_its_issuer_alone(
    bearer: str, reason: FailureReason | KeyMissing
) -> None:
    assert judged(bearer, issuers()) is reason
    findings = explain_token(bearer, issuers(), WALL, NOW)
    assert any(one.problem is not None for one in findings)


def test_what_begins_almost_alike_is_nobody_elses() -> None:
    assert identity(ours(sub="partner")).principal == "User:partner"
    assert identity(ours(sub="Partner:alice")).principal == "User:Partner:alice"
    assert identity(partners(sub="partner:alice")).principal == "User:partner:partner:alice"
    longest = "x" * (MAX_GROUP_CHARACTERS - len("partner:"))
    assert identity(partners(groups=longest)).groups == (f"Group:partner:{longest}",)


# Outages


def step_of(bearer: str, trusted: TrustedIssuers, now: float = NOW) -> Step:
    server = OAuthBearerServer(issuers=trusted, wall_clock=lambda: WALL)
    return server.exchange().step(client_initial_response(bearer), now)


def test_an_outage_of_one_issuer_touches_no_client_of_the_other() -> None:
    down = KeyCache()
    down.failed("no route to host", NOW - 60)
    trusted = issuers(partners=down)
    assert isinstance(step_of(ours(), trusted), Success)
    assert step_of(partners(), trusted) == KeysNeeded(PARTNERS)


def test_unknown_keys_of_one_are_fetched_from_it_alone() -> None:
    """Whoever makes up key ids for one issuer cannot use up the fetches of the other."""
    later = NOW + 60
    mine, theirs = cache_of(OUR_KEY), cache_of(PARTNERS_KEY)
    trusted = issuers(mine, theirs)
    assert step_of(partners(ec_key("made-up")), trusted, later) == KeysNeeded(PARTNERS)
    theirs.failed("no route to host", later)
    assert isinstance(step_of(partners(ec_key("made-up")), trusted, later), Challenge)
    assert step_of(ours(ec_key("new")), trusted, later) == KeysNeeded(OURS)
    assert mine.loaded(document(ec_key("new").jwk()), later)
    assert isinstance(step_of(ours(ec_key("new")), trusted, later), Success)


def test_a_key_that_one_issuer_withdraws_is_gone_for_it_alone() -> None:
    """Also for tokens that were verified once, though the other's key has the same id."""
    mine = cache_of(OUR_KEY)
    server = OAuthBearerServer(issuers=issuers(mine), wall_clock=lambda: WALL)

    def login(bearer: str) -> Step:
        return server.exchange().step(client_initial_response(bearer), NOW)

    assert isinstance(login(ours()), Success)
    assert isinstance(login(partners()), Success)
    assert len(server.verified) == 2
    assert mine.loaded(document(PARTNERS_KEY.jwk()), NOW)
    assert isinstance(login(partners()), Success)
    assert isinstance(login(ours()), Challenge)


# Names


def by(rename: Callable[[str], str | None], **more: Any) -> TrustedIssuers:
    return only(cache_of(OUR_KEY), replace(SETTINGS, name_of=rename, **more))


def without_session(name: str) -> str | None:
    account, slash, _ = name.partition("/session-")
    return account if slash else None


def test_the_names_of_many_sessions_are_one_principal() -> None:
    """Without the rule, KIP-368 would refuse the second: `Cannot change principals`."""
    server = OAuthBearerServer(issuers=by(without_session), wall_clock=lambda: WALL)
    one = Session({"OAUTHBEARER": server}, lambda _identity, _mechanism: TERMS)
    renewed = []
    for number in range(3):
        one.handshake(1, b"\0\x0bOAUTHBEARER", NOW + 2 * number)
        message = client_initial_response(ours(sub=f"app/session-{number}"))
        one.authenticate(1, len(message).to_bytes(4) + message, NOW + 2 * number)
        assert isinstance(one.state, Authenticated), one.state
        assert one.state.principal == "User:app"
        renewed.append(one.state.reauthentications)
    assert renewed == [0, 1, 2]


def test_a_name_without_a_rule_is_refused() -> None:
    assert judged(ours(sub="app"), by(without_session)) is FailureReason.NO_PRINCIPAL


def test_a_rule_cannot_make_a_name_of_another_issuer() -> None:
    trusted = by(lambda name: name.upper(), reserved=("PARTNER:",))
    assert judged(ours(sub="partner:alice"), trusted) is FailureReason.NO_PRINCIPAL
    assert identity(ours(sub="x"), trusted).principal == "User:X"


def test_the_authorization_id_is_compared_with_the_name_in_the_token() -> None:
    """As in Kafka; what the rules make of it is the proxy's own matter."""
    server = OAuthBearerServer(issuers=by(without_session), wall_clock=lambda: WALL)
    message = client_initial_response(ours(sub="app/session-1"))
    for authorization_id, accepted in ((b"app/session-1", True), (b"app", False)):
        asked = message.replace(b"n,,", b"n,a=" + authorization_id + b",", 1)
        step = server.exchange().step(asked, NOW)
        assert isinstance(step, Success if accepted else Failure)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ({"account": {"name": "carol"}}, "carol"),
        ({"account.name": "dave", "account": {"name": "carol"}}, "dave"),
        ({"account": {"name": ["carol"]}}, None),
        ({"account": ["carol"]}, None),
        ({"account": "carol"}, None),
        ({"account": {"name": {"name": "carol"}}}, None),
        ({"account": None}, None),
        ({}, None),
    ],
)
def test_the_name_may_be_at_a_path(said: dict[str, Any], name: str | None) -> None:
    trusted = only(cache_of(OUR_KEY), replace(SETTINGS, sub_claim_name="account.name"))
    bearer = token(claims() | said)
    if name is None:
        assert judged(bearer, trusted) is FailureReason.BAD_CLAIMS
    else:
        assert identity(bearer, trusted).principal == f"User:{name}"


def test_what_the_rules_make_is_shown() -> None:
    findings = explain_token(ours(sub="app/session-1"), by(without_session), WALL, NOW)
    assert [one.found for one in findings if one.part == "sub"] == ["app/session-1: User:app"]
