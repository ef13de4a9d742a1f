"""Groups in tokens on a real Kafka, and its own tools."""

import itertools
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.support.kafka import java
from tests.support.kafka.clients import OAUTHBEARER, User, acl_binding, add_users, confluent_admin
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.traffic import end_offset
from tests.support.kafka.upstream import (
    LITTLE,
    add_proxys_users,
    by_password,
    sasl_cluster,
)
from tests.support.proxy_process import ProxyProcess, enforcing_acls, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

DEADLINE = 120.0
QUICK_MS = 4_000
TOKEN_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(User):
    """A user whose groups may change between two tokens."""

    groups: list[str] = field(default_factory=list)

    def token(self) -> str:
        """A token with the groups of this moment."""
        return self.issuer.mint(self.name, self.token_lifetime, groups=list(self.groups))


def member(issuer: Issuer, name: str, *groups: str) -> Member:
    return Member(name=name, mechanism=OAUTHBEARER, issuer=issuer, groups=list(groups))


@pytest.fixture(scope="module")
def brokers(jwks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with sasl_cluster(jwks, tmp_path_factory.mktemp("brokers")) as cluster:
        add_proxys_users(cluster)
        yield cluster


@pytest.fixture(scope="module")
def proxy(
    brokers: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """A proxy with ACLs stored at the brokers, and sessions of a few seconds."""
    directory = tmp_path_factory.mktemp("proxy")
    upstream = str(brokers.address(listener=LITTLE))
    listeners = {"LONG": 3_600_000, "QUICK": QUICK_MS}
    settings = enforcing_acls(gateway_config(upstream, jwks, listeners=listeners))
    settings["upstream"] |= by_password("SCRAM-SHA-256", directory)
    settings["store"] = {"url": "broker:state.db", "refresh.ms": 500}
    for listener in settings["listeners"]:
        listener["sasl.oauthbearer.groups.claim.name"] = "groups"
    process = ProxyProcess(settings, directory)
    add_users(process)
    with process:
        yield process
    assert "Traceback" not in process.log()


@pytest.fixture
def topic(brokers: KafkaCluster) -> str:
    name = f"groups-{uuid.uuid4()}"
    brokers.create_topic(name)
    return name


def acl(brokers: KafkaCluster, *arguments: str) -> str:
    """Run kafka-acls.sh at the broker itself."""
    done = java.run_tool("kafka-acls", ["--bootstrap-server", brokers.bootstrap(), *arguments])
    assert done.exit_status == 0, done.stderr
    return done.stdout


def allow(brokers: KafkaCluster, principal: str, topic: str) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": brokers.bootstrap()})
    for done in admin.create_acls([acl_binding(topic, principal, "WRITE")]).values():
        done.result(DEADLINE)


def writes(who: User, proxy: ProxyProcess, topic: str) -> bool:
    """Whether a record from librdkafka is accepted."""
    reported: list[confluent.KafkaError | None] = []
    producer = confluent.Producer(who.confluent(str(proxy.addresses()["LONG"])))
    producer.produce(topic, b"-", on_delivery=lambda error, _: reported.append(error))
    assert producer.flush(DEADLINE) == 0
    (error,) = reported
    assert error is None or error.code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED, error
    return error is None


def test_groups_in_acls_that_kafkas_tool_stores_at_the_brokers(
    brokers: KafkaCluster, proxy: ProxyProcess, issuer: Issuer, topic: str
) -> None:
    allowed = ("--add", "--allow-principal", "Group:analysts", "--operation", "Write")
    assert "principal=Group:analysts" in acl(brokers, *allowed, "--topic", topic)
    one, other = member(issuer, "alice", "analysts"), member(issuer, "analysts", "else")
    wait_until(lambda: writes(one, proxy, topic), what="the group may not write")
    assert not writes(other, proxy, topic), "its name is a group's, and it is in none"
    acl(
        brokers,
        "--add",
        "--deny-principal",
        "Group:interns",
        "--operation",
        "All",
        "--topic",
        topic,
    )
    both = member(issuer, "bob", "analysts", "interns")
    wait_until(lambda: not writes(both, proxy, topic), what="what is denied is allowed")
    assert writes(one, proxy, topic)


def test_a_group_that_is_lost_while_producing(
    brokers: KafkaCluster, proxy: ProxyProcess, issuer: Issuer
) -> None:
    """The first Produce after the re-authentication is denied; all earlier ones are stored once."""
    topic = f"lost-{uuid.uuid4()}"
    brokers.create_topic(topic)
    allow(brokers, "Group:analysts", topic)
    # librdkafka refreshes a token after most of its lifetime
    who = replace(member(issuer, "alice", "analysts"), token_lifetime=TOKEN_SECONDS)
    wait_until(lambda: writes(who, proxy, topic), what="the group may not write")
    before = end_offset(brokers, topic, 0)
    taken: list[int] = []
    denied: list[confluent.KafkaError] = []

    def reported(error: confluent.KafkaError | None, _message: object) -> None:
        if error is None:
            assert not denied, "taken after it was denied"
            taken.append(1)
        else:
            denied.append(error)

    bootstrap = str(proxy.addresses()["QUICK"])
    producer = confluent.Producer(
        who.confluent(bootstrap, enable_idempotence=False, linger_ms=0, max_in_flight=1)
    )
    deadline = time.monotonic() + DEADLINE
    for number in itertools.count():
        assert time.monotonic() < deadline, "never denied"
        try:
            producer.produce(topic, str(number).encode(), on_delivery=reported)
        except confluent.KafkaException as at_once:
            denied.append(at_once.args[0])
        producer.poll(0.01)
        if len(taken) > 20:
            who.groups.clear()
        if denied:
            break
    producer.flush(DEADLINE)
    assert denied[0].code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert end_offset(brokers, topic, 0) - before == len(taken)

    def lost() -> list[dict[str, Any]]:
        return [one for one in proxy.events() if one.get("groups_left")]

    wait_until(lambda: bool(lost()), what="no event says that a group was lost")
    assert {one["kind"] for one in lost()} == {"reauthenticated"}
    assert all(one["groups_left"] == ["Group:analysts"] for one in lost())
