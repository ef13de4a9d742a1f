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
    COMPILED,
    RESPONSE_HEAD,
    SIZE,
    Amendment,
    Bytes,
    LongTransform,
    Route,
    cut,
    pay_run,
    read_response_head,
)
from proxy.connection.inflight import InFlight, Question
from proxy.connection.long_requests import MAX_AT_ONCE
from proxy.connection.throttling import telling
from proxy.errors import BrokerFault
from proxy.quota.throttle import UNLIMITED, Throttle
from proxy.wire.apis import FETCHES, SASL_APIS, SHARE_FETCH
from proxy.wire.fetch_bounds import without_records, without_topics
from proxy.wire.throttle_times import HEAD
from sasl.messages import MAX_RESPONSE_BYTES

MAX_GATHERED_BYTES: Final = 104_857_600
"""Of a response that must be rewritten whole (Metadata, say): Kafka's own bound of a frame."""
LONG_RESPONSE: Final = 65_536
"""From this size on a response with a long transform is not gathered but changed in passing."""


class Responses:
    """What a connection still owes its client, and how the broker's bytes pay for it."""

    __slots__ = (
        "_flowing",
        "_forgotten",
        "_gathered",
        "_left",
        "_long",
        "_throttle",
        "_throttle_time_ms",
        "_throttled",
        "_to_client",
        "bytes",
        "change",
        "changing",
        "inflight",
        "rest",
    )

    def __init__(self, inflight: InFlight, to_client: Callable[[Bytes], None]) -> None:
        self._to_client = to_client
        self.inflight = inflight
        self._flowing = True
        """Whether a read begins with a response, and no own answer waits; see `_reconsider`."""
        self.rest = b""
        """The head of a response of which too little came; it comes before the next read."""
        self.bytes = 0
        """Bytes sent to the client, own answers included."""
        self._left = 0
        self._forgotten = False
        """Whether what is left of a response goes nowhere."""
        self._gathered: tuple[bytearray, int, Route] | None = None
        self._long: LongTransform | None = None
        self.change: Callable[[Callable[[bytes], bytes], bytes], None] | None = None
        """Has a long response changed in steps; `changed` is told the result."""
        self.changing = False
        """Whether it is under way: what the broker sends comes later."""
        self._throttle: Throttle | None = None
        self._throttled: Callable[[float], None] | None = None
        self._throttle_time_ms = 0
        """What the response that comes next was found to be told, and counted for."""

    def meter(self, throttle: Throttle, throttled: Callable[[float], None]) -> None:
        """Count what is fetched from now on; `throttled(now)` is called when it is too much."""
        self._throttle, self._throttled = throttle, throttled

    @property
    def settled(self) -> bool:
        """Whether every request was answered, to the last byte."""
        return not (len(self.inflight) or self._left or self._gathered or self.changing)

    def answer(self, frame: bytes) -> None:
        """Send an answer of the proxy's own, when its turn comes."""
        if self.settled:
            self._send(frame)
        else:
            self.inflight.answer(frame)
            self._flowing = False

    def broker_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the broker.

        Raises BrokerFault when it is no answer to what was asked.
        """
        if not self._flowing:
            self._take(data, 0, now)
        elif (pos := self._relay(data, 0, len(data), now)) < len(data):
            self._take(data, pos, now)

    def _take(self, data: Bytes, pos: int, now: float) -> None:
        if self.rest:
            data, pos, self.rest = b"".join((self.rest, data[pos:])), 0, b""
        end = len(data)
        while pos < end:
            at = pos
            if self.changing:
                self.rest = bytes(data[at:end])
                break
            if self._left:
                pos = self._cut_through(data, at, end)
            elif self._gathered is not None:
                pos = self._gather(self._gathered, data, at, end, now)
            else:
                # While own answers wait, one at a time: they may be due behind it.
                pos = self._relay(data, at, min(at + 8, end) if self.inflight.waits else end, now)
                if pos == at and (pos := self._rewrite(data, at, end, now)) == at:
                    self.rest = bytes(data[at:end])
                    break
            if self.inflight.waits:
                self._send_own()
        self._reconsider()

    def _reconsider(self) -> None:
        """Find out whether the next read begins with a response, and may end with any."""
        self._flowing = not (
            self.rest or self._left or self._gathered or self.inflight.waits or self.changing
        )

    def _relay(self, data: Bytes, start: int, looks_end: int, now: float) -> int:
        """Forward whole responses and the beginning of one; return where a look is needed.

        Nothing is looked at behind `looks_end`.
        """
        pos, take, put_back = start, self.inflight.take, self.inflight.put_back
        room = left = self._room(now)
        if COMPILED and type(data) is bytes:
            pos, left = pay_run(data, start, looks_end, take, put_back, left)
        try:
            while pos + 8 <= looks_end:
                size, correlation_id = read_response_head(data, pos)
                owed = take()
                expected, route = owed
                if expected != correlation_id or size < 4 or route.transform is not None:
                    put_back(owed)
                    break
                if route.metered:
                    if size <= left:
                        left -= size
                    elif self._stays(room - left, size, len(data) - pos, now):
                        put_back(owed)
                        return self._passed(data, start, pos)
                    else:
                        room = left = self._room(now)
                size += 4
                route.response_bytes += size
                pos += size
        except IndexError:  # nothing is owed: `_rewrite` says so
            pass
        if left < room:
            self._use_room(room - left)
        return self._passed(data, start, pos)

    def _passed(self, data: Bytes, start: int, pos: int) -> int:
        """Write the responses from `start` to `pos`, of the last one as much as is here."""
        if pos == start:
            return pos
        end = len(data)
        if pos > end:
            self._left = pos - end
            self._flowing = False
            pos = end
        self.bytes += pos - start
        whole = pos - start == end and type(data) is bytes
        write = self._to_client
        write(data if whole else cut(data, start, pos))
        return pos

    def _room(self, now: float) -> int:
        """How many bytes of metered responses pass without a closer look."""
        if self._throttle is None:
            return UNLIMITED
        return 0 if self._throttle_time_ms else self._throttle.fetch_room(now)

    def _use_room(self, size: int) -> None:
        if self._throttle is not None:
            self._throttle.use_fetch_room(size)

    def _stays(self, used: int, size: int, here: int, now: float) -> bool:
        """Whether a metered response is more than passed on; if it is not, it was counted.

        `used`: of the room, by those before it. `here`: how many bytes of it are.
        """
        self._use_room(used)
        if here < SIZE.size + min(size, HEAD):
            return True
        assert self._throttle is not None
        if not self._throttle_time_ms:
            self._throttle_time_ms = self._throttle.fetched(size, now)
        return self._throttle_time_ms > 0

    def _rewrite(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Take the response at `pos`, which `_relay` left; return `pos` for want of bytes."""
        if end - pos < RESPONSE_HEAD.size:
            return pos
        size, correlation_id = RESPONSE_HEAD.unpack_from(data, pos)
        owed = self.inflight.next
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
        if self._throttle is not None and route.api_key in FETCHES:
            route = self._metered(route, size, now)
            if self._throttle.leaves_out:
                return self._leave_out(route, size, data, begin, end, now)
        if size >= LONG_RESPONSE and route.long_transform is not None:
            self._long, self._left = route.long_transform(size), size
            self._send(bytes(data[pos:begin]))
            return begin
        after = min(begin + size, end)
        self._gathered = bytearray(), size, route
        return self._gather(self._gathered, data, begin, after, now)

    def _metered(self, route: Route, size: int, now: float) -> Route:
        """Count a Fetch, and have its response tell what follows."""
        assert self._throttle is not None
        assert self._throttled is not None
        ms = self._throttle_time_ms or self._throttle.fetched(size, now)
        self._throttle_time_ms = 0
        if not ms:
            return route
        self._throttled(now)
        return telling(route, ms)

    def _leave_out(
        self, route: Route, size: int, data: Bytes, begin: int, end: int, now: float
    ) -> int:
        """Answer without topics, and let what the broker has answered go nowhere.

        But for what a ShareFetch is told of its acknowledgements.
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
        self._left, self._forgotten = size, True
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
                assert self.change is not None
                self.changing = True
                self.change(route.transform, bytes(content))
            else:
                self._send_changed(route.transform(bytes(content)))
        return after

    def changed(self, content: bytes) -> None:
        """A long response was changed; what came meanwhile is taken with the next bytes."""
        self.changing = False
        self._send_changed(content)
        self._send_own()

    def _send_changed(self, content: bytes) -> None:
        self._send(SIZE.pack(len(content)) + content)

    def _cut_through(self, data: Bytes, pos: int, end: int) -> int:
        after = min(pos + self._left, end)
        self._left -= after - pos
        if self._forgotten:
            self._forgotten = self._left > 0
            return after
        piece = cut(data, pos, after)
        if self._long is not None:
            if isinstance(piece, bytes):
                piece = memoryview(bytearray(piece))
            self._long.feed(piece)
            if not self._left:
                self._long = None
        self._send(piece)
        return after

    def _send_own(self) -> None:
        """Send own answers whose turn has come."""
        if self._left or self._gathered is not None or self.changing:
            return
        while (frame := self.inflight.pop_answer()) is not None:
            self._send(frame)

    def _send(self, piece: Bytes) -> None:
        self.bytes += len(piece)
        self._to_client(piece)
