"""Throttle of one connection: its throttle times, and the time until which it is held.

No sockets, no clock. The connection reports usage (`produced`, `fetched`, `spent`), puts the
returned throttle time into the response (`wire.throttle_times`), and does not read from the client
before `held_until`. Before its first request it calls `admits`. A hold only stops reading from the
client: responses are still sent, and the idle timeout, the expiry of the session and the drain at
shutdown continue.

As in Kafka, Produce requests and Fetch responses count with the size of the whole frame, including
those for denied topics and of super users, and every request counts with the time spent on it. As
in Kafka, a response to a Fetch or ShareFetch that arrives while the quota is exceeded is sent
without its records, and does not count. Unlike in Kafka, the response that first exceeds the quota
is always delivered; otherwise a response larger than the window allows would never be delivered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from proxy.quota.callback import ClientQuotaType
from proxy.quota.meter import Meter
from proxy.quota.precedence import Tags
from proxy.quota.token_bucket import Bucket
from proxy.wire.fetch_requests import NEXT_TO_NOTHING


class Mode(StrEnum):
    """Modes of quotas (`quotas.mode`)."""

    AUDIT = "audit"
    """Counts and reports exceeded quotas, but holds no client."""
    ENFORCE = "enforce"
    """Holds clients that exceed a quota."""


UNLIMITED: Final = 1 << 62
"""Bound that is never reached, in bytes or frames."""
MAX_BATCH_BYTES: Final = 1_048_576
"""Size in bytes of the largest batch, Kafka's `message.max.bytes`. A broker may return such a batch
even if a Fetch requests fewer bytes."""
RETURN_SECONDS: Final = 1.0
"""Time in seconds within which clients that were throttled until the same time are expected to
return."""
PRIORITY_SECONDS: Final = 0.1
"""Time in seconds for which one of these clients has priority. A broker with records responds to a
Fetch sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """Report that a quota was exceeded."""

    quota_type: ClientQuotaType
    tags: Tags
    """Tags of the exceeded quota."""
    throttle_time_ms: int
    enforced: bool
    """True if the connection is held; False in audit mode."""


Report = Callable[[Throttled], None]
"""Callback that records an exceeded quota in metrics and the log."""

ClientMeters = Mapping[ClientQuotaType, Meter]
"""Meters of the quotas that apply to a client; a type without a limit is missing."""


