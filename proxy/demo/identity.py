"""Identity provider of the demo: one key, signed tokens, a JWKS file."""

import json
import time
from pathlib import Path
from typing import Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

ISSUER: Final = "https://identity.demo"
AUDIENCE: Final = "kafka"
_KEY_ID: Final = "demo"


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key, and write it to a file that only its owner can read."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def write_jwks(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the public half of a key (RFC 7517)."""
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    path.write_text(json.dumps({"keys": [{**public, "kid": _KEY_ID, "use": "sig"}]}))


def token(key_file: Path, subject: str, lifetime_seconds: float) -> tuple[str, float]:
    """Sign a token with the key of a file; return it and its expiry in Unix time."""
    key = load_pem_private_key(key_file.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AssertionError("written by write_key")
    now = time.time()
    expires = now + lifetime_seconds
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": expires}
    return jwt.encode(claims, key, algorithm="ES256", headers={"kid": _KEY_ID}), expires
