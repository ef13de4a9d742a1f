"""Kafka authenticates the clients, and the proxy adds sessions (`sasl.termination: broker`)."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kafka.clients import User, password_of
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.sasl_differential.comparison import (
    DELIBERATE,
    assert_alike,
    assert_documented,
    is_judged,
    run_all,
)
from tests.support.kafka.sasl_differential.transcript import Actor, World
from tests.support.kafka.traffic import PARTITIONS, confluent_traffic, traffic_until
from tests.support.kafka.wire_client import Address, WireClient
from tests.support.proxy_process import (
    ProxyProcess,
    Serve,
    enforcing_acls,
    gateway_config,
    relaying_logins,
    sidecar_config,
)
from tests.support.sasl import Issuer

_AS_WITH_PROXY = (
    "A request between SaslHandshake and token",
    "An expired session is used",
    "A frame of a re-authentication above `sasl.server.max.receive.size`",
)
"""Differences that do not depend on which side authenticates."""
_MISROUTED = "ApiVersions v5 that means another broker, relayed"
_OF_RELAYED_LOGINS = {
    "ApiVersions v5 that means a cluster of 32,767 letters, and node -2": _MISROUTED,
    "ApiVersions v5 that means another cluster": _MISROUTED,
    "reauth unknown user": "A refused re-authentication, relayed",
    "reauth wrong password": "A refused re-authentication, relayed",
    **dict.fromkeys(
        (
            "reauth with a token that expired within the skew, then used",
            "token expired within the skew, then SaslAuthenticate",
            "token expired within the skew, then renewed",
            "token expired within the skew, then used",
        ),
        "A token that expired within the skew, relayed",
    ),
}
DIFFERENT = {name: what for name, what in DELIBERATE.items() if what in _AS_WITH_PROXY} | {
    name: what for name, what in _OF_RELAYED_LOGINS.items() if is_judged(name)
}
"""Row of docs/compatibility.md that explains the difference, by program."""

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def relay(kafka: KafkaCluster, jwks: Path, serve: Serve) -> ProxyProcess:
    """Listeners with the lifetimes of Kafka's own, in front of one that announces no lifetime."""
    upstream = str(kafka.address(listener="NEVER"))
    config = relaying_logins(sidecar_config(upstream, jwks))
    return serve(config, users=False)


def test_programs_are_answered_as_by_kafka(
    kafka_programs_world: World, relay: ProxyProcess, issuer: Issuer
) -> None:
    kafka_transcripts = run_all(kafka_programs_world)
    world = World(addresses=relay.addresses(), issuer=issuer)
    assert_alike(kafka_transcripts, run_all(world), DIFFERENT)
    assert "Traceback" not in relay.log()


def test_every_difference_is_documented() -> None:
    assert_documented(DIFFERENT)


LIFETIME_MS = 4_000
"""librdkafka renews it after 90 %, which leaves time for a busy machine."""
RENEWALS = 10
RENEWED = "successful_reauthentication_total"
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
    written = traffic_until(
        lambda: renewed() >= enough,
        confluent_traffic,
        who,
        bootstrap,
        topic,
        directory,
        pause_seconds=0.01,
    )
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
    with gateway_relay as proxy:
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


def test_a_trial_needs_no_login(relay: ProxyProcess, gateway_relay: ProxyProcess) -> None:
    """Kafka closes on a Metadata request before a login."""
    for proxy in (relay, gateway_relay):
        found = proxy.command("config", "check", "--connect")
        assert "answers; clients log in to it themselves; it offers SCRAM" in found


def test_users_of_the_brokers_are_administered_with_rights_at_the_proxy(
    cluster: KafkaCluster, jwks: Path, issuer: Issuer, tmp_path: Path
) -> None:
    """The proxy has an authorizer; the brokers do not."""
    upstream = str(cluster.address(listener=ENDING))
    config = relaying_logins(gateway_config(upstream, jwks, listeners={"LONG": 3_600_000}))
    users = ("--entity-type", "users")
    password = ("--alter", "--add-config", "SCRAM-SHA-256=[password=x]")
    with ProxyProcess(enforcing_acls(config), tmp_path) as proxy:
        bootstrap = str(proxy.addresses()["LONG"])
        for operation in ("Alter", "Describe", "DescribeConfigs"):
            allowed = ("--allow-principal", "User:alice", "--operation", operation, "--cluster")
            proxy.command("acls", "add", *allowed)
        alice, carol = (
            User(name=name, mechanism="SCRAM-SHA-256", issuer=issuer).java(tmp_path)
            for name in ("alice", "carol")
        )
        for arguments in ((*users, "--describe"), (*users, "--entity-name", "alice", *password)):
            done = carol.run_tool("kafka-configs", bootstrap, *arguments)
            assert done.exit_status != 0, done
            assert "ClusterAuthorizationException" in done.stderr + done.stdout, done
        done = alice.run_tool(
            "kafka-configs", bootstrap, *users, "--entity-name", "erin", *password
        )
        assert done.exit_status == 0, done

        def described() -> bool:
            done = alice.run_tool("kafka-configs", bootstrap, *users, "--describe")
            assert done.exit_status == 0, done
            return "'erin' are SCRAM-SHA-256=iterations=4096" in done.stdout

        wait_until(described, what="the broker does not know erin")
        assert "Traceback" not in proxy.log()
