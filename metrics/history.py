"""History of one connection, and the events that describe it.

Rules:

- Time is monotonic seconds and always an argument; a `Timeline` converts it to epoch milliseconds.
- `Usage` has the totals since the connection began; differences are computed here.
- An expired session is reported once; its later uses are counted (`expired_requests`).
- No work is done per request: once a minute, the time of the last request determines whether the
  minute was active (`_mark_activity`).
"""

from typing import Final, NamedTuple, final

from metrics.connection import Client, Grant, Origin
from metrics.event_lines import Line
from metrics.events import SCHEMA_VERSION, EventKind, IntervalEnd
from metrics.period import NO_USAGE, Period, Usage

BYTES_PER_SECOND: Final = 2_048
"""Rate of all workers together, in bytes: two connections a second, 177 MB a day."""
BURST_BYTES: Final = 1_048_576
"""Burst of each worker in bytes: a thousand connections, as when many clients have a wrong
secret."""


@final
class Timeline:
    """Conversion of monotonic time to the wall clock; one per worker process."""

    __slots__ = ("_offset",)

    def __init__(self, *, wall: float, now: float) -> None:
        self._offset = wall - now

    def epoch_ms(self, now: float) -> int:
        """Return epoch milliseconds for monotonic seconds."""
        return _rounded((now + self._offset) * 1000)

    def adjust(self, *, wall: float, now: float) -> None:
        """Adopt a change of the wall clock. Called about every minute.

        Differences below a second are ignored, so that intervals within a row are consistent.
        """
        if abs(wall - now - self._offset) >= 1:
            self._offset = wall - now


class Cadence(NamedTuple):
    """Intervals at which events of an idle authenticated connection are written."""

    checkpoint: float = 900.0
    """Time in seconds without any other event until a checkpoint."""
    summary: float = 3600.0
    """Time in seconds between summary rows; at most an hour, because a row has a bit per minute."""


