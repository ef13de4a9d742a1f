"""Questions about topics and their records."""

from typing import Any

from tests.support.kafka.acl_differential.profiles import DELETERS
from tests.support.kafka.acl_differential.requests import BOTH, WITH_MISSING, Context, ask, constant
from tests.support.kafka.wire_client import record_batch

_BATCH = record_batch(b"value")
_MAX_BYTES = 1 << 20


def _produced(context: Context, shorts: tuple[str, ...]) -> dict[str, Any]:
    partitions = [{"index": 0, "records": _BATCH}]
    return {
        "acks": -1,
        "timeout": 10_000,
        "topic_data": context.topics(shorts, partition_data=partitions),
    }


ask(0, "Produce", lambda c: _produced(c, WITH_MISSING), since=3)
ask(0, "Produce to one", lambda c: _produced(c, ("one",)), since=3)
ask(0, "Produce nothing", lambda c: _produced(c, ()), since=3)
ask(
    0,
    "Produce to a partition that is missing",
    lambda c: (
        _produced(c, BOTH)
        | {"topic_data": c.topics(BOTH, partition_data=[{"index": 7, "records": _BATCH}])}
    ),
    since=3,
)


def _fetched(context: Context, shorts: tuple[str, ...], **more: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": _MAX_BYTES}
    return {
        "replica_id": -1,
        "max_bytes": _MAX_BYTES,
        "session_epoch": -1,
        "topics": context.topics(shorts, partitions=[partition]),
        **more,
    }


ask(1, "Fetch", lambda c: _fetched(c, WITH_MISSING))
ask(1, "Fetch two", lambda c: _fetched(c, ("two",)))
ask(1, "Fetch as follower", lambda c: _fetched(c, BOTH, replica_id=9), until=14)
ask(
    1,
    "Fetch as follower",
    lambda c: _fetched(c, BOTH, replica_state={"replica_id": 9, "replica_epoch": 1}),
    since=15,
)
ask(1, "Fetch nothing", lambda c: _fetched(c, ()))

for _timestamp, _word in ((-1, "latest"), (-2, "earliest"), (0, "by time")):
    ask(
        2,
        f"ListOffsets {_word}",
        lambda c, timestamp=_timestamp: {
            "replica_id": -1,
            "topics": c.topics(
                WITH_MISSING, partitions=[{"partition_index": 0, "timestamp": timestamp}]
            ),
        },
    )


def _metadata(context: Context, shorts: tuple[str, ...], **more: Any) -> dict[str, Any]:
    topics = [{"name": context.names(short), "topic_id": None} for short in shorts]
    return {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        **more,
    }


_OPERATIONS = {
    "include_topic_authorized_operations": True,
    "include_cluster_authorized_operations": True,
}
ask(3, "Metadata", lambda c: _metadata(c, WITH_MISSING), since=4)
ask(3, "Metadata", lambda c: _metadata(c, BOTH), until=3)
ask(3, "Metadata of nothing", lambda c: _metadata(c, ()), since=1)
ask(3, "Metadata of two", lambda c: _metadata(c, ("two",)))
ask(3, "Metadata of an invalid name", lambda c: _metadata(c, ("in/valid",)), since=4)
ask(3, "Metadata with operations", lambda c: _metadata(c, BOTH, **_OPERATIONS), since=8)
ask(
    3,
    "Metadata of all",
    lambda c: _metadata(c, ()) | {"topics": None},
    since=1,
    is_list=True,
)
ask(3, "Metadata of all", lambda c: _metadata(c, ()), until=0, is_list=True)
ask(
    3,
    "Metadata of all with operations",
    lambda c: _metadata(c, (), **_OPERATIONS) | {"topics": None},
    since=8,
    is_list=True,
)
ask(
    3,
    "Metadata by id",
    lambda c: (
        _metadata(c, ())
        | {"topics": [{"topic_id": t["topic_id"], "name": None} for t in c.topics(WITH_MISSING)]}
    ),
    since=12,
)
ask(
    3,
    "Metadata by id, name given too",
    lambda c: _metadata(c, ()) | {"topics": c.topics(BOTH)},
    since=10,
)

ask(
    21,
    "DeleteRecords",
    lambda c: {
        "topics": c.topics(WITH_MISSING, partitions=[{"partition_index": 0, "offset": 0}]),
        "timeout": 10_000,
    },
)
ask(
    23,
    "OffsetForLeaderEpoch",
    lambda c: {
        "replica_id": -1,
        "topics": c.topics(WITH_MISSING, partitions=[{"partition": 0, "leader_epoch": 0}]),
    },
)
ask(
    23,
    "OffsetForLeaderEpoch as follower",
    lambda c: {
        "replica_id": 9,
        "topics": c.topics(BOTH, partitions=[{"partition": 0, "leader_epoch": 0}]),
    },
)
ask(
    61,
    "DescribeProducers",
    lambda c: {"topics": c.topics(WITH_MISSING, partition_indexes=[0])},
)
ask(75, "DescribeTopicPartitions", lambda c: {"topics": c.topics(WITH_MISSING)})
ask(75, "DescribeTopicPartitions of all", constant(topics=()), is_list=True)
for _first, _partition in (("missing", 0), ("one", 0), ("one", 1), ("two", 0), ("two", -1)):
    ask(
        75,
        f"DescribeTopicPartitions of all from {_first} {_partition} on",
        lambda c, first=_first, partition=_partition: {
            "topics": (),
            "response_partition_limit": 1,
            "cursor": {"topic_name": c.names(first), "partition_index": partition},
        },
        is_list=True,
    )
ask(
    75,
    "DescribeTopicPartitions behind a cursor",
    lambda c: {
        "topics": c.topics(BOTH),
        "cursor": {"topic_name": c.names("two"), "partition_index": 0},
    },
)
ask(
    75,
    "DescribeTopicPartitions with a limit",
    lambda c: {"topics": c.topics(BOTH), "response_partition_limit": 1},
)


def _created(context: Context, **more: Any) -> dict[str, Any]:
    topics = [
        {"name": context.names(short), "num_partitions": 1, "replication_factor": 1}
        for short in ("one.new", "two.new", "one")
    ]
    return {"topics": topics, "timeout": 10_000, "validate_only": True, **more}


ask(19, "CreateTopics, validated only", _created)
ask(
    19,
    "CreateTopics twice the same",
    lambda c: _created(c) | {"topics": [_created(c)["topics"][0]] * 2},
)
ask(37, "CreatePartitions, validated only", lambda c: _partitions(c, validate_only=True))
ask(37, "CreatePartitions: not more", lambda c: _partitions(c) | {"validate_only": False})


def _partitions(context: Context, **more: Any) -> dict[str, Any]:
    count = 2 if more.get("validate_only") else 1
    return {"topics": context.topics(WITH_MISSING, count=count), "timeout": 10_000, **more}


ask(
    43,
    "ElectLeaders",
    lambda c: {"topic_partitions": c.topics(WITH_MISSING, partitions=[0]), "timeout": 10_000},
)
ask(
    45,
    "AlterPartitionReassignments: cancelled",
    lambda c: {
        "topics": c.topics(BOTH, partitions=[{"partition_index": 0, "replicas": None}]),
        "timeout": 10_000,
    },
)
ask(
    46,
    "ListPartitionReassignments",
    lambda c: {"topics": c.topics(BOTH, partition_indexes=[0]), "timeout": 10_000},
)
ask(46, "ListPartitionReassignments of all", constant(topics=None, timeout=10_000))
ask(
    34,
    "AlterReplicaLogDirs",
    lambda c: {"dirs": [{"path": "/nowhere", "topics": c.topics(BOTH, partitions=[0])}]},
)
ask(35, "DescribeLogDirs", lambda c: {"topics": c.topics(BOTH, partitions=[0])}, is_list=True)
ask(35, "DescribeLogDirs of all", constant(topics=None), is_list=True)

# Last: their logs vanish from lists some time later.

_FORK_OF_VERSION = {1: ".d1", 5: ".d5", 6: ".d6"}


def _deleted(context: Context) -> dict[str, Any]:
    fork = _FORK_OF_VERSION[context.version]
    names = [context.names(short) for short in (f"one{fork}", f"two{fork}", "missing")]
    return {
        "topic_names": names,
        "topics": [{"name": name, "topic_id": None} for name in names],
        "timeout": 10_000,
    }


def _deleted_by_id(context: Context) -> dict[str, Any]:
    topics = [
        {"name": None, "topic_id": context.side.topic_id(context.names(short))}
        for short in ("one.id", "two.id", "missing")
    ]
    return {"topics": topics, "timeout": 10_000}


ask(20, "DeleteTopics", _deleted, until=1, profiles=DELETERS)
ask(20, "DeleteTopics", _deleted, since=5, profiles=DELETERS)
ask(20, "DeleteTopics by id", _deleted_by_id, since=6, profiles=DELETERS)
