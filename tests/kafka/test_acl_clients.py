"""ACLs as people administer them, and as applications feel them, through two workers."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka as python
import kafka.admin as python_admin
import kafka.errors as python_errors
import pytest

from tests.support.kafka.clients import JavaClient, add_users, confluent_admin, user
from tests.support.kafka.cluster import KafkaCluster, wait_until
from tests.support.kafka.java import Finished
from tests.support.proxy_process import SUPER_USER, ProxyProcess, enforcing_acls, gateway_config
from tests.support.sasl import Issuer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

SCRAM = "SCRAM-SHA-256"
CAROL = "User:carol"
DEADLINE = 120.0


@pytest.fixture(scope="module")
def proxy(
    kafka: KafkaCluster, jwks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    config = gateway_config(str(kafka.address()), jwks, listeners={"LONG": 3_600_000})
    process = ProxyProcess(enforcing_acls(config, workers=2), tmp_path_factory.mktemp("acls"))
    add_users(process)
    with process:
        yield process


@pytest.fixture
def admin(issuer: Issuer, bootstrap: str) -> Any:
    return confluent_admin.AdminClient(user(issuer, SCRAM, SUPER_USER).confluent(bootstrap))


# --- three administrators' tools


def test_kafka_acls_adds_lists_and_removes(
    bootstrap: str, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    """What the operator's shell scripts do."""
    client = user(issuer, SCRAM, SUPER_USER).java(tmp_path)
    rule = ("--allow-principal", CAROL, "--operation", "Read", "--topic", topic)
    added = _acls(client, bootstrap, "--add", *rule)
    assert added.exit_status == 0, added
    assert "principal=User:carol" in added.stdout
    listed = _acls(client, bootstrap, "--list", "--topic", topic)
    entry = "principal=User:carol, host=*, operation=READ, permissionType=ALLOW"
    assert f"({entry})" in listed.stdout, listed
    removed = _acls(client, bootstrap, "--remove", "--force", *rule)
    assert removed.exit_status == 0, removed
    assert entry not in _acls(client, bootstrap, "--list", "--topic", topic).stdout


