"""What a flood of failed logins may take of the event log."""

import pytest

from metrics.history import BURST_BYTES, BYTES_PER_SECOND, SessionHistory, UnauthenticatedEventLimit
from tests.support.metrics import history

LINE = "x" * 512
DAY = 86_400


def unauthenticated() -> SessionHistory:
    return history().history


def test_all_lines_of_a_connection_are_written_or_none() -> None:
    """Else a reader would miss a line by its number, or wait for the end of a connection."""
    event_limit = UnauthenticatedEventLimit(workers=1)
    first, last = unauthenticated(), unauthenticated()
    assert event_limit.allows(first, [LINE], now=0)
    while event_limit.allows(unauthenticated(), [LINE], now=0):
        pass
    assert not event_limit.allows(last, [LINE], now=0)
    assert event_limit.dropped == 2
    assert event_limit.allows(first, [LINE], now=0), "this was decided at its first line"
    assert not event_limit.allows(last, [LINE, LINE], now=DAY), "and so was this"
    assert event_limit.dropped == 4


def test_a_flood_takes_its_share_and_no_more() -> None:
    """As many a second as suffice to use all of it up, for hours."""
    workers, written, seconds = 4, 0, 10_000
    event_limit = [UnauthenticatedEventLimit(workers=workers) for _ in range(workers)]
    for number in range(seconds * workers * 2):
        one = event_limit[number % workers]
        written += len(LINE) * one.allows(unauthenticated(), [LINE], now=number / workers / 2)
    most = seconds * BYTES_PER_SECOND + workers * (BURST_BYTES + len(LINE))
    assert 0.9 * most < written <= most


@pytest.mark.parametrize("workers", [1, 16])
def test_what_was_not_used_is_for_later_within_bounds(workers: int) -> None:
    """A fleet that comes with a bad secret after quiet years is written by the thousand."""
    event_limit = UnauthenticatedEventLimit(workers=workers)

    def told_at(now: float) -> int:
        count = 0
        while event_limit.allows(unauthenticated(), [LINE], now):
            count += 1
        return count

    at_once = BURST_BYTES // len(LINE)
    assert told_at(1_000 * DAY) == at_once
    assert told_at(1_000 * DAY) == 0
    in_a_minute = 60 * BYTES_PER_SECOND / workers / len(LINE)
    assert told_at(1_000 * DAY + 60) == pytest.approx(in_a_minute, abs=1)
    assert told_at(2_000 * DAY) == at_once
