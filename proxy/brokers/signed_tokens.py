"""Tokens that the proxy signs: for its clients' logins to brokers, and assertions for its own.

The signing keys of `minted-token` are EC keys on P-256 in PEM. The first one signs; all of them are
published, so that a new key can be published before it signs. `kid` is the key's thumbprint (RFC
7638).

An assertion (RFC 7521) is the client's authentication (RFC 7523 section 2.2; KIP-1258), or the
grant itself (section 2.1; KIP-1139), as Kafka requests tokens for them. It is read from a file, or
signed with a private key: its claims are those of the settings, then those of the template, then
the times, and later ones override earlier ones.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Final
from uuid import uuid4

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.utils import base64url_encode

from proxy import config
from proxy.brokers.access import LOOK_EVERY
from proxy.brokers.token_source import TokenEndpoint, read_bounded, read_in_time, read_secret
from proxy.config.security import JWT_BEARER, UpstreamSasl
from sasl.jwks import MIN_RSA_BITS
from sasl.login import ClientExchange, LoginError, OAuthBearerClient
from sasl.token_cache import read_token
from sasl.untrusted import read_object

MAX_KEPT: Final = 4_096
"""Maximum number of tokens that are kept for the next login of their principal."""


def read_private_key(path: Path, password: bytes | None = None) -> PrivateKeyTypes:
    """Return the key in a file in PEM. Raises LoginError, which does not repeat the content."""
    content = read_bounded(path)
    try:
        return load_pem_private_key(content, password)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        suffix = "without a password" if password is None else "with this password"
        raise LoginError(f"{path} holds no private key in PEM {suffix}") from None


class SigningKey:
    """A private key, and its public half as a JWK (RFC 7517)."""

    def __init__(self, path: Path) -> None:
        """Read `path`. Raises LoginError, which does not repeat the file's content."""
        key = read_private_key(path)
        if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
            raise LoginError(f"{path} must hold an EC key on P-256")
        self.private: Final = key
        numbers = key.public_key().public_numbers()
        x, y = (_base64url(one.to_bytes(32)) for one in (numbers.x, numbers.y))
        public = {"crv": "P-256", "kty": "EC", "x": x, "y": y}
        canonical = json.dumps(public, separators=(",", ":"), sort_keys=True)
        self.kid: Final = _base64url(sha256(canonical.encode()).digest())
        self.public: Final = public | {"kid": self.kid, "use": "sig", "alg": "ES256"}


def _base64url(data: bytes) -> str:
    return base64url_encode(data).decode()


