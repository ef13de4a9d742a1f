"""A Produce with acks=0 of which a part is denied: the allowed part is written, as by Kafka."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.acl_differential.profiles import creation
from tests.support.kafka.acl_differential.side import PASSWORD, SCRAM, Client
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.wire_client import Outcome, ask, record_batch
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LISTENER = "LONG"
TRIES = 24
PRODUCE, LIST_OFFSETS, METADATA, CREATE_ACLS = 0, 2, 3, 30


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = sidecar_config(str(kafka.address()), jwks, listeners={LISTENER: 3_600_000})
    process = ProxyProcess(enforcing_acls(config), tmp_path_factory.mktemp("produce"))
    for user in (SUPER_USER, "carol"):
        process.add_user(user, PASSWORD, SCRAM)
    with process:
        yield process


def test_what_is_allowed_is_written_when_the_connection_is_closed(
    kafka: KafkaCluster, proxy: ProxyProcess
) -> None:
    """With acks=0 the close is all that its client hears, and it may end with it."""
    address = proxy.addresses()[LISTENER]
    for name in ("allowed", "denied"):
        kafka.create_topic(name)
    rights = creation("+topic:allowed:WRITE", "carol", str)
    with closing(Client(address, SUPER_USER)) as admin:
        admin.ask(CREATE_ACLS, 3, {"creations": [rights]})
    with closing(Client(address, "carol")) as carol:
        wait_until(lambda: _sees(carol, "allowed"), what="carol may write")
    topics = [
        {"name": name, "partition_data": [{"index": 0, "records": record_batch(b"one")}]}
        for name in ("allowed", "denied")
    ]
    written = []
    for _ in range(TRIES):
        with closing(Client(address, "carol")) as carol:
            carol.send(PRODUCE, 11, {"acks": 0, "timeout": 30_000, "topic_data": topics})
            assert carol.receive(PRODUCE, 11) is Outcome.CLOSED
        written.append(_end(kafka, "allowed"))
    assert written == list(range(1, TRIES + 1))
    assert _end(kafka, "denied") == 0


def _sees(client: Client, topic: str) -> bool:
    topics = client.ask(METADATA, 12, {"topics": [{"name": topic}]}).topics
    return int(topics[0].error_code) == 0


def _end(kafka: KafkaCluster, topic: str) -> int:
    """How many records a topic has."""
    partition = {"partition_index": 0, "timestamp": -1}
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
    answer: Any = ask(kafka.address(), LIST_OFFSETS, 7, fields)
    return int(answer.topics[0].partitions[0].offset)
