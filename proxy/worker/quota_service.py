"""Quota service of a worker: loads quotas from the store, applies them to connections.

Changes in the store are read in a thread; the event loop takes them over, and then every connection
looks up which quotas apply to it, so that a change takes effect on open connections within about a
second.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter_ns
from typing import Final

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.brokers.access import Access
from proxy.brokers.service_connection import ServiceConnection, ask
from proxy.errors import BrokerFault
from proxy.quota.callback import Cluster, configured_callback
from proxy.quota.model import CachedQuotas, QuotaKey, QuotaStore
from proxy.quota.precedence import Tags
from proxy.quota.shared_memory import NANOSECONDS_PER_PERCENT, UsageTable
from proxy.quota.throttle import Mode, Throttle, Throttled
from proxy.quota.worker_quotas import WorkerQuotas, entry_of_tags
from proxy.scheduling.log_rate_limit import LogRateLimit
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.worker.endpoints import Endpoints
from sasl.identity import Identity

log = logging.getLogger(__name__)
throttles = logging.getLogger("proxy.throttles")

MAX_NAME_LOGGED: Final = 128
"""Largest length of a name in the log, in characters: clients choose their client ids."""


class QuotaService:
    """Quota service for all connections of one worker; its event loop uses it."""

    def __init__(
        self,
        settings: config.Quotas,
        store: QuotaStore,
        table: UsageTable,
        worker: int,
        *,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """Load the quotas of `store`; `clock`, in nanoseconds, times requests.

        Raises StoreError and ConfigError.
        """
        self._mode = Mode(settings.mode.value)
        self._stored = CachedQuotas(store)
        self._quotas = WorkerQuotas(
            table,
            worker,
            mode=self._mode,
            static=settings.static_defaults(),
            custom=configured_callback(
                settings.client_quota_callback_class, settings.client_quota_callback_configs
            ),
        )
        self._quotas.apply(self._stored.quotas)
        self._applied = self._stored.quotas
        self._generation = self._quotas.generation
        self.clock: Final = clock
        self._repeats = LogRateLimit()

    # Connections

    def throttle(
        self, identity: Identity, client_id: str | None, throttle: Throttle | None
    ) -> Throttle | None:
        """Return the throttle of a connection, creating it if needed, with the quotas that apply
        now; None if no quota applies."""
        who = identity.principal, client_id, identity.groups
        meters, bucket = self._quotas.meters(*who), self._quotas.bucket(*who)
        if throttle is not None:
            throttle.apply(meters, bucket)
        elif meters or bucket is not None:
            throttle = Throttle(meters, self._mode, self._report, bucket)
        return throttle

    def admit(self, address: str, now: float) -> float:
        """Count a new connection of an address (KIP-612).

        Returns 0, or for how many seconds to keep the connection unserved before it is closed.
        """
        ms = self._quotas.admit(address, now)
        if not ms:
            return 0.0
        self._log(QuotaKey.CONNECTION_CREATION_RATE, {"ip": address}, ms)
        return ms / 1_000 if self._mode is Mode.ENFORCE else 0.0

    # Changes

    def read(self) -> None:
        """Read changed quotas from the store; called in a thread.

        Raises StoreError: the last known quotas stay in force.
        """
        self._stored.refresh_if_changed()

    def take_over(self) -> bool:
        """Put the quotas that were read into effect; return whether connections must follow."""
        if self._applied is not self._stored.quotas:
            self._applied = self._stored.quotas
            self._quotas.apply(self._applied)
        self._quotas.tick()
        before, self._generation = self._generation, self._quotas.generation
        return before != self._generation

    async def follow(self, endpoints: Endpoints, access: Access, pause_s: float) -> None:
        """Pass the cluster to the callback whenever it differs from before; return at once without
        a callback."""
        before: Cluster | None = None
        fault = ""
        while self._quotas.has_callback:
            if (found := endpoints.any_broker()) is not None:
                broker, alone = found
                cluster = before
                try:
                    query = partial(_cluster, alone=alone)
                    cluster = await ask(broker.host, broker.port, access, query)
                    fault = ""
                except BrokerFault as error:
                    if error.reason != fault:
                        log.warning("partition leaders are unknown: %s", error.reason)
                    fault = error.reason
                if cluster is not None and cluster != before:
                    before = cluster
                    self._quotas.update_cluster_metadata(cluster)
            await asyncio.sleep(pause_s)

    def close(self) -> None:
        """Close the callback."""
        self._quotas.close()

    # Reports

    def _report(self, throttled: Throttled) -> None:
        self._log(throttled.quota_type.value, throttled.tags, throttled.throttle_time_ms)

    def _log(self, key: QuotaKey, tags: Tags, throttle_time_ms: int) -> None:
        """Log a throttle time, once a minute for each quota, within `LogRateLimit`."""
        named = {name: value for name, value in tags.items() if value}
        who = ascii(entry_of_tags(named)[:MAX_NAME_LOGGED])[1:-1]
        verb = "is" if self._mode is Mode.ENFORCE else "would be"
        text = f"{who} {verb} throttled for {throttle_time_ms} ms by {key.value}"
        line = self._repeats.line(f"{key.value} {who}", text, monotonic())
        if line is not None:
            throttles.info("%s", line)

    def collect(self, snapshot: Snapshot, now: float) -> None:
        """Add usage and throttling by entry."""
        for meter in self._quotas.open_meters:
            meter.rate(now)  # settles what was used so far
        for (key, entry), count in self._quotas.counts.items():
            labels = key.value, entry
            match key:
                case QuotaKey.REQUEST_PERCENTAGE:
                    snapshot.count(registry.QUOTA_REQUEST_TIME, count.used / 1e9, entry)
                case QuotaKey.CONNECTION_CREATION_RATE:
                    snapshot.count(registry.QUOTA_CONNECTIONS, count.used, entry)
                case QuotaKey.CONTROLLER_MUTATION_RATE:
                    snapshot.count(registry.QUOTA_MUTATIONS, count.used, entry)
                case _:
                    snapshot.count(registry.QUOTA_BYTES, count.used, *labels)
            snapshot.count(registry.QUOTA_THROTTLES, count.throttles, *labels)
            seconds = count.throttle_time_ms / 1_000
            snapshot.count(registry.QUOTA_THROTTLE_TIME, seconds, *labels)
        for key, entry, limit in self._quotas.limits():
            if key is QuotaKey.REQUEST_PERCENTAGE:
                limit /= NANOSECONDS_PER_PERCENT
            snapshot.gauge(registry.QUOTA_LIMIT, limit, key.value, entry)
        for fault, number in self._quotas.callback_faults.items():
            snapshot.count(registry.QUOTA_CALLBACK_FAULTS, number, fault.value)


# The cluster, for a custom callback: requested on short connections of the proxy's own

METADATA_VERSION: Final = 9
"""Version of Metadata: the first flexible one; later ones add topic ids, which are not needed
here."""
DESCRIBE_CONFIGS_VERSION: Final = 4
BROKER: Final = 4
"""The value of `ConfigResource.Type.BROKER`."""


async def _cluster(connection: ServiceConnection, *, alone: bool) -> Cluster:
    """Query a broker about the cluster. Raises BrokerFault.

    With `alone`, it is the only broker behind this proxy; otherwise all brokers are.
    """
    question = messages.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    response = await connection.asked(METADATA_VERSION, question, messages.MetadataResponse)
    brokers = frozenset(one.node_id for one in response.brokers)
    leaders: dict[str, list[int | None]] = {}
    for topic in response.topics:
        if topic.error_code == ErrorCode.NONE and topic.name is not None:
            partitions = sorted(topic.partitions, key=lambda one: one.partition_index)
            leaders[topic.name] = [
                None if one.leader_id < 0 else one.leader_id for one in partitions
            ]
    own = await _own_id(connection, brokers) if alone else None
    behind = brokers if not alone else frozenset() if own is None else frozenset({own})
    return Cluster(leaders=leaders, behind=behind)


async def _own_id(connection: ServiceConnection, brokers: frozenset[int]) -> int | None:
    """Return the broker's id: each broker describes no configuration but its own."""
    resource = messages.DescribeConfigsRequest.DescribeConfigsResource
    question = messages.DescribeConfigsRequest(
        resources=tuple(
            resource(resource_type=BROKER, resource_name=str(one)) for one in sorted(brokers)
        )
    )
    response = await connection.asked(
        DESCRIBE_CONFIGS_VERSION, question, messages.DescribeConfigsResponse
    )
    own = [one for one in response.results if one.error_code == ErrorCode.NONE]
    return int(own[0].resource_name) if len(own) == 1 else None
