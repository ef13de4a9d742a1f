"""Status page: one self-contained HTML document of bounded size.

Rule: a `str` is text and is escaped; only `text` and `tag` make `Markup`, which is not.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from metrics.events import EventKind
from metrics.report.formats import count, number
from proxy.ops.status import snapshot
from proxy.ops.status.recent import Incident
from proxy.ops.status.session_facts import (
    EVERY_SESSION,
    Condition,
    Selector,
    SessionFacts,
    SessionState,
)
from proxy.ops.status.snapshot import (
    About,
    ListenerFacts,
    Overview,
    PrincipalSessions,
    PrincipalSummary,
    Rates,
    TopNames,
    software,
)
from proxy.ops.status.text import ago, duration, moment, rate, size
from sasl.states import Enforcement

MAX_CHARACTERS: Final = 64
"""Largest length of a name on the page, in characters."""
_VOID: Final = frozenset({"input", "meta", "link"})


class Markup(str):
    """HTML that is complete and safe."""

    __slots__ = ()


Content = str | Markup


def text(given: str) -> Markup:
    """Return text as HTML; characters that UTF-8 cannot encode are replaced."""
    return Markup(escape(given.encode("utf-8", "replace").decode()))


def name(given: str | None, otherwise: str = "-") -> Markup:
    """Return a name that a client chose, cut if it is long, and isolated from the text direction.

    `otherwise` is shown if the name is missing.
    """
    if given is None:
        return tag("span", otherwise, class_="none")
    short = given if len(given) <= MAX_CHARACTERS else f"{given[: MAX_CHARACTERS - 1]}…"
    return tag(
        "bdi", "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in short)
    )


def tag(element: str, *content: Content, **attributes: str | None) -> Markup:
    """Return an element. Attribute `class_` is `class`, `data_label` is `data-label`.

    Attributes with the value None are left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Markup(f"<{element}{given}>")
    return Markup(f"<{element}{given}>{joined(content)}</{element}>")


def joined(content: Iterable[Content], between: Content = "") -> Markup:
    """Return pieces of content as one, separated by `between`."""
    return Markup(_safe(between).join(_safe(one) for one in content))


def own(source: str) -> Markup:
    """Return the page's own style or script unescaped; its hash is in the page's policy."""
    return Markup(source)


def _safe(content: Content) -> Markup:
    return content if isinstance(content, Markup) else text(content)


MAX_INCIDENTS: Final = 15
"""Largest number of incidents that are listed."""
MAX_SESSIONS: Final = 100
"""Largest number of sessions that are listed one by one, when some are selected."""
MAX_BYTES: Final = {
    "listeners": 15_000,
    "conditions": 12_000,
    "incidents": 25_000,
    "principals": 90_000,
    "sessions": 50_000,
}
"""Largest size of each table's rows in bytes: the page stays below 200,000."""
REFRESH_SECONDS: Final = 10
"""Seconds between two loads of the page in browsers without scripts; for others, see page.js."""

_STYLE: Final = Path(__file__).with_name("page.css").read_text()
_SCRIPT: Final = Path(__file__).with_name("page.js").read_text()


_EVERYTHING: Final = tag("input", type="checkbox", id="everything", aria_label="show everything")
"""Switch for narrow screens, where the page leaves out rows and columns. It is outside `main`,
whose content is replaced."""


def _hash(source: str) -> str:
    return f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"


POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_hash(_STYLE)}",
        f"script-src {_hash(_SCRIPT)}",
        "connect-src 'self'",
        "img-src data:",  # the icon, which is empty
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: only the page's own style and script apply, whatever a client's name
contains."""


def render(overview: Overview, selector: Selector, about: About) -> str:
    """Return the page; `overview` has the sessions that `selector` chose."""
    chosen = selector != EVERY_SESSION
    by_principal = snapshot.by_principal(overview)
    parts: list[Markup] = [
        _header(overview, about),
        _tiles(overview, by_principal),
        _rates(snapshot.rates(overview)),
        _listeners(snapshot.listeners(overview)),
        _conditions(snapshot.conditions(overview), about.runbooks_url),
        _incidents(overview, selector),
        _principals(by_principal, selector, overview.taken_ms),
    ]
    if chosen:
        parts.append(_sessions(overview))
    parts.append(tag("label", "show everything", for_="everything"))
    parts.append(_links(about))
    return "<!doctype html>\n" + tag(
        "html",
        _head(about),
        tag("body", _EVERYTHING, tag("main", *parts), tag("script", own(_SCRIPT))),
        lang="en",
    )


def _head(about: About) -> Markup:
    refresh = tag("meta", http_equiv="refresh", content=str(REFRESH_SECONDS))
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="robots", content="noindex"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"reauth-proxy on {about.host}"),
        tag("noscript", refresh),
        tag("style", own(_STYLE)),
    )


def _header(overview: Overview, about: About) -> Markup:
    reasons = [
        reason if reason.startswith(f"worker {worker} ") else f"worker {worker}: {reason}"
        for worker, facts in sorted(overview.workers.items())
        for reason in facts.reasons
    ]
    ready = overview.ready()
    troubles = sum(not one.good for one in snapshot.conditions(overview))
    text, kind = ("ready", "good") if ready else ("not ready", "bad")
    if ready and troubles:
        text, kind = f"ready, with {count(troubles, 'problem')} below", "warn"
    badge = tag("span", text, class_=f"badge {kind}")
    workers = count(len(overview.workers), "worker")
    what = f"{about.version} ({about.build}) on {about.host}, {workers}"
    header = tag(
        "header",
        tag("h1", "reauth-proxy"),
        badge,
        tag("span", what, class_="dim"),
        tag("span", moment(overview.taken_ms), class_="dim"),
        tag("span", "no answer: this page is stale", id="stale", class_="badge bad"),
    )
    items = (tag("li", reason) for reason in reasons)
    return joined((header, tag("ul", *items, class_="reasons"))) if reasons else header


def _tiles(overview: Overview, by_principal: Sequence[PrincipalSessions]) -> Markup:
    counts, carried = snapshot.counts(overview.sessions), snapshot.carried(overview.sessions)
    states = {state: count for state, count in snapshot.states(overview.sessions).items() if count}
    principals = sum(each.principal is not None for each in by_principal)
    by_state = ", ".join(f"{number(count)} {state}" for state, count in states.items())
    tiles = (
        (number(counts.sessions), "connections", by_state),
        (
            number(principals),
            "principals",
            f"{number(counts.reauthentications)} re-authentications",
        ),
        (number(counts.cannot_reauthenticate), "cannot re-authenticate", "no lifetime announced"),
        (number(counts.throttled), "throttled", "in the last minute"),
        (number(counts.expired), "expired", f"{number(counts.endless)} without an end"),
        (
            number(carried.requests),
            "requests",
            f"{size(carried.request_bytes)} in, {size(carried.response_bytes)} out",
        ),
    )
    return tag("div", *(_tile(*tile) for tile in tiles), class_="tiles")


def _tile(figure: str, what: str, more: str) -> Markup:
    detail = tag("small", more, class_="dim") if more else Markup()
    return tag("div", tag("b", figure), tag("span", what), tag("div", detail), class_="tile")


def _rates(rates: Rates) -> Markup:
    """Return the rates of the last minutes; the tiles above count open sessions."""
    rate_of = {name: rate(per_second) for name, per_second in rates.per_second.items()}
    traffic = (
        f"{size(round(rates.per_second['request_bytes']))}/s in,"
        f" {size(round(rates.per_second['response_bytes']))}/s out"
    )
    tiles = (
        (rate_of["requests"], "requests", traffic),
        (rate_of["logins"], "logins", ""),
        (rate_of["reauthentications"], "re-authentications", ""),
        (rate_of["failures"], "failed logins", "and re-authentications"),
        (rate_of["kills"], "expired, killed", f"{rate_of['would_be_kills']} would be"),
    )
    title = tag("h2", f"In the last {duration(rates.seconds)}")
    return tag("div", title, tag("div", *(_tile(*one) for one in tiles), class_="tiles lately"))


def _listeners(listeners: Sequence[ListenerFacts]) -> Markup:
    return _section(
        tag("h2", "Listeners"),
        _table("listeners", LISTENER_HEADINGS, map(listener_row, listeners), len(listeners)),
    )


def _conditions(conditions: Sequence[Condition], runbooks_url: str | None) -> Markup:
    rows = (condition_row(one, runbooks_url) for one in conditions)
    table = _table("conditions", CONDITION_HEADINGS, rows, len(conditions), "Nothing is known yet.")
    return _section(tag("h2", "Brokers, keys, events and modes"), table)


def _links(about: About) -> Markup:
    """Return links to related pages; one without an address is plain text."""
    links = (
        ("metrics", "/metrics"),
        ("ready?", "/readyz"),
        ("facts", "/sessions.json"),
        ("runbooks: docs/runbooks.md", about.runbooks_url),
        ("readiness report: reauth-proxy report", about.report_url),
    )
    shown = (
        tag("span", text) if href is None else tag("a", text.partition(":")[0], href=href)
        for text, href in links
    )
    separated = [part for link in shown for part in (link, " · ")][:-1]
    return tag("footer", tag("p", *separated, class_="dim"))


def _incidents(overview: Overview, selector: Selector) -> Markup:
    found = snapshot.incidents(overview, selector.principal)
    rows = (incident_row(one, overview.taken_ms) for one in found[:MAX_INCIDENTS])
    table = _table("incidents", INCIDENT_HEADINGS, rows, len(found), "No recent incidents.")
    return _section(tag("h2", "Recent incidents"), table)


def _principals(
    by_principal: Sequence[PrincipalSessions], selector: Selector, now_ms: int
) -> Markup:
    title = tag("h2", "Sessions by principal")
    rows = (group_row(snapshot.summarize(each), now_ms) for each in by_principal)
    form = tag(
        "form",
        _input("principal", "User:alice", selector.principal),
        _input("client-id", "client id", selector.client_id),
        tag("button", "Show"),
        method="get",
        action="/",
    )
    table = _table("principals", GROUP_HEADINGS, rows, len(by_principal), "No connection.")
    return _section(title, form, table)


def _sessions(overview: Overview) -> Markup:
    oldest_first = sorted(overview.sessions, key=lambda one: -one.connected_s)
    rows = (session_row(one) for one in oldest_first[:MAX_SESSIONS])
    table = _table("sessions", SESSION_HEADINGS, rows, len(oldest_first))
    title = tag("div", tag("h2", "Sessions"), tag("a", "show all", href="/"), class_="bar")
    return _section(title, table)


def _input(key: str, hint: str, value: str | None) -> Markup:
    return tag("input", name=key, placeholder=hint, aria_label=key, value=value, autocomplete="off")


def _section(*content: Markup) -> Markup:
    return tag("section", *content)


def _table(
    what: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Markup]],
    total: int,
    empty: str = "",
) -> Markup:
    """Return a table with the rows that fit into `MAX_BYTES`, and the number of those left out; the
    sentence `empty` if there are no rows."""
    if not total and empty:
        return tag("p", empty, class_="dim")
    shown = list(_within(MAX_BYTES[what], (_row(headings, cells) for cells in rows)))
    head = tag("thead", tag("tr", *(tag("th", heading) for heading in headings)))
    table = tag("table", head, tag("tbody", *shown))
    if total == len(shown):
        return table
    more = f"… and {number(total - len(shown))} more"
    return joined((table, tag("p", more, class_="dim")))


def _row(headings: Sequence[str], cells: Sequence[Markup]) -> Markup:
    labelled = zip(headings, cells, strict=True)
    return tag(
        "tr", *(tag("td", tag("div", cell), data_label=heading) for heading, cell in labelled)
    )


def _within(left: int, rows: Iterable[Markup]) -> Iterator[Markup]:
    for row in rows:
        left -= len(row.encode())
        if left < 0:
            return
        yield row


# Rows of the tables

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
    Enforcement.AUTO: "warn",
    Enforcement.ENFORCE: "good",
}
MAX_TROUBLES: Final = 3
"""Largest number of kinds of incidents that a principal's row shows."""


