"""KIP-888's messages against bytes worked out by hand from it, and against kio's older versions."""

import dataclasses
import struct
from datetime import timedelta
from typing import Any, get_args

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.static.primitive import f64, i8, i32Timedelta

from proxy.scheduling.stepped_thread import in_steps
from proxy.wire.codec import decode as strict_decode
from proxy.wire.messages import DescribeAclsRequest
from proxy.wire.primitives import Malformed
from tests.support.kio_messages import acl_v0, request_type, response_type
from tests.support.kio_messages import batch_describe as batch
from tests.support.kio_messages.strict import decode, encode

NO_TIME = i32Timedelta.parse(timedelta(0))
NULL, TAGS = b"\x00", b"\x00"
ALICE = b"\x0bUser:alice"
"""A compact string: its length and one, then its bytes."""

MESSAGES: list[tuple[Any, bytes]] = [
    (
        batch.DescribeAclsRequest(
            filters=(
                batch.DescribeAclsFilter(
                    resource_type_filter=i8(2),
                    resource_name_filter="t",
                    pattern_type_filter=i8(4),
                    principal_filter="User:alice",
                    host_filter="*",
                    operation=i8(3),
                    permission_type=i8(2),
                ),
                batch.DescribeAclsFilter(
                    resource_type_filter=i8(1),
                    resource_name_filter=None,
                    principal_filter=None,
                    host_filter=None,
                    operation=i8(1),
                    permission_type=i8(1),
                ),
            )
        ),
        b"\x03"  # two filters
        + (b"\x02" + b"\x02t" + b"\x04" + ALICE + b"\x02*" + b"\x03" + b"\x02" + TAGS)
        + (b"\x01" + NULL + b"\x03" + NULL + NULL + b"\x01" + b"\x01" + TAGS)
        + TAGS,
    ),
    (batch.DescribeAclsRequest(filters=()), b"\x01" + TAGS),
    (
        batch.DescribeAclsResponse(
            throttle_time=i32Timedelta.parse(timedelta(milliseconds=258)),
            filter_results=(
                batch.DescribeAclsFilterResult(
                    error_code=ErrorCode.none,
                    error_message="",
                    resources=(
                        batch.DescribeAclsResource(
                            resource_type=i8(2),
                            resource_name="t",
                            pattern_type=i8(3),
                            acls=(
                                batch.AclDescription(
                                    principal="User:alice",
                                    host="*",
                                    operation=i8(3),
                                    permission_type=i8(3),
                                ),
                                batch.AclDescription(
                                    principal="User:alice",
                                    host="::1",
                                    operation=i8(4),
                                    permission_type=i8(2),
                                ),
                            ),
                        ),
                    ),
                ),
                batch.DescribeAclsFilterResult(
                    error_code=ErrorCode.invalid_request, error_message="no", resources=()
                ),
                batch.DescribeAclsFilterResult(
                    error_code=ErrorCode.none, error_message=None, resources=()
                ),
            ),
        ),
        b"\x00\x00\x01\x02"  # throttle_time_ms
        + b"\x04"  # three results
        + b"\x00\x00"
        + b"\x01"  # an empty message
        + b"\x02"  # a resource
        + (b"\x02" + b"\x02t" + b"\x03")
        + b"\x03"  # two ACLs
        + (ALICE + b"\x02*" + b"\x03" + b"\x03" + TAGS)
        + (ALICE + b"\x04::1" + b"\x04" + b"\x02" + TAGS)
        + TAGS  # of the resource
        + TAGS  # of the result
        + (b"\x00\x2a" + b"\x03no" + b"\x01" + TAGS)
        + (b"\x00\x00" + NULL + b"\x01" + TAGS)
        + TAGS,
    ),
    (
        batch.DescribeClientQuotasRequest(
            strict=True,
            filters=(
                batch.DescribeClientQuotasFilter(
                    components=(
                        batch.ComponentData(entity_type="user", match_type=i8(0), match="alice"),
                        batch.ComponentData(entity_type="client-id", match_type=i8(1), match=None),
                    )
                ),
                batch.DescribeClientQuotasFilter(components=()),
            ),
        ),
        b"\x01"  # strict
        + b"\x03"  # two filters
        + b"\x03"  # two components
        + (b"\x05user" + b"\x00" + b"\x06alice" + TAGS)
        + (b"\x0aclient-id" + b"\x01" + NULL + TAGS)
        + TAGS
        + (b"\x01" + TAGS)
        + TAGS,
    ),
    (
        batch.DescribeClientQuotasResponse(
            throttle_time=NO_TIME,
            filter_results=(
                batch.DescribeClientQuotasFilterResult(
                    error_code=ErrorCode.none,
                    error_message="",
                    entries=(
                        batch.EntryData(
                            entity=(
                                batch.EntityData(entity_type="user", entity_name="alice"),
                                batch.EntityData(entity_type="client-id", entity_name=None),
                            ),
                            values=(batch.ValueData(key="producer_byte_rate", value=f64(1024.0)),),
                        ),
                    ),
                ),
                batch.DescribeClientQuotasFilterResult(
                    error_code=ErrorCode.unsupported_version, error_message="no", entries=None
                ),
            ),
        ),
        bytes(4)
        + b"\x03"  # two results
        + (b"\x00\x00" + b"\x01")
        + b"\x02"  # an entry
        + b"\x03"  # of two parts
        + (b"\x05user" + b"\x06alice" + TAGS)
        + (b"\x0aclient-id" + NULL + TAGS)
        + b"\x02"  # a value
        + (b"\x13producer_byte_rate" + struct.pack(">d", 1024.0) + TAGS)
        + TAGS  # of the entry
        + TAGS  # of the result
        + (b"\x00\x23" + b"\x03no" + NULL + TAGS)
        + TAGS,
    ),
]


