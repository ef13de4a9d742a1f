"""Checks of permissions that several guards make."""

from collections.abc import Iterable, Mapping
from typing import Any

from proxy.acl.decision import Inquiry, names_of
from proxy.acl.model import CLUSTER_NAME, Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import NO_ID


def may_cluster(inquiry: Inquiry, operation: Operation, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on the cluster."""
    return inquiry.authority.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, report=report)


def may_topic(inquiry: Inquiry, operation: Operation, name: str, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on a topic."""
    return inquiry.authority.may(operation, ResourceType.TOPIC, name, report=report)


def may_group(inquiry: Inquiry, operation: Operation, name: str, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on a group."""
    return inquiry.authority.may(operation, ResourceType.GROUP, name, report=report)


def may_transact(inquiry: Inquiry, operation: Operation, name: str, *, report: bool = True) -> bool:
    """Return whether the operation is allowed on a transactional id."""
    return inquiry.authority.may(operation, ResourceType.TRANSACTIONAL_ID, name, report=report)


def may_describe(inquiry: Inquiry, topic: str) -> bool:
    """Return whether a topic may be listed; a denial is not reported."""
    return may_topic(inquiry, Operation.DESCRIBE, topic, report=False)


def may_describe_all(inquiry: Inquiry, topics: Iterable[str]) -> bool:
    """Return whether all of these topics may be described; every denial is reported."""
    denied = [name for name in set(topics) if not may_topic(inquiry, Operation.DESCRIBE, name)]
    return not denied


def topic_error(
    inquiry: Inquiry,
    operation: Operation,
    name: str | None,
    topic_id: bytes | None,
    names: Mapping[bytes, str | None],
) -> ErrorCode | None:
    """Return the error with which the operation is refused on a topic, by name or id; None if it is
    allowed.

    `names` holds the names of the topic ids in the request; None stands for an unknown id.
    """
    if topic_id is not None:
        name = names[topic_id]
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
    assert name is not None
    return None if may_topic(inquiry, operation, name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def topic_errors(
    inquiry: Inquiry, operation: Operation, key: str, topics: Iterable[Any]
) -> dict[Any, ErrorCode]:
    """Return the errors of the topics on which the operation is refused.

    `key` is the field that identifies a topic: `topic_id`, or the field of its name. An id without
    a topic is refused here: by the time the broker sees it, a topic could have it. Raises
    `TopicsUnknown`.
    """
    keys = list(dict.fromkeys(getattr(topic, key) for topic in pausing(topics)))
    if key == "topic_id":
        names = names_of(inquiry.topics, [each for each in keys if each != NO_ID])
    errors = {}
    for each in keys:
        name = each if key != "topic_id" else names.get(each)
        if name is None:
            errors[each] = ErrorCode.UNKNOWN_TOPIC_ID
        elif not may_topic(inquiry, operation, name):
            errors[each] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return errors
