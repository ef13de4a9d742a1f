"""Discovery against brokers over real TCP; rounds are run by hand, with a clock of the test's."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from proxy.brokers.access import Access, PasswordIdentity
from proxy.brokers.broker_view import BrokerView
from proxy.brokers.discovery import (
    MAX_AFTER_REFUSAL,
    MAX_BACKOFF,
    VERSIONS_MAX_AGE,
    ClusterDiscovery,
    DiscoveredBroker,
    SidecarDiscovery,
)
from proxy.brokers.gateway import BrokerTable
from proxy.brokers.transparent import DestinationRefused, TransparentDiscovery
from proxy.config.values import Address, PortRange, Secret
from proxy.connection.frames import route_key
from proxy.store import Store, open_store
from proxy.store.interface import StoreError
from proxy.wire.api_versions import BrokerIdentity
from proxy.wire.apis import API_VERSIONS, METADATA
from proxy.wire.metadata import MAX_BROKERS
from proxy.worker.endpoints import StoredBrokers
from tests.support.fake_broker import FakeBroker
from tests.support.processes import PATIENCE_SECONDS, free_ports, until

HOST = "127.0.0.1"


class Cluster:
    """Two brokers, and what a discovery said of them."""

    def __init__(self, one: FakeBroker, two: FakeBroker) -> None:
        self.one, self.two = one, two
        self.joined: list[int | None] = []
        self.left: list[int | None] = []
        self.reported: list[DiscoveredBroker] = []
        self.discovery = ClusterDiscovery(
            [(HOST, one.port), (HOST, two.port)],
            metadata_max_age=300,
            access=Access(timeout_s=PATIENCE_SECONDS),
            on_broker_joined=self._join,
            on_versions=self.reported.append,
            on_broker_left=lambda broker: self.left.append(broker.broker_id),
            table=BrokerTable(grace=100),
        )
        self.gateway = self.discovery.gateway("gate", PortRange(9100, 9199))
        self.show({1: (HOST, one.port), 2: (HOST, two.port)})

    def _join(self, broker: DiscoveredBroker) -> None:
        assert not broker.ready, "its port is open before it can be used"
        self.joined.append(broker.broker_id)

    def show(self, brokers: dict[int, tuple[str, int]]) -> None:
        self.one.brokers = self.two.brokers = brokers


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    async with FakeBroker() as one, FakeBroker() as two:
        yield Cluster(one, two)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


async def stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_brokers_are_found_and_asked_what_they_offer() -> None:
    async with running() as cluster:
        discovery = cluster.discovery
        assert discovery.bootstrap_broker() is None
        assert await discovery.round(now=0)
        assert cluster.joined == [1, 2]
        assert all(broker.ready for broker in discovery.brokers.values())
        turns = [discovery.bootstrap_broker() for _ in range(4)]
        assert set(turns) == set(discovery.brokers.values()), "each in turn"


async def test_a_broker_that_moved_keeps_its_target_and_is_asked_anew() -> None:
    async with running() as cluster:
        discovery = cluster.discovery
        await discovery.round(now=0)
        broker = discovery.brokers[2]
        async with FakeBroker(brokers=cluster.one.brokers, versions={18: (0, 4)}) as elsewhere:
            cluster.show({1: (HOST, cluster.one.port), 2: (HOST, elsewhere.port)})
            assert await discovery.round(now=1)
            assert discovery.brokers[2] is broker
            assert broker.port == elsewhere.port
            assert broker.versions is not None
            assert 1 not in broker.versions.apis, "Fetch is not offered there"
        assert cluster.joined == [1, 2]


async def test_the_log_has_ipv6_addresses_in_brackets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running() as cluster:
        cluster.show({1: (HOST, cluster.one.port), 2: ("::1", 9)})
        await cluster.discovery.round(now=0)
        cluster.show({1: (HOST, cluster.one.port), 2: ("::1", 10)})
        await cluster.discovery.round(now=1)
    assert "broker 2 is at [::1]:9" in caplog.messages
    assert "broker 2 moved to [::1]:10" in caplog.messages


async def test_versions_are_refreshed_by_age_and_on_suspicion_and_told_when_they_changed() -> None:
    """A rolling upgrade changes them."""
    async with running() as cluster:
        discovery = cluster.discovery
        await discovery.round(now=0)
        broker = discovery.brokers[1]
        assert cluster.reported == list(discovery.brokers.values())
        await discovery.round(now=VERSIONS_MAX_AGE)
        assert len(cluster.reported) == 2, "asked again, and nothing new"
        cluster.one.versions = {18: (0, 4), 3: (0, 13), 1: (4, 18)}
        await discovery.round(now=VERSIONS_MAX_AGE + 1)
        assert len(cluster.reported) == 2, "not due yet"
        discovery.wake(broker)
        await discovery.round(now=VERSIONS_MAX_AGE + 2)
        assert cluster.reported[2:] == [broker]
        assert broker.versions is not None
        assert broker.versions.apis[1] == (4, 18)


async def test_what_all_brokers_offer_is_announced_by_each() -> None:
    """Also when one comes back newer; requests of its own versions pass all the same."""
    old, new = (
        {18: (0, 4), 3: (0, 12), 1: (4, 17)},
        {18: (0, 4), 3: (0, 13), 1: (4, 18), 93: (0, 0)},
    )
    async with running() as cluster:
        discovery = cluster.discovery
        cluster.one.versions = cluster.two.versions = old
        await discovery.round(now=0)
        cluster.reported.clear()

        async def upgraded(which: int, fake: FakeBroker, now: float) -> None:
            fake.versions = new
            discovery.brokers[which].query_soon()
            await discovery.round(now)

        await upgraded(1, cluster.one, now=1)
        assert cluster.reported == [discovery.brokers[1]]
        assert [announced(one) for one in discovery.brokers.values()] == [old, old]
        view = BrokerView(discovery.brokers[1], resolve=None)
        assert view.api_versions is not None
        assert view.api_versions.offers[1] == (4, 17)
        assert route_key(1, 18) in view.routes, "who knows of it may use it"
        await upgraded(2, cluster.two, now=2)
        assert {one.broker_id for one in cluster.reported[1:]} == {1, 2}, "both views are made anew"
        assert [announced(one) for one in discovery.brokers.values()] == [new, new]


def announced(broker: DiscoveredBroker) -> object:
    assert broker.announced is not None
    return broker.announced.apis


async def test_a_broker_that_is_away_counts_until_it_leaves_after_the_grace_time() -> None:
    """It may come back as it was."""
    old, new = {18: (0, 4), 3: (0, 12)}, {18: (0, 4), 3: (0, 13)}
    async with running() as cluster:
        discovery = cluster.discovery
        cluster.one.versions, cluster.two.versions = new, old
        await discovery.round(now=0)
        cluster.show({1: (HOST, cluster.one.port)})
        await discovery.round(now=10)
        assert announced(discovery.brokers[1]) == old
        assert not cluster.left
        await discovery.round(now=110)
        assert (cluster.left, list(discovery.brokers)) == ([2], [1])
        await discovery.round(now=111)
        assert announced(discovery.brokers[1]) == new


async def test_a_broker_is_known_by_what_it_says_and_by_its_port() -> None:
    with_ids = {18: (0, 5), 3: (0, 13)}
    async with running() as cluster:
        for id_, fake in ((1, cluster.one), (2, cluster.two)):
            fake.versions, fake.node_id = with_ids, id_
        discovery = cluster.discovery
        await discovery.round(now=0)
        one, two = (BrokerView(broker, resolve=None) for broker in discovery.brokers.values())
        assert one.identity == BrokerIdentity(cluster_id="c1", node_ids={1})
        assert two.identity == BrokerIdentity(cluster_id="c1", node_ids={2})
        cluster.two.node_id = 1  # a mistake between proxy and brokers
        cluster.one.cluster_id = cluster.two.cluster_id = "c2"
        for broker in discovery.brokers.values():
            assert broker.was_queried_lately(0.9)
            assert not broker.was_queried_lately(1.0)
            discovery.wake(broker)
        await discovery.round(now=1)
        assert one.identity == BrokerIdentity(cluster_id="c2", node_ids={1})
        assert two.identity == BrokerIdentity(cluster_id="c2", node_ids={1, 2}), "meant by nobody"


@pytest.mark.parametrize("highest", [4, 5])
async def test_the_broker_at_an_original_destination_is_known(highest: int) -> None:
    """By its own answer or, if it is too old for that, by the address that it advertises."""
    async with FakeBroker(versions={18: (0, highest), 3: (0, 13)}, node_id=2) as fake:
        fake.brokers = {1: ("elsewhere", 9092), 2: (HOST, fake.port)}
        broker = await transparent().broker(Address(HOST, fake.port))
        view = BrokerView(broker, resolve=None)
        assert view.identity == BrokerIdentity(cluster_id="c1", node_ids={2})


async def test_a_broker_whose_address_another_has_leaves_at_once() -> None:
    """Its clients would be sent to the other one."""
    async with running() as cluster:
        discovery = cluster.discovery
        await discovery.round(now=0)
        cluster.show({1: (HOST, cluster.one.port), 4: (HOST, cluster.two.port)})
        await discovery.round(now=1)
        assert cluster.left == [2]
        assert list(discovery.brokers) == [1, 4]


def reach(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines about whether brokers can be reached."""
    return [one for one in caplog.messages if "can be reached" in one]


