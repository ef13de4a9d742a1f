"""The history of one connection, and the events that tell it.

The laws:

- Time is monotonic seconds and always an argument; a `Timeline` makes epoch milliseconds of it.
- `Usage` is what the relay has counted since the connection began; differences are taken here.
- An expired session is reported once, however often it is used afterwards.
- Nothing is counted per request: whether a minute was active is seen once a minute, from the time
  of the last request (`mark_activity`).
"""

from dataclasses import dataclass
from typing import Any

from metrics.events import AuthInterval, EventKind, IntervalEnd, SessionEvent
from metrics.period import NO_USAGE, Period, Usage


class Timeline:
    """Where monotonic time stands on the wall clock; one per worker process."""

    __slots__ = ("_offset",)

    def __init__(self, *, wall: float, now: float) -> None:
        self._offset = wall - now

    def epoch_ms(self, now: float) -> int:
        """Give epoch milliseconds for monotonic seconds."""
        return round((now + self._offset) * 1000)

    def adjust(self, *, wall: float, now: float) -> None:
        """Follow a wall clock that was set; call it now and then, e.g. every minute.

        Differences below a second are left alone, so that intervals within a row agree.
        """
        if abs(wall - now - self._offset) >= 1:
            self._offset = wall - now


@dataclass(slots=True, kw_only=True)
class Origin:
    """What is known of a connection when it is accepted."""

    proxy_id: str
    worker: int
    listener: str
    connection_id: str
    client_host: str
    """Address without port."""
    connected_at: float
    """Monotonic seconds."""


@dataclass(slots=True, kw_only=True)
class Client:
    """What the client has told about itself so far; written to as it becomes known."""

    enforcement: str
    """Of the listener at first, then of the principal."""
    client_id: str | None = None
    client_software_name: str | None = None
    client_software_version: str | None = None
    mechanism: str | None = None
    handshake_version: int | None = None
    authenticate_version: int | None = None
    principal: str | None = None
    """Who it is without SASL, so without sessions: only denials are told of it."""


