"""Requests pass in order: the client's direction of one connection.

Laws:

- Nothing is forwarded unless the session is authenticated and alive.
- A frame is forwarded at a first look, from the read buffer, in one piece with its neighbours;
  its body is never gathered. Only frames that the proxy answers itself are, within a bound.
- A size is judged before a single byte of its frame is kept.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from proxy.commands import CloseReason
from proxy.frames import (
    FORWARD,
    FORWARD_UNANSWERED,
    MOST_BYTES_OF_A_LOOK,
    REQUEST_HEAD,
    SIZE,
    SMALLEST_REQUEST,
)
from proxy.wire.apis import API_VERSIONS, APIS, Kind

if TYPE_CHECKING:
    from proxy.connection import Connection

MOST_IN_FLIGHT: Final = 1_024
"""Requests a client may have unanswered before it is not read any further."""


def answered_here(api_key: int, api_version: int) -> bool:
    """Whether the proxy answers such a request itself; of ApiVersions every version (KIP-511)."""
    api = APIS.get(api_key)
    if api is None or api.kind is not Kind.ANSWERED:
        return False
    return api_key == API_VERSIONS or api_version <= api.max_version


class Requests:
    """What comes from the client, cut into frames."""

    __slots__ = (
        "_connection",
        "_gathered",
        "_left",
        "bytes",
        "count",
        "expires_at",
        "last_at",
        "relaying",
        "rest",
        "to_broker",
    )

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.rest = b""
        """What could not be dealt with yet; put it before the next read."""
        self.relaying = False
        """Whether a session is authenticated and no re-authentication is under way."""
        self.expires_at = inf
        """Monotonic seconds from which on requests meet an expired session."""
        self.to_broker: Callable[[memoryview], None] | None = None
        """Writes to the broker; None: the upstream connection is not open."""
        self.count = self.bytes = 0
        """Of authenticated requests, those that the proxy answers included; without SASL's."""
        self.last_at: float | None = None
        """When the last of them arrived; None: none yet."""
        self._left = 0
        self._gathered: tuple[bytearray, int] | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether the broker has received a frame in part."""
        return self._left > 0

    def client_bytes(self, view: memoryview, end: int, now: float) -> None:
        """Take `view[:end]`: `rest` as it was left, and what was read behind it."""
        self.rest = b""
        pos = 0
        while pos < end:
            at = pos
            if self._left:
                pos = self._cut_through(view, at, end)
            elif self._gathered is not None:
                pos = self._gather(self._gathered, view, at, end, now)
            elif self._connection.held:
                break
            else:
                if self.relaying and self.to_broker is not None and now <= self.expires_at:
                    pos = self._relay(view, at, end, now)
                if pos == at and (pos := self._look_closer(view, at, end, now)) == at:
                    break
        if pos < end and not self._connection.closed:
            self.rest = bytes(view[pos:end])

    def _relay(self, view: memoryview, start: int, end: int, now: float) -> int:
        """Forward what can be forwarded at a first look; return where a closer one is needed."""
        assert self.to_broker is not None
        connection = self._connection
        pos = start
        count = 0
        routes = connection.target.routes
        owed = connection.responses.inflight.append
        most = connection.rules.request_max_bytes
        unpack = REQUEST_HEAD.unpack_from
        while end - pos >= 14:
            size, key, correlation_id, _ = unpack(view, pos)
            route = routes.get(key)
            if route is None or not SMALLEST_REQUEST <= size <= most:
                break
            after = pos + 4 + size
            if route.check is None:
                owed((correlation_id, route))
            else:
                verdict = route.check(view, pos, after if after < end else end)
                if verdict == FORWARD:
                    owed((correlation_id, route))
                elif verdict != FORWARD_UNANSWERED:
                    break
            route.requests += 1
            route.request_bytes += after - pos
            count += 1
            pos = after
        if pos > end:
            self._left = pos - end
            pos = end
        if count:
            self.count += count
            self.bytes += pos - start
            self.last_at = now
            self.to_broker(view[start:pos])
        return pos

    def _cut_through(self, view: memoryview, pos: int, end: int) -> int:
        assert self.to_broker is not None
        after = min(pos + self._left, end)
        self._left -= after - pos
        self.bytes += after - pos
        self.to_broker(view[pos:after])
        return after

    def _look_closer(self, view: memoryview, pos: int, end: int, now: float) -> int:
        """Deal with the frame at `pos`, which is not forwarded at a first look.

        Returns where to go on; `pos` itself: not before more bytes come or a hold is released.
        """
        if end - pos < SIZE.size:
            return pos
        (size,) = SIZE.unpack_from(view, pos)
        rules = self._connection.rules
        smallest, most = 0, rules.sasl_max_receive_size
        if self.relaying:
            smallest, most = SMALLEST_REQUEST, rules.request_max_bytes
        if size > most:
            self._connection.end(CloseReason.OVERSIZE_FRAME, now)
        elif size < smallest:
            self._connection.end(CloseReason.MALFORMED_FRAME, now)
        elif not self.relaying:
            return self._take_whole(view, pos, end, now)
        elif end - pos >= REQUEST_HEAD.size:
            _, key, _, _ = REQUEST_HEAD.unpack_from(view, pos)
            if now <= self.expires_at or self._connection.outlives_expiry(key >> 16, now):
                return self._admit(key, view, pos, end, now)
        return pos

    def _admit(self, key: int, view: memoryview, pos: int, end: int, now: float) -> int:
        """Take a request of a live session that is to be answered here, or say what it lacks."""
        connection = self._connection
        api_key, api_version = key >> 16, key & 0xFFFF
        if answered_here(api_key, api_version):
            return self._take_whole(view, pos, end, now)
        if key not in connection.target.routes:
            connection.end(CloseReason.UNSUPPORTED_API, now)
        elif self.to_broker is None:
            connection.connect()
        else:
            after = self._relay(view, pos, end, now)
            if after == pos and self._saw_enough(view, pos, end):
                connection.end(CloseReason.MALFORMED_FRAME, now)
            return after
        return pos

    def _saw_enough(self, view: memoryview, pos: int, end: int) -> bool:
        """Whether a check had all the bytes it may want, and could make nothing of them."""
        here = end - pos
        return SIZE.unpack_from(view, pos)[0] + SIZE.size <= here or here > MOST_BYTES_OF_A_LOOK

    def _take_whole(self, view: memoryview, pos: int, end: int, now: float) -> int:
        """Gather the frame at `pos`, which the proxy answers itself."""
        (size,) = SIZE.unpack_from(view, pos)
        if size > self._connection.rules.sasl_max_receive_size:
            self._connection.end(CloseReason.OVERSIZE_FRAME, now)
            return pos
        self._gathered = bytearray(), size
        return self._gather(self._gathered, view, pos + SIZE.size, end, now)

    def _gather(
        self, gathered: tuple[bytearray, int], view: memoryview, pos: int, end: int, now: float
    ) -> int:
        content, size = gathered
        after = min(pos + size - len(content), end)
        content += view[pos:after]
        if len(content) == size:
            self._gathered = None
            self._connection.answer_whole(bytes(content), now)
        return after
