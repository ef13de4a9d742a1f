"""Where the SASL life of a connection stands. What leads from one state to the next: `session`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from sasl.mechanism import Exchange, FailureReason


class Enforcement(StrEnum):
    """How the expiry of sessions is treated, per listener or per principal."""

    OBSERVE = "observe"
    """Announce lifetime 0, let every session live: today's behaviour, but recorded."""
    PROBE = "probe"
    """Announce the lifetime, kill nobody, count those who would have been killed."""
    ENFORCE = "enforce"
    """Announce the lifetime and close a connection that is used after it (KIP-368)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a principal's sessions are held to."""

    enforcement: Enforcement
    max_reauth_ms: int
    """`connections.max.reauth.ms`; 0: only a token's own expiry bounds the session."""


@final
class AwaitHandshake:
    """Connected, nothing known."""

    __slots__ = ("api_versions_answered",)

    def __init__(self, *, api_versions_answered: bool = False) -> None:
        self.api_versions_answered: Final = api_versions_answered
        """A second ApiVersions is legal only while the first was answered with an error."""


@final
class Authenticated:
    """Somebody is known, until `deadline`."""

    __slots__ = (
        "authenticate_version",
        "authenticated_at",
        "credential_lifetime_ms",
        "deadline",
        "enforcement",
        "handshake_version",
        "latency",
        "mechanism",
        "principal",
        "reauthentications",
        "session_lifetime_ms",
    )

    def __init__(
        self,
        *,
        principal: str,
        mechanism: str | None,
        handshake_version: int | None,
        authenticate_version: int | None,
        enforcement: Enforcement,
        authenticated_at: float,
        latency: float,
        session_lifetime_ms: int,
        credential_lifetime_ms: int | None,
        deadline: float | None,
        reauthentications: int,
    ) -> None:
        self.principal: Final = principal
        """`User:alice`."""
        self.mechanism: Final = mechanism
        """None: known without SASL."""
        self.handshake_version: Final = handshake_version
        """None: known without SASL."""
        self.authenticate_version: Final = authenticate_version
        """Version of SaslAuthenticate; None: raw tokens, or known without SASL. Below 1 the client
        cannot re-authenticate."""
        self.enforcement: Final = enforcement
        self.authenticated_at: Final = authenticated_at
        """When the last successful authentication ended."""
        self.latency: Final = latency
        """Seconds from the arrival of the SaslHandshake to success (KIP-368)."""
        self.session_lifetime_ms: Final = session_lifetime_ms
        """As KIP-368 announces it; 0: none."""
        self.credential_lifetime_ms: Final = credential_lifetime_ms
        """What remained of the token; None: the credential does not expire."""
        self.deadline: Final = deadline
        """The last moment of the session; None: it has no end."""
        self.reauthentications: Final = reauthentications
        """How many re-authentications have succeeded on this connection."""

    @property
    def told_of_lifetime(self) -> bool:
        """Whether the client's protocol can carry a lifetime at all (SaslAuthenticate v1+)."""
        return bool(self.authenticate_version)


@final
class Authenticating:
    """Between a SaslHandshake and the last token."""

    __slots__ = (
        "begun_at",
        "exchange",
        "handshake_version",
        "mechanism",
        "previous",
    )

    def __init__(
        self,
        *,
        mechanism: str,
        handshake_version: int,
        exchange: Exchange | None,
        begun_at: float,
        previous: Authenticated | None,
    ) -> None:
        self.mechanism: Final = mechanism
        self.handshake_version: Final = handshake_version
        self.exchange: Final = exchange
        """None: the mechanism is not the session's; the next token is refused."""
        self.begun_at: Final = begun_at
        self.previous: Final = previous
        """The session that is being renewed; None at a first login."""

    @property
    def raw(self) -> bool:
        """Whether tokens come bare, without request headers (after SaslHandshake v0)."""
        return self.handshake_version == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Refused; the connection is about to close."""

    reason: FailureReason
    mechanism: str | None
    """The mechanism under way; None: none was chosen yet."""
    handshake_version: int | None
    """Of the handshake under way; None: there was none."""
    previous: Authenticated | None
    """The session that was to be renewed; None at a first login."""


State = AwaitHandshake | Authenticating | Authenticated | Failed
