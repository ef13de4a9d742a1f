"""Guards of APIs that need a permission on the cluster as a whole.

A refusal has the form that Kafka's `getErrorResponse` gives it for the API.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from proxy.acl.decision import FORWARD, Change, Guard, Inquiry, Judgement
from proxy.acl.guards.checks import may_cluster
from proxy.acl.guards.responses import MESSAGES, answer, on_response, read_request
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace
from proxy.wire.schema import Message

_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_MESSAGE: Final = MESSAGES[_DENIED]

R = TypeVar("R", bound=Message)


def _requires(
    kind: type[R], *operations: Operation, refusal: Message | Callable[[R, int], Message]
) -> Guard:
    """Return a guard that requires one of these operations on the cluster.

    `refusal` is the response that refuses, or makes it of the request and its version.
    """
    *alternatives, last = operations

    def guard(inquiry: Inquiry) -> Judgement:
        if any(may_cluster(inquiry, operation, report=False) for operation in alternatives):
            return FORWARD
        if may_cluster(inquiry, last):
            return FORWARD
        request = read_request(inquiry, kind)
        if isinstance(refusal, Message):
            return answer(inquiry, refusal)
        return answer(inquiry, refusal(request, inquiry.api_version))

    return guard


def _administers(kind: type[R], operation: Operation, refusal: Callable[[R], Message]) -> Guard:
    """Return a guard that requires the operation on the cluster with `authorizer.mode: audit`,
    too."""

    def guard(inquiry: Inquiry) -> Judgement:
        if inquiry.authority.may_administer(operation):
            return FORWARD
        return answer(inquiry, refusal(read_request(inquiry, kind)))

    return guard


def _refuse_txn_markers(request: messages.WriteTxnMarkersRequest, _: int) -> Message:
    response = messages.WriteTxnMarkersResponse

    def refused(
        topic: messages.WriteTxnMarkersRequest.WritableTxnMarkerTopic,
    ) -> messages.WriteTxnMarkersResponse.WritableTxnMarkerTopicResult:
        partitions = tuple(
            response.WritableTxnMarkerPartitionResult(partition_index=index, error_code=_DENIED)
            for index in topic.partition_indexes
        )
        return response.WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions)

    return response(
        markers=tuple(
            response.WritableTxnMarkerResult(
                producer_id=marker.producer_id, topics=tuple(map(refused, marker.topics))
            )
            for marker in request.markers
        )
    )


def _refuse_replica_log_dirs(request: messages.AlterReplicaLogDirsRequest, _: int) -> Message:
    response = messages.AlterReplicaLogDirsResponse
    return response(
        results=tuple(
            response.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=tuple(
                    response.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=_DENIED
                    )
                    for index in topic.partitions
                ),
            )
            for log_dir in pausing(request.dirs)
            for topic in log_dir.topics
        )
    )


def _refuse_elections(request: messages.ElectLeadersRequest, version: int) -> Message:
    response = messages.ElectLeadersResponse
    return response(
        error_code=_DENIED if version >= 1 else ErrorCode.NONE,
        replica_election_results=tuple(
            response.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=tuple(
                    response.PartitionResult(
                        partition_id=index, error_code=_DENIED, error_message=_MESSAGE
                    )
                    for index in topic.partitions
                ),
            )
            for topic in request.topic_partitions or ()
        ),
    )


def _refuse_reassignments(request: messages.AlterPartitionReassignmentsRequest, _: int) -> Message:
    response = messages.AlterPartitionReassignmentsResponse
    return response(
        error_code=_DENIED,
        error_message=_MESSAGE,
        responses=tuple(
            response.ReassignableTopicResponse(
                name=topic.name,
                partitions=tuple(
                    response.ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=_DENIED,
                        error_message=_MESSAGE,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def _refuse_list_of_reassignments(
    request: messages.ListPartitionReassignmentsRequest, _: int
) -> Message:
    response = messages.ListPartitionReassignmentsResponse
    return response(
        error_code=_DENIED,
        error_message=_MESSAGE,
        topics=tuple(
            response.OngoingTopicReassignment(
                name=topic.name,
                partitions=tuple(
                    response.OngoingPartitionReassignment(partition_index=index)
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics or ()
        ),
    )


def _refuse_scram_users(request: messages.DescribeUserScramCredentialsRequest) -> Message:
    response = messages.DescribeUserScramCredentialsResponse
    # Kafka repeats the error for each user, without the name
    nameless = response.DescribeUserScramCredentialsResult(error_code=_DENIED, error_message=None)
    results = (nameless,) * len(request.users or ())
    return response(error_code=_DENIED, error_message=None, results=results)


def _refuse_scram_changes(request: messages.AlterUserScramCredentialsRequest) -> Message:
    response = messages.AlterUserScramCredentialsResponse
    names = dict.fromkeys(one.name for one in pausing(request.deletions))
    names |= dict.fromkeys(one.name for one in pausing(request.upsertions))
    results = (
        response.AlterUserScramCredentialsResult(
            user=name, error_code=_DENIED, error_message=_MESSAGE
        )
        for name in names
    )
    return response(results=tuple(results))


write_txn_markers = _requires(
    messages.WriteTxnMarkersRequest,
    Operation.ALTER,
    Operation.CLUSTER_ACTION,
    refusal=_refuse_txn_markers,
)
alter_replica_log_dirs = _requires(
    messages.AlterReplicaLogDirsRequest, Operation.ALTER, refusal=_refuse_replica_log_dirs
)
describe_log_dirs = _requires(
    messages.DescribeLogDirsRequest,
    Operation.DESCRIBE,
    refusal=messages.DescribeLogDirsResponse(
        error_code=_DENIED
    ),  # before v3 there is no field for it
)
elect_leaders = _requires(messages.ElectLeadersRequest, Operation.ALTER, refusal=_refuse_elections)
alter_partition_reassignments = _requires(
    messages.AlterPartitionReassignmentsRequest, Operation.ALTER, refusal=_refuse_reassignments
)
list_partition_reassignments = _requires(
    messages.ListPartitionReassignmentsRequest,
    Operation.DESCRIBE,
    refusal=_refuse_list_of_reassignments,
)
describe_user_scram_credentials = _administers(
    messages.DescribeUserScramCredentialsRequest, Operation.DESCRIBE, _refuse_scram_users
)
alter_user_scram_credentials = _administers(
    messages.AlterUserScramCredentialsRequest, Operation.ALTER, _refuse_scram_changes
)
describe_quorum = _requires(
    messages.DescribeQuorumRequest,
    Operation.DESCRIBE,
    refusal=messages.DescribeQuorumResponse(error_code=_DENIED, error_message=_MESSAGE),
)
update_features = _requires(
    messages.UpdateFeaturesRequest,
    Operation.ALTER,
    refusal=messages.UpdateFeaturesResponse(error_code=_DENIED, error_message=_MESSAGE),
)
unregister_broker = _requires(
    messages.UnregisterBrokerRequest,
    Operation.ALTER,
    refusal=messages.UnregisterBrokerResponse(error_code=_DENIED, error_message=_MESSAGE),
)
unregister_controller = _requires(
    messages.UnregisterControllerRequest,
    Operation.ALTER,
    refusal=messages.UnregisterControllerResponse(error_code=_DENIED, error_message=_MESSAGE),
)
list_config_resources = _requires(
    messages.ListConfigResourcesRequest,
    Operation.DESCRIBE_CONFIGS,
    refusal=messages.ListConfigResourcesResponse(error_code=_DENIED),
)
add_raft_voter = _requires(
    messages.AddRaftVoterRequest,
    Operation.ALTER,
    refusal=messages.AddRaftVoterResponse(error_code=_DENIED, error_message=_MESSAGE),
)
remove_raft_voter = _requires(
    messages.RemoveRaftVoterRequest,
    Operation.ALTER,
    refusal=messages.RemoveRaftVoterResponse(error_code=_DENIED, error_message=_MESSAGE),
)


def describe_cluster(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeCluster: no permission is required, but the authorized operations are
    replaced by ours."""
    if not read_request(
        inquiry, messages.DescribeClusterRequest
    ).include_cluster_authorized_operations:
        return FORWARD
    operations = 0
    if may_cluster(inquiry, Operation.DESCRIBE):
        operations = inquiry.authority.operations(ResourceType.CLUSTER, CLUSTER_NAME)

    def with_operations(
        response: messages.DescribeClusterResponse,
    ) -> messages.DescribeClusterResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        return replace(response, cluster_authorized_operations=operations)

    return Change(response=on_response(inquiry, messages.DescribeClusterResponse, with_operations))


def open_to_all(inquiry: Inquiry) -> Judgement:  # noqa: ARG001 - no permission is checked
    """Allow every request: Kafka requires no permission for clients' telemetry (KIP-714)."""
    return FORWARD
