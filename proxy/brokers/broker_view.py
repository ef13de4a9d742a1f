"""View of a broker for one listener's connections: the versions it offers, and its routes."""

from collections.abc import Mapping
from typing import Final

from proxy.brokers.discovery import DiscoveredBroker
from proxy.connection.frames import (
    Check,
    Route,
    check_flexible_produce,
    check_produce,
    check_produce_before_v3,
    look_closer,
    route_key,
)
from proxy.wire.addresses import Resolve, rewrite
from proxy.wire.api_versions import ApiVersionsAnswers, BrokerIdentity, UpstreamVersions
from proxy.wire.apis import (
    FETCHES,
    FIND_COORDINATOR,
    MUTATIONS,
    PRODUCE,
    SASL_AUTHENTICATE,
    carries_addresses,
    forwarded,
    is_flexible,
    offers,
)
from proxy.wire.metadata import BrokerAddress
from proxy.wire.walks import APIS_CUT_THROUGH, LongFrameEndpoints

FIRST_WITH_TRANSACTIONS: Final = 3
"""First Produce version that begins with a transactional id (KIP-98)."""


class BrokerView:
    """View of a broker, updated with its versions; the counters of its routes are never reset."""

    __slots__ = (
        "_enforces_acls",
        "_metered",
        "_passes",
        "_resolve",
        "api_versions",
        "broker",
        "made",
        "not_answered",
        "routes",
    )

    def __init__(
        self,
        broker: DiscoveredBroker,
        resolve: Resolve | None,
        *,
        enforces_acls: bool = True,
        metered: bool = False,
        passes: frozenset[int] = frozenset(),
        not_answered: frozenset[int] = frozenset(),
    ) -> None:
        """Forward requests to `broker`.

        `resolve` returns the addresses that replace those in responses; without it, responses are
        not rewritten. With `enforces_acls`, only versions that ACLs can judge are forwarded. With
        `metered`, fetched bytes and created topics may count towards a quota. The proxy does not
        answer the APIs in `not_answered` for this listener; the broker answers those in `passes`.
        """
        self.broker = broker
        self.api_versions: ApiVersionsAnswers | None = None
        """Responses to ApiVersions for this broker; None if it has never been reached."""
        self.routes: Mapping[int, Route] = {}
        """The routes of requests that are forwarded, by `route_key`; open connections use them from
        their next request on."""
        self.made: dict[int, Route] = {}
        """All routes that were ever made, by `route_key`, with their counters."""
        self._resolve = resolve
        self._enforces_acls = enforces_acls
        self._metered = metered
        self._passes = passes
        self.not_answered = not_answered
        """APIs that the proxy does not answer for this listener, although it could."""
        if broker.versions is not None:
            self.offer(broker.versions)

    @property
    def sasl_version(self) -> int:
        """The broker's highest version of SaslAuthenticate; negative if it does not offer the
        API."""
        versions = self.broker.versions
        return -1 if versions is None else versions.apis.get(SASL_AUTHENTICATE, (0, -1))[1]

    @property
    def identity(self) -> BrokerIdentity:
        """The broker's cluster id, and its node ids: the one that was identified, and that of its
        port."""
        broker = self.broker
        if broker.broker_id is None or broker.broker_id in broker.identity.node_ids:
            return broker.identity
        return broker.identity._replace(node_ids={broker.broker_id, *broker.identity.node_ids})

    @property
    def offered(self) -> UpstreamVersions | None:
        """Versions that the broker itself offers; None if it was never reached."""
        return self.broker.versions

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which the broker is reached."""
        return self.broker.host, self.broker.port

    def learn(self, brokers: Mapping[int, BrokerAddress]) -> None:
        """Record the cluster's brokers, by id, like those in a response."""
        if self._resolve is not None:
            for broker_id, broker in brokers.items():
                self._resolve(broker_id, broker.host, broker.port)

    def offer(self, versions: UpstreamVersions) -> None:
        """Apply the versions that the broker offers."""
        enforces_acls, passes = self._enforces_acls, self._passes
        theirs = forwarded(versions.apis, enforces_acls=enforces_acls, passes=passes)
        self.routes = {
            route_key(api_key, version): self._route(api_key, version)
            for api_key, (low, high) in theirs.items()
            for version in range(low, high + 1)
        }
        announced = self.broker.announced or versions
        offered = offers(
            announced.apis, enforces_acls=enforces_acls, passes=passes, withholds=self.not_answered
        )
        self.api_versions = ApiVersionsAnswers(announced, offered)

    def _route(self, api_key: int, version: int) -> Route:
        key = route_key(api_key, version)
        if key not in self.made:
            self.made[key] = self._make(api_key, version)
        return self.made[key]

    def _make(self, api_key: int, version: int) -> Route:
        check: Check | None = None
        if api_key == PRODUCE:
            check = _check_of_produce(version)
        elif api_key in MUTATIONS and self._metered:
            check = look_closer
        resolve = self._resolve
        if resolve is None or not carries_addresses(api_key, version):
            return Route(api_key, version, check, metered=self._metered and api_key in FETCHES)

        def transform(content: bytes) -> bytes:
            return rewrite(api_key, version, content, resolve)

        def long_transform(size: int) -> LongFrameEndpoints:
            return LongFrameEndpoints(api_key, version, size)

        return Route(
            api_key,
            version,
            check,
            transform,
            long_transform if api_key in APIS_CUT_THROUGH else None,
            takes_long=api_key == FIND_COORDINATOR,  # an address for each key of the request
        )


def _check_of_produce(version: int) -> Check:
    if version < FIRST_WITH_TRANSACTIONS:
        return check_produce_before_v3
    return check_flexible_produce if is_flexible(PRODUCE, version) else check_produce
