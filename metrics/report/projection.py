"""Projection of the trend: the day on which all clients are ready."""

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from statistics import linear_regression
from typing import Any

TREND_DAYS = 28
"""The number of days on which the projection is based."""

ENOUGH_CLIENTS = 0.5
"""Minimum number of clients on a day, as a share of those on the fullest day, for the day to count:
a day with fewer has only just begun, or is a holiday."""

Row = Mapping[str, Any]


def projection(day_rows: Sequence[Row]) -> dict[str, Any]:
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
