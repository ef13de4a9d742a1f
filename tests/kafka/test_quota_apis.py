"""The quota APIs compared with Kafka's, and the tools that use them, with two workers."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.acl_differential.side import PASSWORD, Client
from tests.support.kafka.clients import User, user
from tests.support.kafka.cluster import DEADLINE_SECONDS, KafkaCluster
from tests.support.kafka.java import Finished
from tests.support.kafka.quotas import (
    ALTER,
    PRODUCER,
    SCRAM,
    enforcing_quotas,
    remove_kafkas,
)
from tests.support.proxy_process import SUPER_USER, ProxyProcess
from tests.support.sasl import Issuer
from tests.support.tables import table

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
