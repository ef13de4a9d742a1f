"""Quotas of one worker: those that apply to a client, their usage, and their changes.

This is the package's interface to the worker. The worker creates one `WorkerQuotas`, with the
`UsageTable` that its parent created for all workers before it forked, and calls

- `apply` when the store's quotas changed, `update_cluster_metadata` when the cluster changed, and
  `tick` once a second;
- `meters` and `bucket` at the first request of a connection, and again when `generation` has
  changed, so that changes take effect at the next request;
- `admit` when a client connects.
"""

from collections.abc import Mapping
from typing import Final
from weakref import WeakValueDictionary

from proxy.quota.callback import (
    ClientPrincipal,
    ClientQuotaType,
    Cluster,
    DefaultQuotaCallback,
    QuotaCallback,
    user_name,
)
from proxy.quota.guarded_callback import Fault, GuardedCallback
from proxy.quota.meter import Meter
from proxy.quota.model import QuotaEntity, QuotaKey, Quotas
from proxy.quota.precedence import Index, IpLimits, StaticDefaults, Tags
from proxy.quota.shared_memory import (
    MAX_THROTTLE_TIME_MS,
    NANOSECONDS_PER_PERCENT,
    Count,
    UsageTable,
)
from proxy.quota.throttle import ClientMeters, Mode
from proxy.quota.token_bucket import Bucket

METERED: Final = (ClientQuotaType.PRODUCE, ClientQuotaType.FETCH, ClientQuotaType.REQUEST)
"""Types that are measured as rates. Mutations have a bucket instead."""
_CONNECTIONS: Final = QuotaKey.CONNECTION_CREATION_RATE
STATIC_ENTRY: Final = "quota.*.default"
"""Name of the static defaults, in place of an entry's name."""
MAX_COUNTS: Final = 2_000
"""Maximum number of entries with their own counter."""
OTHER_ENTRIES: Final = "other"
"""Name under which all further entries are counted."""
MAX_ENTRY: Final = 256
"""Maximum length of an entry's name in characters."""


