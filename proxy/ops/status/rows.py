"""Rows of the status page's tables."""

from typing import Final
from urllib.parse import urlencode

from metrics.events import EventKind
from proxy.ops.status.markup import Markup, joined, name, tag
from proxy.ops.status.recent import Incident
from proxy.ops.status.session_facts import Condition, SessionFacts, SessionState
from proxy.ops.status.snapshot import ListenerFacts, PrincipalSummary, TopNames, software
from proxy.ops.status.text import ago, duration, number, plural, size
from sasl.states import Enforcement

LISTENER_HEADINGS: Final = (
    "Listener",
    "Expiry",
    "Lifetime",
    "Mechanisms",
    "Connections",
    "Routing",
)
INCIDENT_HEADINGS: Final = ("When", "What", "Why", "Principal", "Client", "Times")
GROUP_HEADINGS: Final = (
    "Principal",
    "Sessions",
    "Lifetime left",
    "Re-authenticates",
    "Client software",
    "Client ids",
    "Requests",
    "Trouble",
)
SESSION_HEADINGS: Final = (
    "Connection",
    "Principal",
    "Lifetime left",
    "Re-authenticates",
    "Client",
    "Requests",
    "Open for",
)

_BAD: Final = frozenset({EventKind.FAILED, EventKind.EXPIRED_KILLED, EventKind.DENIED})
_KINDS: Final = {
    EventKind.FAILED: "login failed",
    EventKind.EXPIRED_KILLED: "expired, killed",
    EventKind.WOULD_BE_KILLED: "would be killed",
    EventKind.DENIED: "denied",
    EventKind.WOULD_BE_DENIED: "would be denied",
    EventKind.MISROUTED: "misrouted",
    EventKind.CLOSED: "closed",
}
_MODES: Final = {
    Enforcement.OBSERVE: "plain",
    Enforcement.PROBE: "warn",
    Enforcement.ENFORCE: "good",
}
MAX_TROUBLES: Final = 3
"""Largest number of kinds of incidents that a principal's row shows."""


def listener_row(one: ListenerFacts) -> tuple[Markup, ...]:
    """Return the row of a listener."""
    exceptions = plural(one.overrides, "override") if one.overrides else None
    return (
        _two(name(one.name), one.address),
        _two(_badge(one.enforcement, _MODES[Enforcement(one.enforcement)]), exceptions),
        _one(_lifetime_limit(one)),
        _one(", ".join(one.mechanisms) or "none: no SASL"),
        _one(f"{number(one.connections)} of {number(one.max_connections)}"),
        _one(one.routing),
    )


def _lifetime_limit(one: ListenerFacts) -> str:
    observes = one.enforcement == Enforcement.OBSERVE
    if one.max_reauth_ms and not observes:
        return duration(one.max_reauth_ms / 1000)
    ends = "OAUTHBEARER" in one.mechanisms and (one.enforces_token_expiry or not observes)
    return "the token's" if ends else "no end"


CONDITION_HEADINGS: Final = ("What", "Name", "State")


def condition_row(one: Condition) -> tuple[Markup, ...]:
    """Return the row of a condition."""
    state = _one(one.state) if one.good else tag("span", one.state, class_="badge sentence bad")
    return _one(one.what), name(one.name), state


def incident_row(one: Incident, now_ms: int) -> tuple[Markup, ...]:
    """Return the row of an incident."""
    kind = EventKind(one.kind)
    since = f"since {ago(one.first_ms, now_ms)}" if one.times > 1 else None
    return (
        _one(ago(one.last_ms, now_ms)),
        _two(_kind(kind, known=one.principal is not None), one.listener),
        _two(name(one.what), one.mechanism),
        _two(name(one.claimed_principal), "claimed, not proven")
        if one.claimed_principal is not None
        else name(one.principal),
        joined((name(one.client_id), tag("small", name(one.client_host)), _software(one))),
        _two(_one(number(one.times)), since),
    )


def _software(one: Incident) -> Markup:
    return joined(()) if one.client_software is None else tag("small", name(one.client_software))


def group_row(group: PrincipalSummary, now_ms: int) -> tuple[Markup, ...]:
    """Return the row of a principal."""
    counts, carried = group.counts, group.carried
    who = _one("not authenticated") if group.principal is None else principal_link(group.principal)
    expired = f"{number(counts.expired)} expired, idle" if counts.expired else None
    traffic = f"{size(carried.request_bytes)} in, {size(carried.response_bytes)} out"
    return (
        joined((who, tag("small", _top_names(group.mechanisms)))),
        _two(_one(number(counts.sessions)), expired),
        joined((_lifetime(group), tag("small", _top_names(group.enforcement)))),
        _capability(group),
        _top_names(group.clients),
        _top_names(group.client_ids),
        _two(_one(number(carried.requests)), traffic),
        _troubles(group, now_ms),
    )


