"""Requests of the differential test of ACLs, as a table: one row per request, all versions.

A question names `one` and `two`, of which a profile may have rights to both, one or none, and
where it matters something that does not exist.
"""

import base64
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tests.support.acls import asking
from tests.support.kafka.acl_differential.profiles import DELETERS, Names, as_filter, creation
from tests.support.kafka.acl_differential.side import Side
from tests.support.kafka.wire_client import record_batch
from tests.support.messages import Values

_TWO = ("one", "two")
_THREE = ("one", "two", "missing")


@dataclass(frozen=True, slots=True)
class Context:
    """The names and the server of a question."""

    names: Names
    side: Side
    version: int

    def topics(self, shorts: Sequence[str], **more: Any) -> list[dict[str, Any]]:
        """Items of topics, by name and by id under whatever name a version has for them."""
        return [self.topic(short, **more) for short in shorts]

    def topic(self, short: str, **more: Any) -> dict[str, Any]:
        """One item."""
        name = self.names(short)
        return {
            "name": name,
            "topic": name,
            "topic_name": name,
            "topic_id": self.side.topic_id(name),
            **more,
        }

    def all(self, shorts: Sequence[str] = _TWO) -> list[str]:
        """Whole names."""
        return [self.names(short) for short in shorts]


Build = Callable[..., Any]
"""Given a `Context`; what rows of a loop have of their own are defaults of further arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One row."""

    api_key: int
    label: str
    build: Build
    versions: Callable[[int], bool]
    """The versions to ask."""
    is_list: bool
    """It asks for everything there is."""
    profiles: Sequence[str] | None
    """The askers; None for all."""


QUESTIONS: list[Question] = []


def ask(
    api_key: int,
    label: str,
    *,
    since: int = 0,
    until: int = 99,
    is_list: bool = False,
    profiles: Sequence[str] | None = None,
) -> Callable[..., None]:
    """Return a function that adds the row: with a `Build`, or with the fields of the request.

    Fields that are functions are called with the context.
    """

    def of(build: Build | None = None, **fields: Any) -> None:
        def of_fields(context: Context) -> Values:
            return {name: one(context) if callable(one) else one for name, one in fields.items()}

        question = Question(
            api_key=api_key,
            label=label,
            build=build or of_fields,
            versions=lambda version: since <= version <= until,
            is_list=is_list,
            profiles=profiles,
        )
        QUESTIONS.append(question)

    return of


def named(short: str) -> Build:
    """A name of the profile."""
    return lambda c: c.names(short)


def topics(shorts: Sequence[str], **more: Any) -> Build:
    """Items of topics."""
    return lambda c: c.topics(shorts, **more)


def all_of(shorts: Sequence[str] = _TWO) -> Build:
    """Names of the profile."""
    return lambda c: c.all(shorts)


BOTH, WITH_MISSING = _TWO, _THREE


# The cluster and its configuration, and the ACL APIs themselves

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_KEY = {
    _TOPIC: "retention.ms",
    _BROKER: "log.cleaner.threads",
    _GROUP: "consumer.session.timeout.ms",
}


