"""The report as one HTML page: no network, no script, everything that strangers chose escaped."""

from collections.abc import Mapping, Sequence
from typing import Any

from metrics.report import plots, tables
from metrics.report.style import STYLE
from metrics.report.words import (
    VERDICT_MEANING,
    VERDICT_WORDS,
    count,
    duration,
    moment,
    number,
    plain,
)

Facts = Mapping[str, Any]

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>Readiness for re-authentication</title><style>"""

_SET_ASIDE = {
    "unreadable": "unreadable lines",
    "unknown_version": "of another schema version",
    "unknown_kind": "of an unknown kind",
    "impossible": "with impossible values",
    "future": "from the future",
    "duplicate": "duplicates",
}


def page(facts: Facts) -> str:
    """Write the page."""
    sections = [
        _heading(facts),
        _by_principal(facts),
        _what_if(facts),
        _storms(facts),
        _trend(facts),
        _tokens(facts),
        _next_steps(facts),
        _clients(facts),
        _input(facts),
    ]
    body = "".join(section for section in sections if section)
    return f"{_HEAD}{STYLE}</style></head><body><main>{body}</main></body></html>\n"


def _heading(facts: Facts) -> str:
    verdicts = facts["clients_by_verdict"]
    observed = facts["observed"]
    tiles = "".join(
        f'<div class="tile {verdict}" title="{plain(VERDICT_MEANING[verdict])}">'
        f"<b>{number(amount)}</b><span>{VERDICT_WORDS[verdict]}</span></div>"
        for verdict, amount in verdicts.items()
    )
    seen = "No connection was recorded."
    if observed["connections"]:
        seen = (
            f"{count(observed['connections'], 'connection')} from {moment(observed['from_ms'])} "
            f"to {moment(observed['to_ms'])} UTC; as of {moment(facts['as_of_ms'])}."
        )
    required = "".join(
        f"<li>{plain(each['require'])}: {'met' if each['met'] else '<b>not met</b>'}</li>"
        for each in facts.get("requirements", ())
    )
    return (
        "<header><h1>Who is ready for re&#8209;authentication?</h1>"
        f'<p class="soft">{seen}</p></header>'
        f'<section><p class="answer">{_answer(facts)}</p><div class="tiles">{tiles}</div>'
        + (f"<h3>Required</h3><ul>{required}</ul>" if required else "")
        + "</section>"
    )


def _answer(facts: Facts) -> str:
    verdicts = facts["clients_by_verdict"]
    total = sum(verdicts.values())
    if not total:
        return "There is nothing to judge yet."
    breaking = verdicts["failing"] + verdicts["not_capable"]
    if breaking:
        return (
            f"<b>{number(breaking)} of {count(total, 'client')} would break</b> when "
            "sessions are enforced."
        )
    if verdicts["unproven"]:
        return (
            f"No client is known to break, but <b>{number(verdicts['unproven'])} of "
            f"{count(total, 'client')} have not been proven</b>: put them in <code>probe</code>."
        )
    if verdicts["ready"] == total == 1:
        return "<b>The one client is ready.</b>"
    if verdicts["ready"] == total:
        return f"<b>All {count(total, 'client')} are ready.</b>"
    return f"{number(verdicts['ready'])} of {count(total, 'client')} are ready."


def _by_principal(facts: Facts) -> str:
    rows = facts["principals"]
    if not rows:
        return ""
    return (
        "<section><h2>By principal</h2>"
        '<p class="soft">Clients of each principal, the worst first. A principal can be enforced '
        f"when all its clients are ready: {number(len(facts['enforceable_principals']))} of "
        f"{number(len(rows))} can be.</p>{plots.legend()}{plots.principal_bars(rows)}</section>"
    )


def _what_if(facts: Facts) -> str:
    rows = facts["what_if"]
    if not rows:
        return ""
    return (
        "<section><h2>What would a lifetime break?</h2>"
        '<p class="soft">Killed: connections of clients that cannot be told a lifetime, or did '
        "not keep it, and that were used past it. Unproven: as long, but of clients that speak v1 "
        "and may well re-authenticate.</p>"
        f"{plots.kills(rows)}{tables.what_if(rows)}"
        "<h3>How long sessions are used</h3>"
        f"{plots.legend()}{plots.session_lengths(facts['session_lengths'], rows)}</section>"
    )


def _storms(facts: Facts) -> str:
    storms = facts["storms"]
    if not storms["profile"]:
        return ""
    return (
        "<section><h2>Storms and latency</h2>"
        '<p class="soft">Authentications in the busiest minute of each stretch of time. Many at '
        "one moment come from a restart, or from lifetimes that began together.</p>"
        f"{plots.storms(storms['profile'])}"
        f"{tables.latencies(facts['latencies'])}{tables.storms(storms['busiest'][:5])}</section>"
    )


def _trend(facts: Facts) -> str:
    trend = facts["trend"]
    if not trend["days"]:
        return ""
    projected = trend["projection"]
    share = f"{100 * projected['ready_share']:.0f} %"
    if projected["ready_share"] >= 1:
        outlook = "All clients of the last day were ready."
    elif projected["ready_day"] is not None:
        outlook = f"{share} were ready; by the present trend all are on {projected['ready_day']}."
    elif projected["days"] < 3:
        outlook = f"{share} were ready; it takes three days to speak of a trend."
    else:
        outlook = f"{share} were ready, and the trend does not lead to all."
    return (
        "<section><h2>Trend</h2>"
        f'<p class="soft">Clients seen on each day, as they were known at its end. {outlook}</p>'
        f"{plots.legend()}{plots.trend(trend['days'])}</section>"
    )


def _tokens(facts: Facts) -> str:
    rows, failures = facts["short_tokens"], facts["failures"]
    if not rows and not failures:
        return ""
    shown = ""
    if rows:
        shown += (
            "<h2>Tokens too short for their clients</h2>"
            '<p class="soft">Connections that were used past the end of the token they logged in '
            "with, or tokens of less than a minute.</p>" + tables.short_tokens(rows)
        )
    if failures:
        shown += f"<h2>Failed authentications</h2>{tables.failures(failures)}"
    return f"<section>{shown}</section>"


def _next_steps(facts: Facts) -> str:
    steps = facts["next_steps"]
    parts = ["<section><h2>What to do next</h2>"]
    if steps["overrides"]:
        parts.append(
            "<h3>Enforce today</h3><p class='soft'>Paste into the listener; a reload suffices.</p>"
            f"<pre>{plain_block(steps['overrides'])}</pre>"
        )
    else:
        parts.append("<p>No principal can be enforced yet.</p>")
    if steps["probe"]:
        names = ", ".join(plain(name) for name in steps["probe"][:40])
        more = len(steps["probe"]) - 40
        parts.append(
            f"<h3>Prove with <code>probe</code> and a lifetime</h3><p>{names}"
            + (f" and {number(more)} more" if more > 0 else "")
            + "</p>"
        )
    if steps["upgrades"]:
        parts.append(f"<h3>Upgrade</h3>{tables.upgrades(steps['upgrades'])}")
    if steps["missing_acls"]:
        parts.append(_missing_acls(steps["missing_acls"]))
    parts.append(
        "<details><summary>Which version of each library re-authenticates</summary>"
        f"{tables.libraries(steps['libraries'])}</details></section>"
    )
    return "".join(parts)


def _missing_acls(rows: Sequence[Mapping[str, Any]]) -> str:
    commands = "\n".join(plain(row["command"]) for row in rows if row["command"])
    return (
        "<h3>Missing ACLs</h3><p class='soft'>What was denied, or would be under "
        "<code>authorizer.mode: enforce</code>. Unless it is meant to be denied, these commands "
        "allow it. A name stands in them as its client gave it: read before you paste.</p>"
        + tables.missing_acls(rows)
        + (f"<pre>{commands}</pre>" if commands else "")
    )


def _clients(facts: Facts) -> str:
    rows: Sequence[Mapping[str, Any]] = facts["clients"]
    if not rows:
        return ""
    shown = rows[: tables.CLIENTS_SHOWN]
    total = sum(facts["clients_by_verdict"].values())
    more = (
        f'<p class="soft">The first {number(len(shown))} of {number(total)}; the Parquet table '
        "<code>tables/clients</code> has all.</p>"
        if total > len(shown)
        else ""
    )
    return f"<section><h2>Clients and their evidence</h2>{tables.clients(shown)}{more}</section>"


def _input(facts: Facts) -> str:
    lines = facts["lines"]
    aside = [f"{number(lines[key])} {words}" for key, words in _SET_ASIDE.items() if lines[key]]
    said = f"Set aside: {', '.join(aside)}." if aside else "None was set aside."
    missing = (
        f" {count(lines['missing'], 'event is', 'events are')} missing by the numbering: "
        "dropped before they were written, or in files that are gone."
        if lines["missing"]
        else ""
    )
    newest = facts["observed"]["to_ms"]
    age = ""
    if newest is not None and facts["as_of_ms"] > newest:
        age = f" The newest event is {duration(facts['as_of_ms'] - newest)} old."
    return (
        f"<section><h2>What was read</h2><p>{count(lines['lines'], 'line')} from "
        f"<code>{plain(facts['source'])}</code>. {said}{missing}{age}</p></section>"
    )


def plain_block(text: str) -> str:
    """Escape a text of several lines."""
    return "\n".join(plain(line) for line in text.splitlines())
