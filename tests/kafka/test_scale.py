"""Many connections, and a proxy that restarts under load."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.kafka.clients import OAUTHBEARER, add_users, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.quotas import SCRAM
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.traffic import (
    PARTITIONS,
    Traffic,
    confluent_traffic,
    end_offset,
    java_traffic,
)
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CONNECTIONS = 500


@pytest.fixture
def proxy(kafka: KafkaCluster, jwks: Path, tmp_path: Path) -> Iterator[ProxyProcess]:
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    process = ProxyProcess(config | {"workers": 2}, tmp_path)
    add_users(process)
    with process:
        yield process


def test_many_connections_at_a_time(proxy: ProxyProcess, issuer: Issuer) -> None:
    """All connections log in and are served; none remains after they close."""
    address = proxy.addresses()["LONG"]
    with ExitStack() as stack, ThreadPoolExecutor(32) as pool:
        actors = list(pool.map(lambda n: logged_in(address, issuer, n), range(CONNECTIONS)))
        for actor in actors:
            stack.enter_context(actor.client)
        assert proxy.metric("connections") == CONNECTIONS
        list(pool.map(lambda actor: actor.metadata(), actors))
        assert all(actor.lines[-1].startswith("< Metadata") for actor in actors)
    assert proxy.metric("failed_authentication_total") == 0
    assert proxy.metric("successful_authentication_total") == CONNECTIONS


def wait_for_traffic(proxy: ProxyProcess) -> None:
    """Until both producers and both consumers are at work."""

    def produced() -> bool:
        return proxy.metric("requests_total", api="Produce") > 100

    wait_until(produced, what="no traffic")
    seen = proxy.metric("requests_total", api="Produce")
    wait_until(
        lambda: proxy.metric("requests_total", api="Produce") > seen + 100, what="no traffic"
    )


def logged_in(address: Address, issuer: Issuer, number: int) -> Actor:
    actor = Actor(WireClient(address), issuer)
    if number % 5:
        actor.oauth(issuer.mint("carol"))
    else:
        actor.scram("carol", password="carol-secret")
    return actor


@pytest.mark.parametrize("traffic", [confluent_traffic, java_traffic])
def test_producers_outlive_a_restart(
    proxy: ProxyProcess, kafka: KafkaCluster, issuer: Issuer, tmp_path: Path, traffic: Traffic
) -> None:
    """Two SIGTERMs under load: idempotent producers lose and duplicate nothing."""
    bootstrap = str(proxy.addresses()["LONG"])
    running = []
    enough = tmp_path / "enough"
    with ThreadPoolExecutor() as pool:
        for mechanism in (SCRAM, OAUTHBEARER):
            topic = f"restart-{uuid.uuid4()}"
            kafka.create_topic(topic, partitions=PARTITIONS)
            who = user(issuer, mechanism)
            each = pool.submit(traffic, who, bootstrap, topic, 5, tmp_path, until=enough)
            running.append((topic, each))
        try:
            for _ in range(2):
                wait_for_traffic(proxy)
                proxy.stop()
                assert "Traceback" not in proxy.log()
                proxy.start()
            wait_for_traffic(proxy)
        finally:
            enough.touch()
        for topic, each in running:
            assert each.result() == [end_offset(kafka, topic, n) for n in range(PARTITIONS)]
