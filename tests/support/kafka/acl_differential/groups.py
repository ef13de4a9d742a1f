"""Questions about groups and transactions."""

import base64
import re
import uuid
from typing import Any

from tests.support.kafka.acl_differential.requests import BOTH, WITH_MISSING, Context, ask, constant

_NOBODY = "nobody"
_COMMITTED = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
_PRODUCER = {"producer_id": 987_654_321, "producer_epoch": 0}

for _group in WITH_MISSING:
    ask(
        8,
        f"OffsetCommit to {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "topics": c.topics(WITH_MISSING, partitions=_COMMITTED),
        },
    )
    ask(
        9,
        f"OffsetFetch of {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "topics": c.topics(WITH_MISSING, partition_indexes=[0]),
        },
        until=7,
    )
    ask(
        9,
        f"OffsetFetch of {_group}, all topics",
        lambda c, group=_group: {"group_id": c.names(group), "topics": None},
        since=2,
        until=7,
    )
    ask(
        13,
        f"LeaveGroup {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "member_id": _NOBODY,
            "members": [{"member_id": _NOBODY}],
        },
    )
    ask(
        12,
        f"Heartbeat to {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "generation_id": 1,
            "member_id": _NOBODY,
        },
    )
    ask(
        11,
        f"JoinGroup {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": _NOBODY,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    )
    ask(
        14,
        f"SyncGroup {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "generation_id": 1,
            "member_id": _NOBODY,
            "protocol_type": "consumer",
            "protocol_name": "range",
        },
    )
    ask(
        28,
        f"TxnOffsetCommit to {_group}",
        lambda c, group=_group: {
            **_PRODUCER,
            "transactional_id": c.names("one"),
            "group_id": c.names(group),
            "topics": c.topics(WITH_MISSING, partitions=_COMMITTED),
        },
    )
    ask(
        25,
        f"AddOffsetsToTxn of {_group}",
        lambda c, group=_group: {
            **_PRODUCER,
            "transactional_id": c.names("one"),
            "group_id": c.names(group),
        },
    )


def _offsets_of_groups(context: Context, *, of_all: bool) -> dict[str, Any]:
    topics = None if of_all else context.topics(WITH_MISSING, partition_indexes=[0])
    groups = [{"group_id": name, "topics": topics} for name in context.all(WITH_MISSING)]
    return {"groups": groups}


ask(9, "OffsetFetch of groups", lambda c: _offsets_of_groups(c, of_all=False), since=8)
ask(9, "OffsetFetch of groups, all topics", lambda c: _offsets_of_groups(c, of_all=True), since=8)

for _key_type, _kind in enumerate(("group", "transactional id", "share partition")):
    ask(
        10,
        f"FindCoordinator of a {_kind}",
        lambda c, key_type=_key_type: {"key": c.names("one"), "key_type": key_type},
        until=3,
    )
    ask(
        10,
        f"FindCoordinator of the other {_kind}",
        lambda c, key_type=_key_type: {"key": c.names("two"), "key_type": key_type},
        until=3,
    )
    ask(
        10,
        f"FindCoordinator of {_kind}s",
        lambda c, key_type=_key_type: {
            "key_type": key_type,
            "coordinator_keys": [
                f"{name}:AAAAAAAAAAAAAAAAAAAAAQ:0" if key_type == 2 else name
                for name in c.all(WITH_MISSING)
            ],
        },
        since=4,
    )

ask(15, "DescribeGroups", lambda c: {"groups": c.all(WITH_MISSING)})
ask(
    15,
    "DescribeGroups with operations",
    lambda c: {"groups": c.all(WITH_MISSING), "include_authorized_operations": True},
    since=3,
)
ask(16, "ListGroups", constant(), is_list=True)
ask(16, "ListGroups that are empty", constant(states_filter=["Empty"]), since=4, is_list=True)
ask(
    42,
    "DeleteGroups",
    lambda c: {
        "groups_names": c.all((f"one.d{c.version}", f"two.d{c.version}", "missing")),
    },
)
for _group in BOTH:
    ask(
        47,
        f"OffsetDelete of {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "topics": c.topics(WITH_MISSING, partitions=[{"partition_index": 3}]),
        },
    )


def _heartbeat(context: Context, group: str, **more: Any) -> dict[str, Any]:
    return {
        "group_id": context.names(group),
        "member_id": _NOBODY,
        "member_epoch": 7,
        **more,
    }


def _regex(context: Context, beginning: str, rest: str) -> str:
    return re.escape(context.names(beginning)) + rest if beginning else rest


for _group in ("one.cg", "two.cg", "missing"):
    for _topic in BOTH:
        ask(
            68,
            f"ConsumerGroupHeartbeat of {_group} with topic {_topic}",
            lambda c, group=_group, topic=_topic: _heartbeat(
                c, group, subscribed_topic_names=[c.names(topic)]
            ),
        )
    for _beginning, _rest in (("", ".*"), ("on", ".*"), ("one", "")):
        ask(
            68,
            f"ConsumerGroupHeartbeat of {_group} with a regex: {_beginning}{_rest}",
            lambda c, group=_group, beginning=_beginning, rest=_rest: _heartbeat(
                c, group, subscribed_topic_regex=_regex(c, beginning, rest)
            ),
            since=1,
        )
    ask(68, f"ConsumerGroupHeartbeat of {_group}", lambda c, g=_group: _heartbeat(c, g))
