"""Broker direction of one connection: responses, cut into frames.

Rules:

- An answer of the proxy's own is sent at once when its turn comes: it is never next in the queue
  (`proxy.connection.inflight`) between two whole responses.
- A response without a transform is written as it was read, in one piece with its neighbours; its
  body is never gathered. The body of a Fetch response that counts towards a quota is not gathered
  either: if the quota is already exceeded, the broker's bytes are dropped as they arrive.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxy.connection.fingerprints import UNLIMITED
from proxy.connection.frames import (
    COMPILED,
    RESPONSE_HEAD,
    SIZE,
    Bytes,
    LongTransform,
    Owed,
    Route,
    Transform,
    cut,
    int32_at,
    read_response_head,
)
from proxy.connection.inflight import Amendment, InFlight, Question, TimedRequest, announcing
from proxy.connection.long_work import MAX_AT_ONCE
from proxy.errors import BrokerFault
from proxy.quota.throttle import Throttle
from proxy.wire.apis import FETCHES, SASL_APIS, SHARE_FETCH
from proxy.wire.fetch_requests import without_records, without_topics
from proxy.wire.throttle_times import HEAD
from sasl.messages import MAX_RESPONSE_BYTES

if TYPE_CHECKING:
    from mypy_extensions import i64

MAX_GATHERED_BYTES: Final = 104_857_600
"""Maximum size of a response that is rewritten as a whole, such as Metadata: Kafka's own limit of a
frame."""
LONG_RESPONSE: Final = 65_536
"""Size in bytes from which a response with a long transform is changed while it passes, instead of
being gathered."""


class Responses:
    """Responses of one broker to one client."""

    __slots__ = (
        "_flowing",
        "_forgotten",
        "_gathered",
        "_long",
        "_throttle_time_ms",
        "_to_change",
        "bytes",
        "changing",
        "inflight",
        "left",
        "rest",
        "throttle",
        "to_client",
    )

    def __init__(self, inflight: InFlight, to_client: Callable[[Bytes], None]) -> None:
        self.inflight = inflight
        self.to_client = to_client
        """Function that writes to the client."""
        self.bytes = 0
        """Number of bytes sent to the client, including the proxy's own answers."""
        self.left = 0
        """Remaining bytes of a response that is passed on, or dropped, in pieces."""
        self.throttle: Throttle | None = None
        """Counter of fetched bytes; None without such a quota."""
        self._throttle_time_ms = 0
        """Throttle time of the next response if it was counted already; 0 if it was not."""
        self._flowing = True
        """True if the next read begins with a response, and no own answer waits; see
        `_reconsider`."""
        self.rest = b""
        """Start of a response that was too short to process; it precedes the next read."""
        self._forgotten = False
        """True if the remaining bytes of a response are dropped."""
        self._gathered: tuple[bytearray, int, Route] | None = None
        """Available part, size and entry of the response that is being gathered; None if no
        response is."""
        self._long: LongTransform | None = None
        self.changing = False
        """True while a long response is changed in steps, and the broker is not read."""
        self._to_change: tuple[Transform, bytes] | None = None
        """Transform and content of that response until `take_change`."""

    @property
    def settled(self) -> bool:
        """True if every request was answered, to the last byte."""
        return not (len(self.inflight) or self.left or self._gathered is not None or self.changing)

    def answer(self, frame: bytes) -> None:
        """Send an answer of the proxy's own when its turn comes."""
        if self.settled:
            self._send(frame)
        else:
            self.inflight.answer(frame)
            self._flowing = False

    def broker_bytes(self, data: Bytes, now: float) -> bool:
        """Process bytes of the broker; return False if all of them passed unchanged.

        Raises BrokerFault if they are not the responses that are owed.
        """
        pos = 0
        if self._flowing and (pos := self._pass_known(data, 0, len(data), now)) == len(data):
            self._flowing = not self.left
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
            if self.left:
                pos = self._cut_through(data, at, end)
            elif self._gathered is not None:
                pos = self._gather(self._gathered, data, at, now)
            else:
                # While own answers wait, one at a time: the next may be due after any response.
                looks_end = min(at + 8, end) if self.inflight.waits else end
                pos = self._pass_known(data, at, looks_end, now)
                if pos == at and (pos := self._rewrite(data, at, end, now)) == at:
                    self.rest = bytes(data[at:end])
                    break
            if self.inflight.waits:
                self._send_own()
        self._reconsider()

    def _reconsider(self) -> None:
        """Determine whether the next read begins with a response, and no own answer waits."""
        self._flowing = not (
            self.rest
            or self.left
            or self._gathered is not None
            or self.inflight.waits
            or self.changing
        )

    # Responses that pass unchanged

    def _pass_known(self, data: Bytes, start: int, looks_end: int, now: float) -> int:
        """Forward whole responses and the first bytes of one; return the position of the rest.

        Nothing after `looks_end` is looked at.
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
        except IndexError:  # nothing is owed, which `_rewrite` reports
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

    def _budget(self, now: float) -> int:
        """Return how many bytes of metered responses pass without a closer look."""
        if self.throttle is None:
            return UNLIMITED
        return 0 if self._throttle_time_ms else self.throttle.fetch_room(now)

    def _spend(self, size: int) -> None:
        if self.throttle is not None:
            self.throttle.use_fetch_room(size)

    def _stays(self, used: int, size: int, here: int, now: float) -> bool:
        """Return whether a metered response must be changed; if not, it has been counted.

        `used` is the part of the budget that the responses before it took, `here` the number of
        available bytes.
        """
        self._spend(used)
        if here < SIZE.size + min(size, HEAD):
            return True
        assert self.throttle is not None
        if not self._throttle_time_ms:
            self._throttle_time_ms = self.throttle.fetched(size, now)
        return self._throttle_time_ms > 0

    def _cut_through(self, data: Bytes, pos: int, end: int) -> int:
        after = min(pos + self.left, end)
        self.left -= after - pos
        if self._forgotten:
            self._forgotten = self.left > 0
            return after
        piece = cut(data, pos, after)
        if self._long is not None:
            if isinstance(piece, bytes):
                piece = memoryview(bytearray(piece))
            self._long.feed(piece)
            if not self.left:
                self._long = None
        self._send(piece)
        return after

    # Responses that are changed, or the proxy's own

    def _rewrite(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Process the response at `pos`, which did not pass; return `pos` if bytes are missing."""
        owed = self.inflight.next
        if owed is not None and isinstance(owed[1], Question) and owed[1].is_raw:
            return self._take_raw(owed[1], data, pos, end, now)
        if end - pos < RESPONSE_HEAD.size:
            return pos
        size, correlation_id = RESPONSE_HEAD.unpack_from(data, pos)
        if owed is None:
            raise BrokerFault("an unsolicited response")
        expected, route = owed
        if expected != correlation_id or size < 4:
            raise BrokerFault("a response with the wrong correlation id, or of an impossible size")
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
        throttle = self.throttle
        if throttle is not None and route.api_key in FETCHES:
            ms = self._throttle_time_ms or throttle.fetched(size, now)
            self._throttle_time_ms = 0
            route = announcing(route, ms) if ms else route
            if throttle.leaves_out:
                return self._leave_out(route, size, data, begin, now)
        if size >= LONG_RESPONSE and route.long_transform is not None:
            self._long, self.left = route.long_transform(size), size
            self._send(bytes(data[pos:begin]))
            return begin
        return self._gather((bytearray(), size, route), data, begin, now)

    def _take_raw(self, question: Question, data: Bytes, pos: int, end: int, now: float) -> int:
        """Process the response to a raw token, which may be empty; return `pos` if bytes are
        missing."""
        if end - pos < SIZE.size:
            return pos
        (size,) = SIZE.unpack_from(data, pos)
        if not 0 <= size <= MAX_RESPONSE_BYTES:
            raise BrokerFault("a response to a login, of an impossible size")
        self.inflight.pop()
        return self._gather((bytearray(), size, question), data, pos + SIZE.size, now)

    def _leave_out(self, route: Route, size: int, data: Bytes, begin: int, now: float) -> int:
        """Answer a Fetch without topics, and drop the broker's response.

        The results of acknowledgements in a ShareFetch response are kept.
        """
        transform, api_version = route.transform, route.api_version
        assert transform is not None
        if route.api_key == SHARE_FETCH and size <= MAX_GATHERED_BYTES:
            lean = Amendment(
                route, lambda content: transform(without_records(api_version, content))
            )
            return self._gather((bytearray(), size, lean), data, begin, now)
        head = bytes(data[begin : begin + min(size, HEAD)])
        self._send_content(transform(without_topics(route.api_key, api_version, head)))
        self.left, self._forgotten = size, True
        return begin

    def _gather(
        self, gathered: tuple[bytearray, int, Route], data: Bytes, pos: int, now: float
    ) -> int:
        content, size, route = gathered
        after = min(pos + size - len(content), len(data))
        content += data[pos:after]
        if len(content) < size:
            self._gathered = gathered
            return after
        self._gathered = None
        assert route.transform is not None
        if isinstance(route, Question):
            route.taken(bytes(content), now)
        elif size > MAX_AT_ONCE and route.takes_long:
            self.changing, self._to_change = True, (route.transform, bytes(content))
        else:
            self._send_content(route.transform(bytes(content)))
        return after

    def take_change(self) -> tuple[Transform, bytes] | None:
        """Take the transform and content of a response to be changed in steps, once; pass the
        result to `changed`."""
        to_change, self._to_change = self._to_change, None
        return to_change

    def changed(self, content: bytes) -> None:
        """Send a response that was changed in steps."""
        self.changing = False
        self._send_content(content)
        self._send_own()

    def time(self, timed: TimedRequest, now: float) -> None:
        """Update the timed request after bytes that were read at `now`."""
        if self.inflight.owes_timed:
            return
        timed.responding(now)
        if self._gathered is None:
            timed.complete(now)
            if not self.changing:
                self.inflight.timed = None
                timed.responded()

    # Writing

    def _send(self, piece: Bytes) -> None:
        self.bytes += len(piece)
        self.to_client(piece)

    def _send_content(self, content: bytes) -> None:
        self._send(SIZE.pack(len(content)) + content)

    def _send_own(self) -> None:
        """Send the proxy's own answers whose turn has come."""
        if self.left or self._gathered is not None or self.changing:
            return
        while (frame := self.inflight.pop_answer()) is not None:
            self._send(frame)


def _pass_bytes(
    data: bytes, start: "i64", looks_end: "i64", queue: list[Owed], budget: "i64"
) -> "tuple[i64, i64]":
    """Pass over the whole responses at `start` that are owed and pass unchanged.

    The compiled form of the loop in `Responses._pass_known`. `budget` is the number of bytes that
    metered ones may have. Returns the position of the rest, and the rest of the budget.
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
    if count == 1:  # the usual case, in which pop is cheaper than a slice
        queue.pop(0)
    elif count:
        del queue[:count]
    return pos, left
