"""Tables of the page."""

from collections.abc import Mapping, Sequence
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

Rows = Sequence[Mapping[str, Any]]

CLIENTS_SHOWN = 500
_KILLED = ("killed_connections", "killed_clients", "killed_principals")
_UNKNOWN = name_of(None)
_NOT_KNOWN = ("unproven_connections", "cut_short_connections")
_NAMES_SHOWN = 4
_DAYS_SHOWN = 14
_ROWS_SHOWN = 50
_ACLS_SHOWN = 200


def table(
    name: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[int] = (),
    kind: str = "",
) -> str:
    """Write a table of HTML cells; the columns in `numbers` are aligned to the right.

    `name` is for screen readers.
    """
    classes = ["n" if index in numbers else "name" for index in range(len(head))]

    def row_of(cells: Sequence[str]) -> str:
        # a phone shows each cell on its own line, after the name of its column
        given = zip(classes, head, cells, strict=True)
        return "".join(
            f'<td class="{each}" data-label="{title}">{cell}</td>' for each, title, cell in given
        )

    titles = zip(classes, head, strict=True)
    top = "".join(f'<th scope="col" class="{each}">{title}</th>' for each, title in titles)
    body = "".join(f"<tr>{row_of(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll {kind}"><table aria-label="{name}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def rest(total: int, shown: int, where: str) -> str:
    """Write the number of rows shown and in total, and where to find all of them."""
    if total <= shown:
        return ""
    return f'<p class="soft">The first {number(shown)} of {number(total)}; {where} has all.</p>'


def tag(verdict: str) -> str:
    """Write a verdict in its colour."""
    return f'<span class="tag {verdict}">{VERDICT_LABELS[verdict]}</span>'


def what_if(rows: Rows, *, missing: bool) -> str:
    """Write one row per lifetime; `missing`: events are missing, which may include kills."""
    return table(
        "What each lifetime would break",
        [
            "lifetime",
            "killed",
            "clients",
            "principals",
            "kills a day",
            "too late by",
            "unproven",
            "cut short",
        ],
        [
            [
                duration(row["lifetime_ms"]),
                *(number(row[name]) if is_judged(row) else _UNKNOWN for name in _KILLED),
                kills_a_day(row, missing=missing) if is_judged(row) else _UNKNOWN,
                duration(row["late_median_ms"]),
                *(number(row[name]) if is_judged(row) else _UNKNOWN for name in _NOT_KNOWN),
            ]
            for row in rows
        ],
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
        ["principal", "client", "versions", "connections", "from", "last seen (UTC)"],
        [
            [
                name_of(row["principal"]),
                f'{name_of(row["client_id"])}<br><span class="soft">{_software(row)}</span>',
                ", ".join(name_of(each, SHORT) for each in row["versions"]),
                number(row["connections"]),
                _hosts(row),
                moment(row["last_ms"]),
            ]
            for row in shown
        ],
        numbers=(3,),
    ) + rest(total, len(shown), "the Parquet table <code>tables/dropped_versions</code>")


def latencies(rows: Rows) -> str:
    """Write the latency quantiles by mechanism."""
    if not rows:
        return ""
    return table(
        "Latency of authentications",
        ["mechanism", "which", "count", "p50", "p95", "p99"],
        [
            [
                name_of(row["mechanism"]),
                "re-authentication" if row["kind"] == "reauthenticated" else "first",
                number(row["count"]),
                *(milliseconds(row[quantile]) for quantile in ("p50_us", "p95_us", "p99_us")),
            ]
            for row in rows
        ],
        numbers=range(2, 6),
        kind="few",
    )


def storms(rows: Rows) -> str:
    """Write the busiest minutes."""
    return table(
        "Busiest minutes",
        ["busiest minute (UTC)", "mechanism", "authentications", "of them again", "busy"],
        [
            [
                moment(row["minute_ms"]),
                name_of(row["mechanism"]),
                number(row["authentications"]),
                number(row["reauthentications"]),
                share(None if row["busy_us"] is None else row["busy_us"] / 600_000),
            ]
            for row in rows
        ],
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
        ["day", *Stage],
        [[str(row["day"]), *(number(row[each]) for each in Stage)] for row in rows[-_DAYS_SHOWN:]],
        numbers=range(1, 7),
        kind="few numbers",
    )


def rollout(rows: Rows) -> str:
    """Write the principals with their stage, and the client that is farthest from ready."""
    return table(
        "Principals and their stage",
        ["principal", "stage", "clients", "farthest from ready", "its re-authentications"],
        [
            [
                name_of(row["principal"]),
                row["stage"],
                number(row["clients"]),
                f'{name_of(row["client_id"])}<br><span class="soft">{_software(row)}</span>',
                f"{number(row['reauthentications'])} in {duration(row['evidence_ms'])}",
            ]
            for row in rows[:_ROWS_SHOWN]
        ],
        numbers=(2,),
    ) + rest(len(rows), _ROWS_SHOWN, "the Parquet table <code>tables/rollout</code>")


def short_tokens(rows: Rows) -> str:
    """Write the clients with tokens that are too short."""
    return table(
        "Tokens too short",
        ["principal", "client id", "shortest token", "used past it by", "verdict"],
        [
            [
                name_of(row["principal"]),
                name_of(row["client_id"]),
                duration(row["credential_lifetime_ms"]),
                duration(row["outlived_ms"]),
                tag(row["verdict"]),
            ]
            for row in rows[:_ROWS_SHOWN]
        ],
        numbers=(2, 3),
    ) + rest(len(rows), _ROWS_SHOWN, "the Parquet table <code>tables/short_tokens</code>")


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
        ["mechanism", "reason", "which", "count"],
        [
            [
                name_of(row["mechanism"]),
                _reason(row["failure_reason"]),
                "re-authentication" if row["reauthentication"] else "first",
                number(row["count"]),
            ]
            for row in rows[:_ROWS_SHOWN]
        ],
        numbers=(3,),
        kind="few",
    ) + rest(len(rows), _ROWS_SHOWN, "the Parquet table <code>tables/failures</code>")


