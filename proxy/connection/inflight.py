"""In-flight queue of one connection: the responses owed, in the order of the requests.

Rules:

- Only this module changes the queue, except that the pipes append and remove plain routes, several
  at a time.
- Responses leave in the order of their requests, whether broker or proxy answers.
- An entry is a correlation id and one of four objects: a `Route`, if the broker owes the response;
  an `Amendment`, if this one response is changed; a `Question`, if the proxy consumes the response;
  an `Answer` of the proxy's own that waits for the responses before it.

Latency is sampled. A listener of a worker begins to time at most one request per `SAMPLE_SECONDS`,
and a connection times one request at a time: under low load that is every request, under high load
the cost stays constant. The broker's part begins when the whole request has been written to it, and
ends with the first bytes of its response. The proxy's part is the rest: from the read that
completed the request, or at which it began to wait (for a judgement, memory, a quota, a
connection), and from the read that completed the response.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from proxy.acl.decision import BodyTransform
from proxy.connection.frames import LongTransform, Owed, Route, Transform
from proxy.errors import BrokerFault
from proxy.wire.apis import FETCHES, response_body_at
from proxy.wire.fetch_requests import SESSION_BYTES
from proxy.wire.primitives import Malformed
from proxy.wire.throttle_times import has_throttle_time, is_first, patch, patch_in_place

MAX_IN_FLIGHT: Final = 1_024
"""Maximum number of unanswered requests of a client; beyond it the client is not read."""
MAX_KEPT_BYTES: Final = 4_194_304
"""Maximum size in bytes of waiting answers and amendments; beyond it the client is not read."""
SAMPLE_SECONDS: Final = 0.01

ASKED_ID: Final = 0
"""Correlation id of the proxy's own requests; responses come in order, so any id would do."""
_ANSWER_ID: Final = 1 << 32
"""Placeholder for the correlation id of an `Answer`; real ids have 32 bits."""
_KEPT_PER_BYTE: Final = 100
"""Memory in bytes that is kept, at worst, per byte of a judged request: its items may be one letter
each."""

Taken = Callable[[bytes, float], None]
"""Consumer of the broker's response to a `Question`, called with the content after its size, and
the time. Raises BrokerFault if it does not parse."""
Report = Callable[[int, float, float], None]
"""Function `report(api_key, broker, proxy)`, called when a timed request has been answered; both
parts are in seconds."""


# Entries of the queue


class Amendment(Route):
    """Replaces a route where the response to one request is changed."""

    __slots__ = ("counted", "keeps")

    def __init__(
        self,
        route: Route,
        transform: Transform,
        long_transform: Callable[[int], LongTransform] | None = None,
        *,
        takes_long: bool = False,
        keeps: int = 0,
    ) -> None:
        """The transforms must include those of `route`."""
        super().__init__(
            route.api_key,
            route.api_version,
            None,
            transform,
            long_transform,
            takes_long=takes_long or route.takes_long,
            metered=route.metered,
        )
        self.counted: Route = route
        """Route whose counters count the response."""
        self.keeps = keeps
        """Approximate memory in bytes that is kept until the response comes."""
        if isinstance(route, Amendment):
            self.counted = route.counted
            self.keeps += route.keeps


def changing(route: Route, change: BodyTransform, request_bytes: int) -> Amendment:
    """Apply `change` to the response's body, then the transform of `route`.

    `request_bytes` is the size of the request, whose denied items `change` keeps.
    """

    def transform(content: bytes) -> bytes:
        try:
            at = response_body_at(route.api_key, route.api_version, content)
            changed = content[:at] + change(content[at:])
        except Malformed as malformed:
            api = f"API {route.api_key} v{route.api_version}"
            raise BrokerFault(f"response of {api}: {malformed}") from None
        return changed if route.transform is None else route.transform(changed)

    return Amendment(route, transform, takes_long=True, keeps=_KEPT_PER_BYTE * request_bytes)


def watched(route: Route, watch: Callable[[bytes], None]) -> Amendment:
    """Pass the first bytes of the response to `watch`, and apply the transforms of `route`."""

    def transform(content: bytes) -> bytes:
        watch(content[:SESSION_BYTES])
        return content if route.transform is None else route.transform(content)

    def long_transform(size: int) -> LongTransform:
        inner = None if route.long_transform is None else route.long_transform(size)
        return _Watch(watch, inner)

    return Amendment(route, transform, long_transform)


