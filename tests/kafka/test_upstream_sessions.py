"""The proxy re-authenticates at brokers (KIP-368), unnoticed by clients.

Nor does the broker: it never has to close a connection of the proxy's."""

import re
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from proxy.brokers.token_providers import MIN_CREDENTIALS_SECONDS
from tests.support.cloud import ARN, ROLE, Cloud
from tests.support.kafka.clients import add_users, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic
from tests.support.kafka.upstream import (
    BUSY,
    BUSY_MS,
    EXPIRED_CHANNEL,
    GATE,
    IAM,
    PASSWORD,
    SHORT,
    SHORT_MS,
    by_password,
    sidecar_of,
)
from tests.support.kafka.wire_client import WireClient
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SECONDS = 2.5 * BUSY_MS / 1000
RENEWALS = 2
"""Minimum per connection in `SECONDS`: each session is renewed before 95 % of it."""
CLIENT_MS = 6_000
"""Lifetime of clients' sessions at the proxy."""
PAST_SHORT_SECONDS = 1.2 * SHORT_MS / 1000
SCRAM = "SCRAM-SHA-256"
FLOWS = (("LONG", 900_000, 0.2), ("LONG", 10, 0.01), ("QUICK", 50_000, 0.05))
"""Listener, size of records, and seconds between them."""
RENEWED = "upstream_successful_reauthentication_total"


@pytest.fixture
def proxy(sasl_kafka: KafkaCluster, jwks: Path, tmp_path: Path) -> Iterator[ProxyProcess]:
    """A gateway, so that clients use it whatever the broker advertises."""
    upstream = str(sasl_kafka.address(listener=BUSY))
    config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000, "QUICK": CLIENT_MS})
    config["upstream"] |= by_password("SCRAM-SHA-512", tmp_path)
    add_users(ProxyProcess(config, tmp_path))
    with ProxyProcess(config, tmp_path) as process:
        yield process


def new_topic(cluster: KafkaCluster) -> str:
    name = f"sessions-{uuid.uuid4()}"
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def test_nothing_is_lost_while_sessions_are_renewed(
    sasl_kafka: KafkaCluster, proxy: ProxyProcess, issuer: Issuer
) -> None:
    """With large and small requests, and clients that re-authenticate meanwhile."""
    killed_before = sasl_kafka.log().count(EXPIRED_CHANNEL)
    carol, running = user(issuer, SCRAM), []
    with ThreadPoolExecutor() as pool:
        for listener, padding, pause in FLOWS:
            bootstrap, topic = str(proxy.addresses()[listener]), new_topic(sasl_kafka)
            flow = partial(confluent_traffic, pause_seconds=pause, padding_bytes=padding)
            running.append(pool.submit(flow, carol, bootstrap, topic, SECONDS))
    for each in running:
        assert min(each.result()) > 0
    assert proxy.metric(RENEWED) >= 6 * RENEWALS
    assert proxy.metric("successful_reauthentication_total", listener="quick") >= 2
    reasons = {one["reason"] for one in proxy.labels("connections_closed_total")}
    for reason in reasons - {"client_closed"}:
        assert proxy.metric("connections_closed_total", reason=reason) == 0, reason
    assert sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before
    assert "Traceback" not in proxy.log()
    assert "ERROR" not in proxy.log()
    assert PASSWORD not in proxy.log()


def test_idle_connections_are_renewed_when_they_are_used(
    sasl_kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """Long after the end of their sessions at the broker, each time; a client of the broker's own
    that does not renew is closed."""
    config = sidecar_of(sasl_kafka, SHORT, jwks, by_password(SCRAM, tmp_path))
    killed_before = sasl_kafka.log().count(EXPIRED_CHANNEL)
    with (
        ProxyProcess(config, tmp_path) as proxy,
        WireClient(proxy.addresses()["LONG"]) as client,
        WireClient(sasl_kafka.address(listener=SHORT)) as other,
    ):
        actor, direct = Actor(client, issuer), Actor(other, issuer)
        actor.oauth(issuer.mint("carol"))
        direct.scram(GATE, password=PASSWORD)
        actor.metadata()
        for _ in range(2):
            time.sleep(PAST_SHORT_SECONDS)
            actor.metadata()
            assert actor.lines[-1].startswith("< Metadata")
        assert proxy.metric(RENEWED) >= 2
        assert sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before
        direct.metadata()
        assert direct.lines[-1] == "< closed"
        assert "Traceback" not in proxy.log()
    wait_until(
        lambda: sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before + 1,
        what="a broker that closes does not say so",
    )


def test_sessions_with_iam_are_renewed_in_place(
    sasl_kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """A broker that verifies the signed URL; the keys change, the principal must not."""
    cloud = Cloud()
    cloud.lives = MIN_CREDENTIALS_SECONDS + 6
    (tmp_path / "identity").write_text("e30.e30.c2ln")
    environment = cloud.environment | {
        "AWS_REGION": "eu-west-1",
        "AWS_ROLE_ARN": ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "identity"),
    }
    login = {"sasl.mechanism": "OAUTHBEARER", "sasl.login.provider": "aws-msk-iam"}
    login["security.protocol"] = "SASL_PLAINTEXT"
    process = ProxyProcess(sidecar_of(sasl_kafka, IAM, jwks, login), tmp_path)
    process.prefix = ("env", *(f"{name}={value}" for name, value in environment.items()))
    killed_before = sasl_kafka.log().count(EXPIRED_CHANNEL)
    with cloud.service, process as proxy, WireClient(proxy.addresses()["LONG"]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint("carol"))

        def renewed() -> bool:
            actor.metadata()
            assert actor.lines[-1].startswith("< Metadata")
            time.sleep(0.3)
            return proxy.metric(RENEWED) >= 3 and len(iam_logins(sasl_kafka)) >= 2

        wait_until(renewed, what="not renewed", details=proxy.log)
        log = proxy.log()
        assert proxy.readiness() == 200
    assert set(iam_logins(sasl_kafka).values()) == {ARN}
    assert sasl_kafka.log().count(EXPIRED_CHANNEL) == killed_before
    assert "Traceback" not in log
    assert "X-Amz" not in log


def iam_logins(cluster: KafkaCluster) -> dict[str, str]:
    """Principals by access key."""
    return dict(re.findall(r"^IAM login: (\S+) (\S+)$", cluster.log(), re.MULTILINE))
