"""Guards of the APIs about groups: their members, descriptions and coordinators.

A heartbeat of the newer protocols (KIP-848, KIP-932, KIP-1071) names topics, and is refused unless
the client may describe all of them. It is also refused if it has a regular expression that could
match a topic that the client may not describe: the broker matches the expression, with the proxy's
permissions, against all present and future topics. The prefix of the expression bounds these
topics.

As in Kafka, groups that may not be described come first in a response. A broker without an
authorizer reports all operations as authorized; the guards replace them with the operations of the
principal.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, count
from typing import Any, Final

from proxy.acl.decision import FORWARD, Change, Guard, Inquiry, Judgement
from proxy.acl.guards.common import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    MESSAGES,
    TOPIC_DENIED,
    TRANSACTIONAL_ID_DENIED,
    interleaved,
    judge_items,
    on_listing,
)
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.items import Items
from proxy.wire.messages import replace
from proxy.wire.schema import Message, message_type

_LITERAL: Final = r"(?:[A-Za-z0-9_-]|\\[._-])"
"""Pattern of a character of a topic's name in a regular expression of RE2/J, escaped or not."""
_MAX_NAME: Final = 249
"""Maximum length of a topic's name in characters (`Topic.MAX_NAME_LENGTH`)."""
_EXACT_NAME: Final = re.compile(rf"\^?({_LITERAL}{{1,{_MAX_NAME}}})\$?")
"""Pattern of a regular expression that matches exactly one name."""
_PREFIX: Final = re.compile(
    rf"""\^?({_LITERAL}{{0,{_MAX_NAME}}})
    (?= \Z | [.\[$] | \((?!\?) | \(\?: | \\[dDsSwW] | {_LITERAL}[*+?{{] )""",
    re.VERBOSE,
)
"""Pattern of the prefix of every name that a regular expression without alternatives matches.

The lookahead rejects constructs such as `(?i)` and an empty `\\Q\\E`: a quantifier after them would
apply to the last character of the prefix.
"""


_GROUP_KEY: Final = 0
_TRANSACTION_KEY: Final = 1
_SHARE_KEY: Final = 2
"""Kafka's `CoordinatorType` of share partitions."""
_FIRST_WITH_KEYS: Final = 4
"""First version of FindCoordinator with several keys (KIP-699)."""
_FIRST_WITH_SHARE_KEYS: Final = 6
_NO_NODE: Final = -1
"""Node id and port if there is no coordinator."""


def find_coordinator(inquiry: Inquiry) -> Judgement:
    """Judge a FindCoordinator: Describe on the group or the transactional id.

    The coordinator of a share partition is internal to the brokers and requires ClusterAction on
    the cluster.
    """
    request = inquiry.read(messages.FindCoordinatorRequest)
    key_type = request.key_type
    if inquiry.api_version < _FIRST_WITH_KEYS:
        error = _key_error(inquiry, key_type, request.key)
        if error is None:
            return FORWARD
        return inquiry.answer(
            messages.FindCoordinatorResponse(
                error_code=error, error_message=MESSAGES[error], node_id=_NO_NODE, port=_NO_NODE
            )
        )
    if key_type == _SHARE_KEY:
        return _find_share_coordinator(inquiry, request)
    requested = [(key, _key_error(inquiry, key_type, key)) for key in request.coordinator_keys]
    refused = [
        None if error is None else _no_coordinator(key, error, "") for key, error in requested
    ]
    if not any(refused):
        return FORWARD
    if all(refused):
        coordinators = tuple(one for one in refused if one is not None)
        return inquiry.answer(messages.FindCoordinatorResponse(coordinators=coordinators))
    kept = tuple(key for key, error in pausing(requested) if error is None)
    return Change(
        request=inquiry.encoded(replace(request, coordinator_keys=kept)),
        response=inquiry.on_response(
            messages.FindCoordinatorResponse,
            lambda response: replace(
                response, coordinators=interleaved(refused, response.coordinators)
            ),
        ),
    )


