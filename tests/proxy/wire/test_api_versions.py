"""ApiVersions as Kafka answers it; kio is the judge of form."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader

from proxy.errors import BrokerFault, ClientFault
from proxy.wire.api_versions import (
    INVALID_REQUEST,
    NO_NODE,
    NO_SOFTWARE,
    UNKNOWN_BROKER,
    UNSUPPORTED_VERSION,
    ApiVersionsAnswers,
    ApiVersionsRequest,
    BrokerIdentity,
    ClientSoftware,
    UpstreamVersions,
    common_versions,
    parse_request,
    parse_response,
    refusal,
    unsupported_version,
    write_request,
)
from proxy.wire.error_codes import ErrorCode
from tests.support.kio_messages import decode as decode_request
from tests.support.kio_messages import request_type
from tests.support.messages import written
from tests.support.responses import CORRELATION_ID, decode, encode, responses

UPSTREAM = UpstreamVersions(
    apis={0: (0, 13), 3: (0, 13), 18: (0, 4), 29: (1, 3)},
    supported_features={"kraft.version": (0, 1), "metadata.version": (7, 27)},
    finalized_features_epoch=5,
    finalized_features={"metadata.version": (27, 27), "transaction.version": (2, 2)},
    zk_migration_ready=True,
)


@pytest.mark.parametrize("version", range(6))
def test_every_version_says_the_same(version: int) -> None:
    answers = ApiVersionsAnswers(UPSTREAM)
    answer: Any = decode(18, version, answers.response(version, CORRELATION_ID))
    assert answer.error_code == ErrorCode.NONE
    ranges = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert ranges == answers.offers
    if version >= 3:
        assert answer.finalized_features_epoch == 5
        assert answer.zk_migration_ready
        levels = {one.name: one.max_version_level for one in answer.finalized_features}
        assert levels == {"metadata.version": 27, "transaction.version": 2}


@pytest.mark.parametrize(
    ("version", "names"), [(3, {"metadata.version"}), (4, {"kraft.version", "metadata.version"})]
)
def test_features_from_level_0_are_hidden_before_v4(version: int, names: set[str]) -> None:
    """Seen in Kafka's own ApiVersionsResponse (KIP-1022)."""
    answers = ApiVersionsAnswers(UPSTREAM)
    answer: Any = decode(18, version, answers.response(version, CORRELATION_ID))
    assert {one.name for one in answer.supported_features} == names


def test_without_features_there_is_no_tagged_field() -> None:
    body = ApiVersionsAnswers(UpstreamVersions(apis={})).response(4, 1)
    assert body.endswith(b"\x00" * 5)


def test_a_too_new_version_is_told_the_range() -> None:
    answer: Any = decode(18, 0, unsupported_version(CORRELATION_ID))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    (own,) = answer.api_keys
    assert (own.api_key, own.min_version, own.max_version) == (18, 0, 5)


@pytest.mark.parametrize("version", range(6))
def test_an_invalid_request_is_answered_in_its_version(version: int) -> None:
    answer: Any = decode(18, version, refusal(version, CORRELATION_ID, INVALID_REQUEST))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert answer.api_keys == ()


@pytest.mark.parametrize("valid", [True, False])
def test_valid_software_is_what_kafka_takes_for_valid(valid: bool) -> None:
    """Each was asked of Kafka 4.1's ApiVersionsRequest.isValid()."""
    good = ("a", "apache-kafka-java", "a..b", "4.1.0")
    bad = ("", "-a", "a-", "A_b", "é", "a\n", "a b")
    for text in good if valid else bad:
        assert ClientSoftware(name=text, version="1").valid is valid, text
        assert ClientSoftware(name="a", version=text).valid is valid, text


@pytest.mark.parametrize("version", range(6))
def test_a_request_tells_the_clients_software(version: int) -> None:
    schema: Any = request_type(18, version)
    said = {"client_software_name": "librdkafka", "client_software_version": "2.6.0"}
    entity = schema(**said) if version >= 3 else schema()
    body = written(entity)
    request = parse_request(version, body + b"ignored")
    expected = ("librdkafka", "2.6.0") if version >= 3 else ("", "")
    assert (request.software.name, request.software.version) == expected
    assert (request.cluster_id, request.node_id) == (None, NO_NODE)
    assert write_request(version, request) == body
    read, size = entity_reader(schema)(write_request(version, request), 0)
    assert (read, size) == (entity, len(body))


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "body"),
    [
        ("", -2, "0261023101fffffffe00"),
        (None, 3, "02610231000000000300"),
        ("k" * 32_767, -1, "02610231808002" + "6b" * 32_767 + "ffffffff00"),
    ],
)
def test_a_v5_request_tells_which_broker_is_meant(
    cluster_id: str | None, node_id: int, body: str
) -> None:
    """The bytes are those of Kafka 4.4.0's own ApiVersionsRequestData."""
    data = bytes.fromhex(body)
    request = parse_request(5, data)
    assert (request.cluster_id, request.node_id) == (cluster_id, node_id)
    assert write_request(5, request) == data
    entity: Any = decode_request(request_type(18, 5), data)
    assert (entity.cluster_id, entity.node_id) == (cluster_id, node_id)


def meant(cluster_id: str | None, node_id: int = NO_NODE) -> ApiVersionsRequest:
    return ApiVersionsRequest(NO_SOFTWARE, cluster_id, node_id)


