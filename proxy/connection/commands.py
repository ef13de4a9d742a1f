"""Commands of a connection to its shell on the control path."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

from proxy.scheduling.steps import LongTask
from proxy.wire.request import Request


class CloseReason(StrEnum):
    """Reason of a close: a label of metrics and events."""

    CLIENT_CLOSED = "client_closed"
    """Its client closed it, or was gone."""
    BROKER_CLOSED = "broker_closed"
    """Its broker closed it."""
    BROKER_UNREACHABLE = "broker_unreachable"
    """No connection to its broker could be opened, also within the time that it is held."""
    BROKER_UNKNOWN = "broker_unknown"
    """A gateway learned the brokers of the cluster from its login; it is to reconnect."""
    BROKER_LOGIN_FAILED = "broker_login_failed"
    """The broker refused the proxy's own login, or did not finish it."""
    BROKER_FAULT = "broker_fault"
    """The broker's answer broke the protocol: wrong correlation id, impossible size."""
    EXPIRED = "expired"
    """Used past the end of its session (KIP-368)."""
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - no password
    """Used past the end of its token in `observe` or `probe` (KAFKA-13848)."""
    EXPIRED_AT_LOGIN = "expired_at_login"
    """Used after a login with a token that had expired, within the clock skew."""
    AUTHENTICATION_FAILED = "authentication_failed"
    """Its login or re-authentication failed; the failure has a reason of its own."""
    AUTHENTICATION_TIMEOUT = "authentication_timeout"
    """Not logged in within `sasl.authentication.timeout.ms`."""
    ILLEGAL_STATE = "illegal_state"
    """A request that is not legal before authentication."""
    IDLE = "idle"
    """Silent for `connections.max.idle.ms`."""
    MALFORMED_FRAME = "malformed_frame"
    """Its frame is shorter than a request, or cannot be read."""
    OVERSIZE_FRAME = "oversize_frame"
    """Its frame is longer than `socket.request.max.bytes`; or one of a login longer than
    `sasl.server.max.receive.size`. A warning names clients that speak TLS, HTTP or the PROXY
    protocol."""
    DENIED = "denied"
    """A Produce with acks=0 was denied, of which no answer could inform the client."""
    UNSUPPORTED_API = "unsupported_api"
    """An API key or version that is not offered."""
    TLS_HANDSHAKE_FAILED = "tls_handshake_failed"
    """Or something else came in its place."""
    DESTINATION_REFUSED = "destination_refused"
    """`transparent`: not redirected, or not to where `upstream.allowed` allows."""
    DRAINED = "drained"
    """The proxy is shutting down."""
    KILLED = "killed"
    """By an operator (`reauth-proxy sessions kill`)."""
    TOO_MANY_CONNECTIONS = "too_many_connections"
    """`max.connections` are open, all of them authenticated."""
    TOO_MANY_FROM_ADDRESS = "too_many_from_address"
    """`max.connections.per.ip`, or what overrides it, are open from its address."""
    EVICTED = "evicted"
    """`max.connections` were open, and it had gone unauthenticated for longest."""
    CONNECTION_RATE = "connection_rate"
    """Its address creates connections faster than its quota allows (KIP-612)."""
    INTERNAL_ERROR = "internal_error"
    """A mistake in the proxy; the log has the place."""


@dataclass(frozen=True, slots=True)
class ConnectToBroker:
    """Open the upstream connection, then call `broker_connected`, or `broker_is_down`."""


@dataclass(frozen=True, slots=True)
class AwaitBroker:
    """Call `broker_is_back` once the broker can be reached, or `broker_unreachable` at once if too
    many clients wait for it."""


@dataclass(frozen=True, slots=True)
class OpenSideConnection:
    """Open a further connection to the same broker for a re-authentication, and try again until
    `until`, in monotonic seconds; then call `side_connected`, or `side_unreachable`."""

    until: float


@dataclass(frozen=True, slots=True)
class CloseSideConnection:
    """Close the connection of a re-authentication, which is over."""


@dataclass(frozen=True, slots=True)
class MoveToSideConnection:
    """Close the upstream connection; that of the re-authentication takes its place."""


@dataclass(frozen=True, slots=True)
class PauseClient:
    """Stop reading from the client."""


@dataclass(frozen=True, slots=True)
class ResumeClient:
    """Read from the client again."""


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `timer` at this moment, in monotonic seconds, if not before that."""

    when: float


@dataclass(frozen=True, slots=True)
class CountUnread:
    """Call `session_ended` with the number of the client's bytes that wait to be read."""


@dataclass(frozen=True, slots=True)
class PauseBroker:
    """Stop reading from the broker."""


@dataclass(frozen=True, slots=True)
class ResumeBroker:
    """Read from the broker again."""


@dataclass(frozen=True, slots=True)
class RefreshKeys:
    """Look for newer signing keys, then call `keys_refreshed`."""

    issuer: str
    """Issuer of the keys (`sasl.mechanism.KeysNeeded`)."""


@dataclass(frozen=True, slots=True)
class GetIdentity:
    """Find out who we are to brokers, then pass it to `upstream_login`."""


@dataclass(frozen=True, slots=True)
class DeriveKeys:
    """Call `work`, which takes milliseconds, off the event loop; pass on its result."""

    work: Callable[[], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFromStore:
    """Answer a request that needs the store, off the event loop; then call `consulted`."""

    request: Request
    authorized: bool
    """True if who asks has the right on the cluster that this API needs."""


@dataclass(frozen=True, slots=True)
class AwaitMemory:
    """Call `wait_for_room` for a long request of so many bytes."""

    size: int


@dataclass(frozen=True, slots=True)
class AwaitTurn:
    """Have it go on (`long_work.await_turn`) when others have had their turn."""


@dataclass(frozen=True, slots=True)
class RunLongTask:
    """Take the steps of `long_task` beside the other connections, then call `done`."""

    long_task: LongTask


@final
class Close:
    """Close both sides once what was written has left; nothing is called afterwards."""

    __slots__ = ("after_broker", "delay", "farewell", "reason")

    def __init__(
        self,
        *,
        reason: CloseReason,
        delay: float = 0.0,
        farewell: bytes | None = None,
        after_broker: bool = False,
    ) -> None:
        self.reason: Final = reason
        self.delay: Final = delay
        """Seconds to wait first (`connection.failed.authentication.delay.ms`)."""
        self.farewell: Final = farewell
        """Frame for the client, sent when the delay is over."""
        self.after_broker: Final = after_broker
        """True if the client's connection is closed only when the broker has read all that was
        forwarded, and closed its own."""


@dataclass(frozen=True, slots=True)
class CountAuthenticated:
    """Count the connection as authenticated, and free the slot of its relayed login; again has no
    effect."""


Command = (
    ConnectToBroker
    | AwaitBroker
    | OpenSideConnection
    | CloseSideConnection
    | MoveToSideConnection
    | PauseClient
    | ResumeClient
    | WakeAt
    | PauseBroker
    | ResumeBroker
    | RefreshKeys
    | GetIdentity
    | DeriveKeys
    | AnswerFromStore
    | AwaitMemory
    | AwaitTurn
    | CountUnread
    | RunLongTask
    | CountAuthenticated
    | Close
)
