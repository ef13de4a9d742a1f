"""SASL/PLAIN (RFC 4616): its message, and files with bcrypt hashes of passwords.

A password is checked outside (`PasswordCheck`): that takes many milliseconds of CPU time, or a
directory. It is part of the client's message and of the check, and is kept by neither.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Final, Self

from sasl.mechanism import Failure, FailureReason, PasswordCheck, Step
from sasl.scram import AUTHORIZATION_ID_DIFFERS

NAME: Final = "PLAIN"
MAX_USER_CHARACTERS: Final = 255
"""Longest name of a user, as that of a token's subject in Kafka's events."""
MAX_PASSWORD_BYTES: Final = 1_024
"""Longest password in bytes."""
MAX_FILE_BYTES: Final = 16_777_216
"""Largest file in bytes. A Secret of Kubernetes has at most 1 MiB."""
MAX_LINE_BYTES: Final = 1_024
"""Longest line of a file in bytes."""
_BCRYPT: Final = re.compile(rb"\$2[aby]\$(0[4-9]|1[0-5])\$[./A-Za-z0-9]{53}")
"""A bcrypt hash, as `htpasswd -B` writes it. Each step of the cost, 4 to 15, doubles the time of a
check; 15 takes seconds."""


class PlainServer:
    """PLAIN on the server's side; see `sasl.mechanism`."""

    name: Final = NAME

    def exchange(self) -> "PlainServerExchange":
        """Begin an authentication."""
        return PlainServerExchange()


class PlainServerExchange:
    """PLAIN authentication; see the rules of `sasl.mechanism`."""

    __slots__ = ("_check", "_ended")

    def __init__(self) -> None:
        self._check: PasswordCheck | None = None
        """Check of the message; None before it, and after its result."""
        self._ended = False

    def step(self, message: bytes, now: float) -> Step:  # noqa: ARG002 - passwords do not expire
        """Process the client's message, and return the result."""
        check, self._check = self._check, None
        if check is not None:
            return check.verdict or Failure(reason=FailureReason.BAD_CREDENTIALS)
        if self._ended:
            return Failure(reason=FailureReason.ILLEGAL_STATE)
        self._ended = True
        step = read_message(message)
        if isinstance(step, PasswordCheck):
            self._check = step
        return step


def read_message(message: bytes) -> PasswordCheck | Failure:
    """Return the check that a client's message needs, or why it is refused."""
    parts = message.split(b"\0", 3)  # no object for each zero of a long message
    try:
        authorization_id, user, _ = [part.decode() for part in parts]
    except ValueError:  # of another number of parts, too
        return Failure(reason=FailureReason.BAD_MESSAGE)
    if not (0 < len(user) <= MAX_USER_CHARACTERS and user.isprintable()):
        return Failure(reason=FailureReason.BAD_MESSAGE)
    if not 0 < len(parts[2]) <= MAX_PASSWORD_BYTES:
        return Failure(reason=FailureReason.BAD_MESSAGE)
    if authorization_id not in ("", user):
        return Failure(reason=FailureReason.BAD_CREDENTIALS, message=AUTHORIZATION_ID_DIFFERS)
    return PasswordCheck(user, parts[2])


class BadPasswordFile(Exception):
    """The file is invalid; the text has the reason, and no hash."""


class PasswordFile:
    """Users and their bcrypt hashes, as `htpasswd -B` writes them."""

    def __init__(self, hashes: Mapping[str, bytes]) -> None:
        self._hashes = hashes
        self._all = tuple(hashes.values())

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Return the users in a file. Raises BadPasswordFile."""
        if len(content) > MAX_FILE_BYTES:
            raise BadPasswordFile(f"is larger than {MAX_FILE_BYTES} bytes")
        hashes: dict[str, bytes] = {}
        for number, line in enumerate(content.splitlines(), start=1):
            if not line.strip() or line.startswith(b"#"):
                continue
            name, _, hashed = line.partition(b":")
            user = name.decode(errors="replace")
            if (
                len(line) > MAX_LINE_BYTES
                or not _BCRYPT.fullmatch(hashed)
                or not user.isprintable()
            ):
                raise BadPasswordFile(
                    f"has no user and bcrypt hash, as from htpasswd -B, in line {number}; a hash"
                    " has a cost from 4 to 15"
                )
            if user in hashes:
                raise BadPasswordFile(f"has the user of line {number} twice")
            hashes[user] = hashed
        if not hashes:
            raise BadPasswordFile("has no user")
        return cls(hashes)

    def find(self, user: str) -> bytes | None:
        """Return a user's hash; None if there is no such user."""
        return self._hashes.get(user)

    def decoy(self, user: str, key: bytes) -> bytes:
        """Return a hash to check for a user that does not exist, so that this takes as long: that
        of another user, always the same for a name and a secret `key`."""
        digest = hashlib.blake2b(user.encode(), key=key, digest_size=8).digest()
        return self._all[int.from_bytes(digest) % len(self._all)]

    def __str__(self) -> str:
        return f"{len(self._hashes)} users"
