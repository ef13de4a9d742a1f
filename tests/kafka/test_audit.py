"""Records of use, against the log of Kafka's authorizer; and the ACLs that they recommend."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka import admin as administration

from metrics.readiness.analysis import Analysis, Question
from metrics.readiness.duckdb_engine import DuckEngine
from metrics.readiness.folder import event_files
from tests.support.kafka.acl_differential.profiles import as_filter, creation
from tests.support.kafka.clients import User, password_of
from tests.support.kafka.cluster import KafkaCluster
from tests.support.messages import Values
from tests.support.proxy_process import ProxyProcess, gateway_config, relaying_logins
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SASL = "SASL"
USERS = ("alice", "bob", "carol", "dave", "erin")
_AUDITED = re.compile(
    r"Principal = (User:\S+) is Allowed operation = (\S+) from host = \S+"
    r" on resource = (\w+):LITERAL:(\S+) for request = (\S+) "
)
Use = tuple[str, str, str, str]
"""Principal, operation, type and name of the resource, without underscores and in capitals."""


@pytest.fixture(scope="module")
def kafka(jwks: Path) -> Iterator[KafkaCluster]:
    """A broker whose authorizer logs what it allows; the five users may do everything at first."""
    with KafkaCluster(
        jwks=jwks,
        sasl_listeners={SASL: 0},
        jvm_options=("-Dauthorizer.log.level=debug",),
        properties={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
    ) as started:
        for name in USERS:
            started.add_scram_user(name, password_of(name))
        yield started


_CREATE_ACLS, _DELETE_ACLS = 30, 31


def acl(principal: str, kind: str, name: str, operation: str) -> Values:
    kind = "txn" if kind == "TRANSACTIONAL_ID" else kind.lower()
    return creation(f"+{kind}:{name}:{operation}", principal.removeprefix("User:"), str)


class Workload:
    """Five clients with random numbers of requests; a client fails if it is denied something."""

    def __init__(self, bootstrap: str, issuer: Issuer, seed: int) -> None:
        self._bootstrap = bootstrap
        self._issuer = issuer
        self._chance = random.Random(seed)  # noqa: S311 - not for secrets

    def run(self) -> None:
        for name in USERS:
            getattr(self, name)()

    def alice(self) -> None:
        """An idempotent producer."""
        producer = confluent.Producer(self._settings("alice", enable_idempotence=True))
        send(producer, "a", self._chance.randint(20, 60))

    def bob(self) -> None:
        """Transactions that consume and produce."""
        group = {"group_id": "moved", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = confluent.Consumer(self._settings("bob", **group))
        producer = confluent.Producer(self._settings("bob", transactional_id="txn"))
        consumer.subscribe(["a"])
        producer.init_transactions(60)
        for _ in range(self._chance.randint(2, 4)):
            read(consumer, 3)
            producer.begin_transaction()
            producer.produce("c", "moved")
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)
        consumer.close()

    def carol(self) -> None:
        """A group that reads two topics."""
        group = {"group_id": "read", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = confluent.Consumer(self._settings("carol", **group))
        consumer.subscribe(["a", "b"])
        read(consumer, self._chance.randint(10, 20))
        consumer.commit(asynchronous=False)
        consumer.close()

    def dave(self) -> None:
        """A plain producer to two topics."""
        producer = confluent.Producer(self._settings("dave", enable_idempotence=False, acks=1))
        for topic in ("a", "b"):
            send(producer, topic, self._chance.randint(15, 40))

    def erin(self) -> None:
        """Administration."""
        admin: Any = administration
        client = admin.AdminClient(self._settings("erin"))
        for futures in (
            client.create_topics([admin.NewTopic("new", 1, 1)]),
            client.describe_configs([admin.ConfigResource("topic", "a")]),
            client.delete_topics(["new"]),
        ):
            for future in futures.values():
                future.result(60)

    def _settings(self, name: str, **more: Any) -> dict[str, Any]:
        user = User(name=name, mechanism="SCRAM-SHA-256", issuer=self._issuer)
        return user.confluent(self._bootstrap, client_id=f"app-{name}", **more)


def send(producer: Any, topic: str, number: int) -> None:
    failed: list[Any] = []
    for at in range(number):
        producer.produce(topic, f"{at}", on_delivery=lambda error, _: failed.append(error))
        producer.poll(0)
    assert producer.flush(120) == 0
    assert set(failed) == {None}


def read(consumer: Any, number: int) -> None:
    while number > 0:
        message = consumer.poll(120)
        assert message is not None
        assert message.error() is None, message.error()
        number -= 1


def plain(operation: str) -> str:
    return operation.replace("_", "").upper()


def recorded(events: Path) -> Counter[Use]:
    found: Counter[Use] = Counter()
    for file in events.glob("*.jsonl"):
        for one in map(json.loads, file.read_text().splitlines()):
            if one["kind"] == "used":
                resource = plain(one["resource_type"]), one["resource_name"]
                found[(one["principal"], plain(one["operation"]), *resource)] += one["requests"]
    return found


def allowed(kafka: KafkaCluster) -> Counter[Use]:
    """Operations that the broker's authorizer has allowed. It logs a check for any topic as
    `hardcode`, and one that only decides what the answer to CreateTopics contains."""
    found: Counter[Use] = Counter()
    for principal, operation, kind, name, api in _AUDITED.findall(kafka.log()):
        known = principal.removeprefix("User:") in USERS
        if known and (operation, api) != ("DESCRIBE_CONFIGS", "CreateTopics"):
            name = name.replace("hardcode", "*")
            found[(principal, plain(operation), plain(kind), name)] += 1
    return found


def needed(events: Path) -> list[Values]:
    """The smallest set of ACLs, according to the report."""
    with DuckEngine() as engine:
        engine.read(event_files(str(events)))
        analysis = Analysis(engine, engine, Question(as_of_ms=2**46), lambda _: None)
        analysis.run()
    return [
        acl(row["principal"], row["resource_type"], row["resource_name"], operation)
        for row in analysis.rows["needed_acls"]
        for operation in row["operations"]
    ]


MAX_LOOKUPS = 4
"""Maximum number of Metadata requests of the proxy about a client's topics, and of Fetches that the
broker has not read when their client closes."""


def test_kafka_counts_the_same_and_the_recommended_acls_suffice(
    kafka: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    kinds = ("TOPIC", "GROUP", "TRANSACTIONAL_ID")
    everything = [acl(f"User:{name}", kind, "*", "ALL") for name in USERS for kind in kinds]
    kafka.ask(_CREATE_ACLS, 3, creations=everything)
    for name in "abc":
        kafka.create_topic(name)
    upstream = str(kafka.address(listener=SASL))
    config = relaying_logins(gateway_config(upstream, jwks, listeners={"LONG": 3_600_000}))
    config |= {"authorizer": {"mode": "audit"}, "events": {"directory": "events", "usage": True}}
    with ProxyProcess(config, tmp_path) as proxy:
        workload = Workload(str(proxy.addresses()["LONG"]), issuer, seed=7)
        workload.dave()  # so that everybody has something to read
        workload.run()
    ours, theirs = recorded(tmp_path / "events"), allowed(kafka)
    assert len(ours) >= 20
    differences = {use: ours[use] - theirs[use] for use in ours.keys() | theirs.keys()}
    for use, difference in differences.items():
        is_inexact = use[1] in ("READ", "DESCRIBE") and use[2] == "TOPIC"
        assert abs(difference) <= (MAX_LOOKUPS if is_inexact else 0), (use, differences)

    kafka.ask(_CREATE_ACLS, 3, creations=needed(tmp_path / "events"))
    # the broker applies changes in order: without the old ACLs, it has the new ones
    kafka.ask(_DELETE_ACLS, 3, filters=[as_filter(one) for one in everything])
    with ProxyProcess(config, tmp_path) as proxy:
        Workload(str(proxy.addresses()["LONG"]), issuer, seed=8).run()