@pytest.mark.parametrize(
    ("request_", "is_right"),
    [
        (meant("c", 1), True),
        (meant("c", 2), False),
        (meant("c", -2), False),
        (meant("other", 1), False),
        (meant("", 1), False),
        (meant(None), True),
    ],
)
def test_a_client_is_right_as_it_is_for_kafka(request_: ApiVersionsRequest, is_right: bool) -> None:
    """Kafka 4.4's `KafkaApis` says the same of cluster `c`, node 1."""
    identity = BrokerIdentity(cluster_id="c", node_ids=frozenset({1}))
    assert identity.is_meant_by(request_) is is_right


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "valid"),
    [("c", 1, True), ("", -2, True), (None, -1, True), ("c", -1, False), (None, 1, False)],
)
def test_ids_come_together_or_not_at_all(cluster_id: str | None, node_id: int, valid: bool) -> None:
    """As Kafka 4.4's ApiVersionsRequest.isValid() has it."""
    software = ClientSoftware(name="a", version="1")
    assert ApiVersionsRequest(software, cluster_id, node_id).valid is valid
    assert not ApiVersionsRequest(NO_SOFTWARE, cluster_id, node_id).valid


def test_what_is_not_known_is_not_checked() -> None:
    assert UNKNOWN_BROKER.is_meant_by(meant("c", 1))
    assert BrokerIdentity(cluster_id="c").is_meant_by(meant("c", 5))
    assert not BrokerIdentity(cluster_id="c").is_meant_by(meant("other", 5))
    assert not BrokerIdentity(node_ids={1}).is_meant_by(meant("c", 5))


def test_a_broker_that_is_not_where_its_clients_are_sent_is_meant_by_none() -> None:
    identity = BrokerIdentity(cluster_id="c", node_ids={1, 2})
    assert not identity.is_meant_by(meant("c", 1))
    assert not identity.is_meant_by(meant("c", 2))
    assert identity.is_meant_by(meant(None))


def test_common_versions_are_those_of_all_brokers() -> None:
    """Of a cluster that is upgraded; an API that one of them lacks is not offered at all."""
    old = UpstreamVersions(apis={0: (3, 12), 3: (0, 13), 28: (0, 5)})
    new = UpstreamVersions(apis={0: (3, 13), 3: (5, 13), 28: (0, 6), 93: (0, 0)})
    odd = UpstreamVersions(apis={0: (13, 13), 3: (0, 13), 28: (0, 6)})
    assert common_versions([old]) == old.apis
    assert common_versions([new, new]) == new.apis
    expected = {0: (3, 12), 3: (5, 13), 28: (0, 5)}
    assert common_versions([old, new, old]) == common_versions([new, old]) == expected
    assert common_versions([new, odd, old]) == {3: (5, 13), 28: (0, 5)}


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, b""),
        (3, b"\x00\x00\x00"),
        (3, b"\x05ab"),
        (3, b"\x02a\x02b"),
        (3, b"\x02a\x02b\x01"),
        (3, b"\x02a\x02b\x01\x00\x05x"),
        (3, b"\xff\xff\xff\xff\xff\xff"),
        (3, b"\xff\xff\xff\xff\x0f" + b"x" * 40_000),
        (3, b"\x02\xff\x02b\x00"),
        # ids: also a byte longer than any string
        (5, b"\x02a\x02b"),
        (5, b"\x02a\x02b\x02c"),
        (5, b"\x02a\x02b\x02c\0\0\0\x01"),
        (5, b"\x02a\x02b\x00"),
        (5, b"\x02a\x02b\x81\x80\x02" + b"k" * 32_768 + b"\0\0\0\x01\0"),
        (5, b"\x02a\x02b\xff\xff\xff\xff\x07" + b"k" * 40_000),
        (5, b"\x02a\x02b\x02\xff\0\0\0\x01\0"),
    ],
)
def test_a_malformed_request_is_the_clients_fault(version: int, body: bytes) -> None:
    """Cut short, null names, impossible lengths, text that is not UTF-8."""
    with pytest.raises(ClientFault):
        parse_request(version, body)


@given(body=st.binary(max_size=60))
def test_no_request_raises_anything_else(body: bytes) -> None:
    with suppress(ClientFault):
        request = parse_request(5, body)
        software = request.software
        cluster_id = request.cluster_id or ""
        assert len(software.name) + len(software.version) + len(cluster_id) <= len(body)


@given(version=st.integers(0, 5), body=st.binary(max_size=60))
def test_no_response_raises_anything_but_the_brokers_fault(version: int, body: bytes) -> None:
    with suppress(BrokerFault):
        _, upstream = parse_response(version, body)
        assert len(upstream.apis) <= len(body) // 6


@pytest.mark.parametrize("version", range(6))
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_brokers_response_is_read_as_kio_reads_it(version: int, data: st.DataObject) -> None:
    entity = data.draw(responses(18, version))
    error_code, upstream = parse_response(version, encode(entity)[4:])
    assert error_code == entity.error_code.value
    assert upstream.apis == {
        one.api_key: (one.min_version, one.max_version) for one in entity.api_keys
    }
    if version >= 3:
        assert upstream.finalized_features_epoch == entity.finalized_features_epoch
        assert upstream.zk_migration_ready == entity.zk_migration_ready
        assert upstream.finalized_features == {
            one.name: (one.min_version_level, one.max_version_level)
            for one in entity.finalized_features
        }
        assert upstream.supported_features == {
            one.name: (one.min_version, one.max_version) for one in entity.supported_features
        }


def test_a_refused_version_comes_back_in_v0() -> None:
    error_code, upstream = parse_response(4, unsupported_version(1)[4:])
    assert error_code == UNSUPPORTED_VERSION
    assert upstream.apis == {18: (0, 5)}
    assert parse_response(3, refusal(3, 1, INVALID_REQUEST)[4:])[0] == INVALID_REQUEST
