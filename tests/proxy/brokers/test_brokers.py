"""The table as a transcript: views come in, changes come out."""

import pytest

from proxy.brokers.gateway import BrokerChanges, BrokerTable, Gateway
from proxy.config.values import PortMap, PortRange
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
    assert [broker_id for broker_id, *_ in news] == [3, 2**31 - 1]
    assert gateway.hide(3)
    assert not gateway.hide(2)
    assert gateway.resolve(3, "kafka", 9092) is None
    assert len(news) == 2, "it is reported once"


@pytest.mark.parametrize(
    ("ports", "ids", "fitting"),
    [
        (PortRange(9100, 9199), [1001, 1003], "9100-10103"),
        (PortRange(9100, 9199), [56_435], "9100-65535"),
        (PortRange(9100, 9199), [56_436, 56_437], "a map such as {56436: 9100}"),
        (PortMap({1001: 9101, 1002: 9102}), [1003], "a map with their ids"),
    ],
)
def test_brokers_without_a_port_are_counted_and_a_fitting_range_is_named(
    ports: PortRange | PortMap, ids: list[int], fitting: str
) -> None:
    gateway = Gateway(BrokerTable(), "gate", ports, lambda *_: None)
    assert gateway.why_none_is_shown is None
    assert all(gateway.hide(broker_id) for broker_id in ids)
    assert gateway.not_shown == len(ids)
    names = ", ".join(map(str, ids))
    assert gateway.why_none_is_shown == (
        f"no port in broker.ports, {ports}, for broker {names} ({len(ids)} in all):"
        f" {fitting} would fit"
    )


def test_a_gateway_shows_some_broker_if_it_can() -> None:
    table = BrokerTable()
    gateway = Gateway(table, "gate", PortMap({7: 9107, 1001: 9101}), lambda *_: None)
    gateway.unopened[5] = "in use"  # of a broker that nobody knows
    gateway.hide(9)
    table.apply(view(b7=1), now=0)
    assert (gateway.why_none_is_shown, gateway.not_shown) == (None, 1)
    assert gateway.resolve(7, "kafka", 1) == ("gate", 9107)
    gateway.unopened[7] = "in use"
    assert (gateway.why_none_is_shown, gateway.not_shown) == ("in use", 2)


def test_a_gateway_without_any_port_is_not_ready_before_a_broker_is_known() -> None:
    gateway = Gateway(BrokerTable(), "gate", PortRange(9100, 9101), lambda *_: None)
    gateway.unopened[0] = "in use"
    assert gateway.why_none_is_shown is None
    gateway.unopened[1] = "in use, too"
    assert gateway.why_none_is_shown == "in use"


def test_a_broker_whose_port_cannot_be_listened_on_is_not_shown() -> None:
    """Clients would be sent to whatever program has it; news of the broker matter all the same."""
    table = BrokerTable()
    gateway = Gateway(table, "gate", PortRange(1, 3), lambda *_: None)
    gateway.unopened[1] = "in use"
    assert gateway.resolve(1, "kafka", 9092) is None
    assert gateway.resolve(2, "kafka", 9092) == ("gate", 3)
    assert gateway.not_shown == 0, "no such broker is known"
    table.apply(view(b1=1), now=0)
    gateway.without_port = {4, 5, 6, 7}
    assert gateway.not_shown == 5


@pytest.mark.parametrize(
    ("host", "port"), [("", 1), ("kafka", 0), ("kafka", 65_536), ("a\nforged", 1), ("a..b", 1)]
)
def test_what_a_response_says_is_no_news_if_nobody_can_be_there(host: str, port: int) -> None:
    """It would be dialled and logged; the cluster's own view is judged likewise."""
    news: list[tuple[int, str, int]] = []
    table = BrokerTable()
    table.apply(view(b1=1), now=0)
    gateway = Gateway(table, "gate", PortRange(9100, 9105), lambda *what: news.append(what))
    assert gateway.resolve(1, host, port) == ("gate", 9101)
    assert gateway.resolve(2, host, port) == ("gate", 9102)
    assert not news
