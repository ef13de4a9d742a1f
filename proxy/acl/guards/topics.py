"""Guards of CreateTopics, CreatePartitions and DeleteTopics."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from proxy.acl.decision import (
    FORWARD,
    BodyTransform,
    Change,
    Inquiry,
    Judgement,
    names_of,
)
from proxy.acl.guards.checks import may_cluster, may_topic
from proxy.acl.guards.entities import Values
from proxy.acl.guards.responses import MESSAGES, judge_items, read_request
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from proxy.wire.codec import decode, encode, response_type

_DENIED: Final = ErrorCode.topic_authorization_failed
_CONFIGS_IN_RESPONSE: Final = 5
"""First version of CreateTopics whose response has a new topic's configuration (KIP-525)."""
_TOPICS_BY_ID: Final = 6
"""First version of DeleteTopics with topic ids (KIP-516)."""
_HIDDEN_NUMBER: Final = -1
"""Kafka's number of partitions and replication factor where the configuration is not shown."""
_CLUSTER_METADATA: Final = "__cluster_metadata"
"""Name of the quorum's log, which no client may create, whatever its permissions."""


class _Repetitions:
    """Items that a request names more than once: Kafka refuses them as invalid, with one result
    each, before it checks permissions."""

    def __init__(self, keys: Iterable[Hashable]) -> None:
        self._times = Counter(keys)
        self._answered: set[Hashable] = set()

    def result(self, key: Hashable, otherwise: Values, repeated: Values) -> Values:
        """Return the result of a denied item."""
        if self._times[key] == 1:
            return otherwise
        if key in self._answered:
            return {}
        self._answered.add(key)
        return {**otherwise, "error_code": ErrorCode.invalid_request, **repeated}


_REPEATED_NAME: Final = {"error_message": "Duplicate topic name."}
_REPEATED_ID: Final = {"name": None, "error_message": "Duplicate topic id."}


def create_topics(inquiry: Inquiry) -> Judgement:
    """Judge a CreateTopics: Create on the cluster, or on each topic.

    The response has a topic's configuration only with DescribeConfigs on the topic.
    """
    request = read_request(inquiry, CREATE_TOPICS)
    every_topic = may_cluster(inquiry, Operation.CREATE, report=False)
    repetitions = _Repetitions(topic.name for topic in pausing(request.topics))

    def refuse(topic: Any) -> Values | None:
        error, message = _DENIED, "Authorization failed."
        if topic.name == _CLUSTER_METADATA:
            error = ErrorCode.invalid_request
            message = f"Creation of internal topic {topic.name} is prohibited."
        elif every_topic or may_topic(inquiry, Operation.CREATE, topic.name):
            return None
        refusal = {
            "name": topic.name,
            "topic_id": None,
            "error_code": error,
            "error_message": message,
            "configs": [],
        }
        return repetitions.result(topic.name, refusal, _REPEATED_NAME)

    judgement = judge_items(
        inquiry, CREATE_TOPICS, request, items="topics", results="topics", refuse=refuse
    )
    return _without_hidden_configs(inquiry, request, judgement)


def _without_hidden_configs(inquiry: Inquiry, request: Any, judgement: Judgement) -> Judgement:
    if inquiry.api_version < _CONFIGS_IN_RESPONSE:
        return judgement
    hidden = {
        topic.name
        for topic in request.topics
        if not may_topic(inquiry, Operation.DESCRIBE_CONFIGS, topic.name, report=False)
    }
    if not hidden:
        return judgement
    hide = _hide_configs(inquiry.api_version, hidden)
    if judgement is FORWARD:
        return Change(response=hide)
    if isinstance(judgement, Change) and judgement.response is not None:
        merge = judgement.response
        return replace(judgement, response=lambda body: merge(hide(body)))
    return judgement


