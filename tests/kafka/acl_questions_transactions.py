"""Questions about producer ids and transactions."""

from tests.kafka.acl_requests import BOTH, WITH_MISSING, ask, constant

_PRODUCER = {"producer_id": 987_654_321, "producer_epoch": 0}

ask(22, "InitProducerId, idempotent", constant(transactional_id=None, transaction_timeout=60_000))
for _name in BOTH:
    for _two_phase in (False, True):
        ask(
            22,
            f"InitProducerId of {_name}{', two phases' if _two_phase else ''}",
            lambda c, name=_name, two_phase=_two_phase: {
                "transactional_id": c.names(name),
                "transaction_timeout": 60_000,
                "enable2_pc": two_phase,
            },
            since=6 if _two_phase else 0,
        )
    ask(
        26,
        f"EndTxn of {_name}",
        lambda c, name=_name: {**_PRODUCER, "transactional_id": c.names(name), "committed": True},
    )
    for _topics in (("one",), WITH_MISSING):
        ask(
            24,
            f"AddPartitionsToTxn of {_name}: {' '.join(_topics)}",
            lambda c, name=_name, topics=_topics: {
                "v3_and_below_transactional_id": c.names(name),
                "v3_and_below_producer_id": _PRODUCER["producer_id"],
                "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": c.topics(topics, partitions=[0]),
            },
            until=3,
        )
ask(
    24,
    "AddPartitionsToTxn, batched",
    lambda c: {
        "transactions": [
            {
                **_PRODUCER,
                "transactional_id": name,
                "topics": c.topics(WITH_MISSING, partitions=[0]),
            }
            for name in c.all(BOTH)
        ]
    },
    since=4,
)
ask(
    27,
    "WriteTxnMarkers",
    lambda c: {
        "markers": [{**_PRODUCER, "topics": c.topics(("missing",), partition_indexes=[0])}],
    },
)
ask(65, "DescribeTransactions", lambda c: {"transactional_ids": c.all(WITH_MISSING)})
ask(66, "ListTransactions", constant(), is_list=True)
