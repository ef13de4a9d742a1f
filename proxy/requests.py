"""Requests pass in order: the client's direction of one connection.

Laws:

- Nothing is forwarded unless the session is authenticated and alive.
- A frame is forwarded at a first look, as it was read, in one piece with its neighbours; its
  body is never gathered. Only frames that the proxy answers itself are, within a bound, and those
  that must be authorized and whose head does not suffice.
- What must be authorized (`admission` is there) is forwarded at a first look only if it is a
  Produce to the one topic that was last found to be allowed.
- A size is judged before a single byte of its frame is kept, and a long frame, other than a
  Produce, is gathered only where there is room for it (`proxy.room`).
- What is produced counts towards a quota (`throttle` is there) once per read, before it is judged;
  who is throttled is held behind a whole frame, so that the broker can answer it.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from proxy.commands import CloseReason
from proxy.frames import (
    COMPILED,
    FORWARD,
    LONGEST_BEGINNING,
    MOST_BYTES_OF_A_HEAD,
    MOST_BYTES_OF_A_LOOK,
    NO_BEGINNING,
    REQUEST_HEAD,
    SIZE,
    SMALLEST_REQUEST,
    UNDECIDED,
    Beginning,
    Bytes,
    Route,
    cut,
    pass_run,
    remember,
)
from proxy.responses import MOST_IN_FLIGHT
from proxy.room import LONG_OF_STRANGERS
from proxy.wire.apis import PRODUCE, SASL_APIS, answered_here

if TYPE_CHECKING:
    from proxy.admission import Admission
    from proxy.connection import Connection
    from proxy.throttling import Throttling

Taker = Callable[[bytes, float], None]
Gathered = tuple[bytearray, int, Taker]


class Requests:
    """What comes from the client, cut into frames."""

    __slots__ = (
        "_connection",
        "_flows_until",
        "_inflight",
        "_is_owed",
        "_left",
        "_owed",
        "_passed",
        "_usual",
        "active_at",
        "admission",
        "bytes",
        "count",
        "expires_at",
        "gathered",
        "held",
        "held_behind",
        "last_at",
        "most_bytes",
        "nameless",
        "relaying",
        "renew_at",
        "rest",
        "throttle",
        "to_broker",
    )

    def __init__(self, connection: "Connection", now: float) -> None:
        self._connection = connection
        self._inflight = connection.responses.inflight
        self._owed = self._inflight.append
        self.most_bytes = connection.rules.request_max_bytes
        """`socket.request.max.bytes`."""
        self.active_at = now
        """When the client last sent anything."""
        self._flows_until = -inf
        """The last moment at which a read is forwarded at a first look; see `reconsider`."""
        self.held = False
        """Whether no further request is to be taken for now."""
        self.rest = b""
        """What could not be dealt with yet; it comes before the next read."""
        self.admission: Admission | None = None
        """Judges what is asked; None: nothing needs to be authorized. See `guard`."""
        self.relaying = False
        """Whether a session is authenticated and no re-authentication is under way."""
        self.nameless = False
        """Whether the first request with a client id tells it: no login has. See `Dialogue`."""
        self.expires_at = inf
        """The last moment, in monotonic seconds, at which a request meets a living session."""
        self.renew_at = inf
        """The last moment at which the broker is sent anything before the proxy logs in again."""
        self.to_broker: Callable[[Bytes], None] | None = None
        """Writes to the broker; None: the upstream connection is not open."""
        self.count = self.bytes = 0
        """Of authenticated requests, those that the proxy answers included; without SASL's."""
        self.last_at: float | None = None
        """When the last of them arrived; None: none yet."""
        self._passed: dict[int, Beginning] = {}
        """By API key and version: how a frame begins that needs no closer look."""
        self._usual = NO_BEGINNING
        """That of them which frames began with last."""
        self.throttle: Throttling | None = None
        """Counts what is used of quotas; None: the client has none."""
        self.held_behind = False
        """Whether the client is to be held as soon as the broker has the whole of a frame."""
        self._left = 0
        self._is_owed = False
        """Whether the broker will answer the frame that it has received in part."""
        self.gathered: Gathered | None = None
        """The frame that is gathered, its size, and who takes it."""

    def cut_off(self) -> None:
        """No more will come: of a frame that the broker has in part, no answer either."""
        if self._left and self._is_owed:
            self._inflight.pop()

    @property
    def mid_frame(self) -> bool:
        """Whether the broker has received a frame in part."""
        return self._left > 0

    def client_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the client."""
        self.active_at = now
        pos = self._relay(data, 0, now) if now <= self._flows_until else 0
        if pos < len(data):
            self._take(data, pos, now)

    def resume(self, now: float) -> None:
        """Take what could not be dealt with before."""
        if self.rest:
            self._take(b"", 0, now)
        self._connection.long_work.leave_room()

    def guard(self, admission: "Admission | None") -> None:
        """Look closer at all requests again, and have `admission`, if any, authorize them."""
        self.admission = admission
        self._passed.clear()
        self._usual = NO_BEGINNING

    def _take(self, data: Bytes, pos: int, now: float) -> None:
        if self.rest:
            data, pos, self.rest = b"".join((self.rest, data[pos:])), 0, b""
        end = len(data)
        while pos < end:
            at = pos
            if self._left:
                pos = self._cut_through(data, at, end, now)
            elif self.gathered is not None:
                pos = self._gather(self.gathered, data, at, end, now)
            elif self.held:
                break
            elif now > self.renew_at:
                self._connection.renew_login()
            elif (pos := self._pass(data, at, end, now)) == at:
                break
        if pos < end and not self._connection.closed:
            self.rest = bytes(data[pos:])
        self.reconsider()
        if self.held and not self._left:
            self._connection.end_if_settled(now)

    def _pass(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Deal with the frames at `pos`, at a first look or a closer one; see `_look_closer`."""
        if self.relaying and self.to_broker is not None and now <= self.expires_at:
            after = self._relay(data, pos, now)
            if after > pos:
                return after
        return self._look_closer(data, pos, end, now)

    def hold(self) -> None:
        """Take no further request until `held` is cleared again."""
        self.held = True
        self._flows_until = -inf

    def reconsider(self) -> None:
        """Find out whether the next read can be forwarded at a first look."""
        flowing = (
            self.relaying
            and self.to_broker is not None
            and self.gathered is None
            and not (self.held or self.rest or self._left)
        )
        self._flows_until = min(self.expires_at, self.renew_at) if flowing else -inf

    def _relay(self, data: Bytes, start: int, now: float) -> int:
        """Forward the frames at `start` that begin as one did that passed; return where others do.

        The innermost loop of the proxy: a run of one API key and version.
        """
        end, pos, count = len(data), start, 0
        read, width, key, beginning, route = self._usual
        smallest, most, owed = width - 4, self.most_bytes, self._owed
        if COMPILED and type(data) is bytes:
            pos, count, its_key = pass_run(data, start, width, key, beginning, route, most, owed)
        while end - pos >= width:
            size, its_key, correlation_id, its_beginning = read(data, pos)
            if its_beginning != beginning or its_key != key or size < smallest or size > most:
                break
            owed((correlation_id, route))
            count += 1
            pos += size + 4
        if not count:
            if end - start >= width and its_key != key and its_key in self._passed:
                self._usual = self._passed[its_key]
                return self._relay(data, start, now)
            return start
        after = self._forward(route, data, start, pos, end, count, now)
        if self.throttle is not None and route.api_key == PRODUCE:
            self.throttle.produced(pos - start - 4 * count, now)
        return after

    def relay_one(
        self, data: Bytes, pos: int, end: int, now: float, behind: int | None = None
    ) -> int:
        """Forward the frame at `pos`, and others from now on that begin as it does up to `behind`.

        `behind` 0: no others; None: up to where it says. Returns `pos` if it cannot be forwarded.
        """
        size, key, correlation_id, length = REQUEST_HEAD.unpack_from(data, pos)
        route = self._connection.target.routes[key]
        if behind is None and self.throttle is not None and self.throttle.bounds(route.api_key):
            return self.throttle.relay_fetch(data, pos, end, now)
        self._connection.long_work.spend(0)
        after = pos + SIZE.size + size
        at = pos + REQUEST_HEAD.size + max(length, 0)
        verdict, seen = (
            (FORWARD, at) if route.check is None else route.check(data, at, min(after, end))
        )
        if verdict == UNDECIDED:
            if after <= end or end - pos > MOST_BYTES_OF_A_LOOK:  # enough was here
                self._connection.end(CloseReason.MALFORMED_FRAME, now)
            return pos
        if verdict == FORWARD:
            self._owed((correlation_id, route))
            seen = seen if behind is None else behind
            if pos < seen <= min(after, end, pos + LONGEST_BEGINNING):
                self._usual = remember(self._passed, key, data, pos, seen, route)
        upto = self._forward(route, data, pos, after, end, 1, now)
        self._is_owed = verdict == FORWARD
        if self.throttle is not None and route.api_key == PRODUCE:
            self.throttle.produced(size, now)
        return upto

    def _forward(
        self, route: Route, data: Bytes, start: int, after: int, end: int, count: int, now: float
    ) -> int:
        """Write `count` frames to the broker, of the last one as much as is here."""
        write = self.to_broker
        assert write is not None
        route.requests += count
        route.request_bytes += after - start
        if after > end:
            self._left, self._is_owed = after - end, True
            self._flows_until = -inf
            after = end
        self.count += count
        self.bytes += after - start
        self.last_at = now
        whole = after - start == len(data) and type(data) is bytes
        write(data if whole else cut(data, start, after))
        if len(self._inflight) > MOST_IN_FLIGHT:
            self._connection.too_many_in_flight()
        return after

    def _cut_through(self, data: Bytes, pos: int, end: int, now: float) -> int:
        assert self.to_broker is not None
        after = min(pos + self._left, end)
        self._left -= after - pos
        self.bytes += after - pos
        self.to_broker(cut(data, pos, after))
        if self.held_behind and not self._left:
            self.held_behind = False
            self._connection.throttled(now)
        return after

    def _look_closer(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Deal with the frame at `pos`, which is not forwarded at a first look.

        Returns where to go on; `pos` itself: not before more bytes come or a hold is released.
        """
        if end - pos < SIZE.size:
            return pos
        (size,) = SIZE.unpack_from(data, pos)
        smallest, most = 0, self._connection.rules.sasl_max_receive_size
        if self.relaying:
            smallest, most = SMALLEST_REQUEST, self.most_bytes
        if size > most:
            self._connection.end(CloseReason.OVERSIZE_FRAME, now)
        elif size < smallest:
            self._connection.end(CloseReason.MALFORMED_FRAME, now)
        elif not self.relaying:
            if size < LONG_OF_STRANGERS or self._connection.long_work.admits_stranger(size, now):
                return self._take_whole(data, pos, end, now, self._connection.dialogue.answer_whole)
        elif end - pos >= REQUEST_HEAD.size:
            _, key, _, _ = REQUEST_HEAD.unpack_from(data, pos)
            if self.nameless and not self._connection.dialogue.learn_client_id(data, pos, end):
                return pos
            if now <= self.expires_at or self._connection.outlives_expiry(key >> 16, now):
                return self._admit(key, data, pos, end, now)
        return pos

    def _admit(self, key: int, data: Bytes, pos: int, end: int, now: float) -> int:
        """Take a request of a live session that is to be answered here, or say what it lacks."""
        connection, admission, throttle = self._connection, self.admission, self.throttle
        api_key, api_version = key >> 16, key & 0xFFFF
        if throttle is not None:
            if throttle.defers(api_key, now):
                return pos
            admission = admission or throttle.admission(api_key)
        size: int = SIZE.unpack_from(data, pos)[0]
        taker: Taker | None = None
        if answered_here(api_key, api_version):
            taker = connection.dialogue.answer_whole
            if api_key in SASL_APIS and size > connection.rules.sasl_max_receive_size:
                connection.end(CloseReason.OVERSIZE_FRAME, now)
                return pos
        elif key not in connection.target.routes:
            connection.end(CloseReason.UNSUPPORTED_API, now)
        elif self.to_broker is None:
            connection.connect()
        elif admission is None:
            return self.relay_one(data, pos, end, now)
        elif api_key == PRODUCE:
            return self._authorize_produce(admission, api_version, data, pos, end, now)
        else:
            taker = admission.judge if throttle is None else throttle.judge
        if taker is not None and connection.long_work.has_room(size, now):
            return self._take_whole(data, pos, end, now, taker)
        return pos

    def _authorize_produce(
        self, admission: "Admission", api_version: int, data: Bytes, pos: int, end: int, now: float
    ) -> int:
        """Forward a Produce to one topic that is allowed; gather any other to be judged."""
        size, _, _, length = REQUEST_HEAD.unpack_from(data, pos)
        after = pos + SIZE.size + size
        at = pos + REQUEST_HEAD.size + max(length, 0)
        behind = admission.allowed_topic(api_version, data, at, min(after, end))
        if behind is not None:
            return self.relay_one(data, pos, end, now, behind)
        if end < after and end - pos < MOST_BYTES_OF_A_HEAD:
            return pos  # its head may not be here yet
        taker = admission.judge if self.throttle is None else self.throttle.judge
        return self._take_whole(data, pos, end, now, taker)

    def answered(self, size: int, now: float) -> None:
        """A request of `size` bytes behind its size field is answered here."""
        self.count += 1
        self.bytes += SIZE.size + size
        self.last_at = now

    def forward_judged(self, frame: bytes, route: Route, owed: Route | None, now: float) -> None:
        """Forward a whole frame that was judged; `owed` None: the broker will not answer it."""
        if self.throttle is not None:
            if self.throttle.bounds(route.api_key):
                frame = self.throttle.bounded(frame, now) or frame
            owed = self.throttle.telling(owed)
        if owed is not None:
            self._owed((REQUEST_HEAD.unpack_from(frame)[2], owed))
        self._forward(route, frame, 0, len(frame), len(frame), 1, now)

    def _take_whole(self, data: Bytes, pos: int, end: int, now: float, taker: Taker) -> int:
        """Gather the frame at `pos` for `taker`, which is given what is behind its size."""
        size: int = SIZE.unpack_from(data, pos)[0]
        self._connection.long_work.spend(size)
        begin = pos + SIZE.size
        if begin + size <= end:
            taker(bytes(data[begin : begin + size]), now)
            self._connection.long_work.leave_room()
            return begin + size
        self.gathered = bytearray(), size, taker
        return self._gather(self.gathered, data, begin, end, now)

    def _gather(self, gathered: Gathered, data: Bytes, pos: int, end: int, now: float) -> int:
        content, size, taker = gathered
        after = min(pos + size - len(content), end)
        content += data[pos:after]
        if len(content) == size:
            self.gathered = None
            whole = bytes(content)
            content.clear()  # the same bytes twice would be much
            taker(whole, now)
            self._connection.long_work.leave_room()
        return after
