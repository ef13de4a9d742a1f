"""Guards of APIs that need a permission on the cluster as a whole.

A refusal has the form that Kafka's `getErrorResponse` gives it for the API.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Change, Guard, Inquiry, Judgement
from proxy.acl.guards.checks import may_cluster
from proxy.acl.guards.entities import Values
from proxy.acl.guards.responses import MESSAGES, answer, read_request
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import (
    ADD_RAFT_VOTER,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_REPLICA_LOG_DIRS,
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_CLUSTER,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ELECT_LEADERS,
    LIST_CONFIG_RESOURCES,
    LIST_PARTITION_REASSIGNMENTS,
    REMOVE_RAFT_VOTER,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
    UPDATE_FEATURES,
    WRITE_TXN_MARKERS,
)
from proxy.wire.codec import decode, encode, response_type

_ERROR: Final = {"error_code": ErrorCode.cluster_authorization_failed}
_ERROR_AND_MESSAGE: Final = {
    **_ERROR,
    "error_message": MESSAGES[ErrorCode.cluster_authorization_failed],
}


Refusal = Callable[[Any], Values]
"""Function from a request to the response that refuses it."""


def _requires(api_key: int, *operations: Operation, refusal: Refusal) -> Guard:
    """Return a guard that requires one of these operations on the cluster."""
    *alternatives, last = operations

    def guard(inquiry: Inquiry) -> Judgement:
        if any(may_cluster(inquiry, operation, report=False) for operation in alternatives):
            return FORWARD
        if may_cluster(inquiry, last):
            return FORWARD
        return answer(inquiry, api_key, **refusal(read_request(inquiry, api_key)))

    return guard


def _administers(api_key: int, operation: Operation, refusal: Refusal) -> Guard:
    """Return a guard that requires the operation on the cluster with `authorizer.mode: audit`,
    too."""

    def guard(inquiry: Inquiry) -> Judgement:
        if inquiry.authority.may_administer(operation):
            return FORWARD
        return answer(inquiry, api_key, **refusal(read_request(inquiry, api_key)))

    return guard


def _always(**values: Any) -> Refusal:
    """Return a refusal that is the same for every request."""
    return lambda _: values


def _refuse_txn_markers(request: Any) -> Values:
    def partitions(topic: Any) -> list[Values]:
        return [{"partition_index": index, **_ERROR} for index in pausing(topic.partition_indexes)]

    def topics(marker: Any) -> list[Values]:
        return [
            {"name": topic.name, "partitions": partitions(topic)}
            for topic in pausing(marker.topics)
        ]

    return {
        "markers": [
            {"producer_id": marker.producer_id, "topics": topics(marker)}
            for marker in pausing(request.markers)
        ]
    }


def _refuse_replica_log_dirs(request: Any) -> Values:
    def partitions(topic: Any) -> list[Values]:
        return [{"partition_index": index, **_ERROR} for index in pausing(topic.partitions)]

    return {
        "results": [
            {"topic_name": topic.name, "partitions": partitions(topic)}
            for log_dir in pausing(request.dirs)
            for topic in log_dir.topics
        ]
    }


def _refuse_elections(request: Any) -> Values:
    def partitions(topic: Any) -> list[Values]:
        return [
            {"partition_id": index, **_ERROR_AND_MESSAGE} for index in pausing(topic.partitions)
        ]

    return {
        **_ERROR,
        "replica_election_results": [
            {"topic": topic.topic, "partition_result": partitions(topic)}
            for topic in pausing(request.topic_partitions or ())
        ],
    }


def _refuse_reassignments(request: Any) -> Values:
    def partitions(topic: Any) -> list[Values]:
        return [
            {"partition_index": partition.partition_index, **_ERROR_AND_MESSAGE}
            for partition in pausing(topic.partitions)
        ]

    return {
        **_ERROR_AND_MESSAGE,
        "responses": [
            {"name": topic.name, "partitions": partitions(topic)}
            for topic in pausing(request.topics)
        ],
    }


def _refuse_list_of_reassignments(request: Any) -> Values:
    def partitions(topic: Any) -> list[Values]:
        return [{"partition_index": index} for index in pausing(topic.partition_indexes)]

    return {
        **_ERROR_AND_MESSAGE,
        "topics": [
            {"name": topic.name, "partitions": partitions(topic)}
            for topic in pausing(request.topics or ())
        ],
    }


def _refuse_scram_users(request: Any) -> Values:
    error = {**_ERROR, "error_message": None}
    nameless: Values = {**error, "user": "", "credential_infos": []}  # Kafka repeats the error so
    return {**error, "results": [nameless for _ in pausing(request.users or ())]}


def _refuse_scram_changes(request: Any) -> Values:
    names = dict.fromkeys(one.name for one in pausing((*request.deletions, *request.upsertions)))
    return {"results": [{"user": name, **_ERROR_AND_MESSAGE} for name in pausing(names)]}


write_txn_markers = _requires(
    WRITE_TXN_MARKERS, Operation.ALTER, Operation.CLUSTER_ACTION, refusal=_refuse_txn_markers
)
alter_replica_log_dirs = _requires(
    ALTER_REPLICA_LOG_DIRS, Operation.ALTER, refusal=_refuse_replica_log_dirs
)
describe_log_dirs = _requires(
    DESCRIBE_LOG_DIRS,
    Operation.DESCRIBE,
    refusal=_always(**_ERROR, results=[]),  # versions before v3 have no field for the error
)
elect_leaders = _requires(ELECT_LEADERS, Operation.ALTER, refusal=_refuse_elections)
alter_partition_reassignments = _requires(
    ALTER_PARTITION_REASSIGNMENTS, Operation.ALTER, refusal=_refuse_reassignments
)
list_partition_reassignments = _requires(
    LIST_PARTITION_REASSIGNMENTS, Operation.DESCRIBE, refusal=_refuse_list_of_reassignments
)
describe_user_scram_credentials = _administers(
    DESCRIBE_USER_SCRAM_CREDENTIALS, Operation.DESCRIBE, _refuse_scram_users
)
alter_user_scram_credentials = _administers(
    ALTER_USER_SCRAM_CREDENTIALS, Operation.ALTER, _refuse_scram_changes
)
describe_quorum = _requires(
    DESCRIBE_QUORUM,
    Operation.DESCRIBE,
    refusal=_always(**_ERROR_AND_MESSAGE, topics=[], nodes=[]),
)
update_features = _requires(
    UPDATE_FEATURES, Operation.ALTER, refusal=_always(**_ERROR_AND_MESSAGE, results=[])
)
unregister_broker = _requires(
    UNREGISTER_BROKER, Operation.ALTER, refusal=_always(**_ERROR_AND_MESSAGE)
)
unregister_controller = _requires(
    UNREGISTER_CONTROLLER, Operation.ALTER, refusal=_always(**_ERROR_AND_MESSAGE)
)
list_config_resources = _requires(
    LIST_CONFIG_RESOURCES,
    Operation.DESCRIBE_CONFIGS,
    refusal=_always(**_ERROR, config_resources=[]),
)
add_raft_voter = _requires(ADD_RAFT_VOTER, Operation.ALTER, refusal=_always(**_ERROR_AND_MESSAGE))
remove_raft_voter = _requires(
    REMOVE_RAFT_VOTER, Operation.ALTER, refusal=_always(**_ERROR_AND_MESSAGE)
)


def describe_cluster(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeCluster: no permission is required, but the authorized operations are
    replaced by ours."""
    if not read_request(inquiry, DESCRIBE_CLUSTER).include_cluster_authorized_operations:
        return FORWARD
    operations = 0
    if may_cluster(inquiry, Operation.DESCRIBE):
        operations = inquiry.authority.operations(ResourceType.CLUSTER, CLUSTER_NAME)
    schema = response_type(DESCRIBE_CLUSTER, inquiry.api_version)

    def with_operations(body: bytes) -> bytes:
        response = decode(schema, body)
        if response.error_code is not ErrorCode.none:
            return body
        return encode(replace(response, cluster_authorized_operations=operations))

    return Change(response=with_operations)


def open_to_all(inquiry: Inquiry) -> Judgement:  # noqa: ARG001 - no permission is checked
    """Allow every request: Kafka requires no permission for clients' telemetry (KIP-714)."""
    return FORWARD
