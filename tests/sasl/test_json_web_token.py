import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st

from sasl.identity import MAX_GROUP_CHARACTERS, MAX_PRINCIPAL_CHARACTERS, Identity
from sasl.json_web_token import MAX_UNVERIFIED_BYTES, AcceptedToken, TrustedIssuer, TrustedIssuers
from sasl.jwks import KeyCache, KeyMissing
from sasl.mechanism import Challenge, Failure, FailureReason, KeysNeeded, Step, Success
from sasl.messages import client_initial_response
from sasl.oauthbearer import OAuthBearerServer
from sasl.session import Session
from sasl.states import Authenticated, Enforcement, Terms
from sasl.token_explanation import explain_token
from tests.support.sasl import (
    NOW,
    SETTINGS,
    WALL,
    Key,
    all_keys,
    b64url,
    cache_of,
    claims,
    document,
    ec_key,
    ed_key,
    judged,
    only,
    rsa_key,
    sign,
    token,
)

KEYS = cache_of(*all_keys())
GOOD_TOKEN = token()


def judge(bearer: str) -> AcceptedToken | FailureReason | KeyMissing:
    return judged(bearer, only(KEYS))


def forged(header: object, payload: object = None, signature: bytes = b"") -> str:
    members = [json.dumps(part).encode() for part in (header, payload or claims())]
    return ".".join(b64url(part) for part in [*members, signature])


def public_pem() -> bytes:
    key = rsa_key().private.public_key()
    pem: bytes = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return pem


def hmac_token(secret: bytes, **header: object) -> str:
    head = b64url(json.dumps({"alg": "HS256", "kid": "rsa"} | header).encode())
    signed = f"{head}.{b64url(json.dumps(claims()).encode())}"
    return f"{signed}.{b64url(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def foreign(kid: str | None = "rsa", **header: Any) -> str:
    """Signed with a key that the provider does not know, whatever the header claims."""
    return token(key=rsa_key("foreign"), kid=kid, **header)


