"""Page of the report in one HTML file: no network, all client-chosen text escaped.

Its one script filters rows by name; its hash is in the page's Content-Security-Policy.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from metrics.report import plots, tables
from metrics.report.formats import (
    SHORT,
    count,
    duration,
    is_observed,
    logged_in,
    name_of,
    number,
    plain,
    span,
)
from metrics.report.summary import summary
from metrics.report.verdicts import VERDICT_LABELS, WORST_FIRST
from metrics.rollout import EVIDENCE_MAX_AGE_MS, REAUTHENTICATIONS, WINDOW_MS

Facts = Mapping[str, Any]

STYLE = files("metrics.report").joinpath("style.css").read_text(encoding="utf-8")
_SCRIPT = files("metrics.report").joinpath("filter.js").read_text(encoding="utf-8")
SCRIPT_HASH = f"'sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}'"
"""The script's source expression for a Content-Security-Policy."""

_HEAD = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src {SCRIPT_HASH}; img-src data:">
<title>Readiness for re-authentication</title><style>"""

BODY_BEGINS = "</style></head><body><main>"
"""The end of the head: everything before it is the same on every page."""

_NAMED = 40
"""Maximum number of names in a sentence."""

_OPEN = 5
"""Maximum number of clients with the worst verdict that are shown unfolded."""

_SET_ASIDE = {
    "unreadable": "unreadable",
    "unknown_version": "of another schema version",
    "unknown_kind": "of an unknown kind",
    "impossible": "with impossible values",
    "future": "from the future",
    "implausible": "of a wrong clock",
    "outside": "outside the time asked for",
    "duplicate": "doubled",
}


_ENGINES = {
    "duckdb": "DuckDB on one machine",
    "spark+duckdb": "DuckDB, of what Spark made of the events",
}


def page(facts: Facts) -> str:
    """Write the page; a section without facts is left out."""
    sections = (
        ("principals", "By principal", facts["principals"], _by_principal),
        ("groups", "By group", facts["by_group"]["groups"], _by_group),
        ("lifetimes", "What would a lifetime break?", facts["what_if"], _what_if),
        ("kafka-4", "Breaks at Kafka 4.0", facts["breaks_at_kafka_4"]["clients"], _kafka_4),
        ("storms", "Storms and latency", facts["storms"]["profile"], _storms),
        ("trend", "Trend", facts["trend"]["days"], _trend),
        ("rollout", "Rollout", facts["rollout"]["days"], _rollout),
        ("tokens", "Tokens too short", facts["short_tokens"], _tokens),
        ("failures", "Failed authentications", facts["failures"], _failures),
        ("next", "What to do next", facts, _next_steps),
        ("acl-use", "ACLs and their use", any(facts["acls"].values()), _acls),
        ("clients", "Clients and their evidence", facts["clients"], _clients),
        ("read", "What was read", facts, _input),
    )
    written, links = "", ""
    for name, title, shown, section in sections:
        if shown:
            written += f'<section id="{name}"><h2>{title}</h2>{section(facts)}</section>'
            links += f'<li><a href="#{name}">{title}</a></li>'
    contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
    body = f"{summary(facts)}{contents}{written}"
    return f"{_HEAD}\n{STYLE}{BODY_BEGINS}{body}</main><script>{_SCRIPT}</script></body></html>\n"


def run_mark(run_id: str) -> str:
    """Write the mark of a page's run; no other text on the page can contain it."""
    return f'<p class="soft">Run {plain(run_id)}, answered by '


def _by_principal(facts: Facts) -> str:
    rows = facts["principals"]
    verdicts = facts["principals_by_verdict"]
    total = sum(verdicts.values())
    return (
        '<p class="soft">Clients of each principal, the worst first; the longer a bar, the '
        "more clients. A principal can be enforced "
        f"when all its clients are ready: {number(verdicts['ready'])} of {number(total)} can be."
        f"</p>{plots.principal_bars(rows, total)}"
    )


def _by_group(facts: Facts) -> str:
    rows, total = facts["by_group"]["groups"], facts["by_group"]["group_count"]
    return (
        '<p class="soft">Clients of the members of each group, the worst first; who is a member '
        "of several stands in each. A group can be enforced when all these clients are ready."
        f"</p>{plots.principal_bars(rows, total)}"
    )


