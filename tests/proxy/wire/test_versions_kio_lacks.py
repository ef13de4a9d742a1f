"""Versions that kio lacks against bytes from elsewhere, and against kio's neighbouring versions.

Those of the dropped version 0 of the ACL APIs are worked out by hand from KIP-140, those of KIP-888
from its text, and those of Kafka 4.4 were written by the classes of Kafka 4.4.0.
"""

import struct
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from proxy.scheduling.steps import in_steps
from proxy.wire.apis import APIS
from proxy.wire.codec import decode as strict_decode
from proxy.wire.messages import DescribeAclsRequest
from proxy.wire.primitives import Malformed
from tests.support.kio_messages import is_of_kio, request_type, response_type
from tests.support.kio_messages.strict import decode, encode
from tests.support.messages import message

THROTTLED: Final = {"throttle_time": timedelta(milliseconds=258)}
THROTTLE_TIME: Final = b"\x00\x00\x01\x02"
OK: Final = {"error_code": 0, "error_message": None}
TOPIC_ID: Final = UUID(int=1 << 64 | 2)

Case = tuple[int, int, dict[str, Any], bytes]

# ---------------------------------------------------------------------- KIP-140

NULL_0, ALICE_0 = b"\xff\xff", b"\x00\x0aUser:alice"
_RIGHT = {"principal": "User:alice", "host": "*", "operation": 3, "permission_type": 3}
_ANYTHING = {"resource_type_filter": 1, "operation": 1, "permission_type": 1}
_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": "t",
    "principal_filter": "User:alice",
    "host_filter": "*",
    "operation": 3,
    "permission_type": 3,
}

REQUESTS_V0: Final[list[Case]] = [
    (29, 0, _FILTER, b"\x02\x00\x01t" + ALICE_0 + b"\x00\x01*\x03\x03"),
    (29, 0, _ANYTHING, b"\x01" + NULL_0 * 3 + b"\x01\x01"),
    (
        30,
        0,
        {
            "creations": [
                {"resource_type": 4, "resource_name": "kafka-cluster"}
                | {**_RIGHT, "host": "::1", "operation": 9}
            ]
        },
        b"\x00\x00\x00\x01\x04\x00\x0dkafka-cluster" + ALICE_0 + b"\x00\x03::1\x09\x03",
    ),
    (
        31,
        0,
        {"filters": [{**_ANYTHING, "resource_type_filter": 3, "resource_name_filter": ""}]},
        b"\x00\x00\x00\x01\x03\x00\x00" + NULL_0 * 2 + b"\x01\x01",
    ),
]
RESPONSES_V0: Final[list[Case]] = [
    (
        29,
        0,
        {**OK, "resources": [{"resource_type": 2, "resource_name": "t", "acls": [_RIGHT]}]},
        bytes(2)  # error_code
        + NULL_0
        + (b"\x00\x00\x00\x01\x02\x00\x01t" + b"\x00\x00\x00\x01")
        + (ALICE_0 + b"\x00\x01*\x03\x03"),
    ),
    (
        30,
        0,
        {"results": [OK, {"error_code": 54, "error_message": "no"}]},
        b"\x00\x00\x00\x02" + bytes(2) + NULL_0 + b"\x00\x36\x00\x02no",
    ),
    (
        31,
        0,
        {
            "filter_results": [
                {**OK, "matching_acls": [{**OK, "resource_type": 2, "resource_name": "t"} | _RIGHT]}
            ]
        },
        (b"\x00\x00\x00\x01" + bytes(2) + NULL_0)
        + (b"\x00\x00\x00\x01" + bytes(2) + NULL_0)
        + (b"\x02\x00\x01t" + ALICE_0 + b"\x00\x01*\x03\x03"),
    ),
]

# ---------------------------------------------------------------------- KIP-888

NULL, TAGS = b"\x00", b"\x00"
ALICE: Final = b"\x0bUser:alice"
"""A compact string: its length and one, then its bytes."""

