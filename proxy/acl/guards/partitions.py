"""Guards of ListOffsets, DeleteRecords, OffsetForLeaderEpoch and DescribeProducers."""

from collections.abc import Sequence
from typing import Final

from proxy.acl.decision import FORWARD, Inquiry, Judgement
from proxy.acl.guards.checks import may_cluster, may_topic
from proxy.acl.guards.responses import MESSAGES, by_topic, judge_items, read_request
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.schema import Message

_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_UNKNOWN: Final = -1
"""Kafka's low watermark if unknown."""


def list_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a ListOffsets: Describe on each topic."""
    response = messages.ListOffsetsResponse

    def refuse(topic: messages.ListOffsetsRequest.ListOffsetsTopic) -> Sequence[Message] | None:
        if may_topic(inquiry, Operation.DESCRIBE, topic.name):
            return None
        partitions = tuple(
            response.ListOffsetsPartitionResponse(
                partition_index=partition.partition_index, error_code=_DENIED
            )
            for partition in topic.partitions
        )
        return (response.ListOffsetsTopicResponse(name=topic.name, partitions=partitions),)

    request = read_request(inquiry, messages.ListOffsetsRequest)
    return judge_items(inquiry.api_version, request, response, refuse)


def delete_records(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteRecords: Delete on each topic.

    A topic or partition that is named twice has one result, as in Kafka.
    """
    response = messages.DeleteRecordsResponse
    request = read_request(inquiry, messages.DeleteRecordsRequest)
    denied = {
        topic.name: _DENIED
        for topic in pausing(request.topics)
        if not may_topic(inquiry, Operation.DELETE, topic.name)
    }
    results = dict(
        by_topic(request.topics, "name", denied, lambda partition, _: partition.partition_index)
    )

    def refuse(topic: messages.DeleteRecordsRequest.DeleteRecordsTopic) -> Sequence[Message] | None:
        if topic.name not in denied:
            return None
        if topic.name not in results:
            return ()
        partitions = tuple(
            response.DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=_UNKNOWN, error_code=_DENIED
            )
            for index in dict.fromkeys(results.pop(topic.name))
        )
        return (response.DeleteRecordsTopicResult(name=topic.name, partitions=partitions),)

    return judge_items(inquiry.api_version, request, response, refuse)


def offset_for_leader_epoch(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetForLeaderEpoch: Describe on each topic, or ClusterAction on the cluster."""
    response = messages.OffsetForLeaderEpochResponse
    if may_cluster(inquiry, Operation.CLUSTER_ACTION, report=False):
        return FORWARD

    def refuse(
        topic: messages.OffsetForLeaderEpochRequest.OffsetForLeaderTopic,
    ) -> Sequence[Message] | None:
        if may_topic(inquiry, Operation.DESCRIBE, topic.topic):
            return None
        partitions = tuple(
            response.EpochEndOffset(partition=partition.partition, error_code=_DENIED)
            for partition in topic.partitions
        )
        return (response.OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions),)

    request = read_request(inquiry, messages.OffsetForLeaderEpochRequest)
    return judge_items(inquiry.api_version, request, response, refuse)


def describe_producers(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeProducers: Read on each topic."""
    response = messages.DescribeProducersResponse

    def refuse(topic: messages.DescribeProducersRequest.TopicRequest) -> Sequence[Message] | None:
        if may_topic(inquiry, Operation.READ, topic.name):
            return None
        partitions = tuple(
            response.PartitionResponse(
                partition_index=index, error_code=_DENIED, error_message=MESSAGES[_DENIED]
            )
            for index in topic.partition_indexes
        )
        return (response.TopicResponse(name=topic.name, partitions=partitions),)

    return judge_items(
        inquiry.api_version,
        read_request(inquiry, messages.DescribeProducersRequest),
        response,
        refuse,
        order_by=("name",),
    )
