"""A connection for each request: how much more than its quota a client gets by reconnecting."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka.acl_differential.side import PASSWORD, SCRAM, log_in
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.quotas import (
    PRODUCER,
    WINDOW_SECONDS,
    enforcing_quotas,
    produce_frame,
    set_kafkas,
    set_quota,
)
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import ProxyProcess

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC = "reconnects"
LIMIT = 10_000.0
SECONDS = 20.0


@pytest.fixture
def proxy(kafka: KafkaCluster, jwks: Path, tmp_path: Path) -> Iterator[ProxyProcess]:
    process = enforcing_quotas(kafka, jwks, tmp_path)
    process.add_user("mallory", PASSWORD, SCRAM)
    with process:
        yield process


def produced(address: Address) -> tuple[float, float]:
    """Bytes that were answered on connections of one request each, and the seconds it took."""
    frame = produce_frame(TOPIC, 10_000, 1)
    passed, began = 0, time.monotonic()
    while (seconds := time.monotonic() - began) < SECONDS:
        with WireClient(address) as client:
            log_in(client, "mallory")
            client.raw(frame)
            answer = client.receive()
            assert isinstance(answer, bytes), answer
        passed += len(frame)
    return passed, seconds


def test_who_reconnects_gets_no_more_than_its_quota(
    kafka: KafkaCluster, proxy: ProxyProcess
) -> None:
    """From Kafka, several times as much: it throttles the connection, which is gone."""
    kafka.create_topic(TOPIC)
    kafka.add_scram_user("mallory", PASSWORD)
    set_kafkas(kafka, PRODUCER, LIMIT, "user", "mallory")
    set_quota(proxy, PRODUCER, LIMIT, user="mallory")
    proxy.until_known()
    passed, seconds = produced(proxy.addresses()["LONG"])
    theirs, their_seconds = produced(kafka.address(listener="LONG"))
    set_kafkas(kafka, PRODUCER, None, "user", "mallory")
    assert passed <= LIMIT * (seconds + WINDOW_SECONDS + 1) + 2 * 10_100
    assert theirs > 1.5 * LIMIT * (their_seconds + WINDOW_SECONDS + 1)