@final
class SessionHistory:
    """Writer of one connection's events, in order. Each method except `sweep` records something
    that happened, and returns the lines to write."""

    __slots__ = (
        "_authenticated_at",
        "_authentications",
        "_cadence",
        "_ended_by",
        "_expired_from",
        "_expired_requests",
        "_grant",
        "_interval_usage",
        "_last_event_at",
        "_origin",
        "_period",
        "_period_authentications",
        "_period_began_at",
        "_period_expired",
        "_refused_at",
        "_reported",
        "_reported_expired",
        "_sequence",
        "_timeline",
        "client",
        "held_back",
        "is_logged",
    )

    def __init__(
        self, origin: Origin, client: Client, timeline: Timeline, cadence: Cadence
    ) -> None:
        self.client = client
        self.held_back: tuple[str, ...] = ()
        """Lines of a login, written when the connection has a broker or is open at the next
        sweep."""
        self.is_logged: bool | None = None
        """True if the lines of a connection without a login or a broker are written, False if they
        are dropped, None before the decision (`UnauthenticatedEventLimit`)."""
        self._origin = origin
        self._timeline = timeline
        self._cadence = cadence
        self._sequence = 0
        self._reported = NO_USAGE
        self._reported_expired = 0
        self._last_event_at = origin.connected_at
        self._authentications = 0
        self._authenticated_at = origin.connected_at
        self._interval_usage = NO_USAGE
        self._grant: Grant | None = None
        self._expired_from: int | None = None
        self._expired_requests = 0
        self._refused_at: float | None = None
        self._ended_by: str = IntervalEnd.CLOSED
        self._begin_period(NO_USAGE, origin.connected_at)

    @property
    def principal(self) -> str | None:
        """Principal; None if the client has not authenticated yet."""
        return self.client.principal if self._grant is None else self._grant.principal

    @property
    def client_host(self) -> str:
        """IP address of the client, without its port."""
        return self._origin.client_host

    @property
    def connection_id(self) -> str:
        """Id of the connection in logs and events."""
        return self._origin.connection_id

    @property
    def is_expired(self) -> bool:
        """True if the session was used past its end, and not renewed since."""
        return self._expired_from is not None or self._refused_at is not None

    def authenticated(self, grant: Grant, usage: Usage, now: float) -> list[str]:
        """Record a successful authentication or re-authentication."""
        first = self._grant is None
        age_ms = 0 if first else self._age_ms(now)
        latency_us = _rounded(grant.latency * 1e6)
        before = () if self._grant is None else self._grant.groups
        if not first:
            self._period.end_interval(*self._interval(usage, now, IntervalEnd.REAUTHENTICATED))
            self._period.add_latency(latency_us)
        self._expired_requests = self._count_expired(usage)
        self._expired_from = None
        self._grant = grant
        self._ended_by = IntervalEnd.CLOSED
        self._authentications += 1
        self._authenticated_at = now
        self._interval_usage = usage
        kinds = [EventKind.AUTHENTICATED if first else EventKind.REAUTHENTICATED]
        if first and not self.client.authenticate_version:
            kinds.append(EventKind.NO_REAUTH)
        lines = []
        for kind in kinds:
            line = self._event(kind, usage, now, since_auth_ms=age_ms)
            line.number("auth_latency_us", latency_us)
            line.texts("groups", grant.groups)
            if kind == EventKind.REAUTHENTICATED and grant.groups != before:
                line.texts("groups_joined", [one for one in grant.groups if one not in before])
                line.texts("groups_left", [one for one in before if one not in grant.groups])
            lines.append(line.finish())
        return lines

    def failed(self, reason: str, usage: Usage, now: float, *, claimed: str | None = None) -> str:
        """Record a failed authentication or re-authentication.

        The connection will be closed, except after `illegal_state` in a session, which continues.
        `claimed` is the principal that the client claimed without proof; None if unknown.
        """
        self._ended_by = IntervalEnd.FAILED
        line = self._event(EventKind.FAILED, usage, now)
        line.text("failure_reason", reason)
        if claimed is not None:
            line.unique_text("claimed_principal", claimed)
        return line.finish()

    def would_be_killed(
        self, api_key: int, usage: Usage, now: float, throttled: tuple[int, str] | None = None
    ) -> str | None:
        """Record the use of an expired session in `probe`; return None if it was recorded
        before.

        `throttled`: throttle time in ms, and quota, that lasted beyond the end of the session.
        """
        if self._expired_from is not None:
            return None
        self._expired_from = usage.requests
        self._period.would_be_kills += 1
        return self._expiry(EventKind.WOULD_BE_KILLED, api_key, usage, now, throttled)

    def expired_killed(
        self, api_key: int, usage: Usage, now: float, throttled: tuple[int, str] | None = None
    ) -> str:
        """Record the use of an expired session in `enforce`; the connection will be closed.

        `usage` excludes the refused request, although it is a use of the session.
        `throttled` is as in `would_be_killed`.
        """
        self._ended_by = IntervalEnd.EXPIRED_KILLED
        self._refused_at = now
        return self._expiry(EventKind.EXPIRED_KILLED, api_key, usage, now, throttled)

    def _expiry(
        self, kind: str, api_key: int, usage: Usage, now: float, throttled: tuple[int, str] | None
    ) -> str:
        line = self._event(kind, usage, now)
        line.number("api_key", api_key)
        if throttled is not None:
            line.number("throttled_ms", throttled[0])
            line.text("throttled_by", throttled[1])
        return line.finish()

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
    ) -> str:
        """Record `denials` denials by ACLs; `would_be` is True if they were not enforced
        (`authorizer.mode: audit`)."""
        line = self._event(EventKind.WOULD_BE_DENIED if would_be else EventKind.DENIED, usage, now)
        line.text("operation", operation)
        line.text("resource_type", resource_type)
        line.text("resource_name", resource_name)
        line.number("denials", denials)
        return line.finish()

    def administered(
        self,
        api_key: int,
        resource: str | None,
        error_code: int | None,
        omitted: int,
        usage: Usage,
        now: float,
    ) -> str:
        """Record the outcome of an administrative request for a resource.

        `error_code`: None without a response. `omitted`: number of resources without a record.
        """
        line = self._event(EventKind.ADMINISTERED, usage, now)
        line.number("api_key", api_key)
        if resource is not None:
            line.unique_text("resource_name", resource)
        line.optional_number("error_code", error_code)
        if omitted:
            line.number("resources_omitted", omitted)
        return line.finish()

    def misrouted(
        self,
        *,
        meant_cluster_id: str,
        meant_node_id: int,
        cluster_id: str | None,
        node_id: int | None,
        usage: Usage,
        now: float,
    ) -> str:
        """Record that the client connected to the wrong broker (KIP-1242)."""
        line = self._event(EventKind.MISROUTED, usage, now)
        line.unique_text("meant_cluster_id", meant_cluster_id)  # chosen by the client
        line.number("meant_node_id", meant_node_id)
        line.optional_text("cluster_id", cluster_id)
        line.optional_number("node_id", node_id)
        return line.finish()

    def closed(
        self, reason: str, usage: Usage, now: float, *, without_handshake: bool = False
    ) -> list[str]:
        """Record the end of the connection. One without a SaslHandshake (a scan, a probe) has no
        events, unless it used versions that Kafka 4.0 dropped, or `without_handshake`."""
        if (
            self.client.handshake_version is None
            and not self.client.dropped_versions
            and not without_handshake
        ):
            return []
        line = self._event(EventKind.CLOSED, usage, now)
        line.text("close_reason", reason)
        lines = [line.finish()]
        if self._grant is not None:
            self._mark_activity(usage)
            self._period.end_interval(*self._interval(usage, now, self._ended_by))
            lines.append(self._summary(usage, now, close_reason=reason))
        return lines

    def sweep(self, usage: Usage, now: float) -> list[str]:
        """Return the lines that are due, usually none. Called at the end of each minute of the wall
        clock."""
        if self._grant is None and not self.client.dropped_versions:
            return []
        self._mark_activity(usage)
        lines = []
        if now - self._last_event_at >= self._cadence.checkpoint:
            lines.append(self._event(EventKind.CHECKPOINT, usage, now).finish())
        if self._grant is None:
            return lines
        if now - self._period_began_at >= self._cadence.summary:
            lines.append(self._summary(usage, now, close_reason=None))
            self._begin_period(usage, now)
        return lines

    def _begin_period(self, usage: Usage, now: float) -> None:
        self._period = Period(self._timeline.epoch_ms(now), usage)
        self._period_began_at = now
        self._period_authentications = self._authentications
        self._period_expired = self._count_expired(usage)

    def _mark_activity(self, usage: Usage) -> None:
        used_at = self._last_use(usage)
        if used_at is not None and used_at >= self._period_began_at:
            self._period.mark(self._timeline.epoch_ms(used_at))

    def _count_expired(self, usage: Usage) -> int:
        """Return the requests so far that used a session past its end and passed (`probe`)."""
        expired_from = self._expired_from
        if expired_from is None:
            return self._expired_requests
        return self._expired_requests + usage.requests - expired_from

    def _last_use(self, usage: Usage) -> float | None:
        return usage.last_request if self._refused_at is None else self._refused_at

    def _age_ms(self, at: float) -> int:
        return _rounded((at - self._authenticated_at) * 1000)

    def _interval(self, usage: Usage, now: float, ended_by: str | None) -> tuple[int | None, str]:
        """Return the age of the session at its last use, and its interval (`AuthInterval`) as
        JSON."""
        grant = self._grant
        if grant is None:
            raise AssertionError("no interval before an authentication")
        used_at, used_ms = self._last_use(usage), None
        if used_at is not None and used_at >= self._authenticated_at:
            used_ms = self._age_ms(used_at)
        row = Line()
        row.number("number", self._authentications)
        row.number("authenticated_ms", self._timeline.epoch_ms(self._authenticated_at))
        row.number("session_lifetime_ms", grant.session_lifetime_ms)
        row.number("announced_lifetime_ms", grant.announced_lifetime_ms)
        row.number("requests", usage.requests - self._interval_usage.requests)
        row.optional_number("last_request_since_auth_ms", used_ms)
        if ended_by is not None:
            row.number("ended_since_auth_ms", self._age_ms(now))
            row.text("ended_by", ended_by)
        return used_ms, row.finish()

    def _summary(self, usage: Usage, now: float, *, close_reason: str | None) -> str:
        """Return the row about the period; `close_reason` None: the connection stays open."""
        period, final_row = self._period, close_reason is not None
        intervals = [row for _, row in period.ended]
        if not final_row:
            intervals.append(self._interval(usage, now, None)[1])
        reauthentications = self._authentications - max(self._period_authentications, 1)
        line = self._row(EventKind.SUMMARY, usage, period.usage, now, None)
        line.number("expired_requests", self._count_expired(usage) - self._period_expired)
        line.optional_text("close_reason", close_reason)
        line.number("period_start_ms", period.start_ms)
        line.flag("final", final_row)
        line.number("reauthentications", reauthentications)
        line.number("would_be_kills", period.would_be_kills)
        line.rows("reauth_latencies", period.latency_rows())
        line.rows("intervals", intervals)
        line.number("intervals_omitted", period.omitted)
        line.optional_number("intervals_omitted_used_ms", period.omitted_used_ms)
        line.number("active_from_ms", period.active_from_ms)
        line.number("active_minutes", period.active_minutes)
        return line.finish()

    def _event(
        self, kind: str, usage: Usage, now: float, *, since_auth_ms: int | None = None
    ) -> Line:
        """Begin an event; `since_auth_ms` defaults to the present age of the session."""
        before, self._reported = self._reported, usage
        self._last_event_at = now
        line = self._row(kind, usage, before, now, since_auth_ms)
        if self._grant is not None:
            expired = self._count_expired(usage)
            line.number("expired_requests", expired - self._reported_expired)
            self._reported_expired = expired
        return line

    def _row(
        self, kind: str, usage: Usage, before: Usage, now: float, since_auth_ms: int | None
    ) -> Line:
        """Begin a line with the fields that all lines have; usage is counted since `before`."""
        client, grant, timeline = self.client, self._grant, self._timeline
        origin = self._origin
        sequence, self._sequence = self._sequence, self._sequence + 1
        used_at = self._last_use(usage)
        line = Line()
        line.number("schema_version", SCHEMA_VERSION)
        line.text("proxy_id", origin.proxy_id)
        line.number("worker", origin.worker)
        line.unique_text("connection_id", origin.connection_id)
        line.number("connected_ms", timeline.epoch_ms(origin.connected_at))
        line.text("listener", origin.listener)
        line.text("client_host", origin.client_host)
        line.text("kind", kind)
        line.number("timestamp_ms", timeline.epoch_ms(now))
        line.number("sequence", sequence)
        line.text("enforcement", client.enforcement)
        line.optional_text("client_id", client.client_id)
        line.optional_text("client_software_name", client.client_software_name)
        line.optional_text("client_software_version", client.client_software_version)
        line.optional_text("mechanism", client.mechanism)
        line.optional_text("principal", self.principal)
        if client.dropped_versions:
            line.rows("dropped_versions", [_version_row(*each) for each in client.dropped_versions])
        line.optional_number("handshake_version", client.handshake_version)
        line.optional_number("authenticate_version", client.authenticate_version)
        line.optional_text("upstream_principal", client.upstream_principal)
        line.number("authentications", self._authentications)
        if grant is not None:
            line.text("authenticator", grant.authenticator)
            age_ms = self._age_ms(now) if since_auth_ms is None else since_auth_ms
            line.number("authenticated_ms", timeline.epoch_ms(self._authenticated_at))
            line.number("since_auth_ms", age_ms)
            line.number("session_lifetime_ms", grant.session_lifetime_ms)
            line.number("announced_lifetime_ms", grant.announced_lifetime_ms)
            line.optional_number("credential_lifetime_ms", grant.credential_lifetime_ms)
        line.number("requests", usage.requests - before.requests)
        line.number("request_bytes", usage.request_bytes - before.request_bytes)
        line.number("response_bytes", usage.response_bytes - before.response_bytes)
        if used_at is not None:
            line.number("last_request_ms", timeline.epoch_ms(used_at))
        return line


