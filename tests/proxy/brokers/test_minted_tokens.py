"""Tokens that the proxy signs for its clients' logins to brokers."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from proxy.brokers import signed_tokens
from proxy.brokers.client_identity import ClientLogins, ClientRefused
from proxy.brokers.signed_tokens import read_jwks
from proxy.config.listener import Listener
from sasl.login import Login, LoginError
from sasl.messages import authenticate_response, handshake_response
from tests.support.client_identity import ACCESS, BROKER, client, listener_with

LIFETIME_S = 600


def write(
    path: Path,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    encryption: KeySerializationEncryption | None = None,
) -> None:
    key = key or ec.generate_private_key(ec.SECP256R1())
    encryption = encryption or NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


def settings(directory: Path, /, **changes: Any) -> Listener:
    given = {
        "signing_key_files": ["one.pem", "two.pem"],
        "token_issuer": "https://proxy.test",
        "token_audience": "cluster-id",
        "super_users": ["User:admin"],
        "allow_prefixes": ["User:"],
    }
    return listener_with(directory, "minted-token", given | changes)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two keys, which are read for each login."""
    monkeypatch.setattr(signed_tokens, "LOOK_EVERY", 0.0)
    for name in ("one.pem", "two.pem"):
        write(tmp_path / name)
    return tmp_path


def minted(logins: ClientLogins, principal: str = "User:alice") -> str:
    first = asyncio.run(logins.exchange(client(principal), BROKER)).first()
    return first.partition(b"auth=Bearer ")[2].rstrip(b"\x01").decode()


def verified(token: str, published: dict[str, Any]) -> dict[str, Any]:
    """The claims, checked as a broker does with the published keys."""
    kid = jwt.get_unverified_header(token)["kid"]
    (key,) = (one for one in jwt.PyJWKSet.from_dict(published).keys if one.key_id == kid)
    claims: dict[str, Any] = jwt.decode(
        token, key, algorithms=["ES256"], audience="cluster-id", issuer="https://proxy.test"
    )
    return claims


def test_a_token_names_the_client_and_verifies_by_the_published_keys(keys: Path) -> None:
    logins = ClientLogins(settings(keys), ACCESS)
    before = int(time.time())
    claims = verified(minted(logins, "User:a,b=é"), read_jwks([keys / "one.pem"]))
    assert claims.keys() == {"iss", "aud", "sub", "iat", "exp"}
    assert (claims["sub"], claims["exp"] - claims["iat"]) == ("a,b=é", LIFETIME_S)
    assert before <= claims["iat"] <= time.time()


def test_a_principals_token_is_signed_again_after_a_tenth_of_its_life(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(signed_tokens, "monotonic", lambda: now)
    monkeypatch.setattr(signed_tokens, "MAX_KEPT", 2)
    logins = ClientLogins(settings(keys), ACCESS)
    first = minted(logins)
    now += LIFETIME_S / 10 - 1
    assert minted(logins) == first
    assert verified(minted(logins, "User:bob"), read_jwks([keys / "one.pem"]))["sub"] == "bob"
    now += 1
    second = minted(logins)
    assert second != first
    assert minted(logins) == second
    minted(logins, "User:carol")
    assert minted(logins) != second  # all were dropped for hers


def test_what_is_published_holds_no_private_key(keys: Path) -> None:
    published = read_jwks([keys / "one.pem", keys / "two.pem", keys / "one.pem"])["keys"]
    assert len(published) == 2
    for one in published:
        assert one.keys() == {"kty", "crv", "x", "y", "kid", "use", "alg"}


def test_keys_rotate_with_overlap(keys: Path) -> None:
    """Both are published; a token by the old key verifies while the new one signs."""
    published = read_jwks([keys / "one.pem", keys / "two.pem"])
    old = minted(ClientLogins(settings(keys), ACCESS))
    swapped = settings(keys, signing_key_files=["two.pem", "one.pem"])
    new = minted(ClientLogins(swapped, ACCESS))
    kids = [jwt.get_unverified_header(token)["kid"] for token in (old, new)]
    assert kids == [one["kid"] for one in published["keys"]]
    assert verified(old, published)["sub"] == verified(new, published)["sub"] == "alice"


def test_the_keys_are_published_in_a_file_before_the_first_login(keys: Path) -> None:
    logins = ClientLogins(settings(keys, jwks_file="jwks.json"), ACCESS)
    assert json.loads((keys / "jwks.json").read_text()) == read_jwks(
        [keys / "one.pem", keys / "two.pem"]
    )
    write(keys / "one.pem")
    token = minted(logins)
    assert verified(token, json.loads((keys / "jwks.json").read_text()))["sub"] == "alice"
    assert sorted(path.name for path in keys.iterdir()) == ["jwks.json", "one.pem", "two.pem"]


def test_what_cannot_be_published_signs_nothing(keys: Path) -> None:
    """Brokers could not verify it, and would know no reason."""
    logins = ClientLogins(settings(keys, jwks_file="none/jwks.json"), ACCESS)
    with pytest.raises(ClientRefused, match="cannot be written"):
        minted(logins)


@pytest.mark.parametrize("fault", ["missing", "empty", "half", "P-384", "RSA-1024", "encrypted"])
def test_a_key_that_is_missing_weak_or_half_written_signs_nothing(keys: Path, fault: str) -> None:
    """Nor does the key that was in the file before; the proxy's identity is no substitute."""
    logins = ClientLogins(settings(keys), ACCESS)
    minted(logins)
    path = keys / "one.pem"
    match fault:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "half":
            path.write_bytes(path.read_bytes()[:100])
        case "P-384":
            write(path, ec.generate_private_key(ec.SECP384R1()))
        case "RSA-1024":
            write(path, rsa.generate_private_key(65_537, 1_024))  # noqa: S505 - weak on purpose
        case "encrypted":
            write(path, encryption=BestAvailableEncryption(b"secret"))
    with pytest.raises(ClientRefused) as refused:
        minted(logins)
    assert "one.pem" in refused.value.reason
    with pytest.raises(LoginError):
        read_jwks([path])


@pytest.mark.parametrize(
    "name",
    [
        *(" admin", "admin ", "admin\t", "\nadmin", "admin\0", "admin\u2003"),
        *("a\0b", "a\ud800", "a\u202eb"),
    ],
)
def test_a_name_that_brokers_json_or_logs_could_change_is_refused(keys: Path, name: str) -> None:
    """Kafka trims `sub`: the client would be a super user."""
    with pytest.raises(ClientRefused):
        minted(ClientLogins(settings(keys), ACCESS), f"User:{name}")


def test_a_broker_that_announces_no_end_is_refused(keys: Path) -> None:
    """It takes the token for expired, and closes the connection at the next request."""
    logins = ClientLogins(settings(keys), ACCESS)
    for lifetime_ms in (0, 5_000):
        login = Login(asyncio.run(logins.exchange(client("User:alice"), BROKER)), 2)
        login.begin()
        login.answered(handshake_response(0, ("OAUTHBEARER",)))
        body = authenticate_response(
            2, error_code=0, error_message="", auth_bytes=b"", session_lifetime_ms=lifetime_ms
        )
        if lifetime_ms:
            login.answered(body)
        else:
            with pytest.raises(LoginError, match="expired"):
                login.answered(body)