def respelled(bearer: str) -> str:
    """The same signature with another last character: unused bits of base64url."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return bearer[:-1] + alphabet[alphabet.index(bearer[-1]) + 1]


def with_signature(bearer: str, signature: bytes) -> str:
    return f"{bearer.rpartition('.')[0]}.{b64url(signature)}"


def signature_of(bearer: str) -> bytes:
    return base64.urlsafe_b64decode(bearer.rpartition(".")[2] + "==")


def der_signature(bearer: str) -> bytes:
    raw = signature_of(bearer)
    return encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))


EC_TOKEN = token(key=ec_key())
ED_TOKEN = token(key=ed_key())
HEADER, PAYLOAD, SIGNATURE = GOOD_TOKEN.split(".")

FORBIDDEN = FailureReason.FORBIDDEN_ALGORITHM
BAD_SIGNATURE = FailureReason.BAD_SIGNATURE
UNKNOWN_KID, NO_FIT = KeyMissing.UNKNOWN_KID, KeyMissing.NO_FIT
BAD_CLAIMS = FailureReason.BAD_CLAIMS
MALFORMED = FailureReason.BAD_MESSAGE

NOT_ALGORITHMS: list[object] = [
    *("none", "None", "NONE", "nOnE", " none", "", "RS256 ", "rs256", None, 0, [], {}, True)
]

ATTACKS: dict[str, tuple[str, FailureReason | KeyMissing]] = {
    # No signature, in all spellings.
    **{
        f"alg {name!r}": (forged({"alg": name, "kid": "rsa"}, signature=b"x"), FORBIDDEN)
        for name in NOT_ALGORITHMS
    },
    "no alg": (forged({"kid": "rsa"}, signature=b"x"), FORBIDDEN),
    "none, empty signature": (forged({"alg": "none"}), MALFORMED),
    "stripped signature": (f"{HEADER}.{PAYLOAD}.", MALFORMED),
    "two parts": (f"{HEADER}.{PAYLOAD}", MALFORMED),
    # Symmetric algorithms, with a secret that an attacker knows.
    "HS256 with the public key": (hmac_token(public_pem()), FORBIDDEN),
    "HS256 with the modulus": (hmac_token(rsa_key().jwk()["n"].encode()), FORBIDDEN),
    "HS256 with no secret": (hmac_token(b""), FORBIDDEN),
    "HS512": (forged({"alg": "HS512", "kid": "rsa"}, signature=b"x" * 64), FORBIDDEN),
    "a key type that has no algorithm": (hmac_token(b"", alg="ES256K"), FORBIDDEN),
    "HMAC under an RSA name": (hmac_token(public_pem(), alg="RS256"), BAD_SIGNATURE),
    # Somebody else's key.
    "unknown key under a known kid": (foreign(), BAD_SIGNATURE),
    "unknown key without kid": (foreign(kid=None), BAD_SIGNATURE),
    "unknown kid": (foreign(kid="foreign"), UNKNOWN_KID),
    "embedded jwk": (foreign(jwk=rsa_key("foreign").jwk()), BAD_SIGNATURE),
    "jku": (foreign(jku="https://attacker.test/jwks"), BAD_SIGNATURE),
    "x5u": (foreign(x5u="https://attacker.test/cert"), BAD_SIGNATURE),
    "x5c": (foreign(x5c=["MIIB"]), BAD_SIGNATURE),
    # kid as a way into something else.
    "kid as a path": (foreign(kid="../../../../dev/null"), UNKNOWN_KID),
    "kid as SQL": (foreign(kid="' OR 1=1 --"), UNKNOWN_KID),
    "kid as a URL": (foreign(kid="https://attacker.test/key"), UNKNOWN_KID),
    "kid with a blank": (token(kid="rsa "), UNKNOWN_KID),
    "kid as number": (token(kid=1), MALFORMED),
    "kid as list": (token(kid=["rsa"]), MALFORMED),
    "kid as object": (token(kid={}), MALFORMED),
    # The right key for the wrong algorithm.
    "RSA key, EC algorithm": (forged({"alg": "ES256", "kid": "rsa"}, None, b"x" * 64), NO_FIT),
    "EC key, RSA algorithm": (forged({"alg": "RS256", "kid": "ec"}, None, b"x" * 64), NO_FIT),
    "EC key, EdDSA": (forged({"alg": "EdDSA", "kid": "ec"}, None, b"x" * 64), NO_FIT),
    "P-256 key, ES384": (token(key=ec_key(), alg="ES384"), NO_FIT),
    "P-384 key, ES256": (token(key=ec_key("ec384", "ES384"), alg="ES256"), NO_FIT),
    "PKCS#1 signature called PSS": (token(alg="PS256"), BAD_SIGNATURE),
    "SHA-256 signature called SHA-512": (token(alg="RS512"), BAD_SIGNATURE),
    # Signatures.
    "truncated RSA": (with_signature(GOOD_TOKEN, signature_of(GOOD_TOKEN)[:-1]), BAD_SIGNATURE),
    "lengthened RSA": (with_signature(GOOD_TOKEN, signature_of(GOOD_TOKEN) + b"0"), BAD_SIGNATURE),
    "zero RSA": (with_signature(GOOD_TOKEN, bytes(256)), BAD_SIGNATURE),
    "one RSA": (with_signature(GOOD_TOKEN, bytes(255) + b"\1"), BAD_SIGNATURE),
    "truncated EC": (with_signature(EC_TOKEN, signature_of(EC_TOKEN)[:-1]), BAD_SIGNATURE),
    "zero EC": (with_signature(EC_TOKEN, bytes(64)), BAD_SIGNATURE),
    "DER instead of raw EC": (with_signature(EC_TOKEN, der_signature(EC_TOKEN)), BAD_SIGNATURE),
    "truncated EdDSA": (with_signature(ED_TOKEN, signature_of(ED_TOKEN)[:-1]), BAD_SIGNATURE),
    "zero EdDSA": (with_signature(ED_TOKEN, bytes(64)), BAD_SIGNATURE),
    "respelled signature": (respelled(GOOD_TOKEN), MALFORMED),
    # The content of one token under the signature of another.
    "another payload": (
        f"{HEADER}.{b64url(json.dumps(claims(sub='admin')).encode())}.{SIGNATURE}",
        BAD_SIGNATURE,
    ),
    # The shape.
    "padding": (GOOD_TOKEN + "=", MALFORMED),
    "standard base64": (GOOD_TOKEN + "+/", MALFORMED),
    "four parts": (GOOD_TOKEN + ".x", MALFORMED),
    "five parts, encrypted": (f"{HEADER}.a.b.c.d", MALFORMED),
    "no header": (f".{PAYLOAD}.{SIGNATURE}", MALFORMED),
    "just dots": ("..", MALFORMED),
    "impossible length": (f"{HEADER}.{PAYLOAD}.A", MALFORMED),
    "header no JSON": (sign(b"RS256", b"{}", rsa_key(), "RS256"), MALFORMED),
    "header no object": (sign(b'["RS256"]', b"{}", rsa_key(), "RS256"), MALFORMED),
    "header not UTF-8": (sign(b'{"alg":"\xff"}', b"{}", rsa_key(), "RS256"), MALFORMED),
    "alg twice": (sign(b'{"alg":"none","alg":"RS256"}', b"{}", rsa_key(), "RS256"), MALFORMED),
    "nested header": (f"{b64url(b'[' * 20_000)}.{PAYLOAD}.{SIGNATURE}", MALFORMED),
    "huge header": (f"{'A' * 400_000}.{PAYLOAD}.{SIGNATURE}", MALFORMED),
    # Extensions that must be understood.
    "crit": (token(crit=["exp"], exp=1), MALFORMED),
    "unknown crit": (token(crit=["urn:x"]), MALFORMED),
    "empty crit": (token(crit=[]), MALFORMED),
    "unencoded payload": (token(crit=["b64"], b64=False), MALFORMED),
    # Payloads, rightly signed.
    "payload a list": (token(b"[]"), BAD_CLAIMS),
    "payload no JSON": (token(b"alice"), BAD_CLAIMS),
    "payload not UTF-8": (token(b'{"sub":"\xff"}'), BAD_CLAIMS),
    "payload UTF-16": (token(json.dumps(claims()).encode("utf-16")), BAD_CLAIMS),
    "claim twice": (token(json.dumps(claims())[:-1].encode() + b',"sub":"admin"}'), BAD_CLAIMS),
    "deep payload": (token(b'{"a":' * 50_000 + b"1" + b"}" * 50_000), BAD_CLAIMS),
    "NaN": (token(json.dumps(claims(exp=float("nan"))).encode()), BAD_CLAIMS),
    "Infinity": (token(json.dumps(claims(exp=float("inf"))).encode()), BAD_CLAIMS),
    "infinite by exponent": (
        token(json.dumps(claims()).replace(str(WALL + 300), "1e999").encode()),
        BAD_CLAIMS,
    ),
    "endless number": (
        token(json.dumps(claims()).replace(str(WALL + 300), "9" * 100_000).encode()),
        BAD_CLAIMS,
    ),
}


@pytest.mark.parametrize(("bearer", "verdict"), ATTACKS.values(), ids=ATTACKS.keys())
def test_attacks(bearer: str, verdict: FailureReason | KeyMissing) -> None:
    assert judge(bearer) is verdict


@given(bearer=st.sampled_from([GOOD_TOKEN, EC_TOKEN, ED_TOKEN]), position=st.integers(0, 10_000))
@settings(deadline=None)
def test_no_flipped_bit_of_a_token_lets_in(bearer: str, position: int) -> None:
    bent = bytearray(bearer.encode())
    position %= 8 * len(bent)
    bent[position // 8] ^= 1 << position % 8
    assert not isinstance(judge(bent.decode("latin-1")), AcceptedToken)


OURS, PARTNERS = "https://issuer.test", "https://partner.test"
OUR_KEY = rsa_key()
PARTNERS_KEY = Key(OUR_KEY.kid, "RS256", rsa_key("other").private)
"""Another key under the same id."""
TERMS = Terms(enforcement=Enforcement.ENFORCE, max_reauth_ms=3_600_000)


def issuers(ours: KeyCache | None = None, partners: KeyCache | None = None) -> TrustedIssuers:
    """Ours without a prefix, and a partner's, whose keys are under the same id."""
    settings = SETTINGS._replace(groups_claim_name="groups")
    return TrustedIssuers(
        [
            TrustedIssuer(
                name=OURS,
                keys=ours or cache_of(OUR_KEY),
                settings=settings._replace(reserved=("partner:",)),
            ),
            TrustedIssuer(
                name=PARTNERS,
                keys=partners or cache_of(PARTNERS_KEY),
                settings=settings._replace(
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
    """Invented key ids for one issuer cannot use up the fetches of the other."""
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
    return only(cache_of(OUR_KEY), SETTINGS._replace(name_of=rename, **more))


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
    trusted = only(cache_of(OUR_KEY), SETTINGS._replace(sub_claim_name="account.name"))
    bearer = token(claims() | said)
    if name is None:
        assert judged(bearer, trusted) is FailureReason.BAD_CLAIMS
    else:
        assert identity(bearer, trusted).principal == f"User:{name}"


def test_what_the_rules_make_is_shown() -> None:
    findings = explain_token(ours(sub="app/session-1"), by(without_session), WALL, NOW)
    assert [one.found for one in findings if one.part == "sub"] == ["app/session-1: User:app"]
