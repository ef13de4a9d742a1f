"""The quota APIs compared with Kafka's, and the tools that use them, with two workers."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.quota.model import QuotaKey
from tests.support.kafka.acl_differential.side import PASSWORD, Client
from tests.support.kafka.clients import User, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster
from tests.support.kafka.java import Finished
from tests.support.kafka.quotas import (
    ALTER,
    CONSUMER,
    PRODUCER,
    SCRAM,
    alteration,
    description,
    enforcing_quotas,
    entities,
    ops,
    remove_kafkas,
)
from tests.support.proxy_process import SUPER_USER, ProxyProcess
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.usefixtures("no_quotas")]

WIRE_ADMIN = "wire-admin"


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    directory = tmp_path_factory.mktemp("quotas")
    process = enforcing_quotas(kafka, jwks, directory, administrator=WIRE_ADMIN)
    process.add_user(WIRE_ADMIN, PASSWORD, SCRAM)
    with process:
        yield process


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
    through = _logged_in(proxy, WIRE_ADMIN)
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


def _logged_in(proxy: ProxyProcess, name: str) -> Client:
    return Client(proxy.addresses()["LONG"], name)


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
