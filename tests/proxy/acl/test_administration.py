"""Outcomes of administrative requests, from their responses."""

from typing import Any

import pytest

from proxy.acl.administration import Administered
from proxy.acl.model import Operation, PatternType, Permission, ResourceType
from proxy.connection.frames import route_key
from proxy.wire import apis, codec, messages
from proxy.wire.messages import (
    AlterClientQuotasResponse,
    CreateAclsResponse,
    CreateTopicsResponse,
    DeleteAclsResponse,
    ElectLeadersResponse,
    IncrementalAlterConfigsResponse,
)
from proxy.wire.schema import message_type

_Creation = messages.CreateAclsRequest.AclCreation
_Entity = AlterClientQuotasResponse.EntityData
_Partition = ElectLeadersResponse.PartitionResult
ACL = "TOPIC PREFIXED ord User:bob * READ ALLOW"
DENIED = 31
NO_VOTER = message_type("AddRaftVoterResponse")(error_code=DENIED)


@pytest.mark.parametrize(
    ("key", "version", "response", "expected"),
    [
        (
            apis.CREATE_TOPICS,
            5,
            CreateTopicsResponse(
                topics=(
                    CreateTopicsResponse.CreatableTopicResult(
                        name="a", configs=(CreateTopicsResponse.CreatableTopicConfigs(name="x"),)
                    ),
                    CreateTopicsResponse.CreatableTopicResult(name="b", error_code=36),
                )
            ),
            {"a": 0, "b": 36},
        ),
        (
            apis.INCREMENTAL_ALTER_CONFIGS,
            1,
            IncrementalAlterConfigsResponse(
                responses=(
                    IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                        resource_name="a", error_code=40, error_message="no such thing"
                    ),
                )
            ),
            {"a": 40},
        ),
        (
            apis.ELECT_LEADERS,
            2,
            ElectLeadersResponse(
                replica_election_results=(
                    ElectLeadersResponse.ReplicaElectionResult(
                        topic="a",
                        partition_result=(
                            _Partition(partition_id=0),
                            _Partition(partition_id=1, error_code=84),
                            _Partition(partition_id=2, error_code=3),
                        ),
                    ),
                )
            ),
            {"a": 84},
        ),
        (
            apis.ADD_RAFT_VOTER,
            0,
            message_type("AddRaftVoterResponse")(error_code=DENIED),
            {None: DENIED},
        ),
        (
            apis.ALTER_CLIENT_QUOTAS,
            1,
            AlterClientQuotasResponse(
                entries=(
                    AlterClientQuotasResponse.EntryData(
                        entity=(
                            _Entity(entity_type="user", entity_name="bob"),
                            _Entity(entity_type="client-id", entity_name=None),
                        )
                    ),
                    AlterClientQuotasResponse.EntryData(
                        error_code=DENIED, entity=(_Entity(entity_type="ip", entity_name="::1"),)
                    ),
                )
            ),
            {"user bob, client-id (default)": 0},
        ),
        (
            apis.CREATE_ACLS,
            3,
            CreateAclsResponse(results=(CreateAclsResponse.AclCreationResult(error_code=42),)),
            {ACL: 42},
        ),
        (
            apis.DELETE_ACLS,
            3,
            DeleteAclsResponse(
                filter_results=(
                    DeleteAclsResponse.DeleteAclsFilterResult(
                        matching_acls=(
                            DeleteAclsResponse.DeleteAclsMatchingAcl(
                                resource_type=ResourceType.TOPIC,
                                pattern_type=PatternType.PREFIXED,
                                resource_name="ord",
                                principal="User:bob",
                                host="*",
                                operation=Operation.READ,
                                permission_type=Permission.ALLOW,
                            ),
                        )
                    ),
                    DeleteAclsResponse.DeleteAclsFilterResult(error_code=DENIED),
                )
            ),
            {ACL: 0},
        ),
    ],
)
def test_each_resource_has_an_outcome(
    key: int, version: int, response: Any, expected: dict[str | None, int]
) -> None:
    creation = _Creation(
        resource_type=ResourceType.TOPIC,
        resource_name="ord",
        resource_pattern_type=PatternType.PREFIXED,
        principal="User:bob",
        host="*",
        operation=Operation.READ,
        permission_type=Permission.ALLOW,
    )
    request = codec.encode(messages.CreateAclsRequest(creations=(creation,)), 3)
    body = codec.encode(response, version)
    answered = Administered(route_key(key, version), 1.0, request, body)
    assert answered.outcomes() == expected
    assert answered._replace(response=None).outcomes() == {None: None}