def listener_row(one: ListenerFacts) -> tuple[Markup, ...]:
    """Return the row of a listener."""
    exceptions = [count(one.overrides, "override")] if one.overrides else []
    if one.on_old_terms:
        exceptions.append(f"{count(one.on_old_terms, 'session')} on terms before the last reload")
    return (
        _two(name(one.name), one.address),
        _two(
            _badge(one.enforcement, _MODES[Enforcement(one.enforcement)]),
            ", ".join(exceptions) or None,
        ),
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


_RUNBOOKS: Final = {
    "broker": "upstreamunreachable",
    "certificate": "certificateexpiring",
    "delivery": "eventsnotdelivered",
    "event log": "eventsdropped",
    "signing keys": "jwksstale",
}
"""Section of the runbooks for each kind of condition."""


def condition_row(one: Condition, runbooks_url: str | None) -> tuple[Markup, ...]:
    """Return the row of a condition, with a link to its runbook if something is wrong."""
    if one.good:
        return _one(one.what), name(one.name), _one(one.state)
    state = tag("span", one.state, class_="badge sentence bad")
    if runbooks_url is not None and one.what in _RUNBOOKS:
        href = f"{runbooks_url}#reauthproxy{_RUNBOOKS[one.what]}"
        state = joined((state, " ", tag("a", "runbook", href=href)))
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
    who = _one("not authenticated")
    if group.principal is not None:
        query = urlencode({"principal": group.principal}, errors="replace")
        who = tag("a", name(group.principal), href=f"/?{query}")
    expired = f"{number(counts.expired)} expired" if counts.expired else None
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
    return _one(f"yes, {count(times, 'time')}") if times else _one("not yet")


def _troubles(group: PrincipalSummary, now_ms: int) -> Markup:
    latest = sorted(group.troubles.items(), key=lambda one: -one[1].last_ms)[:MAX_TROUBLES]
    parts = [
        tag(
            "div",
            _kind(EventKind(kind), known=True),
            tag("small", f"{count(tally.times, 'time')}, {ago(tally.last_ms, now_ms)}"),
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