def _key_error(inquiry: Inquiry, key_type: int, key: str) -> ErrorCode | None:
    if key_type == _GROUP_KEY and not inquiry.may_group(Operation.DESCRIBE, key):
        return GROUP_DENIED
    if key_type == _TRANSACTION_KEY and not inquiry.may_transact(Operation.DESCRIBE, key):
        return TRANSACTIONAL_ID_DENIED
    return None


def _find_share_coordinator(
    inquiry: Inquiry, request: messages.FindCoordinatorRequest
) -> Judgement:
    # Before version 6 the broker refuses such keys regardless of permissions
    if (
        inquiry.api_version < _FIRST_WITH_SHARE_KEYS
        or not request.coordinator_keys
        or inquiry.may_cluster(Operation.CLUSTER_ACTION)
    ):
        return FORWARD
    denied = CLUSTER_DENIED
    refused = tuple(
        _no_coordinator(key, denied, MESSAGES[denied]) for key in request.coordinator_keys
    )
    return inquiry.answer(messages.FindCoordinatorResponse(coordinators=refused))


def _no_coordinator(
    key: str, error: ErrorCode, message: str
) -> messages.FindCoordinatorResponse.Coordinator:
    return messages.FindCoordinatorResponse.Coordinator(
        key=key, node_id=_NO_NODE, port=_NO_NODE, error_code=error, error_message=message
    )


def join_group(inquiry: Inquiry) -> Judgement:
    """Judge a JoinGroup: Read on the group."""
    request = inquiry.read(messages.JoinGroupRequest)
    if inquiry.may_group(Operation.READ, request.group_id):
        return FORWARD
    name = None if inquiry.api_version >= 7 else ""  # nullable since KIP-559
    return inquiry.answer(messages.JoinGroupResponse(error_code=GROUP_DENIED, protocol_name=name))


def _needs_read(api: str) -> Guard:
    """Return a guard of an API that requires Read on the group."""
    kind: Any = message_type(f"{api}Request")
    refusal = message_type(f"{api}Response")(error_code=GROUP_DENIED)

    def guard(inquiry: Inquiry) -> Judgement:
        if inquiry.may_group(Operation.READ, inquiry.read(kind).group_id):
            return FORWARD
        return inquiry.answer(refusal)

    return guard


heartbeat = _needs_read("Heartbeat")
leave_group = _needs_read("LeaveGroup")
# As in Kafka, the topics in the description are not judged
streams_group_topology_description_update = _needs_read("StreamsGroupTopologyDescriptionUpdate")


def sync_group(inquiry: Inquiry) -> Judgement:
    """Judge a SyncGroup: Read on the group.

    Since version 5 the broker refuses a request without protocol type and name, regardless of
    permissions.
    """
    request = inquiry.read(messages.SyncGroupRequest)
    if inquiry.api_version >= 5 and None in (request.protocol_type, request.protocol_name):
        return FORWARD
    if inquiry.may_group(Operation.READ, request.group_id):
        return FORWARD
    return inquiry.answer(messages.SyncGroupResponse(error_code=GROUP_DENIED))


def consumer_group_heartbeat(inquiry: Inquiry) -> Judgement:
    """Judge a ConsumerGroupHeartbeat: Read on the group, Describe on each topic in the
    subscription.

    A regular expression is checked only in the heartbeat that contains it.
    """
    return _judge_subscription(inquiry, "ConsumerGroupHeartbeat")


def share_group_heartbeat(inquiry: Inquiry) -> Judgement:
    """Judge a ShareGroupHeartbeat: Read on the group, Describe on each topic in the
    subscription."""
    return _judge_subscription(inquiry, "ShareGroupHeartbeat")


