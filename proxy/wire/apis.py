"""Table of all API keys: what the proxy does with each, and which versions it understands.

Laws:

- An API that is not in this table is neither offered nor forwarded.
- A version range is what the proxy can decode where it must (kio's schemas, or ours); what clients
  are offered is its intersection with what the broker offers, see `offers`. Where no ACLs are
  enforced, older versions of `FIRST_KEPT_BY_KAFKA_4` pass, too, without being judged.
- Tests compare the columns with kio's schemas, so that no address of a broker, and no throttle
  time, is overlooked in a new version.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from proxy.wire.primitives import View, skip_tags

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
WRITE_TXN_MARKERS: Final = 27
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
ALTER_REPLICA_LOG_DIRS: Final = 34
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
ELECT_LEADERS: Final = 43
INCREMENTAL_ALTER_CONFIGS: Final = 44
ALTER_PARTITION_REASSIGNMENTS: Final = 45
LIST_PARTITION_REASSIGNMENTS: Final = 46
OFFSET_DELETE: Final = 47
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
DESCRIBE_QUORUM: Final = 55
UPDATE_FEATURES: Final = 57
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_PRODUCERS: Final = 61
UNREGISTER_BROKER: Final = 64
DESCRIBE_TRANSACTIONS: Final = 65
LIST_TRANSACTIONS: Final = 66
CONSUMER_GROUP_HEARTBEAT: Final = 68
CONSUMER_GROUP_DESCRIBE: Final = 69
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75
SHARE_GROUP_HEARTBEAT: Final = 76
SHARE_GROUP_DESCRIBE: Final = 77
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
ADD_RAFT_VOTER: Final = 80
REMOVE_RAFT_VOTER: Final = 81
STREAMS_GROUP_HEARTBEAT: Final = 88
STREAMS_GROUP_DESCRIBE: Final = 89
DESCRIBE_SHARE_GROUP_OFFSETS: Final = 90
ALTER_SHARE_GROUP_OFFSETS: Final = 91
DELETE_SHARE_GROUP_OFFSETS: Final = 92
STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: Final = 93
UNREGISTER_CONTROLLER: Final = 94

ACL_APIS: Final = frozenset({DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS})
MUTATIONS: Final = frozenset({CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS})
"""API keys that count towards a controller_mutation_rate (KIP-599)."""
FETCHES: Final = frozenset({FETCH, SHARE_FETCH})
"""API keys that count towards a consumer_byte_rate."""
QUOTA_APIS: Final = frozenset({DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS})
FIRST_KEPT_BY_KAFKA_4: Final[Mapping[int, int]] = {
    PRODUCE: 3,
    FETCH: 4,
    LIST_OFFSETS: 1,
    OFFSET_COMMIT: 2,
    OFFSET_FETCH: 1,
    CREATE_TOPICS: 2,
    DELETE_TOPICS: 1,
    OFFSET_FOR_LEADER_EPOCH: 2,
    WRITE_TXN_MARKERS: 1,
    DESCRIBE_ACLS: 1,
    CREATE_ACLS: 1,
    DELETE_ACLS: 1,
    DESCRIBE_CONFIGS: 1,
    ALTER_REPLICA_LOG_DIRS: 1,
    DESCRIBE_LOG_DIRS: 1,
    38: 1,  # CreateDelegationToken
    39: 1,  # RenewDelegationToken
    40: 1,  # ExpireDelegationToken
    41: 1,  # DescribeDelegationToken
}
"""First version that Kafka 4.0 kept of each client API of which it dropped versions (KIP-896).

JoinGroup is not among them: Kafka 4.0.0 alone lacks its v0 and v1, which came back with 4.0.1."""

SASL_APIS: Final = frozenset({SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE})
"""API keys that are legal before and during authentication; their requests are short."""


class Kind(Enum):
    """Ways to answer an API's requests."""

    FORWARDED = auto()
    """The broker answers."""
    ANSWERED = auto()
    """The proxy answers, whatever the broker offers."""
    NOT_OFFERED = auto()
    """No answer: APIs between brokers, and those that the proxy does not implement."""


NEVER: Final = 0x8000
"""First version of what no version has: greater than any version, which is an INT16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """Row of the table."""

    key: int
    name: str
    """Name in Kafka's `ApiKeys`."""
    kind: Kind
    min_version: int
    """Lowest version that the proxy understands."""
    max_version: int
    """Highest version that the proxy understands."""
    first_flexible: int
    """First version with tagged fields and compact types (KIP-482); `NEVER` if none has
    them."""
    throttle_time_since: int
    """First version whose response has a throttle time; `NEVER` if none has."""
    addresses_since: int
    """First version whose response contains the address of a broker or controller; `NEVER` if
    none does."""


