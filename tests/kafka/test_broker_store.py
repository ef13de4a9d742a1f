"""ACLs and quotas stored at the brokers: proxies on two hosts apply the same ones, to groups, too.

The brokers allow only the proxy; the clients' rights are judged in the proxies, by the
brokers' own ACLs.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from proxy.admin import AdminClient, Scram
from tests.support.kafka import java
from tests.support.kafka.clients import (
    OAUTHBEARER,
    User,
    acl_binding,
    add_users,
    confluent_admin,
    password_of,
    user,
)
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.quotas import PRODUCER
from tests.support.kafka.traffic import end_offset
from tests.support.kafka.upstream import (
    LITTLE,
    PASSWORD,
    add_proxys_users,
    by_password,
    by_token_file,
    sasl_cluster,
)
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
DEADLINE = 120.0
REFRESH_MS = 500
EVERYTHING = confluent_admin.AclBindingFilter(
    confluent_admin.ResourceType.ANY,
    None,
    confluent_admin.ResourcePatternType.ANY,
    None,
    None,
    confluent_admin.AclOperation.ANY,
    confluent_admin.AclPermissionType.ANY,
)


@pytest.fixture(scope="module")
def brokers(jwks: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A node for this module alone, because its ACLs and quotas change."""
    with sasl_cluster(jwks, tmp_path_factory.mktemp("brokers")) as cluster:
        add_proxys_users(cluster)
        yield cluster


def config(brokers: KafkaCluster, jwks: Path, login: dict[str, Any]) -> dict[str, Any]:
    upstream = str(brokers.address(listener=LITTLE))
    settings = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000})
    settings["upstream"] |= login
    settings["store"] = {"url": "broker:state.db", "refresh.ms": REFRESH_MS}
    settings["authorizer"]["mode"] = "enforce"
    settings["quotas"] = {"mode": "enforce"}
    return settings


@pytest.fixture(scope="module")
def hosts(
    brokers: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ProxyProcess, ProxyProcess]]:
    """Two proxies, each with its own database; the first has two workers."""
    directories = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    first, second = (
        ProxyProcess(
            config(brokers, jwks, by_password(SCRAM, directory)) | {"workers": workers}, directory
        )
        for directory, workers in zip(directories, (2, 1), strict=True)
    )
    for process in (first, second):
        add_users(process)
    with first, second:
        yield first, second
    for process in (first, second):
        assert "Traceback" not in process.log()
        assert PASSWORD not in process.log()


@pytest.fixture
def topic(brokers: KafkaCluster) -> str:
    name = f"topic-{uuid.uuid4()}"
    brokers.create_topic(name)
    return name


@pytest.fixture
def at_brokers(brokers: KafkaCluster) -> Any:
    """An administrator who connects directly to the brokers."""
    return confluent_admin.AdminClient({"bootstrap.servers": brokers.bootstrap()})


def bootstrap_of(proxy: ProxyProcess) -> str:
    return str(proxy.addresses()["LONG"])


def administrator(issuer: Issuer, proxy: ProxyProcess) -> Any:
    return confluent_admin.AdminClient(
        user(issuer, SCRAM, SUPER_USER).confluent(bootstrap_of(proxy))
    )


def may_write(topic: str, principal: str = "User:carol") -> Any:
    return acl_binding(topic, principal, "WRITE")