class _Watch:
    """Passes on the first bytes of a response that comes in pieces."""

    __slots__ = ("_inner", "_seen", "_watch")

    def __init__(self, watch: Callable[[bytes], None], inner: LongTransform | None) -> None:
        self._watch: Callable[[bytes], None] | None = watch
        self._inner = inner
        self._seen = b""

    def feed(self, chunk: memoryview) -> None:
        """Process the next bytes after the size field."""
        if self._watch is not None:
            self._seen += bytes(chunk[: SESSION_BYTES - len(self._seen)])
            if len(self._seen) == SESSION_BYTES:
                self._watch(self._seen)
                self._watch = None
        if self._inner is not None:
            self._inner.feed(chunk)


def announcing(owed: Route, throttle_time_ms: int) -> Amendment:
    """Announce at least this throttle time in the response."""
    api_key, api_version = owed.api_key, owed.api_version

    def transform(content: bytes) -> bytes:
        changed = content if owed.transform is None else owed.transform(content)
        return patch(api_key, api_version, changed, throttle_time_ms)

    def long_transform(size: int) -> LongTransform:
        return _ThrottledHead(owed, size, throttle_time_ms)

    is_last = has_throttle_time(api_key, api_version) and not is_first(api_key, api_version)
    in_passing = not is_last and (owed.long_transform is not None or owed.transform is None)
    return Amendment(owed, transform, long_transform if in_passing else None)


class _ThrottledHead:
    """Announces the throttle time in the head of a response that comes in pieces."""

    __slots__ = ("_inner", "_owed", "_throttle_time_ms")

    def __init__(self, owed: Route, size: int, throttle_time_ms: int) -> None:
        self._owed = owed
        self._inner = None if owed.long_transform is None else owed.long_transform(size)
        self._throttle_time_ms = throttle_time_ms

    def feed(self, chunk: memoryview) -> None:
        """Process the next bytes after the size field; the first chunk has at least `HEAD`
        bytes."""
        if self._throttle_time_ms:
            ms, self._throttle_time_ms = self._throttle_time_ms, 0
            patch_in_place(self._owed.api_key, self._owed.api_version, chunk, ms)
        if self._inner is not None:
            self._inner.feed(chunk)


def _not_passed_on(_content: bytes) -> bytes:
    raise AssertionError("the proxy consumes this response")


class Question(Route):
    """Entry of a request of the proxy's own, or of a relayed login, whose response the proxy
    consumes."""

    __slots__ = ("is_raw", "taken")

    def __init__(
        self, api_key: int, api_version: int, taken: Taken, *, is_raw: bool = False
    ) -> None:
        super().__init__(api_key, api_version, transform=_not_passed_on)
        self.taken = taken
        self.is_raw = is_raw
        """True if the response has no header, not even a correlation id: it answers a raw token."""


class Answer(Route):
    """Answer of the proxy's own that waits for its turn."""

    __slots__ = ("frame",)

    def __init__(self, frame: bytes) -> None:
        super().__init__(-1, -1, transform=_not_passed_on)
        self.frame = frame


# Latency


class TimedRequest:
    """Request that is timed."""

    __slots__ = ("_completed_at", "_forwarded_at", "_responded_at", "_sampler", "_spent", "owed")

    def __init__(
        self, sampler: "LatencySampler", owed: Owed, arrived_at: float, forwarded_at: float
    ) -> None:
        self.owed = owed
        """Its entry in the queue; equal, not identical: in compiled code tuples are values."""
        self._sampler = sampler
        self._spent = forwarded_at - arrived_at
        """The proxy's part before the request was written to the broker, in seconds."""
        self._forwarded_at = forwarded_at
        self._responded_at = inf
        """Time of the response's first bytes; inf before them."""
        self._completed_at = inf
        """Time at which the response could be sent; inf before that."""

    def responding(self, now: float) -> None:
        """Note that bytes of the response were read at `now`."""
        self._responded_at = min(self._responded_at, now)

    def complete(self, now: float) -> None:
        """Note that the response is complete, or is passed on as it comes."""
        self._completed_at = min(self._completed_at, now)

    def responded(self) -> None:
        """Report the latency: the response, or its first bytes, have been sent."""
        proxy = self._spent + self._sampler.clock() - self._completed_at
        self._sampler.report(self.owed[1].api_key, self._responded_at - self._forwarded_at, proxy)


