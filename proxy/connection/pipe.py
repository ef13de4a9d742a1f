"""Pipe: the first look at requests, and one write for all that are forwarded.

It knows which requests pass (`proxy.connection.fingerprints`), which responses they are owed
(`proxy.connection.inflight`), how many may pass (`proxy.quota.throttle`) and how to write. Rules:

- It stops at the first frame that it does not recognize.
- Forwarded bytes are never copied, and leave in one piece: when all of a read has been processed
  (`flush`), or before anything else is written to the broker (`write`).
"""

from collections.abc import Callable, Sequence
from math import inf

from proxy.connection.fingerprints import (
    CORRELATED,
    UNLIMITED,
    Basis,
    Fingerprint,
    Fingerprints,
    pass_over,
)
from proxy.connection.frames import SIZE, Bytes, Route, cut
from proxy.connection.inflight import InFlight, LatencySampler
from proxy.quota.throttle import Throttle
from proxy.wire.apis import PRODUCE


class RequestPipe:
    """Requests of one client on their way to its broker."""

    __slots__ = (
        "_end",
        "_read",
        "_start",
        "_usual",
        "bytes",
        "fingerprints",
        "inflight",
        "is_owed",
        "last_at",
        "latency",
        "left",
        "max_bytes",
        "produced",
        "requests",
        "throttle",
        "to_broker",
        "waiting_since",
    )

    def __init__(self, inflight: InFlight, max_bytes: int, latency: LatencySampler) -> None:
        self.inflight = inflight
        self.latency = latency
        """Chooses the requests that are timed."""
        self.waiting_since = inf
        """Time since which a request that was read has waited, in monotonic seconds; inf if no
        request waits."""
        self.max_bytes = max_bytes
        """`socket.request.max.bytes`."""
        self.to_broker: Callable[[Bytes], None] | None = None
        """Function that writes to the broker; None if the upstream connection is not open."""
        self.requests = self.bytes = 0
        """Number and bytes of authenticated requests, including those that the proxy answers, but
        not SASL's."""
        self.last_at: float | None = None
        """Time at which the last of them arrived, in monotonic seconds; None before the first."""
        self.throttle: Throttle | None = None
        """Counts produced bytes and bounds fetched ones; None without quotas."""
        self.produced = 0
        """Bytes of forwarded Produces that were not charged yet; see `take_produced`."""
        self.left = 0
        """Remaining bytes of a frame of which the broker was sent a part."""
        self.is_owed = False
        """True if the broker will answer that frame."""
        self.fingerprints = Fingerprints()
        """Fingerprints of frames that need no closer look."""
        self._usual: tuple[Fingerprint, ...] = ()
        """The fingerprint that matched last."""
        self._read: Bytes = b""
        """Bytes that were read, part of which is to be written."""
        self._start = self._end = 0
        """Start and end of that part."""

    # Forwarding

    def remember(self, frame: Bytes, at: int, size: int, basis: Basis, route: Route) -> None:
        """Recognize frames like that of `size` at `at` from now on, if the basis is short
        enough."""
        if basis.is_short:
            found = Fingerprint(frame, at, size, basis, route, self.max_bytes)
            self.fingerprints.add(found)
            self._usual = (found,)

    def forget(self) -> None:
        """Forget all fingerprints."""
        self.fingerprints.clear()
        self._usual = ()

    def pass_known(self, data: Bytes, start: int, now: float) -> int:
        """Forward the recognized frames at `start`; return the position after them."""
        pos, end, looked = start, len(data), False
        fingerprints: Sequence[Fingerprint] = self._usual
        queue = self.inflight.queue
        while True:
            at = pos
            for found in fingerprints:
                limit = UNLIMITED
                if found.max_bytes and self.throttle is not None:
                    limit = self._fetches_at_once(self.throttle, found.max_bytes, now)
                pos, count = pass_over(data, at, found, limit, queue)
                if count:
                    self._count(found.route, count, pos - at)
                    if found.tally is not None:
                        found.tally.add(count, pos - at, now)
                    if looked:
                        self._usual = (found,)
                    break
            if end - pos < CORRELATED or (looked and pos == at):
                break
            fingerprints, looked = self.fingerprints.of(data, pos), True
        if pos == start:
            return start
        pos = self._forward(data, start, pos, now)
        if now >= self.latency.due and not self.left:
            self._time_last(now)
        return pos

    def _time_last(self, now: float) -> None:
        """Time the last forwarded request, unless the broker has already answered it."""
        inflight = self.inflight
        if inflight.timed is None and inflight.queue:
            self.flush()
            inflight.timed = self.latency.begin(inflight.queue[-1], min(now, self.waiting_since))

    def _count(self, route: Route, count: int, size: int) -> None:
        route.requests += count
        route.request_bytes += size
        self.requests += count
        if self.throttle is not None and route.api_key == PRODUCE:
            self.produced += size - SIZE.size * count

    def _fetches_at_once(self, throttle: Throttle, max_bytes: int, now: float) -> int:
        """Return how many Fetches with this `max_bytes` may pass unchanged."""
        if not throttle.bounds_fetches:
            return UNLIMITED
        if not throttle.passes_fetch(max_bytes, now):
            return 0
        at_once = throttle.fetches_left(max_bytes) - len(self.inflight)
        return at_once if at_once > 0 else int(not self.inflight.owes_fetch)

    def pass_one(
        self, data: Bytes, start: int, after: int, route: Route, now: float, *, is_owed: bool
    ) -> int:
        """Forward the frame from `start` to `after`, whose entry is in the queue already.

        Returns the end of the available bytes.
        """
        self._count(route, 1, after - start)
        end = self._forward(data, start, after, now)
        self.is_owed = is_owed
        if is_owed and now >= self.latency.due and not self.left:
            self._time_last(now)
        return end

    def _forward(self, data: Bytes, start: int, after: int, now: float) -> int:
        end = len(data)
        self.last_at = now
        if after > end:
            self.left, self.is_owed = after - end, True
            after = end
        if after - start == end and self._start == self._end:
            self.bytes += end  # a whole read, with nothing waiting before it
            assert self.to_broker is not None
            self.to_broker(data if type(data) is bytes else cut(data, 0, end))
        else:
            self._put(data, start, after)
        return after

    def cut_through(self, data: Bytes, pos: int, now: float) -> int:
        """Forward the next bytes of a frame that was sent in part; return the position after
        them."""
        after = min(pos + self.left, len(data))
        self.left -= after - pos
        self._put(data, pos, after)
        if self.is_owed and now >= self.latency.due and not self.left:
            self._time_last(now)
        return after

    def cut_off(self) -> bool:
        """Handle the client's EOF: a frame that was sent in part stays incomplete, without a
        response.

        Returns whether there is such a frame; nothing may be written after it.
        """
        left, self.left = self.left, 0
        if left and self.is_owed and self.inflight.queue:  # else the broker answered early
            self.inflight.forget_last()
        return left > 0

    def take_produced(self) -> int:
        """Return the bytes of Produces to charge, without size fields, and reset them."""
        produced, self.produced = self.produced, 0
        return produced

    def answered(self, size: int, now: float) -> None:
        """Count a request of `size` bytes, without its size field, that the proxy answers."""
        self.requests += 1
        self.bytes += SIZE.size + size
        self.last_at = now

    # Writing

    def _put(self, data: Bytes, start: int, end: int) -> None:
        self.bytes += end - start
        if data is not self._read or start != self._end:
            self.flush()
            self._read, self._start = data, start
        self._end = end

    def flush(self) -> None:
        """Write the forwarded bytes."""
        data, start, end = self._read, self._start, self._end
        if end == start:
            return
        self._read, self._start, self._end = b"", 0, 0
        assert self.to_broker is not None
        self.to_broker(cut(data, start, end))

    def write(self, frame: bytes) -> None:
        """Write a frame of the proxy's own, after the forwarded bytes."""
        self.flush()
        assert self.to_broker is not None
        self.to_broker(frame)
