"""Tokens for an assertion in place of a client secret (RFC 7521, RFC 7523), as Kafka requests them.

The assertion is the client's authentication (section 2.2; KIP-1258), or the grant itself (section
2.1; KIP-1139). It is read from a file, or signed with a private key: its claims are those of the
settings, then those of the template, then the times, and later ones override earlier ones.
"""

import asyncio
import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from proxy.brokers.minted_tokens import read_private_key
from proxy.brokers.token_source import TokenEndpoint, read_bounded, read_secret
from proxy.config.security import JWT_BEARER, UpstreamSasl
from sasl.jwks import MIN_RSA_BITS
from sasl.login import LoginError
from sasl.token_cache import read_token
from sasl.untrusted import read_object

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
