"""Guard of Fetch: Read on each topic, or ClusterAction on the cluster, as replicas need.

A fetch session (KIP-227) names its topics once. A session is therefore remembered by its id, and
only if everything in it was allowed on this connection by the ACLs in force. Any other is answered
with FETCH_SESSION_ID_NOT_FOUND, whereupon the client sends a full request. A request of which a
part is denied is forwarded without a session: nothing that is denied ever gets into one. (Kafka
keeps denied partitions in the session and denies them in each response.)
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import (
    FORWARD,
    Change,
    FetchSessions,
    Inquiry,
    Judgement,
    names_of,
)
from proxy.acl.guards.checks import may_cluster, topic_error
from proxy.acl.guards.entities import item_type, make, uuid_or_none
from proxy.acl.guards.responses import answer, on_response
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import FETCH
from proxy.wire.codec import response_type
from proxy.wire.fetch_bounds import FINAL_EPOCH, INITIAL_EPOCH
from proxy.wire.fetch_requests import FetchedTopic, keep, parse, session_of_response
from proxy.wire.primitives import Malformed

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
        error = ErrorCode.fetch_session_id_not_found
        return answer(inquiry, FETCH, error_code=error, responses=())
    if not denied:
        if request.session_epoch == INITIAL_EPOCH:
            return Change(watch=_note_session(version, sessions))
        return FORWARD
    kept = [topic for topic in pausing(request.topics) if topic not in denied]
    if not kept:
        return answer(
            inquiry, FETCH, error_code=ErrorCode.none, responses=_entries(version, denied)
        )

    def merge(response: Any) -> Any:
        if getattr(response, "error_code", ErrorCode.none) is not ErrorCode.none:
            return response
        return replace(response, responses=(*response.responses, *_entries(version, denied)))

    return Change(
        request=keep(
            version,
            inquiry.body,
            request,
            kept,
            epoch=FINAL_EPOCH,
            max_bytes=MAX_BYTES_IN_PART,
        ),
        response=on_response(inquiry, FETCH, merge),
    )


def _denied(inquiry: Inquiry, topics: tuple[FetchedTopic, ...], *, replica: bool) -> Denied:
    if replica:
        if may_cluster(inquiry, Operation.CLUSTER_ACTION, report=False):
            return {}
        return dict.fromkeys(topics, ErrorCode.topic_authorization_failed)
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


def _entries(api_version: int, denied: Denied) -> tuple[Any, ...]:
    topic_type = item_type(response_type(FETCH, api_version), "responses")
    partition_type = item_type(topic_type, "partitions")
    return tuple(
        make(
            topic_type,
            topic=topic.name,
            topic_id=uuid_or_none(topic.topic_id),
            partitions=tuple(
                make(
                    partition_type,
                    partition_index=index,
                    error_code=error,
                    high_watermark=_UNKNOWN_OFFSET,
                    last_stable_offset=_UNKNOWN_OFFSET,
                    aborted_transactions=(),
                    records=b"",
                )
                for index in pausing(topic.partitions)
            ),
        )
        for topic, error in pausing(denied.items())
    )