async def test_a_cluster_that_cannot_be_reached_is_told_and_when_it_can_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as cluster:
        discovery = cluster.discovery
        assert discovery.unreachable is None, "nobody was asked yet"
        await discovery.look(now=0)
        cluster.one.answer = b""
        await discovery.look(now=60)
        assert discovery.unreachable is None, "one broker answers"
        cluster.two.answer = b""
        for now in (61, 62, 63):
            await discovery.look(now=now)
            assert discovery.unreachable is not None
            assert all(one.unreachable for one in discovery.brokers.values()), "at once"
        assert len(reach(caplog)) == 1
        assert (list(discovery.brokers), cluster.left) == ([1, 2], []), "what was known stays"
        assert all(broker.ready for broker in discovery.brokers.values())
        cluster.one.answer = None
        await discovery.look(now=64)
        assert discovery.unreachable is None
        assert reach(caplog)[1:] == ["brokers can be reached again"]


async def test_a_cluster_that_comes_and_goes_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running() as cluster:
        for now in range(0, 60, 2):
            cluster.one.answer = cluster.two.answer = b""
            await cluster.discovery.look(now=now)
            cluster.one.answer = cluster.two.answer = None
            await cluster.discovery.look(now=now + 1)
        assert len(reach(caplog)) == 2


