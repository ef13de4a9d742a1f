"""Attacks on quotas."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka.acl_differential.side import PASSWORD, log_in
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster, wait_until
from tests.support.kafka.quotas import CONNECTIONS, SCRAM, WINDOW_SECONDS, set_quota
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import ProxyProcess, gateway_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LISTENER = "LONG"
MAX_CONNECTIONS = 60
ELSEWHERE = "127.0.0.9"
"""Source address of the attacker."""


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = gateway_config(str(kafka.address()), jwks, listeners={LISTENER: 3_600_000})
    config["listeners"][0]["max.connections"] = MAX_CONNECTIONS
    config |= {"quotas": {"mode": "enforce"}, "workers": 1}
    process = ProxyProcess(config, tmp_path_factory.mktemp("attacked"))
    process.add_user("mallory", PASSWORD, SCRAM)
    with process:
        yield process


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
