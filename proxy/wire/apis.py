"""Table of all API keys: how the proxy handles each, and which versions it understands.

Rules:

- An API that is not in this table is neither offered nor forwarded.
- A version range has the versions that the proxy can decode, where it must: those in
  `messages.txt`. Clients are offered its intersection with the broker's range, see `offers`. Where
  no ACLs are enforced, older versions of `FIRST_KEPT_BY_KAFKA_4` also pass, without being judged.
- A test compares `_ADDRESSES_SINCE` with the definitions, so that no address of a broker is
  overlooked in a new version.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from proxy.wire.primitives import Malformed, View, skip_tags, uvarint
from proxy.wire.schema import BLOCKS, NEVER, Head, head_of

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
CREATE_DELEGATION_TOKEN: Final = 38
RENEW_DELEGATION_TOKEN: Final = 39
EXPIRE_DELEGATION_TOKEN: Final = 40
DESCRIBE_DELEGATION_TOKEN: Final = 41
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
GET_TELEMETRY_SUBSCRIPTIONS: Final = 71
PUSH_TELEMETRY: Final = 72
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
    CREATE_DELEGATION_TOKEN: 1,
    RENEW_DELEGATION_TOKEN: 1,
    EXPIRE_DELEGATION_TOKEN: 1,
    DESCRIBE_DELEGATION_TOKEN: 1,
}
"""First version that Kafka 4.0 kept of each client API of which it dropped versions (KIP-896).

JoinGroup is not in the table: only Kafka 4.0.0 lacks its v0 and v1, which 4.0.1 restored."""

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
    first_flexible: int
    """First version with tagged fields and compact types (KIP-482); `NEVER` if no version has
    them."""
    throttle_time_since: int
    """First version whose response has a throttle time; `NEVER` if no response has one."""
    addresses_since: int
    """First version whose response contains the address of a broker or controller; `NEVER` if
    no response does."""


_ANSWERED: Final = SASL_APIS | frozenset(
    {
        DESCRIBE_ACLS,
        CREATE_ACLS,
        DELETE_ACLS,
        DESCRIBE_CLIENT_QUOTAS,
        ALTER_CLIENT_QUOTAS,
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        ALTER_USER_SCRAM_CREDENTIALS,
    }
)
_NOT_OFFERED: Final = frozenset(
    {
        CREATE_DELEGATION_TOKEN,
        RENEW_DELEGATION_TOKEN,
        EXPIRE_DELEGATION_TOKEN,
        DESCRIBE_DELEGATION_TOKEN,
        52,  # Vote
        53,  # BeginQuorumEpoch
        54,  # EndQuorumEpoch
        56,  # AlterPartition
        58,  # Envelope
        59,  # FetchSnapshot
        62,  # BrokerRegistration
        63,  # BrokerHeartbeat
        67,  # AllocateProducerIds
        70,  # ControllerRegistration
        73,  # AssignReplicasToDirs
        82,  # UpdateRaftVoter
        83,  # InitializeShareGroupState
        84,  # ReadShareGroupState
        85,  # WriteShareGroupState
        86,  # DeleteShareGroupState
        87,  # ReadShareGroupStateSummary
    }
)
_ADDRESSES_SINCE: Final = {
    PRODUCE: 10,  # KIP-951
    FETCH: 16,  # KIP-951
    METADATA: 0,
    FIND_COORDINATOR: 0,
    DESCRIBE_QUORUM: 2,  # KIP-853
    DESCRIBE_CLUSTER: 0,
    SHARE_FETCH: 1,
    SHARE_ACKNOWLEDGE: 1,
}


def _kind(key: int) -> Kind:
    if key in _ANSWERED:
        return Kind.ANSWERED
    return Kind.NOT_OFFERED if key in _NOT_OFFERED else Kind.FORWARDED


def _api(request: Head) -> Api:
    name = request.name.removesuffix("Request")
    throttle_times = [
        int(line.split(" ")[2].removesuffix("+"))
        for line in BLOCKS[f"{name}Response"].splitlines()
        if line.startswith("throttle_time_ms ")
    ]
    return Api(
        key=request.api_key,
        name=name,
        kind=_kind(request.api_key),
        min_version=request.versions.first,
        max_version=request.versions.last,
        first_flexible=request.first_flexible,
        throttle_time_since=min(throttle_times, default=NEVER),
        addresses_since=_ADDRESSES_SINCE.get(request.api_key, NEVER),
    )


APIS: Final[Mapping[int, Api]] = {
    api.key: api for api in (_api(head_of(name)) for name in BLOCKS if name.endswith("Request"))
}


SCRAM_APIS: Final = frozenset({DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS})
CREDENTIAL_APIS: Final = SCRAM_APIS | {
    CREATE_DELEGATION_TOKEN,
    RENEW_DELEGATION_TOKEN,
    EXPIRE_DELEGATION_TOKEN,
    DESCRIBE_DELEGATION_TOKEN,
}
"""APIs of SCRAM users and delegation tokens, served by the side that authenticates clients."""


Versions = Mapping[int, tuple[int, int]]
"""Lowest and highest version by API key."""


def forwarded(
    upstream: Versions, *, enforces_acls: bool = True, passes: Container[int] = ()
) -> Versions:
    """Return the versions that are forwarded to a broker that offers `upstream`.

    With `enforces_acls`, these are only those that can be judged; without it, also those that Kafka
    4.0 dropped. `passes` are APIs that are forwarded although the proxy could answer them, or
    usually does not offer them.
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

    Kafka 4 still announces Produce from v0, which it does not serve, so the range of Fetch decides.
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

    They are those of `forwarded` and of the APIs that the proxy answers, except `withholds`. The
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
    """Return whether the proxy itself answers requests of this version; True for every version of
    ApiVersions (KIP-511)."""
    api = APIS.get(api_key)
    if api is None or api.kind is not Kind.ANSWERED:
        return False
    return api_key == API_VERSIONS or api_version <= api.max_version


