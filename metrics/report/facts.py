"""Facts of the report as JSON (docs/report.schema.json).

Times are epoch milliseconds (UTC), days are dates, durations have their unit in the name. A new key
does not increase `SCHEMA_VERSION`; a change of the meaning of an existing one does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from operator import itemgetter
from pathlib import Path
from statistics import linear_regression
from typing import Any

from metrics.report import next_steps
from metrics.report.evidence import evidence
from metrics.report.verdicts import Verdict
from metrics.rollout import Stage

SCHEMA_VERSION = 2

FILES_NAMED = 20
"""Maximum number of unread files that are listed."""

TREND_DAYS = 28
"""The number of days on which the projection is based."""

ENOUGH_CLIENTS = 0.5
"""Minimum number of clients on a day, as a share of those on the fullest day, for the day to count:
a day with fewer has only just begun, or is a holiday."""

_EPOCH = date(1970, 1, 1)

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Results of the job's queries."""

    as_of_ms: int
    source: str
    lines: Mapping[str, int]
    """The number of lines read, and of lines set aside for each reason."""
    rows: Mapping[str, Rows]
    """The rows of each table, by its name, in the order in which they are shown."""
    run_id: str
    """The id of this run, which its tables, JSON and page have in common."""
    engine: str
    """The engine that ran the queries: `duckdb`, or `spark+duckdb` if Spark read the events or ran
    the queries of events."""
    tables: Sequence[str] = ()
    """The names of the tables beside the page."""
    min_observed_ms: int = 0
    """The time in milliseconds that events must cover before the report advises to enforce."""
    files_aside: Mapping[Path, str] = field(default_factory=dict)
    """Files that were not read, with the reasons."""


def build_facts(collected: Collected) -> dict[str, Any]:
    """Return the facts, in reading order."""
    rows = collected.rows
    timelines = {row["client_key"]: row["days"] for row in rows["timelines"]}
    clients = [
        _dated(row, "failed_on", "ready_since")
        | {"evidence": evidence(row), "days": _timeline(timelines.get(row["client_key"], ()))}
        for row in rows["clients"]
    ]
    principals, enforceable = rows["principals"], rows["enforceable"]
    counted = {row["verdict"]: row["clients"] for row in rows["clients_by_verdict"]}
    named = {row["verdict"]: row["principals"] for row in rows["principals_by_verdict"]}
    (denied,) = (row["resources"] for row in rows["denied_count"])
    rollout, funnel = rows["rollout"], rows["funnel"]
    return {
        "schema_version": SCHEMA_VERSION,
        "as_of_ms": collected.as_of_ms,
        "as_of": datetime.fromtimestamp(collected.as_of_ms / 1000, UTC).isoformat(),
        "source": collected.source,
        "run_id": collected.run_id,
        "engine": collected.engine,
        "tables": list(collected.tables),
        "lines": dict(collected.lines),
        "files_set_aside": {
            "file_count": len(collected.files_aside),
            "files": [
                {"file": str(file), "reason": reason}
                for file, reason in islice(sorted(collected.files_aside.items()), FILES_NAMED)
            ],
        },
        "wrong_clocks": [_dated(row, "first_day", "last_day") for row in rows["wrong_clocks"]],
        "ahead": rows["ahead"],
        "observed": _observed(collected),
        "clients_by_verdict": {verdict.value: counted.get(verdict, 0) for verdict in Verdict},
        "never_logged_in": sum(
            row["clients"] - row["logged_in"] for row in rows["clients_by_verdict"]
        ),
        "principals_by_verdict": {verdict.value: named.get(verdict, 0) for verdict in Verdict},
        "enforceable_principals": [row["principal"] for row in enforceable],
        "principals": principals,
        "by_group": {
            "group_count": sum(row["groups"] for row in rows["group_count"]),
            "groups": rows["groups"],
        },
        "clients": clients,
        "regressed": {
            "client_count": sum(row["clients"] for row in rows["regressed_count"]),
            "clients": [_dated(row, "ready_until") for row in rows["regressed"]],
        },
        "breaks_at_kafka_4": {
            "client_count": sum(row["clients"] for row in rows["breaks_at_kafka_4_count"]),
            "clients": rows["breaks_at_kafka_4"],
        },
        "what_if": rows["what_if"],
        "session_lengths": rows["session_lengths"],
        "storms": {"busiest": rows["storms"], "profile": rows["storm_profile"]},
        "latencies": rows["latencies"],
        "trend": {
            "days": [_dated(row, "day") for row in rows["by_day"]],
            "projection": _dated(projection(rows["by_day"]), "last_day", "ready_day"),
        },
        "rollout": {"days": [_dated(row, "day") for row in funnel], "principals": rollout},
        "short_tokens": rows["short_tokens"],
        "failures": rows["failures"],
        "acls": {
            "verdicts": rows["authorizer_verdicts"],
            "needed": [next_steps.needed_acl(row) for row in rows["needed_acls"]],
            "unused": rows["unused_acls"],
            "wider": rows["wider_acls"],
            "unseen_principals": rows["unseen_principals"],
        },
        "next_steps": {
            "overrides": next_steps.overrides_block(
                [row["principal"] for row in enforceable], of=named.get("ready", 0)
            ),
            "listeners": sorted({each for row in enforceable for each in row["listeners"]}),
            "waves": next_steps.overrides_block(
                [row["principal"] for row in rollout if row["stage"] == Stage.READY],
                of=sum(row[Stage.READY] for row in funnel[-1:]),
            ),
            "exceptions": next_steps.exceptions(
                rollout, of=sum(row[each] for row in funnel[-1:] for each in Stage)
            ),
            "probe": next_steps.to_probe(principals),
            "upgrades": next_steps.upgrades(rows["upgrades"]),
            "missing_acls": next_steps.missing_acls(rows["denied_resources"]),
            "missing_acls_left_out": denied - len(rows["denied_resources"]),
            "libraries": next_steps.library_table(),
        },
    }


