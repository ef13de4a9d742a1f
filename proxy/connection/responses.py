"""Broker direction of one connection: responses, cut into frames.

Laws:

- An answer of the proxy's own is never next in the queue (`proxy.connection.inflight`) while
  nothing is half-sent: it leaves at once.
- A response without a transform is written as it was read, in one piece with its
  neighbours; its body is never gathered. Nor is that of a Fetch that counts towards a quota: where
  it is exceeded already, what comes from the broker is dropped as it comes.
"""

from collections.abc import Callable
from typing import Final

from proxy.connection.frames import (
    RESPONSE_HEAD,
    SIZE,
    Amendment,
    Bytes,
    LongTransform,
    Route,
    Transform,
    cut,
)
from proxy.connection.inflight import InFlight, Question
from proxy.connection.latency import TimedRequest
from proxy.connection.long_requests import MAX_AT_ONCE
from proxy.connection.pipe import ResponsePipe
from proxy.connection.throttling import announcing
from proxy.errors import BrokerFault
from proxy.quota.throttle import Throttle
from proxy.wire.apis import FETCHES, SASL_APIS, SHARE_FETCH
from proxy.wire.fetch_bounds import without_records, without_topics
from proxy.wire.throttle_times import HEAD
from sasl.messages import MAX_RESPONSE_BYTES

MAX_GATHERED_BYTES: Final = 104_857_600
"""Size of a response that must be rewritten whole (Metadata, say): Kafka's own limit of a frame."""
LONG_RESPONSE: Final = 65_536
"""From this size on a response with a long transform is not gathered but changed in passing."""


