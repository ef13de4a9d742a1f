"""What tests/support/acls.py says of Kafka, asked of Kafka; and our client on it."""

import asyncio
import itertools

import pytest

from proxy.acl.model import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from proxy.admin import AdminClient, AuthorizationFailed, InvalidRequest, Scram
from sasl.credentials import ScramMechanism
from tests.support.acls import CREATIONS_SEEN, FILTERS_SEEN, asking, creation
from tests.support.kafka.cluster import KafkaCluster, StartCluster
from tests.support.kafka.java import is_since
from tests.support.kafka.wire_client import ask

DESCRIBE, CREATE, DELETE = 29, 30, 31
LIFETIME_MS = 15_000
"""The client renews its session two seconds and a quarter before the end."""
_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:admin",
}

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def authorizing(start_cluster: StartCluster) -> KafkaCluster:
    cluster = start_cluster(nodes=1, properties=_AUTHORIZER, sasl_listeners={"LONG": LIFETIME_MS})
    for name in ("admin", "alice"):
        cluster.add_scram_user(name, f"{name}-secret")
    return cluster


def test_the_expected_answers_are_kafkas(authorizing: KafkaCluster) -> None:
    address = authorizing.address()
    creations = [
        (changes, expected)
        for changes, expected in CREATIONS_SEEN
        if is_since("4.0") or changes.get("operation") != Operation.TWO_PHASE_COMMIT  # KIP-939
    ]
    for version in (1, 2, 3):
        items = [creation(**changes) for changes, _ in creations]
        results = ask(address, CREATE, version, {"creations": items}).results
        reported = [(one.error_code.name, one.error_message) for one in results]
        assert reported == [expected for _, expected in creations]

        # of nobody: they are about what is wrong with them
        filters = [asking(host_filter="none", **changes) for changes, _ in FILTERS_SEEN]
        results = ask(address, DELETE, version, {"filters": filters}).filter_results
        reported = [(one.error_code.name, one.error_message) for one in results]
        assert reported == [expected for _, expected in FILTERS_SEEN]
        for one in filters:
            response = ask(address, DESCRIBE, version, one)
            assert (response.error_code.name, response.error_message) == ("none", "")
            assert response.resources == ()


def test_our_client_administers_kafka(authorizing: KafkaCluster) -> None:
    """Through sessions which end while it works (KIP-368)."""
    literal = Acl(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "t",
        "User:alice",
        "*",
        Operation.READ,
        Permission.ALLOW,
    )
    cluster_wide = Acl(
        ResourceType.CLUSTER,
        PatternType.LITERAL,
        "kafka",
        "User:alice",
        "*",
        Operation.ALTER,
        Permission.ALLOW,
    )

    async def work() -> None:
        servers = str(authorizing.address(listener="LONG"))
        admin = Scram(username="admin", password="admin-secret")
        async with asyncio.timeout(240), AdminClient(servers, login=admin) as client:
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
            username="alice", password="alice-secret", mechanism=ScramMechanism.SCRAM_SHA_256
        )
        async with asyncio.timeout(240), AdminClient(servers, login=alice) as client:
            with pytest.raises(AuthorizationFailed):
                (await client.describe_acls()).values()
            with pytest.raises(AuthorizationFailed):
                (await client.create_acls([literal])).all()

    asyncio.run(work())
