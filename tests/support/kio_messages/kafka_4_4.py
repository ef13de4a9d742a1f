"""Messages that Kafka 4.4 added, in kio's style, until kio has them.

TxnOffsetCommit v6 names topics by their ids (KIP-1319); DeleteGroups v3 has a message per group;
the streams group APIs carry descriptions of topologies (KIP-1331); UnregisterController is new;
an ApiVersions request says which broker the client means (KIP-1242).
Structures of kio's newest version are reused where nothing in them changed.

Schemas: Kafka's message definitions; `make kafka-drift KAFKA=4.4.0` compares the two.
"""

import uuid
from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.api_versions.v4 import request as api_versions_request
from kio.schema.api_versions.v4 import response as api_versions_response
from kio.schema.delete_groups.v2 import request as delete_groups_request
from kio.schema.delete_groups.v2 import response as delete_groups_response
from kio.schema.errors import ErrorCode
from kio.schema.streams_group_describe.v0 import request as streams_describe_request
from kio.schema.streams_group_describe.v0 import response as streams_describe_response
from kio.schema.streams_group_heartbeat.v0 import request as streams_heartbeat_request
from kio.schema.streams_group_heartbeat.v0 import response as streams_heartbeat_response
from kio.schema.txn_offset_commit.v5 import request as txn_commit_request
from kio.schema.txn_offset_commit.v5 import response as txn_commit_response
from kio.schema.types import BrokerId, GroupId, ProducerId, TopicName, TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from proxy.wire.apis import (
    STREAMS_GROUP_HEARTBEAT,
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    TXN_OFFSET_COMMIT,
    UNREGISTER_CONTROLLER,
)
from tests.support.kio_messages.flexible_parts import InRequest, InResponse


class _OfTxnOffsetCommit:
    """Base of all parts of TxnOffsetCommit that are new."""

    __slots__ = ()
    __version__: ClassVar[i16] = i16(6)
    __api_key__: ClassVar[i16] = i16(TXN_OFFSET_COMMIT)


class _OfTopologyUpdate:
    """Base of both messages of StreamsGroupTopologyDescriptionUpdate."""

    __slots__ = ()
    __version__: ClassVar[i16] = i16(0)
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE)


class _OfUnregisterController:
    """Base of both messages of UnregisterController."""

    __slots__ = ()
    __version__: ClassVar[i16] = i16(0)
    __api_key__: ClassVar[i16] = i16(UNREGISTER_CONTROLLER)


