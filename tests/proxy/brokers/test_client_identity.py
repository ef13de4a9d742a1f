"""Logins to brokers as the client: who may be whom, and with which credentials."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from proxy.brokers import access as access_module
from proxy.brokers.client_identity import MAX_KEPT, ClientLogins, ClientRefused, MappedLogins
from proxy.config.listener import Listener
from tests.support.client_identity import ACCESS, BROKER, client, listener_with

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


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("alice", "alice"),
        ("a,b=c", "a%2Cb%3Dc"),
        ("CN=alice,O=x", "CN%3Dalice%2CO%3Dx"),
        ("système:né", "syst%C3%A8me%3An%C3%A9"),
        ("../bob", "%2E.%2Fbob"),
        ("..", "%2E."),
        (".", "%2E"),
        ("/etc/passwd", "%2Fetc%2Fpasswd"),
        ("%2E", "%252E"),
        ("a\0b", "a%00b"),
    ],
)
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


RULES: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "User:alice", "alice"),
    ({}, "User:admin", None),
    ({}, "User:proxy", None),
    ({}, "User:ANONYMOUS", None),
    ({"allow": ["User:ANONYMOUS"]}, "User:ANONYMOUS", None),
    ({}, "Opaque:GSSAPI@192.0.2.1", None),
    ({}, "alice", None),
    ({"allow": ["User:admin"]}, "User:admin", "admin"),
    ({"allow": ["User:proxy"]}, "User:proxy", "proxy"),
    ({"allow": ["User:alice"], "allow_prefixes": []}, "User:alice", "alice"),
    ({"allow": ["User:alice"], "allow_prefixes": []}, "User:alice2", None),
    ({"allow": ["User:alice"], "allow_prefixes": []}, "User:ALICE", None),
    ({"allow_prefixes": ["User:team-"]}, "User:team-7", "team-7"),
    ({"allow_prefixes": ["User:team-"]}, "User:alice", None),
    ({"allow": ["User:alice"], "deny": ["User:alice"]}, "User:alice", None),
    ({"deny": ["User:alice"]}, "User:alice", None),
]
"""Rules, the client's principal, and the name of its principal at brokers; None: refused."""
TO_ADMIN = "RULE:^.*$/admin/"
RULES += [
    ({"principal_mapping_rules": "RULE:^app-(.*)$/$1/"}, "User:app-alice", "alice"),
    ({"principal_mapping_rules": "RULE:^app-(.*)$/$1/"}, "User:alice", None),
    ({"principal_mapping_rules": "RULE:^app-(.*)$/$1/"}, "User:app-", None),
    ({"principal_mapping_rules": TO_ADMIN}, "User:alice", None),
    ({"principal_mapping_rules": "RULE:^.*$/ANONYMOUS/"}, "User:alice", None),
    ({"principal_mapping_rules": "DEFAULT"}, "User:" + "n" * 513, None),
    ({"principal_mapping_rules": TO_ADMIN, "allow": ["User:admin"]}, "User:alice", "admin"),
]


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