def is_flexible(api_key: int, api_version: int) -> bool:
    """Return whether requests of this version have header v2, not v1."""
    return api_version >= APIS[api_key].first_flexible


def response_header_version(api_key: int, api_version: int) -> int:
    """Return 1 if the response's header has tagged fields, else 0.

    The header of an ApiVersions response never has tagged fields: a client must be able to read the
    response to a version that the broker does not know (KIP-511).
    """
    return int(api_key != API_VERSIONS and is_flexible(api_key, api_version))


def response_body_at(api_key: int, api_version: int, content: View, at: int = 4) -> int:
    """Return the position of a response's body, whose correlation id ends at `at`.

    As with `skip_tags`, the position may be past the end of `content`. Raises Malformed.
    """
    return skip_tags(content, at) if response_header_version(api_key, api_version) else at


def carries_addresses(api_key: int, api_version: int) -> bool:
    """Return whether responses of this version may contain an address, so that a gateway rewrites
    them."""
    api = APIS.get(api_key)
    return api is not None and api.addresses_since <= api_version <= api.max_version


ACLS_BATCHED: Final = 4
"""First version of DescribeAcls with many filters."""
QUOTAS_BATCHED: Final = 2
"""First version of DescribeClientQuotas with many filters."""
MAX_FILTERS: Final = 100_000
"""Maximum number of filters per request; the proxy's own bound, as the specification has no
limit."""
MAX_RESULT_BYTES: Final = 64 << 20
"""Maximum size of all results of one response, in bytes; the proxy's own bound, well below the
limits of clients, such as librdkafka's `receive.message.max.bytes` (100,000,000)."""


def acl_filter_count(body: bytes) -> int:
    """Return the number of filters of DescribeAcls v4, before any of them is decoded.

    Raises Malformed.
    """
    return _count(body, 0, min_size=8)  # four codes, three strings, tags


def quota_filter_count(body: bytes) -> int:
    """Return the number of filters of DescribeClientQuotas v2, before any of them is decoded.

    Raises Malformed.
    """
    return _count(body, 1, min_size=2)  # no components, tags


def _count(body: bytes, position: int, *, min_size: int) -> int:
    length, position = uvarint(body, position)
    if length == 0:
        raise Malformed("null instead of filters")
    if (length - 1) * min_size > len(body) - position:
        raise Malformed("more filters than bytes for them")
    return length - 1