# ---------------------------------------------------------------------- ApiVersions v5


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsRequest(api_versions_request.ApiVersionsRequest):
    """ApiVersions request, with the cluster and node that the client means."""

    __version__: ClassVar[i16] = i16(5)
    cluster_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: BrokerId = field(metadata={"kafka_type": "int32"}, default=BrokerId(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersionsResponse(api_versions_response.ApiVersionsResponse):
    """ApiVersions response: that of v4."""

    __version__: ClassVar[i16] = i16(5)


# ---------------------------------------------------------------------- TxnOffsetCommit v6


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequestTopic(_OfTxnOffsetCommit, InRequest):
    """Topic, by its id, and the offsets to commit."""

    __type__: ClassVar = EntityType.nested
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[txn_commit_request.TxnOffsetCommitRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest(_OfTxnOffsetCommit, InRequest):
    """TxnOffsetCommit request."""

    __type__: ClassVar = EntityType.request
    transactional_id: TransactionalId = field(metadata={"kafka_type": "string"})
    group_id: GroupId = field(metadata={"kafka_type": "string"})
    producer_id: ProducerId = field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    generation_id_or_member_epoch: i32 = field(metadata={"kafka_type": "int32"}, default=i32(-1))
    member_id: str = field(metadata={"kafka_type": "string"}, default="")
    group_instance_id: str | None = field(metadata={"kafka_type": "string"}, default=None)
    topics: tuple[TxnOffsetCommitRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponseTopic(_OfTxnOffsetCommit, InResponse):
    """Topic, by its id, and the results of its partitions."""

    __type__: ClassVar = EntityType.nested
    topic_id: uuid.UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[txn_commit_response.TxnOffsetCommitResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitResponse(_OfTxnOffsetCommit, InResponse):
    """TxnOffsetCommit response."""

    __type__: ClassVar = EntityType.response
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    topics: tuple[TxnOffsetCommitResponseTopic, ...]


# ---------------------------------------------------------------------- DeleteGroups v3


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsRequest(delete_groups_request.DeleteGroupsRequest):
    """DeleteGroups request: that of v2."""

    __version__: ClassVar[i16] = i16(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletableGroupResult(delete_groups_response.DeletableGroupResult):
    """Result of a group, with a message."""

    __version__: ClassVar[i16] = i16(3)
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse(delete_groups_response.DeleteGroupsResponse):
    """DeleteGroups response."""

    __version__: ClassVar[i16] = i16(3)
    results: tuple[DeletableGroupResult, ...]


# ---------------------------------------------------------------------- StreamsGroupHeartbeat v1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupHeartbeatRequest(streams_heartbeat_request.StreamsGroupHeartbeatRequest):
    """StreamsGroupHeartbeat request: that of v0."""

    __version__: ClassVar[i16] = i16(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupHeartbeatResponse(InResponse):
    """StreamsGroupHeartbeat response; its `acceptable_recovery_lag` is longer than that of v0, and
    at another place."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(1)
    __api_key__: ClassVar[i16] = i16(STREAMS_GROUP_HEARTBEAT)
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    member_id: str = field(metadata={"kafka_type": "string"})
    member_epoch: i32 = field(metadata={"kafka_type": "int32"})
    heartbeat_interval: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    task_offset_interval: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    acceptable_recovery_lag: i64 = field(metadata={"kafka_type": "int64"}, default=i64(-1))
    status: tuple[streams_heartbeat_response.Status, ...] | None
    active_tasks: tuple[streams_heartbeat_response.TaskIds, ...] | None
    standby_tasks: tuple[streams_heartbeat_response.TaskIds, ...] | None
    warmup_tasks: tuple[streams_heartbeat_response.TaskIds, ...] | None
    topology_description_required: bool = field(metadata={"kafka_type": "bool"}, default=False)
    endpoint_information_epoch: i32 = field(metadata={"kafka_type": "int32"})
    partitions_by_user_endpoint: tuple[streams_heartbeat_response.EndpointToPartitions, ...] | None


# ---------------------------------------------------------------------- descriptions of topologies


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescriptionNode:
    """Node of a topology; `node_type` is 1 for a source, 2 for a processor, 3 for a sink."""

    __type__: ClassVar = EntityType.nested
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    node_type: i8 = field(metadata={"kafka_type": "int8"})
    source_topics: tuple[TopicName, ...] = field(metadata={"kafka_type": "string"}, default=())
    sink_topic: TopicName | None = field(metadata={"kafka_type": "string"}, default=None)
    stores: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())
    successors: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescriptionSubtopology:
    """Part of a topology, with its nodes."""

    __type__: ClassVar = EntityType.nested
    __flexible__: ClassVar[bool] = True
    subtopology_id: str = field(metadata={"kafka_type": "string"})
    nodes: tuple[TopologyDescriptionNode, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescriptionGlobalStore:
    """Global store: the node that feeds it, and the one that fills it."""

    __type__: ClassVar = EntityType.nested
    __flexible__: ClassVar[bool] = True
    source: TopologyDescriptionNode
    processor: TopologyDescriptionNode


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDescription:
    """Description of a topology: the same in requests and in responses."""

    __type__: ClassVar = EntityType.nested
    __flexible__: ClassVar[bool] = True
    subtopologies: tuple[TopologyDescriptionSubtopology, ...]
    global_stores: tuple[TopologyDescriptionGlobalStore, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupDescribeRequest(streams_describe_request.StreamsGroupDescribeRequest):
    """StreamsGroupDescribe v1 request."""

    __version__: ClassVar[i16] = i16(1)
    include_topology_description: bool = field(metadata={"kafka_type": "bool"}, default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup(streams_describe_response.DescribedGroup):
    """Group with the description of its topology, and the status of that: 0 not requested, 1 not
    stored, 2 error, 3 available."""

    __version__: ClassVar[i16] = i16(1)
    topology_description: TopologyDescription | None = field(default=None)
    topology_description_status: i8 = field(metadata={"kafka_type": "int8"}, default=i8(0))
    assignor_name: str | None = field(metadata={"kafka_type": "string"}, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupDescribeResponse(streams_describe_response.StreamsGroupDescribeResponse):
    """StreamsGroupDescribe v1 response."""

    __version__: ClassVar[i16] = i16(1)
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTopologyDescriptionUpdateRequest(_OfTopologyUpdate, InRequest):
    """StreamsGroupTopologyDescriptionUpdate request."""

    __type__: ClassVar = EntityType.request
    group_id: GroupId = field(metadata={"kafka_type": "string"})
    member_id: str = field(metadata={"kafka_type": "string"})
    topology_epoch: i32 = field(metadata={"kafka_type": "int32"})
    topology_description: TopologyDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupTopologyDescriptionUpdateResponse(_OfTopologyUpdate, InResponse):
    """StreamsGroupTopologyDescriptionUpdate response."""

    __type__: ClassVar = EntityType.response
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)


# ---------------------------------------------------------------------- UnregisterController


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterControllerRequest(_OfUnregisterController, InRequest):
    """UnregisterController request."""

    __type__: ClassVar = EntityType.request
    controller_id: i32 = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterControllerResponse(_OfUnregisterController, InResponse):
    """UnregisterController response."""

    __type__: ClassVar = EntityType.response
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})


REQUESTS: Final = (
    ApiVersionsRequest,
    TxnOffsetCommitRequest,
    DeleteGroupsRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupDescribeRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
    UnregisterControllerRequest,
)
RESPONSES: Final = (
    ApiVersionsResponse,
    TxnOffsetCommitResponse,
    DeleteGroupsResponse,
    StreamsGroupHeartbeatResponse,
    StreamsGroupDescribeResponse,
    StreamsGroupTopologyDescriptionUpdateResponse,
    UnregisterControllerResponse,
)
