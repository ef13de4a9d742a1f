"""Brokers that a gateway without a login of its own has learned, kept in the store."""

import asyncio
from collections.abc import Mapping, Sequence

from proxy.errors import BrokerFault
from proxy.store.interface import BrokerStore, StoreError
from proxy.wire.metadata import BrokerAddress


class StoredBrokers:
    """Memory of one cluster's brokers, a `proxy.brokers.discovery.BrokerMemory`.

    All workers share it, and it outlives a restart.
    """

    def __init__(self, store: BrokerStore, bootstrap_servers: Sequence[tuple[str, int]]) -> None:
        """Keep the brokers of the cluster that these servers belong to."""
        self._store = store
        self._cluster = ",".join(sorted(f"{host}:{port}" for host, port in bootstrap_servers))

    async def exchange(self, learned: Mapping[int, BrokerAddress]) -> dict[int, BrokerAddress]:
        """Keep what was learned, and return all brokers. Raises BrokerFault."""
        addresses = {id_: (broker.host, broker.port) for id_, broker in learned.items()}
        try:
            found = await asyncio.to_thread(self._exchange, addresses)
        except StoreError as error:
            raise BrokerFault(str(error)) from None
        return {id_: BrokerAddress(host=host, port=port) for id_, (host, port) in found.items()}

    def _exchange(self, learned: Mapping[int, tuple[str, int]]) -> Mapping[int, tuple[str, int]]:
        if learned:
            self._store.keep_brokers(self._cluster, learned)
        return self._store.brokers(self._cluster)
