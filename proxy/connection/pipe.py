"""Pipes: the first look at what is read from either side, and the one write of what passes.

They know which requests pass (`proxy.connection.fingerprints`), what is owed for them
(`proxy.connection.inflight`), how much may pass (`proxy.quota.throttle`) and how to write, and no
more. Laws:

- A pipe stops at the first frame that it may not pass, and leaves it to whoever looks closer.
- What passes is never copied, and leaves in one piece with what passed before it: requests when a
  read was dealt with (`flush`), or before anything else is written to the broker (`write`).
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from proxy.connection.fingerprints import (
    CORRELATED,
    UNLIMITED,
    Basis,
    Fingerprint,
    Fingerprints,
    pass_over,
)
from proxy.connection.frames import (
    COMPILED,
    SIZE,
    Bytes,
    Owed,
    Route,
    cut,
    int32_at,
    read_response_head,
)
from proxy.connection.inflight import InFlight
from proxy.connection.latency import LatencySampler
from proxy.quota.throttle import Throttle
from proxy.wire.apis import PRODUCE
from proxy.wire.throttle_times import HEAD

if TYPE_CHECKING:
    from mypy_extensions import i64


class RequestPipe:
    """The way of one client's requests to its broker."""

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
        """Time since which a request that was read waits, in monotonic seconds; inf: none does."""
        self.max_bytes = max_bytes
        """`socket.request.max.bytes`."""
        self.to_broker: Callable[[Bytes], None] | None = None
        """Writes to the broker; None: the upstream connection is not open."""
        self.requests = self.bytes = 0
        """Number and bytes of authenticated requests, also those answered here; not SASL's."""
        self.last_at: float | None = None
        """Time at which the last of them arrived, in monotonic seconds; None: there was none."""
        self.throttle: Throttle | None = None
        """Counts what is produced, and bounds what is fetched; None: nobody does."""
        self.produced = 0
        """Bytes of Produces that passed and were not counted yet; see `take_produced`."""
        self.left = 0
        """Bytes that are to come of a frame of which the broker has a part."""
        self.is_owed = False
        """True if the broker will answer that frame."""
        self.fingerprints = Fingerprints()
        """Fingerprints of frames that need no closer look."""
        self._usual: tuple[Fingerprint, ...] = ()
        """The one that a frame had last."""
        self._read: Bytes = b""
        """Bytes that were read, of which a part is to be written."""
        self._start = self._end = 0
        """Start and end of that part."""

    # What passes

    def remember(self, frame: Bytes, at: int, size: int, basis: Basis, route: Route) -> None:
        """Pass what is like the frame of `size` at `at` from now on, if that is worth it."""
        if basis.is_short:
            found = Fingerprint(frame, at, size, basis, route, self.max_bytes)
            self.fingerprints.add(found)
            self._usual = (found,)

    def forget(self) -> None:
        """Pass nothing without a closer look."""
        self.fingerprints.clear()
        self._usual = ()

    def pass_known(self, data: Bytes, start: int, now: float) -> int:
        """Forward the frames at `start` that are recognised; return where others begin."""
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
        """Time the request that was forwarded last, unless the broker has answered it already."""
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
        """Return how many Fetches that ask for so much may pass as they came."""
        if not throttle.bounds_fetches:
            return UNLIMITED
        if not throttle.passes_fetch(max_bytes, now):
            return 0
        at_once = throttle.fetches_left(max_bytes) - len(self.inflight)
        return at_once if at_once > 0 else int(not self.inflight.owes_fetch)

    def pass_one(
        self, data: Bytes, start: int, after: int, route: Route, now: float, *, is_owed: bool
    ) -> int:
        """Forward the frame at `start`, of which `after` is the end; what is owed is owed already.

        Returns where what is here of it ends.
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
            self.bytes += end  # all of a read, and nothing before it waits
            assert self.to_broker is not None
            self.to_broker(data if type(data) is bytes else cut(data, 0, end))
        else:
            self._put(data, start, after)
        return after

    def cut_through(self, data: Bytes, pos: int, now: float) -> int:
        """Forward what comes of the frame of which the broker has a part; return where it ends."""
        after = min(pos + self.left, len(data))
        self.left -= after - pos
        self._put(data, pos, after)
        if self.is_owed and now >= self.latency.due and not self.left:
            self._time_last(now)
        return after

    def cut_off(self) -> bool:
        """No more will come: of a frame that the broker has in part, no answer either.

        Returns whether there is one, behind which nothing else may be written.
        """
        left, self.left = self.left, 0
        if left and self.is_owed and self.inflight.queue:  # else the broker answered early
            self.inflight.forget_last()
        return left > 0

    def take_produced(self) -> int:
        """Take what is to count: the bytes of Produces, without their sizes."""
        produced, self.produced = self.produced, 0
        return produced

    def answered(self, size: int, now: float) -> None:
        """A request of `size` bytes behind its size field is answered by the proxy."""
        self.requests += 1
        self.bytes += SIZE.size + size
        self.last_at = now

    # What is written

    def _put(self, data: Bytes, start: int, end: int) -> None:
        self.bytes += end - start
        if data is not self._read or start != self._end:
            self.flush()
            self._read, self._start = data, start
        self._end = end

    def flush(self) -> None:
        """Write what was forwarded."""
        data, start, end = self._read, self._start, self._end
        if end == start:
            return
        self._read, self._start, self._end = b"", 0, 0
        assert self.to_broker is not None
        self.to_broker(cut(data, start, end))

    def write(self, frame: bytes) -> None:
        """Write a frame that was not read here, behind those that were."""
        self.flush()
        assert self.to_broker is not None
        self.to_broker(frame)


class ResponsePipe:
    """The way of one broker's responses to its client."""

    __slots__ = ("bytes", "inflight", "left", "throttle", "throttle_time_ms", "to_client")

    def __init__(self, inflight: InFlight, to_client: Callable[[Bytes], None]) -> None:
        self.inflight = inflight
        self.to_client = to_client
        """Writes to the client."""
        self.bytes = 0
        """Bytes sent to the client, the proxy's own answers included."""
        self.left = 0
        """Bytes that are to come of a response of which the client has a part."""
        self.throttle: Throttle | None = None
        """Counts what is fetched; None: nobody does."""
        self.throttle_time_ms = 0
        """Throttle time of the next response, which was counted already; 0: not counted yet."""

    def send(self, piece: Bytes) -> None:
        """Write to the client."""
        self.bytes += len(piece)
        self.to_client(piece)

    def pass_known(self, data: Bytes, start: int, looks_end: int, now: float) -> int:
        """Forward whole responses and the first bytes of one; return where a look is needed.

        Nothing is looked at behind `looks_end`.
        """
        count, queue = 0, self.inflight.queue
        budget = left = UNLIMITED if self.throttle is None else self._budget(now)
        pos, left = (
            _pass_bytes(data, start, looks_end, queue, left)
            if COMPILED and type(data) is bytes
            else (start, left)
        )
        try:
            while pos + 8 <= looks_end:
                size, correlation_id = read_response_head(data, pos)
                expected, route = queue[count]
                if expected != correlation_id or size < 4 or route.transform is not None:
                    break
                if route.metered:
                    if size <= left:
                        left -= size
                    elif self._stays(budget - left, size, len(data) - pos, now):
                        budget = left
                        break
                    else:
                        budget = left = self._budget(now)
                size += 4
                route.response_bytes += size
                pos += size
                count += 1
        except IndexError:  # nothing is owed: who looks closer says so
            pass
        if count:
            del queue[:count]
        if left < budget:
            self._spend(budget - left)
        if pos == start:
            return start
        end = pos if pos <= len(data) else len(data)
        self.left = pos - end
        self.bytes += end - start
        whole = end - start == len(data) and type(data) is bytes
        self.to_client(data if whole else cut(data, start, end))
        return end

    # What counts towards a quota

    def _budget(self, now: float) -> int:
        """Return how many bytes of metered responses pass without a closer look."""
        if self.throttle is None:
            return UNLIMITED
        return 0 if self.throttle_time_ms else self.throttle.fetch_room(now)

    def _spend(self, size: int) -> None:
        if self.throttle is not None:
            self.throttle.use_fetch_room(size)

    def _stays(self, used: int, size: int, here: int, now: float) -> bool:
        """Return whether a metered response is more than passed on; if it is not, it was counted.

        `used`: of the budget, by those before it. `here`: how many bytes of it are.
        """
        self._spend(used)
        if here < SIZE.size + min(size, HEAD):
            return True
        assert self.throttle is not None
        if not self.throttle_time_ms:
            self.throttle_time_ms = self.throttle.fetched(size, now)
        return self.throttle_time_ms > 0

    def count(self, throttle: Throttle, size: int, now: float) -> int:
        """Count the response that comes next, if it was not; return its throttle_time_ms."""
        ms = self.throttle_time_ms or throttle.fetched(size, now)
        self.throttle_time_ms = 0
        return ms


def _pass_bytes(
    data: bytes, start: "i64", looks_end: "i64", queue: list[Owed], budget: "i64"
) -> "tuple[i64, i64]":
    """Pass over the responses at `start` that are owed and pass as they came.

    What `ResponsePipe.pass_known` does where it is compiled. `budget`: bytes of metered ones that
    may be among them. Returns where others begin, and what is left of the budget.
    """
    pos = start
    left = budget
    count: i64 = 0
    while pos + 8 <= looks_end and count < len(queue):
        size = int32_at(data, pos)
        expected, route = queue[count]
        if expected != int32_at(data, pos + 4) or size < 4 or route.transform is not None:
            break
        if route.metered:
            if size > left:
                break
            left -= size
        size += 4
        route.response_bytes += size
        pos += size
        count += 1
    if count == 1:  # as usual, and a slice is dear
        queue.pop(0)
    elif count:
        del queue[:count]
    return pos, left