def _timeline(days: Sequence[tuple[int, str]]) -> dict[str, str]:
    """Return the verdict by date, in order; without days beyond the calendar."""
    dated = ((_day(day), state) for day, state in sorted(days))
    return {day: state for day, state in dated if day is not None}


def _observed(collected: Collected) -> dict[str, Any]:
    """Return the time that the events span and cover; null without events."""
    rows = collected.rows
    (span,) = rows["observed"]
    return {
        "connections": sum(row["connections"] for row in rows["clients_by_verdict"]),
        "from_ms": span["from_ms"],
        "to_ms": span["to_ms"],
        "covered_ms": span["covered_ms"],
        "minimum_ms": collected.min_observed_ms,
        "left_out_connections": span["left_out"],
    }


def _dated(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a row with these days as dates."""
    return row | {name: _day(row[name]) for name in names}


def projection(day_rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the day (since 1970) on which the trend reaches all clients, or null.

    The trend is a straight line through the shares of ready clients on those of the last
    `TREND_DAYS` days that saw enough clients (`ENOUGH_CLIENTS`). The day is null with fewer than
    three days or without a rising trend. If all clients of the last day were ready, it is that
    day.
    """
    recent = sorted(day_rows, key=itemgetter("day"))[-TREND_DAYS:]
    enough = ENOUGH_CLIENTS * max((row["clients"] for row in recent), default=0)
    recent = [row for row in recent if row["clients"] >= enough]
    if not recent:
        return dict.fromkeys(
            ("last_day", "clients", "ready_share", "share_per_day", "ready_day")
        ) | {"days": 0}
    days, shares = [row["day"] for row in recent], [row["ready_share"] for row in recent]
    last_day, share = days[-1], shares[-1]
    slope = None
    if len(recent) > 1:
        slope, intercept = linear_regression([day - last_day for day in days], shares)
    ready_day = None
    if share >= 1:
        ready_day = last_day
    elif slope is not None and len(recent) >= 3 and slope > 1e-6:
        # rounded, so that the last bit of a double cannot turn a whole number of days into one more
        ready_day = last_day + max(1, math.ceil(round((1 - intercept) / slope, 6)))
    return {
        "days": len(recent),
        "last_day": last_day,
        "clients": recent[-1]["clients"],
        "ready_share": share,
        "share_per_day": slope,
        "ready_day": ready_day,
    }


def _day(number: int | None) -> str | None:
    """Return the date of a day since 1970; None for None, and beyond the calendar."""
    try:
        return None if number is None else (_EPOCH + timedelta(days=number)).isoformat()
    except OverflowError:
        return None
