"""Guards of the APIs that describe, list and delete groups, or describe their topologies.

Groups that may not be described come first in a response, as in Kafka. A broker without an
authorizer reports all operations as authorized: they are replaced by those of the principal.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement
from proxy.acl.guards.checks import may_cluster, may_describe, may_group
from proxy.acl.guards.entities import Values, entities, entity, item_type
from proxy.acl.guards.responses import answer, judge_items, on_response, only, read_request
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    SHARE_GROUP_DESCRIBE,
    STREAMS_GROUP_DESCRIBE,
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
)
from proxy.wire.codec import encode, response_type

_GROUP_DENIED: Final = ErrorCode.group_authorization_failed
_TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
NO_OPERATIONS: Final = -(2**31)
"""Value of Kafka's authorized operations when they were not requested."""

_FIELDS_OF_A_REFUSAL: Final = 13

Topics = Callable[[Any], Iterable[str]]
"""Function that returns the topics in a group's description."""


def list_groups(inquiry: Inquiry) -> Judgement:
    """Judge a ListGroups: Describe on the cluster shows all groups, Describe on a group shows that
    group."""
    if may_cluster(inquiry, Operation.DESCRIBE, report=False):
        return FORWARD

    def may_show(group: Any) -> bool:
        return may_group(inquiry, Operation.DESCRIBE, group.group_id, report=False)

    def cut(response: Any) -> Any:
        return only(response, "groups", may_show)

    return Change(response=on_response(inquiry, LIST_GROUPS, cut))


def delete_groups(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteGroups: Delete on each group."""
    request = read_request(inquiry, DELETE_GROUPS)
    request = replace(request, groups_names=tuple(dict.fromkeys(request.groups_names)))

    def refuse(group: str) -> Values | None:
        if may_group(inquiry, Operation.DELETE, group):
            return None
        return {"group_id": group, "error_code": _GROUP_DENIED}

    return judge_items(
        inquiry, DELETE_GROUPS, request, items="groups_names", results="results", refuse=refuse
    )


def describe_groups(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeGroups: Describe on each group."""
    return _describe(inquiry, DESCRIBE_GROUPS, "groups", None)


def consumer_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a ConsumerGroupDescribe: Describe on each group and on each topic assigned in it."""

    def topics(group: Any) -> Iterable[str]:
        for member in group.members:
            for assignment in (member.assignment, member.target_assignment):
                yield from (each.topic_name for each in assignment.topic_partitions)

    return _describe(inquiry, CONSUMER_GROUP_DESCRIBE, "group_ids", topics)


def share_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a ShareGroupDescribe: Describe on each group and on each topic assigned in it."""

    def topics(group: Any) -> Iterable[str]:
        for member in group.members:
            yield from (each.topic_name for each in member.assignment.topic_partitions)

    return _describe(inquiry, SHARE_GROUP_DESCRIBE, "group_ids", topics)


def streams_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a StreamsGroupDescribe: Describe on each group and on each topic of its topology.

    A group that is refused for a topic loses the description of its topology (KIP-1331) too; as in
    Kafka, what that description names is not judged.
    """

    def topics(group: Any) -> Iterable[str]:
        if group.topology is None:
            return
        for each in group.topology.subtopologies or ():
            yield from (*each.source_topics, *each.repartition_sink_topics)
            yield from (topic.name for topic in each.repartition_source_topics)
            yield from (topic.name for topic in each.state_changelog_topics)

    message = "The described group uses topics that the client is not authorized to describe."
    return _describe(inquiry, STREAMS_GROUP_DESCRIBE, "group_ids", topics, message)


def streams_group_topology_description_update(inquiry: Inquiry) -> Judgement:
    """Judge a StreamsGroupTopologyDescriptionUpdate: Read on the group; as in Kafka, the topics
    that the description names are not judged."""
    api_key = STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
    if may_group(inquiry, Operation.READ, read_request(inquiry, api_key).group_id):
        return FORWARD
    return answer(inquiry, api_key, error_code=_GROUP_DENIED)


def _describe(
    inquiry: Inquiry,
    api_key: int,
    groups: str,
    topics: Topics | None,
    hidden_message: str = (
        "The group has described topic(s) that the client is not authorized to describe."
    ),
) -> Judgement:
    """Judge a description of `groups`, which may contain `topics`; None if it never does."""
    request = read_request(inquiry, api_key)
    kept: list[str] = []
    refused: list[str] = []
    for group_id in getattr(request, groups):
        may = may_group(inquiry, Operation.DESCRIBE, group_id)
        (kept if may else refused).append(group_id)
    refusals = [
        _refused_group(api_key, group_id, _GROUP_DENIED, None)
        for group_id in pausing(refused, values=_FIELDS_OF_A_REFUSAL)
    ]
    if refused and not kept:
        return answer(inquiry, api_key, groups=refusals)
    with_operations = getattr(request, "include_authorized_operations", False)
    if not refused and topics is None and not with_operations:
        return FORWARD
    item = item_type(response_type(api_key, inquiry.api_version), "groups")
    first = entities(item, refusals)

    def shown(group: Any) -> Any:
        if topics is not None and not all(may_describe(inquiry, name) for name in topics(group)):
            refusal = _refused_group(api_key, group.group_id, _TOPIC_DENIED, hidden_message)
            return entity(item, refusal)
        if with_operations and group.error_code is ErrorCode.none:
            operations = inquiry.authority.operations(ResourceType.GROUP, group.group_id)
            return replace(group, authorized_operations=operations)
        return group

    return Change(
        request=encode(replace(request, **{groups: tuple(kept)})) if refused else None,
        response=on_response(
            inquiry,
            api_key,
            lambda response: replace(response, groups=(*first, *map(shown, response.groups))),
        ),
    )


def _refused_group(
    api_key: int, group_id: str, error: ErrorCode, message: str | None
) -> dict[str, Any]:
    """Return the description of a hidden group, with the fields of all the APIs."""
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": None if api_key == STREAMS_GROUP_DESCRIBE else "",
        "topology": None,
        "members": [],
        "authorized_operations": NO_OPERATIONS,
    }
