"""Verdicts of the stages, and commands of the connection to its shell.

Both are closed unions, and belong to the control path. The connection carries out verdicts, and the
shell carries out commands. A verdict forwards, changes or answers a request, makes it wait, asks
the broker first, or ends the connection. It may also report a change, after which the same request
is looked at again. A frame that is forwarded unchanged at a first look needs no verdict, only the
`Basis` on which later frames like it pass.
"""

from collections.abc import Callable, Generator
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar, final

from proxy.acl.decision import Used
from proxy.connection.fingerprints import Basis
from proxy.connection.frames import Route
from proxy.connection.usage import Tally
from proxy.scheduling.steps import LongTask, Steps
from proxy.wire.api_versions import ApiVersionsRequest
from proxy.wire.request import Request
from sasl.mechanism import PasswordCheck
from sasl.messages import SASL_AUTHENTICATE
from sasl.states import Channel


class CloseReason(StrEnum):
    """Reason of a close: a label of metrics and events."""

    CLIENT_CLOSED = "client_closed"
    """The client closed the connection, or disappeared."""
    BROKER_CLOSED = "broker_closed"
    """The broker closed the connection."""
    BROKER_UNREACHABLE = "broker_unreachable"
    """No connection to the broker could be opened while the client was held."""
    BROKER_UNKNOWN = "broker_unknown"
    """The client's login revealed the brokers of the cluster to a gateway; the client should
    reconnect."""
    BROKER_LOGIN_FAILED = "broker_login_failed"
    """The broker refused the login of the proxy, or of the client (`upstream.identity`), or did not
    complete it."""
    IDENTITY_REFUSED = "identity_refused"
    """The rules or files of `upstream.identity` give the client no login at brokers."""
    BROKER_FAULT = "broker_fault"
    """The broker broke the protocol: wrong correlation id, impossible size."""
    EXPIRED = "expired"
    """The connection was used after the end of its session (KIP-368)."""
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - no password
    """The connection was used after its token had expired, in `observe` or `probe`
    (KAFKA-13848)."""
    EXPIRED_AT_LOGIN = "expired_at_login"
    """The login's token had already expired, within the clock skew, and the connection was used."""
    AUTHENTICATION_FAILED = "authentication_failed"
    """A login or re-authentication failed; the failure has a reason of its own."""
    AUTHENTICATION_TIMEOUT = "authentication_timeout"
    """The client did not log in within `sasl.authentication.timeout.ms`."""
    ILLEGAL_STATE = "illegal_state"
    """The request is not legal before authentication."""
    MAX_AGE = "max_age"
    """The connection was open for `connections.max.age.ms`."""
    CERTIFICATE_EXPIRED = "certificate_expired"
    """The certificate with which the client is authenticated has expired."""
    IDLE = "idle"
    """No bytes in either direction for `connections.max.idle.ms`."""
    MALFORMED_FRAME = "malformed_frame"
    """A frame is shorter than a request, or does not parse."""
    OVERSIZE_FRAME = "oversize_frame"
    """A frame is longer than `socket.request.max.bytes`, or, during a login, than
    `sasl.server.max.receive.size`. A warning names clients that speak TLS, HTTP or the PROXY
    protocol."""
    DENIED = "denied"
    """A Produce with acks=0 was denied; it has no response that could report it."""
    UNSUPPORTED_API = "unsupported_api"
    """The request's API key or version is not offered."""
    TLS_HANDSHAKE_FAILED = "tls_handshake_failed"
    """The TLS handshake failed, or the client began with another protocol."""
    DESTINATION_REFUSED = "destination_refused"
    """`transparent`: not redirected, or to a destination outside `upstream.allowed`."""
    PROXY_HEADER = "proxy_header"
    """`proxy.protocol: required`: the PROXY protocol header is missing, invalid or late, or comes
    from outside `proxy.protocol.trusted`."""
    DRAINED = "drained"
    """The proxy is shutting down, or an operator drained it (`reauth-proxy sessions drain`)."""
    KILLED = "killed"
    """An operator closed it (`reauth-proxy sessions kill`)."""
    BLOCKED = "blocked"
    """An operator blocked the client (`reauth-proxy block`); its logins then fail."""
    REVOKED = "revoked"
    """The session's user, password or signing key was removed (`revoke.sessions: at-once`)."""
    TOO_MANY_CONNECTIONS = "too_many_connections"
    """`max.connections` connections are open, all of them authenticated."""
    TOO_MANY_FROM_ADDRESS = "too_many_from_address"
    """`max.connections.per.ip` connections, or the override's number, are open from its address."""
    EVICTED = "evicted"
    """`max.connections` connections were open, and this one had been unauthenticated for
    longest."""
    CONNECTION_RATE = "connection_rate"
    """Its address creates connections faster than its quota allows (KIP-612)."""
    INTERNAL_ERROR = "internal_error"
    """A bug in the proxy; the log has a traceback."""


