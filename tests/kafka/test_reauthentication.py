"""KIP-368 with real clients: those that re-authenticate stay connected, others do not."""

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import confluent_kafka as confluent
import pytest

from tests.support.kafka.clients import OAUTHBEARER, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.traffic import PARTITIONS, end_offset
from tests.support.kafka.wire_client import WireClient
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

LISTENERS = {"LONG": 3_600_000}
SCRAM = "SCRAM-SHA-256"


@pytest.fixture
def proxy(kafka: KafkaCluster, jwks: Path, tmp_path: Path) -> Iterator[ProxyProcess]:
    """A new proxy for each test, with counters at zero."""
    config = gateway_config(str(kafka.address()), jwks, listeners=LISTENERS)
    with ProxyProcess(config, tmp_path) as process:
        yield process


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"traffic-{uuid.uuid4()}"
    kafka.create_topic(name, partitions=PARTITIONS)
    return name


def test_tokens_that_are_late_for_seconds_fail_no_program(
    proxy: ProxyProcess, kafka: KafkaCluster, issuer: Issuer, topic: str
) -> None:
    """The identity provider hands out tokens that expired 5 s ago: a client is disconnected at its
    first request, by the proxy as by Kafka's own listener, and continues with the next token."""
    fresh_from = time.monotonic() + 6

    def problems(bootstrap: str) -> set[str]:
        seen: set[str] = set()

        def token(_config: str) -> tuple[str, float]:
            is_late = time.monotonic() < fresh_from
            return issuer.mint("carol", -5 if is_late else 3600), time.time() + 2

        def failed(error: confluent.KafkaError) -> None:
            seen.add(str(error.name()))

        settings = user(issuer, OAUTHBEARER).confluent(bootstrap)
        settings |= {"oauth_cb": token, "error_cb": failed}
        producer = confluent.Producer(settings)
        producer.produce(topic, b"late")
        assert producer.flush(60) == 0
        return seen

    addresses = (str(proxy.addresses()["LONG"]), kafka.bootstrap("LONG"))
    with ThreadPoolExecutor() as pool:
        proxied, direct = pool.map(problems, addresses)
    assert "_AUTHENTICATION" not in proxied | direct
    assert proxied <= direct | {"_TRANSPORT", "_ALL_BROKERS_DOWN"}
    assert sum(end_offset(kafka, topic, number) for number in range(PARTITIONS)) == 2
    assert proxy.metric("expired_connections_killed_total") == 0
    assert proxy.metric("failed_authentication_total") == 0
    assert proxy.metric("connections_closed_total", reason="expired_at_login") > 0


def test_user_who_was_removed_cannot_renew(proxy: ProxyProcess, issuer: Issuer) -> None:
    """As in Kafka the open session stays valid, but its re-authentication fails."""
    proxy.add_user("frank", "frank-secret", SCRAM)
    proxy.until_known()
    with WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.scram("frank", password="frank-secret")
        proxy.command("users", "remove", "frank", "--mechanism", SCRAM)
        proxy.until_known()
        assert not knows_frank(proxy, issuer)
        actor.metadata()
        assert actor.lines[-1].startswith("< Metadata")
        actor.scram("frank", password="frank-secret")
        assert "error=58" in actor.lines[-1]
        actor.ends()
        assert actor.lines[-1] == "< closed"
    assert proxy.metric("failed_reauthentication_total") == 1


def knows_frank(proxy: ProxyProcess, issuer: Issuer) -> bool:
    with WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.scram("frank", password="frank-secret")
        return actor.lines[-1] == "< server signature right: True"
