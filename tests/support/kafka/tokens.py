"""An identity provider for tests: two keys, their JWKS file, and tokens good and bad."""

import base64
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER = "https://issuer.test"
AUDIENCE = "kafka"

RSA_KID = "rsa-1"
EC_KID = "ec-1"


class Issuer:
    """Mints tokens with an RSA key (RS256) and an EC key (ES256)."""

    def __init__(self) -> None:
        self._rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._ec = ec.generate_private_key(ec.SECP256R1())
        self._stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)

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
        """The keys as the file that `sasl.oauthbearer.jwks.endpoint.url` names."""
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
        """A token that expires in `lifetime` seconds; a claim given as None is left out.

        `more` are claims whose names are no identifiers, or made up by a program.
        """
        now = int(time.time())
        # An expired token was issued before it expired: the other way round is another fault.
        issued_at = now + min(0, lifetime) - 60
        payload: dict[str, Any] = {"iss": ISSUER, "aud": AUDIENCE, "sub": sub}
        payload |= {"iat": issued_at, "exp": now + lifetime}
        payload.update({**claims, **(more or {})})
        present = {name: value for name, value in payload.items() if value is not None}
        header = {**({"kid": kid} if kid else {}), **(headers or {})}
        signing_key = self._ec if algorithm.startswith("ES") else self._rsa
        return jwt.encode(present, signing_key, algorithm=algorithm, headers=header)

    def mint_by_stranger(self, sub: str = "alice") -> str:
        """Signed with a key that nobody published, under a published kid."""
        return jwt.encode(
            self._payload(sub), self._stranger, algorithm="RS256", headers={"kid": RSA_KID}
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
    """The claims of another subject under the old signature."""
    header, _, signature = token.split(".")
    claims = jwt.decode(token, options={"verify_signature": False})
    claims["sub"] = "admin"
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()
    return f"{header}.{body}.{signature}"