@final
class ConnectToBroker:
    """Open the upstream connection, then call `broker_connected` or `broker_is_down`."""


@final
class AwaitBroker:
    """Call `broker_is_back` once the broker can be reached; or, if too many clients wait for it,
    finish with BROKER_UNREACHABLE at once."""


class OpenSideConnection(NamedTuple):
    """Open another connection to the same broker for a re-authentication, and retry until `until`,
    in monotonic seconds; then call `side_connected` or `side_unreachable`."""

    until: float


@final
class CloseSideConnection:
    """Close the side connection: the re-authentication is over."""


@final
class MoveToSideConnection:
    """Close the upstream connection; the side connection takes its place."""


@final
class PauseClient:
    """Stop reading from the client."""


@final
class ResumeClient:
    """Read from the client again."""


class WakeAt(NamedTuple):
    """Call `timer` at this time, in monotonic seconds, or earlier."""

    when: float


@final
class CountUnread:
    """Call `session_ended` with the number of the client's unread bytes."""


@final
class PauseBroker:
    """Stop reading from the broker."""


@final
class ResumeBroker:
    """Read from the broker again."""


class RefreshKeys(NamedTuple):
    """Fetch newer signing keys, then call `resume_login`."""

    issuer: str
    """Issuer of the keys (`sasl.mechanism.KeysNeeded`)."""


class CheckPassword(NamedTuple):
    """Check a client's password, then call `resume_login`."""

    check: PasswordCheck


@final
class GetIdentity:
    """Get the proxy's identity at brokers, then call `identified`."""


class DeriveKeys(NamedTuple):
    """Call `work`, which takes milliseconds, outside the event loop; then call `derived`."""

    work: Callable[[], bytes]


class AnswerFromStore(NamedTuple):
    """Answer a request that needs the store, outside the event loop; then call `store_answered`."""

    request: Request
    authorized: bool
    """True if the client has the permission on the cluster that the API requires."""


class AwaitMemory(NamedTuple):
    """Call `await_memory` for a long request of this size in bytes."""

    size: int


class AwaitTurn(NamedTuple):
    """Call `turn_came` when it is this principal's turn."""

    principal: str
    """Principal; empty for unauthenticated clients, which share a turn."""


class RunLongTask(NamedTuple):
    """Run the steps of `long_task` between the work of other connections, then call `done`."""

    long_task: LongTask


class Close(NamedTuple):
    """Close both sides once everything was sent; the connection must not be called afterwards."""

    reason: CloseReason
    delay: float = 0.0
    """Delay before the close in seconds (`connection.failed.authentication.delay.ms`)."""
    farewell: bytes | None = None
    """Frame for the client, sent after the delay."""
    after_broker: bool = False
    """True if the client's connection is closed only after the broker has read everything and
    closed its side."""


@final
class CountAuthenticated:
    """Count the connection as authenticated, and free the slot of its relayed login. Idempotent."""


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
    | CheckPassword
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


@final
class Forward:
    """Forward a whole frame, unchanged or changed."""

    __slots__ = ("basis", "close", "frame", "owed", "route")

    def __init__(
        self,
        frame: bytes,
        route: Route,
        owed: Route | None,
        *,
        basis: Basis | None = None,
        close: Close | None = None,
    ) -> None:
        self.frame: Final = frame
        self.route: Final = route
        self.owed: Final = owed
        """The route or an amendment of it; None if the broker will not answer (acks=0)."""
        self.basis: Final = basis
        """The basis on which later frames like this one pass; None if each must be judged."""
        self.close: Final = close
        """Close after this request; None to continue."""


