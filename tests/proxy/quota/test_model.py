from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.quota.model import (
    DEFAULT,
    BadEntity,
    EntityType,
    QuotaEntity,
    QuotaKey,
    address_group,
    desanitize,
    format_limit,
    key_of,
    sanitize,
    value_problem,
)
from tests.support.tables import table

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
parts = names | st.just(DEFAULT)
entities = st.one_of(
    st.builds(QuotaEntity, user=parts),
    st.builds(QuotaEntity, client_id=parts),
    st.builds(QuotaEntity, user=parts, client_id=parts),
    st.builds(QuotaEntity, ip=st.just(DEFAULT) | st.ip_addresses().map(str)),
)


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("alice", "alice"),
        ("CN=a b,O=x*y", "CN%3Da%20b%2CO%3Dx%2Ay"),
        ("a+b~c.d-e_f", "a%2Bb%7Ec.d-e_f"),
        ("é/\n", "%C3%A9%2F%0A"),
        ("<default>", "%3Cdefault%3E"),
    ],
)
def test_names_are_encoded_as_by_java(name: str, node: str) -> None:
    """ZooKeeper nodes that Kafka wrote must be found again."""
    assert sanitize(name) == node
    assert desanitize(node) == name


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (QuotaEntity(user="u 1"), "/config/users/u%201"),
        (QuotaEntity(user="u", client_id="c/d"), "/config/users/u/clients/c%2Fd"),
        (QuotaEntity(user=DEFAULT, client_id="c"), "/config/users/<default>/clients/c"),
        (QuotaEntity(user=DEFAULT, client_id=DEFAULT), "/config/users/<default>/clients/<default>"),
        (QuotaEntity(user=DEFAULT), "/config/users/<default>"),
        (QuotaEntity(user="<default>"), "/config/users/%3Cdefault%3E"),
        (QuotaEntity(client_id="c"), "/config/clients/c"),
        (QuotaEntity(client_id=DEFAULT), "/config/clients/<default>"),
        (QuotaEntity(ip="10.0.0.1"), "/config/ips/10.0.0.1"),
        (QuotaEntity(ip=DEFAULT), "/config/ips/<default>"),
    ],
)
def test_paths_are_kip_55s(entity: QuotaEntity, path: str) -> None:
    assert entity.path == path
    assert QuotaEntity.from_entity_path(path.removeprefix("/config/")) == entity


@given(entity=entities)
def test_every_entity_has_a_path_of_its_own(entity: QuotaEntity) -> None:
    assert QuotaEntity.from_entity_path(entity.entity_path) == entity


@given(path=st.text("uscliente/<default>p%1", max_size=40))
def test_no_path_breaks_the_reader(path: str) -> None:
    with suppress(BadEntity):
        assert QuotaEntity.from_entity_path(path).entity_path == path


@pytest.mark.parametrize(
    ("of", "problem"),
    [
        ({}, "Invalid empty client quota entity"),
        ({EntityType.USER: ""}, "Empty user not supported"),
        ({EntityType.USER: "u", EntityType.CLIENT_ID: ""}, "Empty client-id not supported"),
        ({EntityType.IP: "1.2.3.4", EntityType.USER: "u"}, "Invalid quota entity combination"),
        ({EntityType.IP: "somewhere.example"}, "somewhere.example is not a valid IP"),
        ({EntityType.IP: ""}, "Empty ip not supported"),
    ],
)
def test_impossible_entities_are_refused(of: dict[EntityType, str], problem: str) -> None:
    with pytest.raises(BadEntity, match=problem):
        QuotaEntity.of(of)


INFINITE = float("inf")


@pytest.mark.parametrize(("key", "value", "problem"), table(__file__, "limits"))
def test_limits_are_judged_as_by_kafka(key: str, value: float | str, problem: str | None) -> None:
    found = value_problem(QuotaKey(key), float(value))
    assert (found is None) == (problem is None)
    assert problem is None or found is not None
    if found and problem:
        assert problem.replace("an INT", "a INT") in found


def test_a_key_belongs_to_a_kind_of_entity() -> None:
    """Connections are limited by address, everything else by user and client id."""
    user, ip = QuotaEntity(user="u"), QuotaEntity(ip="10.0.0.1")
    assert key_of(user, "producer_byte_rate") is QuotaKey.PRODUCER_BYTE_RATE
    assert key_of(user, "connection_creation_rate") is None
    assert key_of(ip, "connection_creation_rate") is QuotaKey.CONNECTION_CREATION_RATE
    assert key_of(ip, "producer_byte_rate") is None
    assert key_of(user, "producer_byte_rate ") is None


@given(value=st.floats(min_value=1e-9, max_value=1e18))
def test_a_limit_is_written_without_loss(value: float) -> None:
    assert float(format_limit(value)) == value


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0:1::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::1", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("unknown", "unknown"),
        ("a:b", "a:b"),
    ],
)
def test_addresses_of_one_ipv6_subnet_are_one_group(address: str, group: str) -> None:
    assert address_group(address) == group