@final
class UnauthenticatedEventLimit:
    """Rate limit on the events of connections without a login or a broker: a token bucket of bytes.

    Failed logins cost a client nothing. Two thousand a second would fill 10 GB in an hour, and
    retention would remove the events of real clients. While a broker is down, its clients log in
    again and again.

    The lines of such a connection are written all or not at all, so that readers never miss a
    sequence number or the end of a connection. Dropped lines are counted.
    """

    __slots__ = ("_bytes_per_second", "_full_at", "dropped")

    def __init__(self, *, workers: int) -> None:
        """`workers` is the number of workers that share the rate."""
        self._bytes_per_second = BYTES_PER_SECOND / workers
        self._full_at = 0.0
        """Time in monotonic seconds at which the bucket is full again."""
        self.dropped = 0
        """Number of lines that were dropped."""

    def allows(self, history: SessionHistory, lines: list[str], now: float) -> bool:
        """Return whether the lines of a connection without a login or a broker are written."""
        debt = max(0.0, self._full_at - now)
        if history.is_logged is None:
            history.is_logged = debt * self._bytes_per_second < BURST_BYTES
        if not history.is_logged:
            self.dropped += len(lines)
            return False
        size = sum([len(line) for line in lines])
        self._full_at = now + debt + size / self._bytes_per_second
        return True


def _rounded(number: float) -> int:
    # Compiled code does this without the call that `round` needs
    return int(number + 0.5)


def _version_row(api: str, version: int) -> str:
    row = Line()
    row.text("api", api)
    row.number("version", version)
    return row.finish()
