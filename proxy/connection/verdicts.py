"""Verdicts of the stages on what a client sends, which the connection carries out.

A closed union: a request is forwarded, changed or answered, waits, has the broker asked first, or
ends its connection; or it has the connection take notice of something, and is looked at again. A
frame that is forwarded as it came needs no verdict but the `Basis` on which others pass like it.
"""

from collections.abc import Generator
from typing import Any, Final, TypeVar, final

from proxy.connection.commands import Close, Command
from proxy.connection.fingerprints import Basis
from proxy.connection.frames import Route
from proxy.scheduling.steps import Steps
from proxy.wire.api_versions import ApiVersionsRequest
from proxy.wire.request import Request
from sasl.messages import SASL_AUTHENTICATE
from sasl.states import Channel


@final
class Forward:
    """A whole frame is forwarded, as it came or changed."""

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
        """The route, or an amendment of it; None: the broker will not answer (acks=0)."""
        self.basis: Final = basis
        """The part of the frame with which others pass from now on; None: none does."""
        self.close: Final = close
        """End of the connection behind this request; None: it goes on."""


@final
class Change:
    """The bytes that are here of a frame are forwarded changed, in the same length."""

    __slots__ = ("start",)

    def __init__(self, start: bytes) -> None:
        self.start: Final = start


@final
class Answer:
    """The proxy answers itself."""

    __slots__ = ("frame", "key", "throttle_time_ms")

    def __init__(self, frame: bytes, key: int, throttle_time_ms: int = 0) -> None:
        self.frame: Final = frame
        self.key: Final = key
        """API key and version of the answer, as `route_key` has them."""
        self.throttle_time_ms: Final = throttle_time_ms
        """Throttle time that it announces at least, in milliseconds."""


@final
class SessionChanged:
    """The SASL session took a step: it says what follows."""

    __slots__ = ("confirms", "frame", "is_relayed")

    def __init__(
        self, frame: bytes | None, *, confirms: bool = False, is_relayed: bool = False
    ) -> None:
        self.frame: Final = frame
        """Answer to the client; None: there is none."""
        self.confirms: Final = confirms
        """True if the broker is to be asked at once whether the login is complete."""
        self.is_relayed: Final = is_relayed
        """True if the broker has decided, and delayed its answer to a failure itself."""


@final
class Relay:
    """A message of a login is sent to the broker, whose answer decides what follows."""

    __slots__ = ("api_key", "api_version", "channel", "correlation_id", "frame")

    def __init__(self, channel: Channel, frame: bytes, request: Request | None) -> None:
        """`request` is None for a raw token."""
        self.channel: Final = channel
        self.frame: Final = frame
        self.correlation_id: Final = None if request is None else request.correlation_id
        """Correlation id that the answer has; None: it has no header, to a raw token."""
        self.api_key: Final = SASL_AUTHENTICATE if request is None else request.api_key
        self.api_version: Final = 0 if request is None else request.api_version


@final
class Confirm:
    """The broker is asked whether a login is complete; then the same request is looked at again."""


@final
class ClientNamed:
    """The client id is known now; the same request is looked at again."""


@final
class Misrouted:
    """A client means another broker than it reached (KIP-1242)."""

    __slots__ = ("answer", "request")

    def __init__(self, answer: Answer, request: ApiVersionsRequest) -> None:
        self.answer: Final = answer
        """The answer with the error."""
        self.request: Final = request


@final
class Expired:
    """A request meets an expired session, which it does not renew (KIP-368)."""

    __slots__ = ("api_key",)

    def __init__(self, api_key: int) -> None:
        self.api_key: Final = api_key


@final
class NeedMemory:
    """A long frame is gathered if there is memory for it; then it is looked at again."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size: Final = size


@final
class Wait:
    """No further request is taken for now."""

    __slots__ = ("command", "reason")

    def __init__(self, reason: int, command: Command | None = None) -> None:
        self.reason: Final = reason
        """A bit of `PauseReason`."""
        self.command: Final = command
        """What ends the wait; None: it ends with time, or with what the broker sends."""


@final
class Work:
    """A stage waits for long work, which is done in steps; it goes on with the result."""

    __slots__ = ("size", "steps")

    def __init__(self, steps: Steps[Any], size: int) -> None:
        self.steps: Final = steps
        self.size: Final = size
        """Bytes of what it is about."""


@final
class Ask:
    """A stage waits for the broker's answer to a Metadata request of the proxy's own.

    It goes on with what stands behind the answer's size; None: the broker does not offer this
    version.
    """

    __slots__ = ("api_version", "frame")

    def __init__(self, api_version: int, frame: bytes) -> None:
        self.api_version: Final = api_version
        self.frame: Final = frame


Verdict = (
    Forward
    | Change
    | Answer
    | SessionChanged
    | Relay
    | Confirm
    | ClientNamed
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
"""A stage that may wait: it yields what it waits for, and goes on where it stopped with what came
of it. Meanwhile its client waits, and nobody else does."""


@final
class Pending:
    """A request that is being judged as a whole."""

    __slots__ = ("judged_by", "now", "request")

    def __init__(self, request: Request, now: float) -> None:
        self.request: Final = request
        self.now = now
        """Monotonic seconds; later than before after each wait."""
        self.judged_by: object = None
        """Stands for the rights by which it was judged last; None: it was not judged yet."""
