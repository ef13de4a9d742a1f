"""A worker's quotas: from the store, applied to its connections, and what is told of it.

What changed in the store is read beside the event loop; the loop takes it over, and then every
connection is asked anew which quotas it falls under, so that a change takes effect on open
connections within about a second.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Final

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.connection import Connection
from proxy.frames import Bytes
from proxy.holds import Hold
from proxy.quota.callback import Cluster, configured_callback
from proxy.quota.meter import Count
from proxy.quota.model import QuotaKey
from proxy.quota.precedence import Tags
from proxy.quota.quotas import WorkerQuotas, entry_of_tags
from proxy.quota.shared import UsageTable
from proxy.quota.store import CachedQuotas, QuotaStore
from proxy.quota.throttle import Mode, Throttle, Throttled
from proxy.quota.window import NANOSECONDS_PER_PERCENT
from proxy.repeats import Repeats
from proxy.steps import Steps, T, timed
from proxy.throttling import Throttling

if TYPE_CHECKING:
    from proxy.mutations import MutationLimiter

log = logging.getLogger("proxy.throttles")

LONGEST_NAME_LOGGED: Final = 128
"""Characters: clients choose their client ids."""
_REQUEST_WAITS: Final = (
    Hold.NO_BROKER
    | Hold.WAITING
    | Hold.NO_ROOM
    | Hold.JUDGING
    | Hold.LOGIN
    | Hold.TURN
    | Hold.TOPICS
)
"""Why a client is held in front of a request that is to be answered: `resume` follows, or the
answer itself."""


class QuotaService:
    """How much clients may use, for all connections of one worker. Used by its event loop."""

    def __init__(
        self,
        settings: config.Quotas,
        store: QuotaStore,
        table: UsageTable,
        worker: int,
        *,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        """`clock`, in nanoseconds, is what requests are timed with. Raises StoreError,
        ConfigError."""
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
        self._clock = clock
        self._repeats = Repeats()

    # Connections

    def meter(self, connection: Connection, principal: str) -> None:
        """Have what a connection uses counted for the quotas that apply now, if any do."""
        meters = self._quotas.meters(principal, connection.client_id)
        bucket = self._quotas.bucket(principal, connection.client_id)
        connection.requests.guard(connection.requests.admission)  # a Fetch may be bounded now
        throttling = connection.requests.throttle
        if throttling is not None:
            throttling.used.apply(meters, bucket)
        elif meters or bucket is not None:
            used = Throttle(meters, self._mode, self._report, bucket)
            throttling = Throttling(connection, used)
            connection.requests.throttle = throttling
            connection.responses.meter(throttling.used, throttling.hold)
        if throttling is not None:
            Stopwatch.fit(connection, throttling, self._clock)
            throttling.mutations = None if bucket is None else self._limiter(connection, throttling)

    @staticmethod
    def _limiter(connection: Connection, throttling: Throttling) -> "MutationLimiter":
        from proxy.mutations import MutationLimiter  # with 16 MiB of schemas

        limiter = throttling.mutations
        return limiter or MutationLimiter(connection, throttling.used, throttling.hold)

    def changed(self, connection: Connection, _now: float) -> None:
        """Other quotas may apply to a connection's client now."""
        if (principal := connection.principal) is not None:
            self.meter(connection, principal)

    def admit(self, address: str, now: float) -> float:
        """Somebody connects; return 0, or for how long (seconds) to keep the connection unserved
        before it is closed (KIP-612)."""
        ms = self._quotas.admit(address, now)
        if not ms:
            return 0.0
        self._log(QuotaKey.CONNECTION_CREATION_RATE, {"ip": address}, ms)
        return ms / 1_000 if self._mode is Mode.ENFORCE else 0.0

    # Changes

    def read(self) -> None:
        """Read what changed in the store; to be called beside the event loop.

        Raises StoreError: the last known quotas stay in force.
        """
        self._stored.refresh_if_changed()

    def take_over(self) -> bool:
        """Apply what was read, about once a second; True: connections must be told."""
        if self._applied is not self._stored.quotas:
            self._applied = self._stored.quotas
            self._quotas.apply(self._applied)
        self._quotas.tick()
        before, self._generation = self._generation, self._quotas.generation
        return before != self._generation

    @property
    def wants_cluster(self) -> bool:
        """Whether a callback is to be told of the cluster."""
        return self._quotas.has_callback

    def update_cluster_metadata(self, cluster: Cluster) -> None:
        """Tell the callback of the cluster as it is now."""
        self._quotas.update_cluster_metadata(cluster)

    def close(self) -> None:
        """Let go of the callback."""
        self._quotas.close()

    @property
    def counts(self) -> Mapping[tuple[QuotaKey, str], Count]:
        """What was used and what followed, by key and entry."""
        return self._quotas.counts

    # What is told

    def _report(self, throttled: Throttled) -> None:
        self._log(throttled.quota_type.value, throttled.tags, throttled.throttle_time_ms)

    def _log(self, key: QuotaKey, tags: Tags, throttle_time_ms: int) -> None:
        """Log it, once a minute for each quota, and no more than `Repeats` lets pass."""
        named = {name: value for name, value in tags.items() if value}
        who = ascii(entry_of_tags(named)[:LONGEST_NAME_LOGGED])[1:-1]
        verb = "is" if self._mode is Mode.ENFORCE else "would be"
        text = f"{who} {verb} throttled for {throttle_time_ms} ms by {key.value}"
        line = self._repeats.line(f"{key.value} {who}", text, monotonic())
        if line is not None:
            log.info("%s", line)

    def collect(self, snapshot: Snapshot, now: float) -> None:
        """Add what was used and what followed, by entry."""
        for meter in self._quotas.open_meters:
            meter.rate(now)  # what is not settled yet is then
        for (key, entry), count in self.counts.items():
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