REQUESTS_OF_MANY: Final[list[Case]] = [
    (
        29,
        4,
        {"filters": [{**_FILTER, "pattern_type_filter": 4, "permission_type": 2}, _ANYTHING]},
        b"\x03"  # two filters
        + (b"\x02" + b"\x02t" + b"\x04" + ALICE + b"\x02*" + b"\x03" + b"\x02" + TAGS)
        + (b"\x01" + NULL + b"\x03" + NULL + NULL + b"\x01" + b"\x01" + TAGS)
        + TAGS,
    ),
    (29, 4, {"filters": []}, b"\x01" + TAGS),
    (
        48,
        2,
        {
            "strict": True,
            "filters": [
                {
                    "components": [
                        {"entity_type": "user", "match_type": 0, "match": "alice"},
                        {"entity_type": "client-id", "match_type": 1, "match": None},
                    ]
                },
                {"components": []},
            ],
        },
        b"\x01"  # strict
        + (b"\x03" + b"\x03")  # two filters, and two components
        + (b"\x05user" + b"\x00" + b"\x06alice" + TAGS)
        + (b"\x0aclient-id" + b"\x01" + NULL + TAGS)
        + TAGS
        + (b"\x01" + TAGS)
        + TAGS,
    ),
]
RESPONSES_OF_MANY: Final[list[Case]] = [
    (
        29,
        4,
        {
            "filter_results": [
                {
                    "error_code": 0,
                    "error_message": "",
                    "resources": [
                        {
                            "resource_type": 2,
                            "resource_name": "t",
                            "pattern_type": 3,
                            "acls": [
                                _RIGHT,
                                {**_RIGHT, "host": "::1", "operation": 4, "permission_type": 2},
                            ],
                        }
                    ],
                },
                {"error_code": 42, "error_message": "no", "resources": []},
                {**OK, "resources": []},
            ]
        },
        b"\x04"  # three results
        + (b"\x00\x00" + b"\x01" + b"\x02")  # an empty message, and a resource
        + (b"\x02" + b"\x02t" + b"\x03" + b"\x03")  # with two ACLs
        + (ALICE + b"\x02*" + b"\x03" + b"\x03" + TAGS)
        + (ALICE + b"\x04::1" + b"\x04" + b"\x02" + TAGS)
        + (TAGS + TAGS)  # of the resource, and of the result
        + (b"\x00\x2a" + b"\x03no" + b"\x01" + TAGS)
        + (b"\x00\x00" + NULL + b"\x01" + TAGS)
        + TAGS,
    ),
    (
        48,
        2,
        {
            "filter_results": [
                {
                    "error_code": 0,
                    "error_message": "",
                    "entries": [
                        {
                            "entity": [
                                {"entity_type": "user", "entity_name": "alice"},
                                {"entity_type": "client-id", "entity_name": None},
                            ],
                            "values": [{"key": "producer_byte_rate", "value": 1024.0}],
                        }
                    ],
                },
                {"error_code": 35, "error_message": "no", "entries": None},
            ]
        },
        b"\x03"  # two results
        + (b"\x00\x00" + b"\x01")
        + (b"\x02" + b"\x03")  # an entry of two parts
        + (b"\x05user" + b"\x06alice" + TAGS)
        + (b"\x0aclient-id" + NULL + TAGS)
        + b"\x02"  # a value
        + (b"\x13producer_byte_rate" + struct.pack(">d", 1024.0) + TAGS)
        + (TAGS + TAGS)  # of the entry, and of the result
        + (b"\x00\x23" + b"\x03no" + NULL + TAGS)
        + TAGS,
    ),
]

# ---------------------------------------------------------------------- Kafka 4.4

_SOURCE = {
    "name": "n",
    "node_type": 1,
    "source_topics": ["in"],
    "stores": ["s"],
    "successors": ["o"],
}
_SINK = {"name": "o", "node_type": 3, "sink_topic": "out"}
_TOPOLOGY = {
    "subtopologies": [{"subtopology_id": "0", "nodes": [_SOURCE, _SINK]}],
    "global_stores": [{"source": _SOURCE, "processor": _SINK}],
}
_NODES = "026e010203696e0002027302026f00" + "026f0301046f7574010100"
"""Bytes of source and sink."""
_TOPOLOGY_BYTES = "02" + "0230" + "03" + _NODES + "00" + "02" + _NODES + "00" + "00"

