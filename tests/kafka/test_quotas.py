"""Quotas with real clients, and beside Kafka's own: who is throttled, for how long, by which tools.

One worker more than one, so that what is shared is; each test has users or client ids of its own.
"""

import contextlib
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka as python
import pytest

from proxy.quota.model import QuotaKey
from tests.kafka import java
from tests.kafka.acl_side import PASSWORD, Client
from tests.kafka.clients import User, password_of
from tests.kafka.cluster import KafkaCluster, wait_until
from tests.kafka.conftest import add_users, user
from tests.kafka.java import Finished
from tests.kafka.proxied import SUPER_USER, ProxyProcess, gateway_config
from tests.kafka.tokens import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
STATIC = 1_900
KNOWN_WITHIN_SECONDS = 2.5
"""A quota bites on open connections within a second or so; the rest is the machine's."""
LEARNT_WITHIN_SECONDS = 3.0
DEADLINE = 30.0
WINDOW_SECONDS = 10
DESCRIBE, ALTER = 48, 49
WIRE_ADMIN, WIRE_USER = "wire-admin", "wire-user"
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    config["authorizer"]["super.users"].append(f"User:{WIRE_ADMIN}")
    config |= {"quotas": {"mode": "enforce", "quota.producer.default": STATIC}, "workers": 2}
    process = ProxyProcess(config, tmp_path_factory.mktemp("quotas"))
    add_users(process)
    for name in (WIRE_ADMIN, WIRE_USER):
        process.add_user(name, PASSWORD, SCRAM)
    with process:
        yield process


@pytest.fixture
def bootstrap(proxy: ProxyProcess) -> str:
    return str(proxy.addresses()["LONG"])


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"quotas-{uuid.uuid4()}"
    kafka.create_topic(name)
    return name


@pytest.fixture
def someone(proxy: ProxyProcess, issuer: Issuer) -> User:
    """A user of this test alone."""
    name = f"user-{uuid.uuid4().hex[:8]}"
    proxy.add_user(name, password_of(name), SCRAM)
    return user(issuer, SCRAM, name)


_OPTIONS = {"user": "--user", "client_id": "--client-id", "ip": "--ip"}


def set_quota(proxy: ProxyProcess, key: str, limit: float, **names: str | None) -> None:
    """`reauth-proxy quotas set`; a name of None is the default."""
    options = [
        part
        for kind, name in names.items()
        for part in ([f"{_OPTIONS[kind]}-defaults"] if name is None else [_OPTIONS[kind], name])
    ]
    proxy.command("quotas", "set", f"{key}={limit:g}", *options)


def remove_quotas(proxy: ProxyProcess) -> None:
    for row in json.loads(proxy.command("quotas", "list", "--output", "json")):
        options = [
            part
            for kind, name in row["entity"].items()
            for part in ([f"--{kind}-defaults"] if name is None else [f"--{kind}", name])
        ]
        proxy.command("quotas", "remove", *options)


@pytest.fixture(autouse=True)
def no_quotas(proxy: ProxyProcess) -> Iterator[None]:
    yield
    remove_quotas(proxy)


def told_by_librdkafka(who: User, bootstrap: str, topic: str, client_id: str, size: int) -> float:
    """Produces one message; returns the throttle time that librdkafka was told, in seconds."""
    told: list[float] = []
    settings = who.confluent(bootstrap, client_id=client_id, acks=1)
    settings |= {
        "throttle_cb": lambda event: told.append(event.throttle_time),
        "message.max.bytes": 10_000_000,
    }
    producer = confluent.Producer(settings)
    producer.produce(topic, b"x" * size)
    assert producer.flush(DEADLINE) == 0
    producer.poll(0.3)
    return max(told, default=0.0)


# --- the precedence table of KIP-55


ROWS: list[Callable[[str, str], dict[str, str | None]]] = [
    lambda user, client: {"user": user, "client_id": client},
    lambda user, _: {"user": user, "client_id": None},
    lambda user, _: {"user": user},
    lambda _, client: {"user": None, "client_id": client},
    lambda *_: {"user": None, "client_id": None},
    lambda *_: {"user": None},
    lambda _, client: {"client_id": client},
    lambda *_: {"client_id": None},
]


