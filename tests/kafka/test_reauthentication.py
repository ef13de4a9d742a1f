"""KIP-368 with real clients: those that re-authenticate stay connected, others do not."""

import itertools
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.kafka.clients import OAUTHBEARER, add_users, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic, end_offset
from tests.support.kafka.wire_client import WireClient
from tests.support.proxy_process import ProxyProcess, gateway_config
from tests.support.sasl import Issuer

pytestmark = pytest.mark.kafka

LIFETIME_MS = 20_000
"""Clients renew it after 85 to 95 %, which leaves at least a second."""
SHORT_MS = 4_000
_PAST_SHORT_SECONDS = 4.3
LISTENERS = {"QUICK": LIFETIME_MS, "SHORT": SHORT_MS, "LONG": 3_600_000}
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


# --- under traffic


def test_nothing_is_lost_doubled_or_reordered(
    proxy: ProxyProcess, kafka: KafkaCluster, issuer: Issuer
) -> None:
    """Over two lifetimes, with both mechanisms at the same time."""
    add_users(proxy)
    bootstrap, seconds = str(proxy.addresses()["QUICK"]), 42
    mechanisms = (SCRAM, OAUTHBEARER)
    with ThreadPoolExecutor() as pool:
        running = []
        for mechanism in mechanisms:
            name = f"traffic-{uuid.uuid4()}"
            kafka.create_topic(name, partitions=PARTITIONS)
            who = user(issuer, mechanism)
            traffic = partial(confluent_traffic, pause_seconds=0.005)
            running.append((name, pool.submit(traffic, who, bootstrap, name, seconds)))
        for name, each in running:
            assert each.result() == [end_offset(kafka, name, n) for n in range(PARTITIONS)]
    lifetimes = seconds * 1000 // LIFETIME_MS
    for mechanism in mechanisms:
        renewed = proxy.metric("successful_reauthentication_total", mechanism=mechanism)
        # At least the producer's and the consumer's connections to the broker.
        assert renewed >= 2 * (lifetimes - 1)
    for metric in (
        "failed_authentication_total",
        "failed_reauthentication_total",
        "expired_connections_killed_total",
        "successful_authentication_no_reauth_total",
        "events_dropped_total",
    ):
        assert proxy.metric(metric) == 0, metric
    assert "Traceback" not in proxy.log()
    proxy.stop()
    assert_consistent(proxy.events())


def assert_consistent(events: list[dict[str, Any]]) -> None:
    """Each connection's events are numbered without gaps, and their ages are plausible."""
    by_connection = sorted(events, key=lambda event: (event["connection_id"], event["sequence"]))
    renewed = 0
    for _, group in itertools.groupby(by_connection, lambda event: event["connection_id"]):
        reported = list(group)
        assert [event["sequence"] for event in reported] == list(range(len(reported)))
        assert {event["kind"] for event in reported[-2:]} == {"closed", "summary"}
        for event in reported:
            if event["kind"] == "reauthenticated":
                renewed += 1
                # After 85 % of the lifetime; an idle connection renews on its next use.
                assert event["since_auth_ms"] >= 0.8 * LIFETIME_MS
                began_ms = event["timestamp_ms"] - event["since_auth_ms"]
                assert event.get("last_request_ms", 0) - began_ms <= LIFETIME_MS
                assert event["announced_lifetime_ms"] == LIFETIME_MS
                assert 0 <= event["auth_latency_us"] < 60_000_000  # a duration, not a time
    assert renewed > 0


# --- clients that do not re-authenticate


def test_expired_client_is_killed_when_it_is_used(proxy: ProxyProcess, issuer: Issuer) -> None:
    began = time.monotonic()
    lines = used_after_expiry(proxy, issuer, "SHORT")
    took_ms = 1_000 * (time.monotonic() - began)
    assert lines[-1] == "< closed"
    assert proxy.metric("expired_connections_killed_total", listener="short") == 1
    killed = reported(proxy, "expired-killed")
    assert killed["api_key"] == 3
    assert killed["principal"] == "User:carol"
    assert SHORT_MS <= killed["since_auth_ms"] <= took_ms + 1


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


def reported(proxy: ProxyProcess, kind: str) -> dict[str, Any]:
    """Wait for the only event of a kind."""

    def found() -> list[dict[str, Any]]:
        return [event for event in proxy.events() if event["kind"] == kind]

    wait_until(lambda: bool(found()), what=f"no event {kind}")
    (event,) = found()
    return event


def used_after_expiry(proxy: ProxyProcess, issuer: Issuer, listener: str) -> list[str]:
    """Use a session after its end without re-authentication; return the transcript."""
    with WireClient(proxy.addresses()[listener]) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint("carol"))
        actor.metadata()
        actor.wait(_PAST_SHORT_SECONDS)
        actor.metadata()
        return actor.lines


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
