"""Plots of the page: rows of the facts as SVG, or as HTML bars where names are long."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import pairwise, zip_longest
from operator import itemgetter
from typing import Any

from metrics.period import MINUTE_MS
from metrics.report import svg
from metrics.report.formats import (
    SHORT,
    by_verdict,
    count,
    duration,
    is_judged,
    moment,
    name_of,
    number,
    span,
)
from metrics.report.verdicts import VERDICT_LABELS, WORST_FIRST, Verdict

Rows = Sequence[Mapping[str, Any]]

PRINCIPALS_SHOWN = 15
_WIDE, _NARROW = 796, 330
_FOUND = {
    "failing": "killed_connections",
    "unproven": "unproven_connections",
    "unknown": "cut_short_connections",
}
"""The column with a number of connections, by the verdict whose colour it is drawn in."""
_GAP_SHOWN = 14
"""Maximum number of days without events that are drawn between two days with events."""
_MAX_DESCRIBED = 40
"""Maximum number of columns that are described for screen readers; the latest ones are."""


def legend(verdicts: Iterable[str]) -> str:
    """Write a legend of the occurring verdicts."""
    occurring = set(verdicts)
    return _key({each: VERDICT_LABELS[each] for each in Verdict if each in occurring})


def principal_bars(rows: Rows, total: int) -> str:
    """Write a bar per principal, in proportion to its clients, below a legend.

    `rows` are the worst of `total` principals, the worst first.
    """
    bars = []
    most = max((row["clients"] for row in rows[:PRINCIPALS_SHOWN]), default=1)
    for row in rows[:PRINCIPALS_SHOWN]:
        parts = "".join(
            f'<i class="{each}" style="width:{100 * row[each] / most:.2f}%"></i>'
            for each in WORST_FIRST
            if row[each]
        )
        bars.append(
            f'<li><span class="who">{name_of(row["principal"], SHORT)}</span>'
            f'<span class="bar">{parts}</span><span class="soft">{by_verdict(row)}</span></li>'
        )
    more = total - len(bars)
    rest = f'<p class="soft">and {number(more)} more, not worse.</p>' if more > 0 else ""
    key = legend(each for row in rows for each in VERDICT_LABELS if row[each])
    return f'{key}<ul class="bars">{"".join(bars)}</ul>{rest}'


def kills(rows: Rows, *, missing: bool) -> str:
    """Draw the connections that each lifetime would or might kill; `missing`: events are."""
    judged = [row for row in rows if is_judged(row)]
    if not judged:
        observed = duration(rows[0]["observed_ms"])
        return f"<p>Events cover only {observed}, too little to judge these lifetimes.</p>"
    if not any(row[name] for row in judged for name in _FOUND.values()):
        first, last = (duration(judged[at]["lifetime_ms"]) for at in (0, -1))
        which = f"lifetimes from {first} to {last}" if last != first else f"a lifetime of {first}"
        if missing:
            return f"<p>Kills by {which} are unknown: events are missing.</p>"
        return f"<p>No connection would have been killed by {which}.</p>"
    columns = [
        svg.Column(
            label=duration(row["lifetime_ms"]),
            parts={colour: row[name] for colour, name in _FOUND.items()},
            hint=f"{duration(row['lifetime_ms'])}: {number(row['killed_connections'])} killed, "
            f"{number(row['unproven_connections'])} unproven, "
            f"{number(row['cut_short_connections'])} cut short",
        )
        for row in judged
    ]
    words = {"failing": "killed", "unproven": "unproven", "unknown": "cut short"}
    occurring = {name for each in columns for name, amount in each.parts.items() if amount}
    key = _key({name: word for name, word in words.items() if name in occurring})
    return _columns("Connections killed, by session lifetime", columns, key=key)


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
        given: dict[str, float] = {each: by_class.get(bound, {}).get(each, 0) for each in Verdict}
        counts = f" ({by_verdict(given)})" if any(given.values()) else ""
        columns.append(
            svg.Column(
                label=f"≤ {_rounded(bound)}",
                parts=given,
                hint=f"up to {duration(bound)}: {count(sum(given.values()), 'connection')}{counts}",
            )
        )
    marks = [
        (_place(row["lifetime_ms"], bounds), duration(row["lifetime_ms"])) for row in lifetimes
    ]
    return _columns(
        "Connections by the longest time that one of their sessions was used",
        columns,
        key=legend(row["standing"] for row in rows),
        marks=marks,
        caption=" Dashed: the candidate lifetimes. Colours: what the connection showed; one that "
        "received no lifetime, or did not stay to its end, counts as ready if its client is.",
    )


def storms(rows: Rows) -> str:
    """Draw the authentications per minute."""
    points = [(row["minute_ms"], row["authentications"]) for row in rows]
    first, last = rows[0]["minute_ms"], rows[-1]["minute_ms"]
    gaps = [later[0] - sooner[0] for sooner, later in pairwise(points)]
    step = min(gaps, default=MINUTE_MS)
    busiest = max(rows, key=itemgetter("authentications"))
    name = "Authentications per minute, UTC"
    text = (
        f"{name}: {span(first, last)}; "
        f"at most {number(busiest['authentications'])}, at {moment(busiest['minute_ms'])}"
    )
    labels = (moment(first), moment(last))
    return _figure(
        _both(lambda width: svg.bars_over_time(text, points, labels, width=width, step=step)),
        f"{name}.",
    )


def trend(rows: Rows) -> str:
    """Draw the clients of each day by state, including days without events."""
    columns = []
    for row in _each_day(rows):
        ready = f"{number(row['ready'])} of {count(row['clients'], 'client')} ready"
        columns.append(
            svg.Column(
                label=str(row["day"])[5:],
                parts={each: row.get(each, 0) for each in Verdict},
                hint=f"{row['day']}: {ready if row['clients'] else 'no events'}",
            )
        )
    seen = (each for row in rows for each in Verdict if row.get(each, 0))
    return _columns("Clients by day", columns, key=legend(seen))


def _each_day(rows: Rows) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, and up to `_GAP_SHOWN` empty rows for days between them."""
    for row, after in zip_longest(rows, rows[1:]):
        yield row
        if after is None or row["day"] is None or after["day"] is None:
            continue
        day, end = date.fromisoformat(row["day"]), date.fromisoformat(after["day"])
        for number_of_days in range(1, min((end - day).days, _GAP_SHOWN + 1)):
            yield {"day": str(day + timedelta(number_of_days)), "clients": 0, "ready": 0}


