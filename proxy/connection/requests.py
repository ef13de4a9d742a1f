"""Client direction of one connection: requests, cut from what was read, and staged in order.

Laws:

- Nothing is forwarded unless the session is authenticated and alive.
- A frame is forwarded at a first look, as it was read, in one piece with its neighbours; its
  body is never gathered. Only frames that the proxy answers itself are, within a bound, and those
  that must be judged whole.
- A frame is forwarded at a first look only if it is like one that was judged before, in all that
  mattered for this (`proxy.connection.fingerprints`); every other meets `proxy.connection.stages`.
- What is forwarded is written when all of a read was dealt with (`finish`), or before whatever
  else is written to the broker.
- A size is judged before a single byte of its frame is kept, and a long frame, other than a
  Produce, is gathered only where there is memory for it (`proxy.scheduling.memory_budget`).
- What is produced counts towards a quota once per read, before it is judged; who is throttled is
  held behind a whole frame, so that the broker can answer it.
"""

from math import inf
from typing import Final

from proxy.connection.commands import Close, CloseReason, GetIdentity
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
from proxy.connection.verdicts import (
    Change,
    ClientNamed,
    Confirm,
    Forward,
    NeedMemory,
    Verdict,
    Wait,
)
from proxy.scheduling.memory_budget import LONG_BYTES, LONG_BYTES_UNAUTHENTICATED
from proxy.wire.apis import PRODUCE
from proxy.wire.request import kept_characters
from sasl.messages import SASL_AUTHENTICATE

CLIENT_NAMED: Final = ClientNamed()
CONFIRM: Final = Confirm()
MAX_API_KEY: Final = 256
"""Bound on API keys: a raw token of GSSAPI begins with 0x60 or 0x05 (RFC 2743 section 3.1, RFC 4121
section 4.2.6), and a request with a zero."""

Gathered = tuple[bytearray, int, Gather]
"""The part of a frame that is here, its size, and what is done with the whole."""


class Requests:
    """Requests of one client, cut into frames."""

    __slots__ = (
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
        """The last moment at which a read is forwarded at a first look; see `reconsider`."""
        self.position = 0
        """The position, in the bytes that were read, of the first that is not dealt with."""
        self._unrecognised_at = -1
        """The position in them of a frame that a first look left; -1: nobody looked there yet."""
        self.held = False
        """True if no further request is to be taken for now."""
        self.rest = b""
        """Bytes that could not be handled yet; they come before the next read."""
        self.relaying = False
        """True if a session is authenticated and no re-authentication is under way."""
        self.is_unconfirmed = False
        """True if a login may be complete, of which the broker is asked before anything but a token
        is dealt with."""
        self.nameless = False
        """True if the first request with a client id names it: no login has."""
        self.renew_at = inf
        """The last moment at which the broker is sent anything before the proxy logs in again."""
        self.gathered: Gathered | None = None
        """The frame that is gathered; None: none is."""

    # What was read

    def flow(self, data: Bytes, now: float) -> bool:
        """Forward what is recognised of a read, if all before it was dealt with.

        Returns whether nothing else is to be done; if it is, `next` does it from `position` on.
        """
        if now > self._flows_until:
            self.position, self._unrecognised_at = 0, -1
            return False
        pipe = self._pipe
        pos = pipe.pass_known(data, 0, now)
        enough = len(self._inflight.queue) > MAX_IN_FLIGHT
        if pos == len(data) and not (pipe.left or pipe.produced or enough):
            return True
        self.position = self._unrecognised_at = pos
        if pipe.left:
            self._flows_until = -inf
        enough = (pipe.produced > 0 and self._stages.count_produced(now)) or enough
        return pos == len(data) and not enough

    def behind_rest(self, data: Bytes) -> Bytes:
        """Return what to deal with, which begins with what could not be dealt with before."""
        if not self.rest:
            return data
        self._pipe.flush()
        data, self.rest = b"".join((self.rest, data[self.position :])), b""
        self.position, self._unrecognised_at = 0, -1
        return data

    def next(self, data: Bytes, now: float) -> Verdict | None:
        """Deal with requests up to the next verdict that the connection carries out.

        None: no other can be dealt with for now. What a verdict but `Answer` or `Forward` is about
        is looked at again.
        """
        pipe, end = self._pipe, len(data)
        verdict: Verdict | None = None
        while (pos := self.position) < end and verdict is None:
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
                    break  # for want of bytes
        return verdict

    def finish(self, data: Bytes, now: float, *, closed: bool) -> None:
        """All that can be dealt with was."""
        self._pipe.flush()
        self._pipe.waiting_since = min(self._pipe.waiting_since, now) if self.held else inf
        if self.position < len(data) and not closed:
            self.rest = bytes(data[self.position :])
        self._stages.took(self.position)
        self.reconsider()

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
        self._flows_until = min(self._stages.expires_at, self.renew_at) if flowing else -inf

    def is_limited(self, now: float) -> bool:
        """Count what was produced; return whether no further request is to be taken for now."""
        pipe, throttling = self._pipe, self._stages.throttling
        if pipe.produced:
            self._stages.count_produced(now)
        if throttling is not None and not pipe.left and throttling.holds(now):
            return True
        return self._inflight.owes_much or self._long_work.turn_is_over

    # One frame

    def _pass(self, data: Bytes, pos: int, now: float) -> bool:
        """Forward the frames at `pos` that are recognised; return whether there were any."""
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
        """Deal with the frame at `pos`, which is not recognised; None: it was, or was begun with,
        if `position` moved; if not, more bytes are needed."""
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
        """Deal with a frame while there is no session, or one is being renewed."""
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
        """Return whether a request has no client id, or one that is not for us to refuse."""
        is_null = data[pos + REQUEST_HEAD.size - 2] >= 0x80
        return is_null or client_id_end(data, pos) > pos + SIZE.size + size

    def _learn_client_id(self, data: Bytes, pos: int, end: int) -> ClientNamed | None:
        """Take notice of the client id of a request; None: not before more bytes come."""
        begin, behind = pos + REQUEST_HEAD.size, client_id_end(data, pos)
        if behind > end:
            return None
        self._stages.authentication.client_id = kept_characters(bytes(data[begin:behind]))
        self.nameless = False
        return CLIENT_NAMED

    def _forward(
        self, head: Head, data: Bytes, pos: int, end: int, basis: Basis, now: float
    ) -> Close | None:
        """Forward the frame at `pos`, and others from now on that are like it in what `basis` says;
        the broker is sent nothing if it cannot be forwarded."""
        size, key, correlation_id, length = head
        route = self._target.routes[key]
        self._long_work.spend(0)
        after = pos + SIZE.size + size
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
        is_owed = reply == FORWARD
        self.position = self._pipe.pass_one(data, pos, after, route, now, is_owed=is_owed)
        return None

    def _take_whole(
        self, data: Bytes, pos: int, size: int, gather: Gather, now: float
    ) -> Verdict | None:
        """Gather the frame at `pos`."""
        if self._needs_memory(data, pos, size, gather):
            return NeedMemory(size)
        self._pipe.flush()  # what comes of it comes after what was forwarded
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
        content.clear()  # the same bytes twice would be much
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
        pipe.take_produced()  # which counted when it came
        pipe.flush()


def _impossible(size: int, most: int) -> Close:
    """Return the close for a frame whose size is beyond its limits."""
    reason = CloseReason.OVERSIZE_FRAME if size > most else CloseReason.MALFORMED_FRAME
    return Close(reason=reason)
