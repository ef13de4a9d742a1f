"""Guards of group membership: FindCoordinator, JoinGroup, Heartbeat, LeaveGroup and kin.

A heartbeat of the newer protocols (KIP-848, KIP-932, KIP-1071) names topics; one that may not be
described refuses the heartbeat. So does a regular expression, unless every topic that it could
match may be described: the broker matches it, with the proxy's permissions, against all present and
future topics. The prefix of the expression bounds these topics.
"""

import re
from collections.abc import Iterable
from typing import Final

from proxy.acl.decision import FORWARD, Change, Inquiry, Judgement
from proxy.acl.guards.checks import (
    may_cluster,
    may_describe_all,
    may_group,
    may_topic,
    may_transact,
)
from proxy.acl.guards.responses import (
    MESSAGES,
    answer,
    interleaved,
    on_response,
    read_request,
)
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire import messages
from proxy.wire.codec import encode
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace

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

Nothing may follow it that a quantifier would skip, to apply to the prefix itself, as it does with
`(?i)` and an empty `\\Q\\E`.
"""

_GROUP_DENIED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TRANSACTIONAL_ID_DENIED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

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

    The coordinator of a share partition is internal to the brokers: ClusterAction on the cluster.
    """
    request = read_request(inquiry, messages.FindCoordinatorRequest)
    key_type = request.key_type
    if inquiry.api_version < _FIRST_WITH_KEYS:
        error = _key_error(inquiry, key_type, request.key)
        if error is None:
            return FORWARD
        return answer(
            inquiry,
            messages.FindCoordinatorResponse(
                error_code=error, error_message=MESSAGES[error], node_id=_NO_NODE, port=_NO_NODE
            ),
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
        return answer(inquiry, messages.FindCoordinatorResponse(coordinators=coordinators))
    kept = tuple(key for key, error in pausing(requested) if error is None)
    return Change(
        request=encode(replace(request, coordinator_keys=kept), inquiry.api_version),
        response=on_response(
            inquiry,
            messages.FindCoordinatorResponse,
            lambda response: replace(
                response, coordinators=interleaved(refused, response.coordinators)
            ),
        ),
    )


def _key_error(inquiry: Inquiry, key_type: int, key: str) -> ErrorCode | None:
    if key_type == _GROUP_KEY and not may_group(inquiry, Operation.DESCRIBE, key):
        return _GROUP_DENIED
    if key_type == _TRANSACTION_KEY and not may_transact(inquiry, Operation.DESCRIBE, key):
        return _TRANSACTIONAL_ID_DENIED
    return None


def _find_share_coordinator(
    inquiry: Inquiry, request: messages.FindCoordinatorRequest
) -> Judgement:
    # Before version 6 the broker refuses such keys, whatever the permissions
    if (
        inquiry.api_version < _FIRST_WITH_SHARE_KEYS
        or not request.coordinator_keys
        or may_cluster(inquiry, Operation.CLUSTER_ACTION)
    ):
        return FORWARD
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refused = tuple(
        _no_coordinator(key, denied, MESSAGES[denied]) for key in request.coordinator_keys
    )
    return answer(inquiry, messages.FindCoordinatorResponse(coordinators=refused))


def _no_coordinator(
    key: str, error: ErrorCode, message: str
) -> messages.FindCoordinatorResponse.Coordinator:
    return messages.FindCoordinatorResponse.Coordinator(
        key=key, node_id=_NO_NODE, port=_NO_NODE, error_code=error, error_message=message
    )


def join_group(inquiry: Inquiry) -> Judgement:
    """Judge a JoinGroup: Read on the group."""
    request = read_request(inquiry, messages.JoinGroupRequest)
    if may_group(inquiry, Operation.READ, request.group_id):
        return FORWARD
    name = None if inquiry.api_version >= 7 else ""  # nullable since KIP-559
    return answer(inquiry, messages.JoinGroupResponse(error_code=_GROUP_DENIED, protocol_name=name))


def heartbeat(inquiry: Inquiry) -> Judgement:
    """Judge a Heartbeat: Read on the group."""
    request = read_request(inquiry, messages.HeartbeatRequest)
    if may_group(inquiry, Operation.READ, request.group_id):
        return FORWARD
    return answer(inquiry, messages.HeartbeatResponse(error_code=_GROUP_DENIED))


def leave_group(inquiry: Inquiry) -> Judgement:
    """Judge a LeaveGroup: Read on the group."""
    request = read_request(inquiry, messages.LeaveGroupRequest)
    if may_group(inquiry, Operation.READ, request.group_id):
        return FORWARD
    return answer(inquiry, messages.LeaveGroupResponse(error_code=_GROUP_DENIED))


def sync_group(inquiry: Inquiry) -> Judgement:
    """Judge a SyncGroup: Read on the group.

    Since version 5 the broker refuses one without protocol type and name, whatever the permissions.
    """
    request = read_request(inquiry, messages.SyncGroupRequest)
    if inquiry.api_version >= 5 and None in (request.protocol_type, request.protocol_name):
        return FORWARD
    if may_group(inquiry, Operation.READ, request.group_id):
        return FORWARD
    return answer(inquiry, messages.SyncGroupResponse(error_code=_GROUP_DENIED))


def consumer_group_heartbeat(inquiry: Inquiry) -> Judgement:
    """Judge a ConsumerGroupHeartbeat: Read on the group, Describe on each topic in the
    subscription.

    A regular expression is checked once, in the heartbeat that contains it.
    """
    request = read_request(inquiry, messages.ConsumerGroupHeartbeatRequest)
    regex = request.subscribed_topic_regex or ""
    error = _subscription_error(inquiry, request.group_id, request.subscribed_topic_names, regex)
    if error is None:
        return FORWARD
    return answer(inquiry, messages.ConsumerGroupHeartbeatResponse(error_code=error))


def share_group_heartbeat(inquiry: Inquiry) -> Judgement:
    """Judge a ShareGroupHeartbeat: Read on the group, Describe on each topic in the
    subscription."""
    request = read_request(inquiry, messages.ShareGroupHeartbeatRequest)
    error = _subscription_error(inquiry, request.group_id, request.subscribed_topic_names, "")
    if error is None:
        return FORWARD
    return answer(inquiry, messages.ShareGroupHeartbeatResponse(error_code=error))


def _subscription_error(
    inquiry: Inquiry, group_id: str, names: Iterable[str] | None, regex: str
) -> ErrorCode | None:
    if not may_group(inquiry, Operation.READ, group_id):
        return _GROUP_DENIED
    if may_describe_all(inquiry, names or ()) and _may_describe_matches(inquiry, regex):
        return None
    return _TOPIC_DENIED


def _may_describe_matches(inquiry: Inquiry, regex: str) -> bool:
    """Return whether every topic that a regular expression could match may be described.

    The empty expression, which ends a subscription, matches none.
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
    must therefore have Create on the cluster or on each of them. Kafka requires that only where a
    topic is missing, which the proxy does not know.

    Kafka 4.1 refuses regular expressions, whatever the permissions, but the protocol has them.
    """
    request = read_request(inquiry, messages.StreamsGroupHeartbeatRequest)
    if not may_group(inquiry, Operation.READ, request.group_id):
        return _streams_refusal(inquiry, _GROUP_DENIED)
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
        may_describe_all(inquiry, (*read, *made))
        and all(_may_describe_matches(inquiry, regex) for regex in pausing(patterns))
        and _may_create_all(inquiry, made)
    ):
        return FORWARD
    return _streams_refusal(inquiry, _TOPIC_DENIED)


def _may_create_all(inquiry: Inquiry, topics: Iterable[str]) -> bool:
    if may_cluster(inquiry, Operation.CREATE, report=False):
        return True
    denied = [name for name in set(topics) if not may_topic(inquiry, Operation.CREATE, name)]
    return not denied


def _streams_refusal(inquiry: Inquiry, error: ErrorCode) -> Judgement:
    return answer(inquiry, messages.StreamsGroupHeartbeatResponse(error_code=error))
