"""Attacks on quotas, and audit mode."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from proxy.quota.model import QuotaKey
from tests.support.kafka.acl_differential.side import PASSWORD, log_in
from tests.support.kafka.clients import add_users, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster, wait_until
from tests.support.kafka.quotas import (
    CONNECTIONS,
    CONSUMER,
    MUTATIONS,
    PRODUCER,
    SCRAM,
    WINDOW_SECONDS,
    Side,
    set_quota,
)
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LISTENER = "LONG"
MAX_CONNECTIONS = 60
ELSEWHERE = "127.0.0.9"
"""Source address of the attacker."""


def started(
    kafka: KafkaCluster, jwks: Path, directory: Path, mode: str, **listener: Any
) -> ProxyProcess:
    config = gateway_config(str(kafka.address()), jwks, listeners={LISTENER: 3_600_000})
    config["listeners"][0] |= listener
    config |= {"quotas": {"mode": mode}, "workers": 1}
    process = ProxyProcess(config, directory)
    add_users(process)
    process.add_user("mallory", PASSWORD, SCRAM)
    process.start()
    return process


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    most = {"max.connections": MAX_CONNECTIONS}
    process = started(kafka, jwks, tmp_path_factory.mktemp("attacked"), "enforce", **most)
    yield process
    process.stop()


def _connect(address: Address) -> socket.socket:
    """Connect from the attacker's address."""
    source = (ELSEWHERE, 0)
    return socket.create_connection(address[:2], timeout=DEADLINE_SECONDS, source_address=source)


def test_a_storm_from_one_address_leaves_room_for_others(proxy: ProxyProcess) -> None:
    """Connections beyond the rate wait, as in Kafka, but do not take slots of other clients."""
    set_quota(proxy, CONNECTIONS, 1, ip=ELSEWHERE)
    proxy.until_known()
    address = proxy.addresses()[LISTENER]
    began = time.monotonic()
    with contextlib.ExitStack() as open_ones:
        for _ in range(200):
            open_ones.enter_context(_connect(address))
        with WireClient(address) as client:
            log_in(client, "mallory")  # a client that is accepted after them
    seconds = time.monotonic() - began
    refused = proxy.metric("connections_closed_total", reason="connection_rate")
    let_in = 200 - refused
    assert WINDOW_SECONDS <= let_in <= WINDOW_SECONDS + 2 + seconds, "a window's worth got in"
    assert proxy.metric("connections_closed_total", reason="too_many_connections") == 0
    wait_until(lambda: proxy.metric("connections") == 0, what="not all let go of")


def test_in_audit_everybody_is_told_of_and_nobody_held(
    kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """Log and metrics report the throttling of each kind of quota, with real clients."""
    kafka.create_topic("audited")
    proxy = started(kafka, jwks, tmp_path, "audit")
    try:
        for key in (PRODUCER, CONSUMER):
            set_quota(proxy, key, 500, user="carol")  # one message costs 20 s
        set_quota(proxy, "request_percentage", 0.001, user="carol")
        set_quota(proxy, MUTATIONS, 0.01, user="mallory")
        set_quota(proxy, CONNECTIONS, 1, ip=ELSEWHERE)
        proxy.until_known()
        began = time.monotonic()
        carol, bootstrap = user(issuer, SCRAM), str(proxy.addresses()[LISTENER])
        reported: list[Any] = []
        settings = carol.confluent(bootstrap) | {"throttle_cb": reported.append}
        producer = confluent.Producer(settings | {"acks": 1})
        for _ in range(10):
            producer.produce("audited", b"x" * 10_000)
            assert producer.flush(DEADLINE_SECONDS) == 0
        groups = {"group.id": "audited", "auto.offset.reset": "earliest"}
        consumer = confluent.Consumer(settings | groups)
        consumer.subscribe(["audited"])
        assert len(consumer.consume(10, DEADLINE_SECONDS)) == 10
        consumer.close()
        side = Side(proxy.addresses()[LISTENER], "mallory")
        answers = [side.create(7, a=7), side.create(7, b=7), side.create(7, c=7)]
        assert {error for one in answers for error in one.errors.values()} == {0}
        assert {one.throttle_time for one in answers} == {0.0}
        sockets = [_connect(proxy.addresses()[LISTENER]) for _ in range(60)]
        with WireClient(proxy.addresses()[LISTENER]) as client:
            log_in(client, "mallory")  # a client that is accepted after them
        assert proxy.metric("connections_closed_total", reason="connection_rate") == 0
        for one in sockets:
            one.close()
        assert reported == []
        assert proxy.metric("throttled_connections") == 0
        log = proxy.log()
        minutes = (time.monotonic() - began) // 60
        for who, key in (
            ("user=carol", PRODUCER),
            ("user=carol", CONSUMER),
            ("user=carol", "request_percentage"),
            ("user=mallory", MUTATIONS),
            (f"ip={ELSEWHERE}", QuotaKey.CONNECTION_CREATION_RATE.value),
        ):
            assert f"{who} would be throttled for " in log
            assert f" ms by {key}" in log
            assert log.count(f"by {key}") <= 2 + minutes, "once a minute"
            assert proxy.metric("quota_throttles_total", quota=key) >= 1
            assert proxy.metric("quota_throttle_time_seconds_total", quota=key) > 0
    finally:
        proxy.stop()
