"""What Kafka writes into ZooKeeper is read, and what is written is what Kafka writes."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.acl.model import Acl, Operation, PatternType, Permission, ResourceType
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey
from proxy.store.zookeeper.nodes import (
    MAX_NODE_BYTES,
    BadNode,
    Resource,
    acl_change,
    changed_entity,
    changed_resource,
    config_change,
    config_path,
    entity_at,
    is_led_by_kraft,
    is_valid_path,
    parse_config,
    read_acls,
    read_config,
    with_credentials,
    with_quotas,
    write_acls,
    write_config,
)
from sasl.credentials import ScramCredential, ScramMechanism

SHA_256 = ScramMechanism.SCRAM_SHA_256
ALICE = QuotaEntity(user="alice")
TOPIC = Resource(ResourceType.TOPIC, PatternType.LITERAL, "t")
PREFIXED = TOPIC._replace(pattern_type=PatternType.PREFIXED)
PRODUCER, CONSUMER = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE

KAFKAS_USER = (
    b'{"version":1,"config":{"SCRAM-SHA-256":"salt=anB0enFyYzJhaG5qbmhpdW0wZjZqcXUybA==,'
    b"stored_key=eVhJijIuR5ezF+8x5TJg3ZabdHrRhIII4k6+Ml4mFuw=,"
    b'server_key=+KS1PKciri8Ed7JVdjR91fir/pt6PrcKMTv8w65OcU4=,iterations=8192",'
    b'"request_percentage":"12.5","producer_byte_rate":"1024"}}'
)
"""As kafka-configs of Kafka 3.9 wrote it; the password is `pw`."""
KAFKAS_ACLS = (
    b'{"acls":[{"principal":"User:a","permissionType":"Allow","host":"*",'
    b'"operation":"DescribeConfigs"},{"principal":"User:b","permissionType":"Deny",'
    b'"host":"10.0.0.1","operation":"All"}],"version":1}'
)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
parts = names | st.just(DEFAULT)
entities = st.one_of(
    st.builds(QuotaEntity, user=parts),
    st.builds(QuotaEntity, client_id=parts),
    st.builds(QuotaEntity, user=parts, client_id=parts),
    st.builds(QuotaEntity, ip=st.just(DEFAULT) | st.ip_addresses().map(str)),
)


def test_a_users_node_of_kafka_is_read() -> None:
    found = parse_config(ALICE, read_config("/config/users/alice", KAFKAS_USER))
    verifier = found.credentials[SHA_256]
    assert verifier == ScramCredential.from_password(
        SHA_256, "pw", b"jptzqrc2ahnjnhium0f6jqu2l", verifier.iterations
    )
    assert found.quotas == {PRODUCER: 1024.0, QuotaKey.REQUEST_PERCENTAGE: 12.5}
    assert not found.problems


def test_a_verifier_is_a_users_alone() -> None:
    """The node of a client, or of all users, never holds a password."""
    config = read_config("", KAFKAS_USER)
    for entity in (
        QuotaEntity(user=DEFAULT),
        QuotaEntity(user="alice", client_id="c"),
        QuotaEntity(client_id="c"),
    ):
        assert not parse_config(entity, config).credentials


def test_a_change_keeps_what_it_does_not_know() -> None:
    config = read_config("", b'{"version":1,"config":{"later":"x","producer_byte_rate":"1"}}')
    verifier = ScramCredential.from_password(SHA_256, "pw", b"salt", 4096)
    config = with_quotas(config, {PRODUCER: None, CONSUMER: 2.0})
    config = with_credentials(config, {SHA_256: verifier})
    written = read_config("", write_config(config))
    assert written["later"] == "x"
    assert parse_config(ALICE, written).quotas == {CONSUMER: 2.0}
    assert parse_config(ALICE, written).credentials == {SHA_256: verifier}
    assert with_credentials(written, {SHA_256: None}) == {
        "later": "x",
        "consumer_byte_rate": "2",
    }


@pytest.mark.parametrize(
    ("key", "limit", "text"),
    [
        (PRODUCER, 1024.0, "1024"),
        (PRODUCER, 10.0000001, "10"),
        (PRODUCER, 2.0**63, "9223372036854775807"),
        (QuotaKey.REQUEST_PERCENTAGE, 12.5, "12.5"),
        (QuotaKey.REQUEST_PERCENTAGE, 50.0, "50"),
        (QuotaKey.CONTROLLER_MUTATION_RATE, 0.5, "0.5"),
    ],
)
def test_limits_are_written_as_brokers_parse_them(key: QuotaKey, limit: float, text: str) -> None:
    """Those of bytes by Java's Long.parseLong, which knows no fraction."""
    assert with_quotas({}, {key: limit}) == {key.value: text}


@given(entity=entities)
def test_every_entity_has_a_node_and_a_notification(entity: QuotaEntity) -> None:
    path = config_path(entity)
    prefix, data = config_change(entity)
    assert prefix == "/config/changes/config_change_"
    if is_valid_path(path):
        assert entity_at(path.removeprefix("/config/")) == entity
        assert changed_entity("n", data) == entity