def test_kafka_acls_is_refused_without_rights(
    bootstrap: str, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    client = user(issuer, SCRAM).java(tmp_path)
    rule = ("--allow-principal", CAROL, "--operation", "Read", "--topic", topic)
    for arguments in (("--list",), ("--add", *rule), ("--remove", "--force", *rule)):
        done = _acls(client, bootstrap, *arguments)
        assert "ClusterAuthorizationException" in done.stdout + done.stderr, done


def test_kafka_acls_makes_producers_and_consumers(
    bootstrap: str, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    """Its convenience options make several ACLs at once, prefixed ones too."""
    client = user(issuer, SCRAM, SUPER_USER).java(tmp_path)
    who = ("--allow-principal", "User:erin", "--topic", topic)
    for role in (
        ("--producer", "--transactional-id", "t", "--idempotent"),
        ("--consumer", "--group", "g", "--resource-pattern-type", "prefixed"),
    ):
        added = _acls(client, bootstrap, "--add", *who, *role)
        assert added.exit_status == 0, added
    listed = _acls(client, bootstrap, "--list", "--principal", "User:erin").stdout
    for operation in ("WRITE", "DESCRIBE", "CREATE", "IDEMPOTENT_WRITE", "READ"):
        assert f"operation={operation}, permissionType=ALLOW" in listed, listed
    assert "patternType=PREFIXED" in listed
    for role in (
        ("--producer", "--transactional-id", "t", "--idempotent"),
        ("--consumer", "--group", "g", "--resource-pattern-type", "prefixed"),
    ):
        assert _acls(client, bootstrap, "--remove", "--force", *who, *role).exit_status == 0
    after = _acls(client, bootstrap, "--list", "--principal", "User:erin").stdout
    assert "operation=" not in after


def test_librdkafka_administers_acls(
    bootstrap: str, issuer: Issuer, topic: str, admin: Any
) -> None:
    binding = _binding(topic, "READ")
    admin.create_acls([binding])[binding].result(DEADLINE)
    assert binding in admin.describe_acls(_filter(topic)).result(DEADLINE)
    [future] = admin.delete_acls([_filter(topic)]).values()
    assert future.result(DEADLINE) == [binding]
    assert admin.describe_acls(_filter(topic)).result(DEADLINE) == []
    carol = confluent_admin.AdminClient(user(issuer, SCRAM).confluent(bootstrap))
    [delete] = carol.delete_acls([_filter(topic)]).values()
    [create] = carol.create_acls([binding]).values()
    for future in (create, delete):
        with pytest.raises(confluent.KafkaException, match="CLUSTER_AUTHORIZATION_FAILED"):
            future.result(DEADLINE)
    # Its own reading of the refusal: nothing is found.
    assert carol.describe_acls(_filter(topic)).result(DEADLINE) == []


def test_kafka_python_administers_acls(bootstrap: str, issuer: Issuer, topic: str) -> None:
    pattern = python_admin.ResourcePattern(python_admin.ResourceType.TOPIC, topic)
    rule = {
        "principal": CAROL,
        "host": "*",
        "operation": python_admin.ACLOperation.READ,
        "permission_type": python_admin.ACLPermissionType.ALLOW,
        "resource_pattern": pattern,
    }
    acl, wanted = python_admin.ACL(**rule), python_admin.ACLFilter(**rule)
    client = python.KafkaAdminClient(**user(issuer, SCRAM, SUPER_USER).python(bootstrap))
    assert client.create_acls([acl])["succeeded"] == [acl]
    assert client.describe_acls(wanted)[0] == [acl]
    [(_, deleted, _)] = client.delete_acls([wanted])
    assert deleted == [acl]
    assert client.describe_acls(wanted)[0] == []
    client.close()
    carol = python.KafkaAdminClient(**user(issuer, SCRAM).python(bootstrap))
    refused = carol.create_acls([acl])["failed"]
    assert refused == [python_errors.ClusterAuthorizationFailedError]
    with pytest.raises(python_errors.ClusterAuthorizationFailedError):
        carol.describe_acls(wanted)
    carol.close()


# --- applications whose rights change while they are connected


def test_librdkafka_follows_a_change_of_acls(
    proxy: ProxyProcess, bootstrap: str, issuer: Issuer, topic: str, admin: Any
) -> None:
    """Denied, allowed, denied: a producer and a consumer that stay as they are."""
    carol = user(issuer, SCRAM)
    producer = confluent.Producer(
        carol.confluent(bootstrap, topic_metadata_refresh_interval_ms=200)
    )
    settings = {"group_id": f"g-{uuid.uuid4()}", "auto_offset_reset": "earliest"}
    consumer = confluent.Consumer(
        carol.confluent(bootstrap, topic_metadata_refresh_interval_ms=200, **settings)
    )
    consumer.assign([confluent.TopicPartition(topic, 0, 0)])

    def produces() -> bool:
        errors: list[Any] = []
        try:
            producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
        except confluent.KafkaException as refused:  # what it remembers of the topic
            errors.append(refused.args[0])
        producer.flush(DEADLINE)
        assert errors, "no report"
        assert errors[0] is None or "authoriz" in str(errors[0]).lower(), errors
        return errors[0] is None

    def consumes() -> bool:
        message = consumer.poll(0.3)
        return message is not None and message.error() is None

    try:
        _through_a_change(proxy, admin, topic, produces, consumes)
    finally:
        consumer.close()


def test_kafka_python_follows_a_change_of_acls(
    proxy: ProxyProcess, bootstrap: str, issuer: Issuer, topic: str, admin: Any
) -> None:
    """The other library, which keeps its own notes of topics that it may not see."""
    carol = user(issuer, SCRAM)
    producer = python.KafkaProducer(
        **carol.python(bootstrap, metadata_max_age_ms=200, enable_idempotence=False)
    )
    consumer = python.KafkaConsumer(
        **carol.python(bootstrap, metadata_max_age_ms=200, enable_auto_commit=False)
    )
    consumer.assign([python.TopicPartition(topic, 0)])
    denials = (python_errors.TopicAuthorizationFailedError, python_errors.KafkaTimeoutError)

    def produces() -> bool:
        try:
            producer.send(topic, b"value").get(DEADLINE)
        except denials:
            return False
        return True

    def consumes() -> bool:
        try:
            consumer.seek(python.TopicPartition(topic, 0), 0)
            return bool(consumer.poll(300))
        except denials:
            return False

    try:
        _through_a_change(proxy, admin, topic, produces, consumes)
    finally:
        consumer.close()
        producer.close(timeout=1)


def _through_a_change(
    proxy: ProxyProcess,
    admin: Any,
    topic: str,
    produces: Callable[[], bool],
    consumes: Callable[[], bool],
) -> None:
    rights = [_binding(topic, "READ"), _binding(topic, "WRITE")]
    assert not produces()
    assert not consumes()
    for future in admin.create_acls(rights).values():
        future.result(DEADLINE)
    _until(produces, is_allowed=True)  # the client's own notes
    _until(consumes, is_allowed=True)
    for _ in range(3):
        assert produces()
    for future in admin.delete_acls([_filter(topic)]).values():
        assert len(future.result(DEADLINE)) == len(rights)
    proxy.until_known()  # on open connections too
    assert not produces()
    # What the consumer had fetched before is its own.
    _until(consumes, is_allowed=False)


def _until(does: Callable[[], bool], *, is_allowed: bool) -> None:
    wait_until(lambda: does() is is_allowed, what=f"not {is_allowed}")


def _acls(client: JavaClient, bootstrap: str, *arguments: str) -> Finished:
    return client.run_tool("kafka-acls", bootstrap, *arguments)


def _binding(topic: str, operation: str) -> Any:
    return confluent_admin.AclBinding(
        confluent_admin.ResourceType.TOPIC,
        topic,
        confluent_admin.ResourcePatternType.LITERAL,
        CAROL,
        "*",
        confluent_admin.AclOperation[operation],
        confluent_admin.AclPermissionType.ALLOW,
    )


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
