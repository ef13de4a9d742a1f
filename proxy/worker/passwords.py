"""Checks of PLAIN's passwords, a few at a time.

Rules:

- The owners (addresses) of clients that wait for a check take turns, so that guesses from one
  address delay no other.
- A right password is not checked again within `CACHE_SECONDS` and half of the session's lifetime,
  so a re-authentication never relies on the check before it. Instead of the password, its keyed
  hash is kept; the key exists only in this process.
- A check of a user that does not exist takes as long as that of a wrong password.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Final

from proxy.worker.identity_services import FileService
from proxy.worker.slots import Slots
from sasl.identity import Identity
from sasl.mechanism import Failure, FailureReason, PasswordCheck, Success
from sasl.plain import PasswordFile

THREADS: Final = 2
"""Largest number of checks of bcrypt hashes in a worker at once."""
CACHE_SECONDS: Final = 60.0
"""Longest time for which a password need not be checked again."""
MAX_CACHED: Final = 1_024
"""Largest number of users whose passwords are known to be right."""
_BCRYPT_BYTES: Final = 72
"""Number of bytes of a password that bcrypt uses: longer ones are refused."""

Verify = Callable[[str, bytes], Awaitable[tuple[str, ...] | Failure]]
"""Function `verify(user, password)` that returns the user's groups, or why the login fails."""


class PasswordService:
    """Checks of one listener's passwords in a worker."""

    def __init__(
        self,
        verify: Verify,
        identity_of: Callable[[str, tuple[str, ...]], Identity],
        lifetime: Callable[[Identity], float],
        limit: int,
    ) -> None:
        """Check passwords with `verify`, at most `limit` at once.

        `identity_of` returns the identity of a user with groups, and `lifetime` that of its
        sessions, in seconds.
        """
        self._verify = verify
        self._identity_of = identity_of
        self._lifetime = lifetime
        self._slots = Slots[object](limit)
        self._turns: dict[object, asyncio.Future[bool]] = {}
        """The turn of each client that waits; its result is False if the client has left."""
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[str, tuple[bytes, tuple[str, ...], float]] = OrderedDict()
        """The keyed hash of the right password, the groups, and the time in monotonic seconds until
        which both hold, by user."""

    async def check(self, client: object, owner: str, check: PasswordCheck) -> None:
        """Set the verdict of a client's check, when it is its owner's turn."""
        try:
            groups = await self._groups(client, owner, check.user, check.password)
        finally:
            check.password = b""
        if isinstance(groups, Failure):
            check.verdict = groups
        elif groups is not None:
            identity = self._identity_of(check.user, groups)
            check.verdict = Success(data=b"", identity=identity, credential_deadline=None)

    def leave(self, client: object) -> None:
        """Stop waiting for a client that has left."""
        if (turn := self._turns.pop(client, None)) is not None:
            _end(turn, has_come=False)

    def forget(self) -> None:
        """Check every password again, also if its check has begun already."""
        self._right = OrderedDict()

    async def _groups(
        self, client: object, owner: str, user: str, password: bytes
    ) -> tuple[str, ...] | Failure | None:
        digest = hashlib.blake2b(b"%b\0%b" % (user.encode(), password), key=self._key).digest()
        if (known := self._known(user, digest)) is not None:
            return known
        turn = self._turns[client] = asyncio.get_running_loop().create_future()
        self._slots.acquire(client, owner, lambda: _end(turn, has_come=True))
        try:
            if not await turn:
                return None
            if (known := self._known(user, digest)) is not None:  # from a check before this one
                return known
            right = self._right
            found = await self._verify(user, password)
        finally:
            self._turns.pop(client, None)
            self._slots.release(client)
        if not isinstance(found, Failure) and right is self._right:
            self._remember(user, digest, found)
        return found

    def _known(self, user: str, digest: bytes) -> tuple[str, ...] | None:
        now = monotonic()
        while self._right and next(iter(self._right.values()))[2] <= now:
            self._right.popitem(last=False)
        right, groups, until = self._right.get(user, (b"", (), 0.0))
        return groups if until > now and hmac.compare_digest(right, digest) else None

    def _remember(self, user: str, digest: bytes, groups: tuple[str, ...]) -> None:
        lifetime = self._lifetime(self._identity_of(user, groups))
        self._right.pop(user, None)
        self._right[user] = digest, groups, monotonic() + min(CACHE_SECONDS, lifetime / 2)
        if len(self._right) > MAX_CACHED:
            self._right.popitem(last=False)


def _end(turn: "asyncio.Future[bool]", *, has_come: bool) -> None:
    if not turn.done():
        turn.set_result(has_come)


def htpasswd(file: FileService[PasswordFile], key: bytes) -> Verify:
    """Return the check against a file of bcrypt hashes, in threads; for `key` see
    `PasswordFile.decoy`."""
    import bcrypt

    pool = ThreadPoolExecutor(THREADS, "passwords")

    async def verify(user: str, password: bytes) -> tuple[str, ...] | Failure:
        return await asyncio.get_running_loop().run_in_executor(pool, check, user, password)

    def check(user: str, password: bytes) -> tuple[str, ...] | Failure:
        hashed = file.current.find(user)
        matches = bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed or file.current.decoy(user, key))
        if hashed is not None and matches and len(password) <= _BCRYPT_BYTES:
            return ()
        return Failure(
            reason=FailureReason.BAD_CREDENTIALS,
            claimed=user,
            detail="unknown user" if hashed is None else "",
        )

    return verify