class WorkerQuotas:
    """Quotas of one worker. The docstring of the module describes its use."""

    def __init__(
        self,
        table: UsageTable,
        worker: int,
        *,
        mode: Mode,
        static: StaticDefaults,
        custom: QuotaCallback | None = None,
    ) -> None:
        """Apply quotas for `worker`, numbered from 0. `custom` is the configured callback, or
        None."""
        self.mode = mode
        self.counts: dict[tuple[QuotaKey, str], Count] = {}
        """Counters by key and entry: at most `MAX_COUNTS`, and for each key one of
        `OTHER_ENTRIES`."""
        self._table = table
        self._worker = worker
        self._static = static
        self._quotas: Quotas = {}
        self._index, self._ip_limits = Index({}, static), IpLimits({})
        self._changes = 0
        self._default = DefaultQuotaCallback(static)
        self._custom = None if custom is None else GuardedCallback(custom, self._default)
        self._meters: WeakValueDictionary[tuple[str, frozenset[tuple[str, str]]], Meter] = (
            WeakValueDictionary()
        )
        self._buckets: WeakValueDictionary[frozenset[tuple[str, str]], Bucket] = (
            WeakValueDictionary()
        )

    @property
    def generation(self) -> int:
        """Number that increases whenever the results of `meters` may change."""
        return self._changes + (self._custom.generation if self._custom is not None else 0)

    @property
    def callback_faults(self) -> Mapping[Fault, int]:
        """Number of faults of the configured callback, by kind."""
        return self._custom.faults if self._custom is not None else {}

    @property
    def has_callback(self) -> bool:
        """True if a custom callback is configured."""
        return self._custom is not None

    @property
    def open_meters(self) -> list[Meter]:
        """Meters that this worker's connections use now, for metrics."""
        return list(self._meters.values())

    def limits(self) -> list[tuple[QuotaKey, str, float]]:
        """Return key, entry and limit of the quotas that are in use now, for metrics."""
        used: list[Meter | Bucket] = [*self._meters.values(), *self._buckets.values()]
        return [(QuotaKey(one.kind), one.entry, one.limit) for one in used]

    def apply(self, quotas: Quotas) -> None:
        """Replace the quotas with the store's current ones."""
        callback = self._custom or self._default
        for entity in self._quotas.keys() | quotas.keys():
            before, after = self._quotas.get(entity, {}), quotas.get(entity, {})
            for quota_type in ClientQuotaType:
                old, new = before.get(quota_type.value), after.get(quota_type.value)
                if new is None and old is not None:
                    callback.remove_quota(quota_type, entity)
                elif new is not None and new != old:
                    callback.update_quota(quota_type, entity, new)
        self._quotas = quotas
        self._index, self._ip_limits = Index(quotas, self._static), IpLimits(quotas)
        self._changes += 1

    def update_cluster_metadata(self, cluster: Cluster) -> None:
        """Replace the state of the cluster."""
        if self._custom is not None:
            self._custom.update_cluster_metadata(cluster)

    def tick(self) -> None:
        """Check whether the callback's limits changed. Called about once a second."""
        if self._custom is not None:
            self._custom.check_reset()

    def close(self) -> None:
        """Close the callback."""
        if self._custom is not None:
            self._custom.close()

    def meters(
        self, principal: str, client_id: str | None, groups: tuple[str, ...] = ()
    ) -> ClientMeters:
        """Return the meters of a client; empty if it has no quotas."""
        found: dict[ClientQuotaType, Meter] = {}
        for quota_type in METERED:
            applied = self._applied(quota_type, principal, client_id or "", groups)
            if applied is not None:
                found[quota_type] = self._meter(quota_type, *applied)
        return found

    def bucket(
        self, principal: str, client_id: str | None, groups: tuple[str, ...] = ()
    ) -> Bucket | None:
        """Return the bucket for a client's controller_mutation_rate; None if it has no such
        quota."""
        quota_type = ClientQuotaType.CONTROLLER_MUTATION
        applied = self._applied(quota_type, principal, client_id or "", groups)
        if applied is None:
            return None
        tags, limit, entry = applied
        key = frozenset(tags.items())
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(
                self._table, self._worker, kind=quota_type.value.value, tags=tags, limit=limit
            )
        bucket.limit = limit
        bucket.entry, bucket.count = self._counted(quota_type.value, entry)
        return bucket

    def _applied(
        self, quota_type: ClientQuotaType, principal: str, client_id: str, groups: tuple[str, ...]
    ) -> tuple[Tags, float, str] | None:
        """Return tags, limit and entry of the quota that applies to a client; None if no quota
        applies."""
        if self._custom is not None:
            tags = self._custom.tags(quota_type, ClientPrincipal(principal, groups), client_id)
            limit = self._custom.limit(quota_type, tags)
            return None if limit is None else (tags, limit, entry_of_tags(tags))
        applied = self._index.applied(quota_type.value, user_name(principal), client_id)
        if applied is None:
            return None
        entry = STATIC_ENTRY
        if applied.names is not None:
            user, client = applied.names
            entry = QuotaEntity(user=user, client_id=client).entity_path
        return applied.tags, applied.limit, entry

    def _meter(self, quota_type: ClientQuotaType, tags: Tags, limit: float, entry: str) -> Meter:
        key = quota_type.value
        if quota_type is ClientQuotaType.PRODUCE:
            return self._shared_meter(key, tags, limit, entry)
        if quota_type is ClientQuotaType.FETCH:
            # A window, about the maximum in Kafka; the next throttle time includes the rest of a
            # debt
            max_throttle_ms = self._table.config.num * self._table.config.size_ms
            return self._shared_meter(key, tags, limit, entry, max_throttle_ms)
        # As in Kafka, at most one sample for request time
        max_throttle_ms = self._table.config.size_ms
        return self._shared_meter(
            key, tags, limit * NANOSECONDS_PER_PERCENT, entry, max_throttle_ms
        )

    def _shared_meter(
        self,
        quota: QuotaKey,
        tags: Tags,
        limit: float,
        entry: str,
        max_throttle_ms: int = MAX_THROTTLE_TIME_MS,
    ) -> Meter:
        key = quota.value, frozenset(tags.items())
        meter = self._meters.get(key)
        if meter is None:
            meter = self._meters[key] = Meter(
                self._table,
                self._worker,
                kind=quota.value,
                tags=tags,
                limit=limit,
                max_throttle_ms=max_throttle_ms,
                keeps_debts=self.mode is Mode.ENFORCE,
            )
        if meter.limit != limit:
            meter.limit = limit
        meter.entry, meter.count = self._counted(quota, entry)
        return meter

    def _counted(self, quota: QuotaKey, entry: str) -> tuple[str, Count]:
        """Return the name under which an entry is counted, and its counter."""
        if (quota, entry) not in self.counts and len(self.counts) >= MAX_COUNTS:
            entry = OTHER_ENTRIES
        return entry, self.counts.setdefault((quota, entry), Count())

    def admit(self, address: str, now: float) -> int:
        """Record a connection from this address; return 0 to admit it. Otherwise return the time in
        ms for which the caller must keep it open without serving it before closing it, as in Kafka
        (KIP-612).

        A connection that is not admitted is not counted. In audit mode the caller reports it, and
        serves the connection.
        """
        found = self._ip_limits.limit(address)
        if found is None:
            return 0
        limit, name = found
        tags = {"ip": address}
        max_throttle_ms = self._table.config.size_ms
        meter = self._shared_meter(_CONNECTIONS, tags, limit, f"ips/{name}", max_throttle_ms)
        ms = meter.try_record(1, now)
        if ms:
            meter.count.note(ms)
        return ms


def entry_of_tags(tags: Tags) -> str:
    """Return the name of a custom callback's quota, from its tags."""
    return ",".join(f"{name}={value}" for name, value in sorted(tags.items()))[:MAX_ENTRY]
