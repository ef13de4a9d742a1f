"""Brokers see the clients of a proxy that terminates SASL: they answer as if connected directly."""

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.upstream import LITTLE, by_password, sidecar_of
from tests.support.kafka.wire_client import Address, WireClient, metadata_fields
from tests.support.messages import request_body
from tests.support.proxy_process import ProxyProcess
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

METADATA, CREATE_TOPICS, DESCRIBE_ACLS, CREATE_ACLS = 3, 19, 29, 30
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
SCRAM = "SCRAM-SHA-256"
LITERAL, PREFIXED, ANY, TOPIC, ALLOW = 3, 4, 1, 2, 3
ALL = 2
RUN = uuid.uuid4().hex
"""The brokers serve the whole run: names of this module are its own."""
CAROL, DAVE = f"carol-{RUN}", f"dave,={RUN}"
"""Users of the brokers and of the proxy; SCRAM must escape Dave's name."""
ERIN = f"erin-{RUN}"
"""The proxy authenticates her, but has no login for her at brokers."""


def secret_of(name: str) -> str:
    return f"at brokers: {name}"


@pytest.fixture(scope="module")
def brokers(sasl_kafka: KafkaCluster) -> KafkaCluster:
    """Carol may create topics, Dave may read one of them."""
    for name in (CAROL, DAVE):
        sasl_kafka.add_scram_user(name, secret_of(name), SCRAM)
    sasl_kafka.create_topic(f"{RUN}-topic")
    rules = [(CAROL, f"{RUN}-", PREFIXED, ALL), (DAVE, f"{RUN}-topic", LITERAL, ALL)]
    creations = [
        {
            "resource_type": TOPIC,
            "resource_name": name,
            "resource_pattern_type": kind,
            "principal": f"User:{user}",
            "host": "*",
            "operation": operation,
            "permission_type": ALLOW,
        }
        for user, name, kind, operation in rules
    ]
    sasl_kafka.ask(CREATE_ACLS, 3, creations=creations)
    return sasl_kafka


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mapped")
    for name, encoded in ((CAROL, CAROL), (DAVE, f"dave%2C%3D{RUN}")):
        (directory / encoded).mkdir()
        (directory / encoded / "username").write_text(name)
        (directory / encoded / "password").write_text(secret_of(name))
    return directory


@pytest.fixture(scope="module")
def proxy(
    brokers: KafkaCluster, jwks: Path, entries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    directory = tmp_path_factory.mktemp("proxy")
    config = sidecar_of(brokers, LITTLE, jwks, by_password(SCRAM, directory))
    config["listeners"][0] |= {
        "upstream.identity": "mapped",
        "upstream.identity.directory": str(entries),
        "upstream.identity.mechanism": SCRAM,
        "upstream.identity.allow.prefixes": ["User:"],
        "upstream.identity.super.users": [],
    }
    with ProxyProcess(config, directory) as process:
        yield process
    log = process.log()
    assert "Traceback" not in log
    assert "at brokers: " not in log, "a password was logged"


def answers(address: Address, issuer: Issuer, user: str) -> list[Any]:
    """What the broker answers to one user, case by case."""
    topics = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name in (f"{RUN}-new", f"other-{RUN}")
    ]
    acls = {
        "resource_type_filter": TOPIC,
        "resource_name_filter": f"{RUN}-topic",
        "pattern_type_filter": LITERAL,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    quota = {
        "entity": [{"entity_type": "user", "entity_name": user}],
        "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}],
    }
    cases: list[tuple[int, int, dict[str, Any]]] = [
        (METADATA, 12, metadata_fields([f"{RUN}-topic", f"other-{RUN}"])),
        (CREATE_TOPICS, 6, {"topics": topics, "timeout": 60_000, "validate_only": True}),
        (DESCRIBE_ACLS, 3, acls),
        (DESCRIBE_QUOTAS, 1, {"components": [], "strict": False}),
        (ALTER_QUOTAS, 1, {"entries": [quota], "validate_only": True}),
    ]
    with WireClient(address) as client:
        actor = Actor(client, issuer)
        actor.oauth(issuer.mint(user))
        return [
            actor.ask(key, version, request_body(key, version, **fields))
            for key, version, fields in cases
        ]


def shown(answer: Any) -> str:
    """An answer without the number of the connection, which Kafka's messages name."""
    return re.sub(r"Request\(processor=.*?\) needs", "it needs", repr(answer))


@pytest.mark.parametrize("user", [CAROL, DAVE])
def test_the_broker_answers_as_if_the_client_were_connected_directly(
    brokers: KafkaCluster, proxy: ProxyProcess, issuer: Issuer, user: str
) -> None:
    behind = answers(proxy.addresses()["LONG"], issuer, user)
    directly = answers(brokers.address(listener=LITTLE), issuer, user)
    assert [*map(shown, behind)] == [*map(shown, directly)]
    assert None not in behind
    created = [topic.error_code for topic in behind[1].topics]
    assert created == ([0, 29] if user == CAROL else [29, 29])
    assert behind[2].error_code == 31  # the proxy's own login is a super user's


def test_a_client_without_a_login_at_brokers_is_refused(
    proxy: ProxyProcess, issuer: Issuer
) -> None:
    """It gets no other identity, and the broker no request."""
    assert answers(proxy.addresses()["LONG"], issuer, ERIN)[0] is None
    wait_until(
        lambda: proxy.metric("connections_closed_total", reason="identity_refused") == 1,
        what="not counted",
        details=proxy.log,
    )
    line = f"'User:{ERIN}' has no login as 'User:{ERIN}'"
    wait_until(lambda: line in proxy.log(), what="not logged", details=proxy.log)


def test_a_login_that_brokers_refuse_closes_the_connection(
    proxy: ProxyProcess, issuer: Issuer, entries: Path
) -> None:
    """The files are read again; a wrong password is not made up for by the proxy's identity."""
    password = entries / CAROL / "password"
    password.write_text("wrong")
    try:

        def is_refused() -> bool:
            return answers(proxy.addresses()["LONG"], issuer, CAROL)[0] is None

        wait_until(is_refused, what="let in by an old password", details=proxy.log)
        line = f"login of client 'User:{CAROL}' failed: "
        wait_until(lambda: line in proxy.log(), what="not logged", details=proxy.log)
    finally:
        password.write_text(secret_of(CAROL))
