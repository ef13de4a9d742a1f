"""State of the delivery for the status page."""

import pytest

from metrics.delivery.deliverer import Waiting
from proxy.delivery.counts import DeliveryCounts

WALL = 1_780_272_000.0


WAITS = Waiting(2048, WALL - 5)


@pytest.mark.parametrize(
    ("success_at", "failures", "waiting", "state", "good"),
    [
        (None, 0, Waiting(), "nothing delivered yet", True),
        (None, 1, WAITS, "nothing delivered yet; 2.0 KiB wait, the oldest for 5 s", False),
        (WALL - 2, 9, Waiting(), "all delivered 2 s ago", True),
        (WALL - 2, 0, WAITS, "all delivered 2 s ago; 2.0 KiB wait, the oldest for 5 s", True),
        (WALL - 119, 1, Waiting(), "all delivered 1 min 59 s ago", True),
        (WALL - 120, 1, Waiting(10, None), "all delivered 2 min ago; 10 B wait", False),
        (WALL + 60, 0, Waiting(), "all delivered 0 s ago", True),
    ],
)
def test_what_the_status_page_says(
    success_at: float | None, failures: int, waiting: Waiting, state: str, *, good: bool
) -> None:
    """A clock that was set back makes no time negative."""
    counts = DeliveryCounts()
    for _ in range(failures):
        counts.failed()
    if success_at is not None:
        counts.succeeded(success_at)
    counts.set_waiting(waiting)
    condition = counts.condition("kafka:session-events", WALL)
    assert condition == ("delivery", "kafka:session-events", state, good)
