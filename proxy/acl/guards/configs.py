"""Guards of DescribeConfigs, AlterConfigs and IncrementalAlterConfigs.

Topics and groups have permissions of their own; brokers, loggers and client metrics need those of
the cluster.
"""

from collections.abc import Sequence
from typing import Final, TypeVar

from proxy.acl.decision import Inquiry, Judgement
from proxy.acl.guards.responses import MESSAGES, answer, judge_items, read_request
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import Message

_Resource = (
    messages.DescribeConfigsRequest.DescribeConfigsResource
    | messages.AlterConfigsRequest.AlterConfigsResource
    | messages.IncrementalAlterConfigsRequest.AlterConfigsResource
)
_Result = TypeVar(
    "_Result",
    messages.DescribeConfigsResponse.DescribeConfigsResult,
    messages.AlterConfigsResponse.AlterConfigsResourceResponse,
    messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
)

_TOPIC: Final = 2
_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32

# `ConfigResource.Type`. Other types cannot be authorized, so they are never forwarded: a later
# Kafka may define them.
_DENIALS: Final = {
    _TOPIC: (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    _BROKER: (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    _BROKER_LOGGER: (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    _CLIENT_METRICS: (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    _GROUP: (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
}

_DENIED_BY_BROKER: Final = frozenset({_BROKER, _BROKER_LOGGER})
"""Types whose alteration Kafka's broker denies, without a message; its controller has one for the
others. Before 4.4 the broker denied loggers alone."""


def describe_configs(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeConfigs: DescribeConfigs on each topic or group, or on the cluster.

    One resource of an unknown type fails the whole request, as in Kafka.
    """
    result = messages.DescribeConfigsResponse.DescribeConfigsResult
    request = read_request(inquiry, messages.DescribeConfigsRequest)
    if any(resource.resource_type not in _DENIALS for resource in pausing(request.resources)):
        error = ErrorCode.INVALID_REQUEST
        results = (
            _refused(result, each, error, MESSAGES[error]) for each in pausing(request.resources)
        )
        return answer(inquiry, messages.DescribeConfigsResponse(results=tuple(results)))

    def refuse(
        resource: messages.DescribeConfigsRequest.DescribeConfigsResource,
    ) -> Sequence[Message] | None:
        denial = _denial(inquiry, Operation.DESCRIBE_CONFIGS, resource)
        if denial is None:
            return None
        return (_refused(result, resource, denial, MESSAGES[denial]),)

    return judge_items(
        inquiry.api_version,
        request,
        messages.DescribeConfigsResponse,
        refuse,
        items="resources",
        results="results",
    )


def alter_configs(inquiry: Inquiry) -> Judgement:
    """Judge an AlterConfigs: AlterConfigs on each topic or group, or on the cluster.

    This API has no loggers: Kafka reports them as unknown, whatever the permissions.
    """
    types = frozenset(_DENIALS) - {_BROKER_LOGGER}
    result = messages.AlterConfigsResponse.AlterConfigsResourceResponse
    return _judge_alteration(
        inquiry, messages.AlterConfigsRequest, messages.AlterConfigsResponse, result, types
    )


def incremental_alter_configs(inquiry: Inquiry) -> Judgement:
    """Judge an IncrementalAlterConfigs: AlterConfigs on each topic or group, or on the cluster."""
    return _judge_alteration(
        inquiry,
        messages.IncrementalAlterConfigsRequest,
        messages.IncrementalAlterConfigsResponse,
        messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
        frozenset(_DENIALS),
    )


def _judge_alteration(
    inquiry: Inquiry,
    request: type[messages.AlterConfigsRequest | messages.IncrementalAlterConfigsRequest],
    response: type[Message],
    result: type[_Result],
    types: frozenset[int],
) -> Judgement:
    def refuse(resource: _Resource) -> Sequence[Message] | None:
        if resource.resource_type not in types:
            unknown = f"Unknown resource type {resource.resource_type}"
            return (_refused(result, resource, ErrorCode.INVALID_REQUEST, unknown),)
        denial = _denial(inquiry, Operation.ALTER_CONFIGS, resource)
        if denial is None:
            return None
        message = None if resource.resource_type in _DENIED_BY_BROKER else MESSAGES[denial]
        return (_refused(result, resource, denial, message),)

    return judge_items(
        inquiry.api_version,
        read_request(inquiry, request),
        response,
        refuse,
        items="resources",
        results="responses",
        order_by=("resource_type", "resource_name"),
    )


def _denial(inquiry: Inquiry, operation: Operation, resource: _Resource) -> ErrorCode | None:
    resource_type, error = _DENIALS[resource.resource_type]
    on_cluster = resource_type is ResourceType.CLUSTER
    name = CLUSTER_NAME if on_cluster else resource.resource_name
    return None if inquiry.authority.may(operation, resource_type, name) else error


def _refused(
    result: type[_Result], resource: _Resource, error: ErrorCode, message: str | None
) -> _Result:
    return result(
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
