"""Facts about sessions from one worker, and the selection of sessions.

A session's facts travel as a JSON array, a row: a worker makes thousands of them beside its data
path. Names that clients gave are cut to 256 characters, which ends them in `…`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self


class SessionState(StrEnum):
    """How far a connection has come (KIP-368)."""

    CONNECTED = "connected"
    """Not a word of SASL yet."""
    AUTHENTICATING = "authenticating"
    AUTHENTICATED = "authenticated"
    REAUTHENTICATING = "re-authenticating"
    CLOSING = "closing"
    """Refused, the answer to which waits."""


class SessionFacts(NamedTuple):
    """One connection, at the moment of the question."""

    connection_id: str
    """As in events and logs."""
    worker: int
    listener: str
    client_host: str
    state: str
    """A `SessionState`."""
    connected_s: float
    """Seconds since the client connected."""
    principal: str | None
    """`User:alice`; None: nobody is known yet."""
    mechanism: str | None
    """None: none was chosen yet, or the listener is without SASL."""
    enforcement: str | None
    client_id: str | None
    client_software_name: str | None
    client_software_version: str | None
    told_of_lifetime: bool | None
    """Whether a lifetime can be announced to it (SaslAuthenticate v1+): it can re-authenticate.
    None: not known yet, or the listener is without SASL."""
    reauthentications: int
    session_lifetime_ms: int | None
    """0: the session has no end."""
    lifetime_left_s: float | None
    """Below 0: past its end, and not used since. None: it has no end."""
    requests: int
    """Since the client connected, without SASL's."""
    request_bytes: int
    response_bytes: int
    idle_s: float | None
    """Seconds since the last request; None: none came."""
    throttle_left_s: float | None
    """Seconds until a quota lets it be read again, or below 0 since; in `audit`: would have. None:
    it never exceeded one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Which sessions are meant: those that all given parts fit; None: any."""

    principal: str | None = None
    client_id: str | None = None
    connection_id: str | None = None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """Read what `arguments` gave; raises ValueError on what it cannot have given."""
        unknown = arguments.keys() - set(cls.__slots__)
        if unknown or not all(isinstance(value, str | None) for value in arguments.values()):
            raise ValueError("not a selection of sessions")
        return cls(**arguments)

    def arguments(self) -> dict[str, Any]:
        """Return what is given, for a question."""
        given = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in given.items() if value is not None}

    def chooses(self, connection_id: str, principal: str | None, client_id: str | None) -> bool:
        """Whether a session is meant."""
        return (
            self.connection_id in (None, connection_id)
            and self.principal in (None, principal)
            and self.client_id in (None, client_id)
        )

    def __str__(self) -> str:
        given = self.arguments().items()
        return " and ".join(f"{name} {value!a}" for name, value in given) or "any"


EVERY_SESSION: Final = Selector()
