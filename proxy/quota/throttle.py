"""Throttle of one connection: throttle times, and until when it is held.

No sockets, no clock. The connection asks for three decisions, with the bytes or the time used, and
carries out two things: it puts the answer into the response (`wire.throttle_times`), and does not
read from the client before `held_until`. A fourth precedes its first request: `admits`.
Responses go on flowing, and so does everything that is not reading: the idle timeout, the session's
expiry, the drain at shutdown.

What counts, as in Kafka: a Produce request and a Fetch response by the bytes of the whole frame,
also for denied topics and super users; of each request the time spent on it. As in Kafka, a
response to a Fetch or ShareFetch that comes when the quota is exceeded is left out and does not
count. Unlike Kafka, the one that exceeds it is delivered, however large it is: what has to wait for
its whole size to fit into a window might wait for ever.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from proxy.quota.callback import ClientQuotaType
from proxy.quota.meter import Meter
from proxy.quota.precedence import Tags
from proxy.quota.token_bucket import Bucket
from proxy.wire.fetch_bounds import NEXT_TO_NOTHING


class Mode(StrEnum):
    """Modes of quotas (`quotas.mode`)."""

    AUDIT = "audit"
    """Counts and reports exceeded quotas, but holds no client."""
    ENFORCE = "enforce"


UNLIMITED: Final = 1 << 62
"""Bound that is never reached, in bytes or frames."""
LARGEST_BATCH: Final = 1_048_576
"""Size in bytes of the largest batch, which a broker may return whatever a Fetch requests: Kafka's
`message.max.bytes`."""
CROWD_SECONDS: Final = 1.0
"""Time in seconds within which clients return that were throttled until the same moment."""
CLAIM_SECONDS: Final = 0.1
"""Time in seconds within which a broker answers a Fetch for which it has records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """Report that a quota was exceeded."""

    quota_type: ClientQuotaType
    tags: Tags
    throttle_time_ms: int
    enforced: bool
    """True if the connection is held; False in audit, where it only would have been."""


Report = Callable[[Throttled], None]
"""Callback that records a throttling in metrics and the log."""

ClientMeters = Mapping[ClientQuotaType, Meter]
"""Meters of the quotas that apply to a client; a type without a limit is missing."""


