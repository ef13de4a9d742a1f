"""Clients of API versions that Kafka 4.0 dropped (KIP-896), and brokers that support them."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kafka as python
import pytest
from typer.testing import CliRunner

from proxy.cli import app
from proxy.wire.apis import (
    API_VERSIONS,
    APIS,
    FIRST_KEPT_BY_KAFKA_4,
    PRODUCE,
    Kind,
    carries_addresses,
)
from proxy.wire.throttle_times import has_throttle_time
from tests.drift.definitions import Definition, read_definitions
from tests.support.kafka.clients import add_users, password_of, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.java import fetch_jar
from tests.support.kafka.wire_client import Address, ask
from tests.support.proxy_process import ProxyProcess, gateway_config, relaying_logins
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
LISTENERS = {"OBSERVE": 3_600_000, "PROBE": 3_600_000}
OLD_PROTOCOL = (0, 10)
"""kafka-python's `api_version`: that of Kafka 0.10."""
RECORDS = 200
LAST_WITH_THEM = "3.9.1"
BETWEEN_BROKERS = {56: 2}
"""First remaining version of AlterPartition."""


@pytest.fixture(scope="module")
def kafka(jwks: Path) -> Iterator[KafkaCluster]:
    """A node that has them, independent of the release under test."""
    with KafkaCluster(jwks=jwks, release=LAST_WITH_THEM) as cluster:
        yield cluster


@pytest.fixture
def config(kafka: KafkaCluster, jwks: Path) -> dict[str, Any]:
    return in_their_modes(gateway_config(str(kafka.address()), jwks, listeners=LISTENERS))


def in_their_modes(config: dict[str, Any]) -> dict[str, Any]:
    for listener in config["listeners"]:
        listener["reauth.enforcement"] = listener["name"]
    return config


@pytest.fixture
def proxy(config: dict[str, Any], tmp_path: Path) -> Iterator[ProxyProcess]:
    process = ProxyProcess(config, tmp_path)
    add_users(process)
    with process:
        yield process


@pytest.fixture
def relay(kafka: KafkaCluster, jwks: Path, tmp_path: Path) -> Iterator[ProxyProcess]:
    """The same listeners, whose logins are relayed to the broker."""
    kafka.add_scram_user("carol", password_of("carol"))
    upstream = str(kafka.address(listener="NEVER"))
    config = relaying_logins(gateway_config(upstream, jwks, listeners=LISTENERS))
    with ProxyProcess(in_their_modes(config), tmp_path) as process:
        yield process


@pytest.mark.parametrize(("server", "listener"), [("relay", "PROBE"), ("proxy", "OBSERVE")])
def test_old_client_works_and_is_recorded(
    request: pytest.FixtureRequest,
    issuer: Issuer,
    topic: str,
    tmp_path: Path,
    server: str,
    listener: str,
) -> None:
    """The client works in a group with commits; nothing is lost or duplicated."""
    proxy: ProxyProcess = request.getfixturevalue(server)
    settings: dict[str, Any] = user(issuer, SCRAM).python(str(proxy.addresses()[listener]))
    settings |= {"api_version": OLD_PROTOCOL, "client_id": "old"}
    producer = python.KafkaProducer(**settings, acks="all")
    sent = [producer.send(topic, str(number).encode()) for number in range(RECORDS)]
    assert sorted(each.get(60).offset for each in sent) == list(range(RECORDS))
    producer.close()
    consumer = python.KafkaConsumer(
        topic, **settings, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    read = [next(consumer) for _ in range(RECORDS)]
    assert [each.offset for each in read] == list(range(RECORDS))
    consumer.commit()
    consumer.close()
    assert proxy.metric("expired_connections_killed_total") == 0
    proxy.stop()
    used = {
        (version["api"], version["version"])
        for event in proxy.events()
        for version in event.get("dropped_versions", ())
    }
    assert {("Produce", 2), ("Fetch", 2)} <= used
    kept = {APIS[key].name: version for key, version in FIRST_KEPT_BY_KAFKA_4.items()}
    assert all(version < kept[api] for api, version in used)
    (found,) = reported(tmp_path)["clients"]
    assert (found["principal"], found["client_id"]) == ("User:carol", "old")
    assert {"Produce v2", "Fetch v2"} <= set(found["versions"])


def reported(directory: Path) -> dict[str, Any]:
    """The readiness report's findings on Kafka 4.0."""
    events, out = directory / "events", directory / "report"
    options = ["--events", str(events), "--out", str(out), "--require", "kafka4-ready"]
    assert CliRunner().invoke(app, ["report", *options]).exit_code == 1
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    assert report["requirements"][0]["met"] is False
    found: dict[str, Any] = report["breaks_at_kafka_4"]
    return found


@pytest.mark.parametrize("mode", ["audit", "enforce"])
def test_offer_is_the_brokers_own_unless_acls_are_enforced(
    kafka: KafkaCluster, config: dict[str, Any], tmp_path: Path, mode: str
) -> None:
    config["authorizer"]["mode"] = mode
    at_kafka = offer(kafka.address())
    with ProxyProcess(config, tmp_path) as proxy:
        here = offer(proxy.addresses()["OBSERVE"])
    for key, kept in FIRST_KEPT_BY_KAFKA_4.items():
        if APIS[key].kind is Kind.FORWARDED:
            assert at_kafka[key] == 0
            # Produce is always announced from v0, for librdkafka
            assert here[key] == (kept if mode == "enforce" and key != PRODUCE else 0)


def offer(address: Address) -> dict[int, int]:
    """The lowest version of each API."""
    answer = ask(address, API_VERSIONS, 0)
    return {int(one.api_key): int(one.min_version) for one in answer.api_keys}


def test_dropped_versions_are_those_of_the_definitions(tmp_path: Path) -> None:
    before, after = (
        read_definitions(fetch_jar("kafka-clients", version, tmp_path / version))
        for version in (LAST_WITH_THEM, "4.0.1")
    )
    first = first_versions(after)
    dropped = {
        key: first[key]
        for key, version in first_versions(before).items()
        if version < first.get(key, 0)
    }
    assert dropped == {**FIRST_KEPT_BY_KAFKA_4, **BETWEEN_BROKERS}


def test_responses_of_dropped_versions_have_what_the_proxy_believes(tmp_path: Path) -> None:
    definitions = read_definitions(fetch_jar("kafka-clients", LAST_WITH_THEM, tmp_path / "jar"))
    responses = {one["apiKey"]: one for one in definitions.values() if one["type"] == "response"}
    for key, kept in FIRST_KEPT_BY_KAFKA_4.items():
        if APIS[key].kind is not Kind.FORWARDED:
            continue
        for version in range(kept):
            fields = names_in(responses[key]["fields"], version)
            assert ("ThrottleTimeMs" in fields) == has_throttle_time(key, version)
            assert not any(name.endswith(("Host", "Port")) for name in fields)
            assert not carries_addresses(key, version)


def names_in(fields: list[dict[str, Any]], version: int) -> set[str]:
    present = [one for one in fields if first_of(one["versions"]) <= version]
    nested = (names_in(one.get("fields", []), version) for one in present)
    return {one["name"] for one in present}.union(*nested)


def first_of(versions: str) -> int:
    return int(re.split("[-+]", versions)[0])


def first_versions(definitions: Mapping[str, Definition]) -> dict[int, int]:
    return {
        one["apiKey"]: first_of(one["validVersions"])
        for one in definitions.values()
        if one["type"] == "request"
    }
