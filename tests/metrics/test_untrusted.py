"""What a flood of failed logins may take of the event log."""

import pytest

from metrics.history import SessionHistory
from metrics.strangers import BURST_BYTES, BYTES_PER_SECOND, Strangers
from tests.metrics.given import history

LINE = "x" * 512
DAY = 86_400


def stranger() -> SessionHistory:
    return history().history


def test_a_stranger_is_told_of_whole_or_not_at_all() -> None:
    """Else a reader would miss a line by its number, or wait for the end of a connection."""
    strangers = Strangers(workers=1)
    first, last = stranger(), stranger()
    assert strangers.are_told(first, [LINE], now=0)
    while strangers.are_told(stranger(), [LINE], now=0):
        pass
    assert not strangers.are_told(last, [LINE], now=0)
    assert strangers.left_out == 2
    assert strangers.are_told(first, [LINE], now=0), "told of it was decided before"
    assert not strangers.are_told(last, [LINE, LINE], now=DAY), "and so is not told of"
    assert strangers.left_out == 4


def test_a_flood_takes_its_share_and_no_more() -> None:
    """As many a second as suffice to use all of it up, for hours."""
    workers, written, seconds = 4, 0, 10_000
    strangers = [Strangers(workers=workers) for _ in range(workers)]
    for number in range(seconds * workers * 2):
        one = strangers[number % workers]
        written += len(LINE) * one.are_told(stranger(), [LINE], now=number / workers / 2)
    most = seconds * BYTES_PER_SECOND + workers * (BURST_BYTES + len(LINE))
    assert 0.9 * most < written <= most


@pytest.mark.parametrize("workers", [1, 16])
def test_what_was_not_used_is_for_later_within_bounds(workers: int) -> None:
    """A fleet that comes with a bad secret after quiet years is told of by the thousand."""
    strangers = Strangers(workers=workers)

    def told_at(now: float) -> int:
        count = 0
        while strangers.are_told(stranger(), [LINE], now):
            count += 1
        return count

    at_once = BURST_BYTES // len(LINE)
    assert told_at(1_000 * DAY) == at_once
    assert told_at(1_000 * DAY) == 0
    in_a_minute = 60 * BYTES_PER_SECOND / workers / len(LINE)
    assert told_at(1_000 * DAY + 60) == pytest.approx(in_a_minute, abs=1)
    assert told_at(2_000 * DAY) == at_once
