"""Tables of the page."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from metrics.report.formats import (
    SHORT,
    duration,
    is_judged,
    kills_a_day,
    milliseconds,
    moment,
    name_of,
    number,
    plain,
    share,
    span,
)
from metrics.report.verdicts import VERDICT_LABELS
from metrics.rollout import Stage

Row = Mapping[str, Any]
Rows = Sequence[Row]
Cell = Callable[[Row], str]
"""Function that writes a cell of a row in HTML."""

CLIENTS_SHOWN = 500
_NAMES_SHOWN = 4
_DAYS_SHOWN = 14
_ROWS_SHOWN = 50
_ACLS_SHOWN = 200


def table(
    name: str,
    rows: Rows,
    columns: Mapping[str, Cell],
    *,
    numbers: Sequence[int] = (),
    kind: str = "",
) -> str:
    """Write a table of columns by title; those in `numbers` are aligned to the right.

    `name` is for screen readers.
    """
    classes = ["n" if index in numbers else "name" for index in range(len(columns))]

    def written(row: Row) -> str:
        # a phone shows each cell on its own line, after the name of its column
        given = zip(classes, columns.items(), strict=True)
        return "".join(
            f'<td class="{each}" data-label="{title}">{cell(row)}</td>'
            for each, (title, cell) in given
        )

    titles = zip(classes, columns, strict=True)
    top = "".join(f'<th scope="col" class="{each}">{title}</th>' for each, title in titles)
    body = "".join(f"<tr>{written(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll {kind}"><table aria-label="{name}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(name: str, write: Callable[[Any], str] = name_of) -> Cell:
    """Return the function that writes one value of a row."""
    return lambda row: write(row[name])


def _short(text: str | None) -> str:
    return name_of(text, SHORT)


def rest(total: int, shown: int, source: str) -> str:
    """Write the number of rows shown and in total, and which Parquet table has all of them."""
    if total <= shown:
        return ""
    return (
        f'<p class="soft">The first {number(shown)} of {number(total)}; the Parquet table '
        f"<code>tables/{source}</code> has all.</p>"
    )


def tag(verdict: str) -> str:
    """Write a verdict in its colour."""
    return f'<span class="tag {verdict}">{VERDICT_LABELS[verdict]}</span>'


def what_if(rows: Rows, *, missing: bool) -> str:
    """Write one row per lifetime; `missing`: events are missing, which may include kills."""

    def judged(write: Cell) -> Cell:
        return lambda row: write(row) if is_judged(row) else name_of(None)

    return table(
        "What each lifetime would break",
        rows,
        {
            "lifetime": _cell("lifetime_ms", duration),
            "killed": judged(_cell("killed_connections", number)),
            "clients": judged(_cell("killed_clients", number)),
            "principals": judged(_cell("killed_principals", number)),
            "kills a day": judged(lambda row: kills_a_day(row, missing=missing)),
            "too late by": _cell("late_median_ms", duration),
            "unproven": judged(_cell("unproven_connections", number)),
            "cut short": judged(_cell("cut_short_connections", number)),
        },
        numbers=range(1, 8),
        kind="few numbers",
    ) + (
        "<details><summary>What is counted</summary>"
        '<p class="soft">Killed: connections that were used past the lifetime after they had '
        "authenticated, and to which no lifetime could be announced, or which did not keep it. "
        "Kills a day: at least to at most, as a killed client comes back and is killed again; the "
        "most is unknown if events are missing, and both if less than an hour was observed. Too "
        "late by: "
        "the median over the killed connections of how long they were used past it. Unproven: "
        "connections used as long, but their clients speak v1 and may well re-authenticate. Cut "
        "short: killed, or with a failed re-authentication, before they were as old; what they "
        "would have done is unknown, as are the kills of a lifetime longer than the time observed."
        "</p>"
        "</details>"
    )


def kafka_4(rows: Rows, total: int) -> str:
    """Write the clients that break at Kafka 4.0, with their API versions; `total`: of all rows."""
    shown = rows[:CLIENTS_SHOWN]
    return table(
        "Clients that break at Kafka 4.0",
        shown,
        {
            "principal": _cell("principal"),
            "client": _client,
            "versions": lambda row: ", ".join(map(_short, row["versions"])),
            "connections": _cell("connections", number),
            "from": _hosts,
            "last seen (UTC)": _cell("last_ms", moment),
        },
        numbers=(3,),
    ) + rest(total, len(shown), "dropped_versions")


def latencies(rows: Rows) -> str:
    """Write the latency quantiles by mechanism."""
    if not rows:
        return ""
    return table(
        "Latency of authentications",
        rows,
        {
            "mechanism": _cell("mechanism"),
            "which": lambda row: _which(again=row["kind"] == "reauthenticated"),
            "count": _cell("count", number),
            **{each: _cell(f"{each}_us", milliseconds) for each in ("p50", "p95", "p99")},
        },
        numbers=range(2, 6),
        kind="few",
    )


def _which(*, again: bool) -> str:
    return "re-authentication" if again else "first"


def storms(rows: Rows) -> str:
    """Write the busiest minutes."""
    return table(
        "Busiest minutes",
        rows,
        {
            "busiest minute (UTC)": _cell("minute_ms", moment),
            "mechanism": _cell("mechanism"),
            "authentications": _cell("authentications", number),
            "of them again": _cell("reauthentications", number),
            "busy": lambda row: share(None if row["busy_us"] is None else row["busy_us"] / 600_000),
        },
        numbers=range(2, 5),
        kind="few",
    ) + (
        '<p class="soft">Busy: the latencies of the minute added up, as a share of it; the load on '
        "one worker is at most that, as the clients' own delays are in it.</p>"
    )


def funnel(rows: Rows) -> str:
    """Write the principals of each day by their stage."""
    return table(
        "Principals by day and stage",
        rows[-_DAYS_SHOWN:],
        {"day": _cell("day", str), **{str(each): _cell(each, number) for each in Stage}},
        numbers=range(1, 7),
        kind="few numbers",
    )


def rollout(rows: Rows) -> str:
    """Write the principals with their stage, and the client that is farthest from ready."""
    return table(
        "Principals and their stage",
        rows[:_ROWS_SHOWN],
        {
            "principal": _cell("principal"),
            "stage": _cell("stage", str),
            "clients": _cell("clients", number),
            "farthest from ready": _client,
            "its re-authentications": lambda row: (
                f"{number(row['reauthentications'])} in {duration(row['evidence_ms'])}"
            ),
        },
        numbers=(2,),
    ) + rest(len(rows), _ROWS_SHOWN, "rollout")


def short_tokens(rows: Rows) -> str:
    """Write the clients with tokens that are too short."""
    return table(
        "Tokens too short",
        rows[:_ROWS_SHOWN],
        {
            "principal": _cell("principal"),
            "client id": _cell("client_id"),
            "shortest token": _cell("credential_lifetime_ms", duration),
            "used past it by": _cell("outlived_ms", duration),
            "verdict": _cell("verdict", tag),
        },
        numbers=(2, 3),
    ) + rest(len(rows), _ROWS_SHOWN, "short_tokens")


def _reason(reason: str | None) -> str:
    """Write the reason for failed authentications, and the cause of one that looks like an
    attack."""
    if reason != "principal_changed":
        return name_of(reason)
    return (
        f"{name_of(reason)}: principal changes at re-authentication, as with an IAM role whose"
        " session name differs each time"
    )


def failures(rows: Rows) -> str:
    """Write the failed authentications by reason."""
    return table(
        "Failed authentications",
        rows[:_ROWS_SHOWN],
        {
            "mechanism": _cell("mechanism"),
            "reason": _cell("failure_reason", _reason),
            "which": lambda row: _which(again=row["reauthentication"]),
            "count": _cell("count", number),
        },
        numbers=(3,),
        kind="few",
    ) + rest(len(rows), _ROWS_SHOWN, "failures")


def upgrades(rows: Rows) -> str:
    """Write one row per library and version to upgrade."""
    return table(
        "What to upgrade",
        rows,
        {
            "software": lambda row: _with_version(row["software"], row["version"]),
            "clients": _cell("clients", number),
            "principals": lambda row: _names(row["principals"], row["principal_count"]),
            "what helps": _cell("advice", plain),
        },
        numbers=(1,),
    )


def missing_acls(rows: Rows, left_out: int) -> str:
    """Write one row per denied resource, preferring the most denied resources of each principal.

    A row without a command has the reason. `left_out` is the number of resources beyond `rows`.
    """
    by_place = sorted(rows, key=itemgetter("place"))
    shown = sorted(by_place[:_ACLS_SHOWN], key=itemgetter("principal"))
    more = ""
    if left_out or len(rows) > len(shown):
        more = (
            f'<p class="soft">{number(len(shown))} of '
            f"{number(len(rows) + left_out)}; <code>report.json</code> has "
            f"{number(len(rows)) if left_out else 'all'}"
            f"{', the Parquet table <code>tables/denials</code> all' if left_out else ''}.</p>"
        )
    columns: Mapping[str, Cell] = {
        "principal": _cell("principal"),
        "resource": lambda row: f"{plain(row['resource_type'])} {name_of(row['resource_name'])}",
        "operations": lambda row: plain(", ".join(row["operations"])),
        "denied": _cell("denied", number),
        "would be denied": _cell("would_be_denied", number),
        "note": lambda row: f"to be decided by hand: {plain(row['note'])}" if row["note"] else "",
    }
    return table("Missing ACLs", shown, columns, numbers=(3, 4)) + more


def acls(rows: Rows) -> str:
    """Write ACLs with their use."""
    return table(
        "ACLs",
        rows[:_ACLS_SHOWN],
        {
            "principal": _cell("principal"),
            "resource": lambda row: (
                f"{plain(row['resource_type'])} {plain(row['pattern_type'])} {_short(row['name'])}"
            ),
            "operation": _cell("operation", plain),
            "requests": _cell("requests", number),
            "used": lambda row: (
                f"{plain(', '.join(row['used_operations']))} {', '.join(map(_short, row['names']))}"
            ),
            "last used (UTC)": _cell("last_ms", moment),
        },
        numbers=(3,),
    ) + rest(len(rows), _ACLS_SHOWN, "acl_use")


def libraries(rows: Rows) -> str:
    """Write the libraries' versions that re-authenticate, with their sources."""
    return table(
        "Libraries",
        rows,
        {
            "library": _cell("library", plain),
            "since": lambda row: plain(row["since"] or "no version"),
            "note": _cell("note", plain),
            "source": _cell("source", plain),
        },
    )


