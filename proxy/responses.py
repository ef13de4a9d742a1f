"""Responses leave in the order of their requests: the in-flight queue of one connection.

Laws:

- Per unanswered request the queue holds either `(correlation_id, route)`, for a response that the
  broker owes, or `OWN`, for an answer of the proxy's own that waits for its turn. An `Amendment`
  may stand in place of the route.
- An own answer is never at the head while nothing is half-sent: it leaves at once.
- A response without a transform is written as it was read, in one piece with its
  neighbours; its body is never gathered. Nor is that of a Fetch that counts towards a quota: where
  it is exceeded already, what comes from the broker is dropped as it comes.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from proxy.deliberation import LONGEST_AT_ONCE
from proxy.errors import BrokerFault
from proxy.frames import (
    COMPILED,
    OWN_ANSWER,
    RESPONSE_HEAD,
    SIZE,
    Amendment,
    Bytes,
    LongTransform,
    Owed,
    Route,
    cut,
    pay_run,
    read_response_head,
)
from proxy.quota.throttle import UNLIMITED, Throttle
from proxy.throttling import telling
from proxy.wire.apis import FETCHES, SASL_APIS, SHARE_FETCH
from proxy.wire.fetch_bounds import without_records, without_topics
from proxy.wire.throttle_times import HEAD
from sasl.messages import MOST_ANSWER_BYTES

MOST_IN_FLIGHT: Final = 1_024
"""Requests a client may have unanswered before it is not read any further."""
MOST_KEPT_BYTES: Final = 4_194_304
"""Of what waits for other answers, the same: own answers, and what is to be told in responses."""
MOST_GATHERED_BYTES: Final = 104_857_600
"""Of a response that must be rewritten whole (Metadata, say): Kafka's own bound of a frame."""
LONG_RESPONSE: Final = 65_536
"""From this size on a response with a long transform is not gathered but changed in passing."""

OWN: Final[Owed] = OWN_ANSWER, Route(-1, -1)
"""Stands in the queue for an answer of the proxy's own."""