def session_row(one: SessionFacts) -> tuple[Markup, ...]:
    """Return the row of a session."""
    where = f"worker {one.worker}, {one.listener}"
    traffic = f"{size(one.request_bytes)} in, {size(one.response_bytes)} out"
    state = None if one.state == SessionState.AUTHENTICATED else one.state
    idle = None if one.idle_s is None else f"idle {duration(one.idle_s)}"
    return (
        _two(name(one.connection_id), where),
        joined((name(one.principal), tag("small", name(one.mechanism)))),
        _two(_left(one.lifetime_left_s, endless=one.principal is not None), one.enforcement),
        _two(_capability_of(one.lifetime_announced, one.reauthentications), state),
        joined(
            (name(one.client_id), tag("small", name(software(one)), " ", name(one.client_host)))
        ),
        joined((_one(number(one.requests)), tag("small", traffic), _throttled(one))),
        _two(_one(duration(one.connected_s)), idle),
    )


def principal_link(principal: str) -> Markup:
    """Return a principal's name as a link to its sessions."""
    query = urlencode({"principal": principal}, errors="replace")
    return tag("a", name(principal), href=f"/?{query}")


def _lifetime(group: PrincipalSummary) -> Markup:
    least, middle = group.lifetime_left_min_s, group.lifetime_left_median_s
    if least is None:
        return _left(None, endless=group.principal is not None)
    if group.counts.sessions == 1:
        return _left(least, endless=False)
    return joined((_left(least, endless=False), tag("small", f"median {_time_left(middle)}")))


def _left(seconds: float | None, *, endless: bool) -> Markup:
    if seconds is None:
        return tag("span", "no end" if endless else "-", class_="none")
    return _badge(_time_left(seconds), "warn") if seconds < 0 else _one(_time_left(seconds))


def _time_left(seconds: float | None) -> str:
    if seconds is not None and seconds < 0:
        return f"expired {duration(-seconds)} ago"
    return duration(seconds)


def _capability(group: PrincipalSummary) -> Markup:
    counts = group.counts
    if group.principal is None or not group.mechanisms.names:  # not known yet; without SASL
        return name(None)
    cannot, times = counts.cannot_reauthenticate, counts.reauthentications
    if not cannot:
        return _capability_of(True, times)
    if cannot == counts.sessions:
        return _capability_of(False, times)
    return _badge(f"{number(cannot)} of {number(counts.sessions)} cannot", "warn")


def _capability_of(can_reauthenticate: bool | None, times: int) -> Markup:
    if can_reauthenticate is None:
        return name(None)
    if not can_reauthenticate:
        return _badge("cannot", "warn")
    return _one(f"yes, {plural(times, 'time')}") if times else _one("not yet")


def _troubles(group: PrincipalSummary, now_ms: int) -> Markup:
    latest = sorted(group.troubles.items(), key=lambda one: -one[1].last_ms)[:MAX_TROUBLES]
    parts = [
        tag(
            "div",
            _kind(EventKind(kind), known=True),
            tag("small", f"{plural(tally.times, 'time')}, {ago(tally.last_ms, now_ms)}"),
        )
        for kind, tally in latest
    ]
    if group.counts.throttled:
        parts.append(_badge(f"{number(group.counts.throttled)} throttled", "warn"))
    return joined(parts) if parts else name(None)


def _throttled(one: SessionFacts) -> Markup:
    left = one.throttle_left_s
    if left is None:
        return joined(())
    when = f"for {duration(left)}" if left > 0 else f"until {duration(-left)} ago"
    return _badge(f"throttled {when}", "warn")


def _kind(kind: EventKind, *, known: bool) -> Markup:
    """Return the name of a kind of incident; `known`: its client had logged in before."""
    what = "re-authentication failed" if known and kind is EventKind.FAILED else _KINDS[kind]
    return _badge(what, "bad" if kind in _BAD else "warn")


def _top_names(some: TopNames) -> Markup:
    several = len(some.names) + some.more > 1
    parts = [
        joined((name(one), f" \N{MULTIPLICATION SIGN}{number(times)}")) if several else name(one)
        for one, times in some.names.items()
    ]
    if some.more:
        parts.append(tag("span", f"and {number(some.more)} more", class_="dim"))
    return joined(parts, ", ") if parts else name(None)


def _badge(what: str, kind: str) -> Markup:
    return tag("span", what, class_=f"badge {kind}")


def _one(what: str) -> Markup:
    return tag("span", what)


def _two(first: Markup, second: str | None) -> Markup:
    return first if second is None else joined((first, tag("small", second)))