for _include in (False, True):
    _more = " with operations" if _include else ""
    ask(
        69,
        f"ConsumerGroupDescribe{_more}",
        lambda c, include=_include: {
            "group_ids": c.all(("one.cg", "two.cg", "one", "missing")),
            "include_authorized_operations": include,
        },
    )
    ask(
        77,
        f"ShareGroupDescribe{_more}",
        lambda c, include=_include: {
            "group_ids": c.all(("one.sg", "two.sg", "one", "missing")),
            "include_authorized_operations": include,
        },
    )

# --- share groups


def _share_member(number: int) -> str:
    return base64.urlsafe_b64encode(uuid.UUID(int=number).bytes).rstrip(b"=").decode()


ask(
    78,
    "ShareFetch of an unknown id",
    lambda c: {
        "group_id": c.names("one.sg"),
        "member_id": _share_member(100 + c.version),
        "share_session_epoch": 0,
        "topics": c.topics(("missing",), partitions=[{"partition_index": 0}]),
    },
)
for _group in ("one.sg", "two.sg"):
    ask(
        76,
        f"ShareGroupHeartbeat of {_group}",
        lambda c, group=_group: _heartbeat(c, group, subscribed_topic_names=c.all(BOTH)),
    )
    ask(
        76,
        f"ShareGroupHeartbeat of {_group} with one topic",
        lambda c, group=_group: _heartbeat(c, group, subscribed_topic_names=[c.names("one")]),
    )
    ask(
        78,
        f"ShareFetch by {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "member_id": _share_member(c.version),
            "share_session_epoch": 0,
            "max_bytes": 1 << 20,
            "max_records": 1,
            "batch_size": 1,
            "topics": c.topics(BOTH, partitions=[{"partition_index": 0}]),
        },
    )
    ask(
        78,
        f"ShareFetch by {_group} without a session",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "member_id": _share_member(99),
            "share_session_epoch": 9,
            "max_bytes": 1 << 20,
            "max_records": 1,
            "batch_size": 1,
        },
    )
    ask(
        79,
        f"ShareAcknowledge by {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "member_id": _share_member(99),
            "share_session_epoch": 9,
            "topics": c.topics(BOTH, partitions=[{"partition_index": 0}]),
        },
    )
    ask(
        91,
        f"AlterShareGroupOffsets of {_group}",
        lambda c, group=_group: {
            "group_id": c.names(group),
            "topics": c.topics(
                WITH_MISSING, partitions=[{"partition_index": 0, "start_offset": 0}]
            ),
        },
    )
    ask(
        92,
        f"DeleteShareGroupOffsets of {_group}",
        lambda c, group=_group: {"group_id": c.names(group), "topics": c.topics(WITH_MISSING)},
    )
ask(
    90,
    "DescribeShareGroupOffsets",
    lambda c: {
        "groups": [
            {"group_id": c.names(group), "topics": c.topics(WITH_MISSING, partitions=[0])}
            for group in ("one.sg", "two.sg", "missing")
        ]
    },
)
ask(
    90,
    "DescribeShareGroupOffsets of all topics",
    lambda c: {
        "groups": [{"group_id": c.names(group), "topics": None} for group in ("one.sg", "two.sg")]
    },
)

# --- streams groups


def _topology(context: Context, group: str, topic: str) -> dict[str, Any]:
    subtopology = {
        "subtopology_id": "0",
        "source_topics": [context.names(topic)],
        # The answer lists them in the order of a hash: one is enough.
        "repartition_source_topics": [
            {"name": context.names(f"{topic}.{group}.re"), "partitions": 1}
        ],
    }
    return {"epoch": 1, "subtopologies": [subtopology]}


for _group in ("one.st", "two.st"):
    ask(88, f"StreamsGroupHeartbeat of {_group}", lambda c, g=_group: _heartbeat(c, g))
    for _topic in BOTH:
        ask(
            88,
            f"StreamsGroupHeartbeat of {_group} with topic {_topic}",
            lambda c, group=_group, topic=_topic: _heartbeat(
                c,
                group,
                member_id=f"with-{topic}",
                member_epoch=0,
                rebalance_timeout=60_000,
                process_id="process",
                topology=_topology(c, group, topic),
                active_tasks=[],
                standby_tasks=[],
                warmup_tasks=[],
            ),
        )
for _include in (False, True):
    _more = " with operations" if _include else ""
    ask(
        89,
        f"StreamsGroupDescribe{_more}",
        lambda c, include=_include: {
            "group_ids": c.all(("one.st", "two.st", "one", "missing")),
            "include_authorized_operations": include,
        },
    )


# Questions about producer ids and transactions

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