def upgrades(rows: Rows) -> str:
    """Write one row per library and version to upgrade."""
    return table(
        "What to upgrade",
        ["software", "clients", "principals", "what helps"],
        [
            [
                _with_version(row["software"], row["version"]),
                number(row["clients"]),
                _names(row["principals"], row["principal_count"]),
                plain(row["advice"]),
            ]
            for row in rows
        ],
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
    return (
        table(
            "Missing ACLs",
            ["principal", "resource", "operations", "denied", "would be denied", "note"],
            [
                [
                    name_of(row["principal"]),
                    f"{plain(row['resource_type'])} {name_of(row['resource_name'])}",
                    plain(", ".join(row["operations"])),
                    number(row["denied"]),
                    number(row["would_be_denied"]),
                    f"to be decided by hand: {plain(row['note'])}" if row["note"] else "",
                ]
                for row in shown
            ],
            numbers=(3, 4),
        )
        + more
    )


def acls(rows: Rows) -> str:
    """Write ACLs with their use."""
    return table(
        "ACLs",
        ["principal", "resource", "operation", "requests", "used", "last used (UTC)"],
        [
            [
                name_of(row["principal"]),
                f"{plain(row['resource_type'])} {plain(row['pattern_type'])} "
                f"{name_of(row['name'], SHORT)}",
                plain(row["operation"]),
                number(row["requests"]),
                f"{plain(', '.join(row['used_operations']))} "
                f"{', '.join(name_of(each, SHORT) for each in row['names'])}",
                moment(row["last_ms"]),
            ]
            for row in rows[:_ACLS_SHOWN]
        ],
        numbers=(3,),
    ) + rest(len(rows), _ACLS_SHOWN, "the Parquet table <code>tables/acl_use</code>")


def libraries(rows: Rows) -> str:
    """Write the libraries' versions that re-authenticate, with their sources."""
    return table(
        "Libraries",
        ["library", "since", "note", "source"],
        [
            [
                plain(row["library"]),
                "no version" if row["since"] is None else plain(row["since"]),
                plain(row["note"]),
                plain(row["source"]),
            ]
            for row in rows
        ],
    )


def clients(rows: Rows) -> str:
    """Write the clients with one verdict, with the evidence for it."""
    return table(
        "Clients",
        ["principal", "client", "connections", "evidence"],
        [
            [
                name_of(row["principal"]),
                f'{name_of(row["client_id"])}<br><span class="soft">{_software(row)}<br>'
                f"{name_of(row['mechanism'])}</span>",
                number(row["connections"]),
                f"{plain(row['evidence'])}; from {_hosts(row)}{_details(row)}",
            ]
            for row in rows
        ],
        numbers=(2,),
        kind="evidence",
    )


def _details(row: Mapping[str, Any]) -> str:
    """Write a folded section on one client, with the verdict at the end of each day it was seen."""
    facts = {
        "seen (UTC)": span(row["first_seen_ms"], row["last_seen_ms"]),
        "listeners": ", ".join(name_of(each, SHORT) for each in row["listeners"]),
        "announced lifetime": duration(row["announced_ms"] or None),
        "longest use of a session": duration(row["used_ms"]),
        "re-authentications": number(row["reauthentications"]),
        "failed re-authentications": number(row["reauth_failures"]),
        "uses of expired sessions": number(row["killed"] + row["would_be_kills"]),
        "requests": number(row["requests"]),
    }
    listed = "".join(f"<dt>{title}</dt><dd>{value}</dd>" for title, value in facts.items())
    return (
        f'<details id="client-{plain(row["client_key"])}"><summary>details</summary>'
        f'{_timeline(row["days"])}<dl class="meanings">{listed}</dl></details>'
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


def _software(row: Mapping[str, Any]) -> str:
    return _with_version(row["client_software_name"], row["client_software_version"])


def _with_version(software: str | None, version: str | None) -> str:
    return name_of(None if software is None else f"{software} {version or ''}".strip())


def _hosts(row: Mapping[str, Any]) -> str:
    shown = ", ".join(name_of(host) for host in row["hosts"][:2])
    more = row["host_count"] - min(2, len(row["hosts"]))
    return f"{shown} and {number(more)} more" if more > 0 else shown


def _names(names: Sequence[str], total: int) -> str:
    shown = "; ".join(name_of(name, SHORT) for name in names[:_NAMES_SHOWN])
    more = total - _NAMES_SHOWN
    return f"{shown} and {number(more)} more" if more > 0 else shown
