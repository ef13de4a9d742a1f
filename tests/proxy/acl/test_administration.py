"""Outcomes of administrative requests, from their responses."""

from typing import Any

import pytest

from proxy.acl.administration import Administered
from proxy.connection.frames import route_key
from proxy.wire import apis
from tests.support import messages
from tests.support.messages import request_body

FIELDS = {"resource_type": 2, "principal": "User:bob", "host": "*", "operation": 3}
FIELDS |= {"resource_name": "ord", "permission_type": 3}
ACL = "TOPIC PREFIXED ord User:bob * READ ALLOW"


@pytest.mark.parametrize(
    ("key", "version", "response", "expected"),
    [
        (
            apis.CREATE_TOPICS,
            5,
            {
                "topics": [
                    {"name": "a", "configs": [{"name": "x"}]},
                    {"name": "b", "error_code": 36},
                ]
            },
            {"a": 0, "b": 36},
        ),
        (
            apis.INCREMENTAL_ALTER_CONFIGS,
            1,
            {"responses": [{"resource_name": "a", "error_code": 40, "error_message": "no"}]},
            {"a": 40},
        ),
        (
            apis.ELECT_LEADERS,
            2,
            {
                "replica_election_results": [
                    {
                        "topic": "a",
                        "partition_result": [
                            {"partition_id": index, "error_code": code}
                            for index, code in enumerate((0, 84, 3))
                        ],
                    }
                ]
            },
            {"a": 84},
        ),
        (apis.ADD_RAFT_VOTER, 0, {"error_code": 31}, {None: 31}),
        (
            apis.ALTER_CLIENT_QUOTAS,
            1,
            {
                "entries": [
                    {
                        "entity": [
                            {"entity_type": "user", "entity_name": "bob"},
                            {"entity_type": "client-id", "entity_name": None},
                        ]
                    },
                    {"error_code": 31, "entity": [{"entity_type": "ip", "entity_name": "::1"}]},
                ]
            },
            {"user bob, client-id (default)": 0},
        ),
        (apis.CREATE_ACLS, 3, {"results": [{"error_code": 42}]}, {ACL: 42}),
        (
            apis.DELETE_ACLS,
            3,
            {
                "filter_results": [
                    {"matching_acls": [{**FIELDS, "pattern_type": 4}]},
                    {"error_code": 31},
                ]
            },
            {ACL: 0},
        ),
    ],
)
def test_each_resource_has_an_outcome(
    key: int, version: int, response: dict[str, Any], expected: dict[str | None, int]
) -> None:
    creation = {**FIELDS, "resource_pattern_type": 4}
    request = request_body(apis.CREATE_ACLS, 3, creations=[creation])
    body = messages.written(messages.response(key, version, **response))
    answered = Administered(route_key(key, version), 1.0, request, body)
    assert answered.outcomes() == expected
    assert answered._replace(response=None).outcomes() == {None: None}