def _what_if(facts: Facts) -> str:
    rows, missing = facts["what_if"], facts["lines"]["missing"] > 0
    return (
        '<p class="soft">Connections that each lifetime would have killed, or might have '
        "(unproven).</p>"
        f"{plots.kills(rows, missing=missing)}{tables.what_if(rows, missing=missing)}"
        "<details><summary>How long sessions are used</summary>"
        f"{plots.session_lengths(facts['session_lengths'], rows)}</details>"
    )


def _kafka_4(facts: Facts) -> str:
    breaks = facts["breaks_at_kafka_4"]
    return (
        '<p class="soft">Clients that use versions of APIs that Kafka 4.0 dropped (KIP-896), '
        "those with most connections first; whether they re-authenticate is another matter. "
        "Clients without SASL are among them. Before the brokers are upgraded to Kafka 4, these "
        "need a newer library, or where a version is configured, a newer one.</p>"
        f"{tables.kafka_4(breaks['clients'], breaks['client_count'])}"
    )


def _storms(facts: Facts) -> str:
    storms = facts["storms"]
    return (
        '<p class="soft">Authentications in the busiest minute of each stretch of time. Many at '
        "one moment come from a restart, or from lifetimes that began together.</p>"
        f"{plots.storms(storms['profile'])}"
        "<details><summary>Latencies, and the busiest minutes</summary>"
        f"{tables.latencies(facts['latencies'])}{tables.storms(storms['busiest'][:5])}</details>"
        ""
    )


def _trend(facts: Facts) -> str:
    trend = facts["trend"]
    return (
        '<p class="soft">Clients seen on each day, as they were known at its end; without those '
        f"that never logged in. {_outlook(facts)}</p>{plots.trend(trend['days'])}"
    )


def _outlook(facts: Facts) -> str:
    """Write how many of the clients seen on a day are ready, and the projection."""
    projected, last = facts["trend"]["projection"], facts["trend"]["days"][-1]["day"]
    day, seen = projected["last_day"], projected["clients"]
    known = sum(logged_in(facts).values())
    in_all = f", of {number(known)} in all" if known > seen else ""
    ready = round(projected["ready_share"] * seen)
    text = f"Ready on {day}: {number(ready)} of the {count(seen, 'client')} seen{in_all}"
    if projected["ready_share"] < 1:
        if projected["ready_day"] is not None:
            text += f"; by the present trend all on {projected['ready_day']}"
        elif projected["days"] < 3:
            text += "; it takes three days to speak of a trend"
        else:
            text += "; the trend does not lead to all"
    if last != day:
        text += ". What came after saw less than half as many clients as the fullest day"
    return f"{text}."


def _rollout(facts: Facts) -> str:
    rollout, steps = facts["rollout"], facts["next_steps"]
    blocks = (
        ("waves of ready principals", steps["waves"]),
        ("all principals but the exceptions, also those that were never seen", steps["exceptions"]),
    )
    pasted = "".join(
        f"<details><summary>Enforce {title}</summary>{block(title, text)}</details>"
        for title, text in blocks
        if text and is_observed(facts)
    )
    return (
        '<p class="soft">Principals at the end of each day '
        "by the rules of <code>reauth.enforcement: auto</code>: a client is ready after "
        f"{REAUTHENTICATIONS} re-authentications in time over {duration(WINDOW_MS)} without a "
        "failure, a principal when all its clients of the last "
        f"{duration(EVIDENCE_MAX_AGE_MS)} are.</p>{tables.funnel(rollout['days'])}"
        f"<details><summary>By principal</summary>{tables.rollout(rollout['principals'])}</details>"
        f"{pasted}"
    )


def _tokens(facts: Facts) -> str:
    rows = facts["short_tokens"]
    return (
        '<p class="soft">Connections that were used past the end of the token they logged in '
        "with, or tokens of less than a minute.</p>"
        f"<details><summary>{count(len(rows), 'client')}</summary>"
        f"{tables.short_tokens(rows)}</details>"
    )


