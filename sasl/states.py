"""States of a SASL session; `session` has the transitions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, final

from sasl.identity import Identity, LoginFacts
from sasl.mechanism import PASSWORD, Exchange, FailureReason


class Enforcement(StrEnum):
    """Treatment of sessions that expire, per listener or per principal."""

    OBSERVE = "observe"
    """Records sessions, and ignores `connections.max.reauth.ms`."""
    PROBE = "probe"
    """Announces the lifetime, and counts the sessions that `enforce` would close."""
    AUTO = "auto"
    """`enforce` for principals that are ready, `probe` for others; no session's terms have it."""
    ENFORCE = "enforce"
    """Announces the lifetime, and closes a connection that is used after it (KIP-368)."""


class Authenticator(StrEnum):
    """Side that verified the client's credentials (`sasl.termination`)."""

    PROXY = "proxy"
    """The proxy itself."""
    BROKER = "broker"
    """The broker, whose verdict was relayed."""


class Channel(StrEnum):
    """Upstream connection to which a message of a login is relayed."""

    MAIN = "main"
    """The one that carries the client's requests."""
    SIDE = "side"
    """Another one to the same broker, for one re-authentication."""


class Terms(NamedTuple):
    """Rules for the sessions of a principal."""

    enforcement: Enforcement
    max_reauth_ms: int
    """Maximum lifetime of a session in milliseconds (`connections.max.reauth.ms`); 0 if only the
    expiry of a token bounds it."""
    enforces_token_expiry: bool = True
    """True if the expiry of a token is announced and enforced whatever the enforcement of sessions,
    as in brokers without re-authentication (KAFKA-13848); False if it is treated as the end of any
    session."""

    @property
    def closes_at_token_expiry(self) -> bool:
        """True if using a session after its token's expiry closes the connection."""
        return self.enforces_token_expiry or self.enforcement is Enforcement.ENFORCE


@final
class AwaitHandshake:
    """State of a connection before its SaslHandshake."""

    __slots__ = ("api_versions_answered",)

    def __init__(self, *, api_versions_answered: bool = False) -> None:
        self.api_versions_answered: Final = api_versions_answered
        """True after an ApiVersions was answered without an error; another one is illegal then."""


@final
class Authenticated:
    """State after a successful authentication, until `deadline`."""

    __slots__ = (
        "announced_lifetime_ms",
        "authenticate_version",
        "authenticated_at",
        "authenticator",
        "credential_lifetime_ms",
        "deadline",
        "enforcement",
        "facts",
        "handshake_version",
        "identity",
        "is_current",
        "killed_after",
        "latency",
        "mechanism",
        "reauthentications",
        "session_lifetime_ms",
    )

    def __init__(
        self,
        *,
        identity: Identity,
        mechanism: str | None,
        handshake_version: int | None,
        authenticate_version: int | None,
        enforcement: Enforcement,
        authenticated_at: float,
        latency: float,
        session_lifetime_ms: int,
        credential_lifetime_ms: int | None,
        deadline: float | None,
        killed_after: float | None,
        reauthentications: int,
        announced_lifetime_ms: int | None = None,
        authenticator: Authenticator = Authenticator.PROXY,
        facts: LoginFacts = PASSWORD,
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        self.is_current: Final = is_current
        """`Success.is_current` of the last login."""
        self.facts: Final = facts
        """Facts of the last login by which the session can be blocked."""
        self.identity = identity
        """Identity of the client; its groups follow the file of memberships, if there is one."""
        self.mechanism: Final = mechanism
        """Name of the mechanism; None without SASL."""
        self.handshake_version: Final = handshake_version
        """Version of SaslHandshake; None without SASL."""
        self.authenticate_version: Final = authenticate_version
        """Version of SaslAuthenticate; None for raw tokens, and without SASL. Below 1 the client
        cannot re-authenticate."""
        self.enforcement: Final = enforcement
        self.authenticated_at: Final = authenticated_at
        """Time at which the last successful authentication ended, in monotonic seconds."""
        self.latency: Final = latency
        """Time from the arrival of the SaslHandshake to success, in seconds (KIP-368)."""
        self.session_lifetime_ms: Final = session_lifetime_ms
        """Lifetime of the session in milliseconds, as KIP-368 announces it; 0 if it has no end, or
        `began_expired`."""
        self.credential_lifetime_ms: Final = credential_lifetime_ms
        """Remaining lifetime of the token at that time, in milliseconds; 0 if it had expired, None
        if the credential does not expire."""
        self.deadline: Final = deadline
        """End of the session in monotonic seconds; None if it has no end."""
        self.killed_after: Final = killed_after
        """Time in monotonic seconds after which using the session closes its connection, not before
        `deadline`; None if using it never closes the connection."""
        self.reauthentications: Final = reauthentications
        """Number of successful re-authentications on this connection."""
        announced = session_lifetime_ms if announced_lifetime_ms is None else announced_lifetime_ms
        self.announced_lifetime_ms: Final = announced if authenticate_version else 0
        """Lifetime that was announced to the client, in milliseconds; 0 if the session has no end,
        or the protocol cannot announce it. With `sasl.termination: broker` and `observe` it is the
        broker's own."""
        self.authenticator: Final = authenticator

    @property
    def principal(self) -> str:
        """Principal with its type, e.g. `User:alice`."""
        return self.identity.principal

    @property
    def began_expired(self) -> bool:
        """True if the token had expired at the login, within the clock skew: no request of the
        session is forwarded, and its next one closes the connection, unless it renews the session.
        Lifetime 0 is announced then, as in Kafka."""
        return self.credential_lifetime_ms == 0

    def is_killed(self, now: float) -> bool:
        """Return whether using the session now closes its connection."""
        return self.killed_after is not None and now > self.killed_after

    @property
    def lifetime_announced(self) -> bool:
        """True if the protocol can announce a lifetime to the client (SaslAuthenticate v1+)."""
        return bool(self.authenticate_version)


class Authenticating(NamedTuple):
    """State between a SaslHandshake and the last token."""

    mechanism: str
    handshake_version: int
    exchange: Exchange | None
    """Exchange in progress; None if a re-authentication chose another mechanism, so that its
    next token is rejected."""
    started_at: float
    """Time at which the SaslHandshake arrived, in monotonic seconds."""
    previous: Authenticated | None
    """Session that is being renewed; None at the first authentication."""

    @property
    def raw(self) -> bool:
        """True if tokens have no request header (after SaslHandshake v0)."""
        return self.handshake_version == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """State after a failure; the connection will be closed."""

    reason: FailureReason
    mechanism: str | None
    """Mechanism of the failed authentication; None if the client had not chosen it."""
    handshake_version: int | None
    """Version of its SaslHandshake; None before a SaslHandshake."""
    previous: Authenticated | None
    """Session that was to be renewed; None at the first authentication."""
    claimed: str | None = field(default=None, compare=False)
    """Unproven name of the client; None if it is unknown."""
    detail: str = field(default="", compare=False)
    """Addition to the reason, for the log; it may be empty."""


State = AwaitHandshake | Authenticating | Authenticated | Failed


def failed(
    state: State, reason: FailureReason, claimed: str | None = None, *, detail: str = ""
) -> Failed:
    """Return the state after a failure in `state`."""
    mechanism, handshake_version, previous = None, None, None
    if isinstance(state, Authenticating | Authenticated):
        mechanism, handshake_version = state.mechanism, state.handshake_version
        previous = state if isinstance(state, Authenticated) else state.previous
    return Failed(
        reason=reason,
        mechanism=mechanism,
        handshake_version=handshake_version,
        previous=previous,
        claimed=claimed,
        detail=detail,
    )
