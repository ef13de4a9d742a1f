"""Status page: one self-contained HTML document of bounded size."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

from proxy.ops.status import snapshot as pictures
from proxy.ops.status.markup import Markup, joined, own, tag
from proxy.ops.status.rows import (
    GROUP_HEADINGS,
    INCIDENT_HEADINGS,
    LISTENER_HEADINGS,
    SESSION_HEADINGS,
    group_row,
    incident_row,
    listener_row,
    session_row,
)
from proxy.ops.status.session_facts import EVERY_SESSION, Selector
from proxy.ops.status.snapshot import About, Crowd, ListenerFacts, Picture
from proxy.ops.status.text import moment, number, plural, size

MAX_INCIDENTS: Final = 15
MAX_SESSIONS: Final = 100
"""Largest number of sessions that are listed one by one, when some are selected."""
MAX_BYTES: Final = {
    "listeners": 15_000,
    "incidents": 25_000,
    "principals": 90_000,
    "sessions": 50_000,
}
"""Largest size of each table's rows in bytes: the page stays below 200,000."""
REFRESH_SECONDS: Final = 10
"""Seconds between two loads of the page without scripts; with them, see page.js."""

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
        "img-src data:",  # the icon, which is none
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: only the page's own style and script apply, whatever a client's name
contains."""


def render(picture: Picture, selector: Selector, about: About) -> str:
    """Return the page; with a selector, of the sessions that it chose alone."""
    chosen = selector != EVERY_SESSION
    crowds = pictures.by_principal(picture)
    parts: list[Markup] = [
        _header(picture, about),
        _tiles(picture, crowds),
        _listeners(pictures.listeners(picture)),
        _incidents(picture, selector),
        _principals(crowds, selector, picture.taken_ms),
    ]
    if chosen:
        parts.append(_sessions(picture))
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


def _header(picture: Picture, about: About) -> Markup:
    reasons = [
        reason if reason.startswith(f"worker {worker} ") else f"worker {worker}: {reason}"
        for worker, facts in sorted(picture.workers.items())
        for reason in facts.reasons
    ]
    ready = picture.ready()
    badge = tag(
        "span", "ready" if ready else "not ready", class_=_badge("good" if ready else "bad")
    )
    what = f"{about.version} on {about.host}, {plural(len(picture.workers), 'worker')}"
    header = tag(
        "header",
        tag("h1", "reauth-proxy"),
        badge,
        tag("span", what, class_="dim"),
        tag("span", moment(picture.taken_ms), class_="dim"),
        tag("span", "no answer: this is old", id="stale", class_=_badge("bad")),
    )
    items = (tag("li", reason) for reason in reasons)
    return joined((header, tag("ul", *items, class_="reasons"))) if reasons else header


def _tiles(picture: Picture, crowds: Sequence[Crowd]) -> Markup:
    counts, carried = pictures.counts(picture.sessions), pictures.carried(picture.sessions)
    states = {state: count for state, count in pictures.states(picture.sessions).items() if count}
    principals = sum(crowd.principal is not None for crowd in crowds)
    by_state = ", ".join(f"{number(count)} {state}" for state, count in states.items())
    tiles = (
        (number(counts.sessions), "connections", by_state),
        (
            number(principals),
            "principals",
            f"{number(counts.reauthentications)} re-authentications",
        ),
        (number(counts.cannot_reauthenticate), "cannot re-authenticate", "told no lifetime"),
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


def _listeners(listeners: Sequence[ListenerFacts]) -> Markup:
    return _section(
        tag("h2", "Listeners"),
        _table("listeners", LISTENER_HEADINGS, map(listener_row, listeners), len(listeners)),
    )


def _incidents(picture: Picture, selector: Selector) -> Markup:
    found = pictures.incidents(picture, selector.principal)
    rows = (incident_row(one, picture.taken_ms) for one in found[:MAX_INCIDENTS])
    title = tag("h2", "What went wrong last")
    if not found:
        return _section(title, tag("p", "Nothing that is remembered.", class_="dim"))
    return _section(title, _table("incidents", INCIDENT_HEADINGS, rows, len(found)))


def _principals(crowds: Sequence[Crowd], selector: Selector, now_ms: int) -> Markup:
    title = tag("h2", "Sessions by principal")
    rows = (group_row(pictures.summed_up(crowd), now_ms) for crowd in crowds)
    form = tag(
        "form",
        _input("principal", "User:alice", selector.principal),
        _input("client-id", "client id", selector.client_id),
        tag("button", "Show"),
        method="get",
        action="/",
    )
    if not crowds:
        return _section(title, form, tag("p", "No connection.", class_="dim"))
    return _section(title, form, _table("principals", GROUP_HEADINGS, rows, len(crowds)))


def _sessions(picture: Picture) -> Markup:
    oldest_first = sorted(picture.sessions, key=lambda one: -one.connected_s)
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
    """Return a table with as many rows as fit, and the number of those left out."""
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