class Throttle:
    """Throttle of one connection, by all its quotas."""

    __slots__ = (
        "_claimed_until",
        "_fetch",
        "_may_produce",
        "_may_request",
        "_produce",
        "_report",
        "_request",
        "_silent_until",
        "enforced",
        "held_until",
        "leaves_out",
        "mutations",
        "waits_until",
    )

    def __init__(
        self,
        meters: ClientMeters,
        mode: Mode,
        report: Report,
        mutations: Bucket | None = None,
    ) -> None:
        self.enforced: Final = mode is Mode.ENFORCE
        """True if exceeded quotas hold the client; False in audit."""
        self._report = report
        self.held_until = 0.0
        """Time in monotonic seconds before which the client is not read; in audit, before which it
        would not have been."""
        self.leaves_out = False
        """True if the response last passed to `fetched` is to be sent without its records."""
        self.waits_until = 0.0
        """Time in monotonic seconds until which the client was throttled before its next Fetch: it
        does not count as idle before."""
        self._claimed_until = 0.0
        """Time in monotonic seconds until which a response is delivered even if others exceed the
        quota meanwhile."""
        self._silent_until: dict[ClientQuotaType, float] = {}
        """Time in monotonic seconds until which, in audit, each quota alone would have held the
        connection."""
        self._produce: Meter | None = None
        self._fetch: Meter | None = None
        self._request: Meter | None = None
        self.apply(meters, mutations)

    def apply(self, meters: ClientMeters, mutations: Bucket | None = None) -> None:
        """Replace the quotas, because they or the client id changed. A hold stays."""
        produce, request = self._produce, self._request
        self._produce = meters.get(ClientQuotaType.PRODUCE)
        self._fetch = meters.get(ClientQuotaType.FETCH)
        self._request = meters.get(ClientQuotaType.REQUEST)
        self._may_produce = self._produce is produce
        """True if no Produce has to wait for usage by others from before this connection."""
        self._may_request = self._request is request
        """True if no request has to wait for usage by others, in the quota of request time."""
        self.mutations = mutations
        """Bucket that is charged for topic mutations, None if there is no limit; see
        `proxy.connection.mutation_quota`."""

    @property
    def is_new(self) -> bool:
        """True while `admits` has to be called before a request is read."""
        return not (self._may_produce and self._may_request)

    def admits(self, now: float, *, produces: bool) -> bool:
        """Return whether a request may be read; if False, not before `held_until`.

        The first request under a quota on this connection waits for as long as an open connection
        would be held now. Otherwise a throttled client could reconnect, and go on.
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
        """True if `spent` is to be called with the time of each request."""
        return self._request is not None

    def produced(self, size: int, now: float) -> int:
        """Record a Produce request of `size` bytes; return its throttle_time_ms."""
        meter = self._produce
        if meter is None or not (ms := meter.record(size, now)):
            return 0
        return self._exceeded(ClientQuotaType.PRODUCE, meter, ms, now)

    @property
    def bounds_fetches(self) -> bool:
        """True if fetched bytes can hold the client."""
        return self.enforced and self._fetch is not None

    def most_fetched(self, now: float) -> int:
        """Return the maximum number of bytes that a Fetch may request now, where `bounds_fetches`.

        Next to nothing while the quota is exceeded, because the response will be left out. Clients
        that were throttled until the same moment return together; then the first gets what it
        requests, and the others request next to nothing until it has. Otherwise the broker would
        send to all of them what only one will receive.

        Otherwise a window's worth and not less: brokers truncate responses in the middle of a
        batch, and clients drop the incomplete batch.
        """
        meter = self._fetch
        assert meter is not None
        if meter.exceeded(now) or self._claimed_until <= now < meter.claimed_until:
            self._claimed_until = 0.0
            return NEXT_TO_NOTHING
        if now < meter.crowded_until:
            self._claimed_until = meter.claimed_until = now + CLAIM_SECONDS
        return meter.most_at_once

    def passes_fetch(self, max_bytes: int, now: float) -> bool:
        """Return whether a Fetch may request `max_bytes`, where `bounds_fetches`, and no client
        waits for the quota; otherwise `most_fetched` returns the bound."""
        meter = self._fetch
        assert meter is not None
        return max_bytes <= meter.most_at_once and meter.is_calm(now)

    def fetches_left(self, max_bytes: int) -> int:
        """Return the number of Fetches of `max_bytes` each that together cannot exceed the
        quota."""
        meter = self._fetch
        assert meter is not None
        return int((meter.left - meter.pending) // max(max_bytes, LARGEST_BATCH))

    def fetch_room(self, now: float) -> int:
        """Return the number of bytes of Fetch responses that may pass without a call of `fetched`;
        such bytes are recorded with `use_fetch_room`."""
        return UNLIMITED if self._fetch is None else self._fetch.room(now)

    def use_fetch_room(self, size: int) -> None:
        """Record Fetch responses of `size` bytes, within `fetch_room`."""
        if self._fetch is not None:
            self._fetch.use(size)

    def fetched(self, size: int, now: float) -> int:
        """Record a Fetch response of `size` bytes; return its throttle_time_ms.

        If the quota was exceeded before, the response is left out (see `leaves_out`) and not
        counted.
        """
        meter, self.leaves_out = self._fetch, False
        if meter is None:
            return 0
        ms = meter.exceeded(now) if self.enforced and now >= self._claimed_until else 0
        self.leaves_out = ms > 0
        ms = ms or meter.record(size, now)
        if not ms:
            return 0
        if self.enforced:
            self.waits_until = now + ms / 1_000
            meter.crowded_until = self.waits_until + CROWD_SECONDS
        return self._exceeded(ClientQuotaType.FETCH, meter, ms, now)

    def spent(self, nanoseconds: int, now: float) -> int:
        """Record the thread's time for a request, in nanoseconds; return its throttle_time_ms."""
        meter = self._request
        if meter is None or not (ms := meter.record(nanoseconds, now)):
            return 0
        self._may_request = True  # this hold covers what others used
        return self._exceeded(ClientQuotaType.REQUEST, meter, ms, now)

    def left(self, nanoseconds: int, now: float) -> None:
        """Record the thread's time, in nanoseconds, that no response reports because the client is
        gone."""
        if self._request is not None:
            self._request.record(nanoseconds, now)
            self._request.settle(now)

    def closed(self, now: float) -> None:
        """Settle the meters: the usage must outlast the connection."""
        for meter in (self._produce, self._fetch):
            if meter is not None:
                meter.settle(now)

    def mutated(self, throttle_time_ms: int, now: float) -> int:
        """Record that topic mutations exceeded the quota, or did not; return the
        throttle_time_ms."""
        if self.mutations is None:  # the quota was removed meanwhile
            return 0
        quota_type = ClientQuotaType.CONTROLLER_MUTATION
        return self._exceeded(quota_type, self.mutations, throttle_time_ms, now)

    def _exceeded(
        self,
        quota_type: ClientQuotaType,
        meter: Meter | Bucket,
        throttle_time_ms: int,
        now: float,
    ) -> int:
        until = now + throttle_time_ms / 1_000
        if not self.enforced:
            if now < self._silent_until.get(quota_type, 0.0):
                return 0  # a held connection would not have used anything
            self._silent_until[quota_type] = until
        self.held_until = max(self.held_until, until)
        meter.count.note(throttle_time_ms)
        self._report(
            Throttled(
                quota_type=quota_type,
                tags=meter.tags,
                throttle_time_ms=throttle_time_ms,
                enforced=self.enforced,
            )
        )
        return throttle_time_ms if self.enforced else 0
