"""Users, signing keys, tokens, and exchanges of SASL mechanisms for tests."""

import base64
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm, get_default_algorithms

from sasl.credentials import MIN_ITERATIONS, ScramCredential, ScramMechanism, ShapeShares
from sasl.jwks import KeyCache, KeyCacheSettings
from sasl.jwt_claims import OAuthBearerSettings
from sasl.mechanism import Challenge, Failure, FailureReason, Step, Success
from sasl.oauthbearer import OAuthBearerServer, OAuthBearerServerExchange
from sasl.scram import ScramServer, ScramServerExchange
from sasl.scram_client import ScramClientExchange

NOW = 5_000.0
"""Monotonic seconds."""
WALL = 1_700_000_000.0
"""Seconds since 1970."""

FAKE_SECRET = b"sixteen bytes or more of secret"
SETTINGS = OAuthBearerSettings(
    expected_audience=frozenset({"kafka", "kafka-dev"}), expected_issuer="https://issuer.test"
)

SHA_256, SHA_512 = ScramMechanism
BAD_CREDENTIALS = Failure(reason=FailureReason.BAD_CREDENTIALS)


class Users:
    """Verifiers in a dictionary; the cheapest iterations, for tests are many."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, ScramMechanism], ScramCredential] = {}

    def add(self, user: str, password: str, mechanism: ScramMechanism) -> None:
        self._found[user, mechanism] = ScramCredential.from_password(
            mechanism, password, b"a salt", MIN_ITERATIONS
        )

    def put(
        self, user: str, mechanism: ScramMechanism, iterations: int, salt: bytes = b"a salt"
    ) -> None:
        """A user whose password nobody knows: no work."""
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
    client = ScramClientExchange(mechanism=mechanism, username=user, password=password)
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
    """Good claims; a change to None leaves the claim out."""
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
    """A signed token; a header member of None is left out."""
    key = key or rsa_key()
    algorithm = algorithm or key.algorithm
    members: dict[str, object] = {"alg": algorithm, "kid": key.kid} | header
    encoded = json.dumps({name: value for name, value in members.items() if value is not None})
    body = payload if isinstance(payload, bytes) else json.dumps(payload or claims()).encode()
    return sign(encoded.encode(), body, key, algorithm)


def oauth_exchange(
    keys: KeyCache | None = None, settings: OAuthBearerSettings = SETTINGS
) -> OAuthBearerServerExchange:
    return OAuthBearerServer(
        settings=settings, keys=keys or cache_of(*all_keys()), wall_clock=lambda: WALL
    ).exchange()