def _api(
    key: int,
    name: str,
    versions: tuple[int, int],
    first_flexible: int,
    throttle_time_since: int,
    kind: Kind = Kind.FORWARDED,
    addresses_since: int = NEVER,
) -> Api:
    return Api(
        key=key,
        name=name,
        kind=kind,
        min_version=versions[0],
        max_version=versions[1],
        first_flexible=first_flexible,
        throttle_time_since=throttle_time_since,
        addresses_since=addresses_since,
    )


_ANSWERED = Kind.ANSWERED
_NOT_OFFERED = Kind.NOT_OFFERED

APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        # key, name, (lowest, highest version), first flexible, throttle time since, and the rest
        _api(PRODUCE, "Produce", (3, 13), 9, 1, addresses_since=10),  # KIP-951
        _api(FETCH, "Fetch", (4, 18), 12, 1, addresses_since=16),  # KIP-951
        _api(LIST_OFFSETS, "ListOffsets", (1, 11), 6, 2),
        _api(METADATA, "Metadata", (0, 13), 9, 3, addresses_since=0),
        _api(OFFSET_COMMIT, "OffsetCommit", (2, 10), 8, 3),
        _api(OFFSET_FETCH, "OffsetFetch", (1, 10), 6, 3),
        _api(FIND_COORDINATOR, "FindCoordinator", (0, 6), 3, 1, addresses_since=0),
        _api(JOIN_GROUP, "JoinGroup", (0, 9), 6, 2),
        _api(HEARTBEAT, "Heartbeat", (0, 4), 4, 1),
        _api(LEAVE_GROUP, "LeaveGroup", (0, 5), 4, 1),
        _api(SYNC_GROUP, "SyncGroup", (0, 5), 4, 1),
        _api(DESCRIBE_GROUPS, "DescribeGroups", (0, 6), 5, 1),
        _api(LIST_GROUPS, "ListGroups", (0, 5), 3, 1),
        _api(SASL_HANDSHAKE, "SaslHandshake", (0, 1), NEVER, NEVER, _ANSWERED),
        _api(API_VERSIONS, "ApiVersions", (0, 5), 3, 1, _ANSWERED),
        _api(CREATE_TOPICS, "CreateTopics", (2, 7), 5, 2),
        _api(DELETE_TOPICS, "DeleteTopics", (1, 6), 4, 1),
        _api(DELETE_RECORDS, "DeleteRecords", (0, 2), 2, 0),
        _api(INIT_PRODUCER_ID, "InitProducerId", (0, 6), 2, 0),
        _api(OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", (2, 4), 4, 2),
        _api(ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", (0, 5), 3, 0),
        _api(ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", (0, 4), 3, 0),
        _api(END_TXN, "EndTxn", (0, 5), 3, 0),
        _api(
            WRITE_TXN_MARKERS, "WriteTxnMarkers", (1, 2), 1, NEVER
        ),  # an admin API too: aborts a transaction (KIP-664)
        _api(TXN_OFFSET_COMMIT, "TxnOffsetCommit", (0, 6), 3, 0),
        _api(DESCRIBE_ACLS, "DescribeAcls", (0, 4), 2, 0, _ANSWERED),  # KIP-888
        _api(CREATE_ACLS, "CreateAcls", (0, 3), 2, 0, _ANSWERED),
        _api(DELETE_ACLS, "DeleteAcls", (0, 3), 2, 0, _ANSWERED),
        _api(DESCRIBE_CONFIGS, "DescribeConfigs", (1, 4), 4, 0),
        _api(ALTER_CONFIGS, "AlterConfigs", (0, 2), 2, 0),
        _api(ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", (1, 2), 2, 0),
        _api(DESCRIBE_LOG_DIRS, "DescribeLogDirs", (1, 5), 2, 0),
        _api(SASL_AUTHENTICATE, "SaslAuthenticate", (0, 2), 2, NEVER, _ANSWERED),
        _api(CREATE_PARTITIONS, "CreatePartitions", (0, 3), 2, 0),
        _api(38, "CreateDelegationToken", (1, 3), 2, 1, _NOT_OFFERED),
        _api(39, "RenewDelegationToken", (1, 2), 2, 1, _NOT_OFFERED),
        _api(40, "ExpireDelegationToken", (1, 2), 2, 1, _NOT_OFFERED),
        _api(41, "DescribeDelegationToken", (1, 3), 2, 1, _NOT_OFFERED),
        _api(DELETE_GROUPS, "DeleteGroups", (0, 3), 2, 0),
        _api(ELECT_LEADERS, "ElectLeaders", (0, 2), 2, 0),
        _api(INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", (0, 1), 1, 0),
        _api(ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", (0, 1), 0, 0),
        _api(LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", (0, 0), 0, 0),
        _api(OFFSET_DELETE, "OffsetDelete", (0, 0), NEVER, 0),
        _api(
            DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", (0, 2), 1, 0, _ANSWERED
        ),  # v2: KIP-888
        _api(ALTER_CLIENT_QUOTAS, "AlterClientQuotas", (0, 1), 1, 0, _ANSWERED),
        _api(
            DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", (0, 0), 0, 0, _ANSWERED
        ),
        _api(ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", (0, 0), 0, 0, _ANSWERED),
        _api(52, "Vote", (0, 2), 0, NEVER, _NOT_OFFERED),
        _api(53, "BeginQuorumEpoch", (0, 1), 1, NEVER, _NOT_OFFERED),
        _api(54, "EndQuorumEpoch", (0, 1), 1, NEVER, _NOT_OFFERED),
        _api(DESCRIBE_QUORUM, "DescribeQuorum", (0, 2), 0, NEVER, addresses_since=2),  # KIP-853
        _api(56, "AlterPartition", (2, 3), 0, 2, _NOT_OFFERED),
        _api(UPDATE_FEATURES, "UpdateFeatures", (0, 2), 0, 0),
        _api(58, "Envelope", (0, 0), 0, NEVER, _NOT_OFFERED),
        _api(59, "FetchSnapshot", (0, 1), 0, 0, _NOT_OFFERED),
        _api(DESCRIBE_CLUSTER, "DescribeCluster", (0, 2), 0, 0, addresses_since=0),
        _api(DESCRIBE_PRODUCERS, "DescribeProducers", (0, 0), 0, 0),
        _api(62, "BrokerRegistration", (0, 4), 0, 0, _NOT_OFFERED),
        _api(63, "BrokerHeartbeat", (0, 2), 0, 0, _NOT_OFFERED),
        _api(UNREGISTER_BROKER, "UnregisterBroker", (0, 0), 0, 0),
        _api(DESCRIBE_TRANSACTIONS, "DescribeTransactions", (0, 0), 0, 0),
        _api(LIST_TRANSACTIONS, "ListTransactions", (0, 2), 0, 0),
        _api(67, "AllocateProducerIds", (0, 0), 0, 0, _NOT_OFFERED),
        _api(CONSUMER_GROUP_HEARTBEAT, "ConsumerGroupHeartbeat", (0, 1), 0, 0),
        _api(CONSUMER_GROUP_DESCRIBE, "ConsumerGroupDescribe", (0, 1), 0, 0),
        _api(70, "ControllerRegistration", (0, 0), 0, 0, _NOT_OFFERED),
        _api(71, "GetTelemetrySubscriptions", (0, 0), 0, 0),
        _api(72, "PushTelemetry", (0, 0), 0, 0),
        _api(73, "AssignReplicasToDirs", (0, 0), 0, 0, _NOT_OFFERED),
        _api(LIST_CONFIG_RESOURCES, "ListConfigResources", (0, 1), 0, 0),
        _api(DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitions", (0, 0), 0, 0),
        _api(SHARE_GROUP_HEARTBEAT, "ShareGroupHeartbeat", (1, 1), 0, 0),
        _api(SHARE_GROUP_DESCRIBE, "ShareGroupDescribe", (1, 1), 0, 0),
        _api(SHARE_FETCH, "ShareFetch", (1, 2), 0, 0, addresses_since=1),
        _api(SHARE_ACKNOWLEDGE, "ShareAcknowledge", (1, 2), 0, 0, addresses_since=1),
        _api(ADD_RAFT_VOTER, "AddRaftVoter", (0, 1), 0, 0),
        _api(REMOVE_RAFT_VOTER, "RemoveRaftVoter", (0, 0), 0, 0),
        _api(82, "UpdateRaftVoter", (0, 0), 0, 0, _NOT_OFFERED),
        _api(83, "InitializeShareGroupState", (0, 0), 0, NEVER, _NOT_OFFERED),
        _api(84, "ReadShareGroupState", (0, 0), 0, NEVER, _NOT_OFFERED),
        _api(85, "WriteShareGroupState", (0, 1), 0, NEVER, _NOT_OFFERED),
        _api(86, "DeleteShareGroupState", (0, 0), 0, NEVER, _NOT_OFFERED),
        _api(87, "ReadShareGroupStateSummary", (0, 1), 0, NEVER, _NOT_OFFERED),
        _api(STREAMS_GROUP_HEARTBEAT, "StreamsGroupHeartbeat", (0, 1), 0, 0),
        _api(STREAMS_GROUP_DESCRIBE, "StreamsGroupDescribe", (0, 1), 0, 0),
        _api(DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsets", (0, 1), 0, 0),
        _api(ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsets", (0, 0), 0, 0),
        _api(DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsets", (0, 0), 0, 0),
        _api(
            STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
            "StreamsGroupTopologyDescriptionUpdate",
            (0, 0),
            0,
            0,
        ),
        _api(UNREGISTER_CONTROLLER, "UnregisterController", (0, 0), 0, 0),
    )
}


SCRAM_APIS: Final = frozenset({DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS})
CREDENTIAL_APIS: Final = SCRAM_APIS | {38, 39, 40, 41}
"""APIs of SCRAM users and of delegation tokens, which belong to whoever authenticates clients."""


Versions = Mapping[int, tuple[int, int]]
"""Lowest and highest version by API key."""


def forwarded(
    upstream: Versions, *, enforces_acls: bool = True, passes: Container[int] = ()
) -> Versions:
    """Return the versions that are forwarded to a broker with these.

    `enforces_acls`: only those that can be judged; else those that Kafka 4.0 dropped, too.
    `passes`: APIs that are forwarded although the proxy could answer them itself, or offers them to
    nobody.
    """
    serves_dropped = _serves_dropped(upstream)
    found: dict[int, tuple[int, int]] = {}
    for key, (low, high) in upstream.items():
        api = APIS.get(key)
        if api is None or not (api.kind is Kind.FORWARDED or key in passes):
            continue
        passes_dropped = key in FIRST_KEPT_BY_KAFKA_4 and serves_dropped and not enforces_acls
        lowest = low if passes_dropped else max(low, api.min_version)
        highest = min(high, api.max_version)
        if lowest <= highest:
            found[key] = (lowest, highest)
    return found


def _serves_dropped(upstream: Versions) -> bool:
    """Return whether a broker serves versions that Kafka 4.0 dropped.

    Kafka 4 still announces Produce from v0, which it does not serve, so it is known by Fetch.
    """
    return FETCH in upstream and upstream[FETCH][0] < FIRST_KEPT_BY_KAFKA_4[FETCH]


def offers(
    upstream: Versions,
    *,
    enforces_acls: bool = True,
    passes: Container[int] = (),
    withholds: Container[int] = (),
) -> Versions:
    """Return the versions to offer to clients of a broker, by API key in ascending order.

    They are those of `forwarded`, and of the APIs that the proxy answers, but for `withholds`. The
    lowest Produce version of the broker is passed on unchanged, although lower ones than those of
    `forwarded` close the connection: librdkafka takes a higher minimum for a broker without record
    batches, for which Kafka 4 announces Produce from v0 (KIP-896).
    """
    theirs = forwarded(upstream, enforces_acls=enforces_acls, passes=passes)
    offered: dict[int, tuple[int, int]] = {}
    for api in APIS.values():
        if api.key in theirs:
            low, high = theirs[api.key]
            offered[api.key] = (upstream[PRODUCE][0] if api.key == PRODUCE else low, high)
        elif api.kind is Kind.ANSWERED and api.key not in withholds:
            offered[api.key] = (api.min_version, api.max_version)
    return offered


def answered_here(api_key: int, api_version: int) -> bool:
    """Return whether the proxy answers such a request itself; true of every version of ApiVersions
    (KIP-511)."""
    api = APIS.get(api_key)
    if api is None or api.kind is not Kind.ANSWERED:
        return False
    return api_key == API_VERSIONS or api_version <= api.max_version


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether requests of this version have header v2, not v1."""
    return api_version >= APIS[api_key].first_flexible


def response_header_version(api_key: int, api_version: int) -> int:
    """Return 1 if the response's header has tagged fields, else 0.

    That of ApiVersions never has: a client must be able to read the response to a version that the
    broker does not know (KIP-511).
    """
    return int(api_key != API_VERSIONS and is_flexible(api_key, api_version))


def response_body_at(api_key: int, api_version: int, content: View, at: int = 4) -> int:
    """Return the position of a response's body, whose correlation id ends at `at`.

    Like that of `skip_tags`, it may be past the end of `content`. Raises Malformed.
    """
    return skip_tags(content, at) if response_header_version(api_key, api_version) else at


def carries_addresses(api_key: int, api_version: int) -> bool:
    """Return whether responses of this version may contain an address, so that a gateway rewrites
    them."""
    api = APIS.get(api_key)
    return api is not None and api.addresses_since <= api_version <= api.max_version