def name(value: object) -> str:
    return type(value).__name__ if dataclasses.is_dataclass(value) else ""


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=name)
def test_bytes_of_the_specification(message: Any, expected: bytes) -> None:
    assert encode(message) == expected
    assert decode(type(message), expected) == message


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=name)
def test_kio_can_read_them_too(message: Any, expected: bytes) -> None:
    """They are in its style, down to what its reader looks at."""
    assert entity_reader(type(message))(expected, 0) == (message, len(expected))


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=name)
def test_every_truncation_is_noticed(message: Any, expected: bytes) -> None:
    for end in range(len(expected)):
        with pytest.raises(Malformed):
            decode(type(message), expected[:end])


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (batch.DescribeAclsRequest, NULL + TAGS),
        (batch.DescribeClientQuotasRequest, b"\x00" + NULL + TAGS),
        (batch.DescribeClientQuotasRequest, b"\x00\x02" + NULL + TAGS + TAGS),
    ],
)
def test_the_lists_of_requests_are_never_null(schema: Any, body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(schema, body)


Described = tuple[str, str | None, Any]


def shape(entity: Any) -> list[Described]:
    """The fields of an entity, in the order of the wire, down to the last."""
    described: list[Described] = []
    for field in dataclasses.fields(entity):
        items = [one for one in get_args(field.type) if dataclasses.is_dataclass(one)]
        nested = [
            one
            for outer in get_args(field.type)
            for one in get_args(outer)
            if dataclasses.is_dataclass(one)
        ]
        found = items or nested
        inside = shape(found[0]) if found else str(field.type)
        described.append((field.name, field.metadata.get("kafka_type"), inside))
    return described


def test_filters_and_results_are_the_older_versions_bodies() -> None:
    """As the specification says it: what was the request is an item of the new one."""
    assert shape(batch.DescribeAclsFilter) == shape(load_request_schema(29, 3))
    assert shape(batch.DescribeAclsFilterResult) == shape(load_response_schema(29, 3))[1:]
    older = shape(load_request_schema(48, 1))
    assert shape(batch.DescribeClientQuotasFilter) == older[:1]
    assert shape(batch.DescribeClientQuotasRequest)[0] == older[1]
    assert shape(batch.DescribeClientQuotasFilterResult) == shape(load_response_schema(48, 1))[1:]


@pytest.mark.parametrize(("api_key", "version"), [(29, 4), (48, 2)])
def test_headers_and_names(api_key: int, version: int) -> None:
    for ours, kios in (
        (request_type(api_key, version), load_request_schema(api_key, version - 1)),
        (response_type(api_key, version), load_response_schema(api_key, version - 1)),
    ):
        assert (ours.__name__, ours.__version__, ours.__flexible__) == (
            kios.__name__,
            version,
            True,
        )
        assert ours.__header_schema__ is kios.__header_schema__
        assert ours.__api_key__ == api_key


def test_older_versions_are_as_they_were() -> None:
    assert request_type(29, 3) is load_request_schema(29, 3)
    assert response_type(48, 1) is load_response_schema(48, 1)
    assert request_type(29, 0) is acl_v0.DescribeAclsRequest


def test_many_unknown_tags_are_passed_over_in_steps() -> None:
    """A filter of 30 KB that means nothing must not hold up the event loop."""
    one = b"\x01\x00\x01\x00\x00\x01\x01" + b"\x80\x20" + b"\x07\x01x" * 4_096
    body = b"\x02" + one + TAGS
    steps = in_steps(
        lambda: strict_decode(DescribeAclsRequest, 4, body), max_values=10_000, seconds=0
    )
    assert sum(1 for _ in steps) > 120
