"""Brokers that a gateway without a login learns from the responses that pass to its clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proxy.brokers.access import Access
from proxy.brokers.discovery import ClusterDiscovery, DiscoveredBroker
from proxy.config.values import PortRange
from proxy.store import Store, StoreError, open_store
from proxy.wire.apis import API_VERSIONS, METADATA
from proxy.worker.endpoints import StoredBrokers
from tests.support.fake_broker import FakeBroker
from tests.support.processes import PATIENCE_SECONDS

HOST = "127.0.0.1"


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


async def test_clients_begin_at_the_bootstrap_server(tmp_path: Path) -> None:
    async with play(tmp_path) as (one, _, store):
        gate = Gate(one, store)
        assert gate.discovery.bootstrap_broker() is None
        assert not gate.discovery.is_reached
        assert await gate.discovery.look(0.0)
        broker = gate.discovery.bootstrap_broker()
        assert broker is not None
        assert (broker.port, broker.broker_id, broker.ready) == (one.port, None, True)
        assert gate.discovery.is_reached


async def test_a_broker_that_a_response_names_can_be_connected_to_at_once(tmp_path: Path) -> None:
    async with play(tmp_path) as (one, two, store):
        gate = Gate(one, store)
        await gate.discovery.look(0.0)
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