class Stopwatch:
    """Measures the time that one connection takes (request_percentage, KIP-124).

    It is charged where it can be told: with an answer of the proxy's own, before that leaves, or
    with the last response that is owed, when the bytes that were read are dealt with. What has no
    such answer yet is charged with what comes: the time for part of a request, for one that waits,
    for the broker's bytes. Only what nobody answers (a Produce with acks=0) is charged untold.
    """

    __slots__ = (
        "_began",
        "_charged",
        "_clock",
        "_connection",
        "_spent_ns",
        "_throttle",
        "_ticking",
    )

    def __init__(
        self, connection: Connection, throttle: Throttling, clock: Callable[[], int]
    ) -> None:
        self._connection = connection
        self._throttle = throttle
        self._clock = clock
        self._spent_ns = 0
        self._ticking = False
        self._began = 0
        """When the time began that is not in `_spent_ns` yet, while it is ticking."""
        self._charged = connection.requests.count
        """How many requests there were when time was charged last."""

    @classmethod
    def fit(cls, connection: Connection, throttle: Throttling, clock: Callable[[], int]) -> None:
        """Time a connection if, and as long as, it has such a quota."""
        if not throttle.used.times_requests:
            connection.stopwatch = None
        elif connection.stopwatch is None:
            connection.stopwatch = cls(connection, throttle, clock)

    def client_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the client."""
        self._run(partial(self._connection.requests.client_bytes, data), now)

    def broker_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the broker."""
        self._run(partial(self._connection.broker_bytes, data), now)

    def resume(self, now: float) -> None:
        """Have the client's requests go on that waited."""
        self._run(self._connection.requests.resume, now)

    def timed(self, steps: Steps[T]) -> Steps[T]:
        """Take long work's steps, and the time for them."""
        return timed(steps, self._took, self._clock)

    def _took(self, nanoseconds: int) -> None:
        self._spent_ns += nanoseconds

    def add(self, nanoseconds: int, now: float) -> None:
        """So much of a thread's time went into a request elsewhere."""
        self._took(nanoseconds)
        if self._connection.closed:
            self.close(now)

    def close(self, now: float) -> None:
        """The connection is closed: charge for what it has had.

        Or who asks for much, and does not wait for the answer, would have it for nothing.
        """
        self._throttle.used.left(self.lap(), now)

    def lap(self) -> int:
        """Return the time (ns) that was not charged yet, which the caller charges now."""
        if self._ticking:
            began, self._began = self._began, self._clock()
            self._spent_ns += self._began - began
        self._charged = self._connection.requests.count
        spent, self._spent_ns = self._spent_ns, 0
        return spent

    def _run(self, take: Callable[[float], None], now: float) -> None:
        if self._ticking:  # one side's bytes released a hold of the other
            take(now)
            return
        self._ticking, self._began = True, self._clock()
        try:
            take(now)
        finally:
            self._ticking = False
            self._spent_ns += self._clock() - self._began
        connection = self._connection
        if (
            connection.requests.count != self._charged
            and connection.requests.relaying
            and not (connection.closed or connection.holds & _REQUEST_WAITS)
            and (ms := self._throttle.used.spent(self.lap(), now))
        ):
            self._throttle.tell(ms, now)
