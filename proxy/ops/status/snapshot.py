"""Combined state of all workers at one moment; pure.

Long lists are cut, with the number of items left out. The field names of the dataclasses are those
of `/sessions.json`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final, NamedTuple, Self

from proxy.ops.status.recent import COUNTED, Incident, IncidentCounts, RecentCounts
from proxy.ops.status.session_facts import (
    EVERY_SESSION,
    Condition,
    Selector,
    SessionFacts,
    SessionState,
)

MAX_NAMES: Final = 3
"""Largest number of client ids, programs or mechanisms of a principal that are named."""
LATELY_MS: Final = 900_000
"""Age in milliseconds up to which an incident puts its principal on top: a quarter of an hour."""
THROTTLED_LATELY_S: Final = 60.0
"""Seconds after the end of its throttle time for which a session counts as throttled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """State of a worker, without its sessions."""

    reasons: list[str] = field(default_factory=list)
    """Reasons why it cannot serve clients now; empty if it can."""
    listeners: list[dict[str, Any]] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    principals: dict[str, dict[str, IncidentCounts]] = field(default_factory=dict)
    recent: RecentCounts | None = None
    """Counts of the last ten minutes; None if the worker does not answer."""

    @classmethod
    def from_json(cls, message: Mapping[str, Any]) -> Self:
        """Read the answer of `Sessions.status`."""
        return cls(
            reasons=message["reasons"],
            listeners=message["listeners"],
            conditions=[Condition._make(row) for row in message.get("conditions", [])],
            incidents=[Incident._make(row) for row in message["incidents"]],
            principals={
                name: {kind: IncidentCounts._make(row) for kind, row in tallies.items()}
                for name, tallies in message["principals"].items()
            },
            recent=RecentCounts._make(message["recent"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """State of all workers at one moment."""

    taken_ms: int
    """The time of the overview in epoch milliseconds."""
    workers: Mapping[int, WorkerFacts]
    """The state of each worker; one that does not answer has that for its only reason."""
    sessions: Sequence[SessionFacts]
    conditions: Sequence[Condition] = ()
    """Conditions outside workers."""

    def of(self, selector: Selector) -> "Overview":
        """Return the overview with the selected sessions only."""
        if selector == EVERY_SESSION:
            return self
        chosen = [
            one
            for one in self.sessions
            if selector.chooses(one.connection_id, one.principal, one.client_id)
        ]
        return replace(self, sessions=chosen)

    def ready(self) -> bool:
        """True if every worker can serve clients."""
        return bool(self.workers) and not any(one.reasons for one in self.workers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Facts about the proxy that do not come from workers."""

    version: str
    build: str
    """How the data path runs: `compiled`, or `interpreted`, as plain Python."""
    host: str
    runbooks_url: str | None = None
    """Address of the runbooks (`http.runbooks.url`); None if it is not known."""
    report_url: str | None = None
    """Address of the readiness report (`http.report.url`); None if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopNames:
    """Names of a kind, the most frequent first, cut to a few."""

    names: dict[str, int]
    """Number of sessions by name."""
    more: int
    """Number of names that are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Traffic of sessions since their clients connected, without that of SASL."""

    requests: int
    request_bytes: int
    response_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of sessions by state."""

    sessions: int
    expired: int
    """Number of sessions that have ended, and were not used since."""
    endless: int
    """Number of authenticated sessions without an end."""
    cannot_reauthenticate: int
    """Number of sessions to which no lifetime can be announced (SaslAuthenticate v0 or raw
    tokens)."""
    reauthentications: int
    """Number of successful re-authentications of the sessions that are open."""
    throttled: int
    """Number of sessions that a quota throttles now or did within the last minute; in `audit`:
    would have."""


class PrincipalSessions(NamedTuple):
    """Sessions of one principal, one by one."""

    principal: str | None
    """The principal; None if the sessions are not authenticated."""
    sessions: list[SessionFacts]
    troubles: dict[str, IncidentCounts]
    """Incidents by kind since the workers started, including those of closed sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalSummary:
    """Summary of one principal's sessions."""

    principal: str | None
    counts: Counts
    carried: Traffic
    lifetime_left_min_s: float | None
    lifetime_left_median_s: float | None
    """Median of the seconds left to sessions that have an end; None if none has."""
    mechanisms: TopNames
    enforcement: TopNames
    clients: TopNames
    """Client software with its version (KIP-511)."""
    client_ids: TopNames
    troubles: dict[str, IncidentCounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerFacts:
    """Listener, over all workers."""

    name: str
    address: str
    routing: str
    enforcement: str
    overrides: int
    """Number of principals, or prefixes of them, with overrides."""
    max_reauth_ms: int
    enforces_token_expiry: bool
    mechanisms: list[str]
    connections: int
    max_connections: int
    terms_changed_s: float
    """Seconds since a reload changed the lifetime or mode of any session, or since the start."""
    on_old_terms: int
    """Number of sessions that began before, and keep their terms until they re-authenticate."""


def listeners(overview: Overview) -> list[ListenerFacts]:
    """Return the listeners, with their connections in all workers."""
    merged: dict[str, dict[str, Any]] = {}
    for worker in overview.workers.values():
        for one in worker.listeners:
            known = merged.setdefault(one["name"], {**one, "connections": 0})
            known["connections"] += one["connections"]
    return [
        ListenerFacts(
            **one,
            on_old_terms=sum(
                session.listener == one["name"]
                and session.mechanism is not None
                and (session.authenticated_s or 0.0) > one["terms_changed_s"]
                for session in overview.sessions
            ),
        )
        for one in merged.values()
    ]


def conditions(overview: Overview) -> list[Condition]:
    """Return each condition once, with the worst state among workers; conditions outside workers
    come last."""
    merged: dict[tuple[str, str], Condition] = {}
    for worker in overview.workers.values():
        for one in worker.conditions:
            known = merged.setdefault((one.what, one.name), one)
            if known.good and not one.good:
                merged[one.what, one.name] = one
    return [*merged.values(), *overview.conditions]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of all workers together in the last ten minutes."""

    seconds: float
    """Seconds that are covered: less than ten minutes after a start."""
    per_second: dict[str, float]
    """Rates by the names of `proxy.ops.status.recent.COUNTED`."""


def rates(overview: Overview) -> Rates:
    """Add up the rates of the workers."""
    found = [one.recent for one in overview.workers.values() if one.recent is not None]
    return Rates(
        seconds=max((one.seconds for one in found), default=0.0),
        per_second={
            name: round(sum(one.counts[name] / max(one.seconds, 1.0) for one in found), 4)
            for name in COUNTED
        },
    )


def incidents(overview: Overview, principal: str | None = None) -> list[Incident]:
    """Return the incidents, the latest first; with a principal, only its own."""
    every = (one for worker in overview.workers.values() for one in worker.incidents)
    mine = (one for one in every if principal in (None, one.principal))
    return sorted(mine, key=lambda one: one.last_ms, reverse=True)


def by_principal(overview: Overview) -> list[PrincipalSessions]:
    """Return sessions by principal: first those with recent incidents, then the largest."""
    found: dict[str | None, list[SessionFacts]] = {}
    for session in overview.sessions:
        found.setdefault(session.principal, []).append(session)
    troubles = _troubles(overview)
    every = [
        PrincipalSessions(name, sessions, troubles.get(name, {}))
        for name, sessions in found.items()
    ]
    lately = overview.taken_ms - LATELY_MS
    return sorted(
        every,
        key=lambda one: (
            all(tally.last_ms < lately for tally in one.troubles.values()),
            -len(one.sessions),
            one.principal or "",
        ),
    )


def summarize(each: PrincipalSessions) -> PrincipalSummary:
    """Summarize the sessions of a principal."""
    found = each.sessions
    left = [one.lifetime_left_s for one in found if one.lifetime_left_s is not None]
    return PrincipalSummary(
        principal=each.principal,
        counts=counts(found),
        carried=carried(found),
        lifetime_left_min_s=min(left, default=None),
        lifetime_left_median_s=round(median(left), 1) if left else None,
        mechanisms=_top_names(one.mechanism for one in found),
        enforcement=_top_names(one.enforcement for one in found),
        clients=_top_names(software(one) for one in found),
        client_ids=_top_names(one.client_id for one in found),
        troubles=each.troubles,
    )


def counts(sessions: Iterable[SessionFacts]) -> Counts:
    """Count sessions by their properties."""
    every = list(sessions)
    return Counts(
        sessions=len(every),
        expired=sum(one.lifetime_left_s is not None and one.lifetime_left_s < 0 for one in every),
        endless=sum(one.principal is not None and one.lifetime_left_s is None for one in every),
        cannot_reauthenticate=sum(one.lifetime_announced is False for one in every),
        reauthentications=sum(one.reauthentications for one in every),
        throttled=sum(
            one.throttle_left_s is not None and one.throttle_left_s > -THROTTLED_LATELY_S
            for one in every
        ),
    )


def carried(sessions: Iterable[SessionFacts]) -> Traffic:
    """Add up the traffic of sessions."""
    every = list(sessions)
    return Traffic(
        requests=sum(one.requests for one in every),
        request_bytes=sum(one.request_bytes for one in every),
        response_bytes=sum(one.response_bytes for one in every),
    )


def states(sessions: Iterable[SessionFacts]) -> dict[str, int]:
    """Count sessions by state, including states without any."""
    found = Counter(one.state for one in sessions)
    return {state.value: found[state.value] for state in SessionState}


def software(session: SessionFacts) -> str:
    """Return the name and version that a client sent (KIP-511)."""
    name, version = session.client_software_name, session.client_software_version
    return " ".join(part for part in (name, version) if part) or "unknown"


def _top_names(names: Iterable[str | None]) -> TopNames:
    found = Counter(name for name in names if name is not None)
    return TopNames(names=dict(found.most_common(MAX_NAMES)), more=max(0, len(found) - MAX_NAMES))


def _troubles(overview: Overview) -> dict[str | None, dict[str, IncidentCounts]]:
    merged: dict[str | None, dict[str, IncidentCounts]] = {}
    for worker in overview.workers.values():
        for principal, tallies in worker.principals.items():
            known = merged.setdefault(principal, {})
            for kind, tally in tallies.items():
                before = known.get(kind, IncidentCounts(0, 0))
                last_ms = max(before.last_ms, tally.last_ms)
                known[kind] = IncidentCounts(before.times + tally.times, last_ms)
    return merged
