"""The table as a transcript: views come in, changes come out."""

import pytest

from proxy.config.values import PortRange
from proxy.routing.brokers import BrokerChanges, BrokerTable, Gateway
from proxy.wire.metadata import BrokerAddress, ClusterView


def view(**brokers: int) -> ClusterView:
    """`view(b1=9092)`: broker 1 at port 9092."""
    return ClusterView(
        brokers={
            int(name[1:]): BrokerAddress(host="kafka", port=port) for name, port in brokers.items()
        },
        controller_id=1,
        cluster_id="c",
    )


def test_brokers_join_move_and_leave() -> None:
    table = BrokerTable(grace=300)
    assert table.apply(view(b1=1, b2=2), now=0) == BrokerChanges(joined=(1, 2))
    assert table.apply(view(b1=1, b2=2), now=5) == BrokerChanges()
    assert table.apply(view(b1=1, b2=3), now=10) == BrokerChanges(moved=(2,))
    assert table.apply(view(b1=1), now=15) == BrokerChanges()
    assert list(table.missing) == [2]
    assert table.apply(view(b1=1), now=314) == BrokerChanges()
    assert table.apply(view(b1=1), now=315) == BrokerChanges(left=(2,))
    assert list(table.brokers) == [1]
    assert table.apply(view(b1=1, b2=3), now=320) == BrokerChanges(joined=(2,))


def test_a_restarted_broker_never_left() -> None:
    """Its clients come back to the same port, which must not have been closed."""
    table = BrokerTable(grace=300)
    table.apply(view(b1=1, b2=2), now=0)
    table.apply(view(b1=1), now=10)
    assert table.apply(view(b1=1, b2=2), now=200) == BrokerChanges()
    table.apply(view(b1=1), now=400)
    assert table.apply(view(b1=1), now=600) == BrokerChanges(), "the grace time begins anew"


def test_a_broker_learned_from_a_response_is_forgotten_if_the_cluster_never_had_it() -> None:
    table = BrokerTable(grace=300)
    assert table.learn(7, "kafka", 7)
    assert not table.learn(7, "elsewhere", 8), "the cluster's view decides where it is"
    assert table.brokers[7].port == 7
    assert table.apply(view(b1=1), now=0) == BrokerChanges(joined=(1,))
    assert table.apply(view(b1=1), now=300) == BrokerChanges(left=(7,))


def test_a_gateway_shows_id_n_at_the_first_port_plus_n() -> None:
    news: list[tuple[int, str, int]] = []
    table = BrokerTable()
    table.apply(view(b1=1, b5=5), now=0)
    gateway = Gateway(table, "gate", PortRange(9100, 9105), lambda *what: news.append(what))
    assert gateway.resolve(1, "kafka", 1) == ("gate", 9101)
    assert gateway.resolve(5, "kafka", 5) == ("gate", 9105)
    assert not news
    assert gateway.resolve(2, "kafka", 2) == ("gate", 9102)
    assert gateway.resolve(1, "kafka", 99) == ("gate", 9101)
    assert news == [(2, "kafka", 2), (1, "kafka", 99)]


def test_an_id_outside_of_the_range_is_not_shown() -> None:
    """Nor is its real address: clients would go around the proxy."""
    news: list[tuple[int, str, int]] = []
    gateway = Gateway(BrokerTable(), "gate", PortRange(1, 3), lambda *what: news.append(what))
    assert gateway.resolve(3, "kafka", 9092) is None
    assert gateway.resolve(-1, "kafka", 9092) is None
    assert gateway.resolve(2**31 - 1, "kafka", 9092) is None
    assert not news, "what is not shown is not followed up either"


def test_a_broker_whose_port_cannot_be_listened_on_is_not_shown() -> None:
    """Clients would be sent to whatever program has it; news of the broker matter all the same."""
    gateway = Gateway(BrokerTable(), "gate", PortRange(1, 3), lambda *_: None)
    gateway.unopened[1] = "in use"
    assert gateway.resolve(1, "kafka", 9092) is None
    assert gateway.resolve(2, "kafka", 9092) == ("gate", 3)
    gateway.without_port = 4
    assert gateway.not_shown == 5


@pytest.mark.parametrize(
    ("host", "port"), [("", 1), ("kafka", 0), ("kafka", 65_536), ("a\nforged", 1), ("a..b", 1)]
)
def test_what_a_response_says_is_no_news_if_nobody_can_be_there(host: str, port: int) -> None:
    """It would be dialled, and stand in the log; the cluster's own view is judged likewise."""
    news: list[tuple[int, str, int]] = []
    table = BrokerTable()
    table.apply(view(b1=1), now=0)
    gateway = Gateway(table, "gate", PortRange(9100, 9105), lambda *what: news.append(what))
    assert gateway.resolve(1, host, port) == ("gate", 9101)
    assert gateway.resolve(2, host, port) == ("gate", 9102)
    assert not news
