"""Guards of the APIs about named topics and their partitions."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, TypeVar

from proxy.acl.decision import FORWARD, BodyTransform, Change, Inquiry, Judgement, names_of
from proxy.acl.guards.common import (
    MESSAGES,
    TOPIC_DENIED,
    item_type,
    judge_items,
    refused_topic,
    refused_topics,
)
from proxy.acl.model import Operation
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace
from proxy.wire.schema import NO_ID, Message, message_type

_REPEATED: Final = ErrorCode.INVALID_REQUEST
_CONFIGS_IN_RESPONSE: Final = 5
"""First version of CreateTopics whose response has the configuration of the new topics
(KIP-525)."""
_TOPICS_BY_ID: Final = 6
"""First version of DeleteTopics with topic ids (KIP-516)."""
_HIDDEN_NUMBER: Final = -1
"""Kafka's number of partitions and replication factor where the configuration is not shown."""
_CLUSTER_METADATA: Final = "__cluster_metadata"
"""Name of the quorum's log, which no client may create, regardless of permissions."""


_Deleted = messages.DeleteTopicsResponse.DeletableTopicResult
_Result = TypeVar(
    "_Result",
    messages.CreateTopicsResponse.CreatableTopicResult,
    messages.CreatePartitionsResponse.CreatePartitionsTopicResult,
    messages.DeleteTopicsResponse.DeletableTopicResult,
)


class _Repetitions:
    """Items that a request names more than once. Kafka refuses them as invalid, with one result
    each, before it checks permissions."""

    def __init__(self, keys: Iterable[Hashable]) -> None:
        self._times = Counter(keys)
        self._answered: set[Hashable] = set()

    def result(self, key: Hashable, otherwise: _Result, repeated: _Result) -> Sequence[_Result]:
        """Return the result of a denied item: `otherwise`, or `repeated` once for an item that the
        request names several times."""
        if self._times[key] == 1:
            return (otherwise,)
        if key in self._answered:
            return ()
        self._answered.add(key)
        return (repeated,)


_REPEATED_NAME: Final = "Duplicate topic name."
_REPEATED_ID: Final = "Duplicate topic id."


def create_topics(inquiry: Inquiry) -> Judgement:
    """Judge a CreateTopics: Create on the cluster, or on each topic.

    The response contains a topic's configuration only with DescribeConfigs on the topic.
    """
    request = inquiry.read(messages.CreateTopicsRequest)
    every_topic = inquiry.cluster_permits(Operation.CREATE)
    repetitions = _Repetitions(topic.name for topic in pausing(request.topics))

    def refuse(
        topic: messages.CreateTopicsRequest.CreatableTopic,
    ) -> Sequence[messages.CreateTopicsResponse.CreatableTopicResult] | None:
        error, message = TOPIC_DENIED, "Authorization failed."
        if topic.name == _CLUSTER_METADATA:
            error = ErrorCode.INVALID_REQUEST
            message = f"Creation of internal topic {topic.name} is prohibited."
        elif every_topic or inquiry.may_topic(Operation.CREATE, topic.name):
            return None
        refusal = messages.CreateTopicsResponse.CreatableTopicResult(
            name=topic.name, error_code=error, error_message=message
        )
        return repetitions.result(
            topic.name,
            refusal,
            replace(refusal, error_code=_REPEATED, error_message=_REPEATED_NAME),
        )

    judgement = judge_items(inquiry.api_version, request, messages.CreateTopicsResponse, refuse)
    return _without_hidden_configs(inquiry, request, judgement)


def _without_hidden_configs(
    inquiry: Inquiry, request: messages.CreateTopicsRequest, judgement: Judgement
) -> Judgement:
    if inquiry.api_version < _CONFIGS_IN_RESPONSE:
        return judgement
    hidden = {
        topic.name
        for topic in request.topics
        if not inquiry.may_topic(Operation.DESCRIBE_CONFIGS, topic.name, report=False)
    }
    if not hidden:
        return judgement
    hide = _hide_configs(inquiry, hidden)
    if judgement is FORWARD:
        return Change(response=hide)
    if isinstance(judgement, Change) and judgement.response is not None:
        merge = judgement.response
        return judgement._replace(response=lambda body: merge(hide(body)))
    return judgement


