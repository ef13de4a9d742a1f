"""Announcement of throttle times in responses.

The response is changed when it comes, and is never gathered for it unless the field stands at its
end (Produce).
"""

from typing import TYPE_CHECKING

from proxy.connection.commands import CloseReason
from proxy.connection.fingerprints import CORRELATED, JUDGE_EACH, UNLIMITED, Basis
from proxy.connection.frames import (
    MAX_BYTES_OF_A_LOOK,
    SIZE,
    Amendment,
    Bytes,
    LongTransform,
    Route,
)
from proxy.errors import BrokerFault
from proxy.quota.throttle import Throttle
from proxy.wire.apis import FETCHES, MUTATIONS, PRODUCE, SASL_APIS
from proxy.wire.fetch_bounds import lowered, max_bytes_of_fetch
from proxy.wire.throttle_times import has_throttle_time, is_first, patch, patch_in_place

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization
    from proxy.connection.connection import Connection
    from proxy.connection.mutation_quota import MutationLimiter


class Throttling:
    """Consequences of what one connection uses: throttle times, and holds."""

    __slots__ = ("_connection", "mutations", "used")

    def __init__(self, connection: "Connection", used: Throttle) -> None:
        self._connection = connection
        self.used = used
        """Counts what is used."""
        self.mutations: MutationLimiter | None = None
        """Limits the creation and deletion of topics; None: nobody does."""

    @property
    def held_until(self) -> float:
        """The moment, in monotonic seconds, before which the client is not to be read."""
        return self.used.held_until

    def tell(self, throttle_time_ms: int, now: float, api_key: int | None = None) -> None:
        """Tell the client in the response that it is owed last (to `api_key`), and hold it."""
        self._connection.inflight.amend_last(
            lambda owed: (
                api_key in (None, owed.api_key)
                and has_throttle_time(owed.api_key, owed.api_version)
            ),
            lambda owed: telling(owed, throttle_time_ms),
        )
        self.hold(now)

    def hold(self, now: float) -> None:
        """Have the client held; behind the frame that the broker has in part, if there is one."""
        if self._connection.pipe.left:
            self._connection.requests.held_behind = True
        else:
            self._connection.throttled(now)

    def admission(self, api_key: int) -> "RequestAuthorization | None":
        """Return who takes a request that is not judged otherwise; None: it passes."""
        if self.mutations is None or api_key not in MUTATIONS:
            return None
        return self.mutations.admission

    def produced(self, size: int, now: float) -> None:
        """Count Produces that were forwarded, of so many bytes."""
        if ms := self.used.produced(size, now):
            self.tell(ms, now, PRODUCE)

    # A Fetch or ShareFetch under a consumer_byte_rate

    def bounds(self, api_key: int) -> bool:
        """Return whether a request is a Fetch whose bytes are limited, one at a time."""
        return api_key in FETCHES and self.used.bounds_fetches

    def defers(self, api_key: int, now: float) -> bool:
        """Have a request of a new connection wait for what is owed already, see `Throttle.admits`;
        never a re-authentication. Have a Fetch wait until the broker answers the last, as Kafka
        takes them one by one.

        Or the broker would send what was asked for before it was known to be too much.
        """
        if (
            self.used.is_new
            and api_key not in SASL_APIS
            and not self.used.admits(now, produces=api_key == PRODUCE)
        ):
            self._connection.throttled(now)
            return True
        deferred = self.bounds(api_key) and self._connection.inflight.owes_fetch
        if deferred:
            self._connection.too_many_in_flight()
        return deferred

    def lowers(self, max_bytes: int, now: float) -> bool:
        """Return whether a Fetch may not ask for so much now."""
        return self.used.bounds_fetches and not self.used.passes_fetch(max_bytes, now)

    def fetches_at_once(self, max_bytes: int, now: float) -> int:
        """Return how many Fetches that ask for so much may pass as they came."""
        used, inflight = self.used, self._connection.inflight
        if not used.bounds_fetches:
            return UNLIMITED
        if not used.passes_fetch(max_bytes, now):
            return 0
        at_once = used.fetches_left(max_bytes) - len(inflight)
        return at_once if at_once > 0 else int(not inflight.owes_fetch)

    def relay_fetch(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Forward the Fetch at `pos`, bounded; return `pos` itself for want of bytes."""
        requests = self._connection.requests
        size: int = SIZE.unpack_from(data, pos)[0]
        after = min(pos + SIZE.size + size, end)
        frame = bytes(data[pos:after])
        bounded = self.bounded(frame, now)
        if bounded is None:
            if after - pos == SIZE.size + size or after - pos > MAX_BYTES_OF_A_LOOK:
                self._connection.end(CloseReason.MALFORMED_FRAME, now)
            return pos
        if bounded is frame:
            return requests.relay_one(data, pos, end, now, _basis(frame))
        return pos + requests.relay_one(bounded, 0, len(bounded), now, JUDGE_EACH)

    def bounded(self, frame: bytes, now: float) -> bytes | None:
        """Return a Fetch that asks for no more than it may; None: too little of it is here."""
        return lowered(frame, self.used.most_fetched(now))

    # What the proxy answers

    def answer(self, frame: bytes, key: int, now: float, ms: int = 0) -> None:
        """Answer the client, when its turn comes, and tell it what it has used; then hold it.

        `key`: API key and version of the answer, as `route_key` has them; below 0: it is SASL's,
        and what was used is told with the next. `ms`: throttle time of a Produce, at least.
        """
        if key >= 0:
            ms = max(ms, self._used_for(frame, key >> 16, now))
        self._connection.responses.answer(_told(frame, key, ms) if ms else frame)
        if ms:
            self.hold(now)

    def _used_for(self, frame: bytes, api_key: int, now: float) -> int:
        """Charge for an answer of the proxy's own; return its throttle_time_ms.

        One that denies a Fetch is delivered all the same: it has no records to be left out.
        """
        stopwatch = self._connection.stopwatch
        ms = 0 if stopwatch is None else self.used.spent(stopwatch.lap(), now)
        if api_key in FETCHES:
            ms = max(ms, self.used.fetched(len(frame) - SIZE.size, now))
        return ms


def _basis(frame: bytes) -> Basis:
    """Return the basis on which a Fetch may pass as it came: how much it asks for."""
    asked = max_bytes_of_fetch(frame)
    if asked is None:
        return JUDGE_EACH
    max_bytes, behind = asked
    return Basis(((CORRELATED, behind),), max_bytes=max(1, max_bytes))


def _told(frame: bytes, key: int, throttle_time_ms: int) -> bytes:
    try:
        content = patch(key >> 16, key & 0xFFFF, frame[SIZE.size :], throttle_time_ms)
    except BrokerFault:  # not the broker's, and not worth a connection
        return frame
    return frame[: SIZE.size] + content


def telling(owed: Route, throttle_time_ms: int) -> Amendment:
    """Return `owed`, so that its response tells at least this throttle time."""
    api_key, api_version = owed.api_key, owed.api_version

    def transform(content: bytes) -> bytes:
        changed = content if owed.transform is None else owed.transform(content)
        return patch(api_key, api_version, changed, throttle_time_ms)

    def long_transform(size: int) -> LongTransform:
        return ThrottledHead(owed, size, throttle_time_ms)

    in_passing = is_first(api_key, api_version) and (
        owed.long_transform is not None or owed.transform is None
    )
    return Amendment(owed, transform, long_transform if in_passing else None)


class ThrottledHead:
    """Tells the throttle time in the head of a response that is cut through."""

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
