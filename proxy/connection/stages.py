"""Stages of a request, in order; each maps a request and the time to a verdict.

    session alive?  →  answered here?  →  allowed?  →  mutation limit  →  quota  →  verdict

Rules:

- A stage holds no connection; `proxy.connection.connection` carries out its verdicts.
- `look` decides by the available bytes of a frame, and asks for the whole frame if they do not
  suffice; `answer` and `judge` take whole frames. The rights and quotas that apply are those at the
  time of judging, not of the first byte.
- A stage that must wait yields, and `resume` continues it. Meanwhile no other request of its client
  is taken, so order is kept.
- Only requests that were judged by the current ACLs are forwarded. The exceptions are versions that
  the proxy cannot decode (`FIRST_KEPT_BY_KAFKA_4`), where ACLs are not enforced.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, final

from proxy.acl import decision
from proxy.acl.administration import ADMINISTRATIVE, Administered, with_report
from proxy.connection.authentication import Authentication
from proxy.connection.commands import (
    Answer,
    Change,
    Close,
    CloseReason,
    ConnectToBroker,
    Expired,
    Forward,
    Pending,
    Stage,
    Verdict,
    Wait,
    Work,
)
from proxy.connection.fingerprints import (
    BY_HEAD,
    JUDGE_EACH,
    MAX_FINGERPRINTED_BYTES,
    UNLIMITED,
    Basis,
    Span,
    all_but,
)
from proxy.connection.frames import (
    FORWARD_UNANSWERED,
    MAX_BYTES_OF_A_HEAD,
    REQUEST_HEAD,
    SIZE,
    UNDECIDED,
    Bytes,
    Head,
    Route,
    client_id_end,
    route_key,
)
from proxy.connection.inflight import announcing, changing, watched
from proxy.connection.interfaces import ConnectionRules, UpstreamBroker
from proxy.connection.life import PauseReason
from proxy.connection.pipe import RequestPipe
from proxy.connection.throttling import Throttling
from proxy.errors import ClientFault
from proxy.wire.apis import (
    API_VERSIONS,
    FETCH,
    FIRST_KEPT_BY_KAFKA_4,
    METADATA,
    MUTATIONS,
    OFFSET_COMMIT,
    PRODUCE,
    SASL_APIS,
    SCRAM_APIS,
    SHARE_FETCH,
    answered_here,
)
from proxy.wire.commit_requests import numbers as commit_numbers
from proxy.wire.fetch_requests import FIRST_WITH_MAX_BYTES
from proxy.wire.primitives import INT16
from proxy.wire.request import Request, parse_request, response_frame
from sasl.messages import SASL_HANDSHAKE

if TYPE_CHECKING:
    from proxy.connection.authorization import RequestAuthorization

DROPPED_BY_KAFKA_4: Final = frozenset(
    route_key(api_key, version)
    for api_key, kept in FIRST_KEPT_BY_KAFKA_4.items()
    for version in range(kept)
)
"""API keys and versions that Kafka 4.0 dropped (KIP-896), by `route_key`."""
_NO_VERSIONS: Final[frozenset[int]] = frozenset()
"""Initial value of every connection; a set of its own would take 216 bytes."""
_NOT_REMEMBERED: Final = frozenset({PRODUCE, FETCH, SHARE_FETCH, *MUTATIONS, *SCRAM_APIS})
"""APIs whose allowed requests are not remembered as fingerprints: `RequestAuthorization.look`
decides, a limit counts each request, or they contain credentials."""


@final
class Gather:
    """The whole frame is needed, to answer or to judge it."""

    __slots__ = ()


TO_ANSWER: Final = Gather()
TO_JUDGE: Final = Gather()

Look = Basis | Change | Gather | Wait | Close | Expired | None
"""Result of a look: forward the frame on a basis, unchanged or changed; gather it; or carry out
another verdict. None if more bytes are needed."""
Judgement = decision.Judgement | CloseReason

MAX_DELAY: Final = 1.0
"""Maximum delay in seconds of a request that arrived before the end of the session, and that the
proxy processes after it."""


class Stages:
    """Stages of the requests of one connection."""

    __slots__ = (
        "_administered",
        "_pending",
        "_pipe",
        "_report",
        "_rules",
        "_stage",
        "_target",
        "_throttle_time_ms",
        "_unjudged",
        "authentication",
        "authorization",
        "dropped_versions",
        "expires_at",
        "on_time",
        "throttling",
    )

    def __init__(
        self,
        authentication: Authentication,
        pipe: RequestPipe,
        target: UpstreamBroker,
        rules: ConnectionRules,
        unjudged: Callable[[int], None],
        report: Callable[[Administered], None] | None,
    ) -> None:
        """`unjudged` is called once for each of `DROPPED_BY_KAFKA_4` that is forwarded; `report`
        for each administrative request, after its response; None to report none."""
        self._unjudged: Callable[[int], None] | None = unjudged
        self._report = report
        self._administered: tuple[Administered, ...] = ()
        """Administrative requests without a response so far, if they are reported."""
        self.authentication = authentication
        self._pipe = pipe
        self._target = target
        self._rules = rules
        self.expires_at = inf
        """End of the session, in monotonic seconds; later requests use an expired one."""
        self.on_time = 0
        """Number of unprocessed bytes that arrived before `expires_at`, read or not. UNLIMITED
        until the event loop counts them (`CountUnread`): everything that it reads until then has
        waited for the loop."""
        self.authorization: RequestAuthorization | None = None
        """Stage that judges by ACLs; None if the client may do everything."""
        self.throttling: Throttling | None = None
        """Quota stage; None if no quota applies."""
        self.dropped_versions = _NO_VERSIONS
        """Those of `DROPPED_BY_KAFKA_4` that the client used, whether forwarded or not."""
        self._stage: Stage[Judgement] | None = None
        """Stage that waits; None if no stage waits."""
        self._pending: Pending | None = None
        """Request that it judges."""
        self._throttle_time_ms = 0
        """Throttle time to announce in the response to that request, in milliseconds."""

    def _is_judged(self, api_key: int) -> bool:
        """Return whether requests of an API must be judged."""
        if self.authorization is not None or (
            self._report is not None and api_key in ADMINISTRATIVE
        ):
            return True
        return self.throttling is not None and self.throttling.limits_mutations(api_key)

    # First bytes

    def look(self, head: Head, data: Bytes, pos: int, end: int, now: float) -> Look:
        """Judge the frame at `pos`, of an authenticated client, by its bytes before `end`."""
        size, key, _, length = head
        api_key = key >> 16
        if now > self.expires_at and not (
            self._is_on_time(pos, now) or self._renews_session(api_key, now)
        ):
            return Expired(api_key)
        throttling = self.throttling
        if throttling is not None and (wait := throttling.defer(api_key, now)) is not None:
            return wait
        if key in DROPPED_BY_KAFKA_4:
            return self._look_at_dropped(key, size, data, pos, end, now)
        if key not in self._target.routes:
            return self._look_at_own(key, size)
        if self._pipe.to_broker is None:
            return Wait(PauseReason.NO_BROKER, ConnectToBroker())
        if self._is_judged(api_key):
            at = pos + REQUEST_HEAD.size + max(length, 0)
            return self._look_at_topics(key, data, pos, at, pos + SIZE.size + size, end, now)
        if throttling is not None and throttling.bounds(api_key):
            return throttling.look(data, pos, end, now)
        return BY_HEAD

    def _look_at_own(self, key: int, size: int) -> Gather | Wait | Close:
        """Return the verdict on a request that is not forwarded: the proxy answers it, or refuses
        it."""
        api_key = key >> 16
        is_ours = api_key not in self._target.not_answered
        if not (is_ours and answered_here(api_key, key & 0xFFFF)):
            return Close(reason=CloseReason.UNSUPPORTED_API)
        if api_key in SASL_APIS and size > self._rules.sasl_max_receive_size:
            return Close(reason=CloseReason.OVERSIZE_FRAME)
        if self._pipe.to_broker is None and self._needs_broker(api_key):
            return Wait(PauseReason.NO_BROKER, ConnectToBroker())
        return TO_ANSWER

    def _needs_broker(self, api_key: int) -> bool:
        """Return whether a request that the proxy answers waits for the upstream connection first.

        An answer after the login makes clients assume that the broker works, and reset their
        back-off. Without SASL, ApiVersions is their first request, and franz-go gives up on a
        broker that closes the connection before it has answered one.
        """
        if api_key != API_VERSIONS:
            return api_key not in SASL_APIS
        session = self.authentication.established
        return session is not None and session.mechanism is not None

    def _look_at_dropped(
        self, key: int, size: int, data: Bytes, pos: int, end: int, now: float
    ) -> Look:
        """Record a version that Kafka 4.0 dropped; forward its request, which the proxy cannot
        decode, unless it must be judged."""
        api_key, throttling = key >> 16, self.throttling
        if is_first := key not in self.dropped_versions:
            self.dropped_versions |= {key}
        if key not in self._target.routes:
            return self._look_at_own(key, size)
        if self._must_be_judged(api_key):
            return Close(reason=CloseReason.UNSUPPORTED_API)
        if is_first and self._unjudged is not None:
            self._unjudged(key)
        if self._pipe.to_broker is None:
            return Wait(PauseReason.NO_BROKER, ConnectToBroker())
        if throttling is None or not throttling.bounds(api_key):
            return BY_HEAD
        if key & 0xFFFF < FIRST_WITH_MAX_BYTES:
            return JUDGE_EACH
        return throttling.look(data, pos, end, now)

    def _must_be_judged(self, api_key: int) -> bool:
        """Return whether ACLs or a limit on mutations are enforced for a request."""
        authorization, throttling = self.authorization, self.throttling
        if authorization is not None and not authorization.auditing:
            return True
        return (
            throttling is not None
            and throttling.used.enforced
            and throttling.limits_mutations(api_key)
        )

    def expire_at(self, when: float) -> None:
        """Set the end of the session, in monotonic seconds; inf for no end, -inf if it has expired
        already."""
        self.expires_at = when
        self.on_time = UNLIMITED if -inf < when < inf else 0

    @property
    def unmeasured_end(self) -> float:
        """End of the session if `on_time` must be measured then; inf otherwise."""
        return self.expires_at if self.on_time == UNLIMITED else inf

    def took(self, size: int) -> None:
        """Note that `size` bytes were processed."""
        if self.on_time != UNLIMITED:
            self.on_time = max(0, self.on_time - size)

    def waited_on_purpose(self) -> None:
        """Note that the client was not read on purpose: after the end of its session, no request is
        on time.

        Back-pressure that ends before the loop has counted the unread bytes only lasted that long
        because of the proxy's own delay.
        """
        if self.on_time != UNLIMITED:
            self.on_time = 0

    def _is_on_time(self, pos: int, now: float) -> bool:
        """Return whether a request at `pos` arrived before the end of the session, and is only late
        because of the proxy."""
        return pos < self.on_time and now <= self.expires_at + MAX_DELAY

    def _renews_session(self, api_key: int, now: float) -> bool:
        """Return whether this request renews an expired session. If not, the expiry is reported
        once."""
        if api_key == SASL_HANDSHAKE and self.authentication.may_begin_again(now):
            return True
        self.expires_at = inf
        return False

    def _look_at_topics(
        self, key: int, data: Bytes, pos: int, at: int, after: int, end: int, now: float
    ) -> Look:
        """Forward a Produce or Fetch if all of its topics are known to be allowed.

        Its client id ends at `at`, and the frame at `after`.
        """
        authorization, api_key = self.authorization, key >> 16
        if authorization is None or (api_key != PRODUCE and api_key != FETCH):
            return TO_JUDGE
        basis = None
        if api_key == PRODUCE:
            basis = authorization.look.look_at_start(key & 0xFFFF, data, pos, at, min(after, end))
            if basis is None and end < after and end - pos < MAX_BYTES_OF_A_HEAD:
                return None  # its head may be incomplete
        if basis is None and after <= end:
            basis = authorization.look.whole(key, data, pos, at, after)
        if basis is None:
            return TO_JUDGE
        throttling = self.throttling
        if basis.max_bytes and throttling is not None and throttling.lowers(basis.max_bytes, now):
            return TO_JUDGE
        return basis

    def count_produced(self, now: float) -> bool:
        """Charge the forwarded Produces; return whether the quota is exceeded."""
        return self.throttling is not None and self.throttling.count_produced(now)

    # Whole frames

    def answer(self, content: bytes, now: float) -> Verdict:
        """Answer a request; `content` is the frame without its size."""
        return self.authentication.answer(content, self.authorization, now)

    def judge(self, content: bytes, now: float) -> Verdict:
        """Judge a request; a Produce is charged even if it is denied."""
        key = int.from_bytes(content[:4])
        frame = SIZE.pack(len(content)) + content
        throttling, authorization, ms = self.throttling, self.authorization, 0
        if throttling is not None and key >> 16 == PRODUCE:
            ms = throttling.used.produced(len(content), now)
        if not self._is_judged(key >> 16):  # rights or quotas have changed
            return self._forward(frame, ms, now)
        at, end = client_id_end(frame, 0), len(frame)
        if authorization is not None:
            known = authorization.look.whole(key, frame, 0, at, end)
            if known is not None:
                if known.tally is not None:
                    known.tally.add(1, end, now)
                return self._forward(frame, ms, now)
        try:
            pending = Pending(parse_request(content), now)
        except ClientFault:
            return Close(reason=CloseReason.MALFORMED_FRAME)
        self._pending, self._throttle_time_ms = pending, ms
        self._stage = self._judged(pending)
        return self.resume(None, now)

    def _judged(self, pending: Pending) -> Stage[Judgement]:
        """Judge by ACLs, then by the limit on mutations."""
        judgement: Judgement = decision.FORWARD
        authorization = self.authorization
        if authorization is not None:
            judgement = yield from authorization.judge(pending)
            if authorization.uses is not None and pending.used:
                size = SIZE.size + len(pending.request.content)
                pending.tally = authorization.uses.count(pending.used, size, pending.now)
        limiter = None if self.throttling is None else self.throttling.mutations
        if limiter is not None and pending.request.api_key in MUTATIONS:
            judgement = yield from limiter.limit(judgement, pending)
        if self._report is not None and pending.request.api_key in ADMINISTRATIVE:
            judgement = self._reported(judgement, pending, self._report)
        return judgement

    def _reported(
        self, judgement: Judgement, pending: Pending, report: Callable[[Administered], None]
    ) -> Judgement:
        """Report the broker's response to an administrative request, if the broker gets it."""
        if not isinstance(judgement, decision.Forward | decision.Change):
            return judgement
        request = pending.request
        sent = Administered(route_key(request.api_key, request.api_version), pending.now)
        self._administered = (*self._administered, sent)

        def answered(response: bytes) -> None:
            self._administered = tuple(one for one in self._administered if one is not sent)
            report(sent._replace(response=response))

        return with_report(judgement, answered)

    def resume(self, result: Any, now: float) -> Verdict:
        """Continue the stage that waited for `result`. Raises BrokerFault."""
        stage, pending = self._stage, self._pending
        assert stage is not None
        assert pending is not None
        pending.now = now
        try:
            while True:
                wait = stage.send(result)
                if isinstance(wait, Work):
                    return wait
                if route_key(METADATA, wait.api_version) in self._target.routes:
                    return wait
                result = None
        except StopIteration as done:
            self._stage = self._pending = None
            return self._verdict(done.value, pending, now)

    def drop(self) -> None:
        """Release everything: the connection is closed."""
        self.flush_uses()
        if self._report is not None:
            for sent in self._administered:
                self._report(sent)
            self._report = None
        self.authorization = self._pending = self._unjudged = None
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()

    def flush_uses(self) -> int:
        """Hand over the uses that were counted; return their number."""
        if self.authorization is None or self.authorization.uses is None:
            return 0
        return self.authorization.uses.flush()

    # Verdicts

    def _verdict(self, judgement: Judgement, pending: Pending, now: float) -> Verdict:
        request, ms = pending.request, self._throttle_time_ms
        if isinstance(judgement, CloseReason):
            return Close(reason=judgement)
        if isinstance(judgement, decision.Close):
            return Close(reason=CloseReason.DENIED)
        if isinstance(judgement, decision.Answer):
            self._pipe.answered(len(request.content), now)
            key = route_key(request.api_key, request.api_version)
            return Answer(response_frame(request, judgement.body), key, ms)
        frame = SIZE.pack(len(request.content)) + request.content
        if isinstance(judgement, decision.Change):
            return self._change(judgement, frame, request, ms, now)
        return self._forward(frame, ms, now, basis=self._basis(pending, frame))

    def _change(
        self, change: decision.Change, frame: bytes, request: Request, ms: int, now: float
    ) -> Verdict:
        content, version = request.content, change.api_version
        if change.request is not None:
            content = content[: request.body_at] + change.request
        if version is not None:
            if route_key(request.api_key, version) not in self._target.routes:
                return Close(reason=CloseReason.UNSUPPORTED_API)
            content = content[:2] + INT16.pack(version) + content[4:]
        changed = SIZE.pack(len(content)) + content
        return self._forward(frame, ms, now, change=change, changed=changed)

    def _forward(
        self,
        frame: bytes,
        throttle_time_ms: int,
        now: float,
        *,
        basis: Basis | None = None,
        change: decision.Change | None = None,
        changed: bytes | None = None,
    ) -> Verdict:
        """Forward a frame, or `changed` in its place, and announce the throttle time."""
        route = self._target.routes.get(int.from_bytes(frame[4:8]))
        if route is None:  # the broker has changed
            return Close(reason=CloseReason.UNSUPPORTED_API)
        owed: Route | None = route
        if route.check is not None:
            reply, _ = route.check(frame, client_id_end(frame, 0), len(frame))
            if reply == UNDECIDED:
                return Close(reason=CloseReason.MALFORMED_FRAME)
            owed = None if reply == FORWARD_UNANSWERED else route
        if change is not None and change.response is not None:
            owed = changing(route, change.response, len(frame) - SIZE.size)
        elif change is not None and change.watch is not None:
            owed = watched(route, change.watch)
        sent, throttling = changed or frame, self.throttling
        if throttling is not None and throttling.bounds(route.api_key):
            sent = throttling.bounded(sent, now) or sent
        if owed is not None and throttle_time_ms:
            owed = announcing(owed, throttle_time_ms)
        close = None
        if change is not None and change.close:
            close = Close(reason=CloseReason.DENIED, after_broker=True)
        return Forward(sent, route, owed, basis=basis, close=close)

    def _basis(self, pending: Pending, frame: bytes) -> Basis | None:
        """Return the fingerprint of an allowed request, ignoring volatile fields; None if it must
        not be remembered."""
        request, authorization = pending.request, self.authorization
        if (
            request.api_key in _NOT_REMEMBERED
            or len(frame) > MAX_FINGERPRINTED_BYTES
            or authorization is None
            or authorization.auditing
            or authorization.look is not pending.judged_by  # rights changed while it was judged
        ):
            return None
        varying: list[Span] = []
        if request.api_key == OFFSET_COMMIT:
            at = client_id_end(frame, 0)
            varying = commit_numbers(request.api_version, frame, at, len(frame)) or []
        return Basis(all_but(varying, len(frame)), whole=True, tally=pending.tally)
