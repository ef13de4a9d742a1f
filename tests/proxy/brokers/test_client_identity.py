"""Logins to brokers as the client: who may be whom, and with which credentials."""

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

from proxy.brokers import access as access_module
from proxy.brokers import signed_tokens
from proxy.brokers.client_identity import MAX_KEPT, ClientLogins, ClientRefused, MappedLogins
from proxy.brokers.signed_tokens import read_jwks
from proxy.config.listener import Listener
from sasl.login import Login, LoginError
from sasl.messages import authenticate_response, handshake_response
from tests.support.client_identity import ACCESS, BROKER, client, listener_with
from tests.support.tables import table

PASSWORD = "pass,word=1"


def settings(directory: Path, mechanism: str = "PLAIN", **rules: Any) -> Listener:
    given = {
        "directory": str(directory),
        "mechanism": mechanism,
        "super_users": ["User:admin"],
        "allow_prefixes": ["User:"],
    }
    return listener_with(directory, "mapped", given | rules)


def logins(directory: Path, mechanism: str = "PLAIN", **rules: Any) -> ClientLogins:
    return ClientLogins(settings(directory, mechanism, **rules), ACCESS)


def entry(directory: Path, encoded: str, username: str, password: str = PASSWORD) -> None:
    (directory / encoded).mkdir(exist_ok=True)
    (directory / encoded / "username").write_text(username)
    (directory / encoded / "password").write_text(password)


def first(one: ClientLogins, principal: str) -> bytes:
    """The first message of the login."""
    return asyncio.run(one.exchange(client(principal), BROKER)).first()


def plain(username: str, password: str = PASSWORD) -> bytes:
    return f"\0{username}\0{password}".encode()


@pytest.mark.parametrize(("name", "encoded"), table(__file__, "client_entries"))
def test_each_client_has_an_entry_of_its_own(tmp_path: Path, name: str, encoded: str) -> None:
    """No name leads out of the directory, or to the entry of another name."""
    entry(tmp_path, "bob", "bob")
    with pytest.raises(ClientRefused, match="No such file"):
        first(logins(tmp_path), f"User:{name}")
    entry(tmp_path, encoded, "key of it")
    assert first(logins(tmp_path), f"User:{name}") == plain("key of it")


@pytest.mark.parametrize("name", ["", "\ud800", "n" * 4_096])
def test_a_name_that_can_have_no_entry_is_refused(tmp_path: Path, name: str) -> None:
    entry(tmp_path, "%ED%A0%80", "bob")
    with pytest.raises(ClientRefused):
        first(logins(tmp_path), f"User:{name}")


RULES = [
    *table(__file__, "mapping_rules"),
    ({"principal_mapping_rules": "DEFAULT"}, "User:" + "n" * 513, None),
]
"""Rules, the client's principal, and the name of its principal at brokers; None: refused."""


@pytest.mark.parametrize(("rules", "principal", "name"), RULES)
def test_rules(tmp_path: Path, rules: dict[str, Any], principal: str, name: str | None) -> None:
    """There is an entry for everybody: rules alone decide."""
    for one in {*(name for _, _, name in RULES if name), "ANONYMOUS", "alice2", "ALICE"}:
        entry(tmp_path, one, one)
    (tmp_path / ("n" * 200)).mkdir()
    chosen = logins(tmp_path, **rules)
    if name is None:
        with pytest.raises(ClientRefused):
            first(chosen, principal)
    else:
        assert first(chosen, principal) == plain(name)


def test_who_is_not_authenticated_any_more_has_no_login(tmp_path: Path) -> None:
    with pytest.raises(ClientRefused):
        asyncio.run(logins(tmp_path).exchange(None, BROKER))


def test_a_reload_applies_at_the_next_login(tmp_path: Path) -> None:
    """Renewals on open connections included: each login is judged by the current rules."""
    entry(tmp_path, "alice", "alice")
    one = logins(tmp_path)
    assert first(one, "User:alice") == plain("alice")
    one.apply(settings(tmp_path, deny=["User:alice"]))
    with pytest.raises(ClientRefused, match=r"upstream\.identity\.deny"):
        first(one, "User:alice")


def test_replaced_files_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_module, "LOOK_EVERY", 0.0)
    entry(tmp_path, "alice", "alice")
    one = logins(tmp_path)
    assert first(one, "User:alice") == plain("alice")
    entry(tmp_path, "alice", "key 2", "new")
    assert first(one, "User:alice") == plain("key 2", "new")
    (tmp_path / "alice" / "password").unlink()
    with pytest.raises(ClientRefused):
        first(one, "User:alice")


