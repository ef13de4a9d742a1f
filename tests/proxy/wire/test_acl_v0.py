"""Version 0 against bytes worked out by hand from KIP-140, and against kio's version 1."""

import dataclasses
from datetime import timedelta
from typing import Any, get_args

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.static.primitive import i8, i32Timedelta

from proxy.wire.primitives import Malformed
from tests.support.kio_messages import acl_v0, request_type, response_type
from tests.support.kio_messages.strict import decode, encode

NO_TIME = i32Timedelta.parse(timedelta(0))
NULL = b"\xff\xff"
ALICE = b"\x00\x0aUser:alice"

MESSAGES: list[tuple[Any, bytes]] = [
    (
        acl_v0.DescribeAclsRequest(
            resource_type_filter=i8(2),
            resource_name_filter="t",
            principal_filter="User:alice",
            host_filter="*",
            operation=i8(3),
            permission_type=i8(3),
        ),
        b"\x02\x00\x01t" + ALICE + b"\x00\x01*\x03\x03",
    ),
    (
        acl_v0.DescribeAclsRequest(
            resource_type_filter=i8(1),
            resource_name_filter=None,
            principal_filter=None,
            host_filter=None,
            operation=i8(1),
            permission_type=i8(1),
        ),
        b"\x01" + NULL * 3 + b"\x01\x01",
    ),
    (
        acl_v0.DescribeAclsResponse(
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            error_message=None,
            resources=(
                acl_v0.DescribeAclsResource(
                    resource_type=i8(2),
                    resource_name="t",
                    acls=(
                        acl_v0.AclDescription(
                            principal="User:alice",
                            host="*",
                            operation=i8(3),
                            permission_type=i8(2),
                        ),
                    ),
                ),
            ),
        ),
        bytes(4)  # throttle_time_ms
        + bytes(2)  # error_code
        + NULL
        + b"\x00\x00\x00\x01\x02\x00\x01t"
        + b"\x00\x00\x00\x01"
        + ALICE
        + b"\x00\x01*\x03\x02",
    ),
    (
        acl_v0.CreateAclsRequest(
            creations=(
                acl_v0.AclCreation(
                    resource_type=i8(4),
                    resource_name="kafka-cluster",
                    principal="User:alice",
                    host="::1",
                    operation=i8(9),
                    permission_type=i8(3),
                ),
            )
        ),
        b"\x00\x00\x00\x01\x04\x00\x0dkafka-cluster" + ALICE + b"\x00\x03::1\x09\x03",
    ),
    (
        acl_v0.CreateAclsResponse(
            throttle_time=NO_TIME,
            results=(
                acl_v0.AclCreationResult(error_code=ErrorCode.none, error_message=None),
                acl_v0.AclCreationResult(
                    error_code=ErrorCode.security_disabled, error_message="no"
                ),
            ),
        ),
        bytes(4) + b"\x00\x00\x00\x02" + bytes(2) + NULL + b"\x00\x36\x00\x02no",
    ),
    (
        acl_v0.DeleteAclsRequest(
            filters=(
                acl_v0.DeleteAclsFilter(
                    resource_type_filter=i8(3),
                    resource_name_filter="",
                    principal_filter=None,
                    host_filter=None,
                    operation=i8(1),
                    permission_type=i8(1),
                ),
            )
        ),
        b"\x00\x00\x00\x01\x03\x00\x00" + NULL * 2 + b"\x01\x01",
    ),
    (
        acl_v0.DeleteAclsResponse(
            throttle_time=NO_TIME,
            filter_results=(
                acl_v0.DeleteAclsFilterResult(
                    error_code=ErrorCode.none,
                    error_message=None,
                    matching_acls=(
                        acl_v0.DeleteAclsMatchingAcl(
                            error_code=ErrorCode.none,
                            error_message=None,
                            resource_type=i8(2),
                            resource_name="t",
                            principal="User:alice",
                            host="*",
                            operation=i8(3),
                            permission_type=i8(3),
                        ),
                    ),
                ),
            ),
        ),
        bytes(4)
        + b"\x00\x00\x00\x01"
        + bytes(2)
        + NULL
        + b"\x00\x00\x00\x01"
        + bytes(2)
        + NULL
        + b"\x02\x00\x01t"
        + ALICE
        + b"\x00\x01*\x03\x03",
    ),
]


def name(value: object) -> str:
    return type(value).__name__ if dataclasses.is_dataclass(value) else ""


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=name)
def test_bytes_of_the_specification(message: Any, expected: bytes) -> None:
    assert encode(message) == expected
    assert decode(type(message), expected) == message


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=name)
def test_every_truncation_is_noticed(message: Any, expected: bytes) -> None:
    for end in range(len(expected)):
        with pytest.raises(Malformed):
            decode(type(message), expected[:end])


def shape(entity: Any) -> list[object]:
    """The fields of an entity, in the order of the wire, down to the last."""
    described: list[object] = []
    for field in dataclasses.fields(entity):
        items = [one for one in get_args(field.type) if dataclasses.is_dataclass(one)]
        inside = shape(items[0]) if items else str(field.type)
        described.append((field.name, field.metadata.get("kafka_type"), inside))
    return described


def without_pattern_types(described: list[object]) -> list[object]:
    kept: list[object] = []
    for one in described:
        assert isinstance(one, tuple)
        field, kafka_type, inside = one
        if "pattern_type" not in field:
            kept.append(
                (
                    field,
                    kafka_type,
                    without_pattern_types(inside) if isinstance(inside, list) else inside,
                )
            )
    return kept


@pytest.mark.parametrize("api_key", [29, 30, 31])
def test_it_is_version_1_without_pattern_types(api_key: int) -> None:
    """What Kafka's own description said up to 3.9: v1 added the pattern type, and no more."""
    for ours, kios in (
        (request_type(api_key, 0), load_request_schema(api_key, 1)),
        (response_type(api_key, 0), load_response_schema(api_key, 1)),
    ):
        assert shape(ours) == without_pattern_types(shape(kios))
        assert (ours.__name__, ours.__version__, ours.__flexible__) == (kios.__name__, 0, False)
        assert ours.__api_key__ == kios.__api_key__


def test_later_versions_are_kios() -> None:
    assert request_type(30, 1) is load_request_schema(30, 1)
    assert response_type(36, 0) is load_response_schema(36, 0)