@final
class Change:
    """Forward changed bytes, of the same length, in place of the available bytes of a frame."""

    __slots__ = ("start",)

    def __init__(self, start: bytes) -> None:
        self.start: Final = start


@final
class Answer:
    """Answer a request."""

    __slots__ = ("frame", "key", "throttle_time_ms")

    def __init__(self, frame: bytes, key: int, throttle_time_ms: int = 0) -> None:
        self.frame: Final = frame
        self.key: Final = key
        """API key and version of the answer, as in `route_key`."""
        self.throttle_time_ms: Final = throttle_time_ms
        """Minimum throttle time to announce, in milliseconds."""


class SessionChanged(NamedTuple):
    """The SASL session has changed its state."""

    frame: bytes | None
    """Answer to the client; None if there is no answer."""
    confirms: bool = False
    """True if the broker must be asked at once whether the login is complete."""
    is_relayed: bool = False
    """True if the broker decided, and so delayed the answer to a failure itself."""
    is_refusal: bool = False
    """True if a re-authentication is refused, and the session continues."""


@final
class Relay:
    """Send a message of a login to the broker, whose response decides."""

    __slots__ = ("api_key", "api_version", "channel", "correlation_id", "frame")

    def __init__(self, channel: Channel, frame: bytes, request: Request | None) -> None:
        """Relay `frame`, which holds `request`, or a raw token if `request` is missing."""
        self.channel: Final = channel
        self.frame: Final = frame
        self.correlation_id: Final = None if request is None else request.correlation_id
        """Correlation id of the response; None for a raw token, whose response has no header."""
        self.api_key: Final = SASL_AUTHENTICATE if request is None else request.api_key
        self.api_version: Final = 0 if request is None else request.api_version


@final
class Confirm:
    """Ask the broker whether a login is complete, then look at the same request again."""


@final
class ClientNamed:
    """The client id is known now; look at the same request again."""


@final
class Done:
    """Nothing more can be processed until more bytes arrive, or a hold is released."""


class Misrouted(NamedTuple):
    """The client connected to the wrong broker (KIP-1242)."""

    answer: Answer
    """Answer with the error."""
    request: ApiVersionsRequest


class Expired(NamedTuple):
    """A request uses an expired session, and does not renew it (KIP-368)."""

    api_key: int


class NeedMemory(NamedTuple):
    """Reserve memory for a long frame, then look at it again."""

    size: int


@final
class Wait:
    """Stop taking requests for now."""

    __slots__ = ("command", "reason")

    def __init__(self, reason: int, command: Command | None = None) -> None:
        self.reason: Final = reason
        """A bit of `PauseReason`."""
        self.command: Final = command
        """Command that ends the wait; None if time or the broker's bytes end it."""


class Work(NamedTuple):
    """A stage needs the result of long work, done in steps."""

    steps: Steps[Any]
    size: int
    """Size in bytes of the message that is processed."""


class Ask(NamedTuple):
    """A stage needs the broker's response to a Metadata request of the proxy's own.

    It resumes with the response after its size, or None if the broker does not offer the version.
    """

    api_version: int
    frame: bytes


Verdict = (
    Forward
    | Change
    | Answer
    | SessionChanged
    | Relay
    | Confirm
    | ClientNamed
    | Done
    | Misrouted
    | Expired
    | NeedMemory
    | Wait
    | Work
    | Ask
    | Close
)

T = TypeVar("T")

Stage = Generator[Work | Ask, Any, T]
"""A stage that may wait: it yields a `Work` or an `Ask`, and resumes with the result. Only its own
client waits meanwhile."""


@final
class Pending:
    """Whole request that is being judged."""

    __slots__ = ("judged_by", "now", "request", "tally", "used")

    def __init__(self, request: Request, now: float) -> None:
        self.request: Final = request
        self.now = now
        """Current time in monotonic seconds, updated after each wait."""
        self.judged_by: object = None
        """Identifies the rights by which it was last judged; None before that."""
        self.used: dict[Used, None] | None = None
        """Its uses; None if they are not counted."""
        self.tally: Tally | None = None
        """Tally that has counted it; None if uses are not counted, or it had no use."""
