"""Guards of Produce, Fetch, ShareFetch and ShareAcknowledge.

Produce requires Write on each topic, and on the transactional id. A Produce with acks=0 has no
response that could report a denial: as in Kafka, the allowed part is written, then the connection
is closed.

Fetch requires Read on each topic, or ClusterAction on the cluster, as replicas need. A fetch
session (KIP-227) names its topics once. The proxy therefore remembers the id of a session if the
ACLs in force allowed all its topics on this connection. A request for any other session is answered
with FETCH_SESSION_ID_NOT_FOUND, and the client then sends a full request. A request that is denied
in part is forwarded without a session, so that denied topics never get into one. (Kafka keeps
denied partitions in the session and denies them in each response.)

ShareFetch and ShareAcknowledge (KIP-932) require Read on the group and each topic, which they name
by id. A share session keeps fetching the topics that earlier requests added to it, so each response
is judged too: the proxy removes the records of topics that the client may no longer read, and sets
TOPIC_AUTHORIZATION_FAILED. A topic that is denied in a request never gets into a session. (Kafka
keeps it there and denies it in each response.) The rest of such a request is always forwarded, even
without any topics, because the session's epoch must advance.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from proxy.acl.decision import (
    FORWARD,
    Change,
    Close,
    FetchSessions,
    Inquiry,
    Judgement,
    TopicsUnknown,
    names_of,
)
from proxy.acl.guards.common import (
    GROUP_DENIED,
    TOPIC_DENIED,
    TRANSACTIONAL_ID_DENIED,
    adding,
    refused_topic,
    refused_topics,
    topic_error,
    topic_errors,
)
from proxy.acl.model import Operation
from proxy.scheduling.steps import pausing
from proxy.wire import fetch_requests, messages, produce_requests
from proxy.wire.error_codes import ErrorCode
from proxy.wire.fetch_requests import FINAL_EPOCH, INITIAL_EPOCH, FetchedTopic, session_of_response
from proxy.wire.messages import FetchResponse, ProduceResponse, replace
from proxy.wire.primitives import Malformed
from proxy.wire.produce_requests import ProducedTopic, ProduceRequest
from proxy.wire.schema import NO_ID

_UNKNOWN_OFFSET: Final = -1
"""Kafka's offset of a batch that was not written, and of a denied partition."""

DeniedProduce = dict[ProducedTopic, ErrorCode]
"""Errors of the topics that may not be written to."""


def produce(inquiry: Inquiry) -> Judgement:
    """Judge a Produce."""
    request = produce_requests.parse(inquiry.api_version, inquiry.body)
    denied = _denied_produce(inquiry, request)
    if not denied:
        return FORWARD
    kept = [topic for topic in pausing(request.topics) if topic not in denied]
    if not request.acks:
        if not kept:
            return Close()
        body = produce_requests.keep(inquiry.api_version, inquiry.body, request, kept)
        return Change(request=body, close=True)
    kind = ProduceResponse.TopicProduceResponse
    refused = _refused_each(kind, denied, base_offset=_UNKNOWN_OFFSET)
    if not kept:
        return inquiry.answer(ProduceResponse(responses=refused))
    return Change(
        request=produce_requests.keep(inquiry.api_version, inquiry.body, request, kept),
        response=inquiry.on_response(ProduceResponse, adding("responses", after=refused)),
    )


def _denied_produce(inquiry: Inquiry, request: ProduceRequest) -> DeniedProduce:
    if any(topic.transactional for topic in request.topics) and not _may_transact(inquiry, request):
        return dict.fromkeys(request.topics, TRANSACTIONAL_ID_DENIED)
    ids = (topic.topic_id for topic in request.topics if topic.topic_id is not None)
    names = names_of(inquiry.topics, ids)
    errors = (
        (one, topic_error(inquiry, Operation.WRITE, one.name, one.topic_id, names))
        for one in request.topics
    )
    return {topic: error for topic, error in errors if error}