REQUESTS_4_4: Final[list[tuple[int, int, dict[str, Any], str]]] = [
    (
        18,
        5,
        {"client_software_name": "a", "client_software_version": "1"}
        | {"cluster_id": "c", "node_id": 7},
        "0261023102630000000700",
    ),
    (
        28,
        6,
        {
            "transactional_id": "t",
            "group_id": "g",
            "producer_id": 7,
            "producer_epoch": 3,
            "generation_id_or_member_epoch": 5,
            "member_id": "m",
            "group_instance_id": "i",
            "topics": [
                {
                    "topic_id": TOPIC_ID,
                    "partitions": [
                        {"partition_index": 4, "committed_offset": 9}
                        | {"committed_leader_epoch": 6, "committed_metadata": "x"}
                    ],
                }
            ],
        },
        "027402670000000000000007000300000005026d02690200000000000000010000000000000002"
        "02000000040000000000000009000000060278000000",
    ),
    (42, 3, {"groups_names": ["g", "h"]}, "030267026800"),
    (
        88,
        1,
        {"group_id": "g", "member_id": "m", "member_epoch": 1, "endpoint_information_epoch": 2},
        "0267026d00000001000000020000ffffffffff00000000ff0000000000",
    ),
    (89, 1, {"group_ids": ["g"], "include_topology_description": True}, "020267000100"),
    (
        93,
        0,
        {"group_id": "g", "member_id": "m", "topology_epoch": 1, "topology_description": _TOPOLOGY},
        "0267026d00000001" + _TOPOLOGY_BYTES + "00",
    ),
    (94, 0, {"controller_id": 3}, "0000000300"),
]
RESPONSES_4_4: Final[list[tuple[int, int, dict[str, Any], str]]] = [
    (
        18,
        5,
        {"error_code": 129, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 5}]},
        "008102001200000005000000010200",
    ),
    (
        28,
        6,
        {
            "topics": [
                {"topic_id": TOPIC_ID, "partitions": [{"partition_index": 4, "error_code": 100}]}
            ]
        },
        "00000102020000000000000001000000000000000202000000040064000000",
    ),
    (
        42,
        3,
        {
            "results": [
                {"group_id": "g", "error_code": 30},
                {"group_id": "h", "error_code": 69, "error_message": "no"},
            ]
        },
        "00000102030267001e000002680045036e6f0000",
    ),
    (
        88,
        1,
        {
            "member_id": "m",
            "member_epoch": 1,
            "heartbeat_interval": 2,
            "task_offset_interval": 3,
            "acceptable_recovery_lag": 10_000_000_000,
            "status": [{"status_code": 6, "status_detail": "d"}],
            "active_tasks": [{"subtopology_id": "0", "partitions": [1]}],
            "topology_description_required": True,
            "endpoint_information_epoch": 4,
        },
        "00000102000000026d00000001000000020000000300000002540be400020602640002023002"
        "0000000100000001000000040000",
    ),
    (
        89,
        1,
        {
            "groups": [
                {
                    "group_id": "g",
                    "group_state": "Stable",
                    "group_epoch": 1,
                    "assignment_epoch": 2,
                    "topology_description": _TOPOLOGY,
                    "topology_description_status": 3,
                    "assignor_name": "a",
                },
                {"group_id": "h", "error_code": 29, "error_message": "no"},
            ]
        },
        "0000010203"
        "000000026707537461626c650000000100000002ff018000000001"
        + _TOPOLOGY_BYTES
        + "03026100"
        + "001d036e6f0268010000000000000000ff0180000000ff00000000",
    ),
    (93, 0, {"error_code": 30, "error_message": "no"}, "00000102001e036e6f00"),
    (94, 0, {"error_code": 31, "error_message": None}, "00000102001f0000"),
]