def test_the_notification_is_kip_55s() -> None:
    entity = QuotaEntity(user="user2", client_id="clientA")
    assert json.loads(config_change(entity).data) == {
        "version": 2,
        "entity_path": "users/user2/clients/clientA",
    }


def test_addresses_are_not_encoded() -> None:
    """A broker takes the name of the node for the address."""
    assert config_path(QuotaEntity(ip="::1")) == "/config/ips/::1"


@pytest.mark.parametrize(
    ("data", "entity"),
    [
        ({"version": 1, "entity_type": "clients", "entity_name": "c"}, QuotaEntity(client_id="c")),
        ({"version": 1, "entity_type": "topics", "entity_name": "t"}, None),
        ({"version": 2, "entity_path": "users/<default>"}, QuotaEntity(user=DEFAULT)),
        ({"version": 2, "entity_path": "users/%3Cdefault%3E"}, QuotaEntity(user="<default>")),
        ({"version": 2, "entity_path": "brokers/1"}, None),
    ],
)
def test_notifications_of_both_versions_are_read(data: Any, entity: QuotaEntity | None) -> None:
    assert changed_entity("n", json.dumps(data).encode()) == entity


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"version":3,"entity_path":"users/a"}',
        b'{"version":2,"entity_path":"users/%zz"}',
        b'{"version":2,"entity_path":"users/a/b"}',
        b'{"version":2,"entity_path":"users/.."}',
        b'{"version":2,"entity_path":"users//"}',
        b'{"version":2,"entity_path":"ips/nowhere.example"}',
    ],
)
def test_other_notifications_are_refused(data: bytes) -> None:
    with pytest.raises(BadNode):
        changed_entity("n", data)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"version":2,"config":{}}',
        b'{"version":1}',
        b'{"version":1,"config":[]}',
        b'{"version":1,"config":{"producer_byte_rate":1}}',
        b'{"version":1,"config":{},"config":{}}',
        b'{"version":1,"config":{"x":"' + b"x" * MAX_NODE_BYTES + b'"}}',
        b"[" * 100_000,
    ],
)
def test_other_configurations_are_refused(data: bytes) -> None:
    with pytest.raises(BadNode):
        read_config("/config/users/u", data)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("producer_byte_rate", "x", "is not a number"),
        ("producer_byte_rate", "-1", "must be greater than 0"),
        ("producer_byte_rate", "nan", "must be greater than 0"),
        ("SCRAM-SHA-256", "salt=AAAA", "must be salt="),
        ("SCRAM-SHA-256", "password=pw", "must be salt="),
    ],
)
def test_an_invalid_value_is_left_out(name: str, text: str, problem: str) -> None:
    """Alone: the user's others count. It is named, and no verifier is quoted."""
    found = parse_config(ALICE, {name: text, "consumer_byte_rate": "5"})
    assert found.quotas == {CONSUMER: 5.0}
    assert not found.credentials
    (told,) = found.problems
    assert problem in told
    assert "/config/users/alice" in told
    assert text not in told or len(text) < 3


def test_kafkas_acls_are_read_and_written() -> None:
    found = read_acls(TOPIC, KAFKAS_ACLS)
    assert found.acls == {
        Acl(*TOPIC, "User:a", "*", Operation.DESCRIBE_CONFIGS, Permission.ALLOW),
        Acl(*TOPIC, "User:b", "10.0.0.1", Operation.ALL, Permission.DENY),
    }
    written = json.loads(write_acls(found.acls))
    kafkas = json.loads(KAFKAS_ACLS)
    assert written["version"] == 1
    assert sorted(map(str, map(sorted, map(dict.items, written["acls"])))) == sorted(
        map(str, map(sorted, map(dict.items, kafkas["acls"])))
    )
    assert read_acls(TOPIC, write_acls(found.acls)) == found


@pytest.mark.parametrize("permission", ["Deny", "DENY", "deny"])
@pytest.mark.parametrize("operation", ["DescribeConfigs", "DESCRIBECONFIGS", "describeconfigs"])
def test_names_are_read_in_any_case(permission: str, operation: str) -> None:
    """As Kafka 3.9 reads them; an entry that is skipped does not deny."""
    entry = {
        "principal": "User:b",
        "permissionType": permission,
        "operation": operation,
        "host": "*",
    }
    found = read_acls(TOPIC, json.dumps({"version": 1, "acls": [entry]}).encode())
    assert found.acls == {Acl(*TOPIC, "User:b", "*", Operation.DESCRIBE_CONFIGS, Permission.DENY)}


