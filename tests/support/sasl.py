"""Users, signing keys, tokens, an identity provider, and exchanges of SASL mechanisms."""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm, get_default_algorithms

from sasl.credentials import MIN_ITERATIONS, ScramCredential, ScramMechanism, ShapeShares
from sasl.identity import Identity
from sasl.json_web_token import (
    AcceptedToken,
    TrustedIssuer,
    TrustedIssuers,
    judge_token,
    parse_token,
)
from sasl.jwks import KeyCache, KeyCacheSettings, KeyMissing
from sasl.jwt_claims import OAuthBearerSettings
from sasl.login import ScramClient
from sasl.mechanism import Challenge, Failure, FailureReason, Step, Success
from sasl.oauthbearer import OAuthBearerServer, OAuthBearerServerExchange
from sasl.scram import ScramServer, ScramServerExchange

NOW = 5_000.0
"""Monotonic seconds."""
WALL = 1_700_000_000.0
"""Seconds since 1970."""

FAKE_SECRET = b"sixteen bytes or more of secret"
SETTINGS = OAuthBearerSettings(
    expected_audience=frozenset({"kafka", "kafka-dev"}), expected_issuer="https://issuer.test"
)

ALICE = Identity("User:alice")
"""Identity of a client with a token of `token()`."""

SHA_256, SHA_512 = ScramMechanism
BAD_CREDENTIALS = Failure(reason=FailureReason.BAD_CREDENTIALS)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
"""Any value of JSON."""


class Users:
    """Verifiers in a dictionary, with the minimum of iterations."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    def add(self, user: str, password: str, mechanism: ScramMechanism) -> None:
        self._found[user, mechanism] = ScramCredential.from_password(
            mechanism, password, b"a salt", MIN_ITERATIONS
        )

    def put(
        self, user: str, mechanism: ScramMechanism, iterations: int, salt: bytes = b"a salt"
    ) -> None:
        """Add a user with an unknown password, without hashing."""
        key = bytes(mechanism.key_bytes)
        self._found[user, mechanism] = ScramCredential(
            salt=salt, stored_key=key, server_key=key, iterations=iterations
        )

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._found.get((user, mechanism))

    def shape_shares(self, mechanism: ScramMechanism) -> ShapeShares:
        return ShapeShares.of(
            credential for (_, one), credential in self._found.items() if one == mechanism
        )


@cache
def alice() -> Users:
    users = Users()
    for mechanism in ScramMechanism:
        users.add("alice", "secret", mechanism)
    return users


def scram_exchange(
    users: Users | None = None, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256
) -> ScramServerExchange:
    return ScramServer(
        mechanism=mechanism,
        credentials=users or alice(),
        fake_secret=FAKE_SECRET,
        server_nonce=lambda: "server",
    ).exchange()


def challenge(step: Step) -> bytes:
    assert isinstance(step, Challenge), step
    return step.data


def login(
    exchange: ScramServerExchange,
    user: str = "alice",
    password: str = "secret",  # noqa: S107
    mechanism: ScramMechanism = SHA_256,
) -> Step:
    client = ScramClient(mechanism=mechanism, username=user, password=password)
    final = client.final(challenge(exchange.step(client.first(), NOW)))
    step = exchange.step(final, NOW)
    if isinstance(step, Success):
        client.verify(step.data)
    return step


@dataclass(frozen=True, slots=True)
class Key:
    kid: str
    algorithm: str
    private: Any

    def jwk(self, **members: object) -> dict[str, Any]:
        public = self.private.public_key()
        if isinstance(public, rsa.RSAPublicKey):
            jwk = RSAAlgorithm.to_jwk(public, as_dict=True)
        elif isinstance(public, ec.EllipticCurvePublicKey):
            jwk = ECAlgorithm.to_jwk(public, as_dict=True)
        else:
            jwk = OKPAlgorithm.to_jwk(public, as_dict=True)
        jwk.pop("key_ops", None)
        return jwk | {"kid": self.kid} | members


@cache
def rsa_key(kid: str = "rsa", bits: int = 2048) -> Key:
    return Key(kid, "RS256", rsa.generate_private_key(public_exponent=65537, key_size=bits))


@cache
def ec_key(kid: str = "ec", algorithm: str = "ES256") -> Key:
    curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
    return Key(kid, algorithm, ec.generate_private_key(curve))


@cache
def ed_key(kid: str = "ed") -> Key:
    return Key(kid, "EdDSA", ed25519.Ed25519PrivateKey.generate())


@cache
def ed448_key(kid: str = "ed448") -> Key:
    return Key(kid, "EdDSA", ed448.Ed448PrivateKey.generate())


def document(*jwks: object) -> bytes:
    return json.dumps({"keys": jwks}).encode()


def all_keys() -> list[Key]:
    return [
        rsa_key(),
        ec_key(),
        ec_key("ec384", "ES384"),
        ec_key("ec521", "ES512"),
        ed_key(),
        ed448_key(),
    ]


def cache_of(*keys: Key, settings: KeyCacheSettings | None = None, now: float = NOW) -> KeyCache:
    cache = KeyCache(settings)
    assert cache.loaded(document(*(key.jwk() for key in keys)), now)
    return cache


def claims(**changes: object) -> dict[str, Any]:
    """Valid claims with changes; None removes a claim."""
    good = {
        "iss": "https://issuer.test",
        "aud": "kafka",
        "sub": "alice",
        "iat": WALL - 10,
        "exp": WALL + 300,
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(header: bytes, payload: bytes, key: Key, algorithm: str) -> str:
    signed = f"{b64url(header)}.{b64url(payload)}"
    signature = get_default_algorithms()[algorithm].sign(signed.encode(), key.private)
    return f"{signed}.{b64url(signature)}"


def token(
    payload: dict[str, Any] | bytes | None = None,
    key: Key | None = None,
    algorithm: str | None = None,
    **header: Any,
) -> str:
    """A signed token; None removes a header member."""
    key = key or rsa_key()
    algorithm = algorithm or key.algorithm
    members: dict[str, object] = {"alg": algorithm, "kid": key.kid} | header
    encoded = json.dumps({name: value for name, value in members.items() if value is not None})
    body = payload if isinstance(payload, bytes) else json.dumps(payload or claims()).encode()
    return sign(encoded.encode(), body, key, algorithm)


def only(keys: KeyCache, settings: OAuthBearerSettings = SETTINGS) -> TrustedIssuers:
    """A listener's only issuer."""
    return TrustedIssuers([TrustedIssuer(keys=keys, settings=settings)])


