"""Throttle of one connection: throttle times, and until when it is held.

No sockets, no clock. The connection asks three questions, with the bytes or the time used, and
carries out two things: it puts the answer into the response (`wire.throttle_times`), and does not
read from the client before `held_until`. A fourth is asked before its first request: `admits`.
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
    """What is done about a quota that is exceeded (`quotas.mode`)."""

    AUDIT = "audit"
    """It is counted and told; nobody is held."""
    ENFORCE = "enforce"


UNLIMITED: Final = 1 << 62
"""Bytes, or frames: as many as there are."""
LARGEST_BATCH: Final = 1_048_576
"""Bytes that a broker answers a Fetch with, whatever it asks for: Kafka's `message.max.bytes`."""
CROWD_SECONDS: Final = 1.0
"""In which those come back who were told to wait for the same moment."""
CLAIM_SECONDS: Final = 0.1
"""In which a broker answers a Fetch that there is something for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttled:
    """A quota was exceeded."""

    quota_type: ClientQuotaType
    tags: Tags
    throttle_time_ms: int
    enforced: bool
    """False: in audit, the connection would have been held for this time."""


Report = Callable[[Throttled], None]
"""Takes note of a throttling: metrics, log."""

ClientMeters = Mapping[ClientQuotaType, Meter]
"""The quotas that apply to a client; without a limit there is none."""


class Throttle:
    """The quotas of one connection."""

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
        """Whether anybody is held."""
        self._report = report
        self.held_until = 0.0
        """The moment, in monotonic seconds, before which the client is not to be read; in audit:
        would not have been."""
        self.leaves_out = False
        """Whether the client is to get nothing of what `fetched` was told last."""
        self.waits_until = 0.0
        """Until when the client was told to wait with its next Fetch: it is not idle before."""
        self._claimed_until = 0.0
        """Until when a response is delivered even if others exceed the quota meanwhile."""
        self._silent_until: dict[ClientQuotaType, float] = {}
        """In audit: until when each quota by itself would have held it."""
        self._produce: Meter | None = None
        self._fetch: Meter | None = None
        self._request: Meter | None = None
        self.apply(meters, mutations)

    def apply(self, meters: ClientMeters, mutations: Bucket | None = None) -> None:
        """Use other quotas from now on: they changed, or the client id did. A hold stays."""
        produce, request = self._produce, self._request
        self._produce = meters.get(ClientQuotaType.PRODUCE)
        self._fetch = meters.get(ClientQuotaType.FETCH)
        self._request = meters.get(ClientQuotaType.REQUEST)
        self._may_produce = self._produce is produce
        """Whether no Produce has to wait for what others used of its quota before."""
        self._may_request = self._request is request
        """The same for all requests, and the time that was used."""
        self.mutations = mutations
        """What is charged for topics; see `proxy.connection.mutation_quota`."""

    @property
    def is_new(self) -> bool:
        """Whether `admits` is to be asked."""
        return not (self._may_produce and self._may_request)

    def admits(self, now: float, *, produces: bool) -> bool:
        """Whether a request may be taken; False: not before `held_until`.

        The first one that a quota is used by, on this connection, waits for as long as a connection
        that is open already would be held now. Or who is throttled would reconnect, and go on.
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
        """Whether `spent` is to be told what requests take."""
        return self._request is not None

    def produced(self, size: int, now: float) -> int:
        """A Produce request of this size (bytes) came; return its throttle_time_ms."""
        meter = self._produce
        if meter is None or not (ms := meter.record(size, now)):
            return 0
        return self._exceeded(ClientQuotaType.PRODUCE, meter, ms, now)

    @property
    def bounds_fetches(self) -> bool:
        """Whether anybody is held for what is fetched."""
        return self.enforced and self._fetch is not None

    def most_fetched(self, now: float) -> int:
        """The most (bytes) that a Fetch may ask for now, where `bounds_fetches`.

        Next to nothing while the quota is exceeded: it will be left out. Those who are told to wait
        until it is not come back together; then the first gets what it asks for, and the others ask
        for next to nothing until it has. Or the broker would send to all what one will get.

        A window's worth else, not less: brokers cut off in the middle of a batch, and clients drop
        the part.
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
        """Whether a Fetch may ask for so much, where `bounds_fetches`, and nobody waits for the
        quota; else `most_fetched` says how much."""
        meter = self._fetch
        assert meter is not None
        return max_bytes <= meter.most_at_once and meter.is_calm(now)

    def fetches_left(self, max_bytes: int) -> int:
        """How many Fetches that ask for so much cannot together exceed the quota."""
        meter = self._fetch
        assert meter is not None
        return int((meter.left - meter.pending) // max(max_bytes, LARGEST_BATCH))

    def fetch_room(self, now: float) -> int:
        """How many bytes of Fetch responses pass for now without a call of `fetched`; whoever
        passes some calls `use_fetch_room`."""
        return UNLIMITED if self._fetch is None else self._fetch.room(now)

    def use_fetch_room(self, size: int) -> None:
        """Fetch responses of so many bytes, for which there was room, came."""
        if self._fetch is not None:
            self._fetch.use(size)

    def fetched(self, size: int, now: float) -> int:
        """A Fetch response of this size (bytes) came; return its throttle_time_ms.

        It is not counted, but left out (see `leaves_out`), if the quota was exceeded before.
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
        """So much of a thread's time went into a request; return its throttle_time_ms."""
        meter = self._request
        if meter is None or not (ms := meter.record(nanoseconds, now)):
            return 0
        self._may_request = True  # it is held as it is
        return self._exceeded(ClientQuotaType.REQUEST, meter, ms, now)

    def left(self, nanoseconds: int, now: float) -> None:
        """Its client is gone, and so much of a thread's time was not told in any response."""
        if self._request is not None:
            self._request.record(nanoseconds, now)
            self._request.settle(now)

    def closed(self, now: float) -> None:
        """The connection is over: what it used must outlast it."""
        for meter in (self._produce, self._fetch):
            if meter is not None:
                meter.settle(now)

    def mutated(self, throttle_time_ms: int, now: float) -> int:
        """Topics were changed, or not, beyond the quota; return the throttle_time_ms to be told."""
        if self.mutations is None:  # removed meanwhile
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
                return 0  # nor would it have used anything
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
