"""Facts about one connection: its origin, its client, and the session it was granted."""

from collections.abc import Sequence
from typing import NamedTuple, final


class Origin(NamedTuple):
    """Facts about a connection that are known when it is accepted."""

    proxy_id: str
    worker: int
    listener: str
    connection_id: str
    client_host: str
    """IP address of the client, without its port."""
    connected_at: float
    """Time at which the connection was accepted, in monotonic seconds."""


@final
class Client:
    """Facts about a client so far; each attribute is set when it becomes known, and None before."""

    __slots__ = (
        "authenticate_version",
        "client_id",
        "client_software_name",
        "client_software_version",
        "dropped_versions",
        "enforcement",
        "handshake_version",
        "mechanism",
        "principal",
        "upstream_principal",
    )

    def __init__(
        self,
        *,
        enforcement: str,
        client_id: str | None = None,
        client_software_name: str | None = None,
        client_software_version: str | None = None,
        mechanism: str | None = None,
        handshake_version: int | None = None,
        authenticate_version: int | None = None,
        principal: str | None = None,
    ) -> None:
        self.enforcement = enforcement
        """Enforcement in effect: the listener's until login, then the principal's."""
        self.client_id = client_id
        self.client_software_name = client_software_name
        self.client_software_version = client_software_version
        self.mechanism = mechanism
        self.handshake_version = handshake_version
        self.authenticate_version = authenticate_version
        self.dropped_versions: Sequence[tuple[str, int]] = ()
        """API versions in use that Kafka 4.0 dropped, each with the API's name."""
        self.principal = principal
        """Principal of a client without SASL, for its denials; None if it uses SASL."""
        self.upstream_principal: str | None = None
        """Principal of the client at brokers (`upstream.identity`)."""


class Grant(NamedTuple):
    """A successful authentication."""

    principal: str
    session_lifetime_ms: int
    """Lifetime of the session, in milliseconds; 0 if no lifetime applies."""
    announced_lifetime_ms: int
    """Lifetime that was announced to the client, in milliseconds; 0 if no lifetime
    applies, or it cannot be announced."""
    credential_lifetime_ms: int | None
    """Remaining lifetime of the token in milliseconds; None if the credential does not
    expire."""
    latency: float
    """Time from the arrival of the SaslHandshake to success, in seconds."""
    authenticator: str = "proxy"
    """Side that verified the credentials: `proxy` or `broker`."""
    groups: Sequence[str] = ()
    """Groups of the client as principals, sorted."""
