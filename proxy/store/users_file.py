"""SCRAM users in a file shared by many proxies, such as a Secret.

    {
      "secret": "…",
      "users": {
        "alice": {"SCRAM-SHA-256": "salt=…,stored_key=…,server_key=…,iterations=8192"}
      }
    }

The salts of users that do not exist are derived from the secret, 32 bytes in base64. It is in the
file because several proxies must send the same salt for such a name: different salts would reveal
that the user does not exist.

A running proxy reads the file again when it is replaced. It never changes the file, because the
change would be lost when the file is distributed again.
"""

import base64
import binascii
import fcntl
import json
import logging
import os
import secrets
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

from proxy.errors import ConfigError
from proxy.scheduling.file_signature import Signature, signature_of
from proxy.store.interface import (
    CredentialKey,
    CredentialSnapshot,
    StoreError,
    StoreRefused,
    by_user,
)
from proxy.wire.error_codes import ErrorCode
from sasl.credentials import (
    NoVerifier,
    ScramCredential,
    ScramMechanism,
    read_verifier,
    verifier_text,
)
from sasl.untrusted import read_object

log = logging.getLogger(__name__)

MAX_BYTES: Final = 67_108_864
"""Maximum size of the file in bytes, enough for more than 200,000 users. A Kubernetes Secret has at
most 1 MiB."""

