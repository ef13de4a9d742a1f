"""The day on which all clients will be ready."""

import pytest

from metrics.report.facts import projection


@pytest.mark.parametrize(
    ("shares", "ready_day"),
    [
        ([], None),
        ([0.5, 0.6], None),
        ([0.5, 0.5, 0.5], None),
        ([0.9, 0.8, 0.7], None),
        ([0.5, 0.6, 0.7], 105),
        ([0.2, 0.9, 0.4, 0.7, 0.6], 110),  # slope 0.06 through the mean of 0.56 on day 102
        ([0.2, 1.0], 101),
    ],
)
def test_the_trend_is_a_line_through_the_days(shares: list[float], ready_day: int | None) -> None:
    given = [
        {"day": 100 + number, "clients": 10, "ready_share": share}
        for number, share in enumerate(shares)
    ]
    assert projection(given)["ready_day"] == ready_day


def test_a_day_that_saw_few_clients_does_not_speak_for_all() -> None:
    """The last one has just begun, and the one client that it saw was ready."""
    given = [(100, 60, 0.5), (101, 58, 0.6), (102, 4, 1.0), (103, 60, 0.8), (104, 1, 1.0)]
    rows = [dict(zip(("day", "clients", "ready_share"), each, strict=True)) for each in given]
    found = projection(rows)
    assert (found["days"], found["last_day"], found["clients"]) == (3, 103, 60)
    assert (found["ready_share"], found["ready_day"]) == (0.8, 105)


def test_half_of_the_clients_are_enough_to_speak_of_a_day() -> None:
    given = [{"day": 100, "clients": 60, "ready_share": 0.5}]
    given.append({"day": 101, "clients": 30, "ready_share": 1.0})
    assert projection(given)["ready_day"] == 101
