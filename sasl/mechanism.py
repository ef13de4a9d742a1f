"""Contract between a connection and a SASL mechanism.

A mechanism is long-lived and shared; an exchange is one authentication of one connection.
Rules of an exchange:

- `step` is called with each message of the client, in order, and never after it returned
  `Success` or `Failure`. A message is at most `sasl.server.max.receive.size` bytes.
- It reads no clock, no socket and no file: `now` is an argument, in monotonic seconds.
- It never raises because of a client's message: an invalid one is a `Failure`.
- After `KeysNeeded`, `step` is called again with the same message when the keys were fetched, or
  could not be fetched; after `PasswordCheck`, when it has its verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, final

from sasl.identity import Identity, LoginFacts

MAX_QUOTED_CHARACTERS: Final = 256
"""Maximum number of characters of a name that is quoted to the client: the length of the
message is an INT16, in bytes."""


class FailureReason(StrEnum):
    """Reason for a failed authentication, for metrics and events, not for the client."""

    BAD_MESSAGE = "bad_message"
    """The message does not parse, or breaks the mechanism's grammar."""
    BAD_CREDENTIALS = "bad_credentials"
    """The user is unknown or the password is wrong; the two are not distinguished."""
    DIRECTORY_UNAVAILABLE = "directory_unavailable"
    """The directory of `sasl.plain.ldap.url` could not be reached, or check passwords."""
    BAD_SIGNATURE = "bad_signature"
    """The token's signature does not fit its key."""
    UNKNOWN_KEY = "unknown_key"
    """No key of the JWKS fits the token."""
    FORBIDDEN_ALGORITHM = "forbidden_algorithm"
    """The token's algorithm is `none`, HMAC, or another that is not supported."""
    EXPIRED = "expired"
    """The token's `exp` lies further in the past than `clock.skew.seconds`, or in the past where
    the use of an expired token is not enforced."""
    NOT_YET_VALID = "not_yet_valid"
    """The token's `nbf` lies further in the future than `clock.skew.seconds`."""
    WRONG_ISSUER = "wrong_issuer"
    """The token's `iss` is not `expected.issuer`."""
    WRONG_AUDIENCE = "wrong_audience"
    """The token's `aud` contains no audience in `expected.audience`."""
    BAD_CLAIMS = "bad_claims"
    """A required claim is missing or malformed, or the client requested an authorization id that is
    not the token's subject."""
    BAD_GROUPS = "bad_groups"
    """The claim of the groups is malformed, names more groups than are accepted, or is in a
    document outside the token; or the directory has such groups."""
    NO_PRINCIPAL = "no_principal"
    """No rule of `principal.mapping.rules` gives the client's name a principal, or the result has
    the `principal.prefix` of another issuer."""
    BLOCKED = "blocked"
    """An operator blocked the client or its credential (`reauth-proxy block`)."""
    BLOCKS_UNKNOWN = "blocks_unknown"
    """The block list could not be read for `block.max.stale.ms`, with `block.stale.logins:
    refuse`."""
    NO_KEYS = "no_keys"
    """The JWKS was never loaded, or is too old to be used."""
    PRINCIPAL_CHANGED = "principal_changed"
    """A re-authentication presented another principal (KIP-368)."""
    MECHANISM_CHANGED = "mechanism_changed"
    """A re-authentication chose another mechanism (KIP-368)."""
    UNSUPPORTED_MECHANISM = "unsupported_mechanism"
    """The client requested a mechanism that the listener does not offer."""
    ILLEGAL_STATE = "illegal_state"
    """A request arrived that is not legal at this point of the exchange."""
    REFUSED_BY_BROKER = "refused_by_broker"
    """`sasl.termination: broker`: the broker refused it; it closes the connection where the client
    sends tokens without SaslAuthenticate."""
    BROKER_UNAVAILABLE = "broker_unavailable"
    """`sasl.termination: broker`: the connection to the broker was lost during the login, or no
    other one to the same broker could be opened for a re-authentication."""
    BROKER_FAULT = "broker_fault"
    """`sasl.termination: broker`: an answer of the broker broke the protocol."""
    DISPLACED = "displaced"
    """`sasl.termination: broker`: the client was silent while another login waited for its slot
    (`sasl.broker.max.logins`, `sasl.broker.max.side.connections`)."""
    TIMEOUT = "timeout"
    """The client did not finish in time, or disconnected before the end."""


PASSWORD: Final = LoginFacts()
"""Facts of a login without a token."""


class Challenge(NamedTuple):
    """The exchange continues: `data` is sent, and another message is expected."""

    data: bytes


@final
class Success:
    """The client is who it claims to be."""

    __slots__ = ("credential_deadline", "data", "facts", "identity", "is_current")

    def __init__(
        self,
        *,
        data: bytes,
        identity: Identity,
        credential_deadline: float | None,
        facts: LoginFacts = PASSWORD,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self.data: Final = data
        """Last message of the mechanism, sent with the success; it may be empty."""
        self.identity: Final = identity
        """Identity of the client."""
        self.credential_deadline: Final = credential_deadline
        """Expiry of the credential (a token) in monotonic seconds, not in the past: the present
        time if it expired within the clock skew. None if it does not expire."""
        self.facts: Final = facts
        """Facts by which the login can be blocked; not compared."""
        self.is_current: Final = is_current
        """Function that returns whether the credential is still the user's, or the token's key
        still in the JWKS; not compared."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Success) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[bytes, Identity, float | None]:
        return self.data, self.identity, self.credential_deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The client is not authenticated; the connection answers `message` and closes."""

    reason: FailureReason
    message: str | None = None
    """Text for the client; None for the session's neutral message, which is Kafka's."""
    claimed: str | None = field(default=None, compare=False)
    """Name that the client claimed and did not prove, for the operator; None if it is unknown."""
    detail: str = field(default="", compare=False)
    """More about the reason, for the operator, such as that the user does not exist; clients see no
    difference."""


class KeysNeeded(NamedTuple):
    """The token's key is unknown: fetch newer keys, then call `step` with the message again."""

    issuer: str = ""
    """Issuer whose keys are needed; empty if there is only one issuer."""


@final
class PasswordCheck:
    """A password must be checked: set `verdict`, then call `step` with the message again."""

    __slots__ = ("password", "user", "verdict")

    def __init__(self, user: str, password: bytes) -> None:
        self.user: Final = user
        self.password = password
        """The password; empty once it was checked."""
        self.verdict: Success | Failure | None = None
        """Result of the check; None before it, and if it could not be made."""


Step = Challenge | Success | Failure | KeysNeeded | PasswordCheck


class Exchange(Protocol):
    """Authentication in progress; see the rules above."""

    def step(self, message: bytes, now: float) -> Step:
        """Process the client's next message, and return the result."""


class Mechanism(Protocol):
    """SASL mechanism on the server's side. A new mechanism is a module with a class that implements
    it."""

    @property
    def name(self) -> str:
        """IANA name, as clients send it in SaslHandshake, e.g. `SCRAM-SHA-256`."""

    def exchange(self) -> Exchange:
        """Begin an authentication."""