def read_jwks(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the JWKS of these private keys. Raises LoginError if one cannot be used."""
    return _jwks(_read_keys(paths))


def _read_keys(paths: Sequence[Path]) -> list[SigningKey]:
    return [SigningKey(path) for path in dict.fromkeys(paths)]


def _jwks(keys: Sequence[SigningKey]) -> dict[str, Any]:
    return {"keys": [key.public for key in keys]}


class MintedLogins:
    """Logins with a token for each principal, which is signed again after a tenth of its life."""

    def __init__(self, settings: config.Listener) -> None:
        self._paths = settings.upstream_identity_signing_key_files
        self._jwks_file = settings.upstream_identity_jwks_file
        self._lifetime = settings.upstream_identity_token_lifetime_ms / 1000
        self._claims = {
            "iss": settings.upstream_identity_token_issuer,
            "aud": settings.upstream_identity_token_audience,
        }
        self._key: SigningKey | None = None
        self._kept: dict[str, tuple[str, float, str]] = {}
        """The last token of each principal, with its `kid` and the time until which it is used."""
        self._read_at = -LOOK_EVERY
        if self._jwks_file is not None:
            try:
                self._read()  # brokers then know the keys before the first login
            except LoginError:
                self._key = None  # the first login reports it

    async def exchange(self, name: str, _broker: tuple[str, int]) -> ClientExchange:
        """Begin a login for `User:name`. Raises LoginError."""
        # Brokers trim `sub` as Java does, so that another name would log in
        if name != name.strip() or min(name[0], name[-1]) <= " ":
            raise LoginError("its name begins or ends with a blank, which brokers drop")
        if not name.isprintable():
            raise LoginError("its name has characters that cannot be printed")
        key = self._key
        if key is None or monotonic() - self._read_at >= LOOK_EVERY:
            self._key = None  # a key that is gone signs nothing
            key = await read_in_time(self._read, "the signing key")
            self._key, self._read_at = key, monotonic()
        kid, until, token = self._kept.get(name, ("", 0.0, ""))
        if kid != key.kid or monotonic() >= until:
            now = int(time.time())
            claims = self._claims | {"sub": name, "iat": now, "exp": now + int(self._lifetime)}
            token = jwt.encode(claims, key.private, algorithm="ES256", headers={"kid": key.kid})
            if name not in self._kept and len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[name] = key.kid, monotonic() + self._lifetime / 10, token
        return OAuthBearerClient(token, expires=True)

    def _read(self) -> SigningKey:
        """Return the key that signs, and publish all of them in the file if they have changed."""
        if self._jwks_file is None:
            return SigningKey(self._paths[0])
        keys = _read_keys(self._paths)
        content = json.dumps(_jwks(keys)).encode()
        try:
            if not (self._jwks_file.exists() and self._jwks_file.read_bytes() == content):
                draft = self._jwks_file.with_name(f".{self._jwks_file.name}.{os.getpid()}")
                draft.write_bytes(content)
                draft.replace(self._jwks_file)
        except OSError as error:
            raise LoginError(f"{self._jwks_file} cannot be written: {error.strerror}") from None
        return keys[0]


_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class AssertedTokens(TokenEndpoint):
    """Tokens from a token endpoint, for an assertion."""

    def __init__(self, settings: UpstreamSasl) -> None:
        """Request tokens as the settings `sasl.oauthbearer.…` describe."""
        url = settings.sasl_oauthbearer_token_endpoint_url
        assert url is not None
        super().__init__(url, settings.sasl_oauthbearer_scope)
        self._settings = settings

    async def _request(self) -> tuple[dict[str, str], dict[str, str]]:
        assertion = await asyncio.to_thread(new_assertion, self._settings, time.time())
        self._secrets = (assertion,)
        if self._settings.sasl_oauthbearer_jwt_retriever_class == JWT_BEARER:
            return {}, {"grant_type": _GRANT, "assertion": assertion}
        client_id = self._settings.sasl_oauthbearer_client_credentials_client_id
        form = {
            "grant_type": "client_credentials",
            "client_assertion_type": _CLIENT_ASSERTION,
            "client_assertion": assertion,
        }
        return {}, form | ({} if client_id is None else {"client_id": client_id})


def new_assertion(settings: UpstreamSasl, wall_now: float) -> str:
    """Return the assertion for a request at `wall_now` in Unix time.

    Reads files. Raises LoginError, which repeats neither the key nor the assertion.
    """
    if (path := settings.sasl_oauthbearer_assertion_file) is not None:
        token = read_token(read_bounded(path))
        if token is None or token.count(".") != 2:
            raise LoginError(f"{path} holds no JWT")
        return token
    path = settings.sasl_oauthbearer_assertion_private_key_file
    assert path is not None
    algorithm = settings.sasl_oauthbearer_assertion_algorithm or "RS256"
    passphrase = settings.sasl_oauthbearer_assertion_private_key_passphrase
    password = None if passphrase is None else read_secret(passphrase, "passphrase").encode()
    key = read_private_key(path, password)
    if algorithm == "RS256":
        fits = isinstance(key, RSAPrivateKey) and key.key_size >= MIN_RSA_BITS
        wanted = f"an RSA key of at least {MIN_RSA_BITS} bits"
    else:
        fits = isinstance(key, EllipticCurvePrivateKey) and isinstance(key.curve, SECP256R1)
        wanted = "an EC key on P-256"
    if not fits:
        raise LoginError(f"{path} must hold {wanted} for {algorithm}")
    header, payload = _template(settings.sasl_oauthbearer_assertion_template_file)
    claims = _claims(settings, payload, int(wall_now))
    header |= {"alg": algorithm, "typ": "JWT"}
    try:
        return jwt.encode(claims, key, algorithm=algorithm, headers=header)  # type: ignore[arg-type]
    except (TypeError, ValueError, jwt.PyJWTError):
        raise LoginError("a claim of the assertion has the wrong type") from None


def _claims(settings: UpstreamSasl, template: dict[str, Any], now: int) -> dict[str, Any]:
    lives = settings.sasl_oauthbearer_assertion_claim_exp_seconds
    before = settings.sasl_oauthbearer_assertion_claim_nbf_seconds
    static = {
        "aud": settings.sasl_oauthbearer_assertion_claim_aud,
        "iss": settings.sasl_oauthbearer_assertion_claim_iss,
        "sub": settings.sasl_oauthbearer_assertion_claim_sub,
    }
    times = {
        "iat": now,
        "exp": now + (300 if lives is None else lives),
        "nbf": now - (60 if before is None else before),
    }
    jti = {"jti": str(uuid4())} if settings.sasl_oauthbearer_assertion_claim_jti_include else {}
    given = {name: value for name, value in static.items() if value is not None}
    return given | template | times | jti


def _template(path: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the claims of a template; empty without one."""
    if path is None:
        return {}, {}
    members = read_object(read_bounded(path))
    header, payload = (members or {}).get("header", {}), (members or {}).get("payload", {})
    if members is None or not isinstance(header, dict) or not isinstance(payload, dict):
        raise LoginError(f"{path} must be a JSON object with the objects header and payload")
    return header, payload
