"""Readers of relayed exchanges, one per mechanism: they extract the principal and the progress.

The broker authenticates the client (`sasl.termination: broker`); these readers only observe. Rules:

- A principal counts only once the broker has accepted the exchange.
- If a reader does not understand a message to the last byte, the principal is opaque, so a named
  principal never differs from the broker's.
- The size of a message that is read is bounded, and only names are kept.
- No message of a client makes a reader raise. An answer of the broker that the mechanism does not
  allow is a `MalformedMessage`.
"""

from enum import Enum, auto
from typing import Final, Protocol, final

from sasl.identity import LoginFacts
from sasl.jwt_claims import facts_of, text_of
from sasl.mechanism import PASSWORD
from sasl.messages import MalformedMessage, read_client_initial_response
from sasl.scram_messages import read_client_first
from sasl.untrusted import unverified_claims

MAX_MESSAGE_BYTES: Final = 65_536
"""Maximum size of a client's message that is read, in bytes; a longer one is ignored. Bearer tokens
with many claims have a few thousand."""
_TOKEN_EXTENSION: Final = "tokenauth"  # noqa: S105 - the name of an extension
"""SCRAM extension of delegation tokens (KIP-48): the user name is the id of a token."""


UNREADABLE: Final = LoginFacts(is_readable=False)
"""Facts of a login whose message the proxy could not read."""


class Progress(Enum):
    """Progress of an exchange after a message that the broker did not reject."""

    CONTINUES = auto()
    """The client must send another message."""
    COMPLETE = auto()
    """The broker has accepted the client."""
    REFUSED = auto()
    """The broker has rejected the client with a message of the mechanism."""
    FINAL = auto()
    """The exchange looks complete; the proxy asks the broker."""
    UNKNOWN = auto()
    """The exchange may be complete; the client's next request reveals it."""


class Reader(Protocol):
    """Reader of one exchange of one mechanism."""

    @property
    def name(self) -> str | None:
        """Name of the principal, without its type; None if it is opaque."""

    @property
    def description(self) -> str:
        """Description of an opaque principal, appended to its mechanism; empty if there is no
        description."""

    @property
    def facts(self) -> LoginFacts:
        """Facts by which the login can be blocked."""

    @property
    def is_opaque(self) -> bool:
        """True if messages of the mechanism never reveal a name or the end of the exchange."""

    def heard(self, message: bytes) -> None:
        """Read the client's next message."""

    def answered(self, data: bytes) -> Progress:
        """Read the broker's answer to it, which is not an error. Raises MalformedMessage."""


@final
class ScramReader:
    """SCRAM (RFC 5802): the name is in the first message, the verdict in the second answer."""

    __slots__ = ("_messages", "description", "facts", "name")

    is_opaque: Final = False

    def __init__(self) -> None:
        self._messages = 0
        self.name: str | None = None
        self.description = ""
        self.facts = UNREADABLE

    def heard(self, message: bytes) -> None:
        """Read the client's next message; only the first one has a name."""
        self._messages += 1
        first = read_client_first(message) if self._messages == 1 else None
        if first is None:
            return
        tokens = [value for name, value in first.extensions if name == _TOKEN_EXTENSION]
        if len(tokens) > 1 or first.authorization_id not in (None, first.username):
            return
        if tokens and tokens[0].lower() == "true":
            self.description = f"{_TOKEN_EXTENSION}={first.username}"  # the owner is not in it
        else:
            self.name = first.username
        self.facts = PASSWORD

    def answered(self, data: bytes) -> Progress:
        """Read the broker's challenge, then its proof. Raises MalformedMessage."""
        if data.startswith(b"e="):
            return Progress.REFUSED
        if self._messages == 1 and data.startswith(b"r="):
            return Progress.CONTINUES
        if self._messages == 2 and data.startswith(b"v="):
            return Progress.COMPLETE
        raise MalformedMessage


@final
class PlainReader:
    """PLAIN (RFC 4616): one message with an authorization id, a name and a password."""

    __slots__ = ("description", "facts", "name")

    is_opaque: Final = False

    def __init__(self) -> None:
        self.name: str | None = None
        self.description = ""
        self.facts = UNREADABLE

    def heard(self, message: bytes) -> None:
        """Read the client's message."""
        self.name, self.facts = None, UNREADABLE
        if len(message) > MAX_MESSAGE_BYTES or message.count(b"\0") != 2:
            return
        authorization_id, name, _ = message.split(b"\0")
        if name and authorization_id in (b"", name):
            self.name = _text(name)
            self.facts = UNREADABLE if self.name is None else PASSWORD

    def answered(self, data: bytes) -> Progress:
        """Read the broker's answer, which has no data. Raises MalformedMessage."""
        if data:
            raise MalformedMessage
        return Progress.COMPLETE


@final
class OAuthBearerReader:
    """OAUTHBEARER (RFC 7628): a message with a token, and another one if the token is rejected.

    The broker verifies the token, and must use the same claim for the principal's name.
    """

    __slots__ = ("_sub_claim_name", "description", "facts", "name")

    is_opaque: Final = False

    def __init__(self, sub_claim_name: str) -> None:
        self._sub_claim_name = sub_claim_name
        self.name: str | None = None
        self.description = ""
        self.facts = UNREADABLE

    def heard(self, message: bytes) -> None:
        """Read the client's next message."""
        self.name, self.facts = None, UNREADABLE
        response = None
        if len(message) <= MAX_MESSAGE_BYTES:
            response = read_client_initial_response(message)
        claims = None if response is None else unverified_claims(response.token)
        if response is None or claims is None:
            return
        self.facts = facts_of(claims)
        name = text_of(claims.get(self._sub_claim_name))
        if name is not None and response.authorization_id in (None, name):
            self.name = name

    def answered(self, data: bytes) -> Progress:
        """Read the broker's answer: with data, it rejects the token."""
        return Progress.CONTINUES if data else Progress.COMPLETE


@final
class OpaqueReader:
    """Any other mechanism: its messages do not reveal the principal."""

    __slots__ = ("_ends_empty",)

    name: Final = None
    description: Final = ""
    facts: Final = PASSWORD
    is_opaque: Final = True

    def __init__(self, mechanism: str) -> None:
        self._ends_empty = mechanism == "GSSAPI"

    def heard(self, message: bytes) -> None:
        """Read nothing."""

    def answered(self, data: bytes) -> Progress:
        """Recognize GSSAPI's last answer, its only empty one (RFC 4752); otherwise the end is
        unknown."""
        return Progress.FINAL if self._ends_empty and not data else Progress.UNKNOWN


def reader_of(mechanism: str, sub_claim_name: str) -> Reader:
    """Return a reader of an exchange with this mechanism."""
    if mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        return ScramReader()
    if mechanism == "PLAIN":
        return PlainReader()
    if mechanism == "OAUTHBEARER":
        return OAuthBearerReader(sub_claim_name)
    return OpaqueReader(mechanism)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