def _resources(context: Context, *types: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for kind in types:
        if kind in (_TOPIC, _GROUP, _CLIENT_METRICS):
            names = [context.names(each) for each in WITH_MISSING]
        else:
            names = ["1"]
        found += [{"resource_type": kind, "resource_name": name} for name in names]
    return found


# --- ACLs


def _entry(context: Context, acl: str, user: str = "someone") -> dict[str, Any]:
    return dict(creation(acl, f"{context.names.user}.{user}", context.names))


_ENTRIES = ("+topic:acl:READ", "-topic:acl:WRITE", "+topic:ac^:READ@10.0.0.1", "+group:acl:DELETE")
_ODD = (
    {"resource_type": 1},
    {"resource_type": 99},
    {"operation": 1},
    {"operation": 99},
    {"permission_type": 1},
    {"permission_type": 99},
    {"principal": "nobody"},
    {"principal": ""},
    {"resource_name": ""},
    {"resource_type": 4},
    {"host": ""},
    {"host": "no host"},
    {"operation": 12},
)


def _filter_field(name: str) -> str:
    return name if name in ("operation", "permission_type") else f"{name}_filter"


ask(30, "CreateAcls")(lambda c: {"creations": [_entry(c, acl) for acl in _ENTRIES]})
ask(30, "CreateAcls of nothing")(creations=())
for _odd in _ODD:
    if _odd == {"host": ""}:
        continue  # the proxy refuses it as Kafka does since 4.4: not as an older judge
    ask(
        30,
        f"CreateAcls, one of two odd: {_odd}",
        since=3,
        profiles=("all", "none", "cluster-alter"),
    )(
        lambda c, odd=_odd: {
            "creations": [_entry(c, _ENTRIES[0]), {**_entry(c, _ENTRIES[1]), **odd}]
        }
    )

# --- configuration

_CONFIGURED = (("topics", (_TOPIC,)), ("the broker", (_BROKER,)), ("both", (_TOPIC, _BROKER)))
for _word, _types in (
    *_CONFIGURED,
    ("groups", (_GROUP,)),
    ("client metrics", (_CLIENT_METRICS,)),
    ("loggers", (_BROKER_LOGGER,)),
):
    ask(32, f"DescribeConfigs of {_word}")(
        lambda c, types=_types: {
            "resources": [
                {**each, "configuration_keys": [_KEY.get(each["resource_type"], "kafka.none")]}
                for each in _resources(c, *types)
            ]
        }
    )
for _word, _types in (*_CONFIGURED, ("groups", (_GROUP,)), ("client metrics", (_CLIENT_METRICS,))):
    ask(44, f"IncrementalAlterConfigs of {_word}, validated only")(
        lambda c, types=_types: {
            "resources": [
                {
                    **each,
                    "configs": [
                        {
                            "name": _KEY.get(each["resource_type"], "interval.ms"),
                            "config_operation": 1,
                            "value": None,
                        }
                    ],
                }
                for each in _resources(c, *types)
            ],
            "validate_only": True,
        }
    )
for _word, _types in _CONFIGURED:
    ask(33, f"AlterConfigs of {_word}, validated only")(
        lambda c, types=_types: {
            "resources": [{**each, "configs": []} for each in _resources(c, *types)],
            "validate_only": True,
        }
    )
ask(33, "AlterConfigs of two")(
    lambda c: {
        "resources": [
            {**each, "configs": [{"name": "retention.ms", "value": "777777777"}]}
            for each in _resources(c, _TOPIC)[:2]
        ]
    }
)

ask(48, "DescribeClientQuotas")(components=(), strict=True)
ask(55, "DescribeQuorum")(
    topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
)
ask(57, "UpdateFeatures of none")(timeout=10_000, validate_only=True)
ask(57, "UpdateFeatures, validated only")(
    timeout=10_000,
    validate_only=True,
    feature_updates=[{"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}],
)
for _include in (False, True):
    ask(60, f"DescribeCluster{' with operations' if _include else ''}")(
        include_cluster_authorized_operations=_include, endpoint_type=1
    )
ask(64, "UnregisterBroker")(broker_id=77)
ask(94, "UnregisterController")(controller_id=77)
ask(71, "GetTelemetrySubscriptions")()
ask(72, "PushTelemetry")(metrics=b"")
ask(74, "ListConfigResources", is_list=True)(resource_types=())
ask(74, "ListConfigResources of metrics", since=1)(resource_types=[16])
ask(74, "ListConfigResources of groups", since=1)(resource_types=[32])
ask(80, "AddRaftVoter")(cluster_id="another", voter_id=77, listeners=())
ask(81, "RemoveRaftVoter")(cluster_id="another", voter_id=77)

# --- ACLs again, when the broker has learnt of them

for _type, _pattern in product((1, 2, 3), (1, 2, 3, 4)):
    ask(
        29,
        f"DescribeAcls of type {_type} by pattern {_pattern}",
        profiles=("all", "none", "one", "cluster-describe", "cluster-alter", "deny-all"),
    )(
        lambda c, kind=_type, pattern=_pattern: {
            **asking(),
            "resource_type_filter": kind,
            "resource_name_filter": c.names("acl"),
            "pattern_type_filter": pattern,
            "principal_filter": f"User:{c.names.user}.someone",
        }
    )
ask(29, "DescribeAcls of one user")(
    lambda c: {**asking(), "principal_filter": f"User:{c.names.user}.someone"}
)
for _operation in (2, 3, 4, 8):
    ask(29, f"DescribeAcls of operation {_operation}", profiles=("all",))(
        lambda c, operation=_operation: {
            **asking(),
            "operation": operation,
            "principal_filter": f"User:{c.names.user}.someone",
        }
    )
for _odd in _ODD:
    ask(29, f"DescribeAcls, odd: {_odd}", since=3, profiles=("all", "none", "cluster-describe"))(
        lambda c, odd=_odd: {
            **as_filter(_entry(c, _ENTRIES[0])),
            **{_filter_field(name): value for name, value in odd.items()},
        }
    )

ask(31, "DeleteAcls")(
    lambda c: {
        "filters": [
            as_filter(_entry(c, _ENTRIES[0])),
            as_filter(_entry(c, "+topic:never:READ")),
            {**asking(), "principal_filter": f"User:{c.names.user}.someone"},
        ]
    }
)
ask(31, "DeleteAcls of nothing")(filters=())
for _odd in _ODD:
    ask(
        31,
        f"DeleteAcls, one of two odd: {_odd}",
        since=3,
        profiles=("all", "none", "cluster-alter"),
    )(
        lambda c, odd=_odd: {
            "filters": [
                as_filter(_entry(c, "+topic:acl:CREATE")),
                {
                    **as_filter(_entry(c, "+topic:acl:ALTER")),
                    **{_filter_field(name): value for name, value in odd.items()},
                },
            ]
        }
    )


# Topics and their records

_BATCH = record_batch(b"value")
_MAX_BYTES = 1 << 20


def _produced(context: Context, shorts: tuple[str, ...]) -> dict[str, Any]:
    partitions = [{"index": 0, "records": _BATCH}]
    return {
        "acks": -1,
        "timeout": 10_000,
        "topic_data": context.topics(shorts, partition_data=partitions),
    }


ask(0, "Produce", since=3)(lambda c: _produced(c, WITH_MISSING))
ask(0, "Produce to one", since=3)(lambda c: _produced(c, ("one",)))
ask(0, "Produce nothing", since=3)(lambda c: _produced(c, ()))
ask(0, "Produce to a partition that is missing", since=3)(
    lambda c: (
        _produced(c, BOTH)
        | {"topic_data": c.topics(BOTH, partition_data=[{"index": 7, "records": _BATCH}])}
    )
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


ask(1, "Fetch")(lambda c: _fetched(c, WITH_MISSING))
ask(1, "Fetch two")(lambda c: _fetched(c, ("two",)))
ask(1, "Fetch as follower", until=14)(lambda c: _fetched(c, BOTH, replica_id=9))
ask(1, "Fetch as follower", since=15)(
    lambda c: _fetched(c, BOTH, replica_state={"replica_id": 9, "replica_epoch": 1})
)
ask(1, "Fetch nothing")(lambda c: _fetched(c, ()))

for _timestamp, _word in ((-1, "latest"), (-2, "earliest"), (0, "by time")):
    ask(2, f"ListOffsets {_word}")(
        replica_id=-1,
        topics=topics(WITH_MISSING, partitions=[{"partition_index": 0, "timestamp": _timestamp}]),
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
ask(3, "Metadata", since=4)(lambda c: _metadata(c, WITH_MISSING))
ask(3, "Metadata", until=3)(lambda c: _metadata(c, BOTH))
ask(3, "Metadata of nothing", since=1)(lambda c: _metadata(c, ()))
ask(3, "Metadata of two")(lambda c: _metadata(c, ("two",)))
ask(3, "Metadata of an invalid name", since=4)(lambda c: _metadata(c, ("in/valid",)))
ask(3, "Metadata with operations", since=8)(lambda c: _metadata(c, BOTH, **_OPERATIONS))
ask(3, "Metadata of all", since=1, is_list=True)(lambda c: _metadata(c, ()) | {"topics": None})
ask(3, "Metadata of all", until=0, is_list=True)(lambda c: _metadata(c, ()))
ask(3, "Metadata of all with operations", since=8, is_list=True)(
    lambda c: _metadata(c, (), **_OPERATIONS) | {"topics": None}
)
ask(3, "Metadata by id", since=12)(
    lambda c: (
        _metadata(c, ())
        | {"topics": [{"topic_id": t["topic_id"], "name": None} for t in c.topics(WITH_MISSING)]}
    )
)
ask(3, "Metadata by id, name given too", since=10)(
    lambda c: _metadata(c, ()) | {"topics": c.topics(BOTH)}
)

ask(21, "DeleteRecords")(
    topics=topics(WITH_MISSING, partitions=[{"partition_index": 0, "offset": 0}]), timeout=10_000
)
ask(23, "OffsetForLeaderEpoch")(
    replica_id=-1, topics=topics(WITH_MISSING, partitions=[{"partition": 0, "leader_epoch": 0}])
)
ask(23, "OffsetForLeaderEpoch as follower")(
    replica_id=9, topics=topics(BOTH, partitions=[{"partition": 0, "leader_epoch": 0}])
)
ask(61, "DescribeProducers")(topics=topics(WITH_MISSING, partition_indexes=[0]))
ask(75, "DescribeTopicPartitions")(topics=topics(WITH_MISSING))
ask(75, "DescribeTopicPartitions of all", is_list=True)(topics=())
for _first, _partition in (("missing", 0), ("one", 0), ("one", 1), ("two", 0), ("two", -1)):
    ask(75, f"DescribeTopicPartitions of all from {_first} {_partition} on", is_list=True)(
        lambda c, first=_first, partition=_partition: {
            "topics": (),
            "response_partition_limit": 1,
            "cursor": {"topic_name": c.names(first), "partition_index": partition},
        }
    )
ask(75, "DescribeTopicPartitions behind a cursor")(
    lambda c: {
        "topics": c.topics(BOTH),
        "cursor": {"topic_name": c.names("two"), "partition_index": 0},
    }
)
ask(75, "DescribeTopicPartitions with a limit")(topics=topics(BOTH), response_partition_limit=1)


def _created(context: Context, **more: Any) -> dict[str, Any]:
    topics = [
        {"name": context.names(short), "num_partitions": 1, "replication_factor": 1}
        for short in ("one.new", "two.new", "one")
    ]
    return {"topics": topics, "timeout": 10_000, "validate_only": True, **more}


ask(19, "CreateTopics, validated only")(_created)
ask(19, "CreateTopics twice the same")(
    lambda c: _created(c) | {"topics": [_created(c)["topics"][0]] * 2}
)
ask(37, "CreatePartitions, validated only")(lambda c: _partitions(c, validate_only=True))
ask(37, "CreatePartitions: not more")(lambda c: _partitions(c) | {"validate_only": False})


def _partitions(context: Context, **more: Any) -> dict[str, Any]:
    count = 2 if more.get("validate_only") else 1
    return {"topics": context.topics(WITH_MISSING, count=count), "timeout": 10_000, **more}


ask(43, "ElectLeaders")(topic_partitions=topics(WITH_MISSING, partitions=[0]), timeout=10_000)
ask(45, "AlterPartitionReassignments: cancelled")(
    topics=topics(BOTH, partitions=[{"partition_index": 0, "replicas": None}]), timeout=10_000
)
ask(46, "ListPartitionReassignments")(topics=topics(BOTH, partition_indexes=[0]), timeout=10_000)
ask(46, "ListPartitionReassignments of all")(topics=None, timeout=10_000)
ask(34, "AlterReplicaLogDirs")(
    lambda c: {"dirs": [{"path": "/nowhere", "topics": c.topics(BOTH, partitions=[0])}]}
)
ask(35, "DescribeLogDirs", is_list=True)(topics=topics(BOTH, partitions=[0]))
ask(35, "DescribeLogDirs of all", is_list=True)(topics=None)

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


ask(20, "DeleteTopics", until=1, profiles=DELETERS)(_deleted)
ask(20, "DeleteTopics", since=5, profiles=DELETERS)(_deleted)
ask(20, "DeleteTopics by id", since=6, profiles=DELETERS)(_deleted_by_id)


# Groups and transactions

_NOBODY = "nobody"
_COMMITTED = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
_PRODUCER: dict[str, Any] = {"producer_id": 987_654_321, "producer_epoch": 0}

for _group in WITH_MISSING:
    ask(8, f"OffsetCommit to {_group}")(
        group_id=named(_group), topics=topics(WITH_MISSING, partitions=_COMMITTED)
    )
    ask(9, f"OffsetFetch of {_group}", until=7)(
        group_id=named(_group), topics=topics(WITH_MISSING, partition_indexes=[0])
    )
    ask(9, f"OffsetFetch of {_group}, all topics", since=2, until=7)(
        group_id=named(_group), topics=None
    )
    ask(13, f"LeaveGroup {_group}")(
        group_id=named(_group), member_id=_NOBODY, members=[{"member_id": _NOBODY}]
    )
    ask(12, f"Heartbeat to {_group}")(group_id=named(_group), generation_id=1, member_id=_NOBODY)
    ask(11, f"JoinGroup {_group}")(
        group_id=named(_group),
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id=_NOBODY,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    ask(14, f"SyncGroup {_group}")(
        group_id=named(_group),
        generation_id=1,
        member_id=_NOBODY,
        protocol_type="consumer",
        protocol_name="range",
    )
    ask(28, f"TxnOffsetCommit to {_group}")(
        **_PRODUCER,
        transactional_id=named("one"),
        group_id=named(_group),
        topics=topics(WITH_MISSING, partitions=_COMMITTED),
    )
    ask(25, f"AddOffsetsToTxn of {_group}")(
        **_PRODUCER, transactional_id=named("one"), group_id=named(_group)
    )


def _offsets_of_groups(context: Context, *, of_all: bool) -> dict[str, Any]:
    topics = None if of_all else context.topics(WITH_MISSING, partition_indexes=[0])
    groups = [{"group_id": name, "topics": topics} for name in context.all(WITH_MISSING)]
    return {"groups": groups}


ask(9, "OffsetFetch of groups", since=8)(lambda c: _offsets_of_groups(c, of_all=False))
ask(9, "OffsetFetch of groups, all topics", since=8)(lambda c: _offsets_of_groups(c, of_all=True))

for _key_type, _kind in enumerate(("group", "transactional id", "share partition")):
    ask(10, f"FindCoordinator of a {_kind}", until=3)(key=named("one"), key_type=_key_type)
    ask(10, f"FindCoordinator of the other {_kind}", until=3)(key=named("two"), key_type=_key_type)
    ask(10, f"FindCoordinator of {_kind}s", since=4)(
        lambda c, key_type=_key_type: {
            "key_type": key_type,
            "coordinator_keys": [
                f"{name}:AAAAAAAAAAAAAAAAAAAAAQ:0" if key_type == 2 else name
                for name in c.all(WITH_MISSING)
            ],
        }
    )

ask(15, "DescribeGroups")(groups=all_of(WITH_MISSING))
ask(15, "DescribeGroups with operations", since=3)(
    groups=all_of(WITH_MISSING), include_authorized_operations=True
)
ask(16, "ListGroups", is_list=True)()
ask(16, "ListGroups that are empty", since=4, is_list=True)(states_filter=["Empty"])
ask(42, "DeleteGroups")(
    lambda c: {"groups_names": c.all((f"one.d{c.version}", f"two.d{c.version}", "missing"))}
)
for _group in BOTH:
    ask(47, f"OffsetDelete of {_group}")(
        group_id=named(_group), topics=topics(WITH_MISSING, partitions=[{"partition_index": 3}])
    )


def _heartbeat(context: Context, group: str, **more: Any) -> dict[str, Any]:
    return {"group_id": context.names(group), "member_id": _NOBODY, "member_epoch": 7, **more}


def _regex(context: Context, beginning: str, rest: str) -> str:
    return re.escape(context.names(beginning)) + rest if beginning else rest


for _group in ("one.cg", "two.cg", "missing"):
    for _topic in BOTH:
        ask(68, f"ConsumerGroupHeartbeat of {_group} with topic {_topic}")(
            lambda c, group=_group, topic=_topic: _heartbeat(
                c, group, subscribed_topic_names=[c.names(topic)]
            )
        )
    for _beginning, _rest in (("", ".*"), ("on", ".*"), ("one", "")):
        ask(68, f"ConsumerGroupHeartbeat of {_group} with a regex: {_beginning}{_rest}", since=1)(
            lambda c, group=_group, beginning=_beginning, rest=_rest: _heartbeat(
                c, group, subscribed_topic_regex=_regex(c, beginning, rest)
            )
        )
    ask(68, f"ConsumerGroupHeartbeat of {_group}")(lambda c, g=_group: _heartbeat(c, g))
for _include in (False, True):
    _more = " with operations" if _include else ""
    ask(69, f"ConsumerGroupDescribe{_more}")(
        group_ids=all_of(("one.cg", "two.cg", "one", "missing")),
        include_authorized_operations=_include,
    )
    ask(77, f"ShareGroupDescribe{_more}")(
        group_ids=all_of(("one.sg", "two.sg", "one", "missing")),
        include_authorized_operations=_include,
    )

# --- share groups


def _share_member(number: int) -> str:
    return base64.urlsafe_b64encode(uuid.UUID(int=number).bytes).rstrip(b"=").decode()


ask(78, "ShareFetch of an unknown id")(
    lambda c: {
        "group_id": c.names("one.sg"),
        "member_id": _share_member(100 + c.version),
        "share_session_epoch": 0,
        "topics": c.topics(("missing",), partitions=[{"partition_index": 0}]),
    }
)
for _group in ("one.sg", "two.sg"):
    ask(76, f"ShareGroupHeartbeat of {_group}")(
        lambda c, group=_group: _heartbeat(c, group, subscribed_topic_names=c.all(BOTH))
    )
    ask(76, f"ShareGroupHeartbeat of {_group} with one topic")(
        lambda c, group=_group: _heartbeat(c, group, subscribed_topic_names=[c.names("one")])
    )
    ask(78, f"ShareFetch by {_group}")(
        lambda c, group=_group: {
            "group_id": c.names(group),
            "member_id": _share_member(c.version),
            "share_session_epoch": 0,
            "max_bytes": 1 << 20,
            "max_records": 1,
            "batch_size": 1,
            "topics": c.topics(BOTH, partitions=[{"partition_index": 0}]),
        }
    )
    ask(78, f"ShareFetch by {_group} without a session")(
        group_id=named(_group),
        member_id=_share_member(99),
        share_session_epoch=9,
        max_bytes=1 << 20,
        max_records=1,
        batch_size=1,
    )
    ask(79, f"ShareAcknowledge by {_group}")(
        group_id=named(_group),
        member_id=_share_member(99),
        share_session_epoch=9,
        topics=topics(BOTH, partitions=[{"partition_index": 0}]),
    )
    ask(91, f"AlterShareGroupOffsets of {_group}")(
        group_id=named(_group),
        topics=topics(WITH_MISSING, partitions=[{"partition_index": 0, "start_offset": 0}]),
    )
    ask(92, f"DeleteShareGroupOffsets of {_group}")(
        group_id=named(_group), topics=topics(WITH_MISSING)
    )
ask(90, "DescribeShareGroupOffsets")(
    lambda c: {
        "groups": [
            {"group_id": c.names(group), "topics": c.topics(WITH_MISSING, partitions=[0])}
            for group in ("one.sg", "two.sg", "missing")
        ]
    }
)
ask(90, "DescribeShareGroupOffsets of all topics")(
    lambda c: {
        "groups": [{"group_id": c.names(group), "topics": None} for group in ("one.sg", "two.sg")]
    }
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


def _described(context: Context, topic: str) -> dict[str, Any]:
    source = {"name": "source", "node_type": 1, "source_topics": [context.names(topic)]}
    return {"subtopology_id": "0", "nodes": [source]}


for _group in ("one.st", "two.st"):
    ask(88, f"StreamsGroupHeartbeat of {_group}")(lambda c, g=_group: _heartbeat(c, g))
    for _topic in BOTH:
        ask(88, f"StreamsGroupHeartbeat of {_group} with topic {_topic}")(
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
            )
        )
for _include in (False, True):
    _more = " with operations" if _include else ""
    ask(89, f"StreamsGroupDescribe{_more}")(
        group_ids=all_of(("one.st", "two.st", "one", "missing")),
        include_authorized_operations=_include,
    )
ask(89, "StreamsGroupDescribe with descriptions", since=1)(
    group_ids=all_of(("one.st", "two.st", "one", "missing")), include_topology_description=True
)
for _group in ("one.st", "two.st", "missing"):
    for _topic in BOTH:
        ask(93, f"StreamsGroupTopologyDescriptionUpdate of {_group} with topic {_topic}")(
            lambda c, group=_group, topic=_topic: {
                "group_id": c.names(group),
                "member_id": f"with-{topic}",
                "topology_epoch": 1,
                "topology_description": {"subtopologies": [_described(c, topic)]},
            }
        )


# Questions about producer ids and transactions

ask(22, "InitProducerId, idempotent")(transactional_id=None, transaction_timeout=60_000)
for _name in BOTH:
    for _two_phase in (False, True):
        ask(
            22,
            f"InitProducerId of {_name}{', two phases' if _two_phase else ''}",
            since=6 if _two_phase else 0,
        )(transactional_id=named(_name), transaction_timeout=60_000, enable2_pc=_two_phase)
    ask(26, f"EndTxn of {_name}")(**_PRODUCER, transactional_id=named(_name), committed=True)
    for _topics in (("one",), WITH_MISSING):
        ask(24, f"AddPartitionsToTxn of {_name}: {' '.join(_topics)}", until=3)(
            v3_and_below_transactional_id=named(_name),
            v3_and_below_producer_id=_PRODUCER["producer_id"],
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics(_topics, partitions=[0]),
        )
ask(24, "AddPartitionsToTxn, batched", since=4)(
    lambda c: {
        "transactions": [
            {
                **_PRODUCER,
                "transactional_id": name,
                "topics": c.topics(WITH_MISSING, partitions=[0]),
            }
            for name in c.all(BOTH)
        ]
    }
)
ask(27, "WriteTxnMarkers")(
    lambda c: {"markers": [{**_PRODUCER, "topics": c.topics(("missing",), partition_indexes=[0])}]}
)
ask(65, "DescribeTransactions")(transactional_ids=all_of(WITH_MISSING))
ask(66, "ListTransactions", is_list=True)()
