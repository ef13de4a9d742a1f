"""Guards of InitProducerId and the APIs for transactions."""

from collections.abc import Iterable
from typing import Final

from proxy.acl.decision import FORWARD, Answer, Change, Inquiry, Judgement
from proxy.acl.guards.common import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    TOPIC_DENIED,
    TRANSACTIONAL_ID_DENIED,
    interleaved,
    only,
    refused_topics,
)
from proxy.acl.model import Operation, ResourceType
from proxy.scheduling.steps import pausing
from proxy.wire import messages
from proxy.wire.error_codes import ErrorCode
from proxy.wire.messages import replace

_FIRST_BATCHED: Final = 4
"""First version of AddPartitionsToTxn with several transactions, for brokers only (KIP-890)."""
INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Internal topics (Kafka's `Topic.isInternal`), which cannot be added to a transaction."""


def init_producer_id(inquiry: Inquiry) -> Judgement:
    """Judge an InitProducerId.

    With a transactional id, it requires Write on the id, and TwoPhaseCommit for two-phase commit
    (KIP-939). Otherwise it requires Write on any topic, or IdempotentWrite on the cluster.
    """
    request = inquiry.read(messages.InitProducerIdRequest)
    if request.transactional_id is None:
        if inquiry.cluster_permits(Operation.IDEMPOTENT_WRITE) or inquiry.authority.may_any(
            Operation.WRITE, ResourceType.TOPIC
        ):
            return FORWARD
        error = CLUSTER_DENIED
    else:
        needed = [Operation.WRITE]
        if request.enable2_pc:
            needed.append(Operation.TWO_PHASE_COMMIT)
        if all(inquiry.may_transact(each, request.transactional_id) for each in needed):
            return FORWARD
        error = TRANSACTIONAL_ID_DENIED
    return inquiry.answer(messages.InitProducerIdResponse(error_code=error, producer_epoch=-1))


def add_partitions_to_txn(inquiry: Inquiry) -> Judgement:
    """Judge an AddPartitionsToTxn: Write on the transactional id and on each topic.

    One denied topic fails the whole transaction: nothing is added, and the other partitions get
    OPERATION_NOT_ATTEMPTED. Requests of version 4 and above come from brokers and require
    ClusterAction on the cluster.
    """
    request = inquiry.read(messages.AddPartitionsToTxnRequest)
    if inquiry.api_version >= _FIRST_BATCHED:
        if inquiry.may_cluster(Operation.CLUSTER_ACTION):
            return FORWARD
        error = CLUSTER_DENIED
        return inquiry.answer(messages.AddPartitionsToTxnResponse(error_code=error))
    topics = request.v3_and_below_topics
    names = dict.fromkeys(topic.name for topic in pausing(topics))
    if not inquiry.may_transact(Operation.WRITE, request.v3_and_below_transactional_id):
        return _nothing_added(inquiry, topics, dict.fromkeys(names, TRANSACTIONAL_ID_DENIED))
    # The broker refuses internal topics itself; they only must not count as allowed here
    denied = {
        name
        for name in names
        if name not in INTERNAL_TOPICS and not inquiry.may_topic(Operation.WRITE, name)
    }
    if not denied:
        return FORWARD
    refused = denied | (INTERNAL_TOPICS & names.keys())
    errors = {
        name: TOPIC_DENIED if name in refused else ErrorCode.OPERATION_NOT_ATTEMPTED
        for name in pausing(names)
    }
    return _nothing_added(inquiry, topics, errors)


def _nothing_added(
    inquiry: Inquiry,
    topics: Iterable[messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic],
    errors: dict[str, ErrorCode],
) -> Answer:
    response = messages.AddPartitionsToTxnResponse
    results = refused_topics(response.AddPartitionsToTxnTopicResult, topics, "name", errors)
    return inquiry.answer(response(results_by_topic_v3_and_below=results))


def add_offsets_to_txn(inquiry: Inquiry) -> Judgement:
    """Judge an AddOffsetsToTxn: Write on the transactional id, Read on the group."""
    request = inquiry.read(messages.AddOffsetsToTxnRequest)
    if not inquiry.may_transact(Operation.WRITE, request.transactional_id):
        return inquiry.answer(messages.AddOffsetsToTxnResponse(error_code=TRANSACTIONAL_ID_DENIED))
    if not inquiry.may_group(Operation.READ, request.group_id):
        error = GROUP_DENIED
        return inquiry.answer(messages.AddOffsetsToTxnResponse(error_code=error))
    return FORWARD


def end_txn(inquiry: Inquiry) -> Judgement:
    """Judge an EndTxn: Write on the transactional id."""
    request = inquiry.read(messages.EndTxnRequest)
    if inquiry.may_transact(Operation.WRITE, request.transactional_id):
        return FORWARD
    return inquiry.answer(messages.EndTxnResponse(error_code=TRANSACTIONAL_ID_DENIED))


def describe_transactions(inquiry: Inquiry) -> Judgement:
    """Judge a DescribeTransactions: Describe on each transactional id, and on each topic in the
    response."""
    state = messages.DescribeTransactionsResponse.TransactionState
    request = inquiry.read(messages.DescribeTransactionsRequest)
    refused = [
        None
        if inquiry.may_transact(Operation.DESCRIBE, name)
        else state(transactional_id=name, error_code=TRANSACTIONAL_ID_DENIED)
        for name in request.transactional_ids
    ]
    if refused and all(refused):
        states = tuple(one for one in refused if one is not None)
        return inquiry.answer(messages.DescribeTransactionsResponse(transaction_states=states))

    def shown(
        state: messages.DescribeTransactionsResponse.TransactionState,
    ) -> messages.DescribeTransactionsResponse.TransactionState:
        return only(state, "topics", lambda each: inquiry.may_describe(each.topic))

    ids = pausing(zip(request.transactional_ids, refused, strict=True))
    kept = replace(request, transactional_ids=tuple(name for name, no in ids if no is None))
    return Change(
        request=inquiry.encoded(kept) if any(refused) else None,
        response=inquiry.on_response(
            messages.DescribeTransactionsResponse,
            lambda response: replace(
                response,
                transaction_states=interleaved(refused, map(shown, response.transaction_states)),
            ),
        ),
    )


def list_transactions(inquiry: Inquiry) -> Judgement:
    """Judge a ListTransactions: Describe on each transactional id that is listed."""

    def may_show(state: messages.ListTransactionsResponse.TransactionState) -> bool:
        return inquiry.may_transact(Operation.DESCRIBE, state.transactional_id, report=False)

    def cut(response: messages.ListTransactionsResponse) -> messages.ListTransactionsResponse:
        return only(response, "transaction_states", may_show)

    return Change(response=inquiry.on_response(messages.ListTransactionsResponse, cut))
