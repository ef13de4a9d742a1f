"""Quotas with real clients: limits and throttle times, compared with Kafka's.

Most tests use two workers, so that what is shared is; each has users or client ids of its own.
Only figures independent of the machine are compared with Kafka: a request's throttle time, and the
bounds that the arithmetic of KIP-13 and KIP-599 sets."""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.acl_differential.side import PASSWORD, Client, log_in
from tests.support.kafka.clients import User, password_of, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster, wait_until
from tests.support.kafka.java import Finished
from tests.support.kafka.quotas import (
    ALTER,
    CONNECTIONS,
    MUTATIONS,
    PRODUCER,
    SCRAM,
    WINDOW_SECONDS,
    Side,
    Told,
    remove_kafkas,
    set_kafkas,
    set_quota,
    told_by_librdkafka,
)
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import SUPER_USER, ProxyProcess, Serve, gateway_config
from tests.support.sasl import Issuer
from tests.support.tables import table

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("no_quotas")]

WIRE_ADMIN = "wire-admin"


@pytest.fixture(scope="module")
def proxy(kafka: KafkaCluster, jwks: Path, serve: Serve) -> ProxyProcess:
    """A gateway with two workers that share usage."""
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    config["authorizer"]["super.users"].append(f"User:{WIRE_ADMIN}")
    process = serve(config | {"quotas": {"mode": "enforce"}, "workers": 2})
    process.add_user(WIRE_ADMIN, PASSWORD, SCRAM)
    return process


@pytest.fixture
def someone(kafka: KafkaCluster, proxy: ProxyProcess, issuer: Issuer) -> User:
    """A new user for each test, known to Kafka and to the proxy."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    kafka.add_scram_user(name, password_of(name))
    proxy.add_user(name, password_of(name), SCRAM)
    return user(issuer, SCRAM, name)


# --- throttle times compared with Kafka's


def test_throttles_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """Compares the announced throttle time of a burst."""
    set_kafkas(kafka, PRODUCER, 2_000.0, "user", someone.name)
    set_quota(proxy, PRODUCER, 2_000, user=someone.name)
    proxy.until_known()
    theirs_at = str(kafka.address(listener="LONG"))
    theirs = told_by_librdkafka(someone, theirs_at, topic, 26_000)
    ours = told_by_librdkafka(someone, bootstrap, topic, 26_000)
    # 26,100 bytes at 2,000 a second are 13.05 s, and the window has 10
    assert theirs == pytest.approx(3.05, abs=0.3)
    assert ours == pytest.approx(theirs, abs=0.2)
    set_kafkas(kafka, PRODUCER, None, "user", someone.name)


# --- controller_mutation_rate

RATE = 0.5
"""Partitions per second; the bucket holds 5.5."""
MANY = 33
"""Partitions that put the bucket in debt for more than 54 s."""


def validated(side: Side) -> Iterator[Told]:
    """validateOnly requests cost the same."""
    yield side.create(7, validate=True, v=MANY)
    yield side.create(7, a=1)


def strict(side: Side) -> Iterator[Told]:
    """Newer versions are refused once the second topic overdraws the bucket."""
    yield side.create(7, a=2, b=MANY, c=1)
    side.until_known(a=2, b=MANY)
    yield side.create(7, a=1, d=1)
    yield side.grow(3, a=3, b=MANY + 1, nobody=9)
    yield side.delete(6, "a", "nobody")
    yield side.create(6, e=1)
    yield side.delete(5, "b")


def permissive(side: Side) -> Iterator[Told]:
    """Requests of older versions are executed and throttled."""
    yield side.create(5, a=3, b=MANY)
    side.until_known(a=3, b=MANY)
    yield side.grow(2, a=4)
    yield side.create(5, a=1)
    yield side.delete(4, "b")


@pytest.mark.parametrize("program", [validated, strict, permissive])
def test_is_kafkas(kafka: KafkaCluster, proxy: ProxyProcess, program: Any) -> None:
    """Errors per topic and debts equal Kafka's."""
    sides = []
    for address in (kafka.address(listener="LONG"), proxy.addresses()["LONG"]):
        name = f"m-{uuid.uuid4().hex[:8]}"
        kafka.add_scram_user(name, PASSWORD)
        proxy.add_user(name, PASSWORD, SCRAM)
        set_kafkas(kafka, MUTATIONS, RATE, "user", name)
        set_quota(proxy, MUTATIONS, RATE, user=name)
        sides.append(Side(address, name))
    proxy.until_known()
    with ThreadPoolExecutor() as pool:
        kafkas, ours = pool.map(lambda side: list(program(side)), sides)
    assert [one.errors for one in ours] == [one.errors for one in kafkas]
    assert any(89 in one.errors.values() for one in ours) is (program is not permissive)
    for mine, theirs in zip(ours, kafkas, strict=True):
        assert (mine.throttle_time > 0) is (theirs.throttle_time > 0), (ours, kafkas)
        if mine.throttle_time > 0:
            low, high = mine.debt_since(ours[0])
            their_low, their_high = theirs.debt_since(kafkas[0])
            assert low <= their_high + 0.1, (ours, kafkas)
            assert their_low <= high + 0.1, (ours, kafkas)


