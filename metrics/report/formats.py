"""Formats of numbers, times and names on the page; text that clients chose is escaped."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from metrics.events import MAX_TEXT_CHARS
from metrics.report.verdicts import VERDICT_LABELS, WORST_FIRST, Verdict

SHORT = 60
"""Maximum length in characters of a name in a list."""

ABSENT = "\N{EN DASH}"
"""The text for a value that is missing."""

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def visible(text: str) -> str:
    """Escape invisible characters, those that reorder text, and those that control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def plain(text: object) -> str:
    """Escape for HTML, with invisible characters made visible."""
    return escape(visible(str(text)))


def name_of(text: str | None, longest: int = MAX_TEXT_CHARS) -> str:
    """Write a name that may be missing; right-to-left text does not affect its surroundings.

    A name longer than `longest` is truncated: a forged log could contain one that fills the page.
    """
    if text is None:
        return '<span class="none">unknown</span>'
    shown = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return f"<bdi>{plain(shown)}</bdi>"


def by_verdict(row: Mapping[str, Any], verdicts: Sequence[str] = WORST_FIRST) -> str:
    """Write the number of clients with each verdict, the worst first."""
    return " · ".join(
        f"{number(row[each])} {VERDICT_LABELS[each]}" for each in verdicts if row[each]
    )


def logged_in(facts: Mapping[str, Any]) -> dict[str, int]:
    """Count clients by verdict, without those that never logged in: nothing is known of them."""
    counts = dict(facts["clients_by_verdict"])
    counts[Verdict.UNKNOWN] -= facts["never_logged_in"]
    return counts


def is_observed(facts: Mapping[str, Any]) -> bool:
    """Return True if events cover the time that is required before sessions are enforced."""
    covered_ms: int = facts["observed"]["covered_ms"] or 0
    return bool(covered_ms >= facts["observed"]["minimum_ms"])


def duration(ms: float | None) -> str:
    """Write a duration in its two largest units."""
    if ms is None:
        return ABSENT
    return f"{ms:.0f} ms" if ms < 1000 else two_units(int(ms / 1000))


def two_units(seconds: int) -> str:
    """Write whole seconds in their two largest units."""
    parts: list[tuple[int, str]] = []
    for unit, size in _UNITS:
        amount, seconds = divmod(seconds, size)
        if amount or parts:
            parts.append((amount, unit))
    return " ".join(f"{amount} {unit}" for amount, unit in parts[:2] if amount) or "0 s"


def moment(ms: int | None) -> str:
    """Write a time to the minute, UTC."""
    if ms is None:
        return ABSENT
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "beyond the calendar"


def span(from_ms: int | None, to_ms: int | None) -> str:
    """Write a range of times, with the day only once if it is the same."""
    begin, end = moment(from_ms), moment(to_ms)
    if begin == end:
        return begin
    return f"{begin} to {end[11:] if begin[:10] == end[:10] else end}"


def number(value: float | None) -> str:
    """Write a count with commas, or a rate to two digits."""
    if value is None:
        return ABSENT
    if value == int(value) or value >= 10:
        return f"{value:,.0f}"
    return f"{value:.2g}"


def rate(value: float | None) -> str:
    """Write a rate per day; a small one must not look like zero."""
    return "&lt; 0.1" if value is not None and 0 < value < 0.1 else number(value)


def share(percent: float | None) -> str:
    """Write a percentage; a small one without its digits."""
    if percent is None:
        return ABSENT
    return "&lt; 0.1 %" if 0 < percent < 0.1 else f"{number(percent)} %"


def milliseconds(us: float | None) -> str:
    """Write microseconds as milliseconds."""
    return ABSENT if us is None else f"{us / 1000:.3g} ms"


def count(amount: float, one: str, many: str | None = None) -> str:
    """Write an amount with its noun: 1 client, 2 clients."""
    return f"{number(amount)} {one if amount == 1 else many or one + 's'}"


def is_judged(row: Mapping[str, Any]) -> bool:
    """Return True if this row of the what-if is conclusive: the log covers enough time."""
    return row["killed_connections"] is not None


def is_harmless(row: Mapping[str, Any]) -> bool:
    """Return True if this lifetime kills no connection that is known to break."""
    return is_judged(row) and not (row["killed_connections"] or row["cut_short_connections"])


def unanimous(clients: int) -> str:
    """Write that something holds for all clients."""
    return "The one client is" if clients == 1 else f"All {number(clients)} clients are"


def kills_a_day(row: Mapping[str, Any], *, missing: bool) -> str:
    """Write a lifetime's kills per day as a range, or as a lower bound if events are missing."""
    least, most = row["kills_per_day_least"], row["kills_per_day_most"]
    if least is None or most is None:
        return ABSENT
    low, high = rate(least), rate(most)
    if missing:
        return f"at least {low}"
    return low if low == high else f"{low} to {high}"