@pytest.mark.parametrize(
    "changed",
    [{"operation": "Fly"}, {"permissionType": "Forbid"}, {"principal": "no colon"}],
)
def test_an_entry_that_may_deny_and_is_unknown_fails_the_read(changed: dict[str, str]) -> None:
    entry = {"principal": "User:b", "permissionType": "deny", "operation": "Read", "host": "*"}
    data = json.dumps({"version": 1, "acls": [entry | changed]}).encode()
    with pytest.raises(BadNode, match="/kafka-acl/Topic/t has an unknown entry that may deny"):
        read_acls(TOPIC, data)


def test_an_acl_of_a_later_kafka_is_kept() -> None:
    entry = {
        "principal": "User:a",
        "permissionType": "Allow",
        "operation": "FlyToTheMoon",
        "host": "*",
    }
    found = read_acls(TOPIC, json.dumps({"version": 1, "acls": [entry]}).encode())
    assert not found.acls
    assert json.loads(write_acls((), found.unknown))["acls"] == [entry]


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b'{"version":2,"acls":[]}',
        b'{"version":1}',
        b'{"version":1,"acls":[1]}',
        b'{"version":1,"acls":[{"principal":"User:a"}]}',
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny","operation":7,'
        b'"host":"*"}]}',
    ],
)
def test_other_acls_are_refused(data: bytes) -> None:
    """They may deny something."""
    with pytest.raises(BadNode, match="/kafka-acl/Topic/t"):
        read_acls(TOPIC, data)


@pytest.mark.parametrize(
    ("resource", "path", "prefix", "data"),
    [
        (
            Resource(ResourceType.TRANSACTIONAL_ID, PatternType.LITERAL, "a:b"),
            "/kafka-acl/TransactionalId/a:b",
            "/kafka-acl-changes/acl_changes_",
            b"TRANSACTIONAL_ID:a:b",
        ),
        (
            PREFIXED,
            "/kafka-acl-extended/prefixed/Topic/t",
            "/kafka-acl-extended-changes/acl_changes_",
            b'{"version":1,"resourceType":"TOPIC","name":"t","patternType":"PREFIXED"}',
        ),
    ],
)
def test_acls_are_where_kafka_has_them(
    resource: Resource, path: str, prefix: str, data: bytes
) -> None:
    assert resource.path == path
    assert acl_change(resource) == (prefix, data)
    assert changed_resource(resource.pattern_type, "n", data) == resource


def test_the_notification_of_an_old_broker_is_read() -> None:
    found = changed_resource(PatternType.LITERAL, "n", b"TransactionalId:x")
    assert found == Resource(ResourceType.TRANSACTIONAL_ID, PatternType.LITERAL, "x")


@pytest.mark.parametrize(
    ("pattern_type", "data"),
    [
        (PatternType.LITERAL, b"TOPIC"),
        (PatternType.LITERAL, b"TOPIC:"),
        (PatternType.LITERAL, b"TOPIC:a/b"),
        (PatternType.LITERAL, b"MOON:t"),
        (PatternType.LITERAL, b"\xff"),
        (PatternType.PREFIXED, b"TOPIC:t"),
        (
            PatternType.PREFIXED,
            b'{"version":1,"resourceType":"TOPIC","name":"t","patternType":"LITERAL"}',
        ),
        (
            PatternType.PREFIXED,
            b'{"version":2,"resourceType":"TOPIC","name":"t","patternType":"PREFIXED"}',
        ),
    ],
)
def test_other_notifications_of_acls_are_refused(pattern_type: PatternType, data: bytes) -> None:
    with pytest.raises(BadNode):
        changed_resource(pattern_type, "n", data)


@given(data=st.binary(max_size=60), pattern_type=st.sampled_from([*PatternType][3:]))
def test_no_bytes_break_a_reader(data: bytes, pattern_type: PatternType) -> None:
    resource = TOPIC._replace(pattern_type=pattern_type)
    for read in (
        lambda: read_config("n", data),
        lambda: read_acls(resource, data),
        lambda: changed_entity("n", data),
        lambda: changed_resource(pattern_type, "n", data),
        lambda: is_led_by_kraft(data),
    ):
        with suppress(BadNode):
            read()


@pytest.mark.parametrize(
    ("path", "valid"),
    [
        ("/a/b", True),
        ("/a/é", True),
        ("/a/...", True),
        ("/a/..", False),
        ("/a/.", False),
        ("/a//b", False),
        ("/a/", False),
        ("/a/b\x01", False),
        ("/a/\x00", False),
        ("/a/😀", False),
        ("/a/\ue000", False),
    ],
)
def test_paths_that_zookeeper_refuses_are_known(path: str, valid: bool) -> None:
    assert is_valid_path(path) is valid


def test_the_controller_of_a_migration_is_recognized() -> None:
    assert not is_led_by_kraft(b'{"version":2,"brokerid":1,"kraftControllerEpoch":-1}')
    assert not is_led_by_kraft(b'{"version":1,"brokerid":1,"timestamp":"1"}')
    assert is_led_by_kraft(b'{"version":2,"brokerid":3000,"kraftControllerEpoch":1}')