def clients(rows: Rows) -> str:
    """Write the clients with one verdict, with the evidence for it."""
    return table(
        "Clients",
        rows,
        {
            "principal": _cell("principal"),
            "client": lambda row: _client(row, f"<br>{name_of(row['mechanism'])}"),
            "connections": _cell("connections", number),
            "evidence": lambda row: f"{plain(row['evidence'])}; from {_hosts(row)}{_details(row)}",
        },
        numbers=(2,),
        kind="evidence",
    )


def _details(row: Row) -> str:
    """Write a folded section on one client, with the verdict at the end of each day it was seen.

    The id is inside, so that a link to it unfolds the section and those around it.
    """
    facts = {
        "seen (UTC)": span(row["first_seen_ms"], row["last_seen_ms"]),
        "listeners": ", ".join(map(_short, row["listeners"])),
        "announced lifetime": duration(row["announced_ms"] or None),
        "longest use of a session": duration(row["used_ms"]),
        "re-authentications": number(row["reauthentications"]),
        "failed re-authentications": number(row["reauth_failures"]),
        "uses of expired sessions": number(row["killed"] + row["would_be_kills"]),
        "requests": number(row["requests"]),
    }
    listed = "".join(f"<dt>{title}</dt><dd>{value}</dd>" for title, value in facts.items())
    own = f"client-{plain(row['client_key'])}"
    return (
        f'<details><summary>details</summary><div id="{own}">{_timeline(row["days"])}'
        f'<dl class="meanings">{listed}</dl><a href="#{own}">link to this client</a>'
        "</div></details>"
    )


