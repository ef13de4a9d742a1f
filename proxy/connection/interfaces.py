"""Rules of a connection, and the interfaces it deals with."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from proxy.connection.commands import CloseReason
from proxy.connection.frames import Route
from proxy.connection.inflight import UNSAMPLED, LatencySampler
from proxy.quota.throttle import Throttle
from proxy.scheduling.memory_budget import MemoryBudget
from proxy.wire.api_versions import (
    ApiVersionsAnswers,
    ApiVersionsRequest,
    BrokerIdentity,
    UpstreamVersions,
)
from proxy.wire.metadata import BrokerAddress
from sasl.identity import Identity
from sasl.mechanism import Mechanism
from sasl.relayed import RelaySettings
from sasl.states import Authenticated, Failed, Terms

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization

AnyConnection = TypeVar("AnyConnection", contravariant=True)
"""The connection that an observer observes."""


class AuthorizedConnection(Protocol):
    """Connection whose requests are judged by ACLs."""

    @property
    def peer_host(self) -> str:
        """Address of the client."""
        ...

    @property
    def authorization(self) -> "RequestAuthorization | None":
        """Return who has judged its requests so far; None: nobody."""
        ...

    def forget(self) -> None:
        """Look closer at all requests again."""
        ...


class ConnectionRights(Protocol):
    """Rights of clients; one for all connections of a worker."""

    def admit(
        self, connection: AuthorizedConnection, identity: Identity
    ) -> "RequestAuthorization | None":
        """Return who judges the requests of this connection from now on.

        None: the client may do everything.
        """
        ...

    def is_super_user(self, identity: Identity) -> bool:
        """Return whether a client may do everything, whatever ACLs say: by its principal, or by one
        of its groups."""
        ...

    def passes_unjudged(
        self, connection: AuthorizedConnection, identity: Identity, key: int
    ) -> None:
        """Take notice of a request that is forwarded although it cannot be judged by ACLs.

        `key` is its API and version, as in `DROPPED_BY_KAFKA_4`.
        """
        ...


class NoAuthorizer:
    """No authorizer: everybody may do everything, but only super users administer the proxy."""

    def __init__(self, super_users: Iterable[str] = ()) -> None:
        self._super_users = frozenset(super_users)

    def admit(self, _connection: AuthorizedConnection, _identity: Identity) -> None:
        """Judge nothing."""

    def is_super_user(self, identity: Identity) -> bool:
        """Return whether a client may administer the proxy."""
        return not self._super_users.isdisjoint(identity.principals)

    def replace_super_users(self, super_users: Iterable[str]) -> None:
        """Take other super users."""
        self._super_users = frozenset(super_users)

    def passes_unjudged(
        self, _connection: AuthorizedConnection, _identity: Identity, _key: int
    ) -> None:
        """Nobody would judge it."""


class ConnectionQuotas(Protocol):
    """Quotas of clients; one for all connections of a worker."""

    @property
    def clock(self) -> Callable[[], int]:
        """Clock that requests are timed with, in nanoseconds."""
        ...

    def throttle(
        self, identity: Identity, client_id: str | None, throttle: Throttle | None
    ) -> Throttle | None:
        """Return what counts the usage of a connection, `throttle` if it is there already, with
        the quotas that apply now; None: none does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRules:
    """Rules for every connection of a listener.

    A reload makes others for connections that come after. Those that are open hear of it by
    `mechanisms` and `terms`, which are called at each authentication and return what holds by then.
    """

    listener: str
    mechanisms: Mapping[str, Mechanism]
    """By name."""
    terms: Callable[[Identity, str], Terms]
    """`terms(identity, mechanism)`: what a session is held to."""
    rights: ConnectionRights
    """Rights of principals."""
    sasl_max_receive_size: int
    """Bytes of a frame before authentication, and of SASL's at any time."""
    request_max_bytes: int
    authentication_timeout: float
    """Seconds from connect to the end of the first authentication."""
    max_idle: float
    """Seconds without a byte in either direction."""
    failed_authentication_delay: float
    """Seconds before the answer to a failed authentication, and the close."""
    quotas: ConnectionQuotas | None = None
    """Quotas of clients; None: there are none."""
    relays: RelaySettings | None = None
    """Settings for logins that are relayed to the broker; None: the proxy ends them itself."""
    logs_in: bool = False
    """True if brokers want a login of the proxy's own."""
    latency: LatencySampler = UNSAMPLED
    """Chooses the requests that are timed."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    """For long requests; one for all connections of a worker."""
    unauthenticated_memory: MemoryBudget = field(default_factory=MemoryBudget)
    """For those of clients that are not authenticated yet."""


class UpstreamBroker(Protocol):
    """The broker behind a connection, as far as decisions need it."""

    @property
    def routes(self) -> Mapping[int, Route]:
        """Routes by `route_key`; empty until the broker's versions are known."""
        ...

    @property
    def api_versions(self) -> ApiVersionsAnswers | None:
        """Answers to ApiVersions; None: the broker has never been reached."""
        ...

    @property
    def identity(self) -> BrokerIdentity:
        """The broker's cluster id and node ids, as far as they are known."""
        ...

    @property
    def offered(self) -> UpstreamVersions | None:
        """What it offers itself; None: it has never been reached."""
        ...

    @property
    def address(self) -> tuple[str, int]:
        """Host and port by which it is reached."""
        ...

    def learn(self, brokers: Mapping[int, BrokerAddress]) -> None:
        """Take notice of the cluster's brokers, by id."""
        ...

    @property
    def not_answered(self) -> frozenset[int]:
        """APIs that the proxy does not answer for this listener, although it could."""
        ...

    @property
    def sasl_version(self) -> int:
        """Its highest version of SaslAuthenticate; negative: it has none."""
        ...


class Observer(Protocol[AnyConnection]):
    """Observer of the events of connections, called on the control path only."""

    def authenticated(self, connection: AnyConnection, session: Authenticated) -> None:
        """An authentication or re-authentication succeeded."""
        ...

    def authentication_failed(self, connection: AnyConnection, failed: Failed, now: float) -> None:
        """An authentication or re-authentication failed, or was not finished in time."""
        ...

    def expired(
        self, connection: AnyConnection, session: Authenticated, api_key: int, now: float
    ) -> None:
        """An expired session was used: killed if its terms enforce, else it would have been."""
        ...

    def misrouted(self, connection: AnyConnection, request: ApiVersionsRequest, now: float) -> None:
        """A client means another broker than it reached, and was answered so (KIP-1242)."""
        ...

    def reached_broker(self, connection: AnyConnection) -> None:
        """The upstream connection takes the client's requests."""
        ...

    def logged_in(self, *, again: bool) -> None:
        """The proxy logged in to a broker; `again`: it renewed its session (KIP-368)."""
        ...

    def login_failed(self, connection: AnyConnection, reason: str, *, again: bool) -> None:
        """The proxy could not log in to a broker; `reason` may be logged."""
        ...

    def closed(self, connection: AnyConnection, reason: CloseReason, now: float) -> None:
        """The connection is over; called exactly once."""
        ...
