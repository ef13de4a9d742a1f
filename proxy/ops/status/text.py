"""Formats of numbers and times for people."""

from datetime import UTC, datetime
from typing import Final

from metrics.report.formats import two_units

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def duration(seconds: float | None) -> str:
    """Return a time span in its two largest units; None is a dash."""
    if seconds is None:
        return "-"
    sign, whole = ("-" if seconds < 0 else ""), round(abs(seconds))
    return sign + two_units(whole)


def ago(then_ms: int, now_ms: int) -> str:
    """Return how long ago a moment was; both are epoch milliseconds."""
    return f"{duration(max(0, now_ms - then_ms) / 1000)} ago"


def moment(epoch_ms: int) -> str:
    """Return a moment in UTC."""
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def size(count: int) -> str:
    """Return a number of bytes in three digits."""
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    if unit == 0:
        return f"{count} B"
    return f"{value:.{1 if value < 9.95 else 0}f} {_UNITS[unit]}"


def rate(per_second: float) -> str:
    """Return a rate by second, or by minute where that is the number to imagine."""
    if per_second >= 1 or not per_second:
        return f"{per_second:,.0f} /s" if per_second >= 10 else f"{per_second:.2g} /s"
    return f"{60 * per_second:.2g} /min"