@pytest.mark.parametrize("row", range(1, 10))
def test_the_first_row_that_has_a_limit_applies(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str, row: int
) -> None:
    """All rows behind it are set too, each to another limit; which one it was, tells the time."""
    client_id = f"client-{row}"
    limits = {number: 1_000 + 100 * number for number in range(row, 9)}
    for number, limit in limits.items():
        set_quota(proxy, PRODUCER, limit, **ROWS[number - 1](someone.name, client_id))
    time.sleep(KNOWN_WITHIN_SECONDS)
    told = told_by_librdkafka(someone, bootstrap, topic, client_id, 40_000)
    by_row = {number: 40_100 / limit for number, limit in (limits | {9: STATIC}).items()}
    found = [number for number, wait in by_row.items() if abs(wait - WINDOW_SECONDS - told) <= 0.3]
    assert found == [row], (told, by_row)
    explained = json.loads(
        proxy.command(
            "quotas",
            "explain",
            "--user",
            someone.name,
            "--client-id",
            client_id,
            "--output",
            "json",
        )
    )
    (producer,) = (one for one in explained if one["key"] == PRODUCER)
    assert producer["limit"] == (limits | {9: STATIC})[row]


def test_clients_of_a_user_share_what_belongs_to_the_user(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """Row 3 is shared by client ids without a quota of their own, row 1 is not."""
    set_quota(proxy, PRODUCER, 1_000, user=someone.name)
    set_quota(proxy, PRODUCER, 1_000, user=someone.name, client_id="apart")
    time.sleep(KNOWN_WITHIN_SECONDS)
    assert told_by_librdkafka(someone, bootstrap, topic, "one", 8_000) == 0
    assert told_by_librdkafka(someone, bootstrap, topic, "apart", 8_000) == 0
    assert told_by_librdkafka(someone, bootstrap, topic, "two", 8_000) > 4


# --- beside Kafka's own


def entities(*parts: tuple[str, str | None]) -> list[dict[str, str | None]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in parts]


def ops(*changes: tuple[str, float | None]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes]


def alteration(parts: list[Any], changes: list[Any], *, validate_only: bool = False) -> Any:
    entries = [{"entity": parts, "ops": changes}]
    return ALTER, {"entries": entries, "validate_only": validate_only}


def description(*components: tuple[str, int, str | None], strict: bool = False) -> Any:
    listed = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]
    return DESCRIBE, {"components": listed, "strict": strict}


A, B = ("user", "quota-a"), ("client-id", "quota-b")
QUESTIONS: list[Any] = [
    description(),
    alteration(entities(A), ops((PRODUCER, 1024.0), (CONSUMER, 2048.0))),
    alteration(entities(A, B), ops((PRODUCER, 512.0))),
    alteration(entities(("user", None)), ops((CONSUMER, 100.0), ("request_percentage", 12.5))),
    alteration(entities(("client-id", None)), ops(("controller_mutation_rate", 3.5))),
    alteration(entities(("ip", "10.0.0.1")), ops(("connection_creation_rate", 5.0))),
    alteration(entities(("user", "<default>")), ops((PRODUCER, 7.0))),
    alteration(entities(A), ops((PRODUCER, 9_999.0)), validate_only=True),
    description(),
    description(strict=True),
    description(("user", 0, "quota-a")),
    description(("user", 0, "quota-a"), strict=True),
    description(("user", 1, None)),
    description(("user", 2, None)),
    description(("user", 2, None), ("client-id", 2, None)),
    description(("client-id", 0, "quota-b")),
    description(("ip", 2, None)),
    description(("ip", 0, "10.0.0.1")),
    description(("ip", 2, None), ("user", 2, None)),
    description(("group", 2, None)),
    description(("user", 2, None), ("user", 1, None)),
    description(("user", 3, None)),
    description(("user", 0, None)),
    description(("user", 1, "x")),
    description(("user", 2, "x")),
    description(("", 2, None)),
    alteration(entities(A), ops((PRODUCER, 0.0))),
    alteration(entities(A), ops((PRODUCER, -1.0))),
    alteration(entities(A), ops((PRODUCER, 1.5))),
    alteration(entities(A), ops((PRODUCER, 1e300))),
    alteration(entities(A), ops(("absurd", 1.0))),
    alteration(entities(A), ops(("connection_creation_rate", 1.0))),
    alteration(entities(("ip", "10.0.0.1")), ops((PRODUCER, 1.0))),
    alteration(entities(A), ops((PRODUCER, 1.0), (PRODUCER, 2.0))),
    alteration(entities(A), ops((CONSUMER, None), ("request_percentage", None))),
    alteration(entities(("group", "g")), ops((PRODUCER, 1.0))),
    alteration(entities(("user", "")), ops((PRODUCER, 1.0))),
    alteration(entities(A, ("ip", "10.0.0.1")), ops((PRODUCER, 1.0))),
    alteration([], ops((PRODUCER, 1.0))),
    description(("user", 2, None)),
    *(
        alteration(
            entities(*parts),
            ops(*((key, None) for key in QuotaKey if ("connection" in key) is of_ip)),
        )
        for parts, of_ip in (
            ((A,), False),
            ((A, B), False),
            ((("user", None),), False),
            ((("client-id", None),), False),
            ((("user", "<default>"),), False),
            ((("ip", "10.0.0.1"),), True),
        )
    ),
    description(),
]


