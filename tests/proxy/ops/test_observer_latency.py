"""What the observer makes of times: histograms by listener, API and mechanism."""

from metrics import registry
from metrics.metric import Metric
from metrics.snapshot import Labels
from metrics.tally import Tally
from proxy.wire.apis import FETCH, PRODUCE
from tests.support.observer import authenticated, observer_of
from tests.support.playbook import Playbook
from tests.support.sasl import NOW

LABELS = ("clients", "SCRAM-SHA-256")


class Observed:
    def __init__(self) -> None:
        self.tally = Tally(run="r", sessions=[LABELS])
        self.observer = observer_of(tally=self.tally)

    def log_in(self, latency: float, *, reauthentications: int) -> None:
        connection = Playbook().connection
        self.observer.opened(connection, NOW)
        session = authenticated(latency=latency, reauthentications=reauthentications)
        self.observer.authenticated(connection, session)

    def counted(self, metric: Metric) -> dict[Labels, tuple[int, float]]:
        """How many values a histogram has, and their sum."""
        series = self.tally.snapshot().histograms.get(metric.name, {})
        return {labels: (sum(one.counts), round(one.sum, 9)) for labels, one in series.items()}


def test_requests_are_told_apart_by_api_for_brokers_alone() -> None:
    seen = Observed()
    seen.observer.responded(PRODUCE, 0.25, 0.001)
    seen.observer.responded(FETCH, 0.5, 0.002)
    seen.observer.responded(FETCH, 0.25, 0.003)
    assert seen.counted(registry.BROKER_LATENCY) == {
        ("clients", "Produce"): (1, 0.25),
        ("clients", "Fetch"): (2, 0.75),
    }
    assert seen.counted(registry.PROXY_LATENCY) == {("clients",): (3, 0.006)}


def test_first_logins_and_renewed_ones_are_told_apart() -> None:
    seen = Observed()
    seen.log_in(0.5, reauthentications=0)
    seen.log_in(0.25, reauthentications=1)
    assert seen.counted(registry.AUTHENTICATION_LATENCY) == {LABELS: (1, 0.5)}
    assert seen.counted(registry.REAUTHENTICATION_LATENCY) == {LABELS: (1, 0.25)}


def test_connections_to_brokers() -> None:
    seen = Observed()
    seen.observer.connected(0.125)
    assert seen.counted(registry.UPSTREAM_CONNECT_TIME) == {("clients",): (1, 0.125)}
