"""Client direction of one connection: requests in order.

Laws:

- Nothing is forwarded unless the session is authenticated and alive.
- A frame is forwarded at a first look, as it was read, in one piece with its neighbours; its
  body is never gathered. Only frames that the proxy answers itself are, within a bound, and those
  that must be authorized, of which too little is here.
- What must be authorized (`admission` is there) is forwarded at a first look only if it is like a
  frame that was found to be allowed, in all that mattered for this
  (`proxy.connection.fingerprints`).
- What is forwarded is written when all of a read was dealt with (`flush`), or before whatever
  else is written to the broker.
- A size is judged before a single byte of its frame is kept, and a long frame, other than a
  Produce, is gathered only where there is room for it (`proxy.scheduling.memory_budget`).
- What is produced counts towards a quota (`throttle` is there) once per read, before it is judged;
  who is throttled is held behind a whole frame, so that the broker can answer it.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from proxy.connection.commands import CloseReason
from proxy.connection.fingerprints import (
    CORRELATED,
    Basis,
)
from proxy.connection.frames import (
    FORWARD,
    MAX_BYTES_OF_A_HEAD,
    MAX_BYTES_OF_A_LOOK,
    MIN_REQUEST,
    REQUEST_HEAD,
    SIZE,
    UNDECIDED,
    Bytes,
    Route,
)
from proxy.connection.inflight import MAX_IN_FLIGHT
from proxy.connection.throttling import telling
from proxy.scheduling.memory_budget import LONG_BYTES_UNAUTHENTICATED
from proxy.wire.apis import PRODUCE, SASL_APIS, answered_here

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization
    from proxy.connection.connection import Connection
    from proxy.connection.throttling import Throttling

NOT_SEEN: Final = -1
"""Result for a frame that must be judged as a whole."""

Taker = Callable[[bytes, float], None]
Gathered = tuple[bytearray, int, Taker]


class Requests:
    """Requests of one client, cut into frames."""

    __slots__ = (
        "_connection",
        "_flows_until",
        "_inflight",
        "_pipe",
        "active_at",
        "admission",
        "expires_at",
        "gathered",
        "held",
        "held_behind",
        "nameless",
        "relaying",
        "renew_at",
        "rest",
        "throttle",
    )

    def __init__(self, connection: "Connection", now: float) -> None:
        self._connection = connection
        self._inflight = connection.inflight
        self._pipe = connection.pipe
        self.active_at = now
        """Time at which the client last sent anything, in monotonic seconds."""
        self._flows_until = -inf
        """The last moment at which a read is forwarded at a first look; see `reconsider`."""
        self.held = False
        """True if no further request is to be taken for now."""
        self.rest = b""
        """Bytes that could not be handled yet; they come before the next read."""
        self.admission: RequestAuthorization | None = None
        """Judges what is asked; None: nothing needs to be authorized. See `guard`."""
        self.relaying = False
        """True if a session is authenticated and no re-authentication is under way."""
        self.nameless = False
        """True if the first request with a client id tells it: no login has. See
        `Authentication`."""
        self.expires_at = inf
        """The last moment, in monotonic seconds, at which a request meets a living session."""
        self.renew_at = inf
        """The last moment at which the broker is sent anything before the proxy logs in again."""
        self.throttle: Throttling | None = None
        """Counts what is used of quotas; None: the client has none."""
        self.held_behind = False
        """True if the client is to be held as soon as the broker has the whole of a frame."""
        self.gathered: Gathered | None = None
        """The frame that is gathered, its size, and who takes it."""

    def client_bytes(self, data: Bytes, now: float) -> None:
        """Take what was read from the client."""
        self.active_at = now
        stopwatch = self._connection.stopwatch
        started = stopwatch is not None and stopwatch.start()
        pos = self._relay(data, 0, now) if now <= self._flows_until else 0
        if pos < len(data):
            self._take(data, pos, now)
        if started and stopwatch is not None:
            stopwatch.stop(now)

    def resume(self, now: float) -> None:
        """Take what could not be dealt with before."""
        stopwatch = self._connection.stopwatch
        started = stopwatch is not None and stopwatch.start()
        if self.rest:
            self._take(b"", 0, now)
        self._connection.long_work.release_memory()
        if started and stopwatch is not None:
            stopwatch.stop(now)

    def guard(self, admission: "RequestAuthorization | None") -> None:
        """Look closer at all requests again, and have `admission`, if any, authorize them."""
        self.admission = admission
        self._pipe.forget()

    def _take(self, data: Bytes, pos: int, now: float) -> None:
        if self.rest:
            self._pipe.flush()
            data, pos, self.rest = b"".join((self.rest, data[pos:])), 0, b""
        end = len(data)
        while pos < end:
            at = pos
            if self._pipe.left:
                pos = self._cut_through(data, at, now)
            elif self.gathered is not None:
                pos = self._gather(self.gathered, data, at, end, now)
            elif self.held:
                break
            elif now > self.renew_at:
                self._connection.renew_login()
            elif (pos := self._pass(data, at, end, now)) == at:
                break
        self._pipe.flush()
        if pos < end and not self._connection.closed:
            self.rest = bytes(data[pos:])
        self.reconsider()
        if self.held and not self._pipe.left:
            self._connection.end_if_settled(now)

    def _pass(self, data: Bytes, pos: int, end: int, now: float) -> int:
        """Deal with the frames at `pos`, at a first look or a closer one; see `_look_closer`."""
        if self.relaying and self._pipe.to_broker is not None and now <= self.expires_at:
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
            and self._pipe.to_broker is not None
            and self.gathered is None
            and not (self.held or self.rest or self._pipe.left)
        )
        self._flows_until = min(self.expires_at, self.renew_at) if flowing else -inf

    def _relay(self, data: Bytes, start: int, now: float) -> int:
        """Forward the frames at `start` that are recognised; return where others begin."""
        pipe = self._pipe
        pos = pipe.pass_known(data, start, now)
        if pipe.left or pipe.produced or self._inflight.size() > MAX_IN_FLIGHT:
            self._passed(now)
        return pos

    def _passed(self, now: float) -> None:
        """Apply the limits to frames that were forwarded."""
        pipe = self._pipe
        if pipe.left:
            self._flows_until = -inf
        if len(self._inflight) > MAX_IN_FLIGHT:
            self._connection.too_many_in_flight()
        if pipe.produced:
            produced = pipe.take_produced()
            if self.throttle is not None:
                self.throttle.produced(produced, now)

    def relay_one(
        self, data: Bytes, pos: int, end: int, now: float, basis: Basis | None = None
    ) -> int:
        """Forward the frame at `pos`, and others from now on that are like it in what `basis` says.

        None: in what decides whether it is answered. Returns `pos` if it cannot be forwarded.
        """
        size, key, correlation_id, length = REQUEST_HEAD.unpack_from(data, pos)
        route = self._connection.target.routes[key]
        self._connection.long_work.spend(0)
        after = pos + SIZE.size + size
        here = min(after, end)
        verdict, seen = FORWARD, pos + REQUEST_HEAD.size + max(length, 0)
        if route.check is not None:
            verdict, seen = route.check(data, seen, here)
        if verdict == UNDECIDED:
            if after <= end or end - pos > MAX_BYTES_OF_A_LOOK:  # enough was here
                self._connection.end(CloseReason.MALFORMED_FRAME, now)
            return pos
        if verdict == FORWARD:
            self._inflight.append((correlation_id, route))
            basis = basis or Basis(((CORRELATED, seen - pos),))
            if basis.spans and max(seen - pos, basis.spans[-1][1]) <= here - pos:
                self._pipe.remember(data, pos, size, basis, route)
        after = self._pipe.pass_one(data, pos, after, route, now, is_owed=verdict == FORWARD)
        self._passed(now)
        return after

    def _cut_through(self, data: Bytes, pos: int, now: float) -> int:
        after = self._pipe.cut_through(data, pos)
        if self.held_behind and not self._pipe.left:
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
            smallest, most = MIN_REQUEST, self._pipe.most_bytes
        if size > most:
            self._connection.end(CloseReason.OVERSIZE_FRAME, now)
        elif size < smallest:
            self._connection.end(CloseReason.MALFORMED_FRAME, now)
        elif not self.relaying:
            if size < LONG_BYTES_UNAUTHENTICATED or self._connection.long_work.admits_stranger(
                size, now
            ):
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
        connection = self._connection
        api_key, api_version = key >> 16, key & 0xFFFF
        if self.throttle is not None and self.throttle.defers(api_key, now):
            return pos
        if answered_here(api_key, api_version):
            size: int = SIZE.unpack_from(data, pos)[0]
            if api_key in SASL_APIS and size > connection.rules.sasl_max_receive_size:
                connection.end(CloseReason.OVERSIZE_FRAME, now)
            elif connection.long_work.has_room(size, now):
                return self._take_whole(data, pos, end, now, connection.dialogue.answer_whole)
        elif key not in connection.target.routes:
            connection.end(CloseReason.UNSUPPORTED_API, now)
        elif self._pipe.to_broker is None:
            connection.connect()
        else:
            return self._authorize(api_key, data, pos, end, now)
        return pos

    def _authorize(self, api_key: int, data: Bytes, pos: int, end: int, now: float) -> int:
        """Forward the frame at `pos`, or have it judged."""
        admission, throttle = self.admission, self.throttle
        if throttle is not None:
            admission = admission or throttle.admission(api_key)
        if admission is None:
            if throttle is not None and throttle.bounds(api_key):
                return throttle.relay_fetch(data, pos, end, now)
            return self.relay_one(data, pos, end, now)
        after = self._relay_allowed(admission, data, pos, end, now)
        if after != NOT_SEEN:
            return after
        size: int = SIZE.unpack_from(data, pos)[0]
        if api_key == PRODUCE or self._connection.long_work.has_room(size, now):
            return self._take_whole(data, pos, end, now, self._connection.verdicts.judge)
        return pos

    def _relay_allowed(
        self, admission: "RequestAuthorization", data: Bytes, pos: int, end: int, now: float
    ) -> int:
        """Forward the frame at `pos` if a look at it shows that it is allowed.

        Returns where to go on; `pos` itself: when more of it is here; `NOT_SEEN`: it must be
        judged as a whole.
        """
        size, key, _, length = REQUEST_HEAD.unpack_from(data, pos)
        after = pos + SIZE.size + size
        basis = None
        if key >> 16 == PRODUCE:
            at = pos + REQUEST_HEAD.size + max(length, 0)
            basis = admission.look.beginning(key & 0xFFFF, data, pos, at, min(after, end))
            if basis is None and end < after and end - pos < MAX_BYTES_OF_A_HEAD:
                return pos  # its head may not be here yet
        if basis is None and after <= end:
            basis = admission.look.whole(data, pos, after)
        throttle, asks = self.throttle, 0 if basis is None else basis.max_bytes
        if basis is None or (asks and throttle is not None and throttle.lowers(asks, now)):
            return NOT_SEEN
        return self.relay_one(data, pos, end, now, basis)

    def forward_judged(
        self, frame: bytes, route: Route, owed: Route | None, told_ms: int, now: float
    ) -> None:
        """Forward a whole frame that was judged; `owed` None: the broker will not answer it.

        `told_ms`: the throttle time that the response is to tell.
        """
        if self.throttle is not None and self.throttle.bounds(route.api_key):
            frame = self.throttle.bounded(frame, now) or frame
        if owed is not None:
            owed = telling(owed, told_ms) if told_ms else owed
            self._inflight.owe(REQUEST_HEAD.unpack_from(frame)[2], owed)
        self._pipe.pass_one(frame, 0, len(frame), route, now, is_owed=owed is not None)
        self._pipe.take_produced()  # which counted when it came
        self._pipe.flush()
        self._passed(now)

    def _take_whole(self, data: Bytes, pos: int, end: int, now: float, taker: Taker) -> int:
        """Gather the frame at `pos` for `taker`, which is given what is behind its size."""
        self._pipe.flush()  # what comes of it comes after what was forwarded
        size: int = SIZE.unpack_from(data, pos)[0]
        self._connection.long_work.spend(size)
        begin = pos + SIZE.size
        if begin + size <= end:
            taker(bytes(data[begin : begin + size]), now)
            self._connection.long_work.release_memory()
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
            self._connection.long_work.release_memory()
        return after
