"""Requests pass in order: the client's direction of one connection.

Laws:

- Nothing is forwarded unless the session is authenticated and alive.
- A frame is forwarded at a first look, as it was read, in one piece with its neighbours; its
  body is never gathered. Only frames that the proxy answers itself are, within a bound.
- A size is judged before a single byte of its frame is kept.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from proxy.commands import CloseReason
from proxy.frames import (
    FORWARD,
    LONGEST_CLIENT_ID_OF_A_LOOK,
    MOST_BYTES_OF_A_LOOK,
    REQUEST_HEAD,
    SIZE,
    SMALLEST_REQUEST,
    UNDECIDED,
    Bytes,
    Route,
    check_flexible_produce,
    cut,
    first_look,
)
from proxy.wire.apis import API_VERSIONS, APIS, Kind

if TYPE_CHECKING:
    from proxy.connection import Connection

MOST_IN_FLIGHT: Final = 1_024
"""Requests a client may have unanswered before it is not read any further."""

_NO_ROUTE: Final = Route(-1, -1)
"""Stands for the route before the first."""


def answered_here(api_key: int, api_version: int) -> bool:
    """Whether the proxy answers such a request itself; of ApiVersions every version (KIP-511)."""
    api = APIS.get(api_key)
    if api is None or api.kind is not Kind.ANSWERED:
        return False
    return api_key == API_VERSIONS or api_version <= api.max_version


class Requests:
    """What comes from the client, cut into frames."""

    __slots__ = (
        "_client_id_length",
        "_connection",
        "_gathered",
        "_left",
        "_look",
        "_owed",
        "active_at",
        "bytes",
        "count",
        "expires_at",
        "flowing",
        "held",
        "last_at",
        "most_bytes",
        "relaying",
        "rest",
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
        self._left = 0
        self._gathered: tuple[bytearray, int] | None = None

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

    def _take(self, data: Bytes, pos: int, end: int, now: float) -> None:
        self.rest = b""
        while pos < end:
            at = pos
            if self._left:
                pos = self._cut_through(data, at, end)
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

    def _relay(self, data: Bytes, start: int, end: int, now: float) -> int:
        """Forward frames that one look is enough for; return where more is needed.

        The innermost loop of the proxy. Counters are brought up to date once per run of frames
        of one route.
        """
        pos = run = start
        total = count = 0
        key, route, always_answered, in_sight = -1, _NO_ROUTE, False, False
        routes, owed, most = self._connection.target.routes, self._owed, self.most_bytes
        length, width, unpack = self._client_id_length, self._look.size, self._look.unpack_from
        while end - pos >= width:
            size, its_key, correlation_id, its_length, nothing, acks = unpack(data, pos)
            if its_length != length or not SMALLEST_REQUEST <= size <= most:
                break
            if its_key != key:
                if its_key not in routes:
                    break
                route.requests += count
                route.request_bytes += pos - run
                total += count
                key, route, run, count = its_key, routes[its_key], pos, 0
                always_answered = route.check is None
                in_sight = route.check is check_flexible_produce
            if always_answered or (in_sight and nothing == 0 and acks):
                owed((correlation_id, route))
            elif not in_sight or nothing:
                break
            count += 1
            pos += size + 4
        if pos == start:
            return pos
        route.requests += count
        route.request_bytes += pos - run
        return self._forward(data, start, pos, end, total + count, now)

    def _relay_one(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Forward the frame at `pos`, and remember its client id's length; `pos`: it cannot be."""
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
            self._client_id_length, self._look = length, first_look(length)
        route.requests += 1
        route.request_bytes += after - pos
        return self._forward(data, pos, after, end, 1, now)

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

    def _cut_through(self, data: Bytes, pos: int, end: int) -> int:
        assert self.to_broker is not None
        after = min(pos + self._left, end)
        self._left -= after - pos
        self.bytes += after - pos
        self.to_broker(cut(data, pos, after))
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
            return self._take_whole(data, pos, end, now)
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
            return self._take_whole(data, pos, end, now)
        if key not in connection.target.routes:
            connection.end(CloseReason.UNSUPPORTED_API, now)
        elif self.to_broker is None:
            connection.connect()
        else:
            return self._relay_one(data, pos, end, now)
        return pos

    def _take_whole(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Gather the frame at `pos`, which the proxy answers itself."""
        (size,) = SIZE.unpack_from(data, pos)
        if size > self._connection.rules.sasl_max_receive_size:
            self._connection.end(CloseReason.OVERSIZE_FRAME, now)
            return pos
        self._gathered = bytearray(), size
        return self._gather(self._gathered, data, pos + SIZE.size, end, now)

    def _gather(
        self, gathered: tuple[bytearray, int], data: Bytes, pos: int, end: int, now: float
    ) -> int:
        content, size = gathered
        after = min(pos + size - len(content), end)
        content += data[pos:after]
        if len(content) == size:
            self._gathered = None
            self._connection.dialogue.answer_whole(bytes(content), now)
        return after
