"""Status page: one self-contained HTML document of bounded size."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from proxy.ops.status import snapshot
from proxy.ops.status.markup import Markup, joined, own, tag
from proxy.ops.status.rows import (
    CONDITION_HEADINGS,
    GROUP_HEADINGS,
    INCIDENT_HEADINGS,
    LISTENER_HEADINGS,
    SESSION_HEADINGS,
    condition_row,
    group_row,
    incident_row,
    listener_row,
    session_row,
)
from proxy.ops.status.session_facts import EVERY_SESSION, Condition, Selector
from proxy.ops.status.snapshot import (
    About,
    ListenerFacts,
    Overview,
    PrincipalSessions,
    Rates,
)
from proxy.ops.status.text import duration, moment, number, plural, rate, size

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
        _conditions(snapshot.conditions(overview)),
        _incidents(overview, selector),
        _principals(by_principal, selector, overview.taken_ms),
    ]
    if chosen:
        parts.append(_sessions(overview))
    parts.append(_links(about))
    return "<!doctype html>\n" + tag(
        "html",
        _head(about),
        tag("body", tag("main", *parts), tag("script", own(_SCRIPT))),
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
    badge = tag(
        "span", "ready" if ready else "not ready", class_=_badge("good" if ready else "bad")
    )
    workers = plural(len(overview.workers), "worker")
    what = f"{about.version} ({about.build}) on {about.host}, {workers}"
    header = tag(
        "header",
        tag("h1", "reauth-proxy"),
        badge,
        tag("span", what, class_="dim"),
        tag("span", moment(overview.taken_ms), class_="dim"),
        tag("span", "no answer: this page is stale", id="stale", class_=_badge("bad")),
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
        (number(counts.expired), "expired, idle", f"{number(counts.endless)} without an end"),
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


def _conditions(conditions: Sequence[Condition]) -> Markup:
    title = tag("h2", "Brokers, keys and modes")
    if not conditions:
        return _section(title, tag("p", "Nothing is known yet.", class_="dim"))
    rows = map(condition_row, conditions)
    return _section(title, _table("conditions", CONDITION_HEADINGS, rows, len(conditions)))


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
    title = tag("h2", "Recent incidents")
    if not found:
        return _section(title, tag("p", "No recent incidents.", class_="dim"))
    return _section(title, _table("incidents", INCIDENT_HEADINGS, rows, len(found)))


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
    if not by_principal:
        return _section(title, form, tag("p", "No connection.", class_="dim"))
    return _section(title, form, _table("principals", GROUP_HEADINGS, rows, len(by_principal)))


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
    what: str, headings: Sequence[str], rows: Iterable[Sequence[Markup]], total: int
) -> Markup:
    """Return a table with the rows that fit into `MAX_BYTES`, and the number of those left out."""
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


def _badge(kind: str) -> str:
    return f"badge {kind}"