class LatencySampler:
    """Chooses the requests of one listener that are timed."""

    __slots__ = ("clock", "due", "report")

    def __init__(self, clock: Callable[[], float], report: Report, due: float = 0.0) -> None:
        self.clock = clock
        """The clock of the connections' `now`, in seconds."""
        self.report = report
        self.due = due
        """Time from which the next request is timed; inf disables timing."""

    def begin(self, owed: Owed, arrived_at: float) -> TimedRequest:
        """Begin to time a request that was just written to the broker."""
        now = self.clock()
        self.due = now + SAMPLE_SECONDS
        return TimedRequest(self, owed, arrived_at, now)


UNSAMPLED: Final = LatencySampler(lambda: 0.0, lambda _key, _broker, _proxy: None, due=inf)


# The queue


class InFlight:
    """Responses that one client is owed."""

    __slots__ = ("_answers", "_kept_bytes", "queue", "timed")

    def __init__(self) -> None:
        self.queue: list[Owed] = []
        """Correlation ids and entries. A list, because an empty deque takes 700 bytes, and because
        several entries are removed at once."""
        self._answers = 0
        self._kept_bytes = 0
        """Memory in bytes of waiting answers and amendments."""
        self.timed: TimedRequest | None = None
        """Request that is being timed; None if no request is being timed."""

    def __len__(self) -> int:
        return len(self.queue)

    # Adding

    def owe(self, correlation_id: int, route: Route) -> None:
        """Add a forwarded request, whose response the broker owes."""
        if isinstance(route, Amendment):
            self._kept_bytes += route.keeps
        self.queue.append((correlation_id, route))

    def ask(self, question: Question, correlation_id: int = ASKED_ID) -> None:
        """Add a request that the proxy wrote to the broker."""
        self.queue.append((correlation_id, question))

    def answer(self, frame: bytes) -> None:
        """Add an answer of the proxy's own, which waits for the responses before it."""
        self.queue.append((_ANSWER_ID, Answer(frame)))
        self._answers += 1
        self._kept_bytes += len(frame)

    def amend_last(
        self, may: Callable[[Route], bool], amended: Callable[[Route], Amendment]
    ) -> None:
        """Amend the last response owed by the broker for which `may` is true."""
        for index in range(-1, -len(self.queue) - 1, -1):
            correlation_id, owed = self.queue[index]
            if not isinstance(owed, Answer | Question) and may(owed):
                entry: Owed = correlation_id, amended(owed)
                if self.timed is not None and self.timed.owed == self.queue[index]:
                    self.timed.owed = entry
                self.queue[index] = entry
                return

    def forget_last(self) -> None:
        """Remove the last entry: its request stays incomplete, and gets no response."""
        self.queue.pop()

    @property
    def owes_raw(self) -> bool:
        """True if the last entry is that of a raw token."""
        last = self.queue[-1][1] if self.queue else None
        return isinstance(last, Question) and last.is_raw

    def clear(self) -> None:
        """Forget everything: the connection is closed."""
        self.queue.clear()
        self.timed = None
        self._answers = self._kept_bytes = 0

    # Removing

    @property
    def next(self) -> Owed | None:
        """First entry; None if nothing is owed."""
        return self.queue[0] if self.queue else None

    def pop(self) -> Route:
        """Remove the first entry: the broker's response begins."""
        _, route = self.queue.pop(0)
        if isinstance(route, Amendment):
            self._kept_bytes -= route.keeps
        return route

    def pop_answer(self) -> bytes | None:
        """Remove and return the first entry if it is an answer of the proxy's own; otherwise return
        None."""
        if not self._answers:
            return None
        route = self.queue[0][1]
        if not isinstance(route, Answer):
            return None
        del self.queue[0]
        self._answers -= 1
        self._kept_bytes -= len(route.frame)
        return route.frame

    @property
    def owes_timed(self) -> bool:
        """True if the broker has not begun to answer the timed request."""
        return self.timed is not None and self.timed.owed in self.queue

    # Limits

    @property
    def waits(self) -> bool:
        """True if answers of the proxy's own wait for their turn."""
        return self._answers > 0

    @property
    def owes_fetch(self) -> bool:
        """True if the broker has not begun to answer a Fetch or ShareFetch."""
        return any(route.api_key in FETCHES for _, route in self.queue)

    @property
    def owes_much(self) -> bool:
        """True if the client is owed so much that it is not read."""
        return len(self.queue) > MAX_IN_FLIGHT or self._kept_bytes > MAX_KEPT_BYTES

    @property
    def owes_little(self) -> bool:
        """True if the client is owed so little that it is read again."""
        return len(self.queue) <= MAX_IN_FLIGHT // 2 and self._kept_bytes <= MAX_KEPT_BYTES // 2