def normal(answer: Any) -> Any:
    """What must be alike: not the order of entities and keys, nor the server's sentences."""
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
    own = Client(kafka.address(), None)
    through = _logged_in(proxy, WIRE_ADMIN)
    differences = []
    for api_key, fields in QUESTIONS:
        ours = through.ask(api_key, version, fields)
        deadline = time.monotonic() + LEARNT_WITHIN_SECONDS
        while normal(theirs := own.ask(api_key, version, fields)) != normal(ours):
            # Kafka's broker learns from its controller what was altered
            if api_key == ALTER or time.monotonic() > deadline:
                differences.append((fields, theirs, ours))
                break
            time.sleep(0.1)
    own.close()
    through.close()
    assert differences == []


def test_nobody_but_administrators(proxy: ProxyProcess) -> None:
    client = _logged_in(proxy, WIRE_USER)
    refused = client.ask(*_flat(description()))
    assert int(refused.error_code) == 31
    refused = client.ask(*_flat(alteration(entities(A), ops((PRODUCER, 1.0)))))
    assert [int(entry.error_code) for entry in refused.entries] == [31]
    client.close()
    assert json.loads(proxy.command("quotas", "list", "--output", "json")) == []


def _flat(question: Any) -> tuple[int, int, Any]:
    return question[0], 1, question[1]


def _logged_in(proxy: ProxyProcess, name: str) -> Client:
    return Client(proxy.addresses()["LONG"], name)


def test_throttles_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """The same clients one after the other: a burst, and what comes after the wait."""
    kafka.add_scram_user(someone.name, password_of(someone.name))
    kafka.ask(ALTER, 1, **alteration(entities(("user", someone.name)), ops((PRODUCER, 2_000.0)))[1])
    set_quota(proxy, PRODUCER, 2_000, user=someone.name)
    time.sleep(KNOWN_WITHIN_SECONDS)
    theirs_at = str(kafka.address(listener="LONG"))
    theirs = told_by_librdkafka(someone, theirs_at, topic, "any", 26_000)
    ours = told_by_librdkafka(someone, bootstrap, topic, "any", 26_000)
    # 26,100 bytes at 2,000 a second are 13.05 s, and the window has 10
    assert theirs == pytest.approx(3.05, abs=0.3)
    assert ours == pytest.approx(theirs, abs=0.2)
    kafka.ask(ALTER, 1, **alteration(entities(("user", someone.name)), ops((PRODUCER, None)))[1])


def test_holds_consumers_as_long_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """400 kB at 20 kB/s, of which some seconds' worth passes at once."""
    kafka.add_scram_user(someone.name, password_of(someone.name))
    entity = entities(("user", someone.name))
    kafka.ask(ALTER, 1, **alteration(entity, ops((CONSUMER, 20_000.0)))[1])
    set_quota(proxy, CONSUMER, 20_000, user=someone.name)
    unlimited = confluent.Producer({"bootstrap.servers": str(kafka.address())})
    for _ in range(40):
        unlimited.produce(topic, b"x" * 10_000)
        assert unlimited.flush(DEADLINE) == 0
    time.sleep(KNOWN_WITHIN_SECONDS)
    took = []
    for where in (str(kafka.address(listener="LONG")), bootstrap):
        settings = someone.confluent(where) | {"group.id": f"g-{uuid.uuid4()}"}
        small = {"auto.offset.reset": "earliest", "fetch.message.max.bytes": 12_000}
        consumer = confluent.Consumer(settings | small)
        consumer.assign([confluent.TopicPartition(topic, 0, 0)])
        assert len(consumer.consume(1, DEADLINE)) == 1
        began = time.monotonic()
        assert len(consumer.consume(39, DEADLINE)) == 39
        took.append(time.monotonic() - began)
        consumer.close()
    kafkas, ours = took
    assert kafkas > 5.0
    assert ours == pytest.approx(kafkas, abs=2.0)
    kafka.ask(ALTER, 1, **alteration(entity, ops((CONSUMER, None)))[1])


