"""Brokers that die and return, compared to direct clients."""

import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
import pytest

from tests.support.kafka import go
from tests.support.kafka.clients import User, add_users, password_of, user
from tests.support.kafka.cluster import StartCluster
from tests.support.proxy_process import ProxyProcess, gateway_config, relaying_logins
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka


# --- a killed broker

LISTENER, ORDERS = "LONG", "orders"
DOWN_SECONDS = 12.0
PAUSE_SECONDS = 0.05
"""Pause between two records of a client."""
HELD_SECONDS = 3.0
"""As docs/operations.md says."""
CONNECTIONS_AT_ONCE = 2
"""Connections per client: to the bootstrap server and to the broker."""


class Producers:
    """A producer of each library at the same address, until a file exists."""

    def __init__(self, who: User, bootstrap: str, until: Path) -> None:
        self._who, self._bootstrap, self._until = who, bootstrap, until
        self.errors: Counter[str] = Counter()
        """What librdkafka reports to the application."""
        self.lost: list[str] = []

    def start(self, pool: ThreadPoolExecutor) -> list["Future[int]"]:
        """Start the producers; each returns the number of unacknowledged records."""
        return [pool.submit(run) for run in (self._confluent, self._python, self._franz)]

    def _confluent(self) -> int:
        settings = self._who.confluent(self._bootstrap)
        settings["error_cb"] = lambda error: self.errors.update([error.name()])
        producer = confluent_kafka.Producer(settings)

        def done(error: Any, _message: object) -> None:
            if error is not None:
                self.lost.append(f"librdkafka: {error}")

        while not self._until.exists():
            producer.produce(ORDERS, b"x", on_delivery=done)
            producer.poll(PAUSE_SECONDS)
        return producer.flush(120)

    def _python(self) -> int:
        producer = kafka.KafkaProducer(**self._who.python(self._bootstrap))
        sent = []
        while not self._until.exists():
            sent.append(producer.send(ORDERS, b"x"))
            time.sleep(PAUSE_SECONDS)
        producer.flush(120)
        self.lost += [f"kafka-python: {one.exception}" for one in sent if one.failed()]
        producer.close()
        return sum(not one.succeeded() for one in sent)

    def _franz(self) -> int:
        login = self._who.name, password_of(self._who.name)
        marker = self._until.with_suffix(f".{self._bootstrap}")
        go.run("produce", [self._bootstrap, *login, ORDERS, str(self._until), str(marker)])
        return 0  # otherwise it has failed


@pytest.mark.slow
def test_a_dead_broker_looks_dead(
    start_cluster: StartCluster, issuer: Issuer, jwks: Path, tmp_path: Path
) -> None:
    """No record is lost, and clients reconnect no more often than they are disconnected: behind a
    proxy that ends logins and behind one that relays them."""
    cluster = start_cluster(nodes=1)
    cluster.create_topic(ORDERS)
    who, until = user(issuer, "SCRAM-SHA-256"), tmp_path / "until"
    cluster.add_scram_user(who.name, password_of(who.name))
    broker, listeners = cluster.address(1, LISTENER), {LISTENER: 3_600_000}
    ending = gateway_config(str(cluster.address()), jwks, listeners=listeners)
    relaying = relaying_logins(gateway_config(str(broker), jwks, listeners=listeners))
    proxies = []
    for name, config in (("ending", ending), ("relaying", relaying)):
        (tmp_path / name).mkdir()
        proxies.append(ProxyProcess(config, tmp_path / name))
    with proxies[0], proxies[1], ThreadPoolExecutor(9) as pool:
        add_users(proxies[0])
        addresses = [*(proxy.addresses()[LISTENER] for proxy in proxies), broker]
        producers = [Producers(who, str(address), until) for address in addresses]
        try:
            running = [one for each in producers for one in each.start(pool)]
            time.sleep(5)
            before, began = list(map(opened, proxies)), time.monotonic()
            cluster.kill_node(1)
            time.sleep(DOWN_SECONDS)
            cluster.start_node(1)
            after = list(map(opened, proxies))
            closes = CONNECTIONS_AT_ONCE * ((time.monotonic() - began) / HELD_SECONDS + 1)
            time.sleep(5)
        finally:
            until.touch()
        unacknowledged = [one.result() for one in running]
    assert unacknowledged == [0] * 9
    assert [each.lost for each in producers] == [[], [], []]
    *proxied, direct = producers
    for each, first, last in zip(proxied, before, after, strict=True):
        assert last - first <= 3 * closes
        assert each.errors.keys() - direct.errors.keys() <= {"_AUTHENTICATION"}
        assert each.errors["_AUTHENTICATION"] <= closes


def opened(proxy: ProxyProcess) -> float:
    return proxy.metric("connections_opened_total")
