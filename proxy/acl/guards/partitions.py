"""Guards of ListOffsets, DeleteRecords, OffsetForLeaderEpoch and DescribeProducers."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Inquiry, Judgement
from proxy.acl.guards.checks import may_cluster, may_topic
from proxy.acl.guards.entities import Values
from proxy.acl.guards.responses import MESSAGES, judge_items, read_request
from proxy.acl.model import Operation
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import (
    DELETE_RECORDS,
    DESCRIBE_PRODUCERS,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
)

_DENIED: Final = ErrorCode.topic_authorization_failed
_UNKNOWN: Final = -1
"""Kafka's timestamp, offset, epoch and low watermark if unknown."""


def list_offsets(inquiry: Inquiry) -> Judgement:
    """Judge a ListOffsets: Describe on each topic."""
    request = read_request(inquiry, LIST_OFFSETS)

    def refuse(topic: Any) -> Values | None:
        if may_topic(inquiry, Operation.DESCRIBE, topic.name):
            return None
        partitions = [
            {
                "partition_index": partition.partition_index,
                "error_code": _DENIED,
                "timestamp": _UNKNOWN,
                "offset": _UNKNOWN,
            }
            for partition in pausing(topic.partitions)
        ]
        return {"name": topic.name, "partitions": partitions}

    return judge_items(
        inquiry, LIST_OFFSETS, request, items="topics", results="topics", refuse=refuse
    )


def delete_records(inquiry: Inquiry) -> Judgement:
    """Judge a DeleteRecords: Delete on each topic.

    A topic or partition that is named twice has one result, as in Kafka.
    """
    request = read_request(inquiry, DELETE_RECORDS)
    refused: dict[str, list[Values]] = {}
    seen: set[tuple[str, int]] = set()

    def refuse(topic: Any) -> Values | None:
        if may_topic(inquiry, Operation.DELETE, topic.name):
            return None
        is_first = topic.name not in refused
        results = refused.setdefault(topic.name, [])
        for partition in pausing(topic.partitions):
            index = partition.partition_index
            if (topic.name, index) not in seen:
                seen.add((topic.name, index))
                results.append(
                    {"partition_index": index, "low_watermark": _UNKNOWN, "error_code": _DENIED}
                )
        return {"name": topic.name, "partitions": results} if is_first else {}

    return judge_items(
        inquiry, DELETE_RECORDS, request, items="topics", results="topics", refuse=refuse
    )


def offset_for_leader_epoch(inquiry: Inquiry) -> Judgement:
    """Judge an OffsetForLeaderEpoch: Describe on each topic, or ClusterAction on the cluster."""
    if may_cluster(inquiry, Operation.CLUSTER_ACTION, report=False):
        return FORWARD
    request = read_request(inquiry, OFFSET_FOR_LEADER_EPOCH)

    def refuse(topic: Any) -> Values | None:
        if may_topic(inquiry, Operation.DESCRIBE, topic.topic):
            return None
        partitions = [
            {"partition": partition.partition, "error_code": _DENIED}
            for partition in pausing(topic.partitions)
        ]
        return {"topic": topic.topic, "partitions": partitions}

    return judge_items(
        inquiry, OFFSET_FOR_LEADER_EPOCH, request, items="topics", results="topics", refuse=refuse
    )


def describe_producers(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeProducers: Read on each topic."""
    request = read_request(inquiry, DESCRIBE_PRODUCERS)

    def refuse(topic: Any) -> Values | None:
        if may_topic(inquiry, Operation.READ, topic.name):
            return None
        partitions = [
            {
                "partition_index": index,
                "error_code": _DENIED,
                "error_message": MESSAGES[_DENIED],
                "active_producers": [],
            }
            for index in pausing(topic.partition_indexes)
        ]
        return {"name": topic.name, "partitions": partitions}

    return judge_items(
        inquiry,
        DESCRIBE_PRODUCERS,
        request,
        items="topics",
        results="topics",
        refuse=refuse,
        order_by=("name",),
    )
