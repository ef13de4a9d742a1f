"""Which plot shows what: rows of the facts → SVG, or bars of HTML where names are long."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from metrics.period import MINUTE_MS
from metrics.report import svg
from metrics.report.words import VERDICT_WORDS, count, duration, moment, number, plain

Rows = Sequence[Mapping[str, Any]]

PRINCIPALS_SHOWN = 25
_WIDE, _NARROW = 796, 330
_ORDER = ("ready", "unproven", "not_capable", "failing", "unknown")


def legend(verdicts: Sequence[str] = _ORDER) -> str:
    """Name the colours."""
    parts = (f'<span><i class="{each}"></i>{VERDICT_WORDS[each]}</span>' for each in verdicts)
    return f'<div class="legend">{"".join(parts)}</div>'


def principal_bars(rows: Rows) -> str:
    """One bar per principal: its clients by verdict."""
    bars = []
    for row in rows[:PRINCIPALS_SHOWN]:
        parts = "".join(
            f'<i class="{each}" style="width:{100 * row[each] / row["clients"]:.2f}%"></i>'
            for each in reversed(_ORDER)
            if row[each]
        )
        bars.append(
            f'<span class="who" title="{plain(row["principal"])}">'
            f"{plain(row['principal'])}</span>"
            f'<span class="bar">{parts}</span><span class="soft">{number(row["clients"])}</span>'
        )
    more = len(rows) - PRINCIPALS_SHOWN
    rest = f'<p class="soft">and {number(more)} more, none of them worse.</p>' if more > 0 else ""
    return f'<div class="bars">{"".join(bars)}</div>{rest}'


def kills(rows: Rows) -> str:
    """Draw the connections that each lifetime would kill, and those it might."""
    if not any(row["killed_connections"] + row["unproven_connections"] for row in rows):
        return "<p>None of these lifetimes would have killed anything.</p>"
    columns = [
        svg.Column(
            label=duration(row["lifetime_ms"]),
            parts={"failing": row["killed_connections"], "unproven": row["unproven_connections"]},
            hint=f"{duration(row['lifetime_ms'])}: {number(row['killed_connections'])} killed, "
            f"{number(row['unproven_connections'])} unproven",
        )
        for row in rows
    ]
    key = (
        '<div class="legend"><span><i class="failing"></i>killed</span>'
        '<span><i class="unproven"></i>unproven</span></div>'
    )
    name = "Connections killed, by session lifetime"
    plot = _both(lambda width: svg.columns(name, columns, width=width))
    return _figure(key + plot, f"{name}.")


def session_lengths(rows: Rows, lifetimes: Rows) -> str:
    """Draw how long sessions were used, with the candidate lifetimes as marks."""
    if not rows:
        return ""
    by_class: dict[int, dict[str, float]] = {}
    for row in rows:
        by_class.setdefault(row["up_to_ms"], {})[row["standing"]] = row["connections"]
    bounds = [MINUTE_MS]
    longest = max(max(by_class), max((row["lifetime_ms"] for row in lifetimes), default=0))
    while bounds[-1] < longest:
        bounds.append(bounds[-1] * 2)
    columns = []
    for bound in bounds:
        given = by_class.get(bound, {})
        columns.append(
            svg.Column(
                label=f"≤ {_rounded(bound)}",
                parts={each: given.get(each, 0) for each in _ORDER},
                hint=f"up to {duration(bound)}: {count(sum(given.values()), 'connection')}",
            )
        )
    marks = [
        svg.Mark(at=_place(row["lifetime_ms"], bounds), label=duration(row["lifetime_ms"]))
        for row in lifetimes
        if row["lifetime_ms"] >= MINUTE_MS
    ]
    name = "Connections by the longest time that one of their sessions was used"
    plot = _both(lambda width: svg.columns(name, columns, width=width, marks=marks))
    return _figure(plot, f"{name}. Dashed: the candidate lifetimes.")


def storms(rows: Rows) -> str:
    """Draw the authentications per minute."""
    points = [(row["minute_ms"], row["authentications"]) for row in rows]
    first, last = rows[0]["minute_ms"], rows[-1]["minute_ms"]
    labels = [moment(first), moment(last)] if last > first else [moment(first)]
    gaps = [later[0] - sooner[0] for sooner, later in pairwise(points)]
    step = min(gaps, default=MINUTE_MS)
    name = "Authentications per minute"
    return _figure(
        _both(lambda width: svg.bars_over_time(name, points, labels, width=width, step=step)),
        f"{name}, UTC.",
    )


def trend(rows: Rows) -> str:
    """Draw the clients of each day by their state."""
    columns = [
        svg.Column(
            label=str(row["day"])[5:],
            parts={each: row.get(each, 0) for each in _ORDER},
            hint=f"{row['day']}: {number(row['ready'])} of {count(row['clients'], 'client')} ready",
        )
        for row in rows
    ]
    name = "Clients by day"
    return _figure(_both(lambda width: svg.columns(name, columns, width=width)), f"{name}.")


def _place(lifetime_ms: int, bounds: Sequence[int]) -> float:
    """Find where a lifetime lies among classes that double, in columns from the left."""
    for index, bound in enumerate(bounds):
        if lifetime_ms <= bound:
            floor = bound / 2
            return index + max(0.0, (lifetime_ms - floor) / (bound - floor))
    return float(len(bounds))


def _rounded(ms: int) -> str:
    minutes = ms / MINUTE_MS
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} d"


def _both(draw: Callable[[int], str]) -> str:
    return f'<div class="wide">{draw(_WIDE)}</div><div class="narrow">{draw(_NARROW)}</div>'


def _figure(plot: str, caption: str) -> str:
    return f"<figure>{plot}<figcaption>{caption}</figcaption></figure>"