def _hide_configs(inquiry: Inquiry, hidden: set[str]) -> BodyTransform:
    def shown(
        result: messages.CreateTopicsResponse.CreatableTopicResult,
    ) -> messages.CreateTopicsResponse.CreatableTopicResult:
        if result.error_code != ErrorCode.NONE or result.name not in hidden:
            return result
        return replace(
            result,
            topic_config_error_code=TOPIC_DENIED,
            num_partitions=_HIDDEN_NUMBER,
            replication_factor=_HIDDEN_NUMBER,
            configs=(),
        )

    return inquiry.on_response(
        messages.CreateTopicsResponse,
        lambda response: replace(response, topics=tuple(map(shown, response.topics))),
    )


def create_partitions(inquiry: Inquiry) -> Judgement:
    """Judge a CreatePartitions: Alter on each topic."""
    request = inquiry.read(messages.CreatePartitionsRequest)
    repetitions = _Repetitions(topic.name for topic in pausing(request.topics))

    def refuse(
        topic: messages.CreatePartitionsRequest.CreatePartitionsTopic,
    ) -> Sequence[messages.CreatePartitionsResponse.CreatePartitionsTopicResult] | None:
        if inquiry.may_topic(Operation.ALTER, topic.name):
            return None
        result = messages.CreatePartitionsResponse.CreatePartitionsTopicResult
        return repetitions.result(
            topic.name,
            result(name=topic.name, error_code=TOPIC_DENIED),
            result(name=topic.name, error_code=_REPEATED, error_message=_REPEATED_NAME),
        )

    return judge_items(
        inquiry.api_version, request, messages.CreatePartitionsResponse, refuse, results="results"
    )


