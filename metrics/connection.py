"""What is known of one connection: where it comes from, who its client is, what it was granted."""

from typing import Final, final


@final
class Origin:
    """What is known of a connection when it is accepted."""

    __slots__ = (
        "client_host",
        "connected_at",
        "connection_id",
        "listener",
        "proxy_id",
        "worker",
    )

    def __init__(
        self,
        *,
        proxy_id: str,
        worker: int,
        listener: str,
        connection_id: str,
        client_host: str,
        connected_at: float,
    ) -> None:
        self.proxy_id: Final = proxy_id
        self.worker: Final = worker
        self.listener: Final = listener
        self.connection_id: Final = connection_id
        self.client_host: Final = client_host
        """Address without port."""
        self.connected_at: Final = connected_at
        """Monotonic seconds."""


@final
class Client:
    """What the client has told about itself so far; written to as it becomes known."""

    __slots__ = (
        "authenticate_version",
        "client_id",
        "client_software_name",
        "client_software_version",
        "enforcement",
        "handshake_version",
        "mechanism",
        "principal",
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
        """Of the listener at first, then of the principal."""
        self.client_id = client_id
        self.client_software_name = client_software_name
        self.client_software_version = client_software_version
        self.mechanism = mechanism
        self.handshake_version = handshake_version
        self.authenticate_version = authenticate_version
        self.principal = principal
        """Who it is without SASL, so without sessions: only denials are told of it."""


@final
class Grant:
    """A successful authentication."""

    __slots__ = (
        "announced_lifetime_ms",
        "credential_lifetime_ms",
        "latency",
        "principal",
        "session_lifetime_ms",
    )

    def __init__(
        self,
        *,
        principal: str,
        session_lifetime_ms: int,
        announced_lifetime_ms: int,
        credential_lifetime_ms: int | None,
        latency: float,
    ) -> None:
        self.principal: Final = principal
        self.session_lifetime_ms: Final = session_lifetime_ms
        """What the session is held to; 0: nothing."""
        self.announced_lifetime_ms: Final = announced_lifetime_ms
        """What the client was told; 0: nothing, or it cannot be told."""
        self.credential_lifetime_ms: Final = credential_lifetime_ms
        """What remained of the token; None: the credential does not expire."""
        self.latency: Final = latency
        """Seconds from the arrival of the SaslHandshake to success."""
