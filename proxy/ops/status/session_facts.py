"""Facts about sessions from one worker, and the selection of sessions.

A session's facts are sent as a JSON array, a row, which is cheap: a worker makes thousands of them
while it serves clients. Names that clients chose are cut to 256 characters, and then end in `…`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from proxy.connection.blocks import Block, Blocks


class SessionState(StrEnum):
    """Progress of a connection (KIP-368)."""

    CONNECTED = "connected"
    """No SASL request has arrived yet."""
    AUTHENTICATING = "authenticating"
    """The first authentication is under way."""
    AUTHENTICATED = "authenticated"
    """There is a session, or the listener is without SASL."""
    REAUTHENTICATING = "re-authenticating"
    """There is a session, and a re-authentication is under way."""
    CLOSING = "closing"
    """The authentication was refused, and its response waits to be sent."""


class Condition(NamedTuple):
    """Something that the proxy depends on, or the mode that it is in."""

    what: str
    """Kind of the condition: `broker`, `certificate`, `signing keys`, `mode`, `event log`,
    `configuration` or `delivery`."""
    name: str
    state: str
    good: bool
    """False if an operator should look."""


class SessionFacts(NamedTuple):
    """Facts of one connection at one moment."""

    connection_id: str
    """The id of the connection, as in events and logs."""
    worker: int
    listener: str
    client_host: str
    state: str
    """The connection's `SessionState`."""
    connected_s: float
    """Seconds since the client connected."""
    principal: str | None
    """The principal, such as `User:alice`; None if not known yet."""
    upstream_principal: str | None
    """The principal that brokers see because of `upstream.identity`; None if they see another."""
    mechanism: str | None
    """The SASL mechanism; None if none was chosen yet, or the listener is without SASL."""
    enforcement: str | None
    client_id: str | None
    client_software_name: str | None
    client_software_version: str | None
    lifetime_announced: bool | None
    """True if a lifetime can be announced to the client (SaslAuthenticate v1+): it can
    re-authenticate. None if not known yet, or the listener is without SASL."""
    reauthentications: int
    session_lifetime_ms: int | None
    """Lifetime of the session in milliseconds; 0: the session has no end, None: there is no
    session."""
    authenticated_s: float | None
    """Seconds since the last authentication; None without a session."""
    lifetime_left_s: float | None
    """Seconds until the session ends; below 0: it has ended, and was not used since. None if it has
    no end."""
    requests: int
    """Number of requests since the client connected, without those of SASL."""
    request_bytes: int
    response_bytes: int
    idle_s: float | None
    """Seconds since the last request; None before the first one."""
    throttle_left_s: float | None
    """Seconds until the client is read again after a quota was exceeded; below 0: since then. In
    `audit` it would have been throttled. None if it never exceeded one."""


class Selector(NamedTuple):
    """Selector of sessions: those that match all given parts; None matches any."""

    principal: str | None = None
    client_id: str | None = None
    connection_id: str | None = None
    block: str | None = None
    """Line of a block list: the sessions that its entry would end."""

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Return the selector of a request's arguments. Raises ValueError if they are invalid."""
        unknown = arguments.keys() - set(cls._fields)
        if unknown or not all(isinstance(value, str | None) for value in arguments.values()):
            raise ValueError("not a selection of sessions")
        selector = cls(**arguments)
        selector.blocks(0.0)
        return selector

    def blocks(self, now: float) -> Blocks | None:
        """Return a list with the entry `block`; None if it is not given. Raises ValueError."""
        if self.block is None:
            return None
        entry = Block.parse(self.block.encode())
        return Blocks(0, [entry], {entry.id: now})

    def arguments(self) -> dict[str, Any]:
        """Return the parts that are given, as arguments of a request."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def chooses(self, connection_id: str, principal: str | None, client_id: str | None) -> bool:
        """Return whether a session is selected."""
        return (
            self.connection_id in (None, connection_id)
            and self.principal in (None, principal)
            and self.client_id in (None, client_id)
        )

    def __str__(self) -> str:
        given = self.arguments().items()
        return " and ".join(f"{name} {value!a}" for name, value in given) or "any"


EVERY_SESSION: Final = Selector()
