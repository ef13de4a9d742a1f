"""Quota stage: usage of one connection, requests that wait for it, and throttle times announced.

Request time is measured as its worker spends it (request_percentage, KIP-124). It is charged where
it can be announced: with an answer of the proxy's own before that is sent, or with the last
response owed, once all bytes of a read have been processed. Time without such a response (part of a
request, a waiting request, the broker's bytes) is charged with the next one. Only the time of a
request that is never answered (a Produce with acks=0) is charged unannounced.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy.connection.commands import Answer, Change, Close, CloseReason, Wait, WakeAt
from proxy.connection.fingerprints import CORRELATED, JUDGE_EACH, Basis
from proxy.connection.frames import MAX_BYTES_OF_A_LOOK, SIZE, Bytes
from proxy.connection.inflight import announcing
from proxy.connection.interfaces import UpstreamBroker
from proxy.connection.life import PauseReason
from proxy.connection.pipe import RequestPipe
from proxy.errors import BrokerFault
from proxy.quota.throttle import Throttle
from proxy.scheduling.steps import Steps, T, timed
from proxy.wire.apis import FETCHES, MUTATIONS, PRODUCE, SASL_APIS
from proxy.wire.fetch_requests import lowered, max_bytes_of_fetch
from proxy.wire.throttle_times import has_throttle_time, patch

if TYPE_CHECKING:
    from proxy.connection.mutation_quota import MutationLimiter


class Stopwatch:
    """Measures the time that one connection takes."""

    __slots__ = ("_began", "_charged", "_clock", "_pipe", "_spent_ns", "_ticking")

    def __init__(self, clock: Callable[[], int], pipe: RequestPipe) -> None:
        self._clock = clock
        self._pipe = pipe
        self._spent_ns = 0
        self._ticking = False
        self._began = 0
        """While it is ticking: start of the time that `_spent_ns` does not include, in ns."""
        self._charged = pipe.requests
        """Number of requests when time was last charged."""

    def start(self) -> bool:
        """Start measuring; return False if it is running already."""
        if self._ticking:
            return False
        self._ticking, self._began = True, self._clock()
        return True

    def stop(self) -> bool:
        """Stop measuring; return whether requests arrived to charge the time to."""
        self._ticking = False
        self._spent_ns += self._clock() - self._began
        return self._pipe.requests != self._charged

    def timed(self, steps: Steps[T]) -> Steps[T]:
        """Measure the steps of long work."""
        return timed(steps, self.add, self._clock)

    def add(self, nanoseconds: int) -> None:
        """Add time that was measured elsewhere."""
        self._spent_ns += nanoseconds

    def lap(self) -> int:
        """Return the time (ns) since the last call, which the caller charges now."""
        if self._ticking:
            began, self._began = self._began, self._clock()
            self._spent_ns += self._began - began
        self._charged = self._pipe.requests
        spent, self._spent_ns = self._spent_ns, 0
        return spent


class Throttling:
    """Quotas of one connection: throttle times, and which requests wait."""

    __slots__ = ("_pipe", "mutations", "stopwatch", "used")

    def __init__(self, used: Throttle, pipe: RequestPipe) -> None:
        self.used = used
        """Counter of the connection's usage."""
        self._pipe = pipe
        self.mutations: MutationLimiter | None = None
        """Limiter of topic creation and deletion; None without such a quota."""
        self.stopwatch: Stopwatch | None = None
        """Measures request time; None without such a quota."""

    def time_requests(self, clock: Callable[[], int]) -> None:
        """Start or stop measuring request time, as the current quotas require; `clock` is in ns."""
        if not self.used.times_requests:
            self.stopwatch = None
        elif self.stopwatch is None:
            self.stopwatch = Stopwatch(clock, self._pipe)

    def limit_mutations(self, target: UpstreamBroker, last_read: Callable[[], float]) -> None:
        """Start or stop limiting topic creation and deletion, as the current quotas require."""
        if self.used.mutations is None:
            self.mutations = None
        elif self.mutations is None:
            from proxy.connection.mutation_quota import MutationLimiter  # few clients need it

            self.mutations = MutationLimiter(self.used, target, last_read)

    def holds(self, now: float) -> bool:
        """Return whether the client must not be read now."""
        return self.used.enforced and now < self.used.held_until

    def announce(self, throttle_time_ms: int, api_key: int | None = None) -> None:
        """Announce the throttle time in the last response owed (to `api_key`, if given)."""
        self._pipe.inflight.amend_last(
            lambda owed: (
                api_key in (None, owed.api_key)
                and has_throttle_time(owed.api_key, owed.api_version)
            ),
            lambda owed: announcing(owed, throttle_time_ms),
        )

    def count_produced(self, now: float) -> bool:
        """Charge the Produces that were forwarded; return whether the quota is exceeded."""
        if ms := self.used.produced(self._pipe.take_produced(), now):
            self.announce(ms, PRODUCE)
        return ms > 0

    def charge_time(self, stopwatch: Stopwatch, now: float) -> bool:
        """Charge the measured time, and announce a throttle time in the last response; return
        whether the quota is exceeded."""
        if ms := self.used.spent(stopwatch.lap(), now):
            self.announce(ms)
        return ms > 0

    def closed(self, now: float) -> None:
        """Charge the rest when the connection closes.

        Otherwise a client that does not wait for its responses would pay nothing.
        """
        if self.stopwatch is not None:
            self.used.left(self.stopwatch.lap(), now)
        self.used.closed(now)

    def defer(self, api_key: int, now: float) -> Wait | None:
        """Return the verdict that makes a request wait; None if it need not wait.

        A request of a new connection waits until its principal's debt is paid, see
        `Throttle.admits`; a re-authentication never does. A Fetch waits until the broker has
        answered the one before it, because Kafka also processes them one by one: otherwise the
        broker would send data that was requested before the quota was known to be exceeded.
        """
        if (
            self.used.is_new
            and api_key not in SASL_APIS
            and not self.used.admits(now, produces=api_key == PRODUCE)
        ):
            return Wait(PauseReason.THROTTLED, WakeAt(self.used.held_until))
        if self.bounds(api_key) and self._pipe.inflight.owes_fetch:
            return Wait(PauseReason.IN_FLIGHT)
        return None

    def limits_mutations(self, api_key: int) -> bool:
        """Return whether a request's creations and deletions are limited."""
        return self.mutations is not None and api_key in MUTATIONS

    # A Fetch or ShareFetch under a consumer_byte_rate

    def bounds(self, api_key: int) -> bool:
        """Return whether a request is a Fetch whose bytes are limited, one at a time."""
        return api_key in FETCHES and self.used.bounds_fetches

    def lowers(self, max_bytes: int, now: float) -> bool:
        """Return whether a Fetch must ask for less than `max_bytes` now."""
        return self.used.bounds_fetches and not self.used.passes_fetch(max_bytes, now)

    def look(self, data: Bytes, pos: int, end: int, now: float) -> Basis | Change | Close | None:
        """Bound the Fetch at `pos` by its bytes before `end`; None if more bytes are needed."""
        size: int = SIZE.unpack_from(data, pos)[0]
        after = min(pos + SIZE.size + size, end)
        frame = bytes(data[pos:after])
        bounded = self.bounded(frame, now)
        if bounded is None:
            enough = after - pos == SIZE.size + size or after - pos > MAX_BYTES_OF_A_LOOK
            return Close(reason=CloseReason.MALFORMED_FRAME) if enough else None
        if bounded is not frame:
            return Change(bounded)
        asked = max_bytes_of_fetch(frame)
        if asked is None:
            return JUDGE_EACH
        max_bytes, after = asked
        return Basis(((CORRELATED, after),), max_bytes=max(1, max_bytes))

    def bounded(self, frame: bytes, now: float) -> bytes | None:
        """Return a Fetch that asks for no more than the quota allows; None if the frame is too
        short."""
        return lowered(frame, self.used.max_fetch_bytes(now))

    # The proxy's own answers

    def charged(self, answer: Answer, now: float) -> bytes:
        """Charge an answer of the proxy's own; return its frame, which announces the throttle time.

        An answer that denies a Fetch is sent even over quota: it has no records to leave out.
        """
        frame, ms, api_key = answer.frame, 0, answer.key >> 16
        if self.stopwatch is not None:
            ms = self.used.spent(self.stopwatch.lap(), now)
        if api_key in FETCHES:
            ms = max(ms, self.used.fetched(len(frame) - SIZE.size, now))
        ms = max(ms, answer.throttle_time_ms)
        if not ms:
            return frame
        try:
            content = patch(api_key, answer.key & 0xFFFF, frame[SIZE.size :], ms)
        except BrokerFault:  # our own answer: not worth the connection
            return frame
        return frame[: SIZE.size] + content