def _place(lifetime_ms: int, bounds: Sequence[int]) -> float:
    """Return the position of a lifetime among classes that double, in columns from the left."""
    for index, bound in enumerate(bounds):
        if lifetime_ms <= bound:
            floor = bounds[index - 1] if index else 0
            return index + (lifetime_ms - floor) / (bound - floor)
    return float(len(bounds))


def _rounded(ms: int) -> str:
    minutes = ms / MINUTE_MS
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} d"


def _key(words: Mapping[str, str]) -> str:
    parts = (f'<span><i class="{each}"></i>{text}</span>' for each, text in words.items())
    return f'<div class="legend">{"".join(parts)}</div>'


def _columns(
    name: str,
    columns: Sequence[svg.Column],
    *,
    key: str,
    marks: Sequence[svg.Mark] = (),
    caption: str = "",
) -> str:
    description = f"{name}. {'; '.join(each.hint for each in columns[-_MAX_DESCRIBED:])}."
    plot = _both(lambda width: svg.columns(description, columns, width=width, marks=marks))
    return _figure(key + plot, f"{name}.{caption}")


def _both(draw: Callable[[int], str]) -> str:
    return f'<div class="wide">{draw(_WIDE)}</div><div class="narrow">{draw(_NARROW)}</div>'


def _figure(plot: str, caption: str) -> str:
    return f"<figure>{plot}<figcaption>{caption}</figcaption></figure>"
