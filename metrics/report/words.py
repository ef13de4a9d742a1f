"""Numbers, times and names as the page writes them; everything a stranger chose is made plain."""

from datetime import UTC, datetime
from html import escape

VERDICT_WORDS = {
    "ready": "ready",
    "unproven": "capable, unproven",
    "not_capable": "not capable",
    "failing": "failing",
    "unknown": "unknown",
}

VERDICT_MEANING = {
    "ready": "has re-authenticated, always in time",
    "unproven": "speaks SaslAuthenticate v1 or later; nobody has seen it re-authenticate",
    "not_capable": "SaslAuthenticate v0 or raw tokens: cannot be told a lifetime",
    "failing": "was given a lifetime and was, or would have been, killed, or failed",
    "unknown": "never logged in",
}

ABSENT = "\N{EN DASH}"
"""Stands for a value that is not there."""

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


def plain(text: object) -> str:
    """Escape for HTML, with what would not be seen, or would reorder text, made visible."""
    seen = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return escape(seen)


def name_of(text: str | None) -> str:
    """Give a name that may be missing."""
    return '<span class="none">none</span>' if text is None else plain(text)


def duration(ms: float | None) -> str:
    """Write a duration in its two largest units."""
    if ms is None:
        return ABSENT
    if ms < 1000:
        return f"{ms:.0f} ms"
    for index, (unit, size) in enumerate(_UNITS):
        if ms >= size:
            whole, rest = divmod(ms, size)
            text = f"{whole:.0f} {unit}"
            if index + 1 < len(_UNITS):
                smaller, smaller_size = _UNITS[index + 1]
                if rest >= smaller_size and whole < 100:
                    text += f" {rest // smaller_size:.0f} {smaller}"
            return text
    raise AssertionError("a second or more has a unit")


def moment(ms: int | None) -> str:
    """Write a time to the minute, UTC."""
    if ms is None:
        return ABSENT
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M}"
    except (OverflowError, ValueError, OSError):
        return "beyond the calendar"


def number(value: float | None) -> str:
    """Write a count with thin spaces, or a rate with one digit that counts."""
    if value is None:
        return ABSENT
    if value == int(value) or value >= 100:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.2g}"


def milliseconds(us: float | None) -> str:
    """Write microseconds as milliseconds."""
    return ABSENT if us is None else f"{us / 1000:.3g} ms"


def count(amount: float, one: str, many: str | None = None) -> str:
    """Write an amount with its noun: 1 client, 2 clients."""
    return f"{number(amount)} {one if amount == 1 else many or one + 's'}"
