"""Guards of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Topics and groups have permissions of their own; brokers, loggers and client metrics need those of
the cluster.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import Inquiry, Judgement
from proxy.acl.guards.entities import Values
from proxy.acl.guards.responses import MESSAGES, answer, judge_items, read_request
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import ALTER_CONFIGS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS

_TOPIC: Final = 2
_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32

# `ConfigResource.Type`. Other types cannot be authorized, so they are never forwarded: a later
# Kafka may define them.
_DENIALS: Final = {
    _TOPIC: (ResourceType.TOPIC, ErrorCode.topic_authorization_failed),
    _BROKER: (ResourceType.CLUSTER, ErrorCode.cluster_authorization_failed),
    _BROKER_LOGGER: (ResourceType.CLUSTER, ErrorCode.cluster_authorization_failed),
    _CLIENT_METRICS: (ResourceType.CLUSTER, ErrorCode.cluster_authorization_failed),
    _GROUP: (ResourceType.GROUP, ErrorCode.group_authorization_failed),
}

_DENIED_BY_BROKER: Final = frozenset({_BROKER, _BROKER_LOGGER})
"""Types whose alteration Kafka's broker denies, without a message; its controller has one for the
others. Before 4.4 the broker denied loggers alone."""


def describe_configs(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeConfigs: DescribeConfigs on each topic or group, or on the cluster.

    One resource of an unknown type fails the whole request, as in Kafka.
    """
    request = read_request(inquiry, DESCRIBE_CONFIGS)
    if any(resource.resource_type not in _DENIALS for resource in pausing(request.resources)):
        error = ErrorCode.invalid_request
        results = [
            _describe_result(each, error, MESSAGES[error]) for each in pausing(request.resources)
        ]
        return answer(inquiry, DESCRIBE_CONFIGS, results=results)

    def refuse(resource: Any) -> Values | None:
        denial = _denial(inquiry, Operation.DESCRIBE_CONFIGS, resource)
        return None if denial is None else _describe_result(resource, denial, MESSAGES[denial])

    return judge_items(
        inquiry, DESCRIBE_CONFIGS, request, items="resources", results="results", refuse=refuse
    )


def _describe_result(resource: Any, error: ErrorCode, message: str) -> dict[str, Any]:
    return {**_alter_result(resource, error, message), "configs": []}


def alter_configs(inquiry: Inquiry) -> Judgement:
    """Judge an AlterConfigs: AlterConfigs on each topic or group, or on the cluster.

    This API has no loggers: Kafka reports them as unknown, whatever the permissions.
    """
    return _judge_alteration(inquiry, ALTER_CONFIGS, frozenset(_DENIALS) - {_BROKER_LOGGER})


def incremental_alter_configs(inquiry: Inquiry) -> Judgement:
    """Judge an IncrementalAlterConfigs: AlterConfigs on each topic or group, or on the cluster."""
    return _judge_alteration(inquiry, INCREMENTAL_ALTER_CONFIGS, frozenset(_DENIALS))


def _judge_alteration(inquiry: Inquiry, api_key: int, types: frozenset[int]) -> Judgement:
    request = read_request(inquiry, api_key)

    def refuse(resource: Any) -> Values | None:
        if resource.resource_type not in types:
            unknown = f"Unknown resource type {resource.resource_type}"
            return _alter_result(resource, ErrorCode.invalid_request, unknown)
        denial = _denial(inquiry, Operation.ALTER_CONFIGS, resource)
        if denial is None:
            return None
        message = None if resource.resource_type in _DENIED_BY_BROKER else MESSAGES[denial]
        return _alter_result(resource, denial, message)

    return judge_items(
        inquiry,
        api_key,
        request,
        items="resources",
        results="responses",
        refuse=refuse,
        order_by=("resource_type", "resource_name"),
    )


def _denial(inquiry: Inquiry, operation: Operation, resource: Any) -> ErrorCode | None:
    resource_type, error = _DENIALS[resource.resource_type]
    on_cluster = resource_type is ResourceType.CLUSTER
    name = CLUSTER_NAME if on_cluster else resource.resource_name
    return None if inquiry.authority.may(operation, resource_type, name) else error


def _alter_result(resource: Any, error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": error,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }
