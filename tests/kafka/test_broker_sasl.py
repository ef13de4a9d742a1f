"""Kafka authenticates the clients, and the proxy adds sessions (`sasl.termination: broker`)."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka.clients import User, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_differential.transcript import Actor
from tests.support.kafka.scram_client import salted_password
from tests.support.kafka.traffic import PARTITIONS, traffic_until
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.messages import request_body
from tests.support.proxy_process import (
    ProxyProcess,
    enforcing_acls,
    gateway_config,
    relaying_logins,
)
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LIFETIME_MS = 4_000
"""librdkafka renews it after 90 %, which leaves time for a busy machine."""
RENEWALS = 3
RENEWED = "successful_reauthentication_total"
DESCRIBE_USERS, ALTER_USERS = 50, 51
CLUSTER_AUTHORIZATION_FAILED = 31
ENDING = "ENDING"
"""A listener whose sessions end without re-authentication."""


@pytest.fixture(scope="module")
def cluster(jwks: Path) -> Iterator[KafkaCluster]:
    """One node whose sessions end, and its users; it has no authorizer."""
    with KafkaCluster(jwks=jwks, sasl_listeners={ENDING: LIFETIME_MS}) as started:
        for name in ("alice", "carol"):
            started.add_scram_user(name, password_of(name))
        yield started


def assert_renewed(proxy: ProxyProcess, who: User, topic: str, directory: Path) -> None:
    """Nothing is lost while sessions are renewed."""

    def renewed() -> float:
        return proxy.metric(RENEWED, mechanism=who.mechanism)

    enough = renewed() + RENEWALS
    bootstrap = str(proxy.addresses()["LONG"])
    written = traffic_until(lambda: renewed() >= enough, who, bootstrap, topic, directory)
    assert min(written) > 0
    assert renewed() >= enough
    assert "Traceback" not in proxy.log()


@pytest.fixture(scope="module")
def gateway_relay(
    cluster: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> ProxyProcess:
    """A gateway of brokers that announce lifetimes; it has two workers and no login."""
    upstream = str(cluster.address(listener=ENDING))
    config = gateway_config(upstream, jwks, listeners={"LONG": 3_600_000}) | {"workers": 2}
    return ProxyProcess(relaying_logins(config), tmp_path_factory.mktemp("gateway"))


def test_a_gateway_learns_brokers_from_what_passes_and_knows_them_after_a_restart(
    cluster: KafkaCluster, gateway_relay: ProxyProcess, issuer: Issuer, tmp_path: Path
) -> None:
    """A trial needs no login: Kafka closes on a Metadata request before one."""
    with gateway_relay as proxy:
        found = proxy.command("config", "check", "--connect")
        assert "answers; clients log in to it themselves; it offers SCRAM" in found
        who = User(name="alice", mechanism="SCRAM-SHA-256", issuer=issuer)
        topic = f"sessions-{uuid.uuid4()}"
        cluster.create_topic(topic, partitions=PARTITIONS)
        assert_renewed(proxy, who, topic, tmp_path)
    with gateway_relay as proxy:
        bootstrap = proxy.addresses()["LONG"]
        [broker_id] = cluster.node_ids
        with WireClient(Address(bootstrap.host, bootstrap.port + 1 + broker_id)) as client:
            actor = Actor(client, issuer)
            actor.scram("alice", password=password_of("alice"))
            actor.metadata()
            assert actor.lines[-1].startswith("< Metadata")


def test_users_of_the_brokers_are_administered_with_rights_at_the_proxy(
    cluster: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """The proxy has an authorizer; the brokers do not."""
    upstream = str(cluster.address(listener=ENDING))
    config = relaying_logins(gateway_config(upstream, jwks, listeners={"LONG": 3_600_000}))
    erin = {
        "name": "erin",
        "mechanism": 1,
        "iterations": 4_096,
        "salt": b"salt",
        "salted_password": salted_password("SCRAM-SHA-256", "x", b"salt", 4_096),
    }
    with ProxyProcess(enforcing_acls(config), tmp_path) as proxy:
        for operation in ("Alter", "Describe"):
            allowed = ("--allow-principal", "User:alice", "--operation", operation, "--cluster")
            proxy.command("acls", "add", *allowed)
        proxy.until_known()

        def asked(name: str, api_key: int, **fields: Any) -> Any:
            with WireClient(proxy.addresses()["LONG"]) as client:
                actor = Actor(client, issuer)
                actor.scram(name, password=password_of(name))
                return actor.ask(api_key, 0, request_body(api_key, 0, **fields))

        for name, error in (("carol", CLUSTER_AUTHORIZATION_FAILED), ("alice", 0)):
            (changed,) = asked(name, ALTER_USERS, deletions=[], upsertions=[erin]).results
            assert changed.error_code == error
            assert asked(name, DESCRIBE_USERS, users=None).error_code == error

        def described() -> bool:
            users = asked("alice", DESCRIBE_USERS, users=None).results
            return "erin" in {one.user for one in users}

        wait_until(described, what="the broker does not know erin")
        assert "Traceback" not in proxy.log()
