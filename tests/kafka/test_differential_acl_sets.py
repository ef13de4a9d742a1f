"""Random sets of ACLs with `allow.everyone.if.no.acl.found`, on Kafka and on the proxy.

Here denials and wildcards, prefixes and literal names, hosts and principals meet as nobody writes
them down by hand; and whatever no ACL is about is everybody's.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proxy.acl.model import Operation, Permission, ResourceType
from tests.support.acls import asking
from tests.support.kafka.acl_differential.side import (
    AUTHORIZER_PROPERTIES,
    FEATURES,
    PASSWORD,
    Client,
)
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import is_since
from tests.support.kafka.wire_client import Address
from tests.support.messages import Values
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, sidecar_config

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LISTENER = "LONG"
_REAUTH_MS = 3_600_000
SETS = 40
MAX_ACLS = 8

USERS = ("one", "two")
TOPICS = ("foo", "foobar", "fo", "foobaz.x", "zed", "star-x")
NEW_TOPICS = ("foo-new", "zed")
GROUPS = ("g", "gg", "g2", "h")
TRANSACTIONAL_IDS = ("t", "tt", "tx", "v")
NAMES: Mapping[ResourceType, Sequence[str]] = {
    ResourceType.TOPIC: (*TOPICS, "f", "*"),
    ResourceType.GROUP: ("g", "gg", "g2", "*"),
    ResourceType.TRANSACTIONAL_ID: ("t", "tt", "*"),
    ResourceType.CLUSTER: ("kafka-cluster",),
}
PRINCIPALS = (*(f"User:{user}" for user in USERS), "User:*", "User:other", "Group:x")
HOSTS = ("*", "*", "127.0.0.1", "192.0.2.1")
OPERATIONS = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
#: Groups have configurations since Kafka 4.0.
_GROUPS_ARE_CONFIGURED = is_since("4.0")
_LITERAL, _PREFIXED = 3, 4
PRODUCER: Values = {"transactional_id": None, "transaction_timeout": 60_000}
EVERY_ACL: Values = asking()


@pytest.fixture
def sides(jwks: Path, tmp_path: Path) -> Iterator[Mapping[str, Address]]:
    """Kafka itself and a proxy in front of it."""
    listeners = {LISTENER: _REAUTH_MS}
    with KafkaCluster(
        nodes=1,
        properties={**AUTHORIZER_PROPERTIES, "allow.everyone.if.no.acl.found": "true"},
        features=FEATURES,
        sasl_listeners=listeners,
    ) as kafka:
        config = enforcing_acls(sidecar_config(str(kafka.address()), jwks, listeners=listeners))
        config["authorizer"]["allow.everyone.if.no.acl.found"] = True
        proxy = ProxyProcess(config, tmp_path)
        for user in (SUPER_USER, *USERS):
            kafka.add_scram_user(user, PASSWORD)
            proxy.add_user(user, PASSWORD, "SCRAM-SHA-256")
        for topic in TOPICS:
            kafka.create_topic(topic)
        with proxy:
            yield {"kafka": kafka.address(listener=LISTENER), "proxy": proxy.addresses()[LISTENER]}


def drawn(random: Random) -> list[Values]:
    """A random set of distinct ACLs."""
    acls: dict[tuple[object, ...], Values] = {}
    for _ in range(random.randint(1, MAX_ACLS)):
        kind = random.choice((ResourceType.TOPIC, ResourceType.TOPIC, *NAMES))
        acl = {
            "resource_type": kind,
            "resource_pattern_type": random.choice((_LITERAL, _LITERAL, _PREFIXED)),
            "resource_name": random.choice(NAMES[kind]),
            "principal": random.choice(PRINCIPALS),
            "host": random.choice(HOSTS),
            "operation": random.choice(OPERATIONS),
            "permission_type": random.choice((Permission.DENY, Permission.ALLOW, Permission.ALLOW)),
        }
        acls[tuple(acl.values())] = acl
    return list(acls.values())


def replace_all(admin: Client, acls: Sequence[Values]) -> None:
    """Replace all ACLs with these."""

    def known(count: int) -> None:
        def are_known() -> bool:
            resources = admin.ask(29, 3, EVERY_ACL).resources
            return sum(len(one.acls) for one in resources) == count

        wait_until(are_known, what=f"not {count} ACLs")

    admin.ask(31, 3, {"filters": [EVERY_ACL]})
    known(0)
    results = admin.ask(30, 3, {"creations": acls}).results
    assert {result.error_code for result in results} == {0}
    known(len(acls))


def reported(client: Client) -> Mapping[str, object]:
    """What a user may do, according to read-only requests."""

    def ask(api_key: int, version: int, results: str, *what: str, **fields: Any) -> list[Any]:
        answers = getattr(client.ask(api_key, version, fields), results)
        return sorted(tuple(getattr(one, name) for name in what) for one in answers)

    topics = [{"name": name} for name in TOPICS]
    new = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in NEW_TOPICS]
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": ["x"]}
        for kind, name in ((2, "foo"), (4, "1"), (32, "g"))
        if kind != 32 or _GROUPS_ARE_CONFIGURED
    ]
    rights, error = "authorized_operations", "error_code"
    cluster = {"topics": [], f"include_cluster_{rights}": True}
    return {
        "cluster": client.ask(3, 9, cluster).cluster_authorized_operations,
        "idempotent producer": client.ask(22, 4, PRODUCER).error_code,
        "topics": ask(
            *(3, 12, "topics", "name", error, f"topic_{rights}"),
            topics=topics,
            include_topic_authorized_operations=True,
        ),
        "groups": ask(
            *(15, 5, "groups", "group_id", error),
            *((rights,) if _GROUPS_ARE_CONFIGURED else ()),
            groups=GROUPS,
            include_authorized_operations=True,
        ),
        "transactional ids": ask(
            *(10, 4, "coordinators", "key", error), key_type=1, coordinator_keys=TRANSACTIONAL_IDS
        ),
        "new topics": ask(
            *(19, 7, "topics", "name", error, "topic_config_error_code"),
            topics=new,
            timeout=60_000,
            validate_only=True,
        ),
        "configs": ask(32, 4, "results", "resource_type", error, resources=resources),
    }


def test_any_acls_are_judged_as_in_kafka(sides: Mapping[str, Address]) -> None:
    random = Random(1)  # noqa: S311 - the same ones each time
    with ExitStack() as stack:

        def connected(address: Address, user: str) -> Client:
            return stack.enter_context(closing(Client(address, user)))

        admins = {side: connected(address, SUPER_USER) for side, address in sides.items()}
        users = {
            user: {side: connected(address, user) for side, address in sides.items()}
            for user in USERS
        }
        wait_until(partial(_are_coordinated, admins["kafka"]), what="no coordinators")
        for _ in range(SETS):
            acls = drawn(random)
            for admin in admins.values():
                replace_all(admin, acls)
            for user, clients in users.items():
                assert reported(clients["proxy"]) == reported(clients["kafka"]), (user, acls)


def _are_coordinated(client: Client) -> bool:
    """Whether all that is asked for is; the first question has the topics made for that."""
    answers = [
        client.ask(10, 4, {"key_type": key_type, "coordinator_keys": keys})
        for key_type, keys in ((0, GROUPS), (1, TRANSACTIONAL_IDS))
    ]
    groups = client.ask(15, 5, {"groups": GROUPS}).groups
    coordinators = [one for answer in answers for one in answer.coordinators]
    found = [*coordinators, *groups, client.ask(22, 4, PRODUCER)]
    return all(one.error_code == 0 for one in found)