def test_lets_as_many_connections_in_as_kafka_does(
    kafka: KafkaCluster, proxy: ProxyProcess
) -> None:
    """Thirty at once at one per second; from an address of their own, on both."""
    elsewhere = "127.0.0.7"
    entity = entities(("ip", elsewhere))
    rate = "connection_creation_rate"
    kafka.ask(ALTER, 1, **alteration(entity, ops((rate, 1.0)))[1])
    set_quota(proxy, rate, 1, ip=elsewhere)
    time.sleep(KNOWN_WITHIN_SECONDS)
    served = []
    for address in (kafka.address(), proxy.addresses()["LONG"]):
        source = (elsewhere, 0)
        sockets = [
            socket.create_connection(address[:2], timeout=3, source_address=source)
            for _ in range(30)
        ]
        time.sleep(2.0)
        served.append(sum(_is_served(one) for one in sockets))
    kafka.ask(ALTER, 1, **alteration(entity, ops((rate, None)))[1])
    kafkas, ours = served
    assert ours == pytest.approx(kafkas, abs=2), served


# --- tools and libraries


def _configs(who: User, directory: Path, bootstrap: str, *arguments: str) -> Finished:
    tool = "kafka-configs"
    return who.java(directory).run_tool(tool, bootstrap, *arguments)


def test_kafka_configs_sets_shows_and_removes(
    issuer: Issuer, bootstrap: str, tmp_path: Path, proxy: ProxyProcess
) -> None:
    admin = user(issuer, SCRAM, SUPER_USER)
    entity = ("--entity-type", "users", "--entity-name", "dora")
    both = (*entity, "--entity-type", "clients", "--entity-default")
    added = _configs(
        admin, tmp_path, bootstrap, "--alter", "--add-config", f"{PRODUCER}=1024", *entity
    )
    assert added.exit_status == 0, added
    added = _configs(admin, tmp_path, bootstrap, "--alter", "--add-config", f"{CONSUMER}=9", *both)
    assert added.exit_status == 0, added
    shown = _configs(admin, tmp_path, bootstrap, "--describe", *entity)
    assert f"{PRODUCER}=1024.0" in shown.stdout, shown
    listed = json.loads(proxy.command("quotas", "list", "--output", "json"))
    assert {"entity": {"user": "dora"}, "quotas": {PRODUCER: 1024.0}} in listed
    assert {"entity": {"user": "dora", "client-id": None}, "quotas": {CONSUMER: 9.0}} in listed
    for key, where in ((PRODUCER, entity), (CONSUMER, both)):
        gone = _configs(admin, tmp_path, bootstrap, "--alter", "--delete-config", key, *where)
        assert gone.exit_status == 0, gone
    assert json.loads(proxy.command("quotas", "list", "--output", "json")) == []