class Throttle:
    """Throttle of one connection with all its quotas."""

    __slots__ = (
        "_fetch",
        "_may_produce",
        "_may_request",
        "_priority_until",
        "_produce",
        "_report",
        "_request",
        "_silent_until",
        "enforced",
        "held_by",
        "held_until",
        "leaves_out",
        "mutations",
        "waits_until",
    )

    def __init__(
        self, meters: ClientMeters, mode: Mode, report: Report, mutations: Bucket | None = None
    ) -> None:
        self.enforced: Final = mode is Mode.ENFORCE
        """True if exceeded quotas hold the client; False in audit mode."""
        self._report = report
        self.held_until = 0.0
        """Time in monotonic seconds before which the proxy does not read from the client; in audit
        mode, before which it would not have read."""
        self.held_by: Throttled | None = None
        """Report that set `held_until`; None if no quota was exceeded."""
        self.leaves_out = False
        """True if the response last passed to `fetched` must be sent without its records."""
        self.waits_until = 0.0
        """Time in monotonic seconds until which the client's last Fetch throttled it. Until then it
        does not count as idle."""
        self._priority_until = 0.0
        """Time in monotonic seconds until which a response is delivered even if other clients
        exceed the quota."""
        self._silent_until: dict[ClientQuotaType, float] = {}
        """Time in monotonic seconds until which each quota would have held the connection in audit
        mode."""
        self._produce: Meter | None = None
        self._fetch: Meter | None = None
        self._request: Meter | None = None
        self.apply(meters, mutations)

    def apply(self, meters: ClientMeters, mutations: Bucket | None = None) -> None:
        """Replace the quotas, because they or the client id changed. `held_until` does not
        change."""
        produce, request = self._produce, self._request
        self._produce = meters.get(ClientQuotaType.PRODUCE)
        self._fetch = meters.get(ClientQuotaType.FETCH)
        self._request = meters.get(ClientQuotaType.REQUEST)
        self._may_produce = self._produce is produce
        """False if `admits` must check the first Produce."""
        self._may_request = self._request is request
        """False if `admits` must check the first request, for the quota of request time."""
        self.mutations = mutations
        """Bucket that is charged for topic mutations (`proxy.connection.mutation_quota`); None if
        there is no limit."""

    @property
    def is_new(self) -> bool:
        """True while `admits` must be called before a request is read."""
        return not (self._may_produce and self._may_request)

    def admits(self, now: float, *, produces: bool) -> bool:
        """Return whether a request may be read now; if not, it may be read at `held_until`.

        The first request under a quota on this connection waits as long as an open connection would
        be held now. Otherwise a throttled client could reconnect and continue immediately.
        """
        may_request, self._may_request = self._may_request, True
        if not may_request and self._holds(ClientQuotaType.REQUEST, self._request, now):
            return False
        if not produces or self._may_produce:
            return True
        self._may_produce = True
        return not self._holds(ClientQuotaType.PRODUCE, self._produce, now)

    def _holds(self, quota_type: ClientQuotaType, meter: Meter | None, now: float) -> bool:
        if meter is None or not self.enforced or not (ms := meter.exceeded(now)):
            return False
        self._exceeded(quota_type, meter, ms, now)
        return True

    @property
    def times_requests(self) -> bool:
        """True if `spent` must be called with the time of each request."""
        return self._request is not None

    def produced(self, size: int, now: float) -> int:
        """Record a Produce request of `size` bytes; return its throttle_time_ms."""
        meter = self._produce
        if meter is None or not (ms := meter.record(size, now)):
            return 0
        return self._exceeded(ClientQuotaType.PRODUCE, meter, ms, now)

    @property
    def bounds_fetches(self) -> bool:
        """True if the client can be held for fetched bytes, so that `max_bytes` of a Fetch must be
        bounded."""
        return self.enforced and self._fetch is not None

    def max_fetch_bytes(self, now: float) -> int:
        """Return the maximum number of bytes that a Fetch may request now, if `bounds_fetches`.

        That is `NEXT_TO_NOTHING` while the quota is exceeded, because the response will be left
        out. Clients that were throttled until the same time return together: the first of them may
        then request as much as it wants, and the others `NEXT_TO_NOTHING` until the first has its
        response. Otherwise the broker would send the same amount to all clients, but only one
        response would be delivered.

        In all other cases it is the usage that the quota allows in a window. It must not be less,
        because brokers truncate responses within a batch, and clients drop an incomplete batch.
        """
        meter = self._fetch
        assert meter is not None
        if meter.exceeded(now) or self._priority_until <= now < meter.priority_until:
            self._priority_until = 0.0
            return NEXT_TO_NOTHING
        if now < meter.returning_until:
            self._priority_until = meter.priority_until = now + PRIORITY_SECONDS
        return meter.max_at_once

    def passes_fetch(self, max_bytes: int, now: float) -> bool:
        """Return whether a Fetch may request `max_bytes` without a call of `max_fetch_bytes`, if
        `bounds_fetches`."""
        meter = self._fetch
        assert meter is not None
        return max_bytes <= meter.max_at_once and meter.is_calm(now)

    def fetches_left(self, max_bytes: int) -> int:
        """Return the number of Fetches with this `max_bytes` that together cannot exceed the
        quota."""
        meter = self._fetch
        assert meter is not None
        return int((meter.left - meter.pending) // max(max_bytes, MAX_BATCH_BYTES))

    def fetch_room(self, now: float) -> int:
        """Return the number of bytes of Fetch responses that may be recorded with `use_fetch_room`
        instead of `fetched`."""
        return UNLIMITED if self._fetch is None else self._fetch.room(now)

    def use_fetch_room(self, size: int) -> None:
        """Record Fetch responses of `size` bytes, within `fetch_room`."""
        if self._fetch is not None:
            self._fetch.use(size)

    def fetched(self, size: int, now: float) -> int:
        """Record a Fetch response of `size` bytes; return its throttle_time_ms.

        If the quota was exceeded before, the response does not count, and must be left out (see
        `leaves_out`).
        """
        meter, self.leaves_out = self._fetch, False
        if meter is None:
            return 0
        ms = meter.exceeded(now) if self.enforced and now >= self._priority_until else 0
        self.leaves_out = ms > 0
        ms = ms or meter.record(size, now)
        if not ms:
            return 0
        if self.enforced:
            self.waits_until = now + ms / 1_000
            meter.returning_until = self.waits_until + RETURN_SECONDS
        return self._exceeded(ClientQuotaType.FETCH, meter, ms, now)

    def spent(self, nanoseconds: int, now: float) -> int:
        """Record the thread time of a request in nanoseconds; return its throttle_time_ms."""
        meter = self._request
        if meter is None or not (ms := meter.record(nanoseconds, now)):
            return 0
        self._may_request = True  # the hold includes the usage of other clients
        return self._exceeded(ClientQuotaType.REQUEST, meter, ms, now)

    def left(self, nanoseconds: int, now: float) -> None:
        """Record the thread time, in nanoseconds, of requests that got no response because the
        client disconnected."""
        if self._request is not None:
            self._request.record(nanoseconds, now)
            self._request.settle(now)

    def closed(self, now: float) -> None:
        """Publish the pending usage, which must outlive the connection."""
        for meter in (self._produce, self._fetch):
            if meter is not None:
                meter.settle(now)

    def mutated(self, throttle_time_ms: int, now: float) -> int:
        """Record the throttle time of topic mutations that exceeded the quota; return the
        throttle_time_ms for the response."""
        if self.mutations is None:  # the quota was removed meanwhile
            return 0
        quota_type = ClientQuotaType.CONTROLLER_MUTATION
        return self._exceeded(quota_type, self.mutations, throttle_time_ms, now)

    def _exceeded(
        self, quota_type: ClientQuotaType, meter: Meter | Bucket, throttle_time_ms: int, now: float
    ) -> int:
        until = now + throttle_time_ms / 1_000
        if not self.enforced:
            if now < self._silent_until.get(quota_type, 0.0):
                return 0  # a held connection would not have used anything
            self._silent_until[quota_type] = until
        report = Throttled(
            quota_type=quota_type,
            tags=meter.tags,
            throttle_time_ms=throttle_time_ms,
            enforced=self.enforced,
        )
        if until > self.held_until:
            self.held_until, self.held_by = until, report
        meter.count.note(throttle_time_ms)
        self._report(report)
        return throttle_time_ms if self.enforced else 0