async def test_one_living_broker_suffices() -> None:
    async with running() as cluster:
        cluster.one.answer = b""
        assert not await cluster.discovery.round(now=0), "one did not answer: again, soon"
        assert cluster.joined == [1, 2]
        assert cluster.discovery.bootstrap_broker() is cluster.discovery.brokers[2]


async def test_a_broker_first_seen_in_a_clients_response_joins_at_once() -> None:
    """The client connects to it next: its port must be open by then."""
    async with running() as cluster:
        discovery = cluster.discovery
        assert cluster.gateway.resolve(2, HOST, cluster.two.port) == ("gate", 9102)
        assert cluster.joined == [2]
        task = asyncio.create_task(discovery.run())
        await until(lambda: discovery.brokers[2].ready)
        await stop(task)


async def test_waking_makes_the_next_round_come_early() -> None:
    async with running() as cluster:
        discovery = cluster.discovery
        task = asyncio.create_task(discovery.run())
        await until(lambda: len(discovery.brokers) == 2)
        async with FakeBroker(brokers=cluster.one.brokers) as three:
            cluster.one.brokers[3] = (HOST, three.port)
            discovery.wake()
            await until(lambda: 3 in discovery.brokers and discovery.brokers[3].ready)
            await stop(task)


async def test_a_range_of_ports_too_short_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as cluster:
        gateway = cluster.discovery.gateway("gate", PortRange(9100, 9101))
        for minute in range(3):
            await cluster.discovery.round(now=60 * minute)
        assert (gateway.not_shown, cluster.gateway.not_shown) == (1, 0)
        assert cluster.joined == [1, 2], "the other listener shows it"
    assert warnings(caplog) == [
        "brokers are not shown to clients: no port in broker.ports, 9100-9101,"
        " for broker 2 (1 in all): 9100-9102 would fit"
    ]