class Responses:
    """What a connection still owes its client, and how the broker's bytes pay for it."""

    __slots__ = (
        "_flowing",
        "_forgotten",
        "_gathered",
        "_kept_bytes",
        "_left",
        "_long",
        "_own",
        "_take_owed",
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

    def __init__(self, to_client: Callable[[Bytes], None]) -> None:
        self._to_client = to_client
        self.inflight: deque[Owed] = deque()
        self._take_owed = self.inflight.popleft
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
        self._own: list[bytes] = []
        """Own answers that wait for their turn."""
        self._kept_bytes = 0
        """Of these, and for responses that are to be amended."""
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
    def owes_fetch(self) -> bool:
        """Whether the broker has not begun to answer a Fetch or ShareFetch."""
        return any(route.api_key in FETCHES for _, route in self.inflight)

    @property
    def owes_much(self) -> bool:
        """Whether the client is owed more than it may be before it is not read any further."""
        return len(self.inflight) > MOST_IN_FLIGHT or self._kept_bytes > MOST_KEPT_BYTES

    @property
    def owes_little(self) -> bool:
        """Whether it is owed so little again that it is read on."""
        return (
            len(self.inflight) <= MOST_IN_FLIGHT // 2 and self._kept_bytes <= MOST_KEPT_BYTES // 2
        )

    @property
    def settled(self) -> bool:
        """Whether every request was answered, to the last byte."""
        return not (self.inflight or self._left or self._gathered or self.changing)

    def answer(self, frame: bytes) -> None:
        """Send an answer of the proxy's own, when its turn comes."""
        if self.settled:
            self._send(frame)
        else:
            self.inflight.append(OWN)
            self._own.append(frame)
            self._kept_bytes += len(frame)
            self._flowing = False

    def keep(self, owed: Amendment) -> None:
        """Count what is kept until a response comes that is owed now."""
        self._kept_bytes += owed.keeps

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
                pos = self._gather(self._gathered, data, at, end)
            else:
                # While own answers wait, one at a time: they may be due behind it.
                pos = self._relay(data, at, min(at + 8, end) if self._own else end, now)
                if pos == at and (pos := self._rewrite(data, at, end, now)) == at:
                    self.rest = bytes(data[at:end])
                    break
            if self._own:
                self._send_own()
        self._reconsider()

    def _reconsider(self) -> None:
        """Find out whether the next read begins with a response, and may end with any."""
        self._flowing = not (
            self.rest or self._left or self._gathered or self._own or self.changing
        )

    def _relay(self, data: Bytes, start: int, looks_end: int, now: float) -> int:
        """Forward whole responses and the beginning of one; return where a look is needed.

        Nothing is looked at behind `looks_end`.
        """
        pos, take = start, self._take_owed
        room = left = self._room(now)
        if COMPILED and type(data) is bytes:
            pos, left = pay_run(data, start, looks_end, self.inflight, take, left)
        try:
            while pos + 8 <= looks_end:
                size, correlation_id = read_response_head(data, pos)
                owed = take()
                expected, route = owed
                if expected != correlation_id or size < 4 or route.transform is not None:
                    self.inflight.appendleft(owed)
                    break
                if route.metered:
                    if size <= left:
                        left -= size
                    elif self._stays(room - left, size, len(data) - pos, now):
                        self.inflight.appendleft(owed)
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
        if not self.inflight:
            raise BrokerFault("a response that nobody asked for")
        expected, route = self.inflight[0]
        if expected != correlation_id or size < 4:
            raise BrokerFault("a response out of turn, or of an impossible size")
        in_passing = route.long_transform is not None or route.transform is None
        most = MOST_ANSWER_BYTES if route.api_key in SASL_APIS else MOST_GATHERED_BYTES
        if size > most and not in_passing:
            raise BrokerFault("a response too large to be rewritten")
        if end - pos < SIZE.size + min(size, HEAD):
            return pos
        self.inflight.popleft()
        counted = route
        if isinstance(route, Amendment):
            counted = route.counted
            self._kept_bytes -= route.keeps
        counted.response_bytes += size + SIZE.size
        begin = pos + SIZE.size
        if self._throttle is not None and route.api_key in FETCHES:
            route = self._metered(route, size, now)
            if self._throttle.leaves_out:
                return self._leave_out(route, size, data, begin, end)
        if size >= LONG_RESPONSE and route.long_transform is not None:
            self._long, self._left = route.long_transform(size), size
            self._send(bytes(data[pos:begin]))
            return begin
        after = min(begin + size, end)
        self._gathered = bytearray(), size, route
        return self._gather(self._gathered, data, begin, after)

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

    def _leave_out(self, route: Route, size: int, data: Bytes, begin: int, end: int) -> int:
        """Answer without topics, and let what the broker has answered go nowhere.

        But for what a ShareFetch is told of its acknowledgements.
        """
        transform, api_version = route.transform, route.api_version
        assert transform is not None
        if route.api_key == SHARE_FETCH and size <= MOST_GATHERED_BYTES:
            lean = Amendment(
                route, lambda content: transform(without_records(api_version, content))
            )
            self._gathered = bytearray(), size, lean
            return self._gather(self._gathered, data, begin, min(begin + size, end))
        head = bytes(data[begin : begin + min(size, HEAD)])
        self._send_changed(transform(without_topics(route.api_key, api_version, head)))
        self._left, self._forgotten = size, True
        return begin

    def _gather(
        self, gathered: tuple[bytearray, int, Route], data: Bytes, pos: int, end: int
    ) -> int:
        content, size, route = gathered
        after = min(pos + size - len(content), end)
        content += data[pos:after]
        if len(content) == size:
            self._gathered = None
            assert route.transform is not None
            if size > LONGEST_AT_ONCE and route.takes_long:
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
        if content:
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
        while self.inflight and self.inflight[0][0] == OWN_ANSWER:
            self.inflight.popleft()
            frame = self._own.pop(0)
            self._kept_bytes -= len(frame)
            self._send(frame)

    def _send(self, piece: Bytes) -> None:
        self.bytes += len(piece)
        self._to_client(piece)
