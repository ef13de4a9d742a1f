"""Rates of the last ten minutes: of one worker, and of all."""

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.ops.status import snapshot
from proxy.ops.status.page import render
from proxy.ops.status.recent import CounterHistory
from proxy.ops.status.session_facts import EVERY_SESSION
from proxy.ops.status.snapshot import About, WorkerFacts
from proxy.ops.status.text import rate
from tests.support.status import ABOUT, overview, recent


def counted(requests: int, kills: int = 0) -> Snapshot:
    """Of two listeners."""
    found = Snapshot()
    found.count(registry.REQUESTS, requests, "a", "Produce")
    found.count(registry.REQUESTS, requests, "b", "Fetch")
    found.count(registry.EXPIRED_CONNECTIONS_KILLED, kills, "a", "SCRAM-SHA-256")
    return found


def test_what_was_counted_since_a_start() -> None:
    history = CounterHistory(1_000.0)
    since = history.since(counted(30, kills=2), 1_090.0)
    assert since.seconds == 90.0
    assert (since.counts["requests"], since.counts["kills"]) == (60, 2)
    assert since.counts["logins"] == 0


def test_what_is_older_than_ten_minutes_is_forgotten() -> None:
    history = CounterHistory(0.0)
    for minute in range(1, 31):
        history.remember(counted(100 * minute), 60.0 * minute)
    since = history.since(counted(3_050), 1_830.0)
    assert since.seconds == 630.0
    assert since.counts["requests"] == 2 * (3_050 - 2_000)


def test_workers_are_added_up() -> None:
    """Also where one has just been started, or does not answer."""
    seen = overview(
        worker0=WorkerFacts(recent=recent(600.0, requests=6_000, kills=6)),
        worker1=WorkerFacts(recent=recent(60.0, requests=300)),
        worker2=WorkerFacts(reasons=["no answer"]),
    )
    rates = snapshot.rates(seen)
    assert rates.seconds == 600.0
    assert rates.per_second["requests"] == 15.0
    assert rates.per_second["kills"] == 0.01


@pytest.mark.parametrize(
    ("per_second", "shown"),
    [(0, "0 /s"), (0.01, "0.6 /min"), (0.5, "30 /min"), (1.55, "1.6 /s"), (12_345.6, "12,346 /s")],
)
def test_rates_are_shown_by_second_or_minute(per_second: float, shown: str) -> None:
    assert rate(per_second) == shown


def test_runbooks_and_report_are_links_where_they_have_an_address() -> None:
    where = About(
        version="1",
        build="interpreted",
        host="h",
        runbooks_url="https://docs.test/runbooks/",
        report_url='https://docs.test/?a=1&b="',
    )
    linked = render(overview(), EVERY_SESSION, where)
    assert '<a href="https://docs.test/runbooks/">runbooks</a>' in linked
    assert '<a href="https://docs.test/?a=1&amp;b=&quot;">' in linked
    named = render(overview(), EVERY_SESSION, ABOUT)
    assert "runbooks: docs/runbooks.md" in named
    assert "docs.test" not in named