async def test_brokers_that_nobody_can_be_sent_to_cost_no_connection_and_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker may name thousands, other ones each time, and have the proxy go to all of them."""
    async with running() as cluster:
        discovery = cluster.discovery
        known = dict(cluster.one.brokers)
        for second in range(3):
            first = 200 + 1_000 * second
            async with FakeBroker() as victim:
                crowd = dict.fromkeys(range(first, first + 1000), (HOST, victim.port))
                cluster.show(known | crowd)
                assert await discovery.round(now=second)
                assert not victim.requests
            assert list(discovery.brokers) == cluster.joined == [1, 2]
            assert cluster.gateway.not_shown == 1_000
            assert cluster.gateway.resolve(first, HOST, 9092) is None
        assert discovery.bootstrap_broker() is not None
    (line,) = warnings(caplog)
    named = "broker 200, 201, 202, 203, 204, 205, 206, 207, 208, 209, … (1000 in all)"
    assert line.endswith(f"for {named}: 9100-10299 would fit")


async def test_a_broker_that_names_more_than_there_can_be_is_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor is it read to the end; known brokers are still served, and one line a minute is written,
    although the request is repeated."""
    async with running() as cluster:
        discovery = cluster.discovery
        await discovery.round(now=0)
        cluster.show(dict.fromkeys(range(MAX_BROKERS + 1), (HOST, cluster.one.port)))
        for second in range(1, 5):
            assert not await discovery.round(now=second)
        assert list(discovery.brokers) == [1, 2]
        assert all(broker.ready for broker in discovery.brokers.values())
    lines = warnings(caplog)
    assert len(lines) == 2, "one of each broker"
    assert all("more than 4,000 brokers" in line for line in lines)


async def test_a_sidecar_asks_its_one_broker() -> None:
    async with FakeBroker() as broker:
        reported: list[DiscoveredBroker] = []
        discovery = SidecarDiscovery(
            HOST,
            broker.port,
            access=Access(timeout_s=PATIENCE_SECONDS),
            on_versions=reported.append,
        )
        assert await discovery.round(now=0)
        assert discovery.broker.ready
        assert reported == [discovery.broker]
        assert discovery.unreachable is None
    discovery.wake(discovery.broker)
    assert not await discovery.round(now=1)
    assert discovery.broker.ready, "what was known stays"
    assert discovery.unreachable is not None
    async with FakeBroker(port=discovery.broker.port):
        assert await discovery.round(now=2)
        assert discovery.unreachable is None


async def test_a_broker_that_refuses_the_proxy_is_asked_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many wrong logins may lock an account."""
    monkeypatch.setenv("GATE_PASSWORD", "secret")
    identity = PasswordIdentity("PLAIN", "gate", Secret(None, "GATE_PASSWORD"))
    async with FakeBroker() as broker:
        discovery = SidecarDiscovery(
            HOST,
            broker.port,
            access=Access(timeout_s=PATIENCE_SECONDS, identity=identity),
            on_versions=lambda _: None,
        )
        assert discovery.pause(99) == MAX_BACKOFF
        assert not await discovery.round(now=0)
        assert discovery.refusal is not None
        assert "does not know SaslAuthenticate" in discovery.refusal
        assert discovery.unreachable is None, "it answered"
        pauses = [discovery.pause(failures) for failures in range(1, 20)]
        assert pauses == sorted(pauses)
        assert pauses[-1] == MAX_AFTER_REFUSAL
        assert discovery.pause(0) > MAX_AFTER_REFUSAL


# Brokers that clients dialled: the facts remembered about them, and the log lines


def transparent() -> TransparentDiscovery:
    access = Access(timeout_s=PATIENCE_SECONDS)
    return TransparentDiscovery(access=access, on_versions=lambda _: None)


async def test_a_broker_that_is_dialled_in_vain_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise any client could fill the disk, with a line per connection."""
    nobody = Address("127.0.0.1", *free_ports(1))
    discovery = transparent()
    for _ in range(5):
        with pytest.raises(DestinationRefused, match="cannot be reached"):
            await discovery.broker(nobody)
    assert not discovery.brokers
    (line,) = caplog.messages
    assert line.startswith(f"API versions unknown: broker {nobody}")


async def test_brokers_that_clients_were_brought_to_and_that_answer_no_more() -> None:
    discovery = transparent()
    async with FakeBroker() as one:
        async with FakeBroker() as two:
            for broker in (one, two):
                await discovery.broker(Address(broker.host, broker.port))
        assert not await discovery.round(VERSIONS_MAX_AGE * 1e6)
        assert discovery.unreachable is None, "one of them answers"
    assert not await discovery.round(VERSIONS_MAX_AGE * 2e6)
    assert discovery.unreachable is not None


# Brokers that a gateway without a login learns from the responses that pass to its clients


