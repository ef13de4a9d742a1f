"""States of a SASL session; `session` has the transitions."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from sasl.mechanism import Exchange, FailureReason


class Enforcement(StrEnum):
    """Treatment of sessions that expire, per listener or per principal."""

    OBSERVE = "observe"
    """Announce lifetime 0 and let every session live, but record it."""
    PROBE = "probe"
    """Announce the lifetime, kill nobody, count those who would have been killed."""
    ENFORCE = "enforce"
    """Announce the lifetime and close a connection that is used after it (KIP-368)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Rules that a principal's sessions are held to."""

    enforcement: Enforcement
    max_reauth_ms: int
    """The longest session, `connections.max.reauth.ms`; 0: only a token's expiry bounds it."""


@final
class AwaitHandshake:
    """State of a connection before its SaslHandshake."""

    __slots__ = ("api_versions_answered",)

    def __init__(self, *, api_versions_answered: bool = False) -> None:
        self.api_versions_answered: Final = api_versions_answered
        """True after an ApiVersions was answered without an error: another is illegal."""


@final
class Authenticated:
    """State after a successful authentication, until `deadline`."""

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
        """The principal with its type, e.g. `User:alice`."""
        self.mechanism: Final = mechanism
        """None: known without SASL."""
        self.handshake_version: Final = handshake_version
        """None: known without SASL."""
        self.authenticate_version: Final = authenticate_version
        """The version of SaslAuthenticate; None: raw tokens, or authenticated without SASL. Below 1
        the client cannot re-authenticate."""
        self.enforcement: Final = enforcement
        self.authenticated_at: Final = authenticated_at
        """The time at which the last successful authentication ended, in monotonic seconds."""
        self.latency: Final = latency
        """The time from the arrival of the SaslHandshake to success, in seconds (KIP-368)."""
        self.session_lifetime_ms: Final = session_lifetime_ms
        """The session's lifetime in milliseconds, as KIP-368 announces it; 0: it has none."""
        self.credential_lifetime_ms: Final = credential_lifetime_ms
        """Milliseconds that the token had left; None: the credential does not expire."""
        self.deadline: Final = deadline
        """The end of the session, in monotonic seconds; None: it has no end."""
        self.reauthentications: Final = reauthentications
        """The number of re-authentications that succeeded on this connection."""

    @property
    def told_of_lifetime(self) -> bool:
        """Return True if the client's protocol can carry a lifetime (SaslAuthenticate v1+)."""
        return bool(self.authenticate_version)


@final
class Authenticating:
    """State between a SaslHandshake and the last token."""

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
        """The exchange under way; None: of another mechanism, so the next token is refused."""
        self.begun_at: Final = begun_at
        self.previous: Final = previous
        """The session that is being renewed; None at a first login."""

    @property
    def raw(self) -> bool:
        """Return True if tokens come without request headers (after SaslHandshake v0)."""
        return self.handshake_version == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """State after a failure; the connection is about to close."""

    reason: FailureReason
    mechanism: str | None
    """The mechanism under way; None: none was chosen yet."""
    handshake_version: int | None
    """The version of the handshake under way; None: there was none."""
    previous: Authenticated | None
    """The session that was to be renewed; None at a first login."""


State = AwaitHandshake | Authenticating | Authenticated | Failed
