"""Rules of a connection, and the interfaces that it uses."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeVar

from proxy.acl.administration import Administered
from proxy.connection.blocks import BlockList
from proxy.connection.commands import CloseReason
from proxy.connection.frames import Route
from proxy.connection.inflight import UNSAMPLED, LatencySampler
from proxy.quota.throttle import Throttle
from proxy.rollout import Claimed
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
"""Type of the connection that an observer observes."""


class AuthorizedConnection(Protocol):
    """Connection whose requests are judged by ACLs."""

    @property
    def peer_host(self) -> str:
        """Address of the client."""

    @property
    def authorization(self) -> "RequestAuthorization | None":
        """Stage that judges its requests; None if the client may do everything."""

    def forget(self) -> None:
        """Forget all fingerprints: judge every request again."""


class ConnectionRights(Protocol):
    """Rights of clients; one object for all connections of a worker."""

    @property
    def records_uses(self) -> bool:
        """True to report the outcomes of administrative requests to the observer."""

    def admit(
        self, connection: AuthorizedConnection, identity: Identity
    ) -> "RequestAuthorization | None":
        """Return the stage that judges the connection's requests from now on.

        None if the client may do everything.
        """

    def is_super_user(self, identity: Identity) -> bool:
        """Return whether the principal, or one of its groups, may do everything regardless of
        ACLs."""

    def passes_unjudged(
        self, connection: AuthorizedConnection, identity: Identity, key: int
    ) -> None:
        """Record a request that is forwarded although ACLs cannot judge it.

        `key` is its API and version, as in `DROPPED_BY_KAFKA_4`.
        """


class NoAuthorizer:
    """No authorizer: clients may do everything, but only super users administer the proxy."""

    records_uses = False

    def __init__(self, super_users: Iterable[str] = ()) -> None:
        self._super_users = frozenset(super_users)

    def admit(self, _connection: AuthorizedConnection, _identity: Identity) -> None:
        """Return no stage: nothing is judged."""

    def is_super_user(self, identity: Identity) -> bool:
        """Return whether a client may administer the proxy."""
        return not self._super_users.isdisjoint(identity.principals)

    def replace_super_users(self, super_users: Iterable[str]) -> None:
        """Replace the super users."""
        self._super_users = frozenset(super_users)

    def passes_unjudged(
        self, _connection: AuthorizedConnection, _identity: Identity, _key: int
    ) -> None:
        """Do nothing."""


class ConnectionQuotas(Protocol):
    """Quotas of clients; one object for all connections of a worker."""

    @property
    def clock(self) -> Callable[[], int]:
        """Clock for request time, in nanoseconds."""

    def throttle(
        self, identity: Identity, client_id: str | None, throttle: Throttle | None
    ) -> Throttle | None:
        """Return the connection's throttle with the quotas that apply now, creating it if needed.

        `throttle` is the existing one. None if no quota applies.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRules:
    """Rules for the connections of a listener.

    A reload makes new rules for new connections. Open connections use the new settings through
    `mechanisms` and `terms`, which return the current ones at each authentication.
    """

    listener: str
    """Name of the listener."""
    mechanisms: Mapping[str, Mechanism]
    """Mechanisms by name."""
    terms: Callable[[Identity, str, Claimed], Terms]
    """Function `terms(identity, mechanism, claimed)` that returns the rules of a session."""
    rights: ConnectionRights
    """Rights of clients."""
    sasl_max_receive_size: int
    """Maximum size of a frame before authentication, and of SASL's frames at any time, in bytes."""
    request_max_bytes: int
    """Maximum size of other frames, in bytes."""
    authentication_timeout: float
    """Time limit in seconds from connect to the end of the first authentication."""
    max_idle: float
    """Time limit in seconds without a byte in either direction."""
    max_age: float = inf
    """Time limit in seconds from connect to close; infinite for no limit."""
    failed_authentication_delay: float
    """Delay in seconds before the answer to a failed authentication, and the close."""
    quotas: ConnectionQuotas | None = None
    """Quotas of clients; None if quotas do not apply."""
    relays: RelaySettings | None = None
    """Settings of relayed logins; None if the proxy authenticates clients itself."""
    logs_in: bool = False
    """True if the proxy logs in to brokers, as itself or as the client."""
    presents_clients: bool = False
    """True if that login is the client's (`upstream.identity`)."""
    presents: Callable[[Authenticated], str | None] = lambda _session: None
    """Function that returns the client's principal in that login by the rules in force; None if
    they refuse it, or the login is the proxy's."""
    latency: LatencySampler = UNSAMPLED
    """Chooses the requests that are timed."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    """Memory for long requests of all connections of a worker."""
    unauthenticated_memory: MemoryBudget = field(default_factory=MemoryBudget)
    """Memory for long requests of unauthenticated clients."""
    blocks: BlockList = field(default_factory=BlockList)
    """Clients that an operator blocked."""


class UpstreamBroker(Protocol):
    """Broker of a connection."""

    @property
    def routes(self) -> Mapping[int, Route]:
        """Routes by `route_key`; empty until the broker's versions are known."""

    @property
    def api_versions(self) -> ApiVersionsAnswers | None:
        """Answers to ApiVersions; None if the broker has never been reached."""

    @property
    def identity(self) -> BrokerIdentity:
        """Cluster id and node ids of the broker, as far as they are known."""

    @property
    def offered(self) -> UpstreamVersions | None:
        """Versions that the broker offers; None if it has never been reached."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the broker."""

    def learn(self, brokers: Mapping[int, BrokerAddress]) -> None:
        """Record the cluster's brokers, by id."""

    @property
    def not_answered(self) -> frozenset[int]:
        """APIs that the proxy could answer, but does not for this listener."""

    @property
    def sasl_version(self) -> int:
        """Highest version of SaslAuthenticate that the broker offers; negative if it does not offer
        the API."""


class Observer(Protocol[AnyConnection]):
    """Observer of events of connections, called on the control path only."""

    def authenticated(self, connection: AnyConnection, session: Authenticated) -> None:
        """Handle an authentication or re-authentication that succeeded."""

    def authentication_failed(self, connection: AnyConnection, failed: Failed, now: float) -> None:
        """Handle an authentication or re-authentication that failed, or took too long. After
        ILLEGAL_STATE in a session the connection may continue."""

    def expired(
        self, connection: AnyConnection, session: Authenticated, api_key: int, now: float
    ) -> None:
        """Handle the use of an expired session, whose terms may require a close."""

    def misrouted(self, connection: AnyConnection, request: ApiVersionsRequest, now: float) -> None:
        """Handle a client that connected to the wrong broker (KIP-1242)."""

    def administered(self, connection: AnyConnection, request: Administered) -> None:
        """Handle an administrative request that was answered, or whose connection has ended."""

    def reached_broker(self, connection: AnyConnection) -> None:
        """Handle an upstream connection that is ready for the client's requests."""

    def logged_in(self, *, again: bool) -> None:
        """Handle a login of the proxy to a broker; `again` if it renewed its session (KIP-368)."""

    def login_failed(self, connection: AnyConnection, reason: str, *, again: bool) -> None:
        """Handle a failed login of the proxy to a broker; `reason` may be logged."""

    def closed(self, connection: AnyConnection, reason: CloseReason, now: float) -> None:
        """Handle the end of the connection; called exactly once."""
