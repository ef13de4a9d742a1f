"""Tokens that the proxy signs for its clients' logins to brokers (`minted-token`).

The files are EC keys on P-256 in PEM. The first one signs; all of them are published, so that a new
key can be published before it signs. `kid` is the key's thumbprint (RFC 7638).
"""

import json
import os
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.utils import base64url_encode

from proxy import config
from proxy.brokers.access import LOOK_EVERY
from proxy.brokers.token_source import read_bounded, read_in_time
from sasl.login import ClientExchange, LoginError, OAuthBearerClient

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
        if self._key is None or monotonic() - self._read_at >= LOOK_EVERY:
            self._key = None  # a key that is gone signs nothing
            key = await read_in_time(self._read, "the signing key")
            self._key, self._read_at = key, monotonic()
        else:
            key = self._key
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
