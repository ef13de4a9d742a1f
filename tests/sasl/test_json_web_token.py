import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from hypothesis import given, settings
from hypothesis import strategies as st

from sasl.json_web_token import AcceptedToken
from sasl.jwks import KeyMissing
from sasl.mechanism import FailureReason
from tests.support.sasl import (
    WALL,
    all_keys,
    b64url,
    cache_of,
    claims,
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


def test_a_good_token_names_its_principal_and_its_end() -> None:
    accepted = judge(GOOD_TOKEN)
    assert isinstance(accepted, AcceptedToken)
    assert (accepted.claims.subject, accepted.claims.expires_at) == ("alice", WALL + 300)


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
    """Signed with a key that the provider does not know, whatever the header says of it."""
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
    # Symmetric algorithms, with what an attacker knows as the secret.
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
    "alg twice": (
        sign(b'{"alg":"none","alg":"RS256"}', b"{}", rsa_key(), "RS256"),
        MALFORMED,
    ),
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