def _may_transact(inquiry: Inquiry, request: ProduceRequest) -> bool:
    name = request.transactional_id
    return name is not None and inquiry.may_transact(Operation.WRITE, name)


def _refused_each(kind: Any, denied: Mapping[Any, ErrorCode], **values: Any) -> tuple[Any, ...]:
    """Return the results of refused topics; `values` as in `refused_topic`."""
    return tuple(refused_topic(kind, error, topic, **values) for topic, error in denied.items())


MAX_BYTES_IN_PART: Final = 1_048_576
"""Maximum number of bytes that a Fetch may request if its response is buffered to add denials to
it. A broker sends more if the first batch alone is longer."""

DeniedFetch = dict[FetchedTopic, ErrorCode]
"""Errors of the topics that may not be read."""


def fetch(inquiry: Inquiry) -> Judgement:
    """Judge a Fetch."""
    version, sessions = inquiry.api_version, inquiry.fetch_sessions
    request = fetch_requests.parse(version, inquiry.body)
    denied = _denied_fetch(inquiry, request.topics, replica=request.replica_id >= 0)
    sessions.used = ()
    if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
        if not denied and request.session_id in sessions:
            if sessions.topics is not None:
                sessions.used = sessions.add_topics(_names(inquiry, request.topics))
            return FORWARD
        sessions.discard(request.session_id)
        return inquiry.answer(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    if not denied:
        if request.session_epoch == INITIAL_EPOCH:
            names = [] if sessions.topics is None else _names(inquiry, request.topics)
            return Change(watch=_note_session(version, sessions, names))
        return FORWARD
    kept = [topic for topic in pausing(request.topics) if topic not in denied]
    kind = FetchResponse.FetchableTopicResponse
    refused = _refused_each(kind, denied, high_watermark=_UNKNOWN_OFFSET)
    if not kept:
        return inquiry.answer(FetchResponse(responses=refused))
    return Change(
        request=fetch_requests.keep(
            version, inquiry.body, request, kept, epoch=FINAL_EPOCH, max_bytes=MAX_BYTES_IN_PART
        ),
        response=inquiry.on_response(FetchResponse, adding("responses", after=refused)),
    )


def _denied_fetch(
    inquiry: Inquiry, topics: tuple[FetchedTopic, ...], *, replica: bool
) -> DeniedFetch:
    if replica:
        if inquiry.may_cluster(Operation.CLUSTER_ACTION, report=False):
            return {}
        return dict.fromkeys(topics, TOPIC_DENIED)
    names = names_of(inquiry.topics, (one.topic_id for one in topics if one.topic_id is not None))
    errors = (
        (one, topic_error(inquiry, Operation.READ, one.name, one.topic_id, names)) for one in topics
    )
    return {topic: error for topic, error in errors if error is not None}


def _names(inquiry: Inquiry, topics: tuple[FetchedTopic, ...]) -> list[str]:
    """Return the names of topics that were looked up."""
    ids = ((one, inquiry.topics.get(one.topic_id)) for one in topics if one.topic_id is not None)
    known = {one: name for one, name in ids if name is not None}
    return [name for one in topics if (name := one.name or known.get(one)) is not None]


def _note_session(
    api_version: int, sessions: FetchSessions, topics: list[str]
) -> Callable[[bytes], None]:
    def note(content: bytes) -> None:
        try:
            session = session_of_response(api_version, content)
        except Malformed:  # not a session to remember
            return
        if session:
            sessions.clear()  # a connection has one session: the broker ended the previous one
            sessions.add(session, topics)

    return note


_FINAL_EPOCH: Final = -1
"""Session epoch that closes a session and fetches nothing."""


def share_fetch(inquiry: Inquiry) -> Judgement:
    """Judge a ShareFetch."""
    request = inquiry.read(messages.ShareFetchRequest)
    if error := _group_error(inquiry, request.group_id):
        return inquiry.answer(messages.ShareFetchResponse(error_code=error))
    errors = topic_errors(inquiry, Operation.READ, "topic_id", request.topics)
    refused = _refused_topics(request, errors)

    def cut(response: messages.ShareFetchResponse) -> messages.ShareFetchResponse:
        if response.error_code != ErrorCode.NONE:
            return response
        hidden = {
            topic.topic_id
            for topic in response.responses
            if not _may_be_read(inquiry, topic.topic_id)
        }
        if not hidden and not refused:
            return response
        shown = (
            replace(topic, partitions=tuple(map(_emptied, topic.partitions)))
            if topic.topic_id in hidden
            else topic
            for topic in response.responses
        )
        return replace(response, responses=(*shown, *refused))

    kept = tuple(topic for topic in request.topics if topic.topic_id not in errors)
    changed = replace(request, topics=kept)
    return Change(
        request=inquiry.encoded(changed) if errors else None,
        response=inquiry.on_response(messages.ShareFetchResponse, cut),
    )


def share_acknowledge(inquiry: Inquiry) -> Judgement:
    """Judge a ShareAcknowledge."""
    request = inquiry.read(messages.ShareAcknowledgeRequest)
    if error := _group_error(inquiry, request.group_id):
        return inquiry.answer(messages.ShareAcknowledgeResponse(error_code=error))
    errors = topic_errors(inquiry, Operation.READ, "topic_id", request.topics)
    if not errors:
        return FORWARD
    response = messages.ShareAcknowledgeResponse
    kind = response.ShareAcknowledgeTopicResponse
    refused = refused_topics(kind, request.topics, "topic_id", errors)
    kept = tuple(topic for topic in pausing(request.topics) if topic.topic_id not in errors)
    return Change(
        request=inquiry.encoded(replace(request, topics=kept)),
        response=inquiry.on_response(response, adding("responses", after=refused)),
    )


def _group_error(inquiry: Inquiry, group_id: str | None) -> ErrorCode | None:
    if group_id is None:
        return ErrorCode.INVALID_REQUEST
    if not inquiry.may_group(Operation.READ, group_id):
        return GROUP_DENIED
    return None


def _may_be_read(inquiry: Inquiry, topic_id: bytes) -> bool:
    """Return whether a topic of a response may be read; False if its name is unknown.

    The ids of a session were looked up on this connection when they were added to the session.
    """
    try:
        name = None if topic_id == NO_ID else inquiry.topics[topic_id]
    except TopicsUnknown:
        return False
    return name is not None and inquiry.may_topic(Operation.READ, name)


def _refused_topics(
    request: messages.ShareFetchRequest, errors: dict[Any, ErrorCode]
) -> tuple[messages.ShareFetchResponse.ShareFetchableTopicResponse, ...]:
    acknowledges = any(
        partition.acknowledgement_batches
        for topic in request.topics
        for partition in topic.partitions
    )
    fetches = request.share_session_epoch != _FINAL_EPOCH

    def result(
        partition: messages.ShareFetchResponse.PartitionData,
    ) -> messages.ShareFetchResponse.PartitionData:
        error = partition.error_code
        return replace(
            partition,
            error_code=error if fetches else ErrorCode.NONE,
            acknowledge_error_code=error if acknowledges else ErrorCode.NONE,
        )

    kind = messages.ShareFetchResponse.ShareFetchableTopicResponse
    return tuple(
        replace(topic, partitions=tuple(map(result, topic.partitions)))
        for topic in refused_topics(kind, request.topics, "topic_id", errors)
    )


def _emptied(
    partition: messages.ShareFetchResponse.PartitionData,
) -> messages.ShareFetchResponse.PartitionData:
    """Return the result for a partition that may no longer be read."""
    return replace(
        partition,
        error_code=TOPIC_DENIED,
        error_message=None,
        current_leader=messages.ShareFetchResponse.LeaderIdAndEpoch(),
        records=b"",
        acquired_records=(),
    )