def judged(
    bearer: str, issuers: TrustedIssuers, now: float = NOW
) -> AcceptedToken | FailureReason | KeyMissing:
    """Verdict of a listener with these issuers on a token."""
    parsed = parse_token(bearer)
    issuer = parsed if isinstance(parsed, FailureReason) else issuers.issuer_of(parsed)
    if isinstance(issuer, FailureReason) or isinstance(parsed, FailureReason):
        assert isinstance(issuer, FailureReason)
        return issuer
    return judge_token(parsed, issuer, WALL, now)


def oauth_exchange(
    keys: KeyCache | None = None, settings: OAuthBearerSettings = SETTINGS
) -> OAuthBearerServerExchange:
    return OAuthBearerServer(
        issuers=only(keys or cache_of(*all_keys()), settings), wall_clock=lambda: WALL
    ).exchange()


# An identity provider: two keys, their JWKS file, valid and invalid tokens

ISSUER = "https://issuer.test"
AUDIENCE = "kafka"

RSA_KID = "rsa-1"
EC_KID = "ec-1"


class Issuer:
    """Mints tokens with an RSA key (RS256) and an EC key (ES256)."""

    def __init__(self) -> None:
        self._rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._ec = ec.generate_private_key(ec.SECP256R1())
        self._wrong_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def jwks(self) -> dict[str, Any]:
        """The public keys (RFC 7517)."""
        rsa_key = jwt.algorithms.RSAAlgorithm.to_jwk(self._rsa.public_key(), as_dict=True)
        ec_key = jwt.algorithms.ECAlgorithm.to_jwk(self._ec.public_key(), as_dict=True)
        common = {"use": "sig"}
        return {
            "keys": [
                {**rsa_key, **common, "kid": RSA_KID, "alg": "RS256"},
                {**ec_key, **common, "kid": EC_KID, "alg": "ES256"},
            ]
        }

    def write_jwks(self, path: Path) -> Path:
        """Write the keys to a file for `sasl.oauthbearer.jwks.endpoint.url`."""
        path.write_text(json.dumps(self.jwks()))
        return path

    def mint(
        self,
        sub: str | None = "alice",
        lifetime: float = 3600,
        *,
        algorithm: str = "RS256",
        kid: str | None = RSA_KID,
        headers: dict[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """A token that expires in `lifetime` seconds; None removes a claim.

        `more` are claims whose names are no identifiers, or made up by a program.
        """
        now = int(time.time())
        # A token must have been issued before it expired.
        issued_at = now + min(0, lifetime) - 60
        payload: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": sub}
        payload |= {"iat": issued_at, "exp": now + lifetime}
        payload.update({**claims, **(more or {})})
        present = {name: value for name, value in payload.items() if value is not None}
        header = {**({"kid": kid} if kid else {}), **(headers or {})}
        signing_key = self._ec if algorithm.startswith("ES") else self._rsa
        return jwt.encode(present, signing_key, algorithm=algorithm, headers=header)

    def mint_with_wrong_key(self, sub: str = "alice") -> str:
        """A token signed with an unpublished key under a published kid."""
        return jwt.encode(
            self._payload(sub), self._wrong_key, algorithm="RS256", headers={"kid": RSA_KID}
        )

    def mint_unsigned(self, sub: str = "alice") -> str:
        """`alg: none` (RFC 8725 section 2.1)."""
        return jwt.encode(self._payload(sub), "", algorithm="none")

    def mint_hmac(self, sub: str = "alice") -> str:
        """HS256 keyed with the public RSA modulus: the key-confusion attack of RFC 8725."""
        modulus = base64.urlsafe_b64decode(self.jwks()["keys"][0]["n"] + "==")
        return jwt.encode(self._payload(sub), modulus, algorithm="HS256", headers={"kid": RSA_KID})

    def _payload(self, sub: str) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": ISSUER, "aud": AUDIENCE, "sub": sub, "iat": now, "exp": now + 3600}


def tampered(token: str) -> str:
    """The token with another subject and the old signature."""
    header, _, signature = token.split(".")
    claims = jwt.decode(token, options={"verify_signature": False})
    claims["sub"] = "admin"
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{header}.{body}.{signature}"