@dataclass(slots=True, kw_only=True)
class Grant:
    """A successful authentication."""

    principal: str
    session_lifetime_ms: int
    """What the session is held to; 0: nothing."""
    announced_lifetime_ms: int
    """What the client was told; 0: nothing, or it cannot be told."""
    credential_lifetime_ms: int | None
    """What remained of the token; None: the credential does not expire."""
    latency: float
    """Seconds from the arrival of the SaslHandshake to success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """How often an authenticated connection is written about when nothing happens to it."""

    checkpoint: float = 900.0
    """Seconds without any other event until a checkpoint."""
    summary: float = 3600.0
    """Seconds between summary rows; at most an hour, for which a row has the bits."""


class SessionHistory:
    """Tells the events of one connection, in order. Every method but `sweep` is an occurrence."""

    __slots__ = (
        "_authenticated_at",
        "_authentications",
        "_cadence",
        "_ended_by",
        "_expiry_told",
        "_grant",
        "_interval_usage",
        "_last_event_at",
        "_origin",
        "_period",
        "_period_authentications",
        "_period_began_at",
        "_refused_at",
        "_sequence",
        "_timeline",
        "_told",
        "client",
    )

    def __init__(
        self, origin: Origin, client: Client, timeline: Timeline, cadence: Cadence
    ) -> None:
        self.client = client
        self._origin = origin
        self._timeline = timeline
        self._cadence = cadence
        self._sequence = 0
        self._told = NO_USAGE
        self._last_event_at = origin.connected_at
        self._authentications = 0
        self._authenticated_at = origin.connected_at
        self._interval_usage = NO_USAGE
        self._grant: Grant | None = None
        self._expiry_told = False
        self._refused_at: float | None = None
        self._ended_by = IntervalEnd.CLOSED
        self._begin_period(NO_USAGE, origin.connected_at)

    @property
    def connection_id(self) -> str:
        """Names the connection in logs as in events."""
        return self._origin.connection_id

    def authenticated(self, grant: Grant, usage: Usage, now: float) -> list[SessionEvent]:
        """An authentication or re-authentication succeeded."""
        first = self._grant is None
        age_ms = 0 if first else self._age_ms(now)
        if not first:
            self._period.end_interval(self._interval(usage, now, IntervalEnd.REAUTHENTICATED))
            self._period.add_latency(round(grant.latency * 1e6))
        self._grant = grant
        self._authentications += 1
        self._authenticated_at = now
        self._interval_usage = usage
        self._expiry_told = False
        kinds = [EventKind.AUTHENTICATED if first else EventKind.REAUTHENTICATED]
        if first and not self.client.authenticate_version:
            kinds.append(EventKind.NO_REAUTH)
        latency_us = round(grant.latency * 1e6)
        return [
            self._event(kind, usage, now, since_auth_ms=age_ms, auth_latency_us=latency_us)
            for kind in kinds
        ]

    def failed(self, reason: str, usage: Usage, now: float) -> SessionEvent:
        """An authentication or re-authentication failed; the connection is about to close."""
        self._ended_by = IntervalEnd.FAILED
        return self._event(EventKind.FAILED, usage, now, failure_reason=reason)

    def would_be_killed(self, api_key: int, usage: Usage, now: float) -> SessionEvent | None:
        """An expired session was used in `probe`; None: that was told of this session already."""
        if self._expiry_told:
            return None
        self._expiry_told = True
        self._period.would_be_kills += 1
        return self._event(EventKind.WOULD_BE_KILLED, usage, now, api_key=api_key)

    def expired_killed(self, api_key: int, usage: Usage, now: float) -> SessionEvent:
        """An expired session was used in `enforce`; the connection is about to close.

        The refused request is no request in `usage`, but it is a use of the session.
        """
        self._ended_by = IntervalEnd.EXPIRED_KILLED
        self._refused_at = now
        return self._event(EventKind.EXPIRED_KILLED, usage, now, api_key=api_key)

    def denied(
        self,
        *,
        would_be: bool,
        operation: str,
        resource_type: str,
        resource_name: str,
        denials: int,
        usage: Usage,
        now: float,
    ) -> SessionEvent:
        """ACLs denied something `denials` times, or would have (`authorizer.mode: audit`)."""
        return self._event(
            EventKind.WOULD_BE_DENIED if would_be else EventKind.DENIED,
            usage,
            now,
            operation=operation,
            resource_type=resource_type,
            resource_name=resource_name,
            denials=denials,
        )

    def closed(self, reason: str, usage: Usage, now: float) -> list[SessionEvent]:
        """The connection has ended. One that never began SASL (a scan, a probe) is not told."""
        if self.client.handshake_version is None:
            return []
        events = [self._event(EventKind.CLOSED, usage, now, close_reason=reason)]
        if self._grant is not None:
            self._mark_activity(usage)
            self._period.end_interval(self._interval(usage, now, self._ended_by))
            events.append(self._summary(usage, now, final=True, close_reason=reason))
        return events

    def sweep(self, usage: Usage, now: float) -> list[SessionEvent]:
        """See, at the end of each minute of the wall clock, what is due: nothing, most times."""
        if self._grant is None:
            return []
        self._mark_activity(usage)
        events = []
        if now - self._last_event_at >= self._cadence.checkpoint:
            events.append(self._event(EventKind.CHECKPOINT, usage, now))
        if now - self._period_began_at >= self._cadence.summary:
            events.append(self._summary(usage, now, final=False))
            self._begin_period(usage, now)
        return events

    def _begin_period(self, usage: Usage, now: float) -> None:
        self._period = Period(self._timeline.epoch_ms(now), usage)
        self._period_began_at = now
        self._period_authentications = self._authentications

    def _mark_activity(self, usage: Usage) -> None:
        used_at = self._last_use(usage)
        if used_at is not None and used_at >= self._period_began_at:
            self._period.mark(self._timeline.epoch_ms(used_at))

    def _last_use(self, usage: Usage) -> float | None:
        return usage.last_request if self._refused_at is None else self._refused_at

    def _age_ms(self, at: float) -> int:
        return round((at - self._authenticated_at) * 1000)

    def _interval(self, usage: Usage, now: float, ended_by: IntervalEnd | None) -> AuthInterval:
        grant = self._grant
        if grant is None:
            raise AssertionError("no interval before an authentication")
        used_at = self._last_use(usage)
        used = used_at is not None and used_at >= self._authenticated_at
        return AuthInterval(
            number=self._authentications,
            authenticated_ms=self._timeline.epoch_ms(self._authenticated_at),
            session_lifetime_ms=grant.session_lifetime_ms,
            announced_lifetime_ms=grant.announced_lifetime_ms,
            requests=usage.requests - self._interval_usage.requests,
            last_request_since_auth_ms=self._age_ms(used_at)
            if used_at is not None and used
            else None,
            ended_since_auth_ms=None if ended_by is None else self._age_ms(now),
            ended_by=ended_by,
        )

    def _summary(
        self, usage: Usage, now: float, *, final: bool, close_reason: str | None = None
    ) -> SessionEvent:
        period = self._period
        intervals = list(period.ended)
        if not final:
            intervals.append(self._interval(usage, now, None))
        reauthentications = self._authentications - max(self._period_authentications, 1)
        return self._event(
            EventKind.SUMMARY,
            usage,
            now,
            close_reason=close_reason,
            period_start_ms=period.start_ms,
            final=final,
            reauthentications=reauthentications,
            would_be_kills=period.would_be_kills,
            reauth_latencies=period.latency_buckets(),
            intervals=tuple(intervals),
            intervals_omitted=period.omitted,
            intervals_omitted_used_ms=period.omitted_used_ms,
            active_from_ms=period.active_from_ms,
            active_minutes=period.active_minutes,
        )

    def _event(self, kind: EventKind, usage: Usage, now: float, **more: Any) -> SessionEvent:
        told = self._period.usage if kind is EventKind.SUMMARY else self._told
        if kind is not EventKind.SUMMARY:
            self._told = usage
            self._last_event_at = now
        used_at = self._last_use(usage)
        sequence, self._sequence = self._sequence, self._sequence + 1
        origin, client = self._origin, self.client
        event = SessionEvent(
            kind=kind,
            timestamp_ms=self._timeline.epoch_ms(now),
            proxy_id=origin.proxy_id,
            worker=origin.worker,
            connection_id=origin.connection_id,
            sequence=sequence,
            connected_ms=self._timeline.epoch_ms(origin.connected_at),
            listener=origin.listener,
            enforcement=client.enforcement,
            client_host=origin.client_host,
            client_id=client.client_id,
            client_software_name=client.client_software_name,
            client_software_version=client.client_software_version,
            mechanism=client.mechanism,
            handshake_version=client.handshake_version,
            authenticate_version=client.authenticate_version,
            principal=client.principal,
            authentications=self._authentications,
            requests=usage.requests - told.requests,
            request_bytes=usage.request_bytes - told.request_bytes,
            response_bytes=usage.response_bytes - told.response_bytes,
            last_request_ms=None if used_at is None else self._timeline.epoch_ms(used_at),
        )
        if self._grant is not None:
            self._add_session(event, self._grant, now)
        for name, value in more.items():
            setattr(event, name, value)
        return event

    def _add_session(self, event: SessionEvent, grant: Grant, now: float) -> None:
        event.principal = grant.principal
        event.authenticated_ms = self._timeline.epoch_ms(self._authenticated_at)
        event.since_auth_ms = self._age_ms(now)
        event.session_lifetime_ms = grant.session_lifetime_ms
        event.announced_lifetime_ms = grant.announced_lifetime_ms
        event.credential_lifetime_ms = grant.credential_lifetime_ms
