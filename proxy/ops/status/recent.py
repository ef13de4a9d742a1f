"""Recent incidents in one worker, bounded in number, and counts of the last ten minutes.

A repeated incident is kept once, with a count; the latest incidents of each kind are kept. A flood
of one kind does not displace others, and clients that invent names do not fill the memory.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from metrics import registry
from metrics.metric import Metric
from metrics.snapshot import Snapshot
from proxy.connection.commands import CloseReason

MAX_PER_KIND: Final = 50
"""Largest number of incidents of one kind that are kept, the latest ones."""
MAX_PRINCIPALS: Final = 1_000
"""Largest number of principals with incidents that are kept, the latest ones."""

INCIDENT_CLOSES: Final = frozenset(
    str(reason)
    for reason in (
        CloseReason.BROKER_UNREACHABLE,
        CloseReason.BROKER_LOGIN_FAILED,
        CloseReason.IDENTITY_REFUSED,
        CloseReason.BROKER_FAULT,
        CloseReason.MALFORMED_FRAME,
        CloseReason.OVERSIZE_FRAME,
        CloseReason.UNSUPPORTED_API,
        CloseReason.TLS_HANDSHAKE_FAILED,
        CloseReason.ILLEGAL_STATE,
        CloseReason.INTERNAL_ERROR,
        CloseReason.KILLED,
        CloseReason.BLOCKED,
        CloseReason.REVOKED,
    )
)
"""Reasons for the end of a connection that no other incident covers."""


class Incident(NamedTuple):
    """Incident, with the number of its occurrences."""

    kind: str
    """The kind of the event, as in the event log."""
    what: str
    """The reason of a failure or close, the denied resource, or the request that used an expired
    session."""
    listener: str
    principal: str | None
    """The principal; None if the client was not authenticated."""
    client_id: str | None
    client_host: str
    mechanism: str | None
    """The SASL mechanism; None if none was chosen, or the listener is without SASL."""
    times: int
    """The number of occurrences."""
    first_ms: int
    """The time of the first occurrence in epoch milliseconds."""
    last_ms: int
    """The time of the last occurrence in epoch milliseconds."""
    claimed_principal: str | None = None
    """The principal that the client claimed and did not prove; None if it is not known."""
    client_software: str | None = None
    """The client's software as it names it (KIP-511); None if it named none."""


class IncidentCounts(NamedTuple):
    """Count of a principal's incidents of one kind since the worker started."""

    times: int
    """The number of incidents."""
    last_ms: int
    """The time of the last one in epoch milliseconds."""


_Key = tuple[str, str | None, str | None, str]


class Incidents:
    """Incidents of one worker."""

    def __init__(self) -> None:
        self._by_kind: dict[str, OrderedDict[_Key, Incident]] = {}
        self._by_principal: OrderedDict[str, dict[str, IncidentCounts]] = OrderedDict()

    def note(self, incident: Incident) -> None:
        """Record an incident."""
        self._keep(incident)
        if incident.principal is not None:
            self._count(incident.principal, incident)

    def recent(self) -> list[Incident]:
        """Return the incidents that are kept, the latest first."""
        every = [one for kept in self._by_kind.values() for one in kept.values()]
        return sorted(every, key=lambda one: one.last_ms, reverse=True)

    def of_principals(self) -> Mapping[str, Mapping[str, IncidentCounts]]:
        """Return the counts by principal and kind."""
        return self._by_principal

    def _keep(self, new: Incident) -> None:
        kept = self._by_kind.setdefault(new.kind, OrderedDict())
        key: _Key = (new.what, new.principal, new.client_id, new.client_host)
        before = kept.get(key)
        if before is not None:
            new = new._replace(times=before.times + new.times, first_ms=before.first_ms)
        kept[key] = new
        kept.move_to_end(key)
        if len(kept) > MAX_PER_KIND:
            kept.popitem(last=False)

    def _count(self, principal: str, incident: Incident) -> None:
        counted = self._by_principal.setdefault(principal, {})
        before = counted.get(incident.kind)
        times = incident.times + (before.times if before else 0)
        counted[incident.kind] = IncidentCounts(times, incident.last_ms)
        self._by_principal.move_to_end(principal)
        if len(self._by_principal) > MAX_PRINCIPALS:
            self._by_principal.popitem(last=False)


MINUTES: Final = 10

COUNTED: Final[Mapping[str, Metric]] = {
    "requests": registry.REQUESTS,
    "request_bytes": registry.REQUEST_BYTES,
    "response_bytes": registry.RESPONSE_BYTES,
    "logins": registry.SUCCESSFUL_AUTHENTICATION,
    "reauthentications": registry.SUCCESSFUL_REAUTHENTICATION,
    "failures": registry.AUTHENTICATION_FAILURES,
    "kills": registry.EXPIRED_CONNECTIONS_KILLED,
    "would_be_kills": registry.EXPIRED_CONNECTIONS_WOULD_BE_KILLED,
}
"""Counters of the page, by their names in `/sessions.json`."""


class RecentCounts(NamedTuple):
    """Counts of one worker since a moment."""

    seconds: float
    """Seconds since that moment: ten minutes, and up to one more; less after a start."""
    counts: Mapping[str, float]
    """Increases of the counters, by the names of `COUNTED`."""


class CounterHistory:
    """Counters of the last ten minutes; `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._past = deque([(now, dict.fromkeys(COUNTED, 0.0))], maxlen=MINUTES + 1)

    def remember(self, snapshot: Snapshot, now: float) -> None:
        """Remember the counters of this minute."""
        self._past.append((now, totals(snapshot)))

    def since(self, snapshot: Snapshot, now: float) -> RecentCounts:
        """Return the counts since the oldest remembered minute."""
        then, before = self._past[0]
        increases = {name: total - before[name] for name, total in totals(snapshot).items()}
        return RecentCounts(round(now - then, 1), increases)


def totals(snapshot: Snapshot) -> dict[str, float]:
    """Return the sum of each counter over its labels."""
    return {
        name: sum(snapshot.values.get(metric.name, {}).values()) for name, metric in COUNTED.items()
    }