# --- the APIs compared with Kafka's, and the tools that use them

QUESTIONS = table(__file__, "quota_questions")
"""API key and fields of DescribeClientQuotas and AlterClientQuotas, in their order."""


def normal(answer: Any) -> Any:
    """Normalize answers: ignore the order of entities and keys, and the error texts."""
    if hasattr(answer, "error_code"):
        entries = None
        if answer.entries is not None:
            entries = {
                frozenset((part.entity_type, part.entity_name) for part in entry.entity): {
                    one.key: one.value for one in entry.values
                }
                for entry in answer.entries
            }
        return int(answer.error_code), answer.error_message == "", entries
    return [
        (int(entry.error_code), {(part.entity_type, part.entity_name) for part in entry.entity})
        for entry in answer.entries
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_the_apis_answer_as_kafkas_do(
    kafka: KafkaCluster, proxy: ProxyProcess, version: int
) -> None:
    remove_kafkas(kafka)  # other modules use the same cluster
    own = Client(kafka.address(), None)
    through = Client(proxy.addresses()["LONG"], WIRE_ADMIN)
    differences = []
    for api_key, fields in QUESTIONS:
        ours = through.ask(api_key, version, fields)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while normal(theirs := own.ask(api_key, version, fields)) != normal(ours):
            # the broker learns of changes from its controller
            if api_key == ALTER or time.monotonic() > deadline:
                differences.append((fields, theirs, ours))
                break
            time.sleep(0.1)
    own.close()
    through.close()
    assert differences == []


# --- tools


def _configs(who: User, directory: Path, bootstrap: str, *arguments: str) -> Finished:
    tool = "kafka-configs"
    return who.java(directory).run_tool(tool, bootstrap, *arguments)


def test_kafka_configs_sets_and_shows(
    issuer: Issuer, bootstrap: str, tmp_path: Path, proxy: ProxyProcess
) -> None:
    admin = user(issuer, SCRAM, SUPER_USER)
    entity = ("--entity-type", "users", "--entity-name", "dora")
    both = (*entity, "--entity-type", "clients", "--entity-default")
    added = _configs(
        admin, tmp_path, bootstrap, "--alter", "--add-config", f"{PRODUCER}=1024", *both
    )
    assert added.exit_status == 0, added
    shown = _configs(admin, tmp_path, bootstrap, "--describe", *both)
    assert f"{PRODUCER}=1024.0" in shown.stdout, shown
    listed = json.loads(proxy.command("quotas", "list", "--output", "json"))
    wanted = {"entity": {"user": "dora", "client-id": None}, "quotas": {PRODUCER: 1024.0}}
    assert listed == [wanted]


# --- attacks

MAX_CONNECTIONS = 60
ELSEWHERE = "127.0.0.9"
"""Source address of the attacker."""


@pytest.fixture(scope="module")
def attacked(kafka: KafkaCluster, jwks: Path, serve: Serve) -> ProxyProcess:
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    config["listeners"][0]["max.connections"] = MAX_CONNECTIONS
    process = serve(config | {"quotas": {"mode": "enforce"}, "workers": 1}, users=False)
    process.add_user("mallory", PASSWORD, SCRAM)
    return process


def _connect(address: Address) -> socket.socket:
    """Connect from the attacker's address."""
    source = (ELSEWHERE, 0)
    return socket.create_connection(address[:2], timeout=DEADLINE_SECONDS, source_address=source)


def test_a_storm_from_one_address_leaves_room_for_others(attacked: ProxyProcess) -> None:
    """Connections beyond the rate wait, as in Kafka, but do not take slots of other clients."""
    set_quota(attacked, CONNECTIONS, 1, ip=ELSEWHERE)
    attacked.until_known()
    address = attacked.addresses()["LONG"]
    began = time.monotonic()
    with contextlib.ExitStack() as open_ones:
        for _ in range(200):
            open_ones.enter_context(_connect(address))
        with WireClient(address) as client:
            log_in(client, "mallory")  # a client that is accepted after them
    seconds = time.monotonic() - began
    refused = attacked.metric("connections_closed_total", reason="connection_rate")
    let_in = 200 - refused
    assert WINDOW_SECONDS <= let_in <= WINDOW_SECONDS + 2 + seconds, "a window's worth got in"
    assert attacked.metric("connections_closed_total", reason="too_many_connections") == 0
    wait_until(lambda: attacked.metric("connections") == 0, what="not all let go of")
