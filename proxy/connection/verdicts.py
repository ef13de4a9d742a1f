"""Executor of verdicts: has whole requests judged stage by stage, and carries out the result.

Laws: nothing is forwarded that was not judged by the ACLs that apply now; while a request waits, no
other of its client is taken, so order is kept; a connection that is closed judges nothing more.
"""

from typing import TYPE_CHECKING, Final

from proxy.acl.decision import Answer, Change, Close
from proxy.connection.authorized_responses import cut, watched
from proxy.connection.commands import CloseReason
from proxy.connection.fingerprints import MAX_FINGERPRINTED_BYTES, Basis, Span, all_but
from proxy.connection.frames import FORWARD_UNANSWERED, REQUEST_HEAD, SIZE, Route, route_key
from proxy.connection.inflight import Question
from proxy.connection.pause_reasons import PauseReason
from proxy.connection.stages import Pending, Stage, Verdict, Wait, Work
from proxy.errors import BrokerFault, ClientFault
from proxy.wire.apis import FETCH, METADATA, MUTATIONS, OFFSET_COMMIT, PRODUCE, SHARE_FETCH
from proxy.wire.commit_requests import numbers as commit_numbers
from proxy.wire.primitives import INT16
from proxy.wire.request import Request, parse_request, response_frame

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization
    from proxy.connection.connection import Connection
    from proxy.connection.mutation_quota import MutationLimiter

_JUDGED_ANEW: Final = frozenset({PRODUCE, FETCH, SHARE_FETCH, *MUTATIONS})
"""APIs of which a look (`RequestAuthorization.look`) says what may pass, or nothing does."""


def decide(
    admission: "RequestAuthorization", limiter: "MutationLimiter | None", pending: Pending
) -> Stage[Verdict]:
    """May it, and does it exceed what may be changed?"""
    verdict = yield from admission.judge(pending)
    if limiter is not None:
        verdict = yield from limiter.limit(verdict, pending)
    return verdict