class Gate:
    """A gateway in front of one bootstrap server, and what it joined."""

    def __init__(self, bootstrap: FakeBroker, store: Store) -> None:
        self.joined: list[int | None] = []
        servers = [(HOST, bootstrap.port)]
        self.discovery = ClusterDiscovery(
            servers,
            metadata_max_age=300,
            access=Access(timeout_s=PATIENCE_SECONDS, clients_log_in=True),
            on_broker_joined=lambda broker: self.joined.append(broker.broker_id),
            on_versions=lambda _: None,
            on_broker_left=lambda _: None,
            memory=StoredBrokers(store, servers),
        )
        self.gateway = self.discovery.gateway("gate", PortRange(9100, 9199))

    def named(self, broker_id: int, broker: FakeBroker) -> None:
        """A response to a client names a broker."""
        assert self.gateway.resolve(broker_id, HOST, broker.port) == ("gate", 9100 + broker_id)

    def known(self, broker_id: int) -> DiscoveredBroker:
        return self.discovery.brokers[broker_id]


@asynccontextmanager
async def play(tmp_path: Path) -> AsyncIterator[tuple[FakeBroker, FakeBroker, Store]]:
    store = open_store(f"sqlite:{tmp_path / 'state.db'}")
    async with asyncio.timeout(PATIENCE_SECONDS), FakeBroker() as one, FakeBroker() as two:
        yield one, two, store
        assert not one.seen(METADATA), "a broker that wants a login was asked without one"
        assert not two.seen(METADATA)
    store.close()


async def test_a_broker_that_a_response_names_can_be_connected_to_at_once(tmp_path: Path) -> None:
    """Clients begin at the bootstrap server."""
    async with play(tmp_path) as (one, two, store):
        gate = Gate(one, store)
        assert (gate.discovery.bootstrap_broker(), gate.discovery.is_reached) == (None, False)
        assert await gate.discovery.look(0.0)
        broker = gate.discovery.bootstrap_broker()
        assert broker is not None
        assert (broker.port, broker.broker_id, broker.ready) == (one.port, None, True)
        assert gate.discovery.is_reached
        gate.named(2, two)
        assert gate.joined == [2]
        assert gate.known(2).ready
        assert not two.seen(API_VERSIONS)  # they are lent
        await gate.discovery.look(1.0)
        assert two.seen(API_VERSIONS)


async def test_it_is_known_after_a_restart_and_to_other_workers(tmp_path: Path) -> None:
    async with play(tmp_path) as (one, two, store):
        gate, other = Gate(one, store), Gate(one, store)
        await gate.discovery.look(0.0)
        await other.discovery.look(0.0)
        gate.named(2, two)
        await gate.discovery.look(1.0)
        await other.discovery.look(1.0)
        assert other.joined == [2]
        restarted = Gate(one, store)
        await restarted.discovery.look(0.0)
        assert restarted.known(2).port == two.port
        assert restarted.known(2).ready


async def test_one_that_moved_is_found_where_the_last_response_says(tmp_path: Path) -> None:
    async with play(tmp_path) as (one, two, store):
        gate = Gate(one, store)
        gate.named(2, one)
        await gate.discovery.look(0.0)
        assert gate.known(2).port == one.port
        gate.named(2, two)
        await gate.discovery.look(1.0)
        assert gate.known(2).port == two.port
        assert Gate(one, store).joined == []


async def test_brokers_of_another_cluster_are_not_shown(tmp_path: Path) -> None:
    async with play(tmp_path) as (one, two, store):
        gate = Gate(one, store)
        gate.named(2, two)
        await gate.discovery.look(0.0)
        elsewhere = Gate(two, store)
        await elsewhere.discovery.look(0.0)
        assert elsewhere.joined == []


class Broken(Store):
    """A store that cannot be used."""

    def __init__(self) -> None:
        """It has no file."""

    def brokers(self, cluster: str) -> dict[int, tuple[str, int]]:
        raise StoreError(f"no disk for {cluster}")

    def keep_brokers(self, cluster: str, brokers: object) -> None:
        raise StoreError(f"no disk for {cluster} and {brokers}")


async def test_a_store_that_cannot_be_used_keeps_nobody_out(tmp_path: Path) -> None:
    async with play(tmp_path) as (one, two, _):
        gate = Gate(one, Broken())
        gate.named(2, two)
        assert not await gate.discovery.look(0.0)  # it is tried again soon
        assert gate.discovery.bootstrap_broker() is not None
        assert gate.known(2).ready