REQUESTS: Final = (*REQUESTS_V0, *REQUESTS_OF_MANY, *REQUESTS_4_4)
RESPONSES: Final = (*RESPONSES_V0, *RESPONSES_OF_MANY, *RESPONSES_4_4)

BY_HAND: Final[list[tuple[Any, dict[str, Any], bytes]]] = [
    (request_type(key, version), fields, body)
    for key, version, fields, body in REQUESTS_V0 + REQUESTS_OF_MANY
] + [
    (response_type(key, version), THROTTLED | fields, THROTTLE_TIME + body)
    for key, version, fields, body in RESPONSES_V0 + RESPONSES_OF_MANY
]
OF_KAFKA: Final[list[tuple[Any, dict[str, Any], bytes]]] = [
    (request_type(key, version), fields, bytes.fromhex(body))
    for key, version, fields, body in REQUESTS_4_4
] + [
    (response_type(key, version), THROTTLED | fields, bytes.fromhex(body))
    for key, version, fields, body in RESPONSES_4_4
]


@pytest.mark.parametrize(("schema", "fields", "body"), BY_HAND + OF_KAFKA)
def test_both_codecs_read_and_write_these_bytes(
    schema: Any, fields: dict[str, Any], body: bytes
) -> None:
    entity = message(schema, fields)
    assert encode(entity) == body
    assert decode(schema, body) == entity
    assert entity_reader(schema)(body, 0) == (entity, len(body))


@pytest.mark.parametrize(("schema", "body"), [(schema, body) for schema, _, body in BY_HAND])
def test_every_truncation_is_noticed(schema: Any, body: bytes) -> None:
    for end in range(len(body)):
        with pytest.raises(Malformed):
            decode(schema, body[:end])


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [(29, 4, NULL + TAGS), (48, 2, b"\x00" + NULL + TAGS), (48, 2, b"\x00\x02" + NULL + TAGS * 2)],
)
def test_the_lists_of_requests_are_never_null(key: int, version: int, body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(request_type(key, version), body)


def test_kio_has_every_version_but_those_of_the_tests() -> None:
    """A version that kio has learned needs no test of its own any more."""
    lacks = {
        (key, version)
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
        if not is_of_kio(key, version)
    }
    assert lacks == {(key, version) for key, version, *_ in REQUESTS}


def test_every_version_has_a_request_and_a_response() -> None:
    assert {one[:2] for one in REQUESTS} == {one[:2] for one in RESPONSES}


@pytest.mark.parametrize(
    ("api_key", "version", "of_kio"),
    [(29, 0, 1), (30, 0, 1), (31, 0, 1), (29, 4, 3), (48, 2, 1), (18, 5, 4), (42, 3, 2)],
)
def test_headers_and_names_are_those_of_kio(api_key: int, version: int, of_kio: int) -> None:
    for ours, kios in (
        (request_type(api_key, version), load_request_schema(api_key, of_kio)),
        (response_type(api_key, version), load_response_schema(api_key, of_kio)),
    ):
        assert (ours.__name__, ours.__version__) == (kios.__name__, version)
        assert ours.__flexible__ == kios.__flexible__
        assert ours.__header_schema__ is kios.__header_schema__
        assert (ours.__api_key__, ours.__type__) == (api_key, kios.__type__)


def test_versions_that_kio_has_are_its_own() -> None:
    assert request_type(30, 1) is load_request_schema(30, 1)
    assert response_type(48, 1) is load_response_schema(48, 1)


def test_many_unknown_tags_are_passed_over_in_steps() -> None:
    """A filter of 30 KB that means nothing must not hold up the event loop."""
    one = b"\x01\x00\x01\x00\x00\x01\x01" + b"\x80\x20" + b"\x07\x01x" * 4_096
    body = b"\x02" + one + TAGS
    steps = in_steps(
        lambda: strict_decode(DescribeAclsRequest, 4, body), max_values=10_000, seconds=0
    )
    assert sum(1 for _ in steps) > 120