def _timeline(days: Mapping[str, str]) -> str:
    """Draw the verdict at the end of each day, with equal days in a row as one bar."""
    bars = []
    for verdict, same in groupby(days, key=days.__getitem__):
        of = list(same)
        when = of[0] if len(of) == 1 else f"{of[0]} to {of[-1]}"
        text = f"{when}: {VERDICT_LABELS[verdict]}"
        bars.append(f'<li class="{verdict}" style="flex-grow:{len(of)}">{text}</li>')
    return f'<ol class="timeline" aria-label="Verdict by day">{"".join(bars)}</ol>' if bars else ""


def _client(row: Row, more: str = "") -> str:
    """Write the client id, and below it the software and `more`."""
    software = _with_version(row["client_software_name"], row["client_software_version"])
    return f'{name_of(row["client_id"])}<br><span class="soft">{software}{more}</span>'


def _with_version(software: str | None, version: str | None) -> str:
    return name_of(None if software is None else f"{software} {version or ''}".strip())


def _hosts(row: Row) -> str:
    shown = ", ".join(name_of(host) for host in row["hosts"][:2])
    more = row["host_count"] - min(2, len(row["hosts"]))
    return f"{shown} and {number(more)} more" if more > 0 else shown


def _names(names: Sequence[str], total: int) -> str:
    shown = "; ".join(map(_short, names[:_NAMES_SHOWN]))
    more = total - _NAMES_SHOWN
    return f"{shown} and {number(more)} more" if more > 0 else shown