@pytest.mark.parametrize(
    ("username", "password"),
    [
        ("", PASSWORD),
        ("alice", ""),
        ("alice\0bob", PASSWORD),
        ("alice", "a\0b"),
        ("a" * 70_000, ""),
    ],
)
def test_half_written_or_forged_files_are_refused(
    tmp_path: Path, username: str, password: str
) -> None:
    """PLAIN separates its parts by NUL: a file must not add one."""
    entry(tmp_path, "alice", username, password)
    with pytest.raises(ClientRefused) as refused:
        first(logins(tmp_path), "User:alice")
    assert PASSWORD not in refused.value.reason


def test_a_name_is_escaped_in_scram_and_in_the_log(tmp_path: Path) -> None:
    entry(tmp_path, "a%2Cb%3D%0A", "a,b=")
    one = logins(tmp_path, "SCRAM-SHA-512", deny=["User:x\ny"])
    assert first(one, "User:a,b=\n").startswith(b"n,,n=a=2Cb=3D,r=")
    with pytest.raises(ClientRefused) as refused:
        first(one, "User:x\ny")
    assert refused.value.reason.startswith(r"'User:x\ny' may not log in as 'User:x\ny': ")


def test_a_token_is_read_for_each_login(tmp_path: Path) -> None:
    one = logins(tmp_path, "OAUTHBEARER")
    with pytest.raises(ClientRefused):
        first(one, "User:alice")
    (tmp_path / "alice").mkdir()
    for token in ("one", "two"):
        (tmp_path / "alice" / "token").write_text(token)
        assert f"Bearer {token}".encode() in first(one, "User:alice")


def test_few_principals_are_kept(tmp_path: Path) -> None:
    """And none that has no entry: names are the clients' choice."""
    one = logins(tmp_path)
    assert isinstance(one._logins, MappedLogins)
    kept = one._logins._kept
    for number in range(3):
        with pytest.raises(ClientRefused):
            first(one, f"User:none-{number}")
    assert not kept
    entry(tmp_path, "alice", "alice")
    first(one, "User:alice")
    oldest = kept["alice"]
    kept.update({f"user {number}": oldest for number in range(MAX_KEPT - 1)})
    entry(tmp_path, "bob", "bob")
    first(one, "User:bob")
    assert len(kept) == MAX_KEPT
    assert "alice" not in kept


# Tokens that the proxy signs for its clients' logins


LIFETIME_S = 600


def write(
    path: Path,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    encryption: KeySerializationEncryption | None = None,
) -> None:
    key = key or ec.generate_private_key(ec.SECP256R1())
    encryption = encryption or NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


def minting(directory: Path, /, **changes: Any) -> Listener:
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
    logins = ClientLogins(minting(keys), ACCESS)
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
    logins = ClientLogins(minting(keys), ACCESS)
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
    old = minted(ClientLogins(minting(keys), ACCESS))
    swapped = minting(keys, signing_key_files=["two.pem", "one.pem"])
    new = minted(ClientLogins(swapped, ACCESS))
    kids = [jwt.get_unverified_header(token)["kid"] for token in (old, new)]
    assert kids == [one["kid"] for one in published["keys"]]
    assert verified(old, published)["sub"] == verified(new, published)["sub"] == "alice"


def test_the_keys_are_published_in_a_file_before_the_first_login(keys: Path) -> None:
    logins = ClientLogins(minting(keys, jwks_file="jwks.json"), ACCESS)
    assert json.loads((keys / "jwks.json").read_text()) == read_jwks(
        [keys / "one.pem", keys / "two.pem"]
    )
    write(keys / "one.pem")
    token = minted(logins)
    assert verified(token, json.loads((keys / "jwks.json").read_text()))["sub"] == "alice"
    assert sorted(path.name for path in keys.iterdir()) == ["jwks.json", "one.pem", "two.pem"]


def test_what_cannot_be_published_signs_nothing(keys: Path) -> None:
    """Brokers could not verify it, and would know no reason."""
    logins = ClientLogins(minting(keys, jwks_file="none/jwks.json"), ACCESS)
    with pytest.raises(ClientRefused, match="cannot be written"):
        minted(logins)


@pytest.mark.parametrize("fault", ["missing", "empty", "half", "P-384", "RSA-1024", "encrypted"])
def test_a_key_that_is_missing_weak_or_half_written_signs_nothing(keys: Path, fault: str) -> None:
    """Nor does the key that was in the file before; the proxy's identity is no substitute."""
    logins = ClientLogins(minting(keys), ACCESS)
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
        minted(ClientLogins(minting(keys), ACCESS), f"User:{name}")


def test_a_broker_that_announces_no_end_is_refused(keys: Path) -> None:
    """It takes the token for expired, and closes the connection at the next request."""
    logins = ClientLogins(minting(keys), ACCESS)
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
