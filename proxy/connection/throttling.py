"""Quota stage: what a client used, which requests wait for that, and how responses announce it.

A response is changed when it comes, and is never gathered for it unless the field stands at its
end (Produce).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from proxy.connection.commands import Close, CloseReason, WakeAt
from proxy.connection.fingerprints import CORRELATED, JUDGE_EACH, Basis
from proxy.connection.frames import (
    MAX_BYTES_OF_A_LOOK,
    SIZE,
    Amendment,
    Bytes,
    LongTransform,
    Route,
)
from proxy.connection.interfaces import UpstreamBroker
from proxy.connection.life import PauseReason
from proxy.connection.pipe import RequestPipe
from proxy.connection.request_time import Stopwatch
from proxy.connection.verdicts import Answer, Change, Wait
from proxy.errors import BrokerFault
from proxy.quota.throttle import Throttle
from proxy.wire.apis import FETCHES, MUTATIONS, PRODUCE, SASL_APIS
from proxy.wire.fetch_bounds import lowered, max_bytes_of_fetch
from proxy.wire.throttle_times import has_throttle_time, is_first, patch, patch_in_place

if TYPE_CHECKING:
    from proxy.connection.mutation_quota import MutationLimiter


class Throttling:
    """Quotas of one connection: throttle times, and which requests wait."""

    __slots__ = ("_pipe", "mutations", "stopwatch", "used")

    def __init__(self, used: Throttle, pipe: RequestPipe) -> None:
        self.used = used
        """Counts what is used."""
        self._pipe = pipe
        self.mutations: MutationLimiter | None = None
        """Limits the creation and deletion of topics; None: nobody does."""
        self.stopwatch: Stopwatch | None = None
        """Measures the time that the connection takes; None: nobody pays for it."""

    def time_requests(self, clock: Callable[[], int]) -> None:
        """Measure the time by `clock` (ns) if, and as long as, there is a quota for it."""
        if not self.used.times_requests:
            self.stopwatch = None
        elif self.stopwatch is None:
            self.stopwatch = Stopwatch(clock, self._pipe)

    def limit_mutations(self, target: UpstreamBroker, last_read: Callable[[], float]) -> None:
        """Limit the creation and deletion of topics if, and as long as, there is a quota for it."""
        if self.used.mutations is None:
            self.mutations = None
        elif self.mutations is None:
            from proxy.connection.mutation_quota import MutationLimiter  # with 16 MiB of schemas

            self.mutations = MutationLimiter(self.used, target, last_read)

    def holds(self, now: float) -> bool:
        """Return whether the client is not to be read now."""
        return self.used.enforced and now < self.used.held_until

    def announce(self, throttle_time_ms: int, api_key: int | None = None) -> None:
        """Announce the throttle time in the response that is owed last (to `api_key`)."""
        self._pipe.inflight.amend_last(
            lambda owed: (
                api_key in (None, owed.api_key)
                and has_throttle_time(owed.api_key, owed.api_version)
            ),
            lambda owed: announcing(owed, throttle_time_ms),
        )

    def count_produced(self, now: float) -> bool:
        """Count the Produces that passed; return whether that is too much."""
        if ms := self.used.produced(self._pipe.take_produced(), now):
            self.announce(ms, PRODUCE)
        return ms > 0

    def charge_time(self, stopwatch: Stopwatch, now: float) -> bool:
        """Charge for the time that was spent, and announce it with the last response; return
        whether that is too much."""
        if ms := self.used.spent(stopwatch.lap(), now):
            self.announce(ms)
        return ms > 0

    def closed(self, now: float) -> None:
        """The connection is closed: settle what it used.

        Or who asks for much, and does not wait for the answer, would have it for nothing.
        """
        if self.stopwatch is not None:
            self.used.left(self.stopwatch.lap(), now)
        self.used.closed(now)

    def defer(self, api_key: int, now: float) -> Wait | None:
        """Have a request wait; None: it does not have to.

        A request of a new connection waits for what is owed already, see `Throttle.admits`; never
        a re-authentication. A Fetch waits until the broker answers the last, as Kafka takes them
        one by one: or the broker would send what was asked for before it was known to be too much.
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
        """Return whether a request is limited in what it creates and deletes."""
        return self.mutations is not None and api_key in MUTATIONS

    # A Fetch or ShareFetch under a consumer_byte_rate

    def bounds(self, api_key: int) -> bool:
        """Return whether a request is a Fetch whose bytes are limited, one at a time."""
        return api_key in FETCHES and self.used.bounds_fetches

    def lowers(self, max_bytes: int, now: float) -> bool:
        """Return whether a Fetch may not ask for so much now."""
        return self.used.bounds_fetches and not self.used.passes_fetch(max_bytes, now)

    def look(self, data: Bytes, pos: int, end: int, now: float) -> Basis | Change | Close | None:
        """Bound the Fetch at `pos` by its bytes before `end`; None: they are too few."""
        size: int = SIZE.unpack_from(data, pos)[0]
        after = min(pos + SIZE.size + size, end)
        frame = bytes(data[pos:after])
        bounded = self.bounded(frame, now)
        if bounded is None:
            enough = after - pos == SIZE.size + size or after - pos > MAX_BYTES_OF_A_LOOK
            return Close(reason=CloseReason.MALFORMED_FRAME) if enough else None
        return _basis(frame) if bounded is frame else Change(bounded)

    def bounded(self, frame: bytes, now: float) -> bytes | None:
        """Return a Fetch that asks for no more than it may; None: too little of it is here."""
        return lowered(frame, self.used.max_fetch_bytes(now))

    # What the proxy answers

    def charged(self, answer: Answer, now: float) -> bytes:
        """Charge for an answer of the proxy's own; return its frame, which announces that.

        One that denies a Fetch is delivered all the same: it has no records to be left out.
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
        except BrokerFault:  # not the broker's, and not worth a connection
            return frame
        return frame[: SIZE.size] + content


def _basis(frame: bytes) -> Basis:
    """Return the basis on which a Fetch may pass as it came: how much it asks for."""
    asked = max_bytes_of_fetch(frame)
    if asked is None:
        return JUDGE_EACH
    max_bytes, behind = asked
    return Basis(((CORRELATED, behind),), max_bytes=max(1, max_bytes))


def announcing(owed: Route, throttle_time_ms: int) -> Amendment:
    """Return `owed`, so that its response announces at least this throttle time."""
    api_key, api_version = owed.api_key, owed.api_version

    def transform(content: bytes) -> bytes:
        changed = content if owed.transform is None else owed.transform(content)
        return patch(api_key, api_version, changed, throttle_time_ms)

    def long_transform(size: int) -> LongTransform:
        return ThrottledHead(owed, size, throttle_time_ms)

    is_last = has_throttle_time(api_key, api_version) and not is_first(api_key, api_version)
    in_passing = not is_last and (owed.long_transform is not None or owed.transform is None)
    return Amendment(owed, transform, long_transform if in_passing else None)


class ThrottledHead:
    """Announces the throttle time in the head of a response that is cut through."""

    __slots__ = ("_inner", "_owed", "_throttle_time_ms")

    def __init__(self, owed: Route, size: int, throttle_time_ms: int) -> None:
        """Do also what `owed` does to a response of this size."""
        self._owed = owed
        self._inner = None if owed.long_transform is None else owed.long_transform(size)
        self._throttle_time_ms = throttle_time_ms

    def feed(self, chunk: memoryview) -> None:
        """Take the next bytes behind the size field; the first are at least `HEAD`."""
        if self._throttle_time_ms:
            ms, self._throttle_time_ms = self._throttle_time_ms, 0
            patch_in_place(self._owed.api_key, self._owed.api_version, chunk, ms)
        if self._inner is not None:
            self._inner.feed(chunk)
