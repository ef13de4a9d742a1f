"""Table of all API keys: what the proxy does with each, and which versions it understands.

Laws:

- What is not in this table is not offered, and is not forwarded.
- A version range is what the proxy can decode where it must (kio's schemas); what clients are
  offered is its intersection with what the broker offers, see `offers`.
- Each version whose response tells a broker's address is marked by `addresses_since`; a test
  compares the marks with kio's schemas, so that no address slips through with a new version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from proxy.wire.primitives import View, skip_tags

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
FIND_COORDINATOR: Final = 10
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DESCRIBE_ACLS: Final = 29
CREATE_ACLS: Final = 30
DELETE_ACLS: Final = 31
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DESCRIBE_CLIENT_QUOTAS: Final = 48
ALTER_CLIENT_QUOTAS: Final = 49
DESCRIBE_USER_SCRAM_CREDENTIALS: Final = 50
ALTER_USER_SCRAM_CREDENTIALS: Final = 51
DESCRIBE_QUORUM: Final = 55
DESCRIBE_CLUSTER: Final = 60
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79

ACL_APIS: Final = frozenset({DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS})
MUTATIONS: Final = frozenset({CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS})
"""API keys that count towards a controller_mutation_rate (KIP-599)."""
FETCHES: Final = frozenset({FETCH, SHARE_FETCH})
"""API keys that count towards a consumer_byte_rate."""
QUOTA_APIS: Final = frozenset({DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS})
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
    first_flexible: int | None
    """First version with tagged fields and compact types (KIP-482); None if no version has them."""
    addresses_since: int | None
    """First version whose response contains the address of a broker or controller; None if none
    does."""


def _api(
    key: int,
    name: str,
    versions: tuple[int, int],
    first_flexible: int | None,
    kind: Kind = Kind.FORWARDED,
    addresses_since: int | None = None,
) -> Api:
    return Api(
        key=key,
        name=name,
        kind=kind,
        min_version=versions[0],
        max_version=versions[1],
        first_flexible=first_flexible,
        addresses_since=addresses_since,
    )


_ANSWERED = Kind.ANSWERED
_NOT_OFFERED = Kind.NOT_OFFERED

APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        _api(PRODUCE, "Produce", (3, 13), 9, addresses_since=10),  # KIP-951
        _api(FETCH, "Fetch", (4, 18), 12, addresses_since=16),  # KIP-951
        _api(2, "ListOffsets", (1, 11), 6),
        _api(METADATA, "Metadata", (0, 13), 9, addresses_since=0),
        _api(OFFSET_COMMIT, "OffsetCommit", (2, 10), 8),
        _api(9, "OffsetFetch", (1, 10), 6),
        _api(FIND_COORDINATOR, "FindCoordinator", (0, 6), 3, addresses_since=0),
        _api(11, "JoinGroup", (0, 9), 6),
        _api(12, "Heartbeat", (0, 4), 4),
        _api(13, "LeaveGroup", (0, 5), 4),
        _api(14, "SyncGroup", (0, 5), 4),
        _api(15, "DescribeGroups", (0, 6), 5),
        _api(16, "ListGroups", (0, 5), 3),
        _api(SASL_HANDSHAKE, "SaslHandshake", (0, 1), None, _ANSWERED),
        _api(API_VERSIONS, "ApiVersions", (0, 4), 3, _ANSWERED),
        _api(19, "CreateTopics", (2, 7), 5),
        _api(20, "DeleteTopics", (1, 6), 4),
        _api(21, "DeleteRecords", (0, 2), 2),
        _api(22, "InitProducerId", (0, 6), 2),
        _api(23, "OffsetForLeaderEpoch", (2, 4), 4),
        _api(24, "AddPartitionsToTxn", (0, 5), 3),
        _api(25, "AddOffsetsToTxn", (0, 4), 3),
        _api(26, "EndTxn", (0, 5), 3),
        _api(27, "WriteTxnMarkers", (1, 2), 1),  # an admin API too: aborts a transaction (KIP-664)
        _api(28, "TxnOffsetCommit", (0, 5), 3),
        _api(DESCRIBE_ACLS, "DescribeAcls", (0, 4), 2, _ANSWERED),  # v4: KIP-888
        _api(CREATE_ACLS, "CreateAcls", (0, 3), 2, _ANSWERED),
        _api(DELETE_ACLS, "DeleteAcls", (0, 3), 2, _ANSWERED),
        _api(32, "DescribeConfigs", (1, 4), 4),
        _api(33, "AlterConfigs", (0, 2), 2),
        _api(34, "AlterReplicaLogDirs", (1, 2), 2),
        _api(35, "DescribeLogDirs", (1, 5), 2),
        _api(SASL_AUTHENTICATE, "SaslAuthenticate", (0, 2), 2, _ANSWERED),
        _api(37, "CreatePartitions", (0, 3), 2),
        _api(38, "CreateDelegationToken", (1, 3), 2, _NOT_OFFERED),
        _api(39, "RenewDelegationToken", (1, 2), 2, _NOT_OFFERED),
        _api(40, "ExpireDelegationToken", (1, 2), 2, _NOT_OFFERED),
        _api(41, "DescribeDelegationToken", (1, 3), 2, _NOT_OFFERED),
        _api(42, "DeleteGroups", (0, 2), 2),
        _api(43, "ElectLeaders", (0, 2), 2),
        _api(44, "IncrementalAlterConfigs", (0, 1), 1),
        _api(45, "AlterPartitionReassignments", (0, 1), 0),
        _api(46, "ListPartitionReassignments", (0, 0), 0),
        _api(47, "OffsetDelete", (0, 0), None),
        _api(DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", (0, 2), 1, _ANSWERED),  # v2: KIP-888
        _api(ALTER_CLIENT_QUOTAS, "AlterClientQuotas", (0, 1), 1, _ANSWERED),
        _api(DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentials", (0, 0), 0, _ANSWERED),
        _api(ALTER_USER_SCRAM_CREDENTIALS, "AlterUserScramCredentials", (0, 0), 0, _ANSWERED),
        _api(52, "Vote", (0, 2), 0, _NOT_OFFERED),
        _api(53, "BeginQuorumEpoch", (0, 1), 1, _NOT_OFFERED),
        _api(54, "EndQuorumEpoch", (0, 1), 1, _NOT_OFFERED),
        _api(DESCRIBE_QUORUM, "DescribeQuorum", (0, 2), 0, addresses_since=2),  # KIP-853
        _api(56, "AlterPartition", (2, 3), 0, _NOT_OFFERED),
        _api(57, "UpdateFeatures", (0, 2), 0),
        _api(58, "Envelope", (0, 0), 0, _NOT_OFFERED),
        _api(59, "FetchSnapshot", (0, 1), 0, _NOT_OFFERED),
        _api(DESCRIBE_CLUSTER, "DescribeCluster", (0, 2), 0, addresses_since=0),
        _api(61, "DescribeProducers", (0, 0), 0),
        _api(62, "BrokerRegistration", (0, 4), 0, _NOT_OFFERED),
        _api(63, "BrokerHeartbeat", (0, 2), 0, _NOT_OFFERED),
        _api(64, "UnregisterBroker", (0, 0), 0),
        _api(65, "DescribeTransactions", (0, 0), 0),
        _api(66, "ListTransactions", (0, 2), 0),
        _api(67, "AllocateProducerIds", (0, 0), 0, _NOT_OFFERED),
        _api(68, "ConsumerGroupHeartbeat", (0, 1), 0),
        _api(69, "ConsumerGroupDescribe", (0, 1), 0),
        _api(70, "ControllerRegistration", (0, 0), 0, _NOT_OFFERED),
        _api(71, "GetTelemetrySubscriptions", (0, 0), 0),
        _api(72, "PushTelemetry", (0, 0), 0),
        _api(73, "AssignReplicasToDirs", (0, 0), 0, _NOT_OFFERED),
        _api(74, "ListConfigResources", (0, 1), 0),
        _api(75, "DescribeTopicPartitions", (0, 0), 0),
        _api(76, "ShareGroupHeartbeat", (1, 1), 0),
        _api(77, "ShareGroupDescribe", (1, 1), 0),
        _api(SHARE_FETCH, "ShareFetch", (1, 2), 0, addresses_since=1),
        _api(SHARE_ACKNOWLEDGE, "ShareAcknowledge", (1, 2), 0, addresses_since=1),
        _api(80, "AddRaftVoter", (0, 1), 0),
        _api(81, "RemoveRaftVoter", (0, 0), 0),
        _api(82, "UpdateRaftVoter", (0, 0), 0, _NOT_OFFERED),
        _api(83, "InitializeShareGroupState", (0, 0), 0, _NOT_OFFERED),
        _api(84, "ReadShareGroupState", (0, 0), 0, _NOT_OFFERED),
        _api(85, "WriteShareGroupState", (0, 1), 0, _NOT_OFFERED),
        _api(86, "DeleteShareGroupState", (0, 0), 0, _NOT_OFFERED),
        _api(87, "ReadShareGroupStateSummary", (0, 1), 0, _NOT_OFFERED),
        _api(88, "StreamsGroupHeartbeat", (0, 0), 0),
        _api(89, "StreamsGroupDescribe", (0, 0), 0),
        _api(90, "DescribeShareGroupOffsets", (0, 1), 0),
        _api(91, "AlterShareGroupOffsets", (0, 0), 0),
        _api(92, "DeleteShareGroupOffsets", (0, 0), 0),
    )
}


def offers(upstream: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return the versions to offer to clients of a broker, by API key in ascending order.

    Kafka 4 still announces Produce from v0, which it does not serve, because librdkafka takes a
    higher minimum for a broker without record batches (KIP-896). The lowest Produce version of the
    broker is therefore passed on unchanged; see `understands`.
    """
    offered: dict[int, tuple[int, int]] = {}
    for api in APIS.values():
        if api.kind is Kind.ANSWERED:
            offered[api.key] = (api.min_version, api.max_version)
        elif api.kind is Kind.FORWARDED and api.key in upstream:
            low, high = upstream[api.key]
            lowest, highest = max(low, api.min_version), min(high, api.max_version)
            if lowest <= highest:
                offered[api.key] = (low if api.key == PRODUCE else lowest, highest)
    return offered


def understands(api_key: int, api_version: int) -> bool:
    """Return whether the proxy may pass or answer requests of this version.

    An announced Produce below v3 is not understood: the connection is closed, as Kafka 4 does.
    """
    api = APIS.get(api_key)
    return (
        api is not None
        and api.kind is not Kind.NOT_OFFERED
        and api.min_version <= api_version <= api.max_version
    )


def answered_here(api_key: int, api_version: int) -> bool:
    """Return whether the proxy answers such a request itself; true of every version of ApiVersions
    (KIP-511)."""
    api = APIS.get(api_key)
    if api is None or api.kind is not Kind.ANSWERED:
        return False
    return api_key == API_VERSIONS or api_version <= api.max_version


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether requests of this version have header v2, not v1."""
    first = APIS[api_key].first_flexible
    return first is not None and api_version >= first


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
    return (
        api is not None
        and api.addresses_since is not None
        and api.addresses_since <= api_version <= api.max_version
    )