_SECRET_BYTES: Final = 32
_MECHANISMS: Final = {mechanism.value: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Users of a file."""

    secret: bytes = field(repr=False)
    credentials: Mapping[CredentialKey, ScramCredential]

    @classmethod
    def empty(cls) -> Self:
        """Return an empty set of users with a new secret."""
        return cls(secret=secrets.token_bytes(_SECRET_BYTES), credentials={})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the users in a file. Raises StoreError if any part of it is invalid."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
        if len(data) > MAX_BYTES:
            raise StoreError(f"{path}: is larger than {MAX_BYTES} bytes")
        found = read_object(data)
        if found is None:
            raise StoreError(f"{path}: must be a JSON object without duplicate names")
        try:
            return cls._of(found)
        except ValueError as error:
            raise StoreError(f"{path}: {error}") from None

    @classmethod
    def checked(cls, path: Path) -> Self:
        """Return the users in a file, for a check of the configuration. Raises ConfigError."""
        try:
            return cls.read(path)
        except StoreError as error:
            raise ConfigError("store.users.file", str(error)) from None

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> Self:
        if found.keys() != {"secret", "users"}:
            raise ValueError("must have secret and users, and nothing else")
        return cls(secret=_secret(found["secret"]), credentials=_credentials(found["users"]))

    def text(self) -> str:
        """Return the content of a file. Keep it secret: it allows guessing passwords offline."""
        users: dict[str, dict[str, str]] = {}
        for (name, mechanism), verifier in by_user(self.credentials):
            users.setdefault(name, {})[mechanism.value] = verifier_text(verifier)
        secret = base64.b64encode(self.secret).decode()
        return json.dumps({"secret": secret, "users": users}, indent=2, ensure_ascii=False) + "\n"


class UsersFile:
    """SCRAM users file as a read-only `proxy.store.UserStore`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        self._signature: Signature = None
        self._users = Users(secret=b"", credentials={})
        self._version = 0
        self._fault: str | None = None

    def version(self) -> int:
        """Return the number of valid files read so far. Raises StoreError for an invalid file."""
        return self._current()[0]

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential, with the version of the snapshot."""
        version, users = self._current()
        return CredentialSnapshot(version=version, credentials=users.credentials)

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),  # noqa: ARG002 - as in the protocol
        upsert: Mapping[CredentialKey, ScramCredential],  # noqa: ARG002
    ) -> frozenset[CredentialKey]:
        """Refuse the change. Raises StoreRefused."""
        raise StoreRefused(
            ErrorCode.POLICY_VIOLATION, "SCRAM users are in a file: change them where it comes from"
        )

    def scram_fake_secret(self) -> bytes:
        """Return the 32 bytes from which salts of users that do not exist are derived."""
        return self._current()[1].secret

    def _current(self) -> tuple[int, Users]:
        with self._lock:
            signature = signature_of(self._path)
            if signature is None or signature != self._signature:
                self._read(signature)
            if self._fault is not None:
                raise StoreError(self._fault)
            return self._version, self._users

    def _read(self, signature: Signature) -> None:
        before, self._signature, self._fault = self._users, signature, None
        try:
            self._users = Users.read(self._path)
        except StoreError as error:
            self._fault = str(error)
            return
        self._version += 1
        if self._version == 1:
            return
        now, then = len(self._users.credentials), len(before.credentials)
        log.info("%s: read again, with %d verifiers; it had %d", self._path, now, then)
        if self._users.secret != before.secret:
            log.warning("%s: has another secret: restart the proxy to use it", self._path)


def _secret(found: object) -> bytes:
    try:
        secret = base64.b64decode(found, validate=True) if isinstance(found, str) else b""
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise ValueError(f"secret: must be {_SECRET_BYTES} bytes in base64")
    return secret


def _credentials(found: object) -> Mapping[CredentialKey, ScramCredential]:
    if not isinstance(found, dict):
        raise ValueError("users: must be an object")
    return {
        key: verifier
        for name, mechanisms in found.items()
        for key, verifier in _credentials_of(name, mechanisms).items()
    }


def _credentials_of(name: str, found: object) -> dict[CredentialKey, ScramCredential]:
    try:
        name.encode()
        if not name:
            raise ValueError("the name must not be empty")
        if not isinstance(found, dict) or not found.keys() <= _MECHANISMS.keys():
            raise ValueError(f"must be an object with {' or '.join(_MECHANISMS)}")
        return {
            (name, _MECHANISMS[mechanism]): _verifier(_MECHANISMS[mechanism], text)
            for mechanism, text in found.items()
        }
    except UnicodeEncodeError:
        raise ValueError(f"users: {name!r}: is not UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"users: {name!r}: {error}") from None


def _verifier(mechanism: ScramMechanism, text: object) -> ScramCredential:
    try:
        return read_verifier(mechanism, text if isinstance(text, str) else "")
    except NoVerifier as error:
        raise ValueError(f"{mechanism.value}: {error}") from None


class EditedUsers(UsersFile):
    """SCRAM users file as a `proxy.store.CredentialStore`; created with its first user."""

    def __init__(self, path: Path, *, secret: bytes | None = None) -> None:
        """`secret` is the secret of a file that must be created; None for a random one."""
        super().__init__(path.resolve())  # replace the target of a link, not the link
        self._new = Users.empty() if secret is None else Users(secret=secret, credentials={})

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential. The result is empty if the file does not exist yet."""
        if not self._path.exists():
            return CredentialSnapshot(version=0, credentials={})
        return super().credential_snapshot()

    def alter_credentials(
        self,
        *,
        delete: Collection[CredentialKey] = (),
        upsert: Mapping[CredentialKey, ScramCredential],
    ) -> frozenset[CredentialKey]:
        """Delete, then insert or replace; return the keys in `delete` that did not exist."""
        with edited(self._path):
            users = self._new if upsert and not self._path.exists() else Users.read(self._path)
            changed = {key: one for key, one in users.credentials.items() if key not in delete}
            changed |= upsert
            if changed != users.credentials:
                replace_file(self._path, replace(users, credentials=changed).text())
        return frozenset(delete) - users.credentials.keys()


@contextmanager
def edited(path: Path) -> Iterator[None]:
    """Lock the file's directory against other editors, whose changes would be lost. Raises
    StoreError."""
    lock = -1
    try:
        lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if lock >= 0:
            os.close(lock)


def replace_file(path: Path, text: str, new_mode: int = 0o600) -> None:
    """Replace the file atomically, keeping its owner and mode. A new file has `new_mode`."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, new_mode)
            with suppress(FileNotFoundError):
                before = path.stat()
                os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, before.st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
