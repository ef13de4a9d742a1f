"""Contract between a connection and a SASL mechanism.

A mechanism is long-lived and shared; an exchange is one authentication of one connection.
The laws of an exchange:

- `step` is called with each message of the client, in order, and never after it returned
  `Success` or `Failure`. A message is at most `sasl.server.max.receive.size` bytes.
- It reads no clock, no socket and no file: `now` is monotonic seconds and always passed in.
- It raises nothing for anything a client may send: a bad message is a `Failure`.
- `KeysNeeded` consumes nothing: the same message is offered once more when keys were sought.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, final

MAX_QUOTED_CHARACTERS: Final = 256
"""The most characters of a name that a message to the client repeats: the message's length in bytes
is an int16 on the wire."""


class FailureReason(StrEnum):
    """Reason for which an authentication failed, for metrics and events, not for the client."""

    BAD_MESSAGE = "bad_message"
    """The message does not parse, or breaks the mechanism's grammar."""
    BAD_CREDENTIALS = "bad_credentials"
    """The user or the password is wrong; which of them is not distinguished."""
    BAD_SIGNATURE = "bad_signature"
    """The token's signature does not fit its key."""
    UNKNOWN_KEY = "unknown_key"
    """No key of the JWKS fits the token."""
    FORBIDDEN_ALGORITHM = "forbidden_algorithm"
    """The token's algorithm is `none`, HMAC, or another that is not offered."""
    EXPIRED = "expired"
    """The token's `exp` is over; no clock skew is granted."""
    NOT_YET_VALID = "not_yet_valid"
    """The token's `nbf` is further ahead than `clock.skew.seconds`."""
    WRONG_ISSUER = "wrong_issuer"
    """The token's `iss` is not `expected.issuer`."""
    WRONG_AUDIENCE = "wrong_audience"
    """The token's `aud` names none of `expected.audience`; or it names anybody, and none is."""
    BAD_CLAIMS = "bad_claims"
    """Another claim that is needed is missing or malformed, or another authorization id was asked
    for than the token's subject."""
    NO_KEYS = "no_keys"
    """The JWKS was never loaded, or is older than it may be: fail closed."""
    PRINCIPAL_CHANGED = "principal_changed"
    """A re-authentication presented another principal (KIP-368)."""
    MECHANISM_CHANGED = "mechanism_changed"
    """A re-authentication chose another mechanism (KIP-368)."""
    UNSUPPORTED_MECHANISM = "unsupported_mechanism"
    """The client asked for a mechanism that the listener does not have."""
    ILLEGAL_STATE = "illegal_state"
    """A request came that is not legal at this point of the exchange."""
    TIMEOUT = "timeout"
    """The client did not finish in time, or went away in the middle."""


@final
class Challenge:
    """The exchange goes on: send `data`, expect another message."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data: Final = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Challenge) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)


@final
class Success:
    """The client is who it claims to be."""

    __slots__ = (
        "credential_deadline",
        "data",
        "name",
    )

    def __init__(self, *, data: bytes, name: str, credential_deadline: float | None) -> None:
        self.data: Final = data
        """The last bytes of the mechanism, sent with the success; they may be empty."""
        self.name: Final = name
        """The principal's name, without its type: `alice` for `User:alice`."""
        self.credential_deadline: Final = credential_deadline
        """The expiry of the credential (a token), monotonic seconds; None: it has none."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Success) and self._cells() == other._cells()

    def __hash__(self) -> int:
        return hash(self._cells())

    def _cells(self) -> tuple[bytes, str, float | None]:
        return self.data, self.name, self.credential_deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The client is not authenticated; the connection answers `message` and closes."""

    reason: FailureReason
    message: str | None = None
    """The text for the client; None: the session's neutral sentence (Kafka's own words)."""


@dataclass(frozen=True, slots=True)
class KeysNeeded:
    """The token names a key that is not known: look for newer keys, then offer it once more."""


Step = Challenge | Success | Failure | KeysNeeded


class Exchange(Protocol):
    """One authentication under way; see the laws above."""

    def step(self, message: bytes, now: float) -> Step:
        """Take the client's next message and say what follows."""
        ...


class Mechanism(Protocol):
    """A SASL mechanism on the server's side. A new one is a module with a class of this shape."""

    @property
    def name(self) -> str:
        """The IANA name as clients send it in SaslHandshake, e.g. `SCRAM-SHA-256`."""
        ...

    def exchange(self) -> Exchange:
        """Begin an authentication."""
        ...
