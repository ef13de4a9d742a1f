"""Kafka 4.4's messages against the bytes that Kafka 4.4.0's own classes wrote."""

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from kio.serial import entity_reader

from tests.support.kio_messages import kafka_4_4, request_type, response_type
from tests.support.kio_messages.strict import decode, encode
from tests.support.messages import message

TOPIC_ID: Final = UUID(int=1 << 64 | 2)
THROTTLED: Final = {"throttle_time": timedelta(milliseconds=258)}

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

REQUESTS: list[tuple[int, int, dict[str, Any], str]] = [
    (
        18,
        5,
        {
            "client_software_name": "a",
            "client_software_version": "1",
            "cluster_id": "c",
            "node_id": 7,
        },
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
                        {
                            "partition_index": 4,
                            "committed_offset": 9,
                            "committed_leader_epoch": 6,
                            "committed_metadata": "x",
                        }
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
        {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 1,
            "endpoint_information_epoch": 2,
        },
        "0267026d00000001000000020000ffffffffff00000000ff0000000000",
    ),
    (89, 1, {"group_ids": ["g"], "include_topology_description": True}, "020267000100"),
    (
        93,
        0,
        {
            "group_id": "g",
            "member_id": "m",
            "topology_epoch": 1,
            "topology_description": _TOPOLOGY,
        },
        "0267026d00000001" + _TOPOLOGY_BYTES + "00",
    ),
    (94, 0, {"controller_id": 3}, "0000000300"),
]

RESPONSES: list[tuple[int, int, dict[str, Any], str]] = [
    (
        18,
        5,
        {
            "error_code": 129,
            "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 5}],
        },
        "008102001200000005000000010200",
    ),
    (
        28,
        6,
        {
            "topics": [
                {
                    "topic_id": TOPIC_ID,
                    "partitions": [{"partition_index": 4, "error_code": 100}],
                }
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

MESSAGES = [(request_type(key, version), fields, body) for key, version, fields, body in REQUESTS]
MESSAGES += [
    (response_type(key, version), THROTTLED | fields, body)
    for key, version, fields, body in RESPONSES
]


@pytest.mark.parametrize(("schema", "fields", "body"), MESSAGES)
def test_reads_and_writes_what_kafka_does(schema: Any, fields: dict[str, Any], body: str) -> None:
    entity = message(schema, fields)
    assert encode(entity).hex() == body
    assert decode(schema, bytes.fromhex(body)) == entity
    assert entity_reader(schema)(bytes.fromhex(body), 0)[0] == entity


def test_every_message_is_among_them() -> None:
    assert {schema for schema, _, _ in MESSAGES} == {*kafka_4_4.REQUESTS, *kafka_4_4.RESPONSES}
