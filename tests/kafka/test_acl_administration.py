"""Administration of ACLs, its effect on running applications, and batches (KIP-888)."""

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.acl.model import AclFilter, Operation, ResourceType
from proxy.admin import AdminClient, AuthorizationFailed, InvalidRequest, Scram
from sasl.credentials import ScramMechanism
from tests.support.acls import CREATIONS_SEEN, FILTERS_SEEN, acl, asking, creation
from tests.support.kafka.clients import JavaClient, confluent_admin, password_of, user
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.java import Finished, is_since
from tests.support.kafka.wire_client import ask
from tests.support.proxy_process import (
    SUPER_USER,
    ProxyProcess,
    Serve,
    enforcing_acls,
    gateway_config,
)
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
CAROL = "User:carol"
DEADLINE = 120.0


@pytest.fixture(scope="module")
def proxy(kafka: KafkaCluster, jwks: Path, serve: Serve) -> ProxyProcess:
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    return serve(enforcing_acls(config, workers=2))


@pytest.fixture
def admin(issuer: Issuer, bootstrap: str) -> Any:
    return confluent_admin.AdminClient(user(issuer, SCRAM, SUPER_USER).confluent(bootstrap))


# --- administration with two tools


def test_kafka_acls_adds_lists_and_removes(
    bootstrap: str, issuer: Issuer, topic: str, admin: Any, tmp_path: Path
) -> None:
    """Steps of the operator's shell scripts; `--producer` makes several ACLs at once."""
    client = user(issuer, SCRAM, SUPER_USER).java(tmp_path)
    rule = ("--allow-principal", CAROL, "--producer", "--topic", topic)
    added = _acls(client, bootstrap, "--add", *rule)
    assert added.exit_status == 0, added
    assert "principal=User:carol" in added.stdout
    listed = _acls(client, bootstrap, "--list", "--topic", topic).stdout
    for operation in ("WRITE", "DESCRIBE", "CREATE"):
        entry = f"(principal=User:carol, host=*, operation={operation}, permissionType=ALLOW)"
        assert entry in listed, listed
    removed = _acls(client, bootstrap, "--remove", "--force", *rule)
    assert removed.exit_status == 0, removed
    assert admin.describe_acls(_filter(topic)).result(DEADLINE) == []


def _acls(client: JavaClient, bootstrap: str, *arguments: str) -> Finished:
    return client.run_tool("kafka-acls", bootstrap, *arguments)


def _filter(topic: str) -> Any:
    return confluent_admin.AclBindingFilter(
        confluent_admin.ResourceType.TOPIC,
        topic,
        confluent_admin.ResourcePatternType.ANY,
        None,
        None,
        confluent_admin.AclOperation.ANY,
        confluent_admin.AclPermissionType.ANY,
    )


# --- many filters in one request

DESCRIBE_ACLS = 29
ADMIN = Scram(username=SUPER_USER, password=password_of(SUPER_USER))


# --- Kafka itself, without batches

LIFETIME_MS = 15_000
"""The client renews its session two seconds and a quarter before the end."""
_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:ANONYMOUS;User:{SUPER_USER}",
}


@pytest.fixture(scope="module")
def authorizing(jwks: Path) -> Iterator[KafkaCluster]:
    listeners = {"LONG": LIFETIME_MS}
    with KafkaCluster(jwks=jwks, properties=_AUTHORIZER, sasl_listeners=listeners) as cluster:
        for name in (SUPER_USER, "alice"):
            cluster.add_scram_user(name, password_of(name))
        yield cluster


def test_our_client_administers_kafka(authorizing: KafkaCluster) -> None:
    """Its sessions expire and are renewed during the work (KIP-368)."""
    literal = acl()
    cluster_wide = acl("kafka", resource_type=ResourceType.CLUSTER, operation=Operation.ALTER)

    async def work() -> None:
        servers = str(authorizing.address(listener="LONG"))
        async with asyncio.timeout(240), AdminClient(servers, login=ADMIN) as client:
            created = await client.create_acls([literal, cluster_wide])
            assert created.values()[literal] is None
            assert isinstance(created.values()[cluster_wide], InvalidRequest)
            for times in itertools.count(1):
                # the brokers learn of it from the controller, and the session is renewed meanwhile
                await asyncio.sleep(0.3 * LIFETIME_MS / 1_000)
                found = await client.describe_acls(AclFilter(principal="User:alice"))
                if times >= 4 and found.values() == (literal,):
                    break
            assert (await client.delete_acls([AclFilter(name="t")])).all() == (literal,)
        alice = Scram(
            username="alice", password=password_of("alice"), mechanism=ScramMechanism.SCRAM_SHA_256
        )
        async with asyncio.timeout(240), AdminClient(servers, login=alice) as client:
            with pytest.raises(AuthorizationFailed):
                (await client.describe_acls()).values()
            with pytest.raises(AuthorizationFailed):
                (await client.create_acls([literal])).all()

    asyncio.run(work())


def test_the_expected_answers_are_kafkas(authorizing: KafkaCluster) -> None:
    address = authorizing.address()
    creations = [
        (changes, expected)
        for changes, expected in CREATIONS_SEEN
        if is_since("4.0") or changes.get("operation") != Operation.TWO_PHASE_COMMIT  # KIP-939
    ]
    for version in (1, 2, 3):
        items = [creation(**changes) for changes, _ in creations]
        results = ask(address, 30, version, {"creations": items}).results
        reported = [(one.error_code.name, one.error_message) for one in results]
        assert reported == [expected for _, expected in creations]

        # match nothing: only the errors matter
        filters = [asking(host_filter="none", **changes) for changes, _ in FILTERS_SEEN]
        results = ask(address, 31, version, {"filters": filters}).filter_results
        reported = [(one.error_code.name, one.error_message) for one in results]
        assert reported == [expected for _, expected in FILTERS_SEEN]
        for one in filters:
            response = ask(address, DESCRIBE_ACLS, version, one)
            assert (response.error_code.name, response.error_message) == ("none", "")
            assert response.resources == ()
