"""Guards of InitProducerId and the APIs for transactions."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.acl.decision import FORWARD, Answer, Change, Inquiry, Judgement
from proxy.acl.guards.checks import may_cluster, may_describe, may_group, may_topic, may_transact
from proxy.acl.guards.entities import Values, entity, item_type
from proxy.acl.guards.responses import answer, interleaved, on_response, only, read_request
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.stepped_thread import pausing
from proxy.wire.apis import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
)
from proxy.wire.codec import encode, response_type

_DENIED: Final = ErrorCode.transactional_id_authorization_failed
_FIRST_BATCHED: Final = 4
"""First version of AddPartitionsToTxn with several transactions, for brokers only (KIP-890)."""
INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Internal topics (Kafka's `Topic.isInternal`), which cannot be added to a transaction."""


def init_producer_id(inquiry: Inquiry) -> Judgement:
    """Judge an InitProducerId.

    With a transactional id: Write on it, and TwoPhaseCommit for two-phase commit (KIP-939). Without
    one: Write on any topic, or IdempotentWrite on the cluster.
    """
    request = read_request(inquiry, INIT_PRODUCER_ID)
    if request.transactional_id is None:
        if may_cluster(
            inquiry, Operation.IDEMPOTENT_WRITE, report=False
        ) or inquiry.authority.may_any(Operation.WRITE, ResourceType.TOPIC):
            return FORWARD
        error = ErrorCode.cluster_authorization_failed
    else:
        needed = [Operation.WRITE]
        if getattr(request, "enable2_pc", False):
            needed.append(Operation.TWO_PHASE_COMMIT)
        if all(may_transact(inquiry, each, request.transactional_id) for each in needed):
            return FORWARD
        error = _DENIED
    return answer(
        inquiry,
        INIT_PRODUCER_ID,
        error_code=error,
        producer_id=-1,
        producer_epoch=-1,
        ongoing_txn_producer_id=-1,
        ongoing_txn_producer_epoch=-1,
    )


def add_partitions_to_txn(inquiry: Inquiry) -> Judgement:
    """Judge an AddPartitionsToTxn: Write on the transactional id and on each topic.

    One denied topic fails the whole transaction: nothing is added, and the other partitions get
    OPERATION_NOT_ATTEMPTED. Requests of version 4 and above come from brokers: ClusterAction on the
    cluster.
    """
    request = read_request(inquiry, ADD_PARTITIONS_TO_TXN)
    if inquiry.api_version >= _FIRST_BATCHED:
        if may_cluster(inquiry, Operation.CLUSTER_ACTION):
            return FORWARD
        return answer(
            inquiry,
            ADD_PARTITIONS_TO_TXN,
            error_code=ErrorCode.cluster_authorization_failed,
            results_by_transaction=[],
        )
    topics = request.v3_and_below_topics
    names = dict.fromkeys(topic.name for topic in pausing(topics))
    if not may_transact(inquiry, Operation.WRITE, request.v3_and_below_transactional_id):
        return _nothing_added(inquiry, topics, dict.fromkeys(names, _DENIED))
    # The broker refuses internal topics itself; here they must only not count as allowed
    denied = {
        name
        for name in names
        if name not in INTERNAL_TOPICS and not may_topic(inquiry, Operation.WRITE, name)
    }
    if not denied:
        return FORWARD
    refused = denied | (INTERNAL_TOPICS & names.keys())
    errors = {
        name: ErrorCode.topic_authorization_failed
        if name in refused
        else ErrorCode.operation_not_attempted
        for name in pausing(names)
    }
    return _nothing_added(inquiry, topics, errors)


def _nothing_added(inquiry: Inquiry, topics: Iterable[Any], errors: dict[str, ErrorCode]) -> Answer:
    by_topic: dict[str, list[Values]] = {}  # a topic that is named twice has one result
    for topic in pausing(topics):
        by_topic.setdefault(topic.name, []).extend(
            {"partition_index": index, "partition_error_code": errors[topic.name]}
            for index in pausing(topic.partitions)
        )
    results = [{"name": name, "results_by_partition": each} for name, each in by_topic.items()]
    return answer(inquiry, ADD_PARTITIONS_TO_TXN, results_by_topic_v3_and_below=results)


def add_offsets_to_txn(inquiry: Inquiry) -> Judgement:
    """Judge an AddOffsetsToTxn: Write on the transactional id, Read on the group."""
    request = read_request(inquiry, ADD_OFFSETS_TO_TXN)
    if not may_transact(inquiry, Operation.WRITE, request.transactional_id):
        return answer(inquiry, ADD_OFFSETS_TO_TXN, error_code=_DENIED)
    if not may_group(inquiry, Operation.READ, request.group_id):
        error = ErrorCode.group_authorization_failed
        return answer(inquiry, ADD_OFFSETS_TO_TXN, error_code=error)
    return FORWARD


def end_txn(inquiry: Inquiry) -> Judgement:
    """Judge an EndTxn: Write on the transactional id."""
    request = read_request(inquiry, END_TXN)
    if may_transact(inquiry, Operation.WRITE, request.transactional_id):
        return FORWARD
    return answer(inquiry, END_TXN, error_code=_DENIED, producer_id=-1, producer_epoch=-1)


def describe_transactions(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeTransactions: Describe on each transactional id, and on each topic in the
    response."""
    request = read_request(inquiry, DESCRIBE_TRANSACTIONS)
    ids = request.transactional_ids
    allowed = [may_transact(inquiry, Operation.DESCRIBE, name) for name in ids]
    refusals = [
        None if may else _refused_transaction(name)
        for name, may in pausing(zip(ids, allowed, strict=True))
    ]
    if refusals and not any(allowed):
        return answer(inquiry, DESCRIBE_TRANSACTIONS, transaction_states=refusals)
    item = item_type(
        response_type(DESCRIBE_TRANSACTIONS, inquiry.api_version), "transaction_states"
    )
    refused = [each and entity(item, each) for each in refusals]

    def shown(state: Any) -> Any:
        return only(state, "topics", lambda each: may_describe(inquiry, each.topic))

    kept = tuple(name for name, may in pausing(zip(ids, allowed, strict=True)) if may)
    return Change(
        request=None if all(allowed) else encode(replace(request, transactional_ids=kept)),
        response=on_response(
            inquiry,
            DESCRIBE_TRANSACTIONS,
            lambda response: replace(
                response,
                transaction_states=interleaved(refused, map(shown, response.transaction_states)),
            ),
        ),
    )


def _refused_transaction(transactional_id: str) -> Values:
    return {
        "error_code": _DENIED,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }


def list_transactions(inquiry: Inquiry) -> Judgement:
    """Judge a ListTransactions: Describe on each transactional id that is listed."""

    def may_show(state: Any) -> bool:
        return may_transact(inquiry, Operation.DESCRIBE, state.transactional_id, report=False)

    def cut(response: Any) -> Any:
        return only(response, "transaction_states", may_show)

    return Change(response=on_response(inquiry, LIST_TRANSACTIONS, cut))
