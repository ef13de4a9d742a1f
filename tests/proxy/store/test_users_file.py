"""A file of SCRAM users: read whole or not at all, and loaded again when it is replaced."""

import base64
import json
import logging
import re
from pathlib import Path

import pytest

from proxy.store import CachedCredentials
from proxy.store.interface import StoreError, StoreRefused, by_user
from proxy.store.users_file import MAX_BYTES, Users, UsersFile
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import ScramMechanism
from tests.support.store import SECRET, SHA_256, content, of, put, verifier

SHA_512 = ScramMechanism.SCRAM_SHA_512
ANOTHERS_KEYS = {"SCRAM-SHA-512": of(SHA_256)["SCRAM-SHA-256"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


def test_users_are_found(path: Path) -> None:
    put(path, content(bob=of(SHA_512), alice=of(SHA_512, SHA_256)))
    users = UsersFile(path)
    assert [key for key, _ in by_user(users.credential_snapshot().credentials)] == [
        ("alice", SHA_256),
        ("alice", SHA_512),
        ("bob", SHA_512),
    ]
    assert users.credential_snapshot().credentials["bob", SHA_512] == verifier(mechanism=SHA_512)
    assert users.scram_fake_secret() == b"secret-secret-secret-secret-sec!"


def test_what_is_written_is_read(path: Path) -> None:
    names = ("alice", "Ωmega", 'with, comma = "quote"', "User:x", "\n")
    credentials = {(name, SHA_256): verifier(name) for name in names}
    users = Users(secret=bytes(32), credentials=credentials)
    put(path, users.text())
    assert Users.read(path) == users


def test_a_new_file_has_a_secret_of_its_own() -> None:
    assert Users.empty().secret != Users.empty().secret


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        (json.dumps(content(alice=of(SHA_256)))[:-2], "must be a JSON object"),
        (f'{{"secret": "{SECRET}", "users": {{"a": {{}}, "a": {{}}}}}}', "must be a JSON object"),
        ("[" * 100_000, "must be a JSON object"),
        ({"users": {}}, "must have secret and users"),
        ({"secret": SECRET}, "must have secret and users"),
        (content() | {"acls": []}, "must have secret and users, and nothing else"),
        (content() | {"secret": None}, "secret: must be 32 bytes in base64"),
        (content() | {"secret": "c2hvcnQ="}, "secret: must be 32 bytes in base64"),
        (content() | {"secret": "ä" * 44}, "secret: must be 32 bytes in base64"),
        (content() | {"users": []}, "users: must be an object"),
        (content(**{"": of(SHA_256)}), "users: '': the name must not be empty"),
        (content(alice="secret"), "users: 'alice': must be an object with SCRAM-SHA-256 or"),
        (content(alice={"PLAIN": "secret"}), "users: 'alice': must be an object with"),
        (content(alice={"SCRAM-SHA-256": "secret"}), "'alice': SCRAM-SHA-256: must be salt="),
        (content(alice={"SCRAM-SHA-256": 7}), "'alice': SCRAM-SHA-256: must be salt="),
        (content(alice=ANOTHERS_KEYS), "'alice': SCRAM-SHA-512: the keys of SCRAM-SHA-512 have 64"),
        (content(**{"a\x1b[31m": "x"}), re.escape("users: 'a\\x1b[31m': must be")),
        (f'{{"secret": "{SECRET}", "users": {{"\\ud800": {{}}}}}}', "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_none_is_refused(path: Path, found: object, why: str) -> None:
    put(path, found)
    with pytest.raises(StoreError, match=why) as refused:
        UsersFile(path).version()
    assert str(refused.value).startswith(f"{path}: ")
    assert str(refused.value).isprintable()
    assert "secret" not in str(refused.value).replace("secret:", "").replace("secret and", "")


def test_a_file_that_cannot_be_read_is_told(path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        UsersFile(path).version()
    with pytest.raises(StoreError, match="cannot be read: Is a directory"):
        UsersFile(path.parent).version()
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(StoreError, match="is larger than"):
        UsersFile(path).version()


def test_what_is_taken_up_is_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An empty file lets nobody in, and a second secret would reveal which users exist."""
    caplog.set_level(logging.INFO)
    put(path, content(alice=of(SHA_256)))
    users = UsersFile(path)
    users.version()
    assert not caplog.records, "the first one is no news"
    put(path, content())
    users.version()
    other = base64.b64encode(bytes(32)).decode()
    put(path, content() | {"secret": other})
    users.version()
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", f"{path}: read again, with 0 verifiers; it had 1"),
        ("INFO", f"{path}: read again, with 0 verifiers; it had 0"),
        ("WARNING", f"{path}: has another secret: restart the proxy to use it"),
    ]
    assert other not in caplog.text


def test_a_replacement_is_taken_up(path: Path) -> None:
    put(path, content(alice=of(SHA_256)))
    users = UsersFile(path)
    known = CachedCredentials(users)
    assert not known.refresh_if_changed()
    put(path, content(bob=of(SHA_256)))
    assert known.refresh_if_changed()
    assert known.find("alice", SHA_256) is None
    assert known.find("bob", SHA_256) == verifier()


def test_a_link_that_names_another_file_is_taken_up(tmp_path: Path) -> None:
    """As the kubelet updates a Secret: a link to a directory is replaced, and no file is."""
    for name, user in (("..one", "alice"), ("..two", "bob")):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "users.json", content(**{user: of(SHA_256)}))
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "users.json").symlink_to("..data/users.json")
    users = UsersFile(tmp_path / "users.json")
    before = users.version()
    (tmp_path / "..new").symlink_to("..two")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert users.version() > before
    assert [user for user, _ in users.credential_snapshot().credentials] == ["bob"]


def test_who_was_known_is_known_while_the_file_is_broken(path: Path) -> None:
    put(path, content(alice=of(SHA_256)))
    users = UsersFile(path)
    known = CachedCredentials(users)
    put(path, "half a fi")
    for _ in range(2):
        with pytest.raises(StoreError, match="must be a JSON object"):
            known.refresh_if_changed()
    assert known.find("alice", SHA_256) == verifier()
    path.unlink()
    with pytest.raises(StoreError, match="No such file"):
        known.refresh_if_changed()
    assert known.find("alice", SHA_256) == verifier()
    put(path, content(alice=of(SHA_256, password="other")))
    assert known.refresh_if_changed()
    assert known.find("alice", SHA_256) == verifier("other")


def test_a_proxy_does_not_change_it(path: Path) -> None:
    put(path, content(alice=of(SHA_256)))
    before = path.read_bytes()
    users = UsersFile(path)
    with pytest.raises(StoreRefused, match="in a file: change them where it comes from") as refused:
        users.alter_credentials(delete=[("alice", SHA_256)], upsert={("bob", SHA_256): verifier()})
    assert refused.value.code == ErrorCode.POLICY_VIOLATION
    assert path.read_bytes() == before
