"""Client direction of one connection: requests, cut from the bytes read, and judged in order.

Rules:

- Requests are only forwarded while the session is authenticated and alive.
- A frame that passes at a first look is forwarded as it was read, in one piece with its neighbours.
  Only frames that the proxy answers itself, or must judge whole, are gathered, within a bound.
- A frame passes at a first look only if it equals one that was judged before in every byte that the
  verdict depended on (`proxy.connection.fingerprints`). Any other goes through
  `proxy.connection.stages`.
- Forwarded bytes are written when all of a read has been processed, or before anything else is
  written to the broker.
- A size is checked before any byte of its frame is kept. A long frame, other than a Produce, is
  only gathered if there is memory for it (`proxy.scheduling.memory_budget`).
- Produced bytes are charged once per read, before they are judged. A throttled client is held after
  a whole frame, so that the broker can answer it.
"""

from math import inf
from typing import Final

from proxy.connection.commands import (
    Change,
    ClientNamed,
    Close,
    CloseReason,
    Confirm,
    Done,
    Forward,
    GetIdentity,
    NeedMemory,
    Verdict,
    Wait,
)
from proxy.connection.fingerprints import BY_HEAD, CORRELATED, JUDGE_EACH, Basis
from proxy.connection.frames import (
    FORWARD,
    MAX_BYTES_OF_A_LOOK,
    MIN_REQUEST,
    REQUEST_HEAD,
    SIZE,
    UNDECIDED,
    Bytes,
    Head,
    client_id_end,
)
from proxy.connection.inflight import MAX_IN_FLIGHT
from proxy.connection.interfaces import ConnectionRules, UpstreamBroker
from proxy.connection.life import PauseReason
from proxy.connection.long_work import LongWork
from proxy.connection.pipe import RequestPipe
from proxy.connection.stages import TO_ANSWER, Gather, Stages
from proxy.scheduling.memory_budget import LONG_BYTES, LONG_BYTES_UNAUTHENTICATED
from proxy.wire.apis import PRODUCE
from proxy.wire.request import kept_characters
from sasl.messages import SASL_AUTHENTICATE

CLIENT_NAMED: Final = ClientNamed()
CONFIRM: Final = Confirm()
DONE: Final = Done()
MAX_API_KEY: Final = 256
"""Upper bound of API keys: the first byte of a request is 0, that of a raw GSSAPI token 0x60 or
0x05 (RFC 2743 section 3.1, RFC 4121 section 4.2.6)."""

Gathered = tuple[bytearray, int, Gather]
"""Available part of a frame, its size, and the purpose of the whole frame."""