def _failures(facts: Facts) -> str:
    rows = facts["failures"]
    return (
        '<p class="soft">Each failure closed a connection.</p>'
        f"<details><summary>{count(sum(row['count'] for row in rows), 'failure')}</summary>"
        f"{tables.failures(rows)}</details>"
    )


def _acls(facts: Facts) -> str:
    acls = facts["acls"]
    verdicts = Counter(row["verdict"] for row in acls["verdicts"])
    told = ", ".join(f"{count(amount, 'principal')} {name}" for name, amount in verdicts.items())
    parts = []
    if told:
        parts.append(f"<p>For <code>authorizer.mode: enforce</code>: {told}.</p>")
    for rows, title in ((acls["unused"], "not used"), (acls["wider"], "wider than their use")):
        if rows:
            parts.append(f"<details><summary>{count(len(rows), 'ACL')} {title}</summary>")
            parts.append(f"{tables.acls(rows)}</details>")
    if unseen := acls["unseen_principals"]:
        names = "; ".join(name_of(row["principal"], SHORT) for row in unseen[:_NAMED])
        parts.append(f"<p>{count(len(unseen), 'principal')} never seen: {names}</p>")
    if commands := "\n".join(row["command"] for row in acls["needed"] if row["command"]):
        parts.append("<details><summary>The ACLs that the recorded use needs</summary>")
        parts.append(f"{block('kafka-acls commands for the use', commands)}</details>")
    return "".join(parts)


def _next_steps(facts: Facts) -> str:
    steps = facts["next_steps"]
    parts = []
    if facts["enforceable_principals"] and not is_observed(facts):
        parts.append(_observe(facts))
    elif steps["overrides"]:
        parts.append(_enforce(facts))
    elif facts["principals"]:
        parts.append("<p>No principal can be enforced yet.</p>")
    if steps["probe"]:
        parts.append(_probe(steps["probe"], facts["principals_by_verdict"]["unproven"]))
    if steps["upgrades"]:
        parts.append(f'<h3 id="upgrade">Upgrade or repair</h3>{tables.upgrades(steps["upgrades"])}')
    if steps["missing_acls"]:
        parts.append(_missing_acls(steps["missing_acls"], steps["missing_acls_left_out"]))
    parts.append(
        "<details><summary>Which version each library needs</summary>"
        f"{tables.libraries(steps['libraries'])}</details>"
    )
    return "".join(parts)


def _enforce(facts: Facts) -> str:
    listeners = facts["next_steps"]["listeners"]
    names = ", ".join(f"<code>{name_of(each)}</code>" for each in listeners[:_NAMED])
    where = f"the listener {names}" if len(listeners) == 1 else f"these listeners: {names}"
    return (
        '<h3 id="enforce">Enforce today</h3>'
        f"<p class='soft'>In the configuration, among the settings of {where}. A reload (SIGHUP) "
        "puts it into effect for authentications that come after.</p>"
        + block("reauth.overrides", facts["next_steps"]["overrides"])
    )


def _observe(facts: Facts) -> str:
    observed, ready = facts["observed"], facts["principals_by_verdict"]["ready"]
    return (
        '<h3 id="enforce">Observe for longer</h3>'
        f"<p>{count(ready, 'principal is', 'principals are')} ready, but events cover only "
        f"{duration(observed['covered_ms'])}: clients that connect once a day or a week may be "
        f"missing. Enforce after {duration(observed['minimum_ms'])} (<code>--min-observed</code>)."
        "</p>"
    )


def _probe(principals: Sequence[str], total: int) -> str:
    more = total - min(len(principals), _NAMED)
    return (
        '<h3 id="probe">Prove with <code>probe</code> and a lifetime</h3>'
        "<p class='soft'>With <code>reauth.enforcement: probe</code> and "
        "<code>connections.max.reauth.ms</code> the proxy announces a lifetime to these and closes "
        "no connection; once their connections have outlasted it, the next report knows.</p><p>"
        + "; ".join(name_of(name, SHORT) for name in principals[:_NAMED])
        + (f" and {number(more)} more" if more > 0 else "")
        + "</p>"
    )


