"""Guards of the APIs that describe, list and delete groups, or describe their topologies.

Groups that may not be described come first in a response, as in Kafka. A broker without an
authorizer reports all operations as authorized: they are replaced by those of the principal.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress, count
from typing import Any, Final

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement
from proxy.acl.guards.checks import may_cluster, may_describe, may_group
from proxy.acl.guards.responses import answer, judge_items, on_listing, on_response, read_request
from proxy.acl.model import Operation, ResourceType
from proxy.wire import messages
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.items import Items
from proxy.wire.messages import replace
from proxy.wire.schema import Message

_GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED

Topics = Callable[[Any], Iterable[str]]
"""Function that returns the topics in a group's description."""


def list_groups(inquiry: Inquiry) -> Judgement:
    """Judge a ListGroups: Describe on the cluster shows all groups, Describe on a group shows that
    group."""
    if may_cluster(inquiry, Operation.DESCRIBE, report=False):
        return FORWARD

    def cut(body: bytes) -> bytes:
        groups = Items(messages.ListGroupsResponse, inquiry.api_version, "groups", body)
        names = [name or "" for name in groups.names]
        may = inquiry.authority.may_each(Operation.DESCRIBE, ResourceType.GROUP, names)
        return groups.replaced([groups.content(place) for place in compress(count(), may)])

    return Change(response=on_listing(inquiry, messages.ListGroupsResponse, cut))


def delete_groups(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteGroups: Delete on each group."""
    request = read_request(inquiry, messages.DeleteGroupsRequest)
    request = replace(request, groups_names=tuple(dict.fromkeys(request.groups_names)))

    def refuse(group: str) -> Sequence[Message] | None:
        if may_group(inquiry, Operation.DELETE, group):
            return None
        result = messages.DeleteGroupsResponse.DeletableGroupResult
        return (result(group_id=group, error_code=_GROUP_DENIED),)

    return judge_items(
        inquiry.api_version,
        request,
        messages.DeleteGroupsResponse,
        refuse,
        items="groups_names",
        results="results",
    )


def describe_groups(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeGroups: Describe on each group."""
    request = read_request(inquiry, messages.DescribeGroupsRequest)
    response = messages.DescribeGroupsResponse
    return _describe(inquiry, request, "groups", response, response.DescribedGroup, None)


def consumer_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a ConsumerGroupDescribe: Describe on each group and on each topic assigned in it."""

    def topics(group: messages.ConsumerGroupDescribeResponse.DescribedGroup) -> Iterable[str]:
        for member in group.members:
            for assignment in (member.assignment, member.target_assignment):
                yield from (each.topic_name for each in assignment.topic_partitions)

    request = read_request(inquiry, messages.ConsumerGroupDescribeRequest)
    response = messages.ConsumerGroupDescribeResponse
    return _describe(inquiry, request, "group_ids", response, response.DescribedGroup, topics)


def share_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a ShareGroupDescribe: Describe on each group and on each topic assigned in it."""

    def topics(group: messages.ShareGroupDescribeResponse.DescribedGroup) -> Iterable[str]:
        for member in group.members:
            yield from (each.topic_name for each in member.assignment.topic_partitions)

    request = read_request(inquiry, messages.ShareGroupDescribeRequest)
    response = messages.ShareGroupDescribeResponse
    return _describe(inquiry, request, "group_ids", response, response.DescribedGroup, topics)


def streams_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a StreamsGroupDescribe: Describe on each group and on each topic of its topology.

    A group that is refused for a topic loses the description of its topology (KIP-1331) too; as in
    Kafka, what that description names is not judged.
    """

    def topics(group: messages.StreamsGroupDescribeResponse.DescribedGroup) -> Iterable[str]:
        if group.topology is None:
            return
        for each in group.topology.subtopologies or ():
            yield from (*each.source_topics, *each.repartition_sink_topics)
            yield from (topic.name for topic in each.repartition_source_topics)
            yield from (topic.name for topic in each.state_changelog_topics)

    request = read_request(inquiry, messages.StreamsGroupDescribeRequest)
    response = messages.StreamsGroupDescribeResponse
    message = "The described group uses topics that the client is not authorized to describe."
    described = response.DescribedGroup
    return _describe(inquiry, request, "group_ids", response, described, topics, message)


def streams_group_topology_description_update(inquiry: Inquiry) -> Judgement:
    """Judge a StreamsGroupTopologyDescriptionUpdate: Read on the group; as in Kafka, the topics
    that the description names are not judged."""
    request = read_request(inquiry, messages.StreamsGroupTopologyDescriptionUpdateRequest)
    if may_group(inquiry, Operation.READ, request.group_id):
        return FORWARD
    response = messages.StreamsGroupTopologyDescriptionUpdateResponse
    return answer(inquiry, response(error_code=_GROUP_DENIED))


def _describe(
    inquiry: Inquiry,
    request: Any,
    groups: str,
    response: type[Any],
    described: type[Any],
    topics: Topics | None,
    hidden_message: str = (
        "The group has described topic(s) that the client is not authorized to describe."
    ),
) -> Judgement:
    """Judge a description of `groups`, each of which is `described` in the response.

    `topics` is None if a description never contains topics.
    """
    kept: list[str] = []
    refused: list[str] = []
    for group_id in getattr(request, groups):
        may = may_group(inquiry, Operation.DESCRIBE, group_id)
        (kept if may else refused).append(group_id)
    refusals = tuple(described(group_id=one, error_code=_GROUP_DENIED) for one in refused)
    if refused and not kept:
        return answer(inquiry, response(groups=refusals))
    with_operations = request.include_authorized_operations
    if not refused and topics is None and not with_operations:
        return FORWARD

    def shown(group: Any) -> Any:
        if topics is not None and not all(may_describe(inquiry, name) for name in topics(group)):
            return described(
                group_id=group.group_id, error_code=_TOPIC_DENIED, error_message=hidden_message
            )
        if with_operations and group.error_code == ErrorCode.NONE:
            operations = inquiry.authority.operations(ResourceType.GROUP, group.group_id)
            return replace(group, authorized_operations=operations)
        return group

    changed = replace(request, **{groups: tuple(kept)})
    return Change(
        request=encode(changed, inquiry.api_version) if refused else None,
        response=on_response(
            inquiry,
            response,
            lambda passed: replace(passed, groups=(*refusals, *map(shown, passed.groups))),
        ),
    )
