"""Editor of a SCRAM users file (`--users-file`): atomic, one change at a time."""

import fcntl
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from proxy.store import CredentialKey, CredentialSnapshot, StoreError
from proxy.store.users_file import Users, UsersFile
from sasl.credentials import ScramCredential


class EditedUsers(UsersFile):
    """SCRAM users file as a `proxy.store.CredentialStore`; created with its first user."""

    def __init__(self, path: Path, *, secret: bytes | None = None) -> None:
        """`secret` is the secret of the file if it must be created; None for a random one."""
        super().__init__(path.resolve())  # replace the file that a link names, not the link
        self._new = Users.empty() if secret is None else Users(secret=secret, credentials={})

    def credential_snapshot(self) -> CredentialSnapshot:
        """Return every credential; none if there is no file yet."""
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
        with _explained(self._path), _locked(self._path.parent):
            users = self._new if upsert and not self._path.exists() else Users.read(self._path)
            changed = {key: one for key, one in users.credentials.items() if key not in delete}
            changed |= upsert
            if changed != users.credentials:
                _replace(self._path, replace(users, credentials=changed).text())
        return frozenset(delete) - users.credentials.keys()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock the directory against other editors, whose changes would be lost."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, text: str) -> None:
    """Replace the file atomically, keeping its owner and mode; a new one is private."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
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