def _judge_subscription(inquiry: Inquiry, api: str) -> Judgement:
    request: Any = inquiry.read(message_type(f"{api}Request"))
    response = message_type(f"{api}Response")
    regex = getattr(request, "subscribed_topic_regex", None) or ""
    if not inquiry.may_group(Operation.READ, request.group_id):
        return inquiry.answer(response(error_code=GROUP_DENIED))
    names = request.subscribed_topic_names or ()
    if inquiry.may_describe_all(names) and _may_describe_matches(inquiry, regex):
        return FORWARD
    return inquiry.answer(response(error_code=TOPIC_DENIED))


def _may_describe_matches(inquiry: Inquiry, regex: str) -> bool:
    """Return whether every topic that a regular expression could match may be described.

    The empty expression, which ends a subscription, matches no topic.
    """
    if not regex:
        return True
    authority = inquiry.authority
    if (name := _EXACT_NAME.fullmatch(regex)) is not None:
        return authority.may(Operation.DESCRIBE, ResourceType.TOPIC, _unescaped(name[1]))
    found = None if "|" in regex else _PREFIX.match(regex)
    prefix = "" if found is None else _unescaped(found[1])
    return authority.may_every(Operation.DESCRIBE, ResourceType.TOPIC, prefix)


def _unescaped(literal: str) -> str:
    return literal.replace("\\", "")


def streams_group_heartbeat(inquiry: Inquiry) -> Judgement:
    """Judge a StreamsGroupHeartbeat: Read on the group, Describe on each topic of the topology.

    The broker creates missing internal topics of the topology with its own permissions. The client
    must therefore have Create on the cluster or on each of them. Kafka requires this only for
    missing topics, but the proxy does not know which are missing.

    Regular expressions are checked because the protocol has them, although Kafka 4.1 refuses them
    regardless of permissions.
    """
    request = inquiry.read(messages.StreamsGroupHeartbeatRequest)
    if not inquiry.may_group(Operation.READ, request.group_id):
        return _streams_refusal(inquiry, GROUP_DENIED)
    if request.topology is None:
        return FORWARD
    made = [
        topic.name
        for each in request.topology.subtopologies
        for topic in pausing((*each.repartition_source_topics, *each.state_changelog_topics))
    ]
    read = [
        name
        for each in request.topology.subtopologies
        for name in pausing((*each.source_topics, *each.repartition_sink_topics))
    ]
    patterns = {
        regex
        for each in request.topology.subtopologies
        for regex in pausing(each.source_topic_regex)
    }
    if (
        inquiry.may_describe_all((*read, *made))
        and all(_may_describe_matches(inquiry, regex) for regex in pausing(patterns))
        and _may_create_all(inquiry, made)
    ):
        return FORWARD
    return _streams_refusal(inquiry, TOPIC_DENIED)


def _may_create_all(inquiry: Inquiry, topics: Iterable[str]) -> bool:
    if inquiry.cluster_permits(Operation.CREATE):
        return True
    denied = [name for name in set(topics) if not inquiry.may_topic(Operation.CREATE, name)]
    return not denied


def _streams_refusal(inquiry: Inquiry, error: ErrorCode) -> Judgement:
    return inquiry.answer(messages.StreamsGroupHeartbeatResponse(error_code=error))


Topics = Callable[[Any], Iterable[str]]
"""Function that returns the topics in a group's description."""


def list_groups(inquiry: Inquiry) -> Judgement:
    """Judge a ListGroups: all groups with Describe on the cluster, otherwise each group with
    Describe on it."""
    if inquiry.cluster_permits(Operation.DESCRIBE):
        return FORWARD

    def cut(body: bytes) -> bytes:
        groups = Items(messages.ListGroupsResponse, inquiry.api_version, "groups", body)
        names = [name or "" for name in groups.names]
        may = inquiry.authority.may_each(Operation.DESCRIBE, ResourceType.GROUP, names)
        return groups.replaced([groups.content(place) for place in compress(count(), may)])

    return Change(response=on_listing(inquiry, messages.ListGroupsResponse, cut))