class Requests:
    """Requests of one client, cut into frames."""

    __slots__ = (
        "_closed",
        "_data",
        "_flows_until",
        "_inflight",
        "_long_work",
        "_pipe",
        "_rules",
        "_stages",
        "_target",
        "_unrecognised_at",
        "gathered",
        "held",
        "is_unconfirmed",
        "nameless",
        "position",
        "relaying",
        "renew_at",
        "rest",
    )

    def __init__(
        self,
        stages: Stages,
        pipe: RequestPipe,
        long_work: LongWork,
        target: UpstreamBroker,
        rules: ConnectionRules,
    ) -> None:
        self._stages = stages
        self._pipe = pipe
        self._inflight = pipe.inflight
        self._long_work = long_work
        self._target = target
        self._rules = rules
        self._flows_until = -inf
        """Last time at which a read may be forwarded at a first look; see `reconsider`."""
        self._closed = False
        self._data: Bytes = b""
        """Read that is being processed."""
        self.position = 0
        """Position of the first unprocessed byte in the read."""
        self._unrecognised_at = -1
        """Position of a frame that is not recognized; -1 if there was no first look."""
        self.held = False
        """True if no request may be taken for now."""
        self.rest = b""
        """Bytes that could not be processed yet; they precede the next read."""
        self.relaying = False
        """True if the session is authenticated and no re-authentication is under way."""
        self.is_unconfirmed = False
        """True if a login may be complete: the broker is asked before anything but a token is
        processed."""
        self.nameless = False
        """True if the client id is still to be read from a request, because there was no login."""
        self.renew_at = inf
        """Last time at which requests are forwarded before the proxy renews its login."""
        self.gathered: Gathered | None = None
        """Frame that is being gathered; None if no frame is."""

    # Reads

    def take(self, data: Bytes, now: float) -> Verdict | None:
        """Process a read up to the first verdict that the connection carries out.

        Returns None if all of it was forwarded at a first look, and nothing else has changed.
        Otherwise the caller carries out the verdict, and calls `proceed`, until it is `DONE`.
        """
        self._data = data
        if now > self._flows_until:
            self.position, self._unrecognised_at = 0, -1
            return self.proceed(now)
        pipe = self._pipe
        pos = pipe.pass_known(data, 0, now)
        enough = len(self._inflight.queue) > MAX_IN_FLIGHT
        if pos < len(data) or pipe.left or pipe.produced or enough:
            self.position = self._unrecognised_at = pos
            if pipe.left:
                self._flows_until = -inf
            enough = (pipe.produced > 0 and self._stages.count_produced(now)) or enough
            if pos < len(data) or enough:
                return self.proceed(now)
        self._data = b""
        return None

    def resume(self, now: float) -> Verdict | None:
        """Process the bytes that could not be processed before, like `take`."""
        if not self.rest:
            self._pipe.waiting_since = inf
            return None
        self.position = 0
        return self.proceed(now)

    def proceed(self, now: float) -> Verdict:
        """Continue with the read up to the next verdict; `DONE` if nothing more can be processed.

        The request of a verdict other than `Answer` or `Forward` is looked at again.
        """
        pipe = self._pipe
        if self.rest:
            pipe.flush()
            self._data, self.rest = b"".join((self.rest, self._data[self.position :])), b""
            self.position, self._unrecognised_at = 0, -1
        data = self._data
        end = len(data)
        verdict: Verdict | None = None
        while (pos := self.position) < end:
            if pipe.left:
                self.position = pipe.cut_through(data, pos, now)
            elif self.gathered is not None:
                verdict = self._gather(self.gathered, data, pos, now)
            elif self.held or self.is_limited(now):
                break
            elif now > self.renew_at:
                self.renew_at = inf
                return Wait(PauseReason.LOGIN, GetIdentity())
            elif not self._pass(data, pos, now):
                verdict = self._look(data, pos, end, now)
                if verdict is None and self.position == pos:
                    break  # bytes are missing
            if verdict is not None:
                return verdict
        self._finish(now)
        return DONE

    def _finish(self, now: float) -> None:
        self._pipe.flush()
        self._pipe.waiting_since = min(self._pipe.waiting_since, now) if self.held else inf
        if self.position < len(self._data) and not self._closed:
            self.rest = bytes(self._data[self.position :])
        self._data = b""
        self._stages.took(self.position)
        self.reconsider()

    def hold(self) -> None:
        """Stop taking requests until `held` is cleared."""
        self.held = True
        self._flows_until = -inf

    def close(self) -> None:
        """Stop for good, and forget all bytes."""
        self.hold()
        self._closed, self._data, self.rest, self.gathered = True, b"", b"", None

    def reconsider(self) -> None:
        """Determine whether the next read may be forwarded at a first look."""
        flowing = (
            self.relaying
            and self._pipe.to_broker is not None
            and self.gathered is None
            and not (self.held or self.rest or self._pipe.left)
        )
        self._flows_until = min(self._stages.expires_at, self.renew_at) if flowing else -inf

    def is_limited(self, now: float) -> bool:
        """Charge produced bytes; return whether no request may be taken for now."""
        pipe, throttling = self._pipe, self._stages.throttling
        if pipe.produced:
            self._stages.count_produced(now)
        if throttling is not None and not pipe.left and throttling.holds(now):
            return True
        return self._inflight.owes_much or self._long_work.turn_is_over

    # One frame

    def _pass(self, data: Bytes, pos: int, now: float) -> bool:
        """Forward the frames at `pos` that are recognized; return whether there were any."""
        if (
            pos == self._unrecognised_at
            or not self.relaying
            or self._pipe.to_broker is None
            or now > self._stages.expires_at
        ):
            return False
        self.position = self._unrecognised_at = self._pipe.pass_known(data, pos, now)
        return self.position > pos

    def _look(self, data: Bytes, pos: int, end: int, now: float) -> Verdict | None:
        """Process the frame at `pos`, which is not recognized.

        Returns None if it was processed, at least in part; or, if `position` has not moved, if more
        bytes are needed.
        """
        if end - pos < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(data, pos)
        if not self.relaying:
            return self._look_before_session(data, pos, end, size, now)
        if not MIN_REQUEST <= size <= self._pipe.max_bytes:
            return _impossible(size, self._pipe.max_bytes)
        if end - pos < REQUEST_HEAD.size:
            return None
        if self.nameless and not self._skips_client_id(data, pos, size):
            return self._learn_client_id(data, pos, end)
        head = REQUEST_HEAD.unpack_from(data, pos)
        look = self._stages.look(head, data, pos, end, now)
        if isinstance(look, Basis):
            return self._forward(head, data, pos, end, look, now)
        if isinstance(look, Gather):
            return self._take_whole(data, pos, size, look, now)
        if isinstance(look, Change):
            head, end = REQUEST_HEAD.unpack_from(look.start), len(look.start)
            fault = self._forward(head, look.start, 0, end, JUDGE_EACH, now)
            self.position += pos
            return fault
        return look

    def _look_before_session(
        self, data: Bytes, pos: int, end: int, size: int, now: float
    ) -> Verdict | None:
        """Process a frame while there is no session, or while it is being renewed."""
        if self.is_unconfirmed and size >= MIN_REQUEST:
            if end - pos < REQUEST_HEAD.size:
                return None
            api_key = REQUEST_HEAD.unpack_from(data, pos)[1] >> 16
            if api_key < MAX_API_KEY and api_key != SASL_AUTHENTICATE:  # else it is a token
                return CONFIRM
        if not 0 <= size <= self._rules.sasl_max_receive_size:
            return _impossible(size, self._rules.sasl_max_receive_size)
        return self._take_whole(data, pos, size, TO_ANSWER, now)

    def _skips_client_id(self, data: Bytes, pos: int, size: int) -> bool:
        """Return whether a request has no client id, or one that exceeds its frame, which the
        broker refuses."""
        is_null = data[pos + REQUEST_HEAD.size - 2] >= 0x80
        return is_null or client_id_end(data, pos) > pos + SIZE.size + size

    def _learn_client_id(self, data: Bytes, pos: int, end: int) -> ClientNamed | None:
        """Read the client id of a request; None if more bytes are needed."""
        begin, behind = pos + REQUEST_HEAD.size, client_id_end(data, pos)
        if behind > end:
            return None
        self._stages.authentication.client_id = kept_characters(bytes(data[begin:behind]))
        self.nameless = False
        return CLIENT_NAMED

    def _forward(
        self, head: Head, data: Bytes, pos: int, end: int, basis: Basis, now: float
    ) -> Close | None:
        """Forward the frame at `pos`, and recognize others like it by `basis` from now on.

        Returns a close if the frame is malformed, and otherwise None; if more bytes are needed,
        `position` stays unchanged.
        """
        size, key, correlation_id, length = head
        route = self._target.routes[key]
        self._long_work.spend(0)
        after = pos + SIZE.size + size
        tally = basis.tally
        here = min(after, end)
        reply, seen = FORWARD, pos + REQUEST_HEAD.size + max(length, 0)
        if route.check is not None:
            reply, seen = route.check(data, seen, here)
        if reply == UNDECIDED:
            enough = after <= end or end - pos > MAX_BYTES_OF_A_LOOK
            return Close(reason=CloseReason.MALFORMED_FRAME) if enough else None
        if reply == FORWARD:
            self._inflight.queue.append((correlation_id, route))
            if basis is BY_HEAD:
                basis = Basis(((CORRELATED, seen - pos),))
            if basis.spans and max(seen - pos, basis.spans[-1][1]) <= here - pos:
                self._pipe.remember(data, pos, size, basis, route)
        if tally is not None:
            tally.add(1, after - pos, now)
        is_owed = reply == FORWARD
        self.position = self._pipe.pass_one(data, pos, after, route, now, is_owed=is_owed)
        return None

    def _take_whole(
        self, data: Bytes, pos: int, size: int, gather: Gather, now: float
    ) -> Verdict | None:
        """Gather the frame at `pos`."""
        if self._needs_memory(data, pos, size, gather):
            return NeedMemory(size)
        self._pipe.flush()  # its verdict comes after the forwarded frames
        self._long_work.spend(size)
        begin = pos + SIZE.size
        after = begin + size
        if after <= len(data):
            self.position = after
            return self._decide(bytes(data[begin:after]), gather, now)
        self.gathered = bytearray(), size, gather
        return self._gather(self.gathered, data, begin, now)

    def _needs_memory(self, data: Bytes, pos: int, size: int, gather: Gather) -> bool:
        if self.relaying:
            if size < LONG_BYTES or self._long_work.reserves(size):
                return False
            return gather is TO_ANSWER or REQUEST_HEAD.unpack_from(data, pos)[1] >> 16 != PRODUCE
        return (
            size >= LONG_BYTES_UNAUTHENTICATED
            and self._stages.authentication.identity is None
            and not self._long_work.reserves_any
        )

    def _gather(self, gathered: Gathered, data: Bytes, pos: int, now: float) -> Verdict | None:
        content, size, gather = gathered
        after = min(pos + size - len(content), len(data))
        content += data[pos:after]
        self.position = after
        if len(content) < size:
            return None
        self.gathered = None
        whole = bytes(content)
        content.clear()  # frees memory before the frame is judged
        return self._decide(whole, gather, now)

    def _decide(self, content: bytes, gather: Gather, now: float) -> Verdict:
        if gather is TO_ANSWER:
            return self._stages.answer(content, now)
        return self._stages.judge(content, now)

    def forward_whole(self, verdict: Forward, now: float) -> None:
        """Forward a frame that was judged whole."""
        pipe, frame, route, owed = self._pipe, verdict.frame, verdict.route, verdict.owed
        if verdict.basis is not None:
            pipe.remember(frame, 0, len(frame) - SIZE.size, verdict.basis, route)
        if owed is not None:
            self._inflight.owe(REQUEST_HEAD.unpack_from(frame)[2], owed)
        pipe.pass_one(frame, 0, len(frame), route, now, is_owed=owed is not None)
        pipe.take_produced()  # charged before it was judged
        pipe.flush()


def _impossible(size: int, most: int) -> Close:
    """Return the close for a frame whose size is out of range."""
    reason = CloseReason.OVERSIZE_FRAME if size > most else CloseReason.MALFORMED_FRAME
    return Close(reason=reason)
