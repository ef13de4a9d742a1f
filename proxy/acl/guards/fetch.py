"""Guard of Fetch: Read on each topic, or ClusterAction on the cluster, as replicas need.

A fetch session (KIP-227) names its topics once. A session is therefore remembered by its id, and
only if everything in it was allowed on this connection by the ACLs in force. Any other is answered
with FETCH_SESSION_ID_NOT_FOUND, whereupon the client sends a full request. A request of which a
part is denied is forwarded without a session: nothing that is denied ever gets into one. (Kafka
keeps denied partitions in the session and denies them in each response.)
"""

from collections.abc import Callable
from typing import Final

from proxy.acl.decision import (
    FORWARD,
    Change,
    FetchSessions,
    Inquiry,
    Judgement,
    names_of,
)
from proxy.acl.guards.checks import may_cluster, topic_error
from proxy.acl.guards.responses import answer, on_response
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.error_codes import ErrorCode
from proxy.wire.fetch_bounds import FINAL_EPOCH, INITIAL_EPOCH
from proxy.wire.fetch_requests import FetchedTopic, keep, parse, session_of_response
from proxy.wire.messages import FetchResponse, replace
from proxy.wire.primitives import Malformed
from proxy.wire.schema import NO_ID

MAX_BYTES_IN_PART: Final = 1_048_576
"""Maximum number of bytes in a response that is gathered to add denials to it. A broker sends more
if the first batch alone is longer."""
_UNKNOWN_OFFSET: Final = -1

Denied = dict[FetchedTopic, ErrorCode]
"""Errors of the topics that may not be read."""


def fetch(inquiry: Inquiry) -> Judgement:
    """Judge a Fetch."""
    version, sessions = inquiry.api_version, inquiry.fetch_sessions
    request = parse(version, inquiry.body)
    denied = _denied(inquiry, request.topics, replica=request.replica_id >= 0)
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        if not denied and request.session_id in sessions:
            return FORWARD
        sessions.discard(request.session_id)
        return answer(inquiry, FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    if not denied:
        if request.session_epoch == INITIAL_EPOCH:
            return Change(watch=_note_session(version, sessions))
        return FORWARD
    kept = [topic for topic in pausing(request.topics) if topic not in denied]
    if not kept:
        return answer(inquiry, FetchResponse(responses=_entries(denied)))

    def merge(response: FetchResponse) -> FetchResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        return replace(response, responses=(*response.responses, *_entries(denied)))

    return Change(
        request=keep(
            version,
            inquiry.body,
            request,
            kept,
            epoch=FINAL_EPOCH,
            max_bytes=MAX_BYTES_IN_PART,
        ),
        response=on_response(inquiry, FetchResponse, merge),
    )


def _denied(inquiry: Inquiry, topics: tuple[FetchedTopic, ...], *, replica: bool) -> Denied:
    if replica:
        if may_cluster(inquiry, Operation.CLUSTER_ACTION, report=False):
            return {}
        return dict.fromkeys(topics, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    names = names_of(inquiry.topics, (one.topic_id for one in topics if one.topic_id is not None))
    errors = (
        (one, topic_error(inquiry, Operation.READ, one.name, one.topic_id, names)) for one in topics
    )
    return {topic: error for topic, error in errors if error is not None}


def _note_session(api_version: int, sessions: FetchSessions) -> Callable[[bytes], None]:
    def note(content: bytes) -> None:
        try:
            session = session_of_response(api_version, content)
        except Malformed:  # not a session to remember
            return
        if session:
            sessions.clear()  # a connection has one session: the broker ended the previous one
            sessions.add(session)

    return note


def _entries(denied: Denied) -> tuple[FetchResponse.FetchableTopicResponse, ...]:
    return tuple(
        FetchResponse.FetchableTopicResponse(
            topic=topic.name or "",
            topic_id=topic.topic_id or NO_ID,
            partitions=tuple(
                FetchResponse.PartitionData(
                    partition_index=index,
                    error_code=error,
                    high_watermark=_UNKNOWN_OFFSET,
                )
                for index in topic.partitions
            ),
        )
        for topic, error in pausing(denied.items())
    )