def _missing_acls(rows: Sequence[Mapping[str, Any]], left_out: int) -> str:
    commands = "\n".join(row["command"] for row in rows if row["command"])
    return (
        '<h3 id="acls">Missing ACLs</h3>'
        "<p class='soft'>What was denied, or would be under <code>authorizer.mode: enforce</code>. "
        "Unless it is meant to be denied, these commands allow it. A name stands in them as its "
        "client gave it: read before you paste.</p>"
        + tables.missing_acls(rows, left_out)
        + (block("kafka-acls commands", commands) if commands else "")
    )


def _clients(facts: Facts) -> str:
    rows: Sequence[Mapping[str, Any]] = facts["clients"]
    shown = rows[: tables.CLIENTS_SHOWN]
    known, never = sum(logged_in(facts).values()), facts["never_logged_in"]
    more = (
        f'<p class="soft">The first {number(len(shown))} of {count(known, "client")}, the worst '
        f"first, and of {number(never)} that never logged in; the table "
        "<code>tables/clients</code> has all.</p>"
        if known + never > len(shown)
        else ""
    )
    named = [row for row in shown if row["principal"] is not None]
    by_label = {
        VERDICT_LABELS[verdict]: [row for row in named if row["verdict"] == verdict]
        for verdict in WORST_FIRST
    } | {"never logged in": [row for row in shown if row["principal"] is None]}
    listed = ""
    for label, rows_of in by_label.items():
        if rows_of:
            opened = " open" if not listed and len(rows_of) <= _OPEN else ""
            title = f"{count(len(rows_of), 'client')}: {label}"
            listed += f"<details{opened}><summary>{title}</summary>"
            listed += f"{tables.clients(rows_of)}</details>"
    return f"{more}{listed}"


def _input(facts: Facts) -> str:
    lines = facts["lines"]
    aside = [f"{number(lines[key])} {words}" for key, words in _SET_ASIDE.items() if lines[key]]
    text = f"Set aside: {', '.join(aside)}." if aside else "All of them were used."
    missing = (
        f" {count(lines['missing'], 'event is', 'events are')} missing by the numbering: "
        "dropped before they were written, or in files that are gone."
        if lines["missing"]
        else ""
    )
    clocks = "".join(
        f" {_dated(row)}, {why}."
        for rows, why in (
            (facts["wrong_clocks"], "far from all others: the clock of a proxy was wrong"),
            (
                facts["ahead"],
                "ahead of this report: the clock of a proxy is wrong, or the one here",
            ),
        )
        for row in rows
    )
    files = facts["files_set_aside"]
    skipped = "".join(
        f"<li><code>{name_of(one['file'])}</code>: {one['reason']}</li>" for one in files["files"]
    )
    if skipped:
        number_of = count(files["file_count"], "file was", "files were")
        skipped = f"<p>{number_of} not read:</p><ul>{skipped}</ul>"
    newest = facts["observed"]["to_ms"]
    age = ""
    if newest is not None and facts["as_of_ms"] > newest:
        age = f" The newest event is {duration(facts['as_of_ms'] - newest)} old."
    return (
        f"<p>{count(lines['lines'], 'line')} from "
        f"<code>{name_of(facts['source'])}</code>. {text}{clocks}{missing}{age}</p>{skipped}"
        f"{run_mark(facts['run_id'])}"
        f"{_ENGINES[facts['engine']]}.</p>{_downloads(facts['tables'])}"
    )


def _downloads(names: Sequence[str]) -> str:
    """Write links to the tables as CSV; empty if they are not beside the page."""
    links = ", ".join(f'<a href="csv/{name}.csv">{name}</a>' for name in names)
    return f"<p>Tables as CSV: {links}.</p>" if names else ""


def _dated(row: Mapping[str, Any]) -> str:
    events = count(row["events"], "event is", "events are")
    return f"{events} dated {span(row['first_ms'], row['last_ms'])}"


def block(name: str, text: str) -> str:
    """Write a text of several lines to copy, which can be scrolled with the keyboard."""
    # not `splitlines`: a name may contain other line separators
    escaped = "\n".join(plain(line) for line in text.removesuffix("\n").split("\n"))
    return f'<pre tabindex="0" role="region" aria-label="{name}">{escaped}</pre>'
