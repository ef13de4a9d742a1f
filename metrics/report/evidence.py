"""Evidence for a verdict, as a sentence."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from metrics.report.formats import count, duration, number
from metrics.report.verdicts import Verdict

Row = Mapping[str, Any]


def evidence(row: Row) -> str:
    """Write the evidence for the verdict on a client, with the days of failures and readiness."""
    match row["verdict"]:
        case Verdict.FAILING:
            parts = [*_failures(row), _hasty(row), _renewals(row, "{} succeeded")]
        case Verdict.NOT_CAPABLE:
            parts = [_incapable(row)]
        case Verdict.READY:
            parts = _ready(row)
        case Verdict.UNPROVEN:
            never = "speaks v1 or later, was never given a lifetime"
            given = "was given a lifetime, but never stayed to its end"
            parts = [given if row["announced_ms"] else never]
        case _ if row["principal"] is not None:
            parts = [
                "a session was used past its end, or its lifetime is not in the log, and an older"
                " version of the proxy did not record on which days"
            ]
        case _ if row["login_failures"]:
            parts = [f"{count(row['login_failures'], 'login')} failed, none succeeded"]
        case _:
            parts = ["never logged in"]
    return ", ".join(part for part in parts if part)


def day_name(day: int) -> str:
    """Write a day since 1970, such as 14 Nov 2026; beyond the calendar, its number."""
    try:
        given = date(1970, 1, 1) + timedelta(days=day)
    except OverflowError:
        return f"day {day}"
    return f"{given.day} {given:%b %Y}"


def _failures(row: Row) -> list[str]:
    kills = row["killed"] + row["would_be_kills"]
    late = row["past_end_ms"]
    times = "once" if kills == 1 else f"{number(kills)} times"
    by = f" by up to {duration(late)}" if late is not None and late > 0 else ""
    parts = []
    if kills:
        parts.append(f"used {times} past the end of a session{by}")
    if row["throttled_ms"] is not None:
        parts.append(
            f"throttled for {duration(row['throttled_ms'])} beyond the end of a session, by the"
            f" quota {row['throttled_by']}"
        )
    if row["reauth_failures"]:
        refused = row["reauth_refusals"]
        of_them = f", {number(refused)} of them refused as too early (error 34)" if refused else ""
        parts.append(f"{count(row['reauth_failures'], 're-authentication')} failed{of_them}")
    if parts and row["failed_on"] is not None:
        parts[-1] += f", last on {day_name(row['failed_on'])}"
    return parts


def _ready(row: Row) -> list[str]:
    if row["hasty_ms"] is not None:
        return [f"ready from {duration(row['ready_from_ms'])}", _hasty(row), *_failures(row)]
    if row["failed_on"] is None:
        again = row["reauthentications"]
        return [
            f"re-authenticated {'once' if again == 1 else f'{number(again)} times'}, always in time"
        ]
    since = "" if row["ready_since"] is None else f" since {day_name(row['ready_since'])}"
    return [f"ready{since}", _renewals(row, "{} in all"), *_failures(row)]


def _hasty(row: Row) -> str:
    if row["hasty_ms"] is None:
        return ""
    return (
        f"with lifetimes up to {duration(row['hasty_ms'])} it re-authenticates within a second of"
        " the last time, which brokers refuse"
    )


def _renewals(row: Row, text: str) -> str:
    again = row["reauthentications"]
    return text.format(count(again, "re-authentication")) if again else ""


def _incapable(row: Row) -> str:
    raw, old, of = row["raw_token_connections"], row["not_capable_connections"], row["connections"]
    if raw:
        return f"raw SASL tokens (SaslHandshake v0) on {number(raw)} of {count(of, 'connection')}"
    return f"SaslAuthenticate v0 on {number(old)} of {count(of, 'connection')}"