def delete_groups(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteGroups: Delete on each group."""
    request = inquiry.read(messages.DeleteGroupsRequest)
    request = replace(request, groups_names=tuple(dict.fromkeys(request.groups_names)))

    def refuse(group: str) -> Sequence[Message] | None:
        if inquiry.may_group(Operation.DELETE, group):
            return None
        result = messages.DeleteGroupsResponse.DeletableGroupResult
        return (result(group_id=group, error_code=GROUP_DENIED),)

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
    return _describe(inquiry, "DescribeGroups", None)


def consumer_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a ConsumerGroupDescribe: Describe on each group and on each topic assigned in it."""

    def topics(group: messages.ConsumerGroupDescribeResponse.DescribedGroup) -> Iterable[str]:
        for member in group.members:
            for assignment in (member.assignment, member.target_assignment):
                yield from (each.topic_name for each in assignment.topic_partitions)

    return _describe(inquiry, "ConsumerGroupDescribe", topics)


def share_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a ShareGroupDescribe: Describe on each group and on each topic assigned in it."""

    def topics(group: messages.ShareGroupDescribeResponse.DescribedGroup) -> Iterable[str]:
        for member in group.members:
            yield from (each.topic_name for each in member.assignment.topic_partitions)

    return _describe(inquiry, "ShareGroupDescribe", topics)


def streams_group_describe(inquiry: Inquiry) -> Judgement:
    """Judge a StreamsGroupDescribe: Describe on each group and on each topic of its topology.

    A group that is refused because of a topic also loses the description of its topology
    (KIP-1331). As in Kafka, topics in that description are not judged.
    """

    def topics(group: messages.StreamsGroupDescribeResponse.DescribedGroup) -> Iterable[str]:
        if group.topology is None:
            return
        for each in group.topology.subtopologies or ():
            yield from (*each.source_topics, *each.repartition_sink_topics)
            yield from (topic.name for topic in each.repartition_source_topics)
            yield from (topic.name for topic in each.state_changelog_topics)

    message = "The described group uses topics that the client is not authorized to describe."
    return _describe(inquiry, "StreamsGroupDescribe", topics, message)


def _describe(
    inquiry: Inquiry,
    api: str,
    topics: Topics | None,
    hidden_message: str = (
        "The group has described topic(s) that the client is not authorized to describe."
    ),
) -> Judgement:
    """Judge a description of groups.

    Pass None for `topics` if the descriptions never contain topics.
    """
    request: Any = inquiry.read(message_type(f"{api}Request"))
    response: Any = message_type(f"{api}Response")
    groups = "groups" if topics is None else "group_ids"
    described = response.DescribedGroup
    kept: list[str] = []
    refused: list[str] = []
    for group_id in getattr(request, groups):
        may = inquiry.may_group(Operation.DESCRIBE, group_id)
        (kept if may else refused).append(group_id)
    refusals = tuple(described(group_id=one, error_code=GROUP_DENIED) for one in refused)
    if refused and not kept:
        return inquiry.answer(response(groups=refusals))
    with_operations = request.include_authorized_operations
    if not refused and topics is None and not with_operations:
        return FORWARD

    def shown(group: Any) -> Any:
        if topics is not None and not all(inquiry.may_describe(name) for name in topics(group)):
            return described(
                group_id=group.group_id, error_code=TOPIC_DENIED, error_message=hidden_message
            )
        if with_operations and group.error_code == ErrorCode.NONE:
            operations = inquiry.authority.operations(ResourceType.GROUP, group.group_id)
            return replace(group, authorized_operations=operations)
        return group

    changed = replace(request, **{groups: tuple(kept)})
    return Change(
        request=inquiry.encoded(changed) if refused else None,
        response=inquiry.on_response(
            response, lambda passed: replace(passed, groups=(*refusals, *map(shown, passed.groups)))
        ),
    )
