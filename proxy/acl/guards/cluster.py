"""Guards of APIs that need a permission on the cluster as a whole, and of configurations.

A refusal has the same form as that of Kafka's `getErrorResponse` for the API.

Configurations of topics and groups require a permission on the topic or group; those of brokers,
loggers and client metrics require it on the cluster.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, Final, TypeVar

from proxy.acl.decision import FORWARD, Change, Guard, Inquiry, Judgement
from proxy.acl.guards.common import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    MESSAGES,
    TOPIC_DENIED,
    item_type,
    judge_items,
    refused_topic,
)
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.acl.validation import refused_scram_changes, refused_scram_users
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace
from proxy.wire.schema import Message, message_type

_MESSAGE: Final = MESSAGES[CLUSTER_DENIED]

R = TypeVar("R", bound=Message)


def _requires(
    api: str, *operations: Operation, refuse: Callable[[Any, int], Message] | None = None
) -> Guard:
    """Return a guard of an API that requires one of these operations on the cluster.

    `refuse` returns the refusal for the request and its version; None if the response has only
    error fields.
    """
    *alternatives, last = operations
    kind, response = message_type(f"{api}Request"), message_type(f"{api}Response")

    def guard(inquiry: Inquiry) -> Judgement:
        if any(inquiry.cluster_permits(operation) for operation in alternatives):
            return FORWARD
        if inquiry.may_cluster(last):
            return FORWARD
        request = inquiry.read(kind)
        if refuse is not None:
            return inquiry.answer(refuse(request, inquiry.api_version))
        # Some responses, and early versions of DescribeLogDirs, lack one field or both
        error = {"error_code": CLUSTER_DENIED, "error_message": _MESSAGE}
        known = {name: error[name] for name in error if name in response.DEFAULTS}
        return inquiry.answer(response(**known))

    return guard


def _administers(kind: type[R], operation: Operation, refusal: Callable[[R], Message]) -> Guard:
    """Return a guard that requires the operation on the cluster, also in audit mode."""

    def guard(inquiry: Inquiry) -> Judgement:
        if inquiry.authority.may_administer(operation):
            return FORWARD
        return inquiry.answer(refusal(inquiry.read(kind)))

    return guard


def _refuse_txn_markers(request: messages.WriteTxnMarkersRequest, _: int) -> Message:
    response = messages.WriteTxnMarkersResponse
    markers = (
        response.WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=_refused(response.WritableTxnMarkerTopicResult, marker.topics),
        )
        for marker in request.markers
    )
    return response(markers=tuple(markers))


def _refuse_replica_log_dirs(request: messages.AlterReplicaLogDirsRequest, _: int) -> Message:
    response = messages.AlterReplicaLogDirsResponse
    topics = (topic for log_dir in pausing(request.dirs) for topic in log_dir.topics)
    return response(results=_refused(response.AlterReplicaLogDirTopicResult, topics))


def _refuse_elections(request: messages.ElectLeadersRequest, version: int) -> Message:
    response = messages.ElectLeadersResponse
    topics = request.topic_partitions or ()
    return response(
        error_code=CLUSTER_DENIED if version >= 1 else ErrorCode.NONE,
        replica_election_results=_refused(
            response.ReplicaElectionResult, topics, error_message=_MESSAGE
        ),
    )


def _refuse_reassignments(request: messages.AlterPartitionReassignmentsRequest, _: int) -> Message:
    response = messages.AlterPartitionReassignmentsResponse
    return response(
        error_code=CLUSTER_DENIED,
        error_message=_MESSAGE,
        responses=_refused(
            response.ReassignableTopicResponse, request.topics, error_message=_MESSAGE
        ),
    )


def _refuse_list_of_reassignments(
    request: messages.ListPartitionReassignmentsRequest, _: int
) -> Message:
    response = messages.ListPartitionReassignmentsResponse
    topics = (
        refused_topic(response.OngoingTopicReassignment, None, topic)
        for topic in request.topics or ()
    )
    return response(error_code=CLUSTER_DENIED, error_message=_MESSAGE, topics=tuple(topics))


def _refused(kind: type[Message], topics: Iterable[Any], **values: Any) -> tuple[Any, ...]:
    return tuple(refused_topic(kind, CLUSTER_DENIED, topic, **values) for topic in topics)


write_txn_markers = _requires(
    "WriteTxnMarkers", Operation.ALTER, Operation.CLUSTER_ACTION, refuse=_refuse_txn_markers
)
alter_replica_log_dirs = _requires(
    "AlterReplicaLogDirs", Operation.ALTER, refuse=_refuse_replica_log_dirs
)
describe_log_dirs = _requires("DescribeLogDirs", Operation.DESCRIBE)
elect_leaders = _requires("ElectLeaders", Operation.ALTER, refuse=_refuse_elections)
alter_partition_reassignments = _requires(
    "AlterPartitionReassignments", Operation.ALTER, refuse=_refuse_reassignments
)
list_partition_reassignments = _requires(
    "ListPartitionReassignments", Operation.DESCRIBE, refuse=_refuse_list_of_reassignments
)
describe_quorum = _requires("DescribeQuorum", Operation.DESCRIBE)
update_features = _requires("UpdateFeatures", Operation.ALTER)
unregister_broker = _requires("UnregisterBroker", Operation.ALTER)
unregister_controller = _requires("UnregisterController", Operation.ALTER)
list_config_resources = _requires("ListConfigResources", Operation.DESCRIBE_CONFIGS)
add_raft_voter = _requires("AddRaftVoter", Operation.ALTER)
remove_raft_voter = _requires("RemoveRaftVoter", Operation.ALTER)
describe_user_scram_credentials = _administers(
    messages.DescribeUserScramCredentialsRequest, Operation.DESCRIBE, refused_scram_users
)
alter_user_scram_credentials = _administers(
    messages.AlterUserScramCredentialsRequest, Operation.ALTER, refused_scram_changes
)


def describe_cluster(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeCluster: it requires no permission, but the authorized operations are
    replaced by those of the client."""
    if not inquiry.read(messages.DescribeClusterRequest).include_cluster_authorized_operations:
        return FORWARD
    operations = 0
    if inquiry.may_cluster(Operation.DESCRIBE):
        operations = inquiry.authority.operations(ResourceType.CLUSTER, CLUSTER_NAME)

    def with_operations(
        response: messages.DescribeClusterResponse,
    ) -> messages.DescribeClusterResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        return replace(response, cluster_authorized_operations=operations)

    return Change(response=inquiry.on_response(messages.DescribeClusterResponse, with_operations))