def _hide_configs(api_version: int, hidden: set[str]) -> BodyTransform:
    schema = response_type(CREATE_TOPICS, api_version)

    def shown(result: Any) -> Any:
        if result.error_code is not ErrorCode.none or result.name not in hidden:
            return result
        return replace(
            result,
            topic_config_error_code=_DENIED.value,
            num_partitions=_HIDDEN_NUMBER,
            replication_factor=_HIDDEN_NUMBER,
            configs=(),
        )

    def hide(body: bytes) -> bytes:
        response = decode(schema, body)
        return encode(replace(response, topics=tuple(map(shown, response.topics))))

    return hide


def create_partitions(inquiry: Inquiry) -> Judgement:
    """Judge a CreatePartitions: Alter on each topic."""
    request = read_request(inquiry, CREATE_PARTITIONS)
    repetitions = _Repetitions(topic.name for topic in pausing(request.topics))

    def refuse(topic: Any) -> Values | None:
        if may_topic(inquiry, Operation.ALTER, topic.name):
            return None
        refusal = {"name": topic.name, "error_code": _DENIED, "error_message": None}
        return repetitions.result(topic.name, refusal, _REPEATED_NAME)

    return judge_items(
        inquiry, CREATE_PARTITIONS, request, items="topics", results="results", refuse=refuse
    )


def delete_topics(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteTopics: Delete on each topic, or on the cluster.

    By name, a topic that may not be described may not be deleted either. By id, the response hides
    the name of a topic that may not be described; that the id exists is no secret in Kafka.
    """
    if may_cluster(inquiry, Operation.DELETE, report=False):
        return FORWARD
    request = read_request(inquiry, DELETE_TOPICS)
    if inquiry.api_version < _TOPICS_BY_ID:
        return judge_items(
            inquiry,
            DELETE_TOPICS,
            request,
            items="topic_names",
            results="responses",
            refuse=_refuse_deletion_by_name(inquiry, request.topic_names),
        )
    by_name = [each.name for each in pausing(request.topics) if each.topic_id is None]
    by_id = [
        each.topic_id for each in pausing(request.topics) if each.name is None and each.topic_id
    ]
    refuse_by_name = _refuse_deletion_by_name(inquiry, by_name)
    names = names_of(inquiry.topics, (each.bytes for each in by_id))
    repeated_ids = _Repetitions(by_id)

    def refuse(topic: Any) -> Values | None:
        if topic.topic_id is None:
            return None if topic.name is None else refuse_by_name(topic.name)
        if topic.name is not None:
            message = "You may not specify both topic name and topic id."
            return _undeleted(topic.name, topic.topic_id, ErrorCode.invalid_request, message)
        refusal = _refuse_deletion_by_id(inquiry, topic.topic_id, names[topic.topic_id.bytes])
        return refusal and repeated_ids.result(topic.topic_id, refusal, _REPEATED_ID)

    return judge_items(
        inquiry, DELETE_TOPICS, request, items="topics", results="responses", refuse=refuse
    )


def _refuse_deletion_by_name(
    inquiry: Inquiry, names: Iterable[str | None]
) -> Callable[[str], Values | None]:
    repetitions = _Repetitions(names)

    def refuse(name: str) -> Values | None:
        if may_topic(inquiry, Operation.DESCRIBE, name) and may_topic(
            inquiry, Operation.DELETE, name
        ):
            return None
        refusal = _undeleted(name, None, _DENIED, MESSAGES[_DENIED])
        return repetitions.result(name, refusal, _REPEATED_NAME)

    return refuse


def _refuse_deletion_by_id(inquiry: Inquiry, topic_id: UUID, name: str | None) -> Values | None:
    if name is None:
        unknown = ErrorCode.unknown_topic_id
        return _undeleted(None, topic_id, unknown, MESSAGES[unknown])
    if may_topic(inquiry, Operation.DELETE, name):
        return None
    described = may_topic(inquiry, Operation.DESCRIBE, name)
    return _undeleted(name if described else None, topic_id, _DENIED, MESSAGES[_DENIED])


def _undeleted(
    name: str | None, topic_id: UUID | None, error: ErrorCode, message: str
) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": error, "error_message": message}