def test_the_command_line_and_the_admin_client_go_through_the_proxy(
    proxy: ProxyProcess, issuer: Issuer, bootstrap: str, tmp_path: Path
) -> None:
    """And what is wrong with a request is one line and status 1."""
    admin = user(issuer, SCRAM, SUPER_USER).java(tmp_path).properties
    carol = user(issuer, SCRAM).java(tmp_path).properties

    def quotas(who: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
        through = ["--bootstrap-server", bootstrap, "--command-config", str(who)]
        command = [sys.executable, "-m", "proxy", "quotas", *arguments, *through]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    named = ("--user", "eve", "--client-id-defaults")
    assert quotas(admin, "set", f"{PRODUCER}=1234", *named).returncode == 0
    listed = quotas(admin, "list", "--user", "eve", "--output", "json")
    assert json.loads(listed.stdout) == [
        {"entity": {"user": "eve", "client-id": None}, "quotas": {PRODUCER: 1234.0}}
    ]
    explained = quotas(admin, "explain", "--user", "eve", "--client-id", "x")
    assert "2. /config/users/eve/clients/<default>: applies" in explained.stdout
    refused = quotas(carol, "set", f"{PRODUCER}=1", *named)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert quotas(admin, "remove", *named).returncode == 0
    assert quotas(admin, "remove", *named).returncode == 1
    assert json.loads(proxy.command("quotas", "list", "--output", "json")) == []


def test_kafka_python_shows_it(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    """Its metric, and a producer and a consumer that are slowed down but not disturbed."""
    set_quota(proxy, PRODUCER, 20_000, user=someone.name)
    set_quota(proxy, CONSUMER, 20_000, user=someone.name)
    time.sleep(KNOWN_WITHIN_SECONDS)
    producer = python.KafkaProducer(**someone.python(bootstrap, acks=1))
    for _ in range(24):
        producer.send(topic, b"x" * 10_000)
    producer.flush(DEADLINE)
    metrics = producer.metrics()["producer-metrics"]
    assert metrics["throttle-time-max"] > 1_000
    producer.close()
    consumer = python.KafkaConsumer(
        topic,
        **someone.python(bootstrap),
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=50_000,
        consumer_timeout_ms=int(1000 * DEADLINE),
    )
    began = time.monotonic()
    assert [len(next(consumer).value) for _ in range(24)] == [10_000] * 24
    assert time.monotonic() - began > 0.5
    consumer.close()


def test_javas_metric_shows_it(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    set_quota(proxy, PRODUCER, 50_000, user=someone.name)
    time.sleep(KNOWN_WITHIN_SECONDS)
    client = someone.java(tmp_path)
    tool = "kafka-producer-perf-test"
    done = java.run_tool(
        tool,
        [
            *("--topic", topic, "--num-records", "70", "--record-size", "10000"),
            *("--throughput", "-1", "--print-metrics"),
            *("--producer.config", str(client.properties)),
            *("--producer-props", f"bootstrap.servers={bootstrap}"),
        ],
    )
    assert done.exit_status == 0, done
    (line,) = (one for one in done.stdout.splitlines() if "produce-throttle-time-max" in one)
    assert float(line.rsplit(":", 1)[1]) > 1_000, line


def test_a_change_takes_effect_on_an_open_connection(
    proxy: ProxyProcess, someone: User, bootstrap: str, topic: str
) -> None:
    told: list[float] = []
    settings = someone.confluent(bootstrap, acks=1)
    producer = confluent.Producer(
        settings | {"throttle_cb": lambda event: told.append(event.throttle_time)}
    )
    set_quota(proxy, PRODUCER, 1_000_000, user=someone.name)
    time.sleep(KNOWN_WITHIN_SECONDS)
    producer.produce(topic, b"x" * 30_000)
    assert producer.flush(DEADLINE) == 0
    assert told == []
    set_quota(proxy, PRODUCER, 2_000, user=someone.name)
    time.sleep(KNOWN_WITHIN_SECONDS)
    producer.produce(topic, b"x" * 1_000)
    assert producer.flush(DEADLINE) == 0
    producer.poll(0.3)
    assert max(told) > 2, "what was used before counts"
    assert proxy.metric("quota_throttles_total", quota=PRODUCER) >= 1
    assert proxy.metric("throttled_connections") >= 1
    assert f"user={someone.name} is throttled" in proxy.log()


def test_others_feel_nothing(
    proxy: ProxyProcess, someone: User, issuer: Issuer, bootstrap: str, topic: str
) -> None:
    set_quota(proxy, PRODUCER, 1_000, user=someone.name)
    set_quota(proxy, PRODUCER, 10_000_000, user="carol")
    time.sleep(KNOWN_WITHIN_SECONDS)
    assert told_by_librdkafka(someone, bootstrap, topic, "a", 30_000) > 10
    began = time.monotonic()
    assert told_by_librdkafka(user(issuer, SCRAM), bootstrap, topic, "b", 30_000) == 0
    assert time.monotonic() - began < 5


def test_an_address_that_connects_too_often_is_turned_away(
    proxy: ProxyProcess,
) -> None:
    """KIP-612; a window's worth passes at once, further ones are closed after a while."""
    set_quota(proxy, "connection_creation_rate", 1, ip="127.0.0.1")
    time.sleep(KNOWN_WITHIN_SECONDS)
    address = proxy.addresses()["LONG"]
    before = proxy.metric("connections_closed_total", reason="connection_rate")
    sockets = [socket.create_connection(address[:2], timeout=3) for _ in range(30)]
    time.sleep(1.5)
    closed = 0
    for one in sockets:
        one.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            closed += one.recv(1) == b""
        one.close()
    assert 15 <= closed <= 25
    now = proxy.metric("connections_closed_total", reason="connection_rate")
    assert now - before == closed
    remove_quotas(proxy)
    wait_until(lambda: _gets_in(address), 10, what="nobody gets in any more", details=proxy.log)


def _gets_in(address: Any) -> bool:
    return _is_served(socket.create_connection(address[:2], timeout=3))


def _is_served(one: socket.socket) -> bool:
    with one:
        one.settimeout(1.0)
        try:
            one.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", "")))
            return len(one.recv(4)) == 4
        except OSError:
            return False
