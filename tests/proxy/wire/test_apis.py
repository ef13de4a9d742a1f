"""The table against kio and against what Kafka's own broker has."""

import csv
from pathlib import Path

import pytest

from proxy.wire import apis
from proxy.wire.apis import APIS, FIRST_KEPT_BY_KAFKA_4, Kind, forwarded, offers
from proxy.wire.schema import NEVER
from tests.support.kio_messages import request_type, response_type

KAFKA_4_1 = Path(__file__).with_name("kafka_4_1_api_keys.csv")
CLIENT_APIS_OF_PROXY = {17, 18, 29, 30, 31, 36, 48, 49, 50, 51}
ACL_APIS = {29, 30, 31}
"""Served in v0 too (KIP-140), which Kafka 4 and kio no longer know."""
FOR_LATER_WORK = set(range(38, 42))
"""Delegation tokens: forwarded, they would go around the proxy's own rules."""


def kafka_4_1() -> list[dict[str, str]]:
    with KAFKA_4_1.open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_headers_are_those_of_kio() -> None:
    for key, api in APIS.items():
        for version in range(api.min_version, api.max_version + 1):
            request = request_type(key, version)
            response = response_type(key, version)
            assert apis.is_flexible(key, version) == request.__flexible__, api.name
            header_version = response.__header_schema__.__version__
            assert apis.response_header_version(key, version) == header_version, api.name


def test_kafka_agrees_on_names_lowest_versions_and_headers() -> None:
    for row in kafka_4_1():
        key = int(row["key"])
        if row["served_by"] == "gone":
            assert key not in APIS
            continue
        api = APIS[key]
        oldest = 0 if key in ACL_APIS else int(row["oldest"])
        assert (api.name, api.min_version) == (row["name"], oldest)
        assert api.max_version >= int(row["latest"]), api.name
        if row["first_flexible"]:
            first = max(int(row["first_flexible"]), api.min_version)
            assert max(api.first_flexible, api.min_version) == first, api.name
        else:
            assert api.first_flexible == NEVER


def test_what_only_brokers_and_controllers_say_is_not_offered() -> None:
    between_brokers = {83, 84, 85, 86, 87}  # share group state: needs ClusterAction
    for row in kafka_4_1():
        key = int(row["key"])
        if row["served_by"] == "controller" or key in between_brokers | FOR_LATER_WORK:
            assert APIS[key].kind is Kind.NOT_OFFERED, row["name"]
        elif key in CLIENT_APIS_OF_PROXY:
            assert APIS[key].kind is Kind.ANSWERED
    assert APIS[67].kind is Kind.NOT_OFFERED  # AllocateProducerIds
    assert APIS[58].kind is Kind.NOT_OFFERED  # Envelope


def test_an_offer_is_what_both_broker_and_proxy_know() -> None:
    offered = offers({1: (0, 12), 3: (5, 99), 9: (11, 12), 29: (0, 3), 200: (0, 1)})
    assert offered[1] == (4, 12)
    assert offered[3] == (5, 13)
    assert 9 not in offered, "no version in common"
    assert offered[29] == (0, 4), "the proxy's own"
    assert 200 not in offered, "unknown APIs cannot be policed"


def test_what_the_proxy_serves_does_not_depend_on_the_broker() -> None:
    acls = {29: (0, 4), 30: (0, 3), 31: (0, 3)}
    quotas = {48: (0, 2), 49: (0, 1)}
    others = {17: (0, 1), 18: (0, 5), 36: (0, 2), 50: (0, 0), 51: (0, 0)}
    assert offers({}) == acls | quotas | others
    assert offers({36: (0, 0), 18: (0, 2)}) == offers({})


KAFKA_3_9 = {0: (0, 11), 1: (0, 17), 3: (0, 12), 4: (0, 7), 19: (0, 7), 38: (0, 3), 76: (0, 0)}
"""What a broker of Kafka 3.9 offers, in part."""
KAFKA_4_1_OFFERS = {0: (0, 13), 1: (4, 17), 3: (0, 13), 19: (2, 7), 38: (1, 3), 76: (1, 1)}


@pytest.mark.parametrize("enforces_acls", [False, True])
@pytest.mark.parametrize(
    ("upstream", "api_key", "judged", "unjudged"),
    [
        (KAFKA_3_9, 0, (3, 11), (0, 11)),
        (KAFKA_3_9, 1, (4, 17), (0, 17)),
        (KAFKA_3_9, 3, (0, 12), (0, 12)),
        (KAFKA_3_9, 19, (2, 7), (0, 7)),
        (KAFKA_3_9, 4, None, None),  # between brokers
        (KAFKA_3_9, 38, None, None),  # delegation tokens
        (KAFKA_3_9, 76, None, None),  # an early access that KIP-896 did not drop
        (KAFKA_4_1_OFFERS, 0, (3, 13), (3, 13)),  # v0 to v2 are announced, and not served
        (KAFKA_4_1_OFFERS, 1, (4, 17), (4, 17)),
        (KAFKA_4_1_OFFERS, 19, (2, 7), (2, 7)),
        ({0: (0, 11)}, 0, (3, 11), (3, 11)),  # it may not serve old versions
        ({1: (0, 3), 2: (0, 0)}, 1, None, (0, 3)),
        ({1: (0, 3), 2: (0, 0)}, 2, None, (0, 0)),
        ({1: (0, 3), 2: (0, 99)}, 2, (1, 11), (0, 11)),
    ],
)
def test_versions_that_cannot_be_judged_pass_where_acls_are_not_enforced(
    upstream: dict[int, tuple[int, int]],
    api_key: int,
    judged: tuple[int, int] | None,
    unjudged: tuple[int, int] | None,
    enforces_acls: bool,
) -> None:
    passed = forwarded(upstream, enforces_acls=enforces_acls)
    assert passed.get(api_key) == (judged if enforces_acls else unjudged)


def test_produce_keeps_the_lowest_version_that_kafka_pretends_to_have() -> None:
    """librdkafka takes a Produce minimum above 0 for a broker without message sets (KIP-896)."""
    for enforces_acls in (False, True):
        assert offers(KAFKA_4_1_OFFERS, enforces_acls=enforces_acls)[0] == (0, 13)
        assert offers(KAFKA_3_9, enforces_acls=enforces_acls)[0] == (0, 11)


def test_first_versions_that_kafka_4_kept_are_those_of_its_apis() -> None:
    between_brokers, early_access = {56}, {76, 77, 78, 79}
    oldest = {int(row["key"]): int(row["oldest"] or 0) for row in kafka_4_1()}
    kept = {
        key: version
        for key, version in oldest.items()
        if version and key not in between_brokers | early_access
    }
    assert dict(FIRST_KEPT_BY_KAFKA_4) == kept


@pytest.mark.parametrize(("api_key", "version"), [(-1, 0), (4, 0), (95, 0), (3, -1), (3, 14)])
def test_unknown_apis_and_versions_carry_no_addresses(api_key: int, version: int) -> None:
    assert not apis.carries_addresses(api_key, version)