class Verdicts:
    """Has requests judged, and carries out what comes of it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection

    def judge(self, content: bytes, now: float) -> None:
        """Take a request, from behind the frame's size; a Produce counts whatever becomes of it.

        It is judged by who judges now, perhaps not as when it began.
        """
        requests, throttle = self._connection.requests, self._connection.requests.throttle
        api_key = int.from_bytes(content[:2])
        admission, frame = requests.admission, SIZE.pack(len(content)) + content
        if admission is None and throttle is not None:
            admission = throttle.admission(api_key)
        if admission is None:
            requests.relay_one(frame, 0, len(frame), now)
            return
        told_ms = 0
        if throttle is not None and api_key == PRODUCE:
            told_ms = throttle.used.produced(len(content), now)
        if admission.look.whole(frame, 0, len(frame)) is not None:
            self._forward(frame, told_ms, now)
        else:
            self._decide(admission, content, told_ms, now)
        if told_ms and throttle is not None:
            throttle.hold(now)

    def _decide(
        self, admission: "RequestAuthorization", content: bytes, told_ms: int, now: float
    ) -> None:
        try:
            request = parse_request(content)
        except ClientFault:
            self._connection.end(CloseReason.MALFORMED_FRAME, now)
            return
        throttle = self._connection.requests.throttle
        limited = throttle is not None and request.api_key in MUTATIONS
        limiter = throttle.mutations if throttle is not None and limited else None
        pending = Pending(request, now)
        self._go_on(decide(admission, limiter, pending), pending, told_ms, None, now)

    def _go_on(
        self, stage: Stage[Verdict], pending: Pending, told_ms: int, sent: object, now: float
    ) -> None:
        """Have a request judged on; `sent`: what it waited for."""
        connection = self._connection
        if connection.closed:
            stage.close()
            return
        pending.now, waits = now, 0
        try:
            waits = self._wait(stage.send(sent), stage, pending, told_ms)
        except StopIteration as done:
            self._carry_out(done.value, pending, told_ms, now)
        except BrokerFault:
            connection.finish(CloseReason.BROKER_FAULT, now)
        connection.release((PauseReason.WAITING | PauseReason.AUTHORIZING) & ~waits, now)

    def _wait(self, wait: Wait, stage: Stage[Verdict], pending: Pending, told_ms: int) -> int:
        """Have the client wait; return the reason, which the next `_go_on` releases."""
        connection = self._connection

        def go_on(came: object, now: float) -> None:
            self._go_on(stage, pending, told_ms, came, now)

        if isinstance(wait, Work):
            connection.hold(PauseReason.AUTHORIZING)
            connection.long_work.do(wait.steps, wait.size, go_on)
            return PauseReason.AUTHORIZING
        connection.hold(PauseReason.WAITING)
        if route_key(METADATA, wait.api_version) in connection.target.routes:
            connection.ask(Question(METADATA, wait.api_version, go_on), wait.frame)
        else:
            go_on(None, pending.now)
        return connection.holds & (PauseReason.WAITING | PauseReason.AUTHORIZING)

    # What the verdict says

    def _carry_out(self, verdict: Verdict, pending: Pending, told_ms: int, now: float) -> None:
        connection, request = self._connection, pending.request
        match verdict:
            case CloseReason():
                connection.end(verdict, now)
            case Close():
                connection.end(CloseReason.DENIED, now)
            case Answer(body):
                connection.pipe.answered(len(request.content), now)
                key = route_key(request.api_key, request.api_version)
                connection.send(response_frame(request, body), now, key, told_ms)
            case Change():
                self._change(verdict, request, told_ms, now)
            case _:
                frame = SIZE.pack(len(request.content)) + request.content
                self._remember(pending, frame)
                self._forward(frame, told_ms, now)

    def _forward(self, frame: bytes, told_ms: int, now: float) -> None:
        route = self._connection.target.routes[int.from_bytes(frame[4:8])]
        owed = None if _unanswered(frame, route) else route
        self._connection.requests.forward_judged(frame, route, owed, told_ms, now)

    def _remember(self, pending: Pending, frame: bytes) -> None:
        """Let requests pass from now on that are the same, but for numbers that do not matter."""
        request, admission = pending.request, self._connection.requests.admission
        if (
            request.api_key in _JUDGED_ANEW
            or len(frame) > MAX_FINGERPRINTED_BYTES
            or admission is None
            or admission.auditing
            or admission.look is not pending.judged_by  # rights changed while it was judged
        ):
            return
        varying: list[Span] = []
        if request.api_key == OFFSET_COMMIT:
            at = REQUEST_HEAD.size + max(0, INT16.unpack_from(frame, 12)[0])
            varying = commit_numbers(request.api_version, frame, at, len(frame)) or []
        basis = Basis(all_but(varying, len(frame)), whole=True)
        route = self._connection.target.routes[route_key(request.api_key, request.api_version)]
        self._connection.pipe.remember(frame, 0, len(frame) - SIZE.size, basis, route)

    def _change(self, change: Change, request: Request, told_ms: int, now: float) -> None:
        connection, content = self._connection, request.content
        route = connection.target.routes[route_key(request.api_key, request.api_version)]
        unanswered = _unanswered(SIZE.pack(len(content)) + content, route)
        if change.request is not None:
            content = content[: request.body_at] + change.request
        if change.api_version is not None:
            if route_key(request.api_key, change.api_version) not in connection.target.routes:
                connection.end(CloseReason.UNSUPPORTED_API, now)
                return
            content = content[:2] + INT16.pack(change.api_version) + content[4:]
        owed: Route | None = None if unanswered else route
        if change.response is not None:
            owed = cut(route, change.response, len(request.content))
        elif change.watch is not None:
            owed = watched(route, change.watch)
        frame = SIZE.pack(len(content)) + content
        connection.requests.forward_judged(frame, route, owed, told_ms, now)
        if connection.inflight.owes_much:
            connection.too_many_in_flight()
        if change.close:
            connection.end(CloseReason.DENIED, now)


def _unanswered(frame: bytes, route: Route) -> bool:
    """Return whether the broker will not answer: Produce with acks=0."""
    if route.check is None:
        return False
    at = REQUEST_HEAD.size + max(0, INT16.unpack_from(frame, 12)[0])
    return route.check(frame, at, len(frame))[0] == FORWARD_UNANSWERED