def exactly(acl: Any) -> Any:
    return confluent_admin.AclBindingFilter(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def create(admin: Any, *acls: Any) -> None:
    for done in admin.create_acls(list(acls), request_timeout=DEADLINE).values():
        done.result()


def delete(admin: Any, acl: Any) -> list[Any]:
    (done,) = admin.delete_acls([exactly(acl)], request_timeout=DEADLINE).values()
    return list(done.result())


def listed(admin: Any, acl: Any) -> bool:
    return acl in admin.describe_acls(EVERYTHING, request_timeout=DEADLINE).result()


class Writer:
    """A producer that keeps one connection open."""

    def __init__(self, who: User, proxy: ProxyProcess, topic: str) -> None:
        self._topic = topic
        self._producer = confluent.Producer(who.confluent(bootstrap_of(proxy)))

    def may(self) -> bool:
        """Whether a record is accepted; False if the write is not authorized."""
        reported: list[confluent.KafkaError | None] = []
        try:
            self._producer.produce(
                self._topic, b"-", on_delivery=lambda error, _: reported.append(error)
            )
        except confluent.KafkaException as at_once:  # the client caches the error for a while
            reported.append(at_once.args[0])
        assert self._producer.flush(DEADLINE) == 0
        (error,) = reported
        if error is not None:
            assert error.code() == confluent.KafkaError.TOPIC_AUTHORIZATION_FAILED, error
        return error is None


# --- ACLs


def test_what_one_host_is_told_the_brokers_keep(
    hosts: tuple[ProxyProcess, ProxyProcess],
    at_brokers: Any,
    issuer: Issuer,
    carol: User,
    topic: str,
) -> None:
    """A change applies at once on the host that made it, and soon on the other."""
    first, second = hosts
    admin = administrator(issuer, first)
    create(admin, may_write(topic))
    assert listed(admin, may_write(topic))
    first.until_known()
    here = Writer(carol, first, topic)
    assert all(here.may() for _ in range(5))
    wait_until(lambda: listed(at_brokers, may_write(topic)), what="the brokers do not know it")
    there = Writer(carol, second, topic)
    wait_until(there.may, what="not allowed there")

    assert delete(admin, may_write(topic)) == [may_write(topic)]
    assert not listed(admin, may_write(topic))
    wait_until(lambda: not listed(at_brokers, may_write(topic)), what="the brokers have it yet")
    wait_until(lambda: not there.may(), what="still allowed there")
    wait_until(lambda: not here.may(), what="still allowed here")


# --- quotas


async def quotas_told(proxy: ProxyProcess) -> dict[str, float]:
    """The quotas that a host reports."""
    login = Scram(username=SUPER_USER, password=password_of(SUPER_USER))
    async with AdminClient(bootstrap_of(proxy), login=login) as admin:
        entities = (await admin.describe_client_quotas()).entities()
    return {key: value for values in entities.values() for key, value in values.items()}


def test_quotas_are_the_brokers(
    hosts: tuple[ProxyProcess, ProxyProcess], brokers: KafkaCluster
) -> None:
    """Quotas set with the command line of one host reach the brokers and the other host."""
    first, second = hosts
    names = ["--user", "erin", "--client-id", "c"]
    first.command("quotas", "set", *names, f"{PRODUCER}=1000")
    wait_until(
        lambda: asyncio.run(quotas_told(second)) == {PRODUCER: 1000.0}, what="not known there"
    )
    (entry,) = brokers.ask(48, 1, components=(), strict=False).entries
    assert [(value.key, value.value) for value in entry.values] == [(PRODUCER, 1000.0)]
    second.command("quotas", "remove", *names)
    wait_until(lambda: not asyncio.run(quotas_told(first)), what="known yet")


# --- brokers that are down


def assert_unready(process: ProxyProcess, reason: str) -> None:
    """The proxy is unready from its start, and `/readyz` reports the reason."""
    try:
        process.start_unready()
        wait_until(lambda: any(reason in one for one in process.reasons()), what=reason)
    finally:
        process.stop()


def test_brokers_that_refuse_the_proxy_are_told_of(
    brokers: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """The brokers deny the proxy's principal: no client gets in, and `/readyz` reports why."""
    settings = config(brokers, jwks, by_token_file(tmp_path, issuer.mint("nobody")))
    process = ProxyProcess(settings, tmp_path)
    assert_unready(
        process,
        "CLUSTER_AUTHORIZATION_FAILED: the proxy's principal lacks permissions on the cluster",
    )
    assert process.log().count("CLUSTER_AUTHORIZATION_FAILED") <= 2
    assert "Traceback" not in process.log()


# --- groups in tokens, and Kafka's own tools

QUICK_MS = 4_000
TOKEN_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(User):
    """User whose next token may name other groups."""

    groups: list[str] = field(default_factory=list)

    def token(self) -> str:
        """A token with the groups of this moment."""
        return self.issuer.mint(self.name, self.token_lifetime, groups=list(self.groups))


def member(issuer: Issuer, name: str, *groups: str) -> Member:
    return Member(name=name, mechanism=OAUTHBEARER, issuer=issuer, groups=list(groups))


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


def acl(brokers: KafkaCluster, *arguments: str) -> str:
    """Run kafka-acls.sh at the broker itself."""
    done = java.run_tool("kafka-acls", ["--bootstrap-server", brokers.bootstrap(), *arguments])
    assert done.exit_status == 0, done.stderr
    return done.stdout


def test_groups_in_acls_that_kafkas_tool_stores_at_the_brokers(
    brokers: KafkaCluster, proxy: ProxyProcess, issuer: Issuer, topic: str
) -> None:
    allowed = ("--add", "--allow-principal", "Group:analysts", "--operation", "Write")
    assert "principal=Group:analysts" in acl(brokers, *allowed, "--topic", topic)
    one, other = member(issuer, "alice", "analysts"), member(issuer, "analysts", "else")
    wait_until(lambda: Writer(one, proxy, topic).may(), what="the group may not write")
    assert not Writer(other, proxy, topic).may(), "its name is a group's, and it is in none"
    denied = ("--add", "--deny-principal", "Group:interns", "--operation", "All")
    acl(brokers, *denied, "--topic", topic)
    both = member(issuer, "bob", "analysts", "interns")
    wait_until(lambda: not Writer(both, proxy, topic).may(), what="what is denied is allowed")
    assert Writer(one, proxy, topic).may()


def test_a_group_that_is_lost_while_producing(
    brokers: KafkaCluster, at_brokers: Any, proxy: ProxyProcess, issuer: Issuer, topic: str
) -> None:
    """The first Produce after the re-authentication is denied; all earlier ones are stored once."""
    create(at_brokers, may_write(topic, "Group:analysts"))
    # librdkafka refreshes a token after most of its lifetime
    who = replace(member(issuer, "alice", "analysts"), token_lifetime=TOKEN_SECONDS)
    wait_until(lambda: Writer(who, proxy, topic).may(), what="the group may not write")
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
