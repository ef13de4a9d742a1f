"""Requests pass in order: the client's direction of one connection.

Laws:

- Nothing is forwarded unless the session is authenticated and alive.
- A frame is forwarded at a first look, as it was read, in one piece with its neighbours; its
  body is never gathered. Only frames that the proxy answers itself are, within a bound, and those
  that must be authorized and whose head does not suffice.
- What must be authorized (`admission` is there) is forwarded at a first look only if it is a
  Produce to the one topic that was last found to be allowed.
- A size is judged before a single byte of its frame is kept.
- What is produced counts towards a quota (`throttle` is there) once per read, before it is judged;
  who is throttled is held behind a whole frame, so that the broker can answer it.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from proxy.commands import CloseReason
from proxy.frames import (
    FORWARD,
    LONGEST_CLIENT_ID_OF_A_LOOK,
    MOST_BYTES_OF_A_LOOK,
    NO_ROUTE,
    REQUEST_HEAD,
    SIZE,
    SMALLEST_REQUEST,
    UNDECIDED,
    Amendment,
    Bytes,
    Route,
    check_flexible_produce,
    cut,
    first_look,
)
from proxy.wire.apis import FETCH, PRODUCE, SASL_APIS, answered_here

if TYPE_CHECKING:
    from proxy.admission import Admission
    from proxy.connection import Connection
    from proxy.throttling import Throttling

MOST_IN_FLIGHT: Final = 1_024
"""Requests a client may have unanswered before it is not read any further."""

MOST_BYTES_OF_A_HEAD: Final = 1_024
"""Of a Produce up to its first topic: a longer one is gathered to be authorized."""

MOST_BYTES_JUDGED: Final = 1_048_576
"""Of a request, other than Produce and Fetch, that must be read item by item to be authorized: the
other connections of the worker wait as long. Kafka has no such bound."""


class Requests:
    """What comes from the client, cut into frames."""

    __slots__ = (
        "_client_id_length",
        "_connection",
        "_gathered",
        "_left",
        "_look",
        "_owed",
        "_topic",
        "_topic_key",
        "active_at",
        "admission",
        "bytes",
        "count",
        "expires_at",
        "flowing",
        "held",
        "held_behind",
        "last_at",
        "most_bytes",
        "relaying",
        "rest",
        "throttle",
        "to_broker",
    )

    def __init__(self, connection: "Connection", now: float) -> None:
        self._connection = connection
        self._owed = connection.responses.inflight.append
        self.most_bytes = connection.rules.request_max_bytes
        """`socket.request.max.bytes`."""
        self.active_at = now
        """When the client last sent anything."""
        self.flowing = False
        """Whether the next frame can be forwarded at a first look; see `reconsider`."""
        self.held = False
        """Whether no further request is to be taken for now."""
        self.rest = b""
        """What could not be dealt with yet; put it before the next read."""
        self.admission: Admission | None = None
        """Judges what is asked; None: nothing needs to be authorized. See `guard`."""
        self.relaying = False
        """Whether a session is authenticated and no re-authentication is under way."""
        self.expires_at = inf
        """The last moment, in monotonic seconds, at which a request meets a living session."""
        self.to_broker: Callable[[Bytes], None] | None = None
        """Writes to the broker; None: the upstream connection is not open."""
        self.count = self.bytes = 0
        """Of authenticated requests, those that the proxy answers included; without SASL's."""
        self.last_at: float | None = None
        """When the last of them arrived; None: none yet."""
        self._client_id_length, self._look = 0, first_look(0)
        """Of the last frame that needed more than one look."""
        self._topic: bytes | None = b""
        """What a Produce must say of its topics to be forwarded at a first look: the bytes that
        were last found to be allowed. Empty: anything; None: nothing was found yet."""
        self._topic_key = -1
        """The API key and version in which they say so: a name in one is an id in the other."""
        self.throttle: Throttling | None = None
        """Counts what is used of quotas; None: the client has none."""
        self.held_behind = False
        """Whether the client is to be held as soon as the broker has the whole of a frame."""
        self._left = 0
        self._gathered: tuple[bytearray, int, Callable[[bytes, float], None]] | None = None
        """The frame that is gathered, its size, and who takes it."""

    @property
    def mid_frame(self) -> bool:
        """Whether the broker has received a frame in part."""
        return self._left > 0

    def client_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the client, `rest` first if there is any."""
        self.active_at = now
        end = len(data)
        pos = 0
        if self.flowing and now <= self.expires_at:
            pos = self._relay(data, 0, end, now)
            if pos == end:
                return
        self._take(data, pos, end, now)

    def guard(self, admission: "Admission | None") -> None:
        """Have requests authorized by `admission` from now on; None: nothing needs to be."""
        self.admission = admission
        self._topic = b"" if admission is None else None
        self._look = first_look(self._client_id_length)

    def _take(self, data: Bytes, pos: int, end: int, now: float) -> None:
        self.rest = b""
        while pos < end:
            at = pos
            if self._left:
                pos = self._cut_through(data, at, end, now)
            elif self._gathered is not None:
                pos = self._gather(self._gathered, data, at, end, now)
            elif self.held:
                break
            else:
                if self.relaying and self.to_broker is not None and now <= self.expires_at:
                    pos = self._relay(data, at, end, now)
                if pos == at and (pos := self._look_closer(data, at, end, now)) == at:
                    break
        if pos < end and not self._connection.closed:
            self.rest = bytes(data[pos:end])
        self.reconsider()
        if self.held and not self._left:
            self._connection.end_if_settled(now)

    def hold(self) -> None:
        """Take no further request until `held` is cleared again."""
        self.held = True
        self.flowing = False

    def reconsider(self) -> None:
        """Find out whether the next read can be forwarded at a first look."""
        self.flowing = (
            self.relaying
            and self.to_broker is not None
            and not self.held
            and not self.rest
            and not self._left
            and self._gathered is None
        )

    def _relay(self, data: Bytes, start: int, end: int, now: float) -> int:  # noqa: C901 - in one piece, to be fast
        """Forward frames that one look is enough for; return where more is needed.

        The innermost loop of the proxy. Counters are brought up to date once per run of a route.
        """
        pos = run = start
        total = count = 0
        key, route, always_answered, in_sight = -1, NO_ROUTE, False, False
        routes, owed, most = self._connection.target.routes, self._owed, self.most_bytes
        free, allowed, allowed_key = self.admission is None, self._topic, self._topic_key
        throttle, produced = self.throttle, 0
        length, width, unpack = self._client_id_length, self._look.size, self._look.unpack_from
        while end - pos >= width:
            size, its_key, correlation_id, its_length, nothing, acks, topic = unpack(data, pos)
            if its_length != length or not SMALLEST_REQUEST <= size <= most:
                break
            if its_key != key:
                if its_key not in routes:
                    break
                route.requests += count
                route.request_bytes += pos - run
                total += count
                if throttle is not None and route.api_key == PRODUCE:
                    produced += pos - run - count * 4
                key, route, run, count = its_key, routes[its_key], pos, 0
                always_answered = free and route.check is None
                in_sight = route.check is check_flexible_produce and (free or key == allowed_key)
            if always_answered or (in_sight and nothing == 0 and acks and topic == allowed):
                owed((correlation_id, route))
            elif not in_sight or nothing or topic != allowed:
                break
            count += 1
            pos += size + 4
        if pos == start:
            return pos
        route.requests += count
        route.request_bytes += pos - run
        after = self._forward(data, start, pos, end, total + count, now)
        if throttle is not None:
            if route.api_key == PRODUCE:
                produced += pos - run - count * 4
            if produced and (ms := throttle.used.produced(produced, now)):
                throttle.tell(ms, now, PRODUCE)
        return after

    def _relay_one(
        self, data: Bytes, pos: int, end: int, now: float, topic: bytes | None = b""
    ) -> int:
        """Forward the frame at `pos`, and remember what it is recognised by at a first look.

        `topic`: see `_topic`. Returns `pos` if it cannot be forwarded.
        """
        size, key, correlation_id, length = REQUEST_HEAD.unpack_from(data, pos)
        route = self._connection.target.routes[key]
        after = pos + SIZE.size + size
        verdict = FORWARD
        if route.check is not None:
            at = pos + REQUEST_HEAD.size + max(length, 0)
            verdict = route.check(data, at, min(after, end))
        if verdict == UNDECIDED:
            if after <= end or end - pos > MOST_BYTES_OF_A_LOOK:  # enough was here
                self._connection.end(CloseReason.MALFORMED_FRAME, now)
            return pos
        if verdict == FORWARD:
            self._owed((correlation_id, route))
        if 0 <= length <= LONGEST_CLIENT_ID_OF_A_LOOK:
            self._client_id_length, self._topic, self._topic_key = length, topic, key
            self._look = first_look(length, len(topic) if topic else 0)
        route.requests += 1
        route.request_bytes += after - pos
        upto = self._forward(data, pos, after, end, 1, now)
        throttle = self.throttle
        if throttle and route.api_key == PRODUCE and (ms := throttle.used.produced(size, now)):
            throttle.tell(ms, now, PRODUCE)
        return upto

    def _forward(
        self, data: Bytes, start: int, after: int, end: int, count: int, now: float
    ) -> int:
        """Write `count` frames to the broker, of the last one as much as is here."""
        assert self.to_broker is not None
        if after > end:
            self._left = after - end
            self.flowing = False
            after = end
        self.count += count
        self.bytes += after - start
        self.last_at = now
        self.to_broker(cut(data, start, after))
        if len(self._connection.responses.inflight) > MOST_IN_FLIGHT:
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
        rules = self._connection.rules
        smallest, most = 0, rules.sasl_max_receive_size
        if self.relaying:
            smallest, most = SMALLEST_REQUEST, self.most_bytes
        if size > most:
            self._connection.end(CloseReason.OVERSIZE_FRAME, now)
        elif size < smallest:
            self._connection.end(CloseReason.MALFORMED_FRAME, now)
        elif not self.relaying:
            return self._take_whole(data, pos, end, now, self._connection.dialogue.answer_whole)
        elif end - pos >= REQUEST_HEAD.size:
            _, key, _, _ = REQUEST_HEAD.unpack_from(data, pos)
            if now <= self.expires_at or self._connection.outlives_expiry(key >> 16, now):
                return self._admit(key, data, pos, end, now)
        return pos

    def _admit(self, key: int, data: Bytes, pos: int, end: int, now: float) -> int:
        """Take a request of a live session that is to be answered here, or say what it lacks."""
        connection = self._connection
        api_key, api_version = key >> 16, key & 0xFFFF
        if answered_here(api_key, api_version):
            (size,) = SIZE.unpack_from(data, pos)
            if api_key in SASL_APIS and size > connection.rules.sasl_max_receive_size:
                connection.end(CloseReason.OVERSIZE_FRAME, now)
                return pos
            return self._take_whole(data, pos, end, now, connection.dialogue.answer_whole)
        if key not in connection.target.routes:
            connection.end(CloseReason.UNSUPPORTED_API, now)
        elif self.to_broker is None:
            connection.connect()
        elif self.admission is None:
            return self._relay_one(data, pos, end, now)
        elif api_key == PRODUCE:
            return self._authorize_produce(self.admission, api_version, data, pos, end, now)
        elif api_key != FETCH and SIZE.unpack_from(data, pos)[0] > MOST_BYTES_JUDGED:
            connection.end(CloseReason.OVERSIZE_FRAME, now)
        else:
            return self._take_whole(data, pos, end, now, self.admission.judge)
        return pos

    def _authorize_produce(
        self,
        admission: "Admission",
        api_version: int,
        data: Bytes,
        pos: int,
        end: int,
        now: float,
    ) -> int:
        """Forward a Produce to one topic that is allowed; gather any other to be judged."""
        size, _, _, length = REQUEST_HEAD.unpack_from(data, pos)
        after = pos + SIZE.size + size
        at = pos + REQUEST_HEAD.size + max(length, 0)
        topic = admission.allowed_topic(api_version, data, at, min(after, end))
        if topic is not None:
            return self._relay_one(data, pos, end, now, topic or None)
        if end < after and end - pos < MOST_BYTES_OF_A_HEAD:
            return pos  # its head may not be here yet
        taker = admission.judge if self.throttle is None else self.throttle.judge
        return self._take_whole(data, pos, end, now, taker)

    def answered(self, size: int, now: float) -> None:
        """A request of `size` bytes behind its size field is answered here."""
        self.count += 1
        self.bytes += SIZE.size + size
        self.last_at = now

    def forward_judged(
        self, frame: bytes, route: Route, owed: Route | Amendment | None, now: float
    ) -> None:
        """Forward a whole frame that was judged; `owed` None: the broker will not answer it."""
        if owed is not None:
            if self.throttle is not None:
                owed = self.throttle.telling(owed)
            self._owed((REQUEST_HEAD.unpack_from(frame)[2], owed))
        route.requests += 1
        route.request_bytes += len(frame)
        self._forward(frame, 0, len(frame), len(frame), 1, now)

    def _take_whole(
        self,
        data: Bytes,
        pos: int,
        end: int,
        now: float,
        taker: Callable[[bytes, float], None],
    ) -> int:
        """Gather the frame at `pos` for `taker`, which is given what is behind its size."""
        (size,) = SIZE.unpack_from(data, pos)
        self._gathered = bytearray(), size, taker
        return self._gather(self._gathered, data, pos + SIZE.size, end, now)

    def _gather(
        self,
        gathered: tuple[bytearray, int, Callable[[bytes, float], None]],
        data: Bytes,
        pos: int,
        end: int,
        now: float,
    ) -> int:
        content, size, taker = gathered
        after = min(pos + size - len(content), end)
        content += data[pos:after]
        if len(content) == size:
            self._gathered = None
            taker(bytes(content), now)
        return after