class Responses:
    """Responses of one broker, cut into frames."""

    __slots__ = (
        "_flowing",
        "_forgotten",
        "_gathered",
        "_long",
        "_to_change",
        "changing",
        "inflight",
        "pipe",
        "rest",
    )

    def __init__(self, inflight: InFlight, to_client: Callable[[Bytes], None]) -> None:
        self.inflight = inflight
        self.pipe = ResponsePipe(inflight, to_client)
        self._flowing = True
        """True if a read begins with a response, and no own answer waits; see `_reconsider`."""
        self.rest = b""
        """The head of a response of which too little came; it comes before the next read."""
        self._forgotten = False
        """True if what is left of a response is dropped."""
        self._gathered: tuple[bytearray, int, Route] | None = None
        self._long: LongTransform | None = None
        self.changing = False
        """True while a long response is changed in steps: the bytes of the broker wait."""
        self._to_change: tuple[Transform, bytes] | None = None
        """The change, and the response to be changed; None: it was taken. See `take_change`."""

    @property
    def settled(self) -> bool:
        """Return whether every request was answered, to the last byte."""
        return not (
            len(self.inflight) or self.pipe.left or self._gathered is not None or self.changing
        )

    def answer(self, frame: bytes) -> None:
        """Send an answer of the proxy's own, when its turn comes."""
        if self.settled:
            self.pipe.send(frame)
        else:
            self.inflight.answer(frame)
            self._flowing = False

    def broker_bytes(self, data: Bytes, now: float) -> bool:
        """Take what was read from the broker; return False if all of it passed as it came.

        Raises BrokerFault when it is no answer to what was asked.
        """
        pos = 0
        if self._flowing and (pos := self.pipe.pass_known(data, 0, len(data), now)) == len(data):
            self._flowing = not self.pipe.left
            return False
        self._take(data, pos, now)
        return True

    def _take(self, data: Bytes, pos: int, now: float) -> None:
        if self.rest:
            data, pos, self.rest = b"".join((self.rest, data[pos:])), 0, b""
        end = len(data)
        while pos < end:
            at = pos
            if self.changing:
                self.rest = bytes(data[at:end])
                break
            if self.pipe.left:
                pos = self._cut_through(data, at, end)
            elif self._gathered is not None:
                pos = self._gather(self._gathered, data, at, end, now)
            else:
                # While own answers wait, one at a time: they may be due behind it.
                looks_end = min(at + 8, end) if self.inflight.waits else end
                pos = self.pipe.pass_known(data, at, looks_end, now)
                if pos == at and (pos := self._rewrite(data, at, end, now)) == at:
                    self.rest = bytes(data[at:end])
                    break
            if self.inflight.waits:
                self._send_own()
        self._reconsider()

    def _reconsider(self) -> None:
        """Find out whether the next read begins with a response, and may end with any."""
        self._flowing = not (
            self.rest
            or self.pipe.left
            or self._gathered is not None
            or self.inflight.waits
            or self.changing
        )

    def _rewrite(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Take the response at `pos`, which the pipe left; return `pos` for want of bytes."""
        owed = self.inflight.next
        if owed is not None and isinstance(owed[1], Question) and owed[1].is_raw:
            return self._take_raw(owed[1], data, pos, end, now)
        if end - pos < RESPONSE_HEAD.size:
            return pos
        size, correlation_id = RESPONSE_HEAD.unpack_from(data, pos)
        if owed is None:
            raise BrokerFault("a response that nobody asked for")
        expected, route = owed
        if expected != correlation_id or size < 4:
            raise BrokerFault("a response out of turn, or of an impossible size")
        in_passing = route.long_transform is not None or route.transform is None
        most = MAX_RESPONSE_BYTES if route.api_key in SASL_APIS else MAX_GATHERED_BYTES
        if size > most and not in_passing:
            raise BrokerFault("a response too large to be rewritten")
        if end - pos < SIZE.size + min(size, HEAD):
            return pos
        self.inflight.pop()
        counted = route.counted if isinstance(route, Amendment) else route
        counted.response_bytes += size + SIZE.size
        begin = pos + SIZE.size
        throttle = self.pipe.throttle
        if throttle is not None and route.api_key in FETCHES:
            route = self._metered(throttle, route, size, now)
            if throttle.leaves_out:
                return self._leave_out(route, size, data, begin, end, now)
        if size >= LONG_RESPONSE and route.long_transform is not None:
            self._long, self.pipe.left = route.long_transform(size), size
            self.pipe.send(bytes(data[pos:begin]))
            return begin
        after = min(begin + size, end)
        self._gathered = bytearray(), size, route
        return self._gather(self._gathered, data, begin, after, now)

    def _take_raw(self, question: Question, data: Bytes, pos: int, end: int, now: float) -> int:
        """Take the answer to a raw token, which may be empty; return `pos` for want of bytes."""
        if end - pos < SIZE.size:
            return pos
        (size,) = SIZE.unpack_from(data, pos)
        if not 0 <= size <= MAX_RESPONSE_BYTES:
            raise BrokerFault("an answer to a login of an impossible size")
        self.inflight.pop()
        begin = pos + SIZE.size
        self._gathered = bytearray(), size, question
        return self._gather(self._gathered, data, begin, min(begin + size, end), now)

    def _metered(self, throttle: Throttle, route: Route, size: int, now: float) -> Route:
        """Count a Fetch, and have its response announce what follows."""
        ms = self.pipe.count(throttle, size, now)
        return announcing(route, ms) if ms else route

    def _leave_out(
        self, route: Route, size: int, data: Bytes, begin: int, end: int, now: float
    ) -> int:
        """Answer without topics, and let what the broker has answered go nowhere.

        But for what a ShareFetch response says of acknowledgements.
        """
        transform, api_version = route.transform, route.api_version
        assert transform is not None
        if route.api_key == SHARE_FETCH and size <= MAX_GATHERED_BYTES:
            lean = Amendment(
                route, lambda content: transform(without_records(api_version, content))
            )
            self._gathered = bytearray(), size, lean
            return self._gather(self._gathered, data, begin, min(begin + size, end), now)
        head = bytes(data[begin : begin + min(size, HEAD)])
        self._send_changed(transform(without_topics(route.api_key, api_version, head)))
        self.pipe.left, self._forgotten = size, True
        return begin

    def _gather(
        self, gathered: tuple[bytearray, int, Route], data: Bytes, pos: int, end: int, now: float
    ) -> int:
        content, size, route = gathered
        after = min(pos + size - len(content), end)
        content += data[pos:after]
        if len(content) == size:
            self._gathered = None
            assert route.transform is not None
            if isinstance(route, Question):
                route.taken(bytes(content), now)
            elif size > MAX_AT_ONCE and route.takes_long:
                self.changing, self._to_change = True, (route.transform, bytes(content))
            else:
                self._send_changed(route.transform(bytes(content)))
        return after

    def time(self, timed: TimedRequest, now: float) -> None:
        """Take notice of what bytes that were read at `now` are to the request that is timed."""
        if self.inflight.owes_timed:
            return
        timed.responding(now)
        if self._gathered is None:
            timed.complete(now)
            if not self.changing:
                self.inflight.timed = None
                timed.responded()

    def take_change(self) -> tuple[Transform, bytes] | None:
        """Take what is to be changed in steps, and how; `changed` is given the result."""
        to_change, self._to_change = self._to_change, None
        return to_change

    def changed(self, content: bytes) -> None:
        """A long response was changed; what came meanwhile is taken with the next bytes."""
        self.changing = False
        self._send_changed(content)
        self._send_own()

    def _send_changed(self, content: bytes) -> None:
        self.pipe.send(SIZE.pack(len(content)) + content)

    def _cut_through(self, data: Bytes, pos: int, end: int) -> int:
        after = min(pos + self.pipe.left, end)
        self.pipe.left -= after - pos
        if self._forgotten:
            self._forgotten = self.pipe.left > 0
            return after
        piece = cut(data, pos, after)
        if self._long is not None:
            if isinstance(piece, bytes):
                piece = memoryview(bytearray(piece))
            self._long.feed(piece)
            if not self.pipe.left:
                self._long = None
        self.pipe.send(piece)
        return after

    def _send_own(self) -> None:
        """Send own answers whose turn has come."""
        if self.pipe.left or self._gathered is not None or self.changing:
            return
        while (frame := self.inflight.pop_answer()) is not None:
            self.pipe.send(frame)