def open_to_all(inquiry: Inquiry) -> Judgement:  # noqa: ARG001 - no permission is checked
    """Allow every request: Kafka requires no permission for clients' telemetry (KIP-714)."""
    return FORWARD


_TOPIC: Final = 2
_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32

# `ConfigResource.Type`. Other types, which a later Kafka may define, cannot be authorized, so they
# are never forwarded.
_DENIALS: Final = {
    _TOPIC: (ResourceType.TOPIC, TOPIC_DENIED),
    _BROKER: (ResourceType.CLUSTER, CLUSTER_DENIED),
    _BROKER_LOGGER: (ResourceType.CLUSTER, CLUSTER_DENIED),
    _CLIENT_METRICS: (ResourceType.CLUSTER, CLUSTER_DENIED),
    _GROUP: (ResourceType.GROUP, GROUP_DENIED),
}

_DENIED_BY_BROKER: Final = frozenset({_BROKER, _BROKER_LOGGER})
"""Types whose changes Kafka's broker denies, without a message. The controller denies the others,
with a message. Before 4.4 the broker denied only loggers."""


def describe_configs(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeConfigs: DescribeConfigs on each topic or group, or on the cluster.

    As in Kafka, one resource of an unknown type fails the whole request.
    """
    response = messages.DescribeConfigsResponse
    request = inquiry.read(messages.DescribeConfigsRequest)
    if any(resource.resource_type not in _DENIALS for resource in pausing(request.resources)):
        results = (
            _refused_resource(response.DescribeConfigsResult, each, ErrorCode.INVALID_REQUEST)
            for each in pausing(request.resources)
        )
        return inquiry.answer(response(results=tuple(results)))
    return _judge_resources(inquiry, request, response, "results", Operation.DESCRIBE_CONFIGS)


def alter_configs(inquiry: Inquiry) -> Judgement:
    """Judge an AlterConfigs: AlterConfigs on each topic or group, or on the cluster.

    This API has no loggers; Kafka reports them as unknown, regardless of permissions.
    """
    return _judge_alteration(inquiry, "AlterConfigs", _DENIALS.keys() - {_BROKER_LOGGER})


def incremental_alter_configs(inquiry: Inquiry) -> Judgement:
    """Judge an IncrementalAlterConfigs: AlterConfigs on each topic or group, or on the cluster."""
    return _judge_alteration(inquiry, "IncrementalAlterConfigs", _DENIALS.keys())


def _judge_alteration(inquiry: Inquiry, api: str, types: Set[int]) -> Judgement:
    """Judge each change; types other than `types` are unknown."""
    request = inquiry.read(message_type(f"{api}Request"))
    response = message_type(f"{api}Response")
    order = ("resource_type", "resource_name")
    return _judge_resources(
        inquiry, request, response, "responses", Operation.ALTER_CONFIGS, types, order
    )


def _judge_resources(
    inquiry: Inquiry,
    request: Message,
    response: type[Message],
    results: str,
    operation: Operation,
    types: Set[int] = _DENIALS.keys(),
    order_by: tuple[str, ...] = (),
) -> Judgement:
    kind = item_type(response, results)

    def refuse(resource: Any) -> Sequence[Message] | None:
        if resource.resource_type not in types:
            unknown = f"Unknown resource type {resource.resource_type}"
            error = ErrorCode.INVALID_REQUEST
            return (replace(_refused_resource(kind, resource, error), error_message=unknown),)
        resource_type, error = _DENIALS[resource.resource_type]
        on_cluster = resource_type is ResourceType.CLUSTER
        name = CLUSTER_NAME if on_cluster else resource.resource_name
        if inquiry.authority.may(operation, resource_type, name):
            return None
        refused = _refused_resource(kind, resource, error)
        if operation is Operation.ALTER_CONFIGS and resource.resource_type in _DENIED_BY_BROKER:
            refused = replace(refused, error_message=None)
        return (refused,)

    return judge_items(
        inquiry.api_version,
        request,
        response,
        refuse,
        items="resources",
        results=results,
        order_by=order_by,
    )


def _refused_resource(kind: Any, resource: Any, error: ErrorCode) -> Any:
    return kind(
        error_code=error,
        error_message=MESSAGES[error],
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