def delete_topics(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteTopics: Delete on each topic, or on the cluster.

    Deleting a topic by name also requires Describe on it. By id, the response omits the name of a
    topic that may not be described; Kafka does not hide that the id exists.
    """
    if inquiry.cluster_permits(Operation.DELETE):
        return FORWARD
    request = inquiry.read(messages.DeleteTopicsRequest)
    if inquiry.api_version < _TOPICS_BY_ID:
        return judge_items(
            inquiry.api_version,
            request,
            messages.DeleteTopicsResponse,
            _refuse_deletion_by_name(inquiry, request.topic_names),
            items="topic_names",
            results="responses",
        )
    by_name = [each.name for each in pausing(request.topics) if each.topic_id == NO_ID]
    by_id = [
        each.topic_id
        for each in pausing(request.topics)
        if each.name is None and each.topic_id != NO_ID
    ]
    refuse_by_name = _refuse_deletion_by_name(inquiry, by_name)
    names = names_of(inquiry.topics, by_id)
    repeated_ids = _Repetitions(by_id)

    def refuse(topic: messages.DeleteTopicsRequest.DeleteTopicState) -> Sequence[_Deleted] | None:
        topic_id = topic.topic_id
        if topic_id == NO_ID:
            return None if topic.name is None else refuse_by_name(topic.name)
        if topic.name is not None:
            message = "You may not specify both topic name and topic id."
            return (_undeleted(topic.name, topic_id, ErrorCode.INVALID_REQUEST, message),)
        refusal = _refuse_deletion_by_id(inquiry, topic_id, names[topic_id])
        if refusal is None:
            return None
        repeated = _undeleted(None, topic_id, _REPEATED, _REPEATED_ID)
        return repeated_ids.result(topic_id, refusal, repeated)

    return judge_items(
        inquiry.api_version, request, messages.DeleteTopicsResponse, refuse, results="responses"
    )


def _refuse_deletion_by_name(
    inquiry: Inquiry, names: Iterable[str | None]
) -> Callable[[str], Sequence[_Deleted] | None]:
    repetitions = _Repetitions(names)

    def refuse(name: str) -> Sequence[_Deleted] | None:
        if inquiry.may_topic(Operation.DESCRIBE, name) and inquiry.may_topic(
            Operation.DELETE, name
        ):
            return None
        refusal = _undeleted(name, NO_ID, TOPIC_DENIED, MESSAGES[TOPIC_DENIED])
        repeated = _undeleted(name, NO_ID, _REPEATED, _REPEATED_NAME)
        return repetitions.result(name, refusal, repeated)

    return refuse


def _refuse_deletion_by_id(inquiry: Inquiry, topic_id: bytes, name: str | None) -> _Deleted | None:
    if name is None:
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        return _undeleted(None, topic_id, unknown, MESSAGES[unknown])
    if inquiry.may_topic(Operation.DELETE, name):
        return None
    described = inquiry.may_topic(Operation.DESCRIBE, name)
    return _undeleted(name if described else None, topic_id, TOPIC_DENIED, MESSAGES[TOPIC_DENIED])


def _undeleted(name: str | None, topic_id: bytes, error: ErrorCode, message: str) -> _Deleted:
    return _Deleted(name=name, topic_id=topic_id, error_code=error, error_message=message)


def list_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a ListOffsets: Describe on each topic."""
    return _judge_topics(inquiry, "ListOffsets", Operation.DESCRIBE)


def delete_records(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteRecords: Delete on each topic.

    As in Kafka, a topic or partition that is named twice has one result.
    """
    response = messages.DeleteRecordsResponse
    request = inquiry.read(messages.DeleteRecordsRequest)
    denied = {
        topic.name: TOPIC_DENIED
        for topic in pausing(request.topics)
        if not inquiry.may_topic(Operation.DELETE, topic.name)
    }
    refused = refused_topics(
        response.DeleteRecordsTopicResult, request.topics, "name", denied, low_watermark=-1
    )
    results = {topic.name: topic for topic in refused}

    def refuse(topic: messages.DeleteRecordsRequest.DeleteRecordsTopic) -> Sequence[Message] | None:
        if topic.name not in denied:
            return None
        if (result := results.pop(topic.name, None)) is None:
            return ()
        return (replace(result, partitions=tuple(dict.fromkeys(result.partitions))),)

    return judge_items(inquiry.api_version, request, response, refuse)


def offset_for_leader_epoch(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetForLeaderEpoch: Describe on each topic, or ClusterAction on the cluster."""
    if inquiry.cluster_permits(Operation.CLUSTER_ACTION):
        return FORWARD
    return _judge_topics(inquiry, "OffsetForLeaderEpoch", Operation.DESCRIBE)


def describe_producers(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeProducers: Read on each topic."""
    order, message = ("name",), MESSAGES[TOPIC_DENIED]
    return _judge_topics(
        inquiry, "DescribeProducers", Operation.READ, order_by=order, error_message=message
    )


def _judge_topics(
    inquiry: Inquiry,
    api: str,
    operation: Operation,
    *,
    order_by: tuple[str, ...] = (),
    **values: Any,
) -> Judgement:
    """Judge a request that requires the operation on each topic; `values` as in `refused_topic`."""
    request = inquiry.read(message_type(f"{api}Request"))
    response = message_type(f"{api}Response")
    kind = item_type(response, "topics")
    name = "topic" if "topic" in kind.DEFAULTS else "name"

    def refuse(topic: Any) -> Sequence[Message] | None:
        if inquiry.may_topic(operation, getattr(topic, name)):
            return None
        return (refused_topic(kind, TOPIC_DENIED, topic, **values),)

    return judge_items(inquiry.api_version, request, response, refuse, order_by=order_by)
